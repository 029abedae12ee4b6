"""The algorithms of images and volumes by name: their plans, unsupported reasons, bounds, and the default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import (
    activation_stationary_bound,
    activation_stationary_candidates,
    implicit_gemm_bound,
    implicit_gemm_candidates,
    weight_stationary_bound,
    weight_stationary_candidates,
)
from .geometry import Geometry
from .long_kernels import too_long
from .options import TAKE_NORM, Options, norm_unsupported, prologue_unsupported, statistics_unsupported
from .pairs_of_planes import beside_pairs_unsupported
from .planes import PLANES, planes_unsupported, wants_channels, with_channels, without_planes
from .relayout import plain_of, relayout_ns
from .settings import KEPT, Config, form_unsupported, once_a_config, setting
from .tiles import P_MAX

#: Precisions that only implicit_gemm takes.
ONLY_IMPLICIT_GEMM = ("fp16x3", "winograd")


#: The algorithms by name, with the function that plans each.
PLANS: dict[str, Callable[..., tuple[Any, str]]] = {
    "implicit_gemm": implicit_gemm_candidates.plan,
    "stacked": partial(weight_stationary_candidates.plan, "stacked"),
    "activation_stationary": activation_stationary_candidates.plan,
    "weight_stationary": partial(weight_stationary_candidates.plan, "weight_stationary"),
}
ALGORITHMS = tuple(PLANS)


@once_a_config
def plan_of(algorithm: str, geometry: Geometry, options: Options, config: Config) -> tuple[Any, str]:
    """(an algorithm's own plan, "") or (None, unsupported reason: argument, value, rule, remedy)."""
    reason = form_unsupported(config) or precision_unsupported(algorithm, geometry)
    reason = reason or prologue_unsupported(options, algorithm, geometry)
    reason = reason or statistics_unsupported(options, algorithm)
    reason = reason or norm_unsupported(options, algorithm)
    if not reason and geometry.direct is not None:
        reason = beside_pairs_unsupported(geometry, options)
    reason = reason or depth_unsupported(algorithm, geometry, options, config)
    if reason:
        return None, reason
    plan, reason = PLANS[algorithm](seen_by(algorithm, geometry, config), options, without_planes(config))
    if plan is not None and not is_looped(plan):
        seen = seen_by(algorithm, geometry, config) if wants_channels(config) else geometry
        ns = geometry.times * bound_ns(Target.of(Rates()), algorithm, seen, options, plan)
        reason = too_long(f"C={geometry.C}, K={geometry.K}: {algorithm}", ns)
    return (plan, "") if reason == "" else (None, reason)


def is_looped(plan: Any) -> bool:
    """Whether device loops run a part of a plan."""
    return bool(getattr(plan, "is_looped", False))


def precision_unsupported(algorithm: str, geometry: Geometry) -> str:
    """Why an algorithm does not take the precision; "" if it does."""
    if algorithm == "implicit_gemm" or geometry.precision not in ONLY_IMPLICIT_GEMM:
        return ""
    return f"precision={geometry.precision}: {algorithm} takes others; use implicit_gemm, or ask for another"


def depth_unsupported(algorithm: str, geometry: Geometry, options: Options, config: Config) -> str:
    """Why a config's `planes` is not supported; "" if it is."""
    planes = setting(config, "planes", PLANES[0])
    if planes not in PLANES:
        return f"config planes={planes}: must be one of {PLANES}"
    return planes_unsupported(algorithm, plain_of(algorithm, geometry), options) if wants_channels(config) else ""


def seen_by(algorithm: str, geometry: Geometry, config: Config) -> Geometry:
    """The Geometry that an algorithm works on: with copies of filters and of NHWC tensors, and planes of taps as
    channels."""
    plain = plain_of(algorithm, geometry)
    if algorithm == "stacked":
        plain = replace(plain, by_plane=False)
    return with_channels(plain) if wants_channels(config) else plain


def bound_ns(target: Target, algorithm: str, geometry: Geometry, options: Options, plan: Any) -> float:
    """A lower bound in ns of an algorithm's own plan on two cores, from the first DMA to the last, with its copies."""
    copies_ns, plain = relayout_ns(target, algorithm, geometry, options), plain_of(algorithm, geometry)
    if algorithm == "implicit_gemm":
        return copies_ns + implicit_gemm_bound.Bound(target, plain, options).ns(plan)
    if algorithm == "activation_stationary":
        return copies_ns + activation_stationary_bound.Bound(target, plain, options, plan).ns()
    return copies_ns + weight_stationary_bound.Bound(target, plain, options, plan).ns()


def fills_partitions(geometry: Geometry) -> bool:
    """Whether input channels fill the partitions by themselves: implicit_gemm is then better than `stacked`."""
    return geometry.C == P_MAX and geometry.groups == 1


@lru_cache(maxsize=KEPT)
def default_of(geometry: Geometry, options: Options) -> str:
    """The algorithm of a kernel that is called without one: the one of the least bound; with a norm the first that
    takes it; implicit_gemm, to be refused, if none runs."""
    target = Target.of(Rates())
    plans = {one: plan_of(one, geometry, options, None) for one in ALGORITHMS}
    runs = {one: plan for one, (plan, reason) in plans.items() if reason == ""}
    if options.epilogue.norm is not None:
        return next((one for one in TAKE_NORM if one in runs), "implicit_gemm")
    if fills_partitions(geometry):
        runs.pop("stacked", None)
    bounds = {one: bound_ns(target, one, geometry, options, plan) for one, plan in runs.items()}
    return min(bounds, key=bounds.__getitem__, default="implicit_gemm")
