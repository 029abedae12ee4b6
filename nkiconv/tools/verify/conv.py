"""A convolution of images or volumes, run as a whole and held against the float64 reference.

Output channels meet in no sum, so of a big problem the reference is made for a sample of them, whole groups where there
are groups; the kernel always runs all. The report says how many were checked.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ...api.calls import KernelRun
from ...api.conv import run_conv
from ...api.epilogue import Epilogue
from ...planner.operations import OPERATIONS, operation_of
from ...planner.request import Config, Request
from ...problem import ConvProblem
from ...reference import AnyArray
from ...rules import FILTER_PERMS
from ...simulator.profiling import Advance, ignore
from .choice import settings_of
from .comparison import PLAIN, Comparison, as_plain, compare_channels
from .report import SAMPLE_CHANNELS, Channels, Report

#: Work of the whole reference above which only a sample is checked unless the caller says otherwise.
SAMPLE_ABOVE_FLOPS = 4_000_000_000
#: Orders of filters that kernels take as they are.
FIRST_LAYOUTS = ("KCRS", "KCTRS")


def verify_conv(
    name: str,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    epilogue: Epilogue = PLAIN,
    *,
    filter_layout: str | None = None,
    degrees: Sequence[int] = (2,),
    algorithm: str | None = None,
    config: Config = None,
    channels: Channels = "auto",
    advance: Advance = ignore,
) -> tuple[list[Report], AnyArray]:
    """Run the problem on each LNC degree and compare.

    Args:
        x, residual: in the problem's layout; w: [K, C / groups, R, S], or in the order of filter_layout, None for that
            or KCTRS of volumes; [C, K / groups, ...] of transposed problems.
        epilogue: bias, activation, residual, residual_position, precision and strict_nonfinite.
        degrees: LNC degrees, 1 or 2; outputs of the second are compared with the first's, bit for bit.
        algorithm, config: as in a `Plan`; None: the estimate.
        channels: how many output channels to check, spread evenly and rounded up to whole groups; "auto": all, or
            `SAMPLE_CHANNELS` where all would take more than `SAMPLE_ABOVE_FLOPS`.

    Returns: a report for each degree, and y of the first, in the problem's layout.
    """
    operation = operation_of(problem) if problem.transposed else OPERATIONS["conv3d" if problem.is_volume else "conv2d"]
    filter_layout = None if filter_layout in FIRST_LAYOUTS else filter_layout
    request = Request(problem=problem, lnc=min(degrees), asked=epilogue.asked(filter_layout=filter_layout))
    choice, report = settings_of(name, operation, request, algorithm, config)
    chosen = _chosen_channels(problem, channels)
    runs: list[KernelRun] = []
    for lnc in degrees:
        advance(f"running {name} on {lnc} core{'s' if lnc > 1 else ''}", None)
        runs.append(run_conv(x, w, problem, lnc=lnc, epilogue=epilogue, filter_layout=filter_layout, **choice))
    first, canonical = runs[0].y, w if filter_layout is None else w.transpose(FILTER_PERMS[filter_layout])
    equal, canonical = as_plain(problem, canonical)

    def compared(y: AnyArray) -> Comparison:
        return compare_channels(
            y, x, canonical, equal, chosen, epilogue, functools.partial(advance, f"checking {name}")
        )

    comparison, reports = compared(first), []
    for lnc, run in zip(degrees, runs, strict=True):
        identical = None if run is runs[0] else run.y.tobytes() == first.tobytes()
        reports.append(
            report(
                lnc=lnc,
                trace=run if run.provider == "simulator" else None,
                seconds=run.seconds,
                channels_checked=len(chosen),
                comparison=comparison if identical is not False else compared(run.y),
                same_as_lnc=None if run is runs[0] else degrees[0],
                identical=identical,
            )
        )
    return reports, first


def _chosen_channels(problem: ConvProblem, channels: Channels) -> list[int]:
    """The output channels to check."""
    if channels == "auto":
        channels = SAMPLE_CHANNELS if problem.flops > SAMPLE_ABOVE_FLOPS else "all"
    return list(range(problem.K)) if channels == "all" else sampled_channels(problem, channels)


def sampled_channels(problem: ConvProblem, count: int) -> list[int]:
    """So many output channels, or all, spread evenly from the first to the last; rounded up to whole groups."""
    found = sorted({round(k) for k in np.linspace(0, problem.K - 1, min(count, problem.K))})
    if problem.groups == 1:
        return found
    per_k = problem.K // problem.groups
    return sorted({g * per_k + k for g in {k // per_k for k in found} for k in range(per_k)})
