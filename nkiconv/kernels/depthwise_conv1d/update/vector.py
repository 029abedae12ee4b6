"""`update` for few sequences: channels on partitions, products and sums on Vector.

Row p of a tile holds channels c0 + p * T + t of some images, as runs of T * W elements (the last row ends with the last
channel, so that it may start with some of the row before). Tap s of column q is a slice of it times the filters,
broadcast over the images, and one reduction sums the taps; products of the next column go before the sum of one, so
that neither waits for the other's result. An initial state gives the first products and x the others. No channel meets
another, so NaN and Inf stay where the definition puts them.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil, share
from ..free_channels import ChannelBlock, finish_free, full_rows
from .plan import taps_met

#: Bytes a partition of a part's rows, products and results, of which two are there at once, and of filters, as well.
PART_BYTES = 32_768
UPDATE_VECTOR_FILTER_BYTES = 49_152


@dataclass
class Part(nl.NKIObject):
    """Images n0 .. n0+nn-1 of a block of channels."""

    block: object
    n0: int
    nn: int


def elements(geometry, extras, state):
    """Elements of one channel and image that are in SBUF at once: row, state, products of two columns, results."""
    products = geometry.S if extras.strict_nonfinite else min(geometry.S, geometry.W + state)
    return geometry.W + state + 2 * products + 2 * geometry.Q


def parts_of(geometry, extras, state):
    """All parts of the work, in order; none if one image does not fit."""
    half = div_ceil(geometry.C, 2)
    halves = [(0, geometry.C)] if geometry.C == 1 else [(0, half), (half, geometry.C - half)]
    found = []
    for index in range(len(halves)):
        count = halves[index][1]
        length = div_ceil(count, nl.tile_size.pmax)
        images = min(geometry.N, PART_BYTES // (4 * length * elements(geometry, extras, state)))
        if length * geometry.S * geometry.itemsize > UPDATE_VECTOR_FILTER_BYTES:
            images = 0
        if images > 0:
            if geometry.C == 1:
                images = min(images, div_ceil(geometry.N, 2))
            block = ChannelBlock(c0=halves[index][0], count=count, length=length)
            for n0 in range(0, geometry.N, images):
                found.append(Part(block=block, n0=n0, nn=min(images, geometry.N - n0)))
    return found


def count_vector(geometry, parts, cores):
    """Instructions of the busiest core, at most."""
    return div_ceil(parts, cores) * (17 + 6 * geometry.Q) + 5


@dataclass
class Loaded(nl.NKIObject):
    """What a part is made of, in SBUF: [rows, images, channels, ...] each, None where there is none."""

    x: object
    state: object
    residual: object
    filters: object
    bias: object


def update_vector(operands, geometry, extras, state):
    """Write operands.y; state: positions of an initial state, 0 without one. Loads are one part ahead."""
    every = parts_of(geometry, extras, state)
    mine = share(len(every), nl.num_programs(), nl.program_id(0))
    now = None
    for index in range(mine[0], mine[0] + mine[1] + 1):
        after = None
        if index < mine[0] + mine[1]:
            after = load_part(operands, geometry, extras, state, every, index, now)
        if index > mine[0]:
            work_part(operands, geometry, extras, every[index - 1], now)
        now = after


def load_part(operands, geometry, extras, state, every, index, before):
    """Rows of a part, and filters and bias, those of the part before it where that has the same channels."""
    part = every[index]
    block, n0, length = part.block, part.n0, part.block.length
    rows = div_ceil(block.count, length)
    filters, bias_sbuf = None, None
    last = every[max(0, index - 1)].block
    if before != None and last.c0 == block.c0:
        filters, bias_sbuf = before.filters, before.bias
    else:
        filters = nl.ndarray((rows, 1, length, geometry.S), dtype=operands.w.dtype, buffer=nl.sbuf)
        transfer(filters, operands.w, block, 0, (0, geometry.w_c, geometry.w_s), True)
        if extras.epilogue.bias:
            bias_sbuf = nl.ndarray((rows, 1, length, 1), dtype=operands.bias.dtype, buffer=nl.sbuf)
            transfer(bias_sbuf, operands.bias, block, 0, (0, 1, 1), True)
    x_sbuf = nl.ndarray((rows, part.nn, length, geometry.W), dtype=operands.x.dtype, buffer=nl.sbuf)
    transfer(x_sbuf, operands.x, block, n0, (geometry.x_n, geometry.x_c, geometry.x_w), True)
    state_sbuf, residual_sbuf = None, None
    if state > 0:
        state_sbuf = nl.ndarray((rows, part.nn, length, state), dtype=operands.state.dtype, buffer=nl.sbuf)
        transfer(state_sbuf, operands.state, block, n0, (geometry.C * state, state, 1), True)
    if extras.epilogue.residual != "":
        residual_sbuf = nl.ndarray((rows, part.nn, length, geometry.Q), dtype=operands.residual.dtype, buffer=nl.sbuf)
        transfer(residual_sbuf, operands.residual, block, n0, (geometry.y_n, geometry.y_c, geometry.y_q), True)
    return Loaded(x=x_sbuf, state=state_sbuf, residual=residual_sbuf, filters=filters, bias=bias_sbuf)


def work_part(operands, geometry, extras, part, loaded):
    """Sums of a part, their epilogue and the store."""
    rows, length = loaded.x.shape[0], part.block.length
    shape = (rows, part.nn, length, geometry.Q)
    flat = (rows, part.nn, length * geometry.Q)
    sums_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    products = None
    for q in range(geometry.Q + 1):
        before = products
        if q < geometry.Q:
            products = multiply_taps(loaded.x, loaded.state, loaded.filters, geometry, q, extras.strict_nonfinite)
        if q > 0:
            sum_products(sums_sbuf[0:rows, 0 : part.nn, 0:length, q - 1], before)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    bias, residual = None, None
    if loaded.bias != None:
        bias = loaded.bias.broadcast(1, part.nn).broadcast(3, geometry.Q)
    if loaded.residual != None:
        residual = loaded.residual.reshape(flat)
    finish_free(y_sbuf.reshape(flat), sums_sbuf.reshape(flat), bias, residual, extras.epilogue, nisa.engine.vector, 0)
    transfer(y_sbuf, operands.y, part.block, part.n0, (geometry.y_n, geometry.y_c, geometry.y_q), False)


def transfer(tile_sbuf, tensor_hbm, block, n0, steps, load):
    """[rows, images, channels, elements] from HBM to SBUF, or back.

    A last row with too few channels has those before it once more at its start, which are not stored again. steps: HBM
    elements between images, channels and elements.
    """
    images, length, width = tile_sbuf.shape[1], tile_sbuf.shape[2], tile_sbuf.shape[3]
    complete = full_rows(block)
    for last in range(2):
        rows = complete[0]
        row, first, c0 = 0, 0, block.c0
        if last == 1:
            rows = min(1, complete[1])
            row = complete[0]
            first = 0 if load else length - complete[1]
            c0 = block.c0 + block.count - length + first
        if rows > 0:
            part_sbuf = tile_sbuf[row : row + rows, 0:images, first:length, 0:width]
            part_hbm = tensor_hbm.ap(
                pattern=[[length * steps[1], rows], [steps[0], images], [steps[1], length - first], [steps[2], width]],
                offset=n0 * steps[0] + c0 * steps[1],
            )
            if load:
                copy(part_sbuf, part_hbm)
            else:
                copy(part_hbm, part_sbuf)


def sum_products(sums_sbuf, products_sbuf):
    """Sums [rows, images, channels] in SBUF of products, zeros if there are none."""
    if products_sbuf == None:
        nisa.memset(dst=sums_sbuf, value=0.0)
    else:
        nisa.tensor_reduce(dst=sums_sbuf, op=nl.add, data=products_sbuf, axis=3)


def multiply_taps(x_sbuf, state_sbuf, filters, geometry, q, strict):
    """Products of column q, [rows, images, channels, taps] fp32 in SBUF: of all taps that meet something, or None.

    strict: taps in the padding count too, for they may be NaN or Inf.
    """
    rows, images, channels = x_sbuf.shape[0], x_sbuf.shape[1], x_sbuf.shape[2]
    met = taps_met(geometry, geometry.W, geometry.pad_left, q)
    before = (0, 0, 0)
    if state_sbuf != None:
        before = taps_met(geometry, state_sbuf.shape[3], 0, q)
    low, high = met[0], met[0] + met[1]
    if before[1] > 0:
        low = before[0]
        high = max(high, before[0] + before[1])
    first, end = (0, geometry.S) if strict else (low, high)
    if first == end:
        return None
    products_sbuf = nl.ndarray((rows, images, channels, end - first), dtype=nl.float32, buffer=nl.sbuf)
    for kind in range(2):
        taps = before if kind == 0 else met
        source = state_sbuf if kind == 0 else x_sbuf
        if taps[1] > 0:
            last = taps[2] + (taps[1] - 1) * geometry.dilation + 1
            at = taps[0] - first
            nisa.tensor_tensor(
                dst=products_sbuf[0:rows, 0:images, 0:channels, at : at + taps[1]],
                data1=source[0:rows, 0:images, 0:channels, taps[2] : last : geometry.dilation],
                data2=filters[0:rows, 0:1, 0:channels, taps[0] : taps[0] + taps[1]].broadcast(1, images),
                op=nl.multiply,
            )
    for side in range(2):
        begin = first if side == 0 else high
        stop = low if side == 0 else end
        if begin < stop:
            nisa.tensor_scalar(
                dst=products_sbuf[0:rows, 0:images, 0:channels, begin - first : stop - first],
                data=filters[0:rows, 0:1, 0:channels, begin:stop].broadcast(1, images),
                op0=nl.multiply,
                operand0=0.0,
            )
    return products_sbuf
