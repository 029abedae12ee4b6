"""Matmuls on zeros while the Tensor Engine waits for data, so that it is at its full rate when data arrive.

The Tensor Engine starts at half rate and stays there until a window of 3.4 us in which it does 3/8 of the work that it
could (trn2.toml, throttle.*). Zeros have 16 bits for all dtypes of data: an fp32 matmul takes four times as long.
"""

from dataclasses import dataclass

from .._nki import nisa, nl
from ..schedules.tiles import BANK_COLUMNS, dense_strides, size_of
from ._masks import constant

#: Blocks of 128 columns of a matmul on zeros that writes a whole bank.
WARM_BLOCKS = 4


def warm_zeros():
    """Zeros [128, 128] in SBUF for `warm_up`."""
    return constant((nl.tile_size.pmax, nl.tile_size.pmax), nl.bfloat16, 0.0, nisa.engine.vector)


@dataclass
class WarmBank(nl.NKIObject):
    """A PSUM bank, fp32 [128, 512], with the zeros of a warm-up in its first `columns`; psum is None after sums take
    it."""

    psum: object
    columns: int


def warm_up(zeros_sbuf, count, blocks):
    """Issue `count` matmuls of `blocks` * 128 columns of zeros, blocks 1, 2 or 4; return [WarmBank], [] for count 0.

    Products that are added to these zeros (`accumulator`) keep a compiler from dropping the matmuls as dead code.
    """
    if count <= 0:
        return []
    pmax, turns = nl.tile_size.pmax, BANK_COLUMNS // (blocks * nl.tile_size.pmax)
    bank_psum = nl.ndarray((pmax, turns, blocks, pmax), dtype=nl.float32, buffer=nl.psum)
    moving = zeros_sbuf.expand_dim(1).broadcast(1, blocks)
    for index in range(count):
        dst = bank_psum[:, index % turns]
        nisa.nc_matmul(dst=dst, stationary=zeros_sbuf, moving=moving, accumulate=index >= turns)
    return [WarmBank(psum=bank_psum, columns=min(count, turns) * blocks * pmax)]


def accumulator(warm, shape):
    """(fp32 sums of `shape` in PSUM, whether they are zeros already): a WarmBank that is wide enough, or a new tile;
    after a new tile no later sums take a WarmBank."""
    free = [[step, count] for step, count in zip(dense_strides(shape[1:]), shape[1:])]
    for bank in warm:
        if bank.psum != None and size_of(shape[1:]) <= bank.columns:
            sums_psum = bank.psum.ap(pattern=[[BANK_COLUMNS, shape[0]], *free], offset=0)
            bank.psum = None
            return sums_psum, True
    for bank in warm:
        bank.psum = None
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum), False
