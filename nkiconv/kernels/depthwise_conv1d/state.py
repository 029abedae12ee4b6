"""Streaming: the state in front of each row instead of zeros, and the state that the next call starts from.

The state of a causal convolution is what its window sees before the row: window - 1 elements, S - 1 without dilation.
An algorithm reads it where it lies. The next state depends on inputs alone, so it is stored before the algorithm starts
and moves while that works. Its rows are

    final[n, c] = the last `pad_left` elements of state[n, c] (zeros without one) followed by x[n, c]

Long rows, and ends of long rows, go from HBM to HBM. Short ones, a few bytes each, would cost a DMA element each: they
go through SBUF, many to a partition, so that HBM sees long runs; so do products of two chunks of x. There the old
state, as one run, lands `W` elements further left than it lay, and an engine copies x over what is the next row's.
Bound by HBM, or by that copy at 0.52 ns an element of 128 partitions on Vector, 0.83 on Scalar.
"""

import functools
from dataclasses import dataclass

from ... import rules
from ..._nki import nisa, nl
from ...axis import Axis
from ...schedules.tiles import cut, share
from .._arguments import refuse
from .._dma import copy
from .._engines import is_16bit, new_ledger, pick
from .._epilogue import FUNCTIONS
from .._prologue import PrologueOperands, finish_gates, load_rows, rows_in_hbm
from .geometry import gates_due

#: Columns of the tile of zeros that fills a state: 16 KiB a partition in fp32, besides whatever the algorithm holds.
ZERO_COLUMNS = 4096
#: Bytes from which a run is long: a DMA engine is at four fifths of its rate.
LONG_RUN_BYTES = 512
#: Bytes of a row of x below which all of it is loaded for its last elements: a DMA engine hardly takes longer for them
#: than its least time for an element (trn2.toml, dma.sure_element_bytes); bytes that are loaded of longer rows, as it
#: moves them in that time (dma.small_element_bytes).
SHORT_ROW_BYTES, SMALL_BYTES = 256, 64
#: Bytes up to which a DMA engine takes many times longer for an element (trn2.toml, dma.tiny_element_bytes).
TINY_BYTES = 4
#: Images from which each has a partition where products are stored.
MANY_IMAGES = 32
#: Bytes of a partition of the tiles that short rows go through: x, and the state.
STATE_TILE_BYTES = 8192


def check_state(state_ref, x_ref, geometry):
    """Refuse a state (or a request for the final one) that does not fit the convolution."""
    axis = Axis(
        geometry.W, geometry.S, geometry.stride, geometry.pad_left, geometry.pad_right, geometry.dilation,
        geometry.lhs_dilation,
    )  # fmt: skip
    refuse(*rules.state(axis))
    if state_ref != None:
        wanted = (geometry.N, geometry.C, axis.window - 1)
        refuse(rules.shape("initial_state", state_ref.shape, wanted, "[N, C, window - 1]"))
        refuse(rules.same("initial_state", "dtype", state_ref.dtype, "img_ref", x_ref.dtype))


def final_state(operands, geometry):
    """The final state in HBM, [N, C, pad_left]."""
    x = operands.x
    final_hbm = nl.ndarray((geometry.N, geometry.C, geometry.pad_left), dtype=x.dtype, buffer=nl.shared_hbm)
    store_final_state(x, operands.state, final_hbm, geometry, gate=operands.gate, prologue=operands.prologue)
    return final_hbm


def store_final_state(x_hbm, state_hbm, final_hbm, geometry, first=0, row=0, state_row=0, gate=None, prologue=None):
    """Write final_hbm [N, C, pad_left]; each core its share of the rows, or of the channels of each image.

    first: element of x that the rows begin with; row, state_row: the first of them in final_hbm and in state_hbm.
    gate: x's factor, or None; prologue: PrologueOperands, or None.
    """
    itemsize = geometry.itemsize
    long = geometry.pad_left * itemsize >= LONG_RUN_BYTES
    ends = min(geometry.pad_left, geometry.W) * itemsize > TINY_BYTES and geometry.W * itemsize >= SHORT_ROW_BYTES
    direct = gate is None and prologue is None and (long or (ends and geometry.x_w == 1))
    step = geometry.x_n if geometry.C == 1 else geometry.x_c
    images, rows = geometry.N, geometry.C
    if prologue is None and (geometry.C == 1 or geometry.x_n == geometry.C * geometry.x_c):
        images, rows = 1, geometry.N * geometry.C
    mine = share(rows, nl.num_programs(), nl.program_id(0))
    ledger, sources = new_ledger(), [x_hbm] if gate is None else [x_hbm, gate]
    if gate is not None and images >= MANY_IMAGES:
        of_each = (row + mine[0], state_row + mine[0], mine[1], first + mine[0] * step)
        store_rows_of_images(sources, state_hbm, final_hbm, geometry, *of_each, ledger)
        return
    for n in range(images):
        row0 = n * rows + mine[0]
        offset = first + n * geometry.x_n + mine[0] * step
        places = (row + row0, state_row + row0, mine[1], offset, step)
        if direct:
            store_rows(x_hbm, state_hbm, final_hbm, geometry, *places)
        else:
            numbers = None if prologue is None else RowNumbers(prologue, n, mine[0])
            store_short_rows(sources, state_hbm, final_hbm, geometry, *places, ledger, numbers)


def store_rows(x_hbm, state_hbm, final_hbm, geometry, row0, state_row0, rows, offset, step):
    """Rows of the final state from row0 on, from HBM to HBM; the old state has them from state_row0 on; in x they start
    at `offset`, `step` elements apart."""
    size = geometry.pad_left
    from_x = min(size, geometry.W)
    kept = size - from_x
    if rows > 0:
        if from_x > 0:
            start = offset + (geometry.W - from_x) * geometry.x_w
            ends = rows_in_hbm(x_hbm, [[step, rows], [geometry.x_w, from_x]], start)
            copy(final_hbm.ap(pattern=[[size, rows], [1, from_x]], offset=row0 * size + kept), ends)
        if kept > 0:
            kept_hbm = final_hbm.ap(pattern=[[size, rows], [1, kept]], offset=row0 * size)
            if state_hbm != None:
                copy(kept_hbm, state_hbm.ap(pattern=[[size, rows], [1, kept]], offset=state_row0 * size + from_x))
            else:
                store_zeros(kept_hbm, final_hbm.dtype, rows, kept)


@dataclass
class RowNumbers:
    """What rows of an image are scaled and shifted by, from a channel on."""

    prologue: PrologueOperands
    image: int
    channel: int

    def apply(self, tail_sbuf, row):
        """tail = act(tail * scale + shift) of [partitions, rows, elements], the first of them row number `row`."""
        partitions, length, width = tail_sbuf.shape
        asked, found = self.prologue.asked, tail_sbuf
        for hbm, op in ((self.prologue.scale, nl.multiply), (self.prologue.shift, nl.add)):
            if hbm is not None:
                numbers_sbuf = nl.ndarray((partitions, length), dtype=nl.float32, buffer=nl.sbuf)
                start = self.channel + row + (0 if len(hbm.shape) == 1 else self.image * hbm.shape[1])
                copy(numbers_sbuf, hbm.ap(pattern=[[length, partitions], [1, length]], offset=start))
                into = nl.ndarray(tail_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
                each = numbers_sbuf.expand_dim(2).broadcast(2, width)
                nisa.tensor_tensor(dst=into, data1=found, data2=each, op=op, engine=nisa.engine.vector)
                found = into
        op = FUNCTIONS[asked.activation] if asked.activation else nl.copy
        nisa.activation(dst=tail_sbuf, op=op, data=found)


def store_short_rows(
    sources, state_hbm, final_hbm, geometry, row0, state_row0, rows, offset, step, ledger, numbers=None
):
    """The same through SBUF, in tiles [partitions, rows of a partition, elements]."""
    row, most = 0, rows_of_tile(geometry)
    while row < rows:
        length = min(most, max(1, (rows - row) // nl.tile_size.pmax))
        partitions = min(nl.tile_size.pmax, (rows - row) // length)
        apart = (length * step, length)
        places = (row0 + row, state_row0 + row, offset + row * step)
        tile, of_tile = (partitions, length), None if numbers is None else functools.partial(numbers.apply, row=row)
        store_tile(sources, state_hbm, final_hbm, geometry, places, tile, apart, step, ledger, of_tile)
        row += partitions * length


def store_rows_of_images(sources, state_hbm, final_hbm, geometry, row0, state_row0, rows, offset, ledger):
    """The same rows of every image, an image to a partition."""
    C, step = geometry.C, geometry.x_c
    for n0, images in cut(geometry.N, nl.tile_size.pmax):
        for c0, length in cut(rows, rows_of_tile(geometry)):
            places = (row0 + n0 * C + c0, state_row0 + n0 * C + c0, offset + n0 * geometry.x_n + c0 * step)
            tile, apart = (images, length), (geometry.x_n, C)
            store_tile(sources, state_hbm, final_hbm, geometry, places, tile, apart, step, ledger)


def loaded_of_row(geometry):
    """Elements at the end of a short row of x that are loaded."""
    from_x = min(geometry.pad_left, geometry.W)
    if geometry.x_w != 1:
        return from_x
    least = SHORT_ROW_BYTES if geometry.W * geometry.itemsize < SHORT_ROW_BYTES else SMALL_BYTES
    return min(geometry.W, max(from_x, least // geometry.itemsize))


def rows_of_tile(geometry):
    """Rows of a partition of a tile, at most."""
    return max(1, STATE_TILE_BYTES // ((geometry.pad_left + loaded_of_row(geometry)) * geometry.itemsize))


def store_tile(sources, state_hbm, final_hbm, geometry, places, tile, apart, step, ledger, arrive=None):
    """Rows of the final state, (partitions, rows of each).

    places: the first in final_hbm, in state_hbm, and its element of x; apart: elements of x, and rows of states, from
    one partition to the next; step: elements of x from row to row; arrive: takes a prologue of elements of x in place.
    """
    (row, state_row, offset), (partitions, length) = places, tile
    size, width = geometry.pad_left, loaded_of_row(geometry)
    from_x = min(size, geometry.W)
    final_sbuf = nl.ndarray((partitions, length, size), dtype=final_hbm.dtype, buffer=nl.sbuf)
    flat_sbuf = final_sbuf.reshape((partitions, length * size))
    if from_x < size and state_hbm == None:
        nisa.memset(dst=final_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    elif from_x < size:
        run, old = length * size - from_x, state_row * size + from_x
        pattern = [[apart[1] * size, partitions], [1, run]]
        copy(flat_sbuf[0:partitions, 0:run], state_hbm.ap(pattern=pattern, offset=old))
    start, tails = offset + (geometry.W - width) * geometry.x_w, []
    for source in sources:
        tails.append(load_tails(source, geometry, start, step, (partitions, apart[0]), length, width))
    finish_gates(gates_due(geometry, tails), None)
    if arrive is not None:
        arrive(tails[0])
    nisa.tensor_copy(
        dst=final_sbuf[0:partitions, 0:length, size - from_x : size],
        src=tails[0][0:partitions, 0:length, width - from_x : width],
        engine=pick(ledger, length * from_x, is_16bit(final_hbm.dtype)),
    )
    pattern = [[apart[1] * size, partitions], [1, length * size]]
    copy(final_hbm.ap(pattern=pattern, offset=row * size), flat_sbuf)


def load_tails(x_hbm, geometry, start, step, places, length, width):
    """The last `width` elements of rows of x: view [partitions, length, width] of SBUF, laid out as HBM's runs are.
    places: partitions, and elements of x from one to the next."""
    partitions, apart = places
    by_channel = step < geometry.x_w and width > 1
    shape = (partitions, width, length) if by_channel else (partitions, length, width)
    x_sbuf = nl.ndarray(shape, dtype=x_hbm.dtype, buffer=nl.sbuf)
    rows, elements = [step, length], [geometry.x_w, width]
    inner = [elements, rows] if by_channel else [rows, elements]
    load_rows(x_sbuf, x_hbm, [[apart, partitions], inner[0], inner[1]], start)
    return x_sbuf.permute((0, 2, 1)) if by_channel else x_sbuf


def store_zeros(dst_hbm, dtype, rows, columns):
    """Fill [rows, columns] in HBM with zeros, from one tile of them."""
    zeros_shape = (min(nl.tile_size.pmax, rows), min(ZERO_COLUMNS, columns))
    zeros_sbuf = nl.ndarray(zeros_shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sbuf, value=0.0)
    for row0 in range(0, rows, zeros_shape[0]):
        count = min(zeros_shape[0], rows - row0)
        for column0 in range(0, columns, zeros_shape[1]):
            width = min(zeros_shape[1], columns - column0)
            copy(dst_hbm[row0 : row0 + count, column0 : column0 + width], zeros_sbuf[0:count, 0:width])
