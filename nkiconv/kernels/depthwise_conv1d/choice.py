"""The kernel's own choice of an algorithm and its settings, from shapes alone: what the planner finds, as a rule.

Each algorithm's time on one of two cores is estimated, by walking through its order of work or from what bounds it. Of
those that are near the least, settings are refined by more walks. The estimates need not be right, only in the right
order: tests hold the choice against the planner's.
"""

from dataclasses import dataclass

from ..._nki import nl
from .banded.choose import REFINED, choose_blocks, first_blocks, refine_all
from .banded.choose import best_settings as best_banded
from .banded.kernel import shape_refusal, size_refusal
from .dot.estimate import dot_ns
from .dot.kernel import dot_refusal
from .rows.search import best_settings as best_rows
from .rows.search import first_plan
from .rows.search import refine as refine_rows
from .taps_on_partition import taps_on_partition_ns, taps_on_partition_refusal
from .update.estimate import update_tensor_ns, update_vector_ns
from .update.kernel import settings_of, update_refusal

#: Taps up to which rows are tried where `banded` runs too: beyond, that needs far fewer matmuls.
ROWS_TAPS_MAX = 64
#: What runs where no other does; it is estimated where `banded` does not run, and else has not been asked whether it
#: refuses.
FALLBACK = "taps_on_partition"
#: How far above the least an algorithm's first estimate may be for its settings to be refined: what that gains at most.
CHOICE_NEAR = 1.35


@dataclass
class Estimate(nl.NKIObject):
    """An algorithm with settings, what it takes, and what its settings are to be refined from, if they are."""

    algorithm: str
    config: tuple
    ns: float
    start: object


def choose(geometry, extras, cores):
    """(algorithm, config) for a convolution that names none; config None is the algorithm's defaults.

    cores: that share the work; they decide only whether an algorithm takes too many instructions.
    """
    found = first_estimates(geometry, extras, cores)
    least_ns = 0.0
    for index in range(len(found)):
        one = found[index]
        least_ns = one.ns if index == 0 else min(least_ns, one.ns)
    best, best_ns, config = FALLBACK, 0.0, None
    for index in range(len(found)):
        one = found[index]
        if one.ns <= CHOICE_NEAR * least_ns:
            settings, settings_ns = refined(geometry, extras, cores, one)
            if best_ns == 0.0 or settings_ns < best_ns:
                best, best_ns, config = one.algorithm, settings_ns, settings
    return best, config


def first_estimates(geometry, extras, cores):
    """An Estimate of each algorithm that runs, without refinement."""
    found = []
    bands = shape_refusal(geometry, extras, None) == ""
    for name in ("mixed", "vector"):
        on_tensor = name == "mixed"
        few = geometry.S <= ROWS_TAPS_MAX or not bands
        if (few and not extras.strict_nonfinite) if on_tensor else (few or extras.strict_nonfinite):
            plan, plan_ns = first_plan(geometry, extras, on_tensor, cores)
            if plan_ns > 0.0:
                found.append(Estimate(algorithm=name, config=None, ns=plan_ns, start=plan))
    if bands:
        sizes = first_blocks(geometry, extras, None, REFINED)
        if size_refusal(geometry, extras, sizes[0][1], cores) == "":
            found.append(Estimate(algorithm="banded", config=None, ns=sizes[0][0], start=sizes))
    if dot_refusal(geometry, extras, None, cores) == "":
        found.append(Estimate(algorithm="dot", config=None, ns=dot_ns(geometry), start=None))
    if not bands and taps_on_partition_refusal(geometry, extras, None, cores) == "":
        taps_ns = taps_on_partition_ns(geometry, extras)
        found.append(Estimate(algorithm=FALLBACK, config=None, ns=taps_ns, start=None))
    for engine in ("tensor", "vector"):
        config = (("engine", engine),)
        if update_refusal(geometry, extras, config, cores) == "":
            update_ns = update_vector_ns(geometry, extras)
            if engine == "tensor":
                update_ns = update_tensor_ns(geometry, extras, settings_of(None))
            found.append(Estimate(algorithm="update", config=config, ns=update_ns, start=None))
    return found


def refined(geometry, extras, cores, one):
    """(config, ns) of an Estimate's algorithm with better settings, if it has some that can be refined."""
    if one.algorithm == "banded":
        config, config_ns = refine_all(geometry, extras, one.start)
        if size_refusal(geometry, extras, choose_blocks(geometry, extras, config), cores) == "":
            return config, config_ns
    elif one.start != None:
        return refine_rows(geometry, extras, one.start, one.ns, one.algorithm == "mixed", cores)
    return one.config, one.ns


def settle(algorithm, geometry, extras, config, cores):
    """The config, or where there is none the settings that an algorithm of the name takes by itself."""
    if config != None:
        return config
    if algorithm == "banded" and shape_refusal(geometry, extras, None) == "":
        return best_banded(geometry, extras)[0]
    if algorithm in ("mixed", "vector"):
        return best_rows(geometry, extras, algorithm == "mixed", cores)[0]
    return None
