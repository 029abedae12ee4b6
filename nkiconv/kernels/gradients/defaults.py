"""Settings of `blocks` that is called without some, or all, and what is wrong with some together."""

from ..._nki import nl
from ...schedules.blocks import BUFFERS_MAX, BlocksSettings
from ...schedules.cuts import window_of
from ...schedules.settings import setting
from ...schedules.tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, QUADRANT, cut, cut_at, div_ceil
from .lines import LINE_LEAST, LINES, TURNED, has_lines, takes_lines, units_of_tile

#: Banks of PSUM for x and gy that are turned on the array, at least.
TURN_BANKS = 3
#: Passes below which cores share halves of the units rather than an uneven number of them.
FEW_PASSES = 8
#: Bytes a partition of SBUF for the blocks of x and gy that are there together.
BLOCK_BYTES = 147_456


def weight_config_refusal(geometry, config):
    """What is wrong with names and values, "" if nothing is."""
    reason = BlocksSettings.refusal(config)
    if reason != "":
        return reason
    beside, channels, side = setting(config, "beside", 1), setting(config, "channels", 1), setting(config, "side", 1)
    if side == 3 or (side > 1 and setting(config, "pixels", 0) > 0):
        return f"config side={side} pixels={setting(config, 'pixels', 0)}: must be 1, 2 or 4, and 1 but for pixels=0"
    if beside > most_beside(geometry):
        return (
            f"config beside={beside}, K={geometry.K}, stride={geometry.columns.stride}: at most "
            f"{most_beside(geometry)}, where a group has {QUADRANT} or {2 * QUADRANT} output channels, or that "
            f"remainder of 128, rhs_dilation divides the stride and a bank holds the wider window; use less"
        )
    last = geometry.x_strides[0] == 1 and geometry.y_strides[0] == 1
    if setting(config, "pixels", 0) == LINES and not last and not has_lines(geometry):
        return (
            f"config pixels=1, {geometry.rows.size} x {geometry.columns.size} pixels: DMA transposes 16 bits, planes "
            f"without gaps which lines of {LINE_LEAST} to {nl.tile_size.pmax} pixels cut evenly, one tap that reads "
            f"each pixel; use 2, which the array transposes"
        )
    if takes_lines(geometry, config) and max(beside, setting(config, "columns", 1)) > 1:
        columns = setting(config, "columns", 1)
        return f"config beside={beside} columns={columns} pixels=1: a block of lines is one column; use 1"
    if setting(config, "columns", beside) < beside:
        return f"config columns={setting(config, 'columns', 0)}: must be at least beside={beside}; use more"
    if channels > max_channels(geometry, beside):
        return (
            f"config channels={channels}: a bank of {BANK_COLUMNS} columns holds all taps of "
            f"{max_channels(geometry, beside)} input channels; use at most as many"
        )
    return ""


def most_beside(geometry):
    """Columns of gy that can share a matmul, at most."""
    last, columns = geometry.K // geometry.groups % nl.tile_size.pmax, geometry.columns
    fits = (last == QUADRANT or last == 2 * QUADRANT) and columns.stride % columns.dilation == 0
    if not fits or geometry.rows.taps * (columns.taps + 3 * columns.stride) > BANK_COLUMNS:
        return 1
    return min(nl.tile_size.pmax // last, columns.out)


def outputs_beside(geometry, beside):
    """(first, how many) of a group's output channels on the partitions together, columns of gy beside each other."""
    K, most, found = geometry.K // geometry.groups, nl.tile_size.pmax, []
    for part in cut(K, most) if beside == 1 else cut_at(K, most):
        found.append((part, beside if beside * part[1] <= most else 1))
    return found


def max_channels(geometry, beside):
    """Input channels of a bank of sums, at most."""
    return max(1, min(geometry.C // geometry.groups, BANK_COLUMNS // taps_beside(geometry, beside)))


def taps_beside(geometry, beside):
    """Taps of a plane in the window of so many columns of gy beside each other."""
    columns = geometry.columns
    return geometry.rows.taps * (columns.taps + (beside - 1) * (columns.stride // columns.dilation))


def weight_settings(geometry, config, lines=False):
    """All settings; where a config leaves them open, banks as full as can be, a pass as many as PSUM has, and blocks of
    which two tiles are there at a time, with as many units as fill a tile. lines: whether blocks are of lines."""
    C, columns, side = geometry.C // geometry.groups, geometry.columns.out, setting(config, "side", 1)
    units, columns = units_of_tile(geometry, lines) // side, setting(config, "columns", 1 if lines else columns)
    beside, banks = min(most_beside(geometry), columns), sum_banks(setting(config, "pixels", 0) == TURNED)
    beside = beside if beside != 3 else 2
    while beside > 1 and setting(config, "channels", 1) > max_channels(geometry, beside):
        beside = beside // 2
    beside = setting(config, "beside", beside)
    channels = setting(config, "channels", div_ceil(C, div_ceil(C, max_channels(geometry, beside))))
    sizes, rows = sizes_of_pass(geometry, config, channels, banks), setting(config, "rows", geometry.rows.out)
    # what DMAs or the array bring of planes is as wide as columns are
    whole = geometry.x_strides[0] != 1 or setting(config, "pixels", 0) == TURNED
    found = False
    while not found:
        fits = 2 * block_bytes(geometry, (rows, columns), channels, sizes, side) <= BLOCK_BYTES
        lower = setting(config, "rows", 0) == 0 and rows > 1
        narrower = setting(config, "columns", 0) == 0 and columns > beside and not (whole and fits)
        found = (fits and units_in(geometry, rows, columns) >= units) or not (lower or narrower)
        if not found and lower and (geometry.x_strides[0] != 1 or rows >= columns or not narrower):
            rows = div_ceil(rows, 2)
        elif not found:
            columns = max(div_ceil(columns, 2), beside)
    buffers = buffers_needed(geometry, (rows, columns), channels, sizes, banks, units)
    found = {"rows": rows, "columns": columns, "channels": channels, "beside": beside, "buffers": buffers}
    return BlocksSettings.read(config, **found, outputs=sizes[0], inputs=sizes[1], split=sizes[2])


def sizes_of_pass(geometry, config, channels, banks):
    """(outputs, inputs, split); where these are open, passes load least, and are shared evenly, or in halves."""
    most, room = nl.tile_size.pmax, max(1, banks // banks_of_taps(geometry))
    K, C, found, least = geometry.K // geometry.groups, geometry.C // geometry.groups, (1, 1), -1
    for outputs in range(1, min(div_ceil(K, most), room) + 1):
        inputs = max(1, min(div_ceil(C, channels), room // outputs))
        loads = C * geometry.rows.stride * geometry.columns.stride * div_ceil(K, most * outputs)
        loads += K * div_ceil(C, channels * inputs)
        if least < 0 or loads < least:
            found, least = (outputs, inputs), loads
    outputs, inputs = setting(config, "outputs", found[0]), setting(config, "inputs", found[1])
    passes = div_ceil(K, most * outputs) * div_ceil(C, channels * inputs)
    uneven = geometry.groups == 1 and passes < FEW_PASSES and passes % PARTS > 0
    return outputs, inputs, setting(config, "split", 1 if uneven else 0)


def sum_banks(turns):
    """Banks of PSUM for sums. turns: whether x and gy are turned on the array, in some of them."""
    return PSUM_BANKS - TURN_BANKS if turns else PSUM_BANKS


def banks_of_taps(geometry):
    """Banks of sums of some output and input channels."""
    R, S = geometry.rows.taps, geometry.columns.taps
    return geometry.planes.taps * (1 if R * S <= BANK_COLUMNS else R * div_ceil(S, BANK_COLUMNS))


def buffers_needed(geometry, block, channels, sizes, banks, most):
    """Tiles (of up to `most` blocks) that must be there together: two, or all of a core's for several rounds."""
    units = units_in(geometry, block[0], block[1])
    mine = div_ceil(div_ceil(units, PARTS) if sizes[2] == 1 else units, most)
    is_all = jobs_of_pass(geometry, channels, sizes) > banks and sizes[0] * sizes[1] > 1
    return min(BUFFERS_MAX, mine) if is_all else min(2, mine)


def units_in(geometry, rows, columns):
    """Blocks of so many rows and columns."""
    return geometry.planes.out * div_ceil(geometry.rows.out, rows) * div_ceil(geometry.columns.out, columns)


def jobs_of_pass(geometry, channels, sizes):
    """Banks of sums of a pass, at most. sizes: (outputs, inputs, ...)."""
    K, C = geometry.K // geometry.groups, geometry.C // geometry.groups
    outputs, inputs = min(sizes[0], div_ceil(K, nl.tile_size.pmax)), min(sizes[1], div_ceil(C, channels))
    return outputs * inputs * banks_of_taps(geometry)


def block_bytes(geometry, block, channels, sizes, side):
    """Bytes a partition of a block (rows, columns) of x and of gy, of the channels of a pass at most."""
    (rows, columns), inputs = block, div_ceil(sizes[1], side)
    x_size = window_of(geometry.rows, rows) * window_of(geometry.columns, columns) * geometry.planes.taps
    chunks, outputs = min(geometry.C, channels * inputs), min(geometry.K, nl.tile_size.pmax * sizes[0])
    return (x_size * chunks + rows * columns * outputs) * geometry.itemsize
