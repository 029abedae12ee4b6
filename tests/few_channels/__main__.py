"""How x of few channels of NHWC arrives fastest: windows or not, and rows that an engine sorts or DMA transposes.

    python tests/few_channels                           the two ways of each, and what `schedules/relayout.py` takes
    python tests/few_channels --only "3 channels, 4x4"  of some

A row is a convolution on two cores; its ratio is of the us of the first way over those of the second, the price's is of
the ns that the rule compares. The last line: us of what the rule takes over those of the faster way, mean and worst.
Nothing here ran on hardware.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator
from unittest import mock

from nkiconv import ConvProblem
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.planner.timing import ranked_us
from nkiconv.schedules import activation_stationary, implicit_gemm_schedule, relayout, windows
from nkiconv.schedules.conv_algorithms import plan_of
from nkiconv.schedules.geometry import Geometry
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

SIZES, FILTERS = (32, 112, 224), (64, 192)
#: (channels, taps) of patches; (channels, columns, taps) of images.
PATCHES = [(3, 4), (3, 2), (2, 4), (4, 3), (4, 4), (8, 2), (16, 2)]
IMAGES = list(itertools.product((3, 8, 16, 32), (112, 160, 192, 224), (1, 3)))


def us_of(problem: ConvProblem, rule: str, value: bool) -> float:
    """us of the estimate with a rule of `relayout` held at a value."""
    request = Request(problem=problem)
    operation = operation_for(request)
    with (
        mock.patch.object(relayout, rule, return_value=value),
        mock.patch.object(activation_stationary, "takes_windows", relayout.takes_windows),
    ):
        plan_of.cache_clear()  # type: ignore[attr-defined]
        implicit_gemm_schedule.build.cache_clear()
        choice = operation.choice(request, operation.shape(request, Rates()))
        args, kwargs = operation.arguments(request, *choice)
        return ranked_us(in_time(execute(operation.kernel[2], args, kwargs, trace_only=True), Rates()))


def problems() -> Iterator[tuple[str, ConvProblem]]:
    """(rule, problem)."""
    for (C, R), size, K in itertools.product(PATCHES, SIZES, FILTERS):
        side = size // R * R
        yield "takes_windows", ConvProblem(N=1, C=C, H=side, W=side, K=K, R=R, S=R, stride=(R, R), layout="NHWC")
    for C, size, R in IMAGES:
        same = ((R // 2, R // 2),) * 2
        yield "sorts_x", ConvProblem(N=1, C=C, H=size, W=size, K=64, R=R, S=R, padding=same, layout="NHWC")


def price(rule: str, geometry: Geometry) -> float:
    """The ratio of ns that a rule holds against 1."""
    target = Target.of(Rates())
    sorted_ns, by_dma_ns = relayout._sorted_ns(target, geometry), relayout._transposed_ns(target, geometry)
    if rule == "sorts_x":
        return sorted_ns / by_dma_ns
    return windows.windows_ns(target, geometry) / min(sorted_ns, by_dma_ns)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/few_channels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="problems whose line contains this")
    only = parser.parse_args().only
    lost: dict[str, list[float]] = {}
    for rule, problem in problems():
        sizes = f"{problem.C} channels, {problem.R}x{problem.S}, {problem.H}x{problem.W}, {problem.K} filters"
        if only not in sizes:
            continue
        request = Request(problem=problem)
        geometry = operation_for(request).shape(request, Rates()).geometry
        takes, there, other = getattr(relayout, rule)(geometry), *(us_of(problem, rule, one) for one in (True, False))
        lost.setdefault(rule, []).append((there if takes else other) / min(there, other))
        print(f"{rule} {sizes}: {there:.1f} / {other:.1f} us = {there / other:.2f}, price {price(rule, geometry):.2f}")
    for rule, every in lost.items():
        print(f"{rule}: {math.exp(sum(map(math.log, every)) / len(every)):.3f}, {max(every):.2f} at worst")
    return 0


if __name__ == "__main__":
    sys.exit(main())
