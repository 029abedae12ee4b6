"""The algorithms of conv2d by name: who refuses what, who is chosen, and who does it."""

from ..._nki import nl
from .._tiles import require
from .bands.loop import run_bands
from .bands.plan import bands_ns, plan_bands
from .grouped.loop import run_grouped
from .grouped.plan import plan_grouped
from .grouped.price import grouped_ns
from .narrow.loop import run_narrow
from .narrow.plan import plan_narrow
from .narrow.price import narrow_ns
from .pairs.loop import run_pairs
from .pairs.plan import pairs_ns, plan_pairs
from .split.loop import run_split
from .split.plan import plan_split
from .stacked.loop import run_stack
from .stacked.plan import plan_stack, stack_ns
from .taps.loop import run_items
from .taps.plan import plan_taps, taps_ns

#: The algorithms that a config can name; each is a package beside this file.
ALGORITHMS = ("taps", "stacked", "bands", "grouped", "narrow", "pairs", "split")
#: Those that are chosen by price, instead of taps; split alone does what it does.
PRICED = ("stacked", "bands", "grouped", "narrow", "pairs")


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
    if algorithm == "split":
        return plan_split(geometry, extras, config, cores)
    if geometry.precision == "fp16x3":
        return None, f"precision=fp16x3: {algorithm} takes every other precision; use split, or ask for another"
    if algorithm == "stacked":
        return plan_stack(geometry, extras, config, cores)
    if algorithm == "bands":
        return plan_bands(geometry, extras, config, cores)
    if algorithm == "grouped":
        return plan_grouped(geometry, extras, config, cores)
    if algorithm == "narrow":
        return plan_narrow(geometry, extras, config, cores)
    if algorithm == "pairs":
        return plan_pairs(geometry, extras, config, cores)
    return plan_taps(geometry, extras, config, cores)


def price_of(algorithm, geometry, plan):
    """ns of an algorithm's own plan on two cores, from the first DMA to the last; taps has a price without a plan."""
    if algorithm == "stacked":
        return stack_ns(geometry, plan)
    if algorithm == "bands":
        return bands_ns(geometry, plan)
    if algorithm == "grouped":
        return grouped_ns(geometry, plan)
    if algorithm == "narrow":
        return narrow_ns(geometry, plan)
    if algorithm == "pairs":
        return pairs_ns(geometry, plan)
    return taps_ns(geometry)


def choose(geometry, extras, cores):
    """The name of the algorithm that takes least by prices, with its own settings."""
    if geometry.precision == "fp16x3":
        return "split"
    found, found_ns = "taps", price_of("taps", geometry, None)
    for algorithm in PRICED:
        plan = plan_of(algorithm, geometry, extras, None, cores)[0]
        if plan != None:
            ns = price_of(algorithm, geometry, plan)
            if ns < found_ns:
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
    if algorithm == "stacked":
        run_stack(operands, geometry, extras, plan)
    elif algorithm == "bands":
        run_bands(operands, geometry, extras, plan)
    elif algorithm == "grouped":
        run_grouped(operands, geometry, extras, plan)
    elif algorithm == "narrow":
        run_narrow(operands, geometry, extras, plan)
    elif algorithm == "pairs":
        run_pairs(operands, geometry, extras, plan)
    elif algorithm == "split":
        run_split(operands, geometry, extras, plan)
    else:
        run_items(operands, geometry, extras, plan)
