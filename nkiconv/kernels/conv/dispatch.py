"""The algorithms of conv2d by name: who refuses what, who is chosen, and who does it."""

from ..._nki import nl
from .._tiles import require
from .flip import copy_forwards
from .grouped.loop import run_grouped
from .grouped.plan import plan_grouped
from .implicit_gemm.items import run_items
from .implicit_gemm.refusal import plan_taps
from .narrow.loop import run_narrow
from .narrow.plan import plan_narrow
from .pairs_of_planes import beside_pairs_refusal
from .phases.loop import run_phases
from .phases.plan import plan_phases
from .planes import PLANES, asked_planes, planes_refusal, wants_channels, with_channels, without_planes
from .relayout import copy_in, copy_out, plain_of, relayout_refusal
from .rule import wanted_algorithms
from .stacked.loop import run_stack
from .stacked.plan import plan_stack
from .swapped.loop import run_swapped
from .swapped.plan import plan_swapped
from .toeplitz_blocks.loop import run_blocks
from .toeplitz_blocks.plan import plan_blocks
from .turned.loop import run_turned
from .turned.plan import plan_turned

#: Precisions that one algorithm takes.
ONLY_IMPLICIT_GEMM = ("fp16x3", "winograd")
#: The algorithms that can be asked for by name; each is a package beside this file.
ALGORITHMS = (
    "implicit_gemm",
    "stacked",
    "toeplitz_blocks",
    "grouped",
    "narrow",
    "swapped",
    "turned",
    "phases",
)


def plan_of(algorithm, geometry, extras, config, cores):
    """(an algorithm's own plan of this on `cores` cores, "") or (None, why not: argument, value, rule, remedy)."""
    if algorithm != "implicit_gemm" and geometry.precision in ONLY_IMPLICIT_GEMM:
        precision = geometry.precision
        return None, f"precision={precision}: {algorithm} takes others; use implicit_gemm, or ask for another"
    reason = "" if geometry.direct == None else beside_pairs_refusal(geometry, extras)
    if reason == "":
        reason = relayout_refusal(algorithm, geometry, extras)
    if reason == "":
        reason = depth_refusal(algorithm, geometry, extras, config)
    if reason != "":
        return None, reason
    plain, config = seen_by(algorithm, geometry, extras, config), without_planes(config)
    if algorithm == "stacked":
        return plan_stack(plain, extras, config, cores)
    if algorithm == "toeplitz_blocks":
        return plan_blocks(plain, extras, config, cores)
    if algorithm == "grouped":
        return plan_grouped(plain, extras, config, cores)
    if algorithm == "narrow":
        return plan_narrow(plain, extras, config, cores)
    if algorithm == "swapped":
        return plan_swapped(plain, extras, config, cores)
    if algorithm == "turned":
        return plan_turned(plain, extras, config, cores)
    if algorithm == "phases":
        return plan_phases(plain, extras, config, cores)
    return plan_taps(plain, extras, config, cores)


def depth_refusal(algorithm, geometry, extras, config):
    """Why planes of taps are not taken as a config asks, or ""."""
    planes = asked_planes(config)
    if planes not in PLANES:
        return f"config planes={planes}: must be one of {PLANES}"
    return planes_refusal(algorithm, plain_of(algorithm, geometry, extras), extras) if wants_channels(config) else ""


def seen_by(algorithm, geometry, extras, config):
    """The Geometry that an algorithm works on: of copies of filters and of NHWC tensors, of planes of taps as
    channels."""
    plain = plain_of(algorithm, geometry, extras)
    plain.by_plane = plain.by_plane and algorithm != "stacked"
    return with_channels(plain) if wants_channels(config) else plain


def default_of(geometry, extras, cores):
    """The algorithm of a kernel that is called without one: the first that runs of those that its rule names."""
    for algorithm in wanted_algorithms(geometry):
        if plan_of(algorithm, geometry, extras, None, cores)[1] == "":
            return algorithm
    return "implicit_gemm"


def convolve(algorithm, operands, geometry, extras, config):
    """Write operands.y; algorithm None: by the default rule."""
    cores = nl.num_programs()
    if algorithm == None:
        algorithm = default_of(geometry, extras, cores)
    plan, reason = plan_of(algorithm, geometry, extras, config, cores)
    require(reason == "", reason)
    plain, y_hbm = seen_by(algorithm, geometry, extras, config), operands.y
    copy_forwards(algorithm, operands, geometry)
    copy_in(algorithm, operands, geometry)
    if algorithm == "stacked":
        run_stack(operands, plain, extras, plan)
    elif algorithm == "toeplitz_blocks":
        run_blocks(operands, plain, extras, plan)
    elif algorithm == "grouped":
        run_grouped(operands, plain, extras, plan)
    elif algorithm == "narrow":
        run_narrow(operands, plain, extras, plan)
    elif algorithm == "swapped":
        run_swapped(operands, plain, extras, plan)
    elif algorithm == "turned":
        run_turned(operands, plain, extras, plan)
    elif algorithm == "phases":
        run_phases(operands, plain, extras, plan)
    else:
        run_items(operands, plain, extras, plan)
    copy_out(algorithm, y_hbm, operands, geometry, extras)
