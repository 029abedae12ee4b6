"""A depthwise conv1d, run and held against the float64 reference.

Channels never meet, so the numerics run block by block: memory stays small and progress can be told. Counts and peaks
are those of the whole problem, from one trace of it without data (AWS's NKI counts nothing, and gets one block).
Channels may be sampled; the report says how many were checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._nki import CHOICE
from ...api.calls import KernelRun
from ...api.depthwise_conv1d import run_depthwise_conv1d
from ...api.epilogue import Epilogue
from ...planner.operations import OPERATIONS
from ...planner.request import Config, Request
from ...problem import ConvProblem
from ...reference import AnyArray
from ...simulator import ArraySpec
from ...simulator.hardware import PARTITIONS
from ...simulator.profiling import Advance, ignore
from .choice import settings_of
from .comparison import PLAIN, Comparison, compare, merged, of_channels
from .report import SAMPLE_CHANNELS, Channels, Report

#: Instructions above which only a sample of the channels is checked unless the caller says otherwise.
SAMPLE_ABOVE_INSTRUCTIONS = 200_000
#: About a second of simulation: the size of a block.
BLOCK_INSTRUCTIONS = 10_000
#: Elements of x and y of a block: 64 MB in float64.
BLOCK_ELEMS = 1 << 23

OPERATION = OPERATIONS["depthwise_conv1d"]


def verify_depthwise_conv1d(
    name: str,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    epilogue: Epilogue = PLAIN,
    *,
    degrees: Sequence[int] = (2,),
    algorithm: str | None = None,
    config: Config = None,
    channels: Channels = "auto",
    keep: bool = False,
    advance: Advance = ignore,
) -> tuple[list[Report], AnyArray | None]:
    """Trace the whole problem, then run it block by block on each LNC degree and compare.

    Args:
        x: [N, C, W], w: [C, S]; as `problem`, checked by `api.depthwise_problem` or by `case_arrays`.
        epilogue: bias, activation, residual, residual_position and strict_nonfinite.
        degrees: LNC degrees, 1 or 2; outputs of the second are compared with the first's, bit for bit.
        algorithm, config: as in a `Plan`; None: the estimate for the whole problem.
        channels: how many channels to run and check, spread evenly; "auto": all, or `SAMPLE_CHANNELS` of them where
            the trace has more than `SAMPLE_ABOVE_INSTRUCTIONS`.
        keep: return y of the first degree, [N, C, Q]; all channels are run then, in one launch, so that y has the bits
            of `nkiconv.depthwise_conv1d` (the order of a sum may depend on the tiles, and those on C).

    Returns: a report for each degree, and y or None.
    """
    request = Request(problem=problem, lnc=min(degrees), asked=epilogue.asked())
    choice, report = settings_of(name, OPERATION, request, algorithm, config)
    tallies = []
    for lnc in degrees:
        trace = None
        if CHOICE.provider != "aws":
            advance(f"tracing {name}", None)
            specs = dataclasses.replace(epilogue, bias=_spec(epilogue.bias), residual=_spec(epilogue.residual))
            how: dict[str, Any] = {"lnc": lnc, "trace_only": True, "epilogue": specs, **choice}
            trace = run_depthwise_conv1d(_spec(x), _spec(w), problem, **how)
        tallies.append(_Tally(lnc, trace))
    trace = tallies[0].trace
    chosen = _chosen_channels(problem.C, "all" if keep else channels, trace)
    blocks = [chosen]
    if trace and not keep:
        blocks = list(_blocks(chosen, problem, trace.num_instructions))
    for i, block in enumerate(blocks):
        advance(f"checking {name}", i / len(blocks))
        _run_block(x, w, problem, block, tallies, epilogue, choice)
    advance(f"checking {name}", 1.0)
    reports = [
        report(
            lnc=tally.lnc,
            trace=tally.trace,
            seconds=tally.seconds,
            num_blocks=len(blocks),
            channels_checked=len(chosen),
            comparison=merged(tally.parts),
            same_as_lnc=None if tally is tallies[0] else tallies[0].lnc,
            identical=None if tally is tallies[0] else tally.identical,
        )
        for tally in tallies
    ]
    return reports, tallies[0].y if keep else None


@dataclass
class _Tally:
    """The state of one LNC degree."""

    lnc: int
    trace: KernelRun | None
    seconds: float = 0.0
    parts: list[Comparison] = dataclasses.field(default_factory=list)
    identical: bool = True  # to the first degree
    y: Any = None  # of the last block


def _spec(array: AnyArray | None) -> ArraySpec | None:
    return None if array is None else ArraySpec(array.shape, str(array.dtype))


def _chosen_channels(C: int, channels: Channels, trace: KernelRun | None) -> list[int]:
    """The channels to run: all, or that many from the first to the last."""
    if channels == "auto":
        sample = trace is not None and trace.num_instructions > SAMPLE_ABOVE_INSTRUCTIONS
        channels = SAMPLE_CHANNELS if sample else "all"
    if channels == "all" or channels >= C:
        return list(range(C))
    return sorted({round(c) for c in np.linspace(0, C - 1, channels)})


def _blocks(chosen: list[int], problem: ConvProblem, num_instructions: int) -> Iterator[list[int]]:
    """The chosen channels in blocks: whole channel tiles on each of two cores, the rest joined to the last block."""
    by_time = BLOCK_INSTRUCTIONS * problem.C // num_instructions
    by_memory = BLOCK_ELEMS // (problem.N * (problem.W + problem.Q))
    step = 2 * min(problem.C, PARTITIONS)
    size = max(1, min(by_time, by_memory) // step) * step
    ends = [*range(size, len(chosen) - size + 1, size), len(chosen)]
    yield from (chosen[first:end] for first, end in zip([0, *ends], ends, strict=False))


def _run_block(
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    block: list[int],
    tallies: list[_Tally],
    epilogue: Epilogue,
    choice: dict[str, Any],
) -> None:
    """Run these channels on every degree, compare, and add to the tallies."""
    part: Any = block if block[-1] - block[0] + 1 > len(block) else slice(block[0], block[-1] + 1)
    x_block, w_block = np.array(x[:, part], order="C"), np.array(w[part], order="C")
    of_block, own = problem.replace(C=len(block), K=len(block), groups=len(block)), of_channels(epilogue, part)
    for tally in tallies:
        run = run_depthwise_conv1d(x_block, w_block, of_block, lnc=tally.lnc, epilogue=own, **choice)
        tally.y = run.y
        tally.seconds += run.seconds
        if tally is not tallies[0] and run.y.tobytes() == tallies[0].y.tobytes():
            tally.parts.append(tallies[0].parts[-1])
            continue
        tally.identical = tally is tallies[0]
        found = compare(run.y, x_block, w_block, of_block, own)
        n, c, q = found.worst
        tally.parts.append(dataclasses.replace(found, worst=(n, block[c], q)))
