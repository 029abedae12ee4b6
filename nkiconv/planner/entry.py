"""The planner's entry points: `plan` for callers, `answer` for a request; from memory, from disk, or by a search.

Under AWS's NKI, which times nothing, a separate process searches with the simulator: see `child`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import rules
from .._nki import CHOICE
from ..errors import DtypeError, UnsupportedError, raise_all, refuse, shown
from ..integers import takes_ints
from ..problem import ConvProblem, dtype_name
from ..simulator.profiling.settings import Advance, ignore
from . import cache, child
from .estimate import known
from .operations import violations
from .plan import TUNED, Estimate, Plan
from .request import Asked, Request, sorted_constants
from .robust import DEFAULT, percent_of
from .search import NothingRuns, search


@takes_ints
def plan(
    problem: ConvProblem,
    lnc: int = 2,
    *,
    direction: str = "forward",
    bias: bool = False,
    activation: str | None = None,
    residual: str | None = None,
    out_dtype: Any = None,
    initial_state: bool = False,
    return_final_state: bool = False,
    chunks: str | None = None,
    strict_nonfinite: bool = False,
    scaled: bool = False,
    precision: str | None = None,
    packed: bool = False,
    return_stats: str | None = None,
    initial_frames: int = 0,
    return_final_frames: int = 0,
    x_scale: str | None = None,
    x_shift: str | None = None,
    x_activation: str | None = None,
    y_norm: str | None = None,
    y_norm_weight: bool = False,
    y_norm_bias: bool = False,
    x_upsample: int = 1,
    return_before_norm: bool = False,
    operation: str | None = None,
    algorithms: Sequence[str] | None = None,
    constants: Mapping[str, float] | None = None,
    robust: str | float | None = None,
    wide: bool = False,
    use_cache: bool = True,
    advance: Advance = ignore,
) -> Plan:
    """The fastest known algorithm and settings for a problem, by modelled time in program order; see `planner.search`.

    Args:
        problem: any `ConvProblem`. Depthwise rows (groups = C = K, H = R = 1) are planned for `depthwise_conv1d`, or
            for `conv2d` if that is faster or only it has the arguments; images for `conv2d`, volumes for `conv3d`.
        lnc: cores, 1 or 2.
        direction: "forward", or a gradient of the convolution: "dgrad" with respect to x, "wgrad" with respect to w;
            see `ConvProblem.toward`. With "wgrad", bias asks for the bias's gradient too, and out_dtype is dw's.
        bias, activation, residual, out_dtype, initial_state, return_final_state, strict_nonfinite, scaled, precision,
            packed, return_stats, initial_frames, return_final_frames, x_scale, x_shift, x_activation, x_upsample,
            y_norm, y_norm_weight, y_norm_bias, return_before_norm: arguments of the later call; flags, positions, forms
            and counts stand for tensors, as in `planner.Asked`.
        chunks: of depthwise_conv1d: the chunks of x's channels, as in "BCx"; the problem's C is that of one chunk.
        operation: the function to plan for, as in `Plan.operation`; None: by the problem. algorithms: names to choose
            from; None: all. constants: values by name, instead of trn2.toml's.
        robust: per cent that the plan may be slower than the fastest candidate if it loses enough less when an inferred
            constant is wrong; "off" is 0, "on" 20; see `planner.robust`. None: "on", but any kept tuned plan is taken.
        wide: try more settings and time every close candidate as a whole (seconds to minutes).
        use_cache: read the plan from memory or disk, and keep it there for later calls.
        advance: called with the current step and the share of the work that is done.

    Returns: a `Plan`; its `algorithm` and `config` are arguments of the function that its `operation` names.

    Raises: UnsupportedError, GeometryError, DtypeError or LayoutError, before any work, naming every violated rule;
        UnsupportedError with every reason if no algorithm runs the problem. PlanningError, under AWS's NKI, if the
        process that searches ends or cannot start.
    """
    refuse(UnsupportedError, rules.flag("wide", wide), rules.flag("use_cache", use_cache))
    given = locals() | {"out_dtype": None if out_dtype is None else _short_name(out_dtype)}
    asked = Asked(**{one.name: given[one.name] for one in dataclasses.fields(Asked) if one.name in given})
    wanted = Request(
        problem=problem.toward(direction) if isinstance(problem, ConvProblem) else problem,
        lnc=lnc,
        asked=asked,
        constants=sorted_constants(constants),
        algorithms=_several(algorithms),
        operation=operation,
        robust=None if robust is None else percent_of(robust),
    )
    return answer(wanted, wide=wide, use_cache=use_cache, advance=advance)


def answer(
    request: Request, *, wide: bool = False, use_cache: bool = True, advance: Advance = ignore, quick: bool = False
) -> Plan:
    """The plan of a request, as in `plan`. quick: without a kept plan, time the estimate and keep nothing."""
    raise_all("there is no plan for this", list(violations(request)))
    kept = _kept(request) if use_cache else None
    if kept is not None and (kept.effort == TUNED or not wide):
        return kept
    try:
        searched = child.search if CHOICE.provider == "aws" else search
        found = searched(request, wide=wide, advance=advance, quick=quick)
    except NothingRuns as error:
        reasons = [f"{one.algorithm}: {one.reason}" for one in error.rejected]
        raise_all("no algorithm runs this problem", [UnsupportedError(reason) for reason in dict.fromkeys(reasons)])
        raise
    if kept is not None and _is_better(kept, found):
        found = dataclasses.replace(kept, effort=TUNED, cached=False)
    if use_cache and not quick:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cache.CacheWarning)  # the first read has warned
            kept = None if wide else _kept(request)
        if kept is not None and kept.effort == TUNED:  # by another process during this search
            return kept
        cache.store(request, found)
    return found


def estimated(request: Request) -> Plan | Estimate:
    """The plan or estimate of a call that names no plan: a kept or shipped plan, else an estimate.

    Raises as `plan`, except for errors that only a search finds.
    """
    raise_all("there is no plan for this", list(violations(request)))
    return known(request)


def _is_better(kept: Plan, found: Plan) -> bool:
    """Whether the kept plan of a quick search is faster than that of a wide one, by means over the same phases."""
    whole = kept.extrapolated_from is None and found.extrapolated_from is None
    return whole and kept.phases == found.phases and kept.modelled_us < found.modelled_us


def _kept(request: Request) -> Plan | None:
    """The cached plan if its `robust` is the request's, or by default; any tuned plan if the request names none."""
    kept = cache.load(request, Plan)
    if kept is None or (request.robust is None and kept.effort == TUNED):
        return kept
    return kept if kept.robust == (DEFAULT if request.robust is None else request.robust) else None


def _several(algorithms: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names to choose from. Raises UnsupportedError: they are one name, or no names."""
    if isinstance(algorithms, str):
        raise UnsupportedError(f"algorithms={algorithms!r}: must be several names; write ({algorithms!r},)")
    try:
        return None if algorithms is None else tuple(algorithms)
    except TypeError:
        raise UnsupportedError(f"algorithms={shown(algorithms)}: must be names; pass a tuple, or None") from None


def _short_name(dtype: Any) -> str:
    """nkiconv's name of a dtype; anything else by its name or as text, to be refused with the other errors."""
    try:
        return dtype_name(dtype)
    except DtypeError:
        return getattr(dtype, "__name__", str(dtype))
