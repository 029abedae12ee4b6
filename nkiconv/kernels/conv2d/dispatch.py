"""The algorithms of conv2d by name: who refuses what, who is chosen, and who does it."""

from ..._nki import nl
from .._tiles import require
from .bands.loop import run_bands
from .bands.plan import bands_ns, plan_bands
from .deep.loop import run_deep
from .deep.plan import plan_deep
from .deep.price import deep_ns
from .grouped.loop import run_grouped
from .grouped.plan import plan_grouped
from .grouped.price import grouped_ns
from .narrow.loop import run_narrow
from .narrow.plan import plan_narrow
from .narrow.price import narrow_ns
from .pairs.loop import run_pairs
from .pairs.plan import pairs_ns, plan_pairs
from .relayout import copied_in, copy_out, plain_of, relayout_ns, relayout_refusal
from .split.loop import run_split
from .split.plan import plan_split
from .stacked.loop import run_stack
from .stacked.plan import plan_stack, stack_ns
from .swapped.loop import run_swapped
from .swapped.plan import plan_swapped
from .swapped.price import swapped_ns
from .taps.loop import run_items
from .taps.plan import plan_taps
from .taps.price import taps_ns

#: The algorithms that a config can name; each is a package beside this file.
ALGORITHMS = ("taps", "stacked", "bands", "grouped", "narrow", "deep", "pairs", "split", "swapped")
#: Those that are chosen by price, the first of those that take least; split alone does what it does.
PRICED = ("taps", "stacked", "bands", "grouped", "narrow", "deep", "pairs", "swapped")


def algorithm_of(config):
    """(algorithm, its settings) of a config; refused where its first entry names none."""
    named = isinstance(config, tuple) and len(config) > 0 and isinstance(config[0], tuple) and len(config[0]) == 2
    require(
        named and config[0][0] == "algorithm" and config[0][1] in ALGORITHMS,
        f"config={config}: must be None or a tuple of (name, value) pairs, the first of them ('algorithm', one of "
        f"{ALGORITHMS})",
    )
    return config[0][1], config[1:]


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


def price_of(algorithm, geometry, extras, plan):
    """ns of an algorithm's own plan on two cores, from the first DMA to the last, copies of NHWC tensors and all."""
    plain = plain_of(algorithm, geometry, extras)
    beside = relayout_ns(algorithm, geometry, extras)
    if algorithm == "stacked":
        return beside + stack_ns(plain, plan)
    if algorithm == "bands":
        return beside + bands_ns(plain, plan)
    if algorithm == "grouped":
        return beside + grouped_ns(plain, plan)
    if algorithm == "narrow":
        return beside + narrow_ns(plain, plan)
    if algorithm == "deep":
        return beside + deep_ns(plain, plan)
    if algorithm == "pairs":
        return beside + pairs_ns(plain, plan)
    if algorithm == "swapped":
        return beside + swapped_ns(plain, plan)
    return beside + taps_ns(plain, plan)


def choose(geometry, extras, cores):
    """The name of the algorithm that takes least by prices, with its own settings; taps, which says why, where all
    refuse."""
    if geometry.precision == "fp16x3":
        return "split"
    found, found_ns = "taps", -1.0
    for algorithm in PRICED:
        plan = plan_of(algorithm, geometry, extras, None, cores)[0]
        if plan != None:
            ns = price_of(algorithm, geometry, extras, plan)
            if found_ns < 0.0 or ns < found_ns:
                found, found_ns = algorithm, ns
    return found


def convolve(operands, geometry, extras, config):
    """Write operands.y by the algorithm that a config names, or by the one chosen."""
    cores = nl.num_programs()
    if config == None:
        algorithm, settings = choose(geometry, extras, cores), None
    else:
        algorithm, settings = algorithm_of(config)
    plan, reason = plan_of(algorithm, geometry, extras, settings, cores)
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
