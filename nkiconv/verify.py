"""A depthwise conv1d, run and held against the float64 reference: what `nkiconv run` and `nkiconv demo` report.

Channels never meet, so the numerics run block by block: memory stays small and progress can be told. Counts and peaks
are those of the whole problem, from one trace of it without data (AWS's NKI counts nothing, and gets one block).
Channels may be sampled; the report says how many were checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ._nki import CHOICE
from .bounds import error_bound
from .cases import Case
from .errors import NkiconvError, UnsupportedError, raise_all
from .kernels.depthwise_conv1d import ALGORITHMS
from .ops import KernelRun, choice_refusals, run_depthwise_conv1d
from .planner.candidates import kernel_choice, tiles_of, unit_of
from .planner.request import Asked, Config, extras_of, geometry_of
from .problem import DTYPES, ConvProblem, dtype_name
from .reference import AnyArray, Float64Array, abs_sum_ref, conv_ref, num_terms
from .simulator import ArraySpec

#: Instructions above which only a sample of the channels is checked unless the caller says otherwise.
SAMPLE_ABOVE_INSTRUCTIONS = 200_000
#: Channels of such a sample, the first and the last among them.
SAMPLE_CHANNELS = 16
#: About a second of simulation: the size of a block.
BLOCK_INSTRUCTIONS = 10_000
#: Elements of x and y of a block: 64 MB in float64.
BLOCK_ELEMS = 1 << 23
#: Elements of y that the reference makes at once: small enough for the processor's cache.
SLAB_ELEMS = 1 << 18

#: Called with what is being done and the share of it that is done, 0 to 1; None while it cannot be told.
Advance = Callable[[str, "float | None"], None]
Channels = int | Literal["auto", "all"]


@dataclass(frozen=True)
class Comparison:
    """How far outputs are from the truth, over all elements compared."""

    max_error: float  # largest |y - truth|; infinite where one is finite and the other is not
    bound: float  # allowed at that element
    worst_ratio: float  # largest error / bound; the outputs are right if it is at most 1
    worst: tuple[int, int, int]  # n, c, q of that element
    num_elems: int
    num_wrong: int

    def merge(self, other: Comparison) -> Comparison:
        """The comparison over the elements of both."""
        larger = max(self, other, key=lambda one: one.max_error)
        worse = max(self, other, key=lambda one: one.worst_ratio)
        return Comparison(
            larger.max_error,
            larger.bound,
            worse.worst_ratio,
            worse.worst,
            self.num_elems + other.num_elems,
            self.num_wrong + other.num_wrong,
        )


@dataclass(frozen=True)
class Report:
    """One convolution on one LNC degree: what it took and whether it is right."""

    name: str
    problem: ConvProblem
    lnc: int
    strict_nonfinite: bool
    algorithm: str
    config: Config  # settings that were asked for
    provider: str
    tiles: dict[str, int] | None  # None where AWS's NKI ran
    trace: KernelRun | None  # counts of the whole problem; None where AWS's NKI ran
    seconds: float  # of all blocks, without reference and trace
    num_blocks: int
    channels_checked: int
    comparison: Comparison
    same_as_lnc: int | None = None  # the degree that these outputs were compared with, bit for bit
    identical: bool | None = None

    @property
    def ok(self) -> bool:
        """Whether every output is within its bound and, if compared, identical on both LNC degrees."""
        return self.comparison.num_wrong == 0 and self.identical is not False

    @property
    def verdict(self) -> str:
        """One of "pass", "fail", "lnc differs"."""
        if self.comparison.num_wrong:
            return "fail"
        return "lnc differs" if self.identical is False else "pass"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; byte counts and instructions are None where AWS's NKI ran."""
        trace = self.trace
        return {
            "name": self.name,
            "problem": dataclasses.asdict(self.problem),
            "Q": self.problem.Q,
            "lnc": self.lnc,
            "strict_nonfinite": self.strict_nonfinite,
            "algorithm": self.algorithm,
            "config": self.config,
            "provider": self.provider,
            "tiles": self.tiles,
            "instructions": trace.instructions if trace else None,
            "dma_bytes": trace.dma_bytes if trace else None,
            "sbuf_peak_bytes_per_partition": trace.sbuf_peak_bytes if trace else None,
            "psum_peak_bytes_per_partition": trace.psum_peak_bytes if trace else None,
            "run_seconds": self.seconds,
            "num_blocks": self.num_blocks,
            "channels_checked": self.channels_checked,
            **{field: getattr(self.comparison, field) for field in ("max_error", "bound", "worst_ratio", "worst")},
            "num_elems": self.comparison.num_elems,
            "num_wrong": self.comparison.num_wrong,
            "same_as_lnc": self.same_as_lnc,
            "identical": self.identical,
            "verdict": self.verdict,
        }


def ignore(_what: str, _share: float | None) -> None:
    """An `Advance` that tells nobody."""


def compare(y: AnyArray, x: AnyArray, w: AnyArray, problem: ConvProblem) -> Comparison:
    """Hold y [N, C, Q] against the reference of x [N, C, W] and w [C, S]; slab by slab, so that temporaries stay small.

    NaN equals NaN, an infinity itself, and what rounds to infinity in y's dtype may be infinite.
    """
    slab = max(1, SLAB_ELEMS // (problem.N * problem.Q))
    parts = []
    for c0 in range(0, problem.C, slab):
        part = slice(c0, min(problem.C, c0 + slab))
        parts.append(_compare_slab(y[:, part], x[:, part], w[part], _of_channels(problem, part.stop - c0), c0))
    return _merged(parts)


def _compare_slab(y: AnyArray, x: AnyArray, w: AnyArray, problem: ConvProblem, c0: int) -> Comparison:
    x4, w4 = x[:, :, np.newaxis], w[:, np.newaxis, np.newaxis]
    truth, abs_sum = conv_ref(x4, w4, problem)[:, :, 0], abs_sum_ref(x4, w4, problem)[:, :, 0]
    with np.errstate(invalid="ignore", over="ignore"):
        limit = error_bound(num_terms(problem), abs_sum, truth, dtype_name(y.dtype))
        got = y.astype(np.float64)
        rounded = truth.astype(y.dtype).astype(np.float64)
        error = np.where(_same(got, truth) | (np.isinf(rounded) & _same(got, rounded)), 0.0, np.abs(got - truth))
        error[np.isnan(error)] = np.inf
        ratio = np.where(error == 0, 0.0, np.where(np.isfinite(error), error / limit, np.inf))
    largest, worst = np.argmax(error), np.unravel_index(np.argmax(ratio), ratio.shape)
    n, c, q = (int(i) for i in worst)
    return Comparison(
        float(error.flat[largest]),
        float(limit.flat[largest]),
        float(ratio[worst]),
        (n, c0 + c, q),
        error.size,
        int(np.count_nonzero(~(ratio <= 1))),
    )


def _same(a: Float64Array, b: Float64Array) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _merged(parts: Sequence[Comparison]) -> Comparison:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole


def case_refusals(case: Case, algorithm: str | None = None, **how: Any) -> list[NkiconvError]:
    """Why no kernel runs this case, or not by this algorithm, one of `ALGORITHMS`; empty if it does.

    how: degrees, strict_nonfinite and config of `algorithm_refusals`.
    """
    if case.suite == "depthwise_conv1d":
        found = algorithm_refusals(case.problem, algorithm, **how)
        return [UnsupportedError(f"case={case.name!r}: {error}") for error in found]
    return [
        UnsupportedError(
            f"case={case.name!r}: it needs the kernel {case.suite}_implicit_gemm, which nkiconv does not have yet; "
            "choose a case of suite depthwise_conv1d"
        )
    ]


def name_violations(algorithm: str | None) -> list[NkiconvError]:
    """What is wrong with an algorithm's name; empty for None, the kernel's choice."""
    if algorithm is None or algorithm in ALGORITHMS:
        return []
    accepted = ", ".join(ALGORITHMS)
    return [UnsupportedError(f"algorithm={algorithm!r}: accepted are {accepted}; use one of them")]


def algorithm_refusals(
    problem: ConvProblem,
    algorithm: str | None,
    *,
    degrees: Sequence[int] = (2,),
    strict_nonfinite: bool = False,
    config: Config = None,
) -> list[NkiconvError]:
    """Why an algorithm does not run a problem on one of these LNC degrees; empty if it does, or for None."""
    for lnc in degrees:
        found = list(choice_refusals(problem, Asked(strict_nonfinite=strict_nonfinite), algorithm, config, lnc))
        if found:
            return found
    return []


def case_arrays(case: Case, seed: int) -> tuple[AnyArray, AnyArray]:
    """Unit normals for a depthwise conv1d case: x [N, C, W] and w [C, S] in its dtype; the seed decides them.

    Raises UnsupportedError for cases of other suites.
    """
    problem = case.problem
    raise_all("there is no kernel", case_refusals(case))
    rng = np.random.default_rng(seed)
    dtype = DTYPES[problem.dtype]
    shapes = (problem.N, problem.C, problem.W), (problem.C, problem.S)
    x, w = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes)
    return x, w


def describe_tiles(
    problem: ConvProblem, strict_nonfinite: bool, algorithm: str | None = None, config: Config = None
) -> dict[str, int]:
    """Tile sizes and counts of an algorithm, or of the kernel's choice, for a depthwise conv1d problem, by name."""
    geometry, extras = geometry_of(problem), extras_of(problem, Asked(strict_nonfinite=strict_nonfinite))
    if algorithm is None:
        algorithm, config = kernel_choice(geometry, extras)
    return tiles_of(geometry, extras, algorithm, config)


def verify_depthwise_conv1d(
    name: str,
    x: AnyArray,
    w: AnyArray,
    problem: ConvProblem,
    *,
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
        x: [N, C, W], w: [C, S]; as `problem`, checked by `ops.depthwise_problem` or by `case_arrays`.
        degrees: LNC degrees, 1 or 2; outputs of the second are compared with the first's, bit for bit.
        algorithm, config: as in a `Plan`; None: what the kernel chooses for the whole problem.
        channels: how many channels to run and check, spread evenly; "auto": all, or `SAMPLE_CHANNELS` of them where
            the trace has more than `SAMPLE_ABOVE_INSTRUCTIONS`.
        keep: return y of the first degree, [N, C, Q]; all channels are run then, in one launch, so that y has the bits
            of `ops.depthwise_conv1d` (the order of a sum may depend on the tiles, and those on C).

    Returns: a report for each degree, and y or None.
    """
    geometry, extras = geometry_of(problem), extras_of(problem, Asked(strict_nonfinite=strict_nonfinite))
    asked = config
    if algorithm is None:
        algorithm, config = kernel_choice(geometry, extras, min(degrees))
    how = _How(strict_nonfinite, algorithm, config)
    tallies = [_Tally(lnc, _trace(name, problem, x, w, lnc, how, advance)) for lnc in degrees]
    trace = tallies[0].trace
    tiles = tiles_of(geometry, extras, algorithm, config) if trace else None
    chosen = _chosen_channels(problem.C, "all" if keep else channels, trace)
    blocks = [chosen]
    if trace and not keep:
        unit = unit_of(geometry, extras, algorithm, config)
        blocks = list(_blocks(chosen, problem, trace.num_instructions, unit))
    for i, block in enumerate(blocks):
        advance(f"checking {name}", i / len(blocks))
        _run_block(x, w, problem, block, tallies, how)
    advance(f"checking {name}", 1.0)
    reports = [
        Report(
            name=name,
            problem=problem,
            lnc=tally.lnc,
            strict_nonfinite=strict_nonfinite,
            algorithm=algorithm,
            config=asked,
            provider=CHOICE.provider,
            tiles=tiles,
            trace=tally.trace,
            seconds=tally.seconds,
            num_blocks=len(blocks),
            channels_checked=len(chosen),
            comparison=_merged(tally.parts),
            same_as_lnc=None if tally is tallies[0] else tallies[0].lnc,
            identical=None if tally is tallies[0] else tally.identical,
        )
        for tally in tallies
    ]
    return reports, tallies[0].y if keep else None


@dataclass(frozen=True)
class _How:
    """How the kernel is to run: blocks of channels as the whole would."""

    strict_nonfinite: bool
    algorithm: str
    config: Config


@dataclass
class _Tally:
    """What one LNC degree has done so far."""

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
    x_spec, w_spec = (ArraySpec(array.shape, str(array.dtype)) for array in (x, w))
    return run_depthwise_conv1d(x_spec, w_spec, problem, lnc=lnc, trace_only=True, **vars(how))


def _chosen_channels(C: int, channels: Channels, trace: KernelRun | None) -> list[int]:
    """The channels to run: all, or that many from the first to the last."""
    if channels == "auto":
        sample = trace is not None and trace.num_instructions > SAMPLE_ABOVE_INSTRUCTIONS
        channels = SAMPLE_CHANNELS if sample else "all"
    if channels == "all" or channels >= C:
        return list(range(C))
    return sorted({round(c) for c in np.linspace(0, C - 1, channels)})


def _blocks(chosen: list[int], problem: ConvProblem, num_instructions: int, unit: int) -> Iterator[list[int]]:
    """The chosen channels in blocks: whole channel tiles on each of two cores, the rest joined to the last block."""
    by_time = BLOCK_INSTRUCTIONS * problem.C // num_instructions
    by_memory = BLOCK_ELEMS // (problem.N * (problem.W + problem.Q))
    step = 2 * unit
    size = max(1, min(by_time, by_memory) // step) * step
    ends = [*range(size, len(chosen) - size + 1, size), len(chosen)]
    yield from (chosen[first:end] for first, end in zip([0, *ends], ends, strict=False))


def _run_block(
    x: AnyArray, w: AnyArray, problem: ConvProblem, block: list[int], tallies: list[_Tally], how: _How
) -> None:
    """Run these channels on every degree, compare, and add to the tallies."""
    part: Any = block if block[-1] - block[0] + 1 > len(block) else slice(block[0], block[-1] + 1)
    x_block, w_block = np.array(x[:, part], order="C"), np.array(w[part], order="C")
    of_block = _of_channels(problem, len(block))
    for tally in tallies:
        run = run_depthwise_conv1d(x_block, w_block, of_block, lnc=tally.lnc, **vars(how))
        tally.y = run.y
        tally.seconds += run.seconds
        same = tally is not tallies[0] and _bits(run.y) == _bits(tallies[0].y)
        tally.identical &= same or tally is tallies[0]
        found = tallies[0].parts[-1] if same else _in_channels(compare(run.y, x_block, w_block, of_block), block)
        tally.parts.append(found)


def _of_channels(problem: ConvProblem, count: int) -> ConvProblem:
    return problem.replace(C=count, K=count, groups=count)


def _in_channels(comparison: Comparison, block: list[int]) -> Comparison:
    """The comparison with its worst element named by the channel of the whole problem."""
    n, c, q = comparison.worst
    return dataclasses.replace(comparison, worst=(n, block[c], q))


def _bits(array: Any) -> bytes:
    return bytes(array.tobytes())
