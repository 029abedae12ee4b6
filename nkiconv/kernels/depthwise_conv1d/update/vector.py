"""`update` for few sequences: channels on partitions, products and sums on Vector.

Row p of a tile holds channels c0 + p * T + t of some images, as runs of T * W elements (the last row ends with the last
channel, so that it may start with some of the row before). Tap s of column q is a slice of it times the filters,
broadcast over the images, and one reduction sums the taps; products of the next column go before the sum of one, so
that neither waits for the other's result. An initial state gives the first products and x the others. No channel meets
another, so NaN and Inf stay where the definition puts them.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.channels import full_rows, row_start
from ....schedules.depthwise import residual_places
from ....schedules.tiles import div_ceil, share, some_of
from ....schedules.update import parts_of, taps_met
from ..._dma import load, store
from ..._epilogue import evacuate
from ..._prologue import finish_gates, load_rows
from ..geometry import gates_due, sources_of


@dataclass
class PartTiles:
    """What a part is made of, in SBUF: [rows, images, channels, ...] each, None where there is none; gates: products
    that x waits for."""

    x: object
    state: object
    residual: object
    filters: object
    bias: object
    gates: list


def update_vector(operands, geometry, options):
    """Write operands.y. Loads are one part ahead."""
    every = parts_of(geometry, options)
    mine, now = some_of(every, share(len(every), nl.num_programs(), nl.program_id(0))), None
    for before, part in zip([None, *mine], [*mine, None]):
        after = None if part is None else load_part(operands, geometry, part, now)
        if before is not None:
            work_part(operands, geometry, options, before, now)
        now = after


def load_part(operands, geometry, part, before):
    """Rows of a part, and filters and bias, those of the part before it where that has the same channels."""
    if before != None and part.n0 > 0:
        filters, bias = before.filters, before.bias
    else:
        filters = load_images(operands.w, part.block, 0, 1, geometry.S, (0, geometry.w_c, geometry.w_s))
        bias = load_images(operands.bias, part.block, 0, 1, 1, (0, 1, 1))
    left, x_steps = geometry.pad_left, (geometry.x_n, geometry.x_c, geometry.x_w)
    *residual_steps, start = residual_places(geometry)
    some, state_steps = (part.block, part.n0, part.nn), (geometry.C * left, left, 1)
    tiles = [load_images(source, *some, geometry.W, x_steps, load_rows) for source in sources_of(operands)]
    state = load_images(operands.state, *some, left, state_steps, load_rows)
    residual = load_images(operands.residual, *some, geometry.Q, residual_steps, load, start)
    return PartTiles(tiles[0], state, residual, filters, bias, gates_due(geometry, tiles))


def load_images(tensor_hbm, block, n0, nn, width, steps, move=load, start=0):
    """[rows, images n0 .. n0+nn-1, channels, width] of a tensor in its own dtype, or None without one."""
    if tensor_hbm == None:
        return None
    shape = (div_ceil(block.count, block.length), nn, block.length, width)
    tile_sbuf = nl.ndarray(shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf)
    transfer(tile_sbuf, tensor_hbm, block, n0, steps, move, start)
    return tile_sbuf


def work_part(operands, geometry, options, part, loaded):
    """Sums of a part, their epilogue and the store."""
    finish_gates(loaded.gates, None)
    rows, length = loaded.x.shape[0], part.block.length
    shape = (rows, part.nn, length, geometry.Q)
    flat = (rows, part.nn, length * geometry.Q)
    sums_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    products = None
    for q in range(geometry.Q + 1):
        before = products
        if q < geometry.Q:
            products = multiply_taps(loaded.x, loaded.state, loaded.filters, geometry, q, options.strict_nonfinite)
        if q > 0:
            column = sums_sbuf[0:rows, 0 : part.nn, 0:length, q - 1]
            if before == None:
                nisa.memset(dst=column, value=0.0)
            else:
                nisa.tensor_reduce(dst=column, op=nl.add, data=before, axis=3)
    y_sbuf = nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf)
    bias = None if loaded.bias == None else loaded.bias.broadcast(1, part.nn).broadcast(3, geometry.Q)
    residual = None if loaded.residual == None else loaded.residual.reshape(flat)
    sums_sbuf = sums_sbuf.reshape(flat)
    evacuate(y_sbuf.reshape(flat), sums_sbuf, bias, residual, options.epilogue, nisa.engine.vector)
    transfer(y_sbuf, operands.y, part.block, part.n0, (geometry.y_n, geometry.y_c, geometry.y_q), store)


def transfer(tile_sbuf, tensor_hbm, block, n0, steps, move, start=0):
    """[rows, images, channels, elements] from HBM to SBUF, or back.

    A last row with too few channels has those before it once more at its start, which are not stored again. steps: HBM
    elements between images, channels and elements, from `start` on; move: `load_rows`, `load` or `store`.
    """
    images, length, width = tile_sbuf.shape[1], tile_sbuf.shape[2], tile_sbuf.shape[3]
    complete, rest = full_rows(block)
    for row in range(0, complete + min(1, rest), complete):
        rows = complete if row == 0 else 1
        first = 0 if move != store or row == 0 else length - rest
        part_sbuf = tile_sbuf[row : row + rows, 0:images, first:length, 0:width]
        pattern = [[length * steps[1], rows], [steps[0], images], [steps[1], length - first], [steps[2], width]]
        move(part_sbuf, tensor_hbm, pattern, start + n0 * steps[0] + (row_start(block, row) + first) * steps[1])


def multiply_taps(x_sbuf, state_sbuf, filters, geometry, q, strict):
    """Products of column q, [rows, images, channels, taps] fp32 in SBUF: of all taps that meet something, or None.

    strict: taps in the padding count too, for they may be NaN or Inf.
    """
    rows, images, channels = x_sbuf.shape[0], x_sbuf.shape[1], x_sbuf.shape[2]
    before = (0, 0, 0) if state_sbuf == None else taps_met(geometry, state_sbuf.shape[3], 0, q)
    valid_range = taps_met(geometry, geometry.W, geometry.pad_left, q)
    low = before[0] if before[1] > 0 else valid_range[0]
    high = max(before[0] + before[1], valid_range[0] + valid_range[1])
    first, end = (0, geometry.S) if strict else (low, high)
    if first == end:
        return None
    products_sbuf = nl.ndarray((rows, images, channels, end - first), dtype=nl.float32, buffer=nl.sbuf)
    for source, (s0, count, position) in ((state_sbuf, before), (x_sbuf, valid_range)):
        last = position + (count - 1) * geometry.dilation + 1
        if count > 0:
            nisa.tensor_tensor(
                dst=products_sbuf[0:rows, 0:images, 0:channels, s0 - first : s0 - first + count],
                data1=source[0:rows, 0:images, 0:channels, position : last : geometry.dilation],
                data2=filters[0:rows, 0:1, 0:channels, s0 : s0 + count].broadcast(1, images),
                op=nl.multiply,
            )
    for begin, stop in ((first, low), (high, end)):
        if begin < stop:
            nisa.tensor_scalar(
                dst=products_sbuf[0:rows, 0:images, 0:channels, begin - first : stop - first],
                data=filters[0:rows, 0:1, 0:channels, begin:stop].broadcast(1, images),
                op0=nl.multiply,
                operand0=0.0,
            )
    return products_sbuf
