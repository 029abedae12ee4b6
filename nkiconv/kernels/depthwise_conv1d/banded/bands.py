"""Filters as band matrices for `banded`: overlapping windows of a zero-padded filter.

With the outputs of a block in reverse order (o' = Bo - 1 - o), row i of channel a's band of tap block k is

    band_k[(a, i), (a, o')] = w[a, k B + i - stride o] = z[i + k B + stride o'],   z = B - stride zeros, w[a], zeros,

so the bands of all k lie in one row of (num_taps B) elements that starts at element i of z: an access pattern of
overlapping windows. A buffer holds those of several groups, each block-diagonal over the channels of the group,
[(a, i), group, a', v]; what is off the diagonal is zeroed once and never written again.

z is made in SBUF and, for all but the first groups, read from a copy in HBM, because a DMA from SBUF has to take its
partitions, which are channels, first: it can serve only one channel, where one from HBM serves channel a of every group
of a buffer. The first groups do not wait for the copy.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import VECTOR_WORK_MEMSET
from ..._tiles import div_ceil

#: Buffers of 128 channels' filters in turn, if a band buffer needs no more of them at once: more would all come at the
#: start, before the first bands.
RING = 2


@dataclass
class Filters(nl.NKIObject):
    """Zero-padded filters of a core's channels, from c0 on."""

    #: [up to 128 channels, width] in SBUF; None where they are not, or no longer, there
    tiles: list
    #: buffers that they take in turn; none where the copy in HBM soon frees them
    ring: list
    #: [channels, width] in HBM, or None
    scratch: object
    c0: int
    cn: int
    width: int


def start_filters(operands, blocks, c0, cn):
    """Room for z of channels c0 .. c0+cn-1, in HBM if bands come from there."""
    width = (blocks.num_taps + 1) * blocks.block
    scratch_hbm = None
    if blocks.config.scratch:
        scratch_hbm = nl.ndarray((cn, width), dtype=operands.w.dtype, buffer=nl.private_hbm)
    tiles, ring = [], []
    for _ in range(0, cn, nl.tile_size.pmax):
        tiles.append(None)
    if not blocks.config.scratch:
        at_once = div_ceil(blocks.buffer_groups * blocks.per_group - 1, nl.tile_size.pmax) + 1
        for _ in range(min(max(RING, at_once), len(tiles))):
            ring.append(nl.ndarray((min(cn, nl.tile_size.pmax), width), dtype=operands.w.dtype, buffer=nl.sbuf))
    return Filters(tiles=tiles, ring=ring, scratch=scratch_hbm, c0=c0, cn=cn, width=width)


def ensure_filters(filters, operands, geometry, blocks, c0, cn):
    """Load z of channels c0 .. c0+cn-1 where it is not there; 128 channels at a time, so that all DMA engines work."""
    first = (c0 - filters.c0) // nl.tile_size.pmax
    last = (c0 + cn - 1 - filters.c0) // nl.tile_size.pmax
    for index in range(first, last + 1):
        if filters.tiles[index] == None:
            load_filters(filters, operands, geometry, blocks, index)
    for index in range(len(filters.tiles)):
        if index + 1 < first or index > last:
            filters.tiles[index] = None


def load_filters(filters, operands, geometry, blocks, index):
    """z of up to 128 channels: the filters, zeros in front and behind, and the copy in HBM."""
    front = blocks.block - geometry.stride
    row0 = index * nl.tile_size.pmax
    rows = min(nl.tile_size.pmax, filters.cn - row0)
    if len(filters.ring) > 0:
        slot = index % len(filters.ring)
        for other in range(slot, len(filters.tiles), len(filters.ring)):
            filters.tiles[other] = None
        z_sbuf = filters.ring[slot][0:rows, 0 : filters.width]
    else:
        z_sbuf = nl.ndarray((rows, filters.width), dtype=operands.w.dtype, buffer=nl.sbuf)
    copy(
        z_sbuf[0:rows, front : front + geometry.S],
        operands.w.ap(
            pattern=[[geometry.w_c, rows], [geometry.w_s, geometry.S]], offset=(filters.c0 + row0) * geometry.w_c
        ),
    )
    if front > 0:
        nisa.memset(dst=z_sbuf[0:rows, 0:front], value=0.0, engine=nisa.engine.gpsimd)
    nisa.memset(dst=z_sbuf[0:rows, front + geometry.S : filters.width], value=0.0, engine=nisa.engine.gpsimd)
    if blocks.config.scratch:
        copy(filters.scratch[row0 : row0 + rows, 0 : filters.width], z_sbuf)
    filters.tiles[index] = z_sbuf


def band_buffers(blocks, dtype):
    """Buffers [(a, i), group, a', v] in turn; each is to be zeroed before its first bands."""
    size = blocks.num_taps * blocks.block
    rows, groups = blocks.per_group * blocks.block, blocks.buffer_groups
    buffers = []
    for _ in range(blocks.config.buffers):
        buffers.append(
            nl.ndarray((rows, groups, blocks.per_group, size + size % 2), dtype=dtype, buffer=nl.sbuf),
        )
    return buffers


def zero_bands(buffer_sbuf, blocks, ledger):
    """Zeros off the diagonal, two of 16 bits at a time, group by group, Vector and GpSimd in turn."""
    if blocks.per_group == 1:
        return
    words = buffer_sbuf
    if buffer_sbuf.dtype != nl.float32:
        words = buffer_sbuf.view(nl.float32)
    for group in range(words.shape[1]):
        part = words[0 : words.shape[0], group, 0 : words.shape[2], 0 : words.shape[3]]
        if group % 3 == 2:
            nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)
        else:
            nisa.memset(dst=part, value=0.0, engine=nisa.engine.vector)
            ledger.vector = ledger.vector + words.shape[2] * words.shape[3] * VECTOR_WORK_MEMSET


def load_bands(buffer_sbuf, filters, blocks, c0, cn, soon):
    """Bands of channels c0 .. c0+cn-1, group by group, into a buffer's diagonals; `soon`: not from the copy in HBM."""
    block, size, A = blocks.block, blocks.num_taps * blocks.block, blocks.per_group
    if soon:
        for channel in range(cn):
            row = c0 + channel - filters.c0
            a = channel % A
            copy(
                buffer_sbuf[a * block : (a + 1) * block, channel // A, a, 0:size],
                filters.tiles[row // nl.tile_size.pmax].ap(
                    pattern=[[filters.width, 1], [1, block], [1, size]],
                    offset=(row % nl.tile_size.pmax) * filters.width,
                ),
            )
    else:
        for a in range(min(A, cn)):
            groups = (cn - a + A - 1) // A
            copy(
                buffer_sbuf[a * block : (a + 1) * block, 0:groups, a, 0:size],
                filters.scratch.ap(
                    pattern=[[1, block], [A * filters.width, groups], [1, size]],
                    offset=(c0 + a - filters.c0) * filters.width,
                ),
            )


def mirror_matrix(blocks, dtype):
    """[(a, o'), (a, o)] in SBUF: 1 where o' = out_block - 1 - o, in the same channel."""
    size = blocks.per_group * blocks.out_block
    ones_sbuf = nl.ndarray((size, size), dtype=dtype, buffer=nl.sbuf)
    mirror_sbuf = nl.ndarray((size, size), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    nisa.affine_select(
        dst=mirror_sbuf,
        pattern=[[-blocks.out_block, blocks.per_group], [1, blocks.out_block]],
        channel_multiplier=1,
        on_true_tile=ones_sbuf,
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=1 - blocks.out_block,
    )
    return mirror_sbuf


def spread_bias(operands, geometry, blocks, g0, gn):
    """Bias of groups g0 .. g0+gn-1 for the rows of their results: fp32 [(a, o'), gn] in SBUF, or None.

    A row of A numbers a group is transposed and each number copied to the out_block rows of its channel, both by the
    array; products with ones are exact.
    """
    if operands.bias == None:
        return None
    per_group, rows = blocks.per_group, blocks.per_group * blocks.out_block
    ones_sbuf = nl.ndarray((per_group, rows), dtype=nl.float32, buffer=nl.sbuf)
    spread_sbuf = nl.ndarray((per_group, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    nisa.affine_select(
        dst=spread_sbuf,
        pattern=[[-1, per_group], [0, blocks.out_block]],
        channel_multiplier=1,
        on_true_tile=ones_sbuf,
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=0,
    )
    bias_sbuf = nl.ndarray((rows, gn), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, gn, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, gn - first)
        spread_groups(bias_sbuf, spread_sbuf, operands, geometry, blocks, g0 + first, first, count)
    return bias_sbuf


def spread_groups(bias_sbuf, spread_sbuf, operands, geometry, blocks, g0, first, count):
    """Bias of up to 128 groups from g0 on into columns first .. of bias_sbuf."""
    per_group, rows = blocks.per_group, blocks.per_group * blocks.out_block
    c0 = g0 * per_group
    full = min(count, (geometry.C - c0) // per_group)
    rest = min(count * per_group, geometry.C - c0) - full * per_group
    rows_sbuf = nl.ndarray((count, per_group), dtype=nl.float32, buffer=nl.sbuf)
    if rest > 0:
        nisa.memset(dst=rows_sbuf, value=0.0)
        copy(
            rows_sbuf[full : full + 1, 0:rest],
            operands.bias.ap(pattern=[[1, 1], [1, rest]], offset=c0 + full * per_group),
        )
    if full > 0:
        copy(rows_sbuf[0:full, 0:per_group], operands.bias.ap(pattern=[[per_group, full], [1, per_group]], offset=c0))
    transposed_psum = nl.ndarray((per_group, count), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=rows_sbuf, engine=nisa.engine.tensor)
    transposed_sbuf = nl.ndarray((per_group, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=transposed_sbuf, src=transposed_psum)
    spread_psum = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=spread_psum, stationary=spread_sbuf, moving=transposed_sbuf)
    nisa.tensor_copy(dst=bias_sbuf[0:rows, first : first + count], src=spread_psum)
