"""Streaming: the state before each row instead of zeros, and the state of the next call.

The state of a causal convolution is the elements of its window before the row: window - 1 elements, S - 1 without
dilation. An algorithm reads it in HBM. The next state depends on inputs alone, so it is stored before the algorithm
starts, and its DMAs overlap the algorithm. Its rows are

    final[n, c] = the last `pad_left` elements of state[n, c] (zeros without one) followed by x[n, c]

Long rows, and ends of long rows, are copied from HBM to HBM. Short rows, a few bytes each, would take a DMA element
each: they go through SBUF, many to a partition, in long runs of HBM; so do products of two chunks of x. There the old
state, as one run, is loaded `W` elements to the left of its place, and an engine copies x over the elements of the next
row. Bound by HBM, or by that copy at 0.52 ns an element of 128 partitions on Vector, 0.83 on Scalar.
"""

from dataclasses import replace
from itertools import product

from ... import rules
from ..._nki import nisa, nl
from ...schedules.depthwise import TINY_BYTES
from ...schedules.tiles import cut_at, lines_of, share
from .._arguments import refuse
from .._dma import copy
from .._engines import copy_balanced, itemsize_of, new_ledger
from .._epilogue import FUNCTIONS
from .._prologue import finish_gates
from .tensors import Rows

#: Columns of the tile of zeros that fills a state: 16 KiB a partition in fp32, besides the algorithm's tiles.
ZERO_COLUMNS = 4096
#: Least bytes of a long run, at which a DMA engine has four fifths of its rate.
LONG_RUN_BYTES = 512
#: Least bytes of a row of x that is not loaded whole for its last elements: a DMA engine takes little more for fewer
#: bytes than its least time for an element (trn2.toml, dma.sure_element_bytes); and bytes loaded of longer rows, which
#: take that least time (dma.small_element_bytes).
SHORT_ROW_BYTES, SMALL_BYTES = 256, 64
#: Least images with which each image has a partition when states of products are stored.
MANY_IMAGES = 32
#: Bytes a partition of the tiles of short rows: x, and the state.
STATE_TILE_BYTES = 8192


def check_state(state_ref, x_ref, axis, N, C):
    """Refuse a state (or a request for the final one) of N rows of C channels that does not fit the convolution."""
    refuse(*rules.state(axis))
    if state_ref is not None:
        refuse(rules.shape("initial_state", state_ref.shape, (N, C, axis.window - 1), "[N, C, window - 1]"))
        refuse(rules.same("initial_state", "dtype", state_ref.dtype, "img_ref", x_ref.dtype))


def final_state(tensors, geometry):
    """The final state in HBM, [N, C, pad_left]."""
    N, C, size = geometry.N, geometry.C, geometry.pad_left
    final_hbm = nl.ndarray((N, C, size), dtype=tensors.x.dtype, buffer=nl.shared_hbm)
    store_final_state(tensors, states_of(final_hbm, C, 0, size), N, C)
    return final_hbm


def states_of(hbm, C, low, high, row=0):
    """Rows of [.., C, elements low .. high-1] in HBM, from a row on."""
    size = high - low
    return Rows(hbm, (C * size, size, 1), low, high, row * size)


def store_final_state(tensors, final, N, C):
    """Write `final`, Rows of the states after tensors.state and tensors.x; each core its share of the rows, or of the
    channels of each image."""
    x, prologue, is_plain = tensors.x, tensors.prologue, tensors.gate is None and tensors.prologue is None
    item = itemsize_of(x.dtype)
    if prologue is None and (C == 1 or x.steps[0] == C * x.steps[1]):
        by_row = x.steps[0] if C == 1 else x.steps[1]
        tensors = replace(tensors, x=x.by(by_row), gate=None if tensors.gate is None else tensors.gate.by(by_row))
        N, C = 1, N * C
    first, rows = share(C, nl.num_programs(), nl.program_id(0))
    long = final.high * item >= LONG_RUN_BYTES
    ends = min(final.high, x.high) * item > TINY_BYTES and x.high * item >= SHORT_ROW_BYTES and x.steps[2] == 1
    width = loaded_of_row(x, final.high, item)
    most, ledger = max(1, STATE_TILE_BYTES // ((final.high + width) * item)), new_ledger()
    if is_plain and (long or ends):
        for n in range(N):
            store_rows(tensors, final, n, first, rows)
    elif tensors.gate is not None and N >= MANY_IMAGES:
        for (n, images), (c, length) in product(cut_at(N, nl.tile_size.pmax), cut_at(rows, most)):
            store_tile(tensors, final, (n, first + c), (images, length), True, width, ledger)
    else:
        for n, (row, *tile) in product(range(N), lines_of(rows, min(most, max(1, rows // nl.tile_size.pmax)))):
            store_tile(tensors, final, (n, first + row), tile, False, width, ledger)


def store_rows(tensors, final, n, c, rows):
    """Final states of rows of an image, from HBM to HBM."""
    x, state, size = tensors.x, tensors.state, final.high
    from_x = min(size, x.high)
    kept = size - from_x
    if rows > 0 and from_x > 0:
        ends = x.region([[x.steps[1], rows], [x.steps[2], from_x]], n, c, x.high - from_x)
        final.store(ends, [[size, rows], [1, from_x]], n, c, kept)
    if rows > 0 and kept > 0:
        pattern = [[size, rows], [1, kept]]
        if state is not None:
            final.store(state.region(pattern, n, c, state.low + from_x), pattern, n, c, 0)
        else:
            store_zeros(final.region(pattern, n, c, 0), final.dtype, rows, kept)


def loaded_of_row(x, size, item):
    """Loaded elements at the end of a row of x whose state goes through SBUF."""
    from_x = min(size, x.high)
    if x.steps[2] != 1:
        return from_x
    least = SHORT_ROW_BYTES if x.high * item < SHORT_ROW_BYTES else SMALL_BYTES
    return min(x.high, max(from_x, least // item))


def store_tile(tensors, final, place, tile, by_image, width, ledger):
    """Final states of rows from place (image, channel) on, by a tile (partitions, rows of each) in SBUF. width:
    elements loaded of each row's end; by_image: whether partitions have one image each, or channels of one image."""
    (n, c), (partitions, length), x, state, size = place, tile, tensors.x, tensors.state, final.high
    from_x, lines = min(size, x.high), [[final.steps[0] if by_image else length * size, partitions]]
    final_sbuf = nl.ndarray((partitions, length, size), dtype=final.dtype, buffer=nl.sbuf)
    flat_sbuf = final_sbuf.reshape((partitions, length * size))
    if from_x < size and state is None:
        nisa.memset(dst=final_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    elif from_x < size:
        run = length * size - from_x
        state.load(flat_sbuf[0:partitions, 0:run], [*lines, [1, run]], n, c, state.low + from_x)
    tails = [load_tails(rows, place, tile, by_image, width) for rows in tensors.sources]
    finish_gates(tensors.gates(tails), None)
    if tensors.prologue is not None:
        apply_prologue(tensors, tails[0], n, c)
    last = tails[0][0:partitions, 0:length, width - from_x : width]
    copy_balanced(final_sbuf[0:partitions, 0:length, size - from_x : size], last, ledger)
    final.store(flat_sbuf, [*lines, [1, length * size]], n, c, 0)


def load_tails(x, place, tile, by_image, width):
    """The last `width` elements of rows of x: a view [partitions, rows, width] of SBUF, in the order of HBM's runs."""
    (partitions, length), (by_n, by_c, step) = tile, x.steps
    by_channel = by_c < step and width > 1
    shape = (partitions, width, length) if by_channel else (partitions, length, width)
    x_sbuf = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    inner = [[by_c, length], [step, width]]
    pattern = [[by_n if by_image else length * by_c, partitions], *(inner[::-1] if by_channel else inner)]
    x.load(x_sbuf, pattern, *place, x.high - width)
    return x_sbuf.permute((0, 2, 1)) if by_channel else x_sbuf


def apply_prologue(tensors, tail_sbuf, n, c):
    """tail = act(tail * scale + shift) of [partitions, rows, elements], whose first row is (image, channel)."""
    (partitions, length, width), prologue, found = tail_sbuf.shape, tensors.prologue, tail_sbuf
    for rows, op in zip(tensors.numbers(), (nl.multiply, nl.add), strict=True):
        if rows is not None:
            numbers_sbuf = nl.ndarray((partitions, length), dtype=nl.float32, buffer=nl.sbuf)
            rows.load(numbers_sbuf, [[length, partitions], [1, length]], n, c, 0)
            into = nl.ndarray(tail_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
            each = numbers_sbuf.expand_dim(2).broadcast(2, width)
            nisa.tensor_tensor(dst=into, data1=found, data2=each, op=op, engine=nisa.engine.vector)
            found = into
    op = FUNCTIONS[prologue.asked.activation] if prologue.asked.activation else nl.copy
    nisa.activation(dst=tail_sbuf, op=op, data=found)


def store_zeros(dst_hbm, dtype, rows, columns):
    """Fill [rows, columns] in HBM with zeros, from one tile of them."""
    zeros_shape = (min(nl.tile_size.pmax, rows), min(ZERO_COLUMNS, columns))
    zeros_sbuf = nl.ndarray(zeros_shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0)
    for (row, count), (column, width) in product(cut_at(rows, zeros_shape[0]), cut_at(columns, zeros_shape[1])):
        copy(dst_hbm[row : row + count, column : column + width], zeros_sbuf[0:count, 0:width])
