"""Filters as band matrices for `banded`: overlapping windows of a zero-padded filter.

With the outputs of a block in reverse order (o' = Bo - 1 - o), row i of channel a's band of tap block k is

    band_k[(a, i), (a, o')] = w[a, k B + i - stride o] = z[i + k B + stride o'],   z = B - stride zeros, w[a], zeros,

so the bands of all k lie in one row of (num_taps B) elements that starts at element i of z: an access pattern of
overlapping windows. A buffer holds the bands of several groups, each block-diagonal over the channels of the group,
[(a, i), group, a', v]; most elements off the diagonal are zeroed once and never written again.

With flipped=True w[a, S - 1 - s] stands for w[a, s]: z = num_taps B - S zeros, w[a], zeros, as stored; row i starts at
element B - 1 - i: z's offset falls with the partition, outputs are in order, and the last k comes first.

z is made in SBUF. A DMA from there has partitions as its outermost dim, and so reads one: a row of z has some channels
(`joined`) of all groups of a buffer, whose bands are one DMA. Each of these channels is followed by zeros of one band
less than there are channels, so that a window that starts a band earlier for each channel before has the band on the
diagonal and zeros beside it.
"""

from ...._nki import nisa, nl
from ....schedules.banded import bias_lines
from ....schedules.channels import ChannelBlock
from ....schedules.tiles import div_ceil, whole_words
from ..._dma import copy
from ..._engines import VECTOR_WORK_MEMSET
from ..tensors import move_free


def place_of(run, group):
    """(tile, first row, index in a row) of a group in z, whose rows have as many as a band buffer."""
    blocks = run.blocks
    rows, (row, index) = blocks.per_group // blocks.joined, divmod(group - run.g0, blocks.buffer_groups)
    tile, row = divmod(row, nl.tile_size.pmax // rows)
    return tile, row * rows, index


def band_queue(run):
    """Contents of band buffers in order of use, [first group, groups]: neighbours in a row of z."""
    queue = []
    for tile in run.tiles:
        for group in range(tile.g0, tile.g0 + tile.gn):
            if queue and group == sum(queue[-1]) and place_of(run, group)[2] > 0:
                queue[-1][1] += 1
            else:
                queue.append([group, 1])
    return queue


def load_banded_filters(run, index):
    """A tile of z in SBUF: the filters, zeros before and after. The last row may have fewer groups, the last group
    fewer channels."""
    blocks, w, S = run.blocks, run.tensors.w, run.geometry.S
    A, J, (_, c_step, step), front = blocks.per_group, blocks.joined, w.steps, whole_words(blocks.front, 2)
    rows, slots = A // J, blocks.buffer_groups
    each, most = slots * A, nl.tile_size.pmax // rows
    c0 = run.g0 * A + index * most * each
    channels = min(most * each, run.c_end - c0)
    full, groups, last = channels // each, channels % each // A, channels % A
    z_sbuf = nl.ndarray((div_ceil(channels, each) * rows, slots, J, blocks.pitch), dtype=w.dtype, buffer=nl.sbuf)
    for row, slot, channel, counts in (
        (0, 0, 0, (full, rows, slots, J)),
        (full * rows, 0, full * each, (1, rows, groups, J)),
        (full * rows, groups, channels - last, (1, last // J, 1, J)),
        (full * rows + last // J, groups, channels - last % J, (1, 1, 1, last % J)),
    ):
        if all(counts):
            here = z_sbuf[row : row + counts[0] * counts[1], slot : slot + counts[2], 0 : counts[3], front : front + S]
            steps = each * c_step, J * c_step, A * c_step, c_step
            pattern = [*map(list, zip(steps, counts, strict=True)), [step, S]]
            w.load(here, pattern, 0, c0 + channel, 0)
    zero_columns(z_sbuf, 0, front)
    zero_columns(z_sbuf, front + S, blocks.pitch)
    return z_sbuf


def zero_columns(z_sbuf, begin, end):
    """Zeros in columns of z, two of 16 bits at a time, by GpSimd, as loads of x wait for Vector."""
    words = as_words(z_sbuf)
    each = z_sbuf.shape[3] // words.shape[3]
    first, last = div_ceil(begin, each), end // each
    for tile, r0, r1 in ((z_sbuf, begin, first * each), (words, first, last)):
        if r0 < r1:
            nisa.memset(dst=tile[..., r0:r1], value=0.0, engine=nisa.engine.gpsimd)


def ensure_filters(run, group):
    """Load the tile of z that has a group if it is not in SBUF, in place of the last one."""
    tile, _, _ = place_of(run, group)
    if tile != run.z_index:
        run.z_index, run.z = tile, None
        run.z = load_banded_filters(run, tile)


def prefetch_bands(run, position):
    """Load the bands of a position of the queue into the next buffer in rotation."""
    if position < len(run.queue):
        group, groups = run.queue[position]
        A, at = run.blocks.per_group, position % len(run.buffers)
        ensure_filters(run, group)
        zero_bands(run, at, groups)
        full = min(groups, run.c_end // A - group)
        for slot, some, channels in ((0, full, A), (full, groups - full, run.c_end % A)):
            if some > 0:
                load_bands(run, run.buffers[at], group, slot, some, channels)


def zero_bands(run, at, groups):
    """Zeros off the diagonals of a buffer's first groups, before their first bands: two of 16 bits at a time, group by
    group, two of three groups by Vector, else GpSimd."""
    if run.blocks.per_group == run.blocks.joined:
        return
    words = as_words(run.buffers[at])
    for group in range(run.zeroed[at], groups):
        engine = nisa.engine.gpsimd
        if sum(run.zeroed) % 3 < 2:
            engine, ledger = nisa.engine.vector, run.ledger
            ledger.vector = ledger.vector + words.shape[2] * words.shape[3] * VECTOR_WORK_MEMSET
        part = words[0 : words.shape[0], group, 0 : words.shape[2], 0 : words.shape[3]]
        nisa.memset(dst=part, value=0.0, engine=engine)
        run.zeroed[at] = group + 1


def as_words(buffer_sbuf):
    """A view of the buffer with elements of four bytes."""
    return buffer_sbuf if buffer_sbuf.dtype == nl.float32 else buffer_sbuf.view(nl.float32)


def load_bands(run, buffer_sbuf, group, slot, groups, channels):
    """Bands of the first channels of some groups into a buffer's diagonals from a slot on: a DMA for each row of z."""
    z_sbuf, (_, row, index) = run.z, place_of(run, group)
    _, slots, J, pitch = z_sbuf.shape
    block, size, width = run.blocks.block, buffer_sbuf.shape[3], slots * J * pitch
    # steps of access patterns are signed: APPair of KLR, github.com/leanprover/KLR, KLR/Core/Tensor.lean
    step, start = (-1, block - 1) if run.geometry.flipped else (1, 0)
    start += (index + slot) * J * pitch + run.blocks.front % 2
    for a in range(0, channels, J):
        some = min(J, channels - a)
        # a channel's window starts earlier by a slot for each channel before it, whose zeros then are before its band
        pattern = [[width, 1], [pitch - size, some], [step, block], [J * pitch, groups], [1, J * size]]
        dst = buffer_sbuf[a * block : (a + some) * block, slot : slot + groups, a : a + J, 0:size]
        copy(dst, z_sbuf.ap(pattern=pattern, offset=(row + a // J) * width + start))


def bands_of(run, buffer_sbuf, contraction, k, mirrored):
    """The present group's bands of tap block k: [(a, i), a, outputs of a block] in the buffer's order, or mirrored."""
    blocks, stride, slot = run.blocks, run.geometry.stride, run.slot
    A, B, size = blocks.per_group, blocks.block, buffer_sbuf.shape[3]
    begin = (blocks.num_taps - 1 - k if run.geometry.flipped else k) * B
    if not mirrored:
        return buffer_sbuf[0:contraction, slot, 0:A, begin : begin + B : stride]
    pattern = [[buffer_sbuf.shape[1] * A * size, contraction], [size, A], [-stride, blocks.out_block]]
    return buffer_sbuf.ap(pattern=pattern, offset=slot * A * size + begin + (blocks.out_block - 1) * stride)


def load_bias(run):
    """Bias of a core's channels, fp32 [line, channels of a line, 1] in SBUF, with zeros for the last group's missing
    ones; None without a bias. The first load of all: small loads are late after loads of rows."""
    if run.tensors.bias is None:
        return None
    A, g0 = run.blocks.per_group, run.g0
    lines, length = bias_lines(div_ceil(run.c_end, A) * A - g0 * A)
    bias_sbuf = nl.ndarray((lines, length, 1), dtype=nl.float32, buffer=nl.sbuf)
    move_free(bias_sbuf, run.tensors.bias, ChannelBlock(g0 * A, run.c_end - g0 * A, length), 0)
    return bias_sbuf
