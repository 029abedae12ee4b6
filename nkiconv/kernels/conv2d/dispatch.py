"""The algorithms of conv2d by name: who refuses what, who is chosen, and who does it."""

from ..._nki import nl
from .._tiles import require
from .bands.loop import run_bands
from .bands.plan import plan_bands
from .deep.loop import run_deep
from .deep.plan import plan_deep
from .grouped.loop import run_grouped
from .grouped.plan import plan_grouped
from .narrow.loop import run_narrow
from .narrow.plan import plan_narrow
from .pairs.loop import run_pairs
from .pairs.plan import plan_pairs
from .relayout import copied_in, copy_out, plain_of, relayout_refusal
from .split.loop import run_split
from .split.plan import plan_split
from .stacked.loop import run_stack
from .stacked.plan import plan_stack
from .swapped.loop import run_swapped
from .swapped.plan import plan_swapped
from .taps.loop import run_items
from .taps.plan import plan_taps

#: The algorithms that can be asked for by name; each is a package beside this file.
ALGORITHMS = ("taps", "stacked", "bands", "grouped", "narrow", "deep", "pairs", "split", "swapped")


def plan_of(algorithm, geometry, extras, config, cores):
    """(an algorithm's own plan of this on `cores` cores, "") or (None, why not: argument, value, rule, remedy)."""
    if algorithm != "split" and geometry.precision == "fp16x3":
        return None, f"precision=fp16x3: {algorithm} takes every other precision; use split, or ask for another"
    reason = relayout_refusal(algorithm, geometry, extras)
    if reason != "":
        return None, reason
    plain = plain_of(algorithm, geometry, extras)
    if algorithm == "split":
        return plan_split(plain, extras, config, cores)
    if algorithm == "stacked":
        return plan_stack(plain, extras, config, cores)
    if algorithm == "bands":
        return plan_bands(plain, extras, config, cores)
    if algorithm == "grouped":
        return plan_grouped(plain, extras, config, cores)
    if algorithm == "narrow":
        return plan_narrow(plain, extras, config, cores)
    if algorithm == "deep":
        return plan_deep(plain, extras, config, cores)
    if algorithm == "pairs":
        return plan_pairs(plain, extras, config, cores)
    if algorithm == "swapped":
        return plan_swapped(plain, extras, config, cores)
    return plan_taps(plain, extras, config, cores)


def default_rule(geometry, extras, cores):
    """The algorithm of a kernel that is called without a config: the first that runs of those that a shape is for.

    `nkiconv.plan`, and every call on the host, choose by cost models instead.
    """
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    taps = geometry.rows.taps * geometry.columns.taps
    wanted = []
    if geometry.precision == "fp16x3":
        wanted.append("split")
    if geometry.hbm_itemsize == 1:
        wanted.append("pairs")
    if per_c == 1 and per_k == 1 and taps > 1:
        wanted.append("bands")
    if geometry.groups > 1 and per_c <= 32 and per_k <= 32:
        wanted.append("grouped")
    if geometry.groups == 1 and geometry.C <= 32 and taps > 1:
        wanted.append("stacked")
    if geometry.groups == 1 and geometry.K <= 16 and taps > 1:
        wanted.append("narrow")
    if geometry.x_c == 1 and geometry.C >= 128 and geometry.K >= 128:
        wanted.append("swapped")
    if geometry.N * geometry.rows.out * geometry.columns.out <= 128 and geometry.C * taps >= 1024:
        wanted.append("deep")
    found = "taps"
    for index in range(len(wanted)):
        if found == "taps" and plan_of(wanted[index], geometry, extras, None, cores)[1] == "":
            found = wanted[index]
    return found


def convolve(algorithm, operands, geometry, extras, config):
    """Write operands.y; algorithm None: that of the default rule."""
    cores = nl.num_programs()
    if algorithm == None:
        algorithm = default_rule(geometry, extras, cores)
    plan, reason = plan_of(algorithm, geometry, extras, config, cores)
    require(reason == "", reason)
    inner, plain = copied_in(algorithm, operands, geometry), plain_of(algorithm, geometry, extras)
    if algorithm == "stacked":
        run_stack(inner, plain, extras, plan)
    elif algorithm == "bands":
        run_bands(inner, plain, extras, plan)
    elif algorithm == "grouped":
        run_grouped(inner, plain, extras, plan)
    elif algorithm == "narrow":
        run_narrow(inner, plain, extras, plan)
    elif algorithm == "deep":
        run_deep(inner, plain, extras, plan)
    elif algorithm == "pairs":
        run_pairs(inner, plain, extras, plan)
    elif algorithm == "split":
        run_split(inner, plain, extras, plan)
    elif algorithm == "swapped":
        run_swapped(inner, plain, extras, plan)
    else:
        run_items(inner, plain, extras, plan)
    copy_out(algorithm, operands, inner, geometry, extras)
