"""The kernel's own choice of an algorithm, from shapes alone: what the planner finds by timing, as a rule.

Each algorithm's time on one of two cores is estimated from what bounds it, and the least of those that run wins; the
winner runs with its default settings. The estimates need not be right, only in the right order: tests hold the choice
against the planner's.
"""

from .banded.choose import best_blocks
from .banded.kernel import banded_refusal
from .dot.estimate import dot_ns
from .dot.kernel import dot_refusal
from .rows.estimate import rows_ns
from .rows.plan import loop_refusal, read_plan
from .update.estimate import update_tensor_ns, update_vector_ns
from .update.kernel import update_refusal

#: Taps up to which rows are tried at all: beyond, `banded` needs far fewer matmuls.
ROWS_TAPS_MAX = 64


def choose(geometry, extras, cores):
    """(algorithm, config) for a convolution that names none; config None is the algorithm's defaults.

    cores: that share the work; they decide only whether an algorithm takes too many instructions.
    """
    best, best_ns, config = "", 0.0, None
    if not extras.strict_nonfinite and geometry.S <= ROWS_TAPS_MAX:
        if loop_refusal(geometry, extras, None, cores, True, "mixed") == "":
            best, best_ns = "mixed", rows_ns(geometry, extras, read_plan(geometry, extras, None, True))
    if geometry.S <= ROWS_TAPS_MAX or extras.strict_nonfinite:
        if loop_refusal(geometry, extras, None, cores, False, "vector") == "":
            vector_ns = rows_ns(geometry, extras, read_plan(geometry, extras, None, False))
            if best == "" or vector_ns < best_ns:
                best, best_ns = "vector", vector_ns
    if banded_refusal(geometry, extras, None, cores) == "":
        banded_ns = best_blocks(geometry, extras, None)[1]
        if best == "" or banded_ns < best_ns:
            best, best_ns = "banded", banded_ns
    if dot_refusal(geometry, extras, None, cores) == "":
        dot_time_ns = dot_ns(geometry)
        if best == "" or dot_time_ns < best_ns:
            best, best_ns = "dot", dot_time_ns
    for engine in ("tensor", "vector"):
        update_config = (("engine", engine),)
        if update_refusal(geometry, extras, update_config, cores) == "":
            update_ns = (
                update_tensor_ns(geometry, extras, (1, 8)) if engine == "tensor" else update_vector_ns(geometry, extras)
            )
            if best == "" or update_ns < best_ns:
                best, best_ns, config = "update", update_ns, update_config
    return "taps_on_partition" if best == "" else best, config
