"""From a window of x to y: sums of taps in a bank, activation, norm, store; of prefill and of decode steps alike."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import store
from ..._engines import Ledger
from ..._epilogue import evacuate
from ..._warm import accumulator
from .heads import NormJob, advance
from .loads import partitions_of


@dataclass
class Results:
    """Where sums go: parts of y in HBM, the epilogue, NormJobs on their way, oldest first."""

    parts: tuple
    epilogue: object
    eps: float
    ledger: Ledger
    jobs: list


def sum_taps(warm, group, count, S, window, diagonals):
    """Sums of a group in PSUM: [tokens, tiles, partitions], or [tokens, channels] where tiles are of neighbours.

    window: of (partitions, tile, tap) what the tap sees of `count` tokens, [partitions, tokens].
    """
    shape = (count, group.tiles, partitions_of(group)) if group.strided else (count, group.count)
    acc_psum, started = accumulator(warm, shape)
    for one in group.runs:
        for tile in range(one.tile0, one.tile0 + one.tiles):
            first = tile * nl.tile_size.pmax
            dst = (
                acc_psum[0:count, tile, 0 : one.rows] if group.strided else acc_psum[0:count, first : first + one.rows]
            )
            for s in range(S):
                nisa.nc_matmul(
                    dst=dst,
                    stationary=window(one.rows, tile, s),
                    moving=diagonals[tile][0 : one.rows, s, 0 : one.rows],
                    accumulate=started or s > 0,
                )
    return acc_psum


def finish(out, group, count, sums_psum, bias, step, token):
    """Sums of `count` tokens through the epilogue, and to HBM, or to those that are to be normalised.

    bias: [128, channels] in SBUF, or None. The first is token `token` of y [N * T, heads, dim], others `step` apart.
    """
    y_hbm = out.parts[group.part]
    y_sbuf = nl.ndarray((count, group.count), dtype=y_hbm.dtype, buffer=nl.sbuf)
    z_sbuf = nl.ndarray((count, group.count), dtype=nl.float32, buffer=nl.sbuf) if group.heads > 0 else y_sbuf
    into, bias = z_sbuf, None if bias is None else bias[0:count, 0 : group.count]
    if group.strided:
        by_tile = (partitions_of(group), group.tiles)
        into, sums_psum = into.reshape_dim(1, by_tile), sums_psum.permute((0, 2, 1))
        bias = None if bias is None else bias.reshape_dim(1, by_tile)
    evacuate(into, sums_psum, bias, None, out.epilogue, out.ledger)
    channels = y_hbm.shape[2] * y_hbm.shape[3]

    def leave():
        store(y_sbuf, y_hbm, [[step * channels, count], [1, group.count]], token * channels + group.first)

    if group.heads == 0:
        leave()
        return
    by_head = (group.heads, group.count // group.heads)
    z, y = (one.reshape_dim(1, by_head) for one in (z_sbuf, y_sbuf))
    out.jobs.append(NormJob(z=z, y_sbuf=y, eps=out.eps, ledger=out.ledger, store=leave))


def advance_all(out):
    """One more stage of each job, oldest first."""
    out.jobs = [job for job in out.jobs if advance(job)]
