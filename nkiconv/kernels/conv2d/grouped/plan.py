"""Grouped conv2d on tiles of the array's rows: sizes from shapes.

A block-diagonal stationary of many small groups is mostly zeros. Here a tile of 32 (or 64) of the array's rows has the
input channels of its own groups, the four (two) tiles work side by side, and each has in its columns not one output of
a group but a block of Uh x Uw neighbours: element (a, b) of the block's window is multiplied once for all of them,

    acc[(uw, uh, k), m, j] += sum over c of F[a, b][c, (uw, uh, k)] * x[c, Uh * m * stride + a - top, ...],

    F[a, b][c, (uw, uh, k)] = w[k, c, r, s]   where   a = uh * stride + r * dilation,  b = uw * stride + s * dilation.

A window of 4 x 4 elements serves 2 x 2 outputs of a 3 x 3 filter: 16 matmuls of a quarter of the columns on a quarter
of the array, where one matmul a tap takes 9. x keeps its channels on the partitions and so its long runs. Read-outs
put columns uw of a row between each other, rows uh come from other partitions by copies inside SBUF.

Settings: `rows` of a tile, `height` Uh and `width` Uw of a block, all three or none; `x_bytes` a partition of x of one
band; `buffers` of x; `warmup`, matmuls on zeros before the first filters.
"""

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, div_ceil, share
from ..geometry import instructions_refusal
from .price import grouped_ns
from .units import Grouped, add_units, banks_of, chunks_of, offsets, y_buffers, y_pages

GROUPED_SETTINGS = ("rows", "height", "width", "x_bytes", "buffers", "warmup")
#: Rows of a tile of the array that are worth it, and the outputs of a block: with both, what lies in the columns begins
#: where engines may address partitions.
TILE_ROWS = (32, 64)
BLOCKS = ((2, 2), (1, 4), (4, 1), (1, 2), (2, 1))
#: Bytes a partition of the stationaries of a chunk of tiles, of x of one band, and of fp32 results of one band.
GROUPED_FILTER_BYTES = 40_960
GROUPED_X_BYTES = 12_288
GROUPED_Y_BYTES = 12_288
#: Bytes a partition of filters as loaded that are there or on their way together, if more than two chunks' are.
GROUPED_AHEAD_BYTES = 16_384
#: Buffers of x that are on their way or in use, and of stationaries.
GROUPED_X_BUFFERS = 4
FILTER_BUFFERS = 2
#: Matmuls of 128 columns on zeros while the first filters are on their way.
GROUPED_WARM_UP = 24
GROUPED_WARM_UP_MAX = 256


def plan_grouped(geometry, extras, config, cores):
    """(Grouped, "") of this on `cores` cores, or (None, why not)."""
    reason = refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    given = setting(config, "rows", 0), setting(config, "height", 0), setting(config, "width", 0)
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    if given == (0, 0, 0):
        grouped = best(geometry, config, extras.residual)
    elif given[0] not in TILE_ROWS or (given[1], given[2]) not in BLOCKS:
        return None, (
            f"config rows={given[0]} height={given[1]} width={given[2]}: given together, rows one of {TILE_ROWS}, "
            f"(height, width) one of {BLOCKS}"
        )
    elif per_c > given[0] or per_k > nl.tile_size.pmax // (given[1] * given[2]):
        return None, (
            f"config rows={given[0]} height={given[1]} width={given[2]}: a group takes {per_c} rows and height * "
            f"width * {per_k} of {nl.tile_size.pmax} columns"
        )
    else:
        grouped = make(geometry, config, given[0], given[1], given[2], extras.residual)
    if grouped == None:
        return None, (
            f"C / groups={per_c}, K / groups={per_k}, R={geometry.rows.taps}, S={geometry.columns.taps}, "
            f"W={geometry.columns.size}: grouped takes groups of at most {TILE_ROWS[1]} channels and outputs whose "
            f"filters and rows fit SBUF; use taps"
        )
    count = count_instructions(geometry, grouped, cores)
    reason = instructions_refusal(geometry, "grouped", count)
    return (grouped, "") if reason == "" else (None, reason)


def refusal(geometry, extras, config):
    """Why not, from names and letters alone; "" for nothing."""
    whole = nl.tile_size.total_available_sbuf_size
    reason = config_refusal(config, GROUPED_SETTINGS, "grouped")
    if reason == "":
        sizes = (("rows", 0, nl.tile_size.pmax), ("height", 0, nl.tile_size.pmax), ("width", 0, nl.tile_size.pmax))
        reason = numbers_refusal(config, sizes)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", 0, GROUPED_WARM_UP_MAX),))
    if reason == "":
        reason = numbers_refusal(config, (("buffers", 2, nl.tile_size.pmax), ("x_bytes", 256, whole)))
    if reason != "":
        return reason
    lhs_dilation = (geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
    if geometry.groups < 2:
        return f"feature_group_count={geometry.groups}: grouped takes at least 2; use taps"
    if lhs_dilation != (1, 1):
        return f"lhs_dilation={lhs_dilation}: grouped takes (1, 1); use taps"
    if extras.pool != (1, 1):
        return f"pool={extras.pool}: grouped takes (1, 1); use taps"
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: grouped multiplies other groups' channels by zero; use taps"
    return ""


def best(geometry, config, has_residual):
    """The Grouped that takes least, or None where none fits."""
    found, found_ns = None, 0.0
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    for which in range(len(TILE_ROWS)):
        for block in range(len(BLOCKS)):
            T, Uh, Uw = TILE_ROWS[which], BLOCKS[block][0], BLOCKS[block][1]
            if per_c <= T and per_k <= nl.tile_size.pmax // (Uh * Uw):
                one = make(geometry, config, T, Uh, Uw, has_residual)
                if one != None:
                    one_ns = grouped_ns(geometry, one)
                    if found == None or one_ns < found_ns:
                        found, found_ns = one, one_ns
    return found


def make(geometry, config, T, Uh, Uw, has_residual):
    """The Grouped of tiles of T rows and blocks of Uh x Uw outputs, or None where memory does not hold it."""
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    rows, columns = geometry.rows, geometry.columns
    Kt = nl.tile_size.pmax // (Uh * Uw)
    height = (Uh - 1) * rows.stride + (rows.taps - 1) * rows.dilation + 1
    width = (Uw - 1) * columns.stride + (columns.taps - 1) * columns.dilation + 1
    if height * width * nl.tile_size.pmax * geometry.itemsize > GROUPED_FILTER_BYTES:
        return None
    if per_c * rows.taps * columns.taps * geometry.itemsize > GROUPED_FILTER_BYTES:
        return None
    window = []
    every_a, every_b = offsets(rows, Uh), offsets(columns, Uw)
    for a in range(len(every_a)):
        for b in range(len(every_b)):
            window.append((every_a[a], every_b[b]))
    G = min(geometry.groups, min(T // per_c, Kt // per_k))
    grouped = Grouped(
        T=T,
        tiles=nl.tile_size.pmax // T,
        G=G,
        chunks=chunks_of(div_ceil(geometry.groups, G), nl.tile_size.pmax // T),
        Kt=Kt,
        Uh=Uh,
        Uw=Uw,
        window=window,
        height=height,
        width=width,
        units=[],
        buffers=setting(config, "buffers", GROUPED_X_BUFFERS),
        warmup=setting(config, "warmup", GROUPED_WARM_UP),
    )
    most = max(height, setting(config, "x_bytes", GROUPED_X_BYTES) // (columns.size * geometry.itemsize))
    mn = div_ceil(rows.out, Uh)
    if rows.size > most:
        mn = min(mn, (most - height) // (Uh * rows.stride) + 1)
    mn = min(mn, max(1, GROUPED_Y_BYTES // (4 * Uh * columns.out)))
    add_units(geometry, grouped, mn, most)
    fits = sbuf_bytes(geometry, grouped, has_residual) <= nl.tile_size.total_available_sbuf_size
    return grouped if fits else None


def sbuf_bytes(geometry, grouped, has_residual):
    """Bytes a partition, at most."""
    item, taps = geometry.itemsize, geometry.rows.taps * geometry.columns.taps
    filters = FILTER_BUFFERS * grouped.height * grouped.width * nl.tile_size.pmax * item
    each = max(geometry.C, geometry.K) // geometry.groups * taps * item
    raw = max(3 * each, GROUPED_AHEAD_BYTES) * (grouped.tiles * grouped.Kt // nl.tile_size.pmax + 1)
    spread = 2 * (taps + BANK_COLUMNS // grouped.Kt) * nl.tile_size.pmax * item * y_pages(grouped)
    x_bytes, y_bytes = 0, 0
    for index in range(len(grouped.units)):
        unit = grouped.units[index]
        x_bytes = max(x_bytes, unit.nn * unit.hn * unit.wn * item)
        y_bytes = max(y_bytes, 4 * unit.nn * unit.mn * grouped.Uh * geometry.columns.out)
    results = (2 + (2 if has_residual else 0)) * y_buffers(grouped) * y_bytes
    return filters + raw + spread + (grouped.buffers + 1) * x_bytes + results + 4096


def count_instructions(geometry, grouped, cores):
    """Instructions of the busiest core, at most."""
    taps = geometry.rows.taps * geometry.columns.taps
    build = (taps + geometry.columns.taps) * grouped.tiles * (grouped.Uh * grouped.Uw + 3) + 16 * grouped.tiles + 16
    most = 0
    for core in range(cores):
        mine = share(len(grouped.units), cores, core)
        total = 64 + grouped.warmup
        for index in range(mine[0], mine[0] + mine[1]):
            unit, before = grouped.units[index], grouped.units[max(0, index - 1)]
            if index == mine[0] or before.chunk != unit.chunk:
                total += build
            banks = len(banks_of(geometry, grouped, unit))
            each = len(grouped.window) + 1 + 2 * grouped.Uw + 2 * grouped.Uh
            total += banks * grouped.tiles * each + grouped.tiles * (4 + 2 * grouped.Uh) + 8
        most = max(most, total)
    return most
