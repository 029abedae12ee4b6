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
from .choice import settings_of
from .comparison import Comparison, compare, merged
from .report import SAMPLE_CHANNELS, Advance, Channels, Report, ignore

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
    *,
    bias: AnyArray | None = None,
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    degrees: Sequence[int] = (2,),
    strict_nonfinite: bool = False,
    algorithm: str | None = None,
    config: Config = None,
    channels: Channels = "auto",
    keep: bool = False,
    advance: Advance = ignore,
) -> tuple[list[Report], AnyArray | None]:
    """Trace the whole problem, then run it block by block on each LNC degree and compare.

    Args:
        x: [N, C, W], w: [C, S]; as `problem`, checked by `api.depthwise_problem` or by `case_arrays`.
        bias: [C], residual: [N, C, Q]; they, activation and residual_position: as in `nkiconv.depthwise_conv1d`.
        degrees: LNC degrees, 1 or 2; outputs of the second are compared with the first's, bit for bit.
        algorithm, config: as in a `Plan`; None: the estimate for the whole problem.
        channels: how many channels to run and check, spread evenly; "auto": all, or `SAMPLE_CHANNELS` of them where
            the trace has more than `SAMPLE_ABOVE_INSTRUCTIONS`.
        keep: return y of the first degree, [N, C, Q]; all channels are run then, in one launch, so that y has the bits
            of `nkiconv.depthwise_conv1d` (the order of a sum may depend on the tiles, and those on C).

    Returns: a report for each degree, and y or None.
    """
    epilogue = Epilogue(
        bias=bias,
        activation=activation,
        residual=residual,
        residual_position=residual_position,
        strict_nonfinite=strict_nonfinite,
    )
    request = Request(problem=problem, lnc=min(degrees), asked=epilogue.asked())
    shape, algorithm, settings = settings_of(OPERATION, request, algorithm, config)
    how = _How(epilogue, algorithm, settings)
    tallies = [_Tally(lnc, _trace(name, problem, x, w, lnc, how, advance)) for lnc in degrees]
    trace = tallies[0].trace
    tiles = OPERATION.symbols(shape, algorithm, settings) if trace else None
    chosen = _chosen_channels(problem.C, "all" if keep else channels, trace)
    blocks = [chosen]
    if trace and not keep:
        blocks = list(_blocks(chosen, problem, trace.num_instructions))
    for i, block in enumerate(blocks):
        advance(f"checking {name}", i / len(blocks))
        _run_block(x, w, problem, block, tallies, how)
    advance(f"checking {name}", 1.0)
    reports = [
        Report(
            name=name,
            operation=OPERATION.name,
            problem=problem,
            lnc=tally.lnc,
            strict_nonfinite=strict_nonfinite,
            algorithm=algorithm,
            config=config,
            provider=CHOICE.provider,
            tiles=tiles,
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


@dataclass(frozen=True)
class _How:
    """How the kernel is to run: blocks of channels as the whole would."""

    epilogue: Epilogue
    algorithm: str
    config: Config

    def of_channels(self, part: Any) -> _How:
        """The same for some channels, an index of their axis."""
        bias, residual = self.epilogue.bias, self.epilogue.residual
        epilogue = dataclasses.replace(
            self.epilogue,
            bias=None if bias is None else bias[part],
            residual=None if residual is None else np.array(residual[:, part], order="C"),
        )
        return dataclasses.replace(self, epilogue=epilogue)

    def specs(self) -> _How:
        """The same with specs for arrays."""
        epilogue = dataclasses.replace(
            self.epilogue, bias=_spec(self.epilogue.bias), residual=_spec(self.epilogue.residual)
        )
        return dataclasses.replace(self, epilogue=epilogue)


@dataclass
class _Tally:
    """The state of one LNC degree."""

    lnc: int
    trace: KernelRun | None
    seconds: float = 0.0
    parts: list[Comparison] = dataclasses.field(default_factory=list)
    identical: bool = True  # to the first degree
    y: AnyArray | None = None  # of the last block


def _trace(
    name: str, problem: ConvProblem, x: AnyArray, w: AnyArray, lnc: int, how: _How, advance: Advance
) -> KernelRun | None:
    if CHOICE.provider == "aws":
        return None
    advance(f"tracing {name}", None)
    return run_depthwise_conv1d(_spec(x), _spec(w), problem, lnc=lnc, trace_only=True, **vars(how.specs()))


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
    x: AnyArray, w: AnyArray, problem: ConvProblem, block: list[int], tallies: list[_Tally], how: _How
) -> None:
    """Run these channels on every degree, compare, and add to the tallies."""
    part: Any = block if block[-1] - block[0] + 1 > len(block) else slice(block[0], block[-1] + 1)
    x_block, w_block = np.array(x[:, part], order="C"), np.array(w[part], order="C")
    of_block, own = _of_channels(problem, len(block)), how.of_channels(part)
    epilogue = own.epilogue
    after = epilogue.bias, epilogue.activation, epilogue.residual, epilogue.residual_position
    for tally in tallies:
        run = run_depthwise_conv1d(x_block, w_block, of_block, lnc=tally.lnc, **vars(own))
        tally.y = run.y
        tally.seconds += run.seconds
        same = tally is not tallies[0] and _bits(run.y) == _bits(tallies[0].y)
        tally.identical &= same or tally is tallies[0]
        if same:
            found = tallies[0].parts[-1]
        else:
            found = _in_channels(compare(run.y, x_block, w_block, of_block, *after), block)
        tally.parts.append(found)


def _of_channels(problem: ConvProblem, count: int) -> ConvProblem:
    return problem.replace(C=count, K=count, groups=count)


def _in_channels(comparison: Comparison, block: list[int]) -> Comparison:
    """The comparison with its worst element named by the channel of the whole problem."""
    n, c, q = comparison.worst
    return dataclasses.replace(comparison, worst=(n, block[c], q))


def _bits(array: Any) -> bytes:
    return bytes(array.tobytes())
