"""The algorithms of images and volumes by name: who refuses what, and who is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from . import activation_stationary_candidates, implicit_gemm_candidates, weight_stationary_candidates
from .geometry import Geometry
from .options import TAKE_NORM, Options, norm_unsupported, prologue_unsupported, statistics_unsupported
from .pairs_of_planes import beside_pairs_unsupported
from .planes import PLANES, asked_planes, planes_unsupported, wants_channels, with_channels, without_planes
from .relayout import plain_of, relayout_unsupported
from .settings import Config, is_hashable
from .tiles import P_MAX

#: Precisions that one algorithm takes.
ONLY_IMPLICIT_GEMM = ("fp16x3", "winograd")


#: The algorithms that can be asked for by name, and what plans each.
PLANS: dict[str, Callable[..., tuple[Any, str]]] = {
    "implicit_gemm": implicit_gemm_candidates.plan,
    "stacked": partial(weight_stationary_candidates.plan, "stacked"),
    "activation_stationary": activation_stationary_candidates.plan,
    "weight_stationary": partial(weight_stationary_candidates.plan, "weight_stationary"),
}
ALGORITHMS = tuple(PLANS)
#: Plans that are kept: a search asks for thousands, a call for a few.
PLANS_KEPT = 1024
#: Channels, of x and of y, that fill too little of the array one tap at a time; so few that pairs of fp8 and NHWC
#: without copies do not pay; those from which on NHWC is taken a tap at a time.
RULE_INPUTS, RULE_OUTPUTS, RULE_FEW, RULE_SIDE_BY_SIDE = 64, 44, 16, 256
#: Outputs of a channel up to which filters are what takes time; of groups and of depthwise filters, and of NHWC taps of
#: these, up to which one tap at a time does; outputs from which few channels of a transposed one take several at once.
RULE_PIXELS, RULE_PIXELS_GROUPS, RULE_PIXELS_DEPTHWISE, RULE_TAPS, RULE_PIXELS_MANY = 215, 500, 1900, 9, 50_000
#: Taps of a depthwise filter from which on outputs share stationaries however few they are.
RULE_TAPS_MANY = 64
#: Taps of a depthwise filter from which on blocks of NHWC pay that Toeplitz matrices multiply.
RULE_TAPS_BLOCKS = 25


def plan_of(algorithm: str, geometry: Geometry, options: Options, config: Config, cores: int) -> tuple[Any, str]:
    """(an algorithm's own plan of this on `cores` cores, "") or (None, why not: argument, value, rule, remedy).

    Built once: the host, a search and the kernel share the value, which nothing may change.
    """
    once = built if is_hashable(config) else built.__wrapped__  # what cannot be hashed is refused
    return once(algorithm, geometry, options, config, repr(config), cores)


@lru_cache(maxsize=PLANS_KEPT)
def built(
    algorithm: str, geometry: Geometry, options: Options, config: Config, written: str, cores: int
) -> tuple[Any, str]:
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
    return PLANS[algorithm](seen_by(algorithm, geometry, config), options, without_planes(config), cores)


def precision_unsupported(algorithm: str, geometry: Geometry) -> str:
    """Why an algorithm does not take products so, or ""."""
    if algorithm == "implicit_gemm" or geometry.precision not in ONLY_IMPLICIT_GEMM:
        return ""
    return f"precision={geometry.precision}: {algorithm} takes others; use implicit_gemm, or ask for another"


def depth_unsupported(algorithm: str, geometry: Geometry, options: Options, config: Config) -> str:
    """Why planes of taps are not taken as a config asks, or ""."""
    planes = asked_planes(config)
    if planes not in PLANES:
        return f"config planes={planes}: must be one of {PLANES}"
    return planes_unsupported(algorithm, plain_of(algorithm, geometry), options) if wants_channels(config) else ""


def seen_by(algorithm: str, geometry: Geometry, config: Config) -> Geometry:
    """The Geometry that an algorithm works on: of copies of filters and of NHWC tensors, of planes of taps as
    channels."""
    plain = plain_of(algorithm, geometry)
    if algorithm == "stacked":
        plain = replace(plain, by_plane=False)
    return with_channels(plain) if wants_channels(config) else plain


def default_of(geometry: Geometry, options: Options, cores: int) -> str:
    """The algorithm of a kernel that is called without one: the first that runs of those that its rule names, and of a
    norm the one that takes it."""
    norm = options.epilogue.norm is not None
    wanted = TAKE_NORM if norm else (*wanted_algorithms(geometry), "implicit_gemm")
    runs = (one for one in wanted if plan_of(one, geometry, options, None, cores)[1] == "")
    return next(runs, TAKE_NORM[0] if norm else "implicit_gemm")


def wanted_algorithms(geometry: Geometry) -> list[str]:
    """The rule of shapes: names in the order in which they are asked whether they run this; `implicit_gemm` comes last.
    docs/algorithms.md compares it."""
    pixels, last = geometry.planes.out * geometry.rows.out * geometry.columns.out, geometry.x_strides[0] == 1
    contraction = geometry.C * geometry.rows.taps * geometry.columns.taps
    apart = geometry.planes.lhs_dilation * geometry.rows.lhs_dilation * geometry.columns.lhs_dilation > 1
    apart = apart or (geometry.C <= RULE_INPUTS and (contraction == geometry.C or pixels < RULE_PIXELS))
    if (geometry.flipped and apart) or geometry.precision in ("fp16x3", "winograd"):
        first = ["activation_stationary"] if last and geometry.C > RULE_FEW else []
        return ([] if geometry.K <= RULE_FEW and pixels > RULE_PIXELS_MANY else first) + ["weight_stationary"]
    if geometry.hbm_itemsize == 1 and geometry.groups == 1 and geometry.C > RULE_FEW:
        return ["implicit_gemm"] if geometry.K > RULE_FEW else ["weight_stationary"]
    if geometry.groups > 1:
        return wanted_in_groups(geometry, pixels)
    if last and geometry.C > RULE_FEW and geometry.rows.size * geometry.columns.size > 1:
        return wanted_side_by_side(geometry)
    if geometry.C <= RULE_INPUTS:
        return wanted_of_few_inputs(geometry, pixels, contraction)
    few_taps, whole = contraction < 5 * geometry.C, geometry.C >= P_MAX
    if geometry.K > RULE_OUTPUTS or (few_taps and whole and geometry.columns.stride > 1 and pixels > RULE_PIXELS):
        return []
    return ["stacked"] if few_taps and not whole else ["weight_stationary"]


def wanted_side_by_side(geometry: Geometry) -> list[str]:
    """The same of NHWC."""
    if geometry.K <= RULE_FEW:
        return [] if geometry.C < RULE_INPUTS else ["weight_stationary"]
    whole = geometry.C >= RULE_SIDE_BY_SIDE and geometry.C % P_MAX == 0
    return [] if whole and geometry.rows.taps * geometry.columns.taps > 3 else ["activation_stationary"]


def wanted_of_few_inputs(geometry: Geometry, pixels: int, contraction: int) -> list[str]:
    """The same of few input channels; where they are few for several planes of taps too."""
    if geometry.planes.taps > 1 and geometry.C * geometry.planes.taps <= RULE_INPUTS:
        return ["stacked"]
    few = pixels < 3 * RULE_PIXELS and (geometry.C * geometry.K > 34_000 or (geometry.C > 16 and geometry.K > 150))
    return [] if few or geometry.columns.out > 650 or (contraction > 1500 and geometry.K > 150) else ["stacked"]


def wanted_in_groups(geometry: Geometry, pixels: int) -> list[str]:
    """The same where channels have groups."""
    taps, last = geometry.rows.taps * geometry.columns.taps, geometry.x_strides[0] == 1
    few = last and taps <= RULE_TAPS and geometry.planes.taps == 1
    if geometry.groups == geometry.C and geometry.groups == geometry.K:
        volumes, tall = geometry.planes.taps > 1, geometry.rows.taps > 4 and geometry.rows.stride == 1
        if few or (not volumes and pixels < RULE_PIXELS_DEPTHWISE and taps <= RULE_TAPS_MANY):
            return []
        if last and tall and taps >= RULE_TAPS_BLOCKS and geometry.C >= RULE_INPUTS and not volumes:
            return ["activation_stationary", "stacked", "weight_stationary"]
        return ["stacked"] * (tall or (volumes and geometry.rows.taps > 1)) + ["weight_stationary"]
    few = few and geometry.groups == geometry.C
    return [] if few or pixels < RULE_PIXELS_GROUPS else ["weight_stationary"]
