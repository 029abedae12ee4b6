"""The kernel's own choice of an algorithm, from shapes alone: what the planner finds by timing, as a rule.

Each algorithm's time on one of two cores is estimated from what bounds it, and the least of those that run wins; the
winner runs with its default settings. The estimates need not be right, only in the right order: tests hold the choice
against the planner's.
"""

from .banded.choose import best_blocks
from .banded.kernel import shape_refusal, size_refusal
from .dot.estimate import dot_ns
from .dot.kernel import dot_refusal
from .rows.estimate import rows_ns
from .rows.plan import plan_refusal, read_plan
from .update.estimate import update_tensor_ns, update_vector_ns
from .update.kernel import settings_of, update_refusal

#: Taps up to which rows are tried at all: beyond, `banded` needs far fewer matmuls.
ROWS_TAPS_MAX = 64
#: What runs where no estimated algorithm does; only this one has not been asked whether it refuses.
FALLBACK = "taps_on_partition"


def choose(geometry, extras, cores):
    """(algorithm, config) for a convolution that names none; config None is the algorithm's defaults.

    cores: that share the work; they decide only whether an algorithm takes too many instructions.
    """
    best, best_ns, config = FALLBACK, 0.0, None
    for name in ("mixed", "vector"):
        on_tensor = name == "mixed"
        few = geometry.S <= ROWS_TAPS_MAX
        if (few and not extras.strict_nonfinite) if on_tensor else (few or extras.strict_nonfinite):
            plan = read_plan(geometry, extras, None, on_tensor)
            if plan_refusal(geometry, extras, plan, cores, name) == "":
                row_ns = rows_ns(geometry, extras, plan)
                if best == FALLBACK or row_ns < best_ns:
                    best, best_ns = name, row_ns
    if shape_refusal(geometry, extras, None) == "":
        blocks, banded_ns = best_blocks(geometry, extras, None)
        if size_refusal(geometry, extras, blocks, cores) == "" and (best == FALLBACK or banded_ns < best_ns):
            best, best_ns = "banded", banded_ns
    if dot_refusal(geometry, extras, None, cores) == "":
        lags_ns = dot_ns(geometry)
        if best == FALLBACK or lags_ns < best_ns:
            best, best_ns = "dot", lags_ns
    for engine in ("tensor", "vector"):
        update_config = (("engine", engine),)
        if update_refusal(geometry, extras, update_config, cores) == "":
            update_ns = update_vector_ns(geometry, extras)
            if engine == "tensor":
                update_ns = update_tensor_ns(geometry, extras, settings_of(None))
            if best == FALLBACK or update_ns < best_ns:
                best, best_ns, config = "update", update_ns, update_config
    return best, config
