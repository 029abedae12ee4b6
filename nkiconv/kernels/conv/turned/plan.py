"""Planes of y beside each other: windows of x are the stationaries, filters of several planes of taps pass the array.

    y[position, (z, k)] = sum over planes d of x, taps (r, s), c of  x[c, d, position at (r, s)]^T w[c, (r, s), (t, k)],
    t the tap by which plane z of y sees plane d

A tile of 128 positions are the columns of as many segments of y's rows as make it full, so that any number of columns
fills the array; each row of x comes once, for all planes that see it. Padding is stored as zeros. 128 positions of sums
[position, (z, k)] are cast to y's dtype with the epilogue, and the array turns them into [(z, k), position]: y leaves
by rows. Where 96 or 192 channels would leave the array's columns and rows half empty, both are full here. Steps that
are alike may be one body of a loop on the device.
"""

from ...._nki import nl
from ....schedules.geometry import instructions_refusal
from ....schedules.options import one_group_refusal, taken_refusal
from ....schedules.planes import taps_are_inside
from ....schedules.tiles import BANK_COLUMNS, INSTRUCTIONS_MAX
from ..._settings import setting
from .config import turned_config_refusal, turned_settings
from .repeat import steps_alike
from .tiling import make_turned, turned_fits, turned_instructions


def plan_turned(geometry, extras, config, cores):
    """(Turned, "") of this on `cores` cores, or (None, why not)."""
    reason = turned_config_refusal(config)
    if reason == "":
        reason = turned_refusal(geometry, extras)
    if reason != "":
        return None, reason
    plan = make_turned(geometry, turned_settings(geometry, extras, config))
    if not turned_fits(geometry, extras, plan):
        return None, (
            f"C={geometry.C}, K={geometry.K}, W={geometry.columns.size}: turned keeps rows of x of all planes that are "
            f"seen together and all filters in SBUF, {nl.tile_size.total_available_sbuf_size} bytes a partition; use "
            f"implicit_gemm"
        )
    count = turned_instructions(geometry, plan, cores)
    if count * geometry.times > INSTRUCTIONS_MAX and setting(config, "loop", -1) < 0:
        plan.loop = 1
        plan.steps = steps_alike(geometry, plan)
        count = turned_instructions(geometry, plan, cores)
    reason = instructions_refusal(geometry, "turned", count, plan.steps != None)
    return (plan, "") if reason == "" else (None, reason)


def turned_refusal(geometry, extras):
    """Why this is not for turned, whatever its settings; "" if it may be."""
    reason = one_group_refusal(geometry, "turned", False)
    if reason != "":
        return reason
    if geometry.planes.taps == 1:
        return "T=1: turned takes several planes of taps; use implicit_gemm"
    if geometry.K > BANK_COLUMNS:
        return f"K={geometry.K}: turned takes at most {BANK_COLUMNS} output channels; use implicit_gemm"
    if geometry.packed > 0 or not taps_are_inside(geometry):
        return "filter_ref: turned takes plain filters that lie as KCTRS; use implicit_gemm"
    if extras.residual:
        return "residual: turned takes none; use implicit_gemm"
    return taken_refusal(geometry, extras, "turned", False, "filters around x")
