"""Filters as band matrices for `banded`: overlapping windows of a zero-padded filter.

With the outputs of a block in reverse order (o' = Bo - 1 - o), row i of channel a's band of tap block k is

    band_k[(a, i), (a, o')] = w[a, k B + i - stride o] = z[i + k B + stride o'],   z = B - stride zeros, w[a], zeros,

so the bands of all k lie in one row of (num_taps B) elements that starts at element i of z: an access pattern of
overlapping windows. A buffer holds the bands of several groups, each block-diagonal over the channels of the group,
[(a, i), group, a', v]; elements off the diagonal are zeroed once and never written again.

With flipped=True w[a, S - 1 - s] stands for w[a, s]: z = num_taps B - S zeros, w[a], zeros, as stored; row i starts at
element B - 1 - i: z's offset falls with the partition, outputs are in order, and the last k comes first.

z is made in SBUF and, for all but the first groups, read from a copy in HBM: a DMA from SBUF has partitions, which are
channels, as its outermost dim, so it serves only one channel, while one from HBM serves channel a of every group of a
buffer. The first groups do not wait for the copy.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.tiles import div_ceil
from ..._dma import copy
from ..._engines import VECTOR_WORK_MEMSET

#: First band buffers, whose bands do not wait for the filters' copy in HBM.
SOON = 1
#: Parts of bf16 that hold all bits of a bias in fp32.
BIAS_PARTS = 3


@dataclass
class Filters:
    """Zero-padded filters of a core's channels c0 .. c0+cn-1."""

    #: [channels, width] in SBUF of each 128 channels, by the number of these
    tiles: dict
    #: [channels, width] in HBM, or None
    scratch: object
    c0: int
    cn: int
    width: int


def start_filters(run, c0, cn):
    """The Filters of channels c0 .. c0+cn-1, with an empty copy of z in HBM if bands are loaded from there."""
    blocks, scratch_hbm = run.blocks, None
    width = (blocks.num_taps + 1) * blocks.block
    if blocks.settings.scratch:
        scratch_hbm = nl.ndarray((cn, width), dtype=run.tensors.w.dtype, buffer=nl.private_hbm)
    run.filters = Filters({}, scratch_hbm, c0, cn, width)


def ensure_filters(run, c0, cn):
    """Load z of channels c0 .. c0+cn-1 if it is not in SBUF, 128 channels at a time, so that all DMA engines work.
    Without a copy in HBM earlier channels are dropped."""
    filters, most = run.filters, nl.tile_size.pmax
    first, last = (c0 - filters.c0) // most, (c0 + cn - 1 - filters.c0) // most
    for index in range(first, last + 1):
        if index not in filters.tiles:
            kept = filters.tiles.items()
            filters.tiles = {one: z for one, z in kept if filters.scratch is not None or first <= one <= last}
            filters.tiles[index] = load_banded_filters(run, index * most)


def load_banded_filters(run, row0):
    """z of up to 128 channels in SBUF: the filters, zeros before and after; and the copy in HBM."""
    geometry, filters, blocks, w = run.geometry, run.filters, run.blocks, run.tensors.w
    rows = min(nl.tile_size.pmax, filters.cn - row0)
    z_sbuf = nl.ndarray((rows, filters.width), dtype=w.dtype, buffer=nl.sbuf)
    front = blocks.num_taps * blocks.block - geometry.S if geometry.flipped else blocks.block - geometry.stride
    pattern = [[w.steps[1], rows], [w.steps[2], geometry.S]]
    w.load(z_sbuf[0:rows, front : front + geometry.S], pattern, 0, filters.c0 + row0, 0)
    if front > 0:
        nisa.memset(dst=z_sbuf[0:rows, 0:front], value=0.0, engine=nisa.engine.gpsimd)
    nisa.memset(dst=z_sbuf[0:rows, front + geometry.S : filters.width], value=0.0, engine=nisa.engine.gpsimd)
    if filters.scratch is not None:
        copy(filters.scratch[row0 : row0 + rows, 0 : filters.width], z_sbuf)
    return z_sbuf


def prefetch_bands(run, position):
    """Load the bands of a position of the queue, (first channel, channels), into the next buffer in rotation."""
    if position < len(run.queue):
        c0, cn = run.queue[position]
        ensure_filters(run, c0, cn)
        buffer_sbuf = run.buffers[position % len(run.buffers)]
        if position < len(run.buffers):
            zero_bands(run, buffer_sbuf)
        load_bands(run, buffer_sbuf, c0, cn, position < SOON or run.filters.scratch is None)


def zero_bands(run, buffer_sbuf):
    """Zeros off the diagonal, two of 16 bits at a time, group by group, two of three groups by Vector, else GpSimd."""
    if run.blocks.per_group == 1:
        return
    words = as_words(buffer_sbuf)
    for group in range(words.shape[1]):
        engine = nisa.engine.gpsimd
        if group % 3 < 2:
            engine, ledger = nisa.engine.vector, run.ledger
            ledger.vector = ledger.vector + words.shape[2] * words.shape[3] * VECTOR_WORK_MEMSET
        part = words[0 : words.shape[0], group, 0 : words.shape[2], 0 : words.shape[3]]
        nisa.memset(dst=part, value=0.0, engine=engine)


def as_words(buffer_sbuf):
    """A view of the buffer with elements of four bytes."""
    return buffer_sbuf if buffer_sbuf.dtype == nl.float32 else buffer_sbuf.view(nl.float32)


def load_bands(run, buffer_sbuf, c0, cn, soon):
    """Bands of channels c0 .. c0+cn-1, group by group, into a buffer's diagonals; `soon`: not from the copy in HBM."""
    filters, block, A = run.filters, run.blocks.block, run.blocks.per_group
    size, row0 = run.blocks.num_taps * block, c0 - filters.c0
    # steps of access patterns are signed: APPair of KLR, github.com/leanprover/KLR, KLR/Core/Tensor.lean
    step, start = (-1, block - 1) if run.geometry.flipped else (1, 0)
    if soon:
        for channel in range(cn):
            row, a = row0 + channel, channel % A
            z_sbuf = filters.tiles[row // nl.tile_size.pmax]
            pattern, offset = [[filters.width, 1], [step, block], [1, size]], row % nl.tile_size.pmax * filters.width
            dst = buffer_sbuf[a * block : (a + 1) * block, channel // A, a, 0:size]
            copy(dst, z_sbuf.ap(pattern=pattern, offset=offset + start))
    else:
        for a in range(min(A, cn)):
            groups = div_ceil(cn - a, A)
            pattern, offset = [[step, block], [A * filters.width, groups], [1, size]], (row0 + a) * filters.width
            dst = buffer_sbuf[a * block : (a + 1) * block, 0:groups, a, 0:size]
            copy(dst, filters.scratch.ap(pattern=pattern, offset=offset + start))


def bands_of(run, buffer_sbuf, group, contraction, k, mirrored):
    """A group's bands of tap block k: [(a, i), a, outputs of a block] in the buffer's order, or mirrored."""
    blocks, stride, slot = run.blocks, run.geometry.stride, group % run.blocks.buffer_groups
    A, B, size = blocks.per_group, blocks.block, buffer_sbuf.shape[3]
    begin = (blocks.num_taps - 1 - k if run.geometry.flipped else k) * B
    if not mirrored:
        return buffer_sbuf[0:contraction, slot, 0:A, begin : begin + B : stride]
    pattern = [[buffer_sbuf.shape[1] * A * size, contraction], [size, A], [-stride, blocks.out_block]]
    return buffer_sbuf.ap(pattern=pattern, offset=slot * A * size + begin + (blocks.out_block - 1) * stride)


def spread_bias(run, tile):
    """Bias of a tile's groups for the partitions of their sums: fp32 [(a, o'), gn] in SBUF; None without a bias.

    One matmul with the identity transposes rows [group, a] and repeats each number for all out_block rows of its
    channel.
    """
    if run.tensors.bias is None:
        return None
    A, Bo, gn = run.blocks.per_group, run.blocks.out_block, tile.gn
    full = gn if tile.last == A else gn - 1
    rows_sbuf = nl.ndarray((gn, A), dtype=nl.float32, buffer=nl.sbuf)
    c0 = tile.g0 * A
    if full < gn:
        nisa.memset(dst=rows_sbuf, value=0.0)
        run.tensors.bias.load(rows_sbuf[full:gn, 0 : tile.last], [[1, 1], [1, tile.last]], 0, c0 + full * A, 0)
    if full > 0:
        run.tensors.bias.load(rows_sbuf[0:full, 0:A], [[A, full], [1, A]], 0, c0, 0)
    spread_psum = nl.ndarray((A * Bo, gn), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(
        dst=spread_psum,
        stationary=rows_sbuf.ap(pattern=[[A, gn], [1, A], [0, Bo]], offset=0),
        moving=run.identity[0:gn, 0:gn],
        is_moving_onezero=True,
    )
    bias_sbuf = nl.ndarray((A * Bo, gn), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=bias_sbuf, src=spread_psum)
    return bias_sbuf


def load_bias(run):
    """Bias of a core's channels, fp32 [1, channels] in SBUF, with zeros for the last group's missing ones; None without
    a bias. The first load of all: small loads are late after loads of rows."""
    if run.tensors.bias is None:
        return None
    A, count = run.blocks.per_group, run.filters.cn
    most = div_ceil(count, A) * A
    bias_sbuf = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.sbuf)
    if count < most:
        nisa.memset(dst=bias_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    run.tensors.bias.load(bias_sbuf[0:1, 0:count], [[1, 1], [1, count]], 0, run.filters.c0, 0)
    return bias_sbuf


def bias_in_parts(run, left_sbuf):
    """A bias as three rows of bf16 that add up to it, [3, channels] in SBUF, for matmuls with ones; None without a
    bias. After the zeros of the first filters and bands, which also wait for GpSimd."""
    if left_sbuf is None:
        return None
    most = left_sbuf.shape[1]
    row_sbuf = nl.ndarray((1, BIAS_PARTS, most), dtype=nl.bfloat16, buffer=nl.sbuf)
    parts_sbuf = nl.ndarray((BIAS_PARTS, most), dtype=nl.bfloat16, buffer=nl.sbuf)
    for part in range(BIAS_PARTS):
        part_sbuf = row_sbuf[0:1, part, 0:most]
        nisa.tensor_copy(dst=part_sbuf, src=left_sbuf, engine=nisa.engine.gpsimd)
        if part + 1 < BIAS_PARTS:
            rest_sbuf = nl.ndarray((1, most), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(
                dst=rest_sbuf, data1=left_sbuf, data2=part_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd
            )
            left_sbuf = rest_sbuf
    copy(parts_sbuf, row_sbuf)
    return parts_sbuf
