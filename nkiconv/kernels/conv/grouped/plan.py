"""Grouped conv2d on tiles of the array's rows: who is refused, what it comes to.

A block-diagonal stationary of many small groups is mostly zeros. Here a tile of 32 (or 64) of the array's rows has the
input channels of its own groups, the four (two) tiles work side by side, and each has in its columns not one output of
a group but a block of Uh x Uw neighbours: element (a, b) of the block's window is multiplied once for all of them,

    acc[(uw, uh, k), m, j] += sum over c of F[a, b][c, (uw, uh, k)] * x[c, Uh * m * stride + a - top, ...],

    F[a, b][c, (uw, uh, k)] = w[k, c, r, s]   where   a = uh * stride + r * dilation,  b = uw * stride + s * dilation.

A window of 4 x 4 elements serves 2 x 2 outputs of a 3 x 3 filter: 16 matmuls of a quarter of the columns on a quarter
of the array, where one matmul a tap takes 9. x keeps its channels on the partitions and so its long runs. Read-outs
put columns uw of a row between each other, rows uh come from other partitions by copies inside SBUF.

    | stationary            | K (partitions)                  | M (columns) | N    | evacuation |
    |-----------------------|---------------------------------|-------------|------|------------|
    | w placed, on row tiles| c of the groups of each row tile| uw, uh, k   | m, j | interleave |

Pseudocode, of one core:

    for (wave of groups, output tile):
        load x of the next output tiles; place filters of the next wave
        for bank of the output tile:
            for element (a, b) of a block's window, row tile:          # row tiles work in parallel
                PSUM[(uw, uh, k), m, j] += F[a, b]^T x[c, row Uh * m * stride + a, column Uw * j * stride + b]
            y[.., uh, uw] = epilogue(PSUM)                             # interleaved
        store y
"""

from ....schedules.geometry import filter_rows, instructions_refusal, num_taps
from ....schedules.grouped import TILE_ROWS, grouped_config_refusal
from ....schedules.options import taken_refusal
from ....schedules.tiles import share, some_of
from .units import banks_of_unit, grouped_settings, make_grouped


def plan_grouped(geometry, extras, config, cores):
    """(Grouped, "") of this on `cores` cores, or (None, why not)."""
    reason = grouped_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    grouped = make_grouped(geometry, grouped_settings(geometry, extras, config), extras.residual)
    if grouped == None:
        return None, (
            f"C / groups={geometry.C // geometry.groups}, K / groups={geometry.K // geometry.groups}, "
            f"R={geometry.rows.taps}, S={geometry.columns.taps}, W={geometry.columns.size}: grouped takes groups of at "
            f"most {TILE_ROWS[1]} channels and outputs whose filters and rows fit SBUF; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, "grouped", grouped_instructions(geometry, grouped, cores))
    return (grouped, "") if reason == "" else (None, reason)


def grouped_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason = grouped_config_refusal(geometry, config)
    if reason != "":
        return reason
    if geometry.groups < 2:
        return f"feature_group_count={geometry.groups}: grouped takes at least 2; use implicit_gemm"
    return taken_refusal(geometry, extras, "grouped", False, "other groups' channels")


def grouped_instructions(geometry, grouped, cores):
    """Instructions of the busiest core, at most."""
    taps = num_taps(geometry)
    pieces = (2 if geometry.flipped else 1) * taps + filter_rows(geometry) + geometry.columns.taps
    build = pieces * grouped.tiles * (grouped.Uh * grouped.Uw + 3) + 16 * grouped.tiles + 16
    each = len(grouped.window) + 1 + 2 * grouped.Uw + 2 * grouped.Uh
    most = 0
    for core in range(cores):
        total, wave = 64 + grouped.warmup, -1
        for unit in some_of(grouped.units, share(len(grouped.units), cores, core)):
            banks = len(banks_of_unit(grouped, unit))
            total += banks * grouped.tiles * each + grouped.tiles * (4 + 2 * grouped.Uh) + 8
            total += build if unit.wave != wave else 0
            wave = unit.wave
        most = max(most, total)
    return most
