"""The planner's two ways in: `plan` for callers, `answer` for a request; from memory, from disk, or by a search.

Where AWS's NKI runs the kernels, which times nothing, a process of its own searches under the simulator: see `child`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .._nki import CHOICE
from ..errors import DtypeError, UnsupportedError, raise_all
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
    """The best way known to run a problem, by modelled time in program order: of those close at phase 0 of the
    throttle's grid the one of least mean over its phases, unless another within `robust` per cent loses less at worst.

    Args:
        problem: any; a depthwise row (groups = C = K, H = R = 1) is planned for `depthwise_conv1d`, all others, and
            what that lacks, for `conv2d`, volumes for `conv3d`.
        lnc: cores, 1 or 2.
        direction: "forward", or of the convolution's gradients "dgrad", that of x, or "wgrad", that of w; see
            `ConvProblem.toward`. With "wgrad", bias is whether the bias's gradient is asked for too, and out_dtype is
            dw's.
        bias, activation, out_dtype, initial_state, return_final_state, strict_nonfinite: what the kernel will be called
            with; flags stand for tensors. residual: None, or where one is added, as the kernel's residual_position.
        chunks: of depthwise_conv1d: what the chunks of x's channels are, as in "BCx"; the problem's C is of one.
        scaled, precision, packed: the same of conv2d and conv3d: whether the residual's beta is not 1, how fp32
            products are taken, whether the filter comes from `pack_filter`. return_stats: as theirs.
        initial_frames, return_final_frames: of conv3d: how many of the problem's D planes come so, or are returned.
        x_scale, x_shift: None, or what x is scaled and shifted by as it arrives, "channel" of [C] or "image" of [N, C].
            x_activation, x_upsample: as the functions'; the problem's H and W are x_upsample times x's.
        y_norm, return_before_norm: as of conv2d and conv3d; y_norm_weight, y_norm_bias: flags of its tensors.
        operation: "depthwise_conv1d", "conv2d" or "conv3d", instead of the one that the problem is for. algorithms:
            names to choose from; None: all. constants: by name, instead of trn2.toml's.
        robust: per cent that the plan may take longer than the fastest where it loses less if an inferred constant is
            wrong, "off" for 0, "on" for 2; see `planner.robust`. None: "on", unless a tuned plan is kept.
        wide: try more settings and time every close candidate as a whole (seconds to minutes).
        use_cache: whether to take the plan from memory or disk, and to keep it there for later calls.
        advance: told what is being done, and the share of it that is done.

    Returns: a `Plan`; its `algorithm` and `config` are arguments of the function that its `operation` names.

    Raises: UnsupportedError, GeometryError, DtypeError or LayoutError, before any work, naming every violated rule;
        UnsupportedError with every reason where no algorithm runs the problem. PlanningError, under AWS's NKI, where
        the process that searches ends or cannot start.
    """
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
    """As `plan`, for a request. quick: where the cache has no plan, time the estimate and keep nothing."""
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
        tuned = None if wide else _tuned_meanwhile(request)
        if tuned is not None:
            return tuned
        cache.store(request, found)
    return found


def estimated(request: Request) -> Plan | Estimate:
    """What a call takes that asks for no plan: one that the cache has, else an estimate.

    Raises as `plan`, but for what only a search finds out.
    """
    raise_all("there is no plan for this", list(violations(request)))
    return known(request)


def _is_better(kept: Plan, found: Plan) -> bool:
    """Whether the plan of a quick search takes less than that of a wide one, by means over the same phases."""
    whole = kept.extrapolated_from is None and found.extrapolated_from is None
    return whole and kept.phases == found.phases and kept.modelled_us < found.modelled_us


def _tuned_meanwhile(request: Request) -> Plan | None:
    """The plan that another process tuned while this one searched, which is better and stays; None without one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cache.CacheWarning)  # what is wrong with the file has been said
        kept = _kept(request)
    return kept if kept is not None and kept.effort == TUNED else None


def _kept(request: Request) -> Plan | None:
    """The plan that the cache has, if it is as robust as is asked for; a tuned one where nothing is asked."""
    kept = cache.load(request)
    if kept is None or (request.robust is None and kept.effort == TUNED):
        return kept
    return kept if kept.robust == (DEFAULT if request.robust is None else request.robust) else None


def _several(algorithms: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names to choose from. Raises UnsupportedError: they are one name."""
    if isinstance(algorithms, str):
        raise UnsupportedError(f"algorithms={algorithms!r}: must be several names; write ({algorithms!r},)")
    return None if algorithms is None else tuple(algorithms)


def _short_name(dtype: Any) -> str:
    """nkiconv's name of a dtype; what is none stays as it is, to be refused with the rest."""
    try:
        return dtype_name(dtype)
    except DtypeError:
        return str(dtype)
