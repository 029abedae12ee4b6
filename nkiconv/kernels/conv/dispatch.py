"""The algorithms of conv2d by name: who refuses what, who is chosen, and who does it."""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ..._nki import nl
from ...schedules import activation_stationary_candidates, implicit_gemm_candidates, weight_stationary_candidates
from ...schedules.options import TAKE_NORM, norm_unsupported, prologue_unsupported, statistics_unsupported
from ...schedules.pairs_of_planes import beside_pairs_unsupported
from ...schedules.planes import PLANES, asked_planes, planes_unsupported, wants_channels, with_channels, without_planes
from ...schedules.settings import is_hashable
from ...schedules.tiles import require
from .activation_stationary import run_activation_stationary
from .implicit_gemm.loop import run_implicit_gemm
from .relayout import plain_of, relayout_unsupported
from .rule import wanted_algorithms
from .weight_stationary.loop import run_weight_stationary

#: Precisions that one algorithm takes.
ONLY_IMPLICIT_GEMM = ("fp16x3", "winograd")
#: The algorithms that can be asked for by name: what plans each, and what issues its plan.
TABLE: dict[str, tuple[Any, Any]] = {
    "implicit_gemm": (implicit_gemm_candidates.plan, run_implicit_gemm),
    "stacked": (partial(weight_stationary_candidates.plan, "stacked"), run_weight_stationary),
    "activation_stationary": (activation_stationary_candidates.plan, run_activation_stationary),
    "weight_stationary": (partial(weight_stationary_candidates.plan, "weight_stationary"), run_weight_stationary),
}
ALGORITHMS = tuple(TABLE)
#: Plans that are kept: a search asks for thousands, a call for a few.
PLANS_KEPT = 1024


def plan_of(algorithm, geometry, options, config, cores):
    """(an algorithm's own plan of this on `cores` cores, "") or (None, why not: argument, value, rule, remedy).

    Built once: the host, a search and the kernel share the value, which nothing may change.
    """
    once = built if is_hashable(config) else built.__wrapped__  # what cannot be hashed is refused
    return once(algorithm, geometry, options, config, repr(config), cores)


@lru_cache(maxsize=PLANS_KEPT)
def built(algorithm, geometry, options, config, written, cores):
    """The same of a config that can be hashed. written: its repr, as True and 1 are equal."""
    reason = precision_unsupported(algorithm, geometry) or prologue_unsupported(options, algorithm, geometry)
    reason = reason or statistics_unsupported(options, algorithm)
    reason = reason or norm_unsupported(options, algorithm)
    if not reason and geometry.direct is not None:
        reason = beside_pairs_unsupported(geometry, options)
    reason = reason or relayout_unsupported(algorithm, geometry, options)
    reason = reason or depth_unsupported(algorithm, geometry, options, config)
    if reason:
        return None, reason
    plan, _ = TABLE[algorithm]
    return plan(seen_by(algorithm, geometry, options, config), options, without_planes(config), cores)


def precision_unsupported(algorithm, geometry):
    """Why an algorithm does not take products so, or ""."""
    if algorithm == "implicit_gemm" or geometry.precision not in ONLY_IMPLICIT_GEMM:
        return ""
    return f"precision={geometry.precision}: {algorithm} takes others; use implicit_gemm, or ask for another"


def depth_unsupported(algorithm, geometry, options, config):
    """Why planes of taps are not taken as a config asks, or ""."""
    planes = asked_planes(config)
    if planes not in PLANES:
        return f"config planes={planes}: must be one of {PLANES}"
    return (
        planes_unsupported(algorithm, plain_of(algorithm, geometry, options), options) if wants_channels(config) else ""
    )


def seen_by(algorithm, geometry, options, config):
    """The Geometry that an algorithm works on: of copies of filters and of NHWC tensors, of planes of taps as
    channels."""
    plain = plain_of(algorithm, geometry, options)
    if algorithm == "stacked":
        plain = replace(plain, by_plane=False)
    return with_channels(plain) if wants_channels(config) else plain


def default_of(geometry, options, cores):
    """The algorithm of a kernel that is called without one: the first that runs of those that its rule names, and of a
    norm the one that takes it."""
    if options.epilogue.norm is not None:
        return next((one for one in TAKE_NORM if plan_of(one, geometry, options, None, cores)[1] == ""), TAKE_NORM[0])
    for algorithm in wanted_algorithms(geometry):
        if plan_of(algorithm, geometry, options, None, cores)[1] == "":
            return algorithm
    return "implicit_gemm"


def chosen(algorithm, geometry, options, config):
    """(algorithm, what runs it, the Geometry that it works on, its Schedule); algorithm None: by the default rule."""
    cores = nl.num_programs()
    if algorithm == None:
        algorithm = default_of(geometry, options, cores)
    plan, reason = plan_of(algorithm, geometry, options, config, cores)
    require(reason == "", reason)
    return algorithm, TABLE[algorithm][1], seen_by(algorithm, geometry, options, config), plan
