"""`update` for few sequences: channels on partitions, products and sums on Vector.

Row p of a tile holds channels c0 + p * T + t of some images, as runs of T * W elements (the last row ends with the last
channel, and may begin with channels of the row before). Tap s of column q is a slice of the row times the filters,
broadcast over the images, and one reduction sums the taps; the next column's products precede a column's sum, so that
neither waits for the other's result. An initial state gives the first products and x the others. Channels are never
mixed, so NaN and Inf reach exactly the outputs of the definition.
"""

from ...._nki import nisa, nl
from ....schedules.channels import full_rows, row_start
from ....schedules.tiles import div_ceil
from ....schedules.update import taps_met
from ..._epilogue import evacuate
from ..._prologue import finish_gates


def update_vector(tensors, geometry, options, tiles):
    """Write y. Loads are one tile ahead."""
    now = {}
    for before, tile in zip([None, *tiles], [*tiles, None]):
        after = {} if tile is None else load_tile(tensors, tile, now)
        if before is not None:
            sum_tile(tensors, geometry, options, before, now)
        now = after


def load_tile(tensors, tile, before):
    """{name: [rows, images, channels, elements] in SBUF, or None} of a tile's tensors, and the pending products of x as
    "gates". It shares the previous tile's filters and bias if that has the same channels."""
    found = {}
    for name in ("w", "bias", "x", "gate", "state", "residual"):
        rows, kept = getattr(tensors, name), name in ("w", "bias")
        found[name] = None if rows is None else before[name] if kept and tile.n0 > 0 and before else None
        if rows is not None and found[name] is None:
            block, nn = tile.block, 1 if kept else tile.nn
            shape = (div_ceil(block.count, block.length), nn, block.length, rows.size)
            found[name] = nl.ndarray(shape, dtype=rows.dtype, buffer=nl.sbuf)
            transfer(found[name], rows, tile, False)
    found["gates"] = [] if tensors.gate is None else tensors.gates([found["x"], found["gate"]])
    return found


def transfer(tile_sbuf, rows, tile, is_store):
    """[rows, images, channels, elements] from HBM to SBUF, or back.

    A last row with too few channels begins with channels of the row before, which are not stored again.
    """
    _, images, length, width = tile_sbuf.shape
    by_image, by_channel, step = rows.steps
    complete, rest = full_rows(tile.block)
    for row, count, first in ((0, complete, 0), (complete, min(1, rest), length - rest if is_store else 0)):
        if count > 0:
            part_sbuf = tile_sbuf[row : row + count, 0:images, first:length, 0:width]
            pattern = [[length * by_channel, count], [by_image, images], [by_channel, length - first], [step, width]]
            rows.move(part_sbuf, pattern, tile.n0, row_start(tile.block, row) + first, rows.low, is_store)


def sum_tile(tensors, geometry, options, tile, loaded):
    """Sums of a tile, their epilogue and their store."""
    finish_gates(loaded["gates"], None)
    x_sbuf, bias, residual, Q = loaded["x"], loaded["bias"], loaded["residual"], geometry.Q
    rows, images, length, _ = x_sbuf.shape
    sums_sbuf = nl.ndarray((rows, images, length, Q), dtype=nl.float32, buffer=nl.sbuf)
    products = None
    for q in range(Q + 1):
        before = products
        if q < Q:
            products = multiply_taps(tensors, loaded, geometry, q, options.strict_nonfinite)
        if q > 0:
            column = sums_sbuf[0:rows, 0:images, 0:length, q - 1]
            if before is None:
                nisa.memset(dst=column, value=0.0)
            else:
                nisa.tensor_reduce(dst=column, op=nl.add, data=before, axis=3)
    y_sbuf = nl.ndarray(sums_sbuf.shape, dtype=tensors.y.dtype, buffer=nl.sbuf)
    flat = (rows, images, length * Q)
    bias = None if bias is None else bias.broadcast(1, images).broadcast(3, Q)
    residual = None if residual is None else residual.reshape(flat)
    evacuate(y_sbuf.reshape(flat), sums_sbuf.reshape(flat), bias, residual, options.epilogue, nisa.engine.vector)
    transfer(y_sbuf, tensors.y, tile, True)


def multiply_taps(tensors, loaded, geometry, q, strict):
    """Products of column q, [rows, images, channels, taps] fp32 in SBUF, of all taps inside the row or the state; None
    if there are none.

    strict: with taps in the padding too, as they may be NaN or Inf.
    """
    filters_sbuf, met = loaded["w"], []
    for name, rows in (("state", tensors.state), ("x", tensors.x)):
        if rows is not None:
            met.append((loaded[name], *taps_met(geometry, rows.low, rows.high, q)))
    met = [one for one in met if one[2] > 0]
    low, high = (met[0][1], met[-1][1] + met[-1][2]) if met else (0, 0)
    first, end = (0, geometry.S) if strict else (low, high)
    if first == end:
        return None
    rows, images, channels, _ = loaded["x"].shape
    products_sbuf = nl.ndarray((rows, images, channels, end - first), dtype=nl.float32, buffer=nl.sbuf)
    for source_sbuf, s, count, at in met:
        last = at + (count - 1) * geometry.dilation + 1
        nisa.tensor_tensor(
            dst=products_sbuf[0:rows, 0:images, 0:channels, s - first : s - first + count],
            data1=source_sbuf[0:rows, 0:images, 0:channels, at : last : geometry.dilation],
            data2=filters_sbuf[0:rows, 0:1, 0:channels, s : s + count].broadcast(1, images),
            op=nl.multiply,
        )
    for begin, stop in ((first, low), (high, end)):
        if begin < stop:
            nisa.tensor_scalar(
                dst=products_sbuf[0:rows, 0:images, 0:channels, begin - first : stop - first],
                data=filters_sbuf[0:rows, 0:1, 0:channels, begin:stop].broadcast(1, images),
                op0=nl.multiply,
                operand0=0.0,
            )
    return products_sbuf
