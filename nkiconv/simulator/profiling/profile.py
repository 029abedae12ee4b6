"""`profile(kernel)(*arrays)`: trace a kernel, put it on timelines, and say where its time would go. All modelled.

The kernel is traced once. Its tasks are timed in program order at several phases of the throttle's grid, and in
look-ahead order; details (engines, critical path, pictures) are of program order at phase 0.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import hardware as hw
from ..arguments import ArraySpec, is_torch
from ..dtypes import canonical
from ..launch import execute
from ..timeline import Options, build, run
from ..timing import AnyPrice, DmaPrice, PriceList, Rates, TensorPrice, inferred
from .path import DMA_FLOW, DMA_ISSUE, DMA_QUEUE, DMA_START, HOP, ISSUE, LATENCY, Link, critical_path
from .report import Phases, Profile, Sensitivity, Share
from .rests import Rests
from .roofline import bytes_per_ns, peak_flops_per_ns, roofline
from .timed import Timed
from .usage import EngineUse, engine_use

#: Phases of the throttle's grid that are tried, and the spans (in grid windows) above each of which half as many do: a
#: phase moves the throttle's decisions by less than a window.
PHASES = 8
FEWER_PHASES_ABOVE = (100, 1000, 3000)
#: Told what is being done and the share of it that is done, 0 to 1.
Advance = Callable[[str, "float | None"], None]


@dataclass(frozen=True)
class Problem:
    """What the kernel is for, where the caller knows better than the kernel's arguments say.

    flops: useful ones (a kernel may multiply zeros). min_bytes: least traffic with HBM; arguments and results, where
    None. dtype: whose peak the flops are held against; the first argument's, where None.
    """

    flops: int | None = None
    min_bytes: int | None = None
    dtype: str | None = None


def ignore(_what: str, _share: float | None) -> None:
    """An `Advance` that tells nobody."""


def profile(
    kernel: Any,
    *,
    trace_only: bool = True,
    sensitivity: bool = False,
    standalone: bool = False,
    problem: Problem | None = None,
    constants: dict[str, float] | None = None,
    advance: Advance = ignore,
) -> Callable[..., Profile]:
    """A callable that profiles `kernel` (jitted, `kernel[lnc]`, or a plain function) on its arguments.

    Args:
        trace_only: make no data; arguments may be `ArraySpec`s. False also runs the numerics, with all their checks.
        sensitivity: time again with each inferred constant that counts at both ends of its range.
        standalone: add the preamble and postamble that a NEFF of its own pays; without, the kernel is inside a graph.
        problem: useful flops and bytes for roofline and MFU. constants: values by name, instead of trn2.toml's.
    Returns: a function of the kernel's arguments that returns a `Profile`.
    Raises: NkiError for a broken rule; UnknownConstantError for a constant that is not in trn2.toml.
    """

    @functools.wraps(_plain(kernel))
    def profiled(*args: Any, **kwargs: Any) -> Profile:
        return profile_timed(
            kernel, args, kwargs, trace_only=trace_only, sensitivity=sensitivity, standalone=standalone,
            problem=problem, constants=constants, advance=advance,
        )[0]  # fmt: skip

    return profiled


def profile_timed(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    trace_only: bool = True,
    sensitivity: bool = False,
    standalone: bool = False,
    problem: Problem | None = None,
    constants: dict[str, float] | None = None,
    advance: Advance = ignore,
) -> tuple[Profile, Timed]:
    """As `profile`, with what pictures are made from."""
    with _without_collector():
        return _profile_timed(
            kernel, args, kwargs or {}, trace_only, sensitivity, standalone, problem, constants or {}, advance
        )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of records are made here, none of them garbage: looking for some would take a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _profile_timed(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    trace_only: bool,
    sensitivity: bool,
    standalone: bool,
    problem: Problem | None,
    constants: dict[str, float],
    advance: Advance,
) -> tuple[Profile, Timed]:
    rates = Rates(constants)
    advance("tracing", None)
    execution = execute(kernel, args, kwargs, trace_only=trace_only)
    advance("finding dependencies", None)
    tasks, prices = build(execution.programs, PriceList(rates))
    name = getattr(_plain(kernel), "__name__", "kernel")
    advance("timing", 0.0)
    line = run(tasks, prices, rates)
    timed = Timed(name, execution, tasks, prices, rates, line)
    phases = _phases(timed, advance)
    lookahead = run(tasks, prices, rates, Options(order="lookahead"))
    extra = _standalone_us(rates) if standalone else 0.0
    found = _report(timed, _shifted(phases, extra), lookahead.total_ns / 1e3 + extra, standalone, args, problem)
    if sensitivity:
        found = _with_sensitivity(found, timed, extra, constants, advance)
    return found, timed


def _plain(kernel: Any) -> Any:
    return getattr(kernel, "function", kernel)


def _standalone_us(rates: Rates) -> float:
    return (rates("launch.preamble_ns") + rates("launch.postamble_ns")) / 1e3


def phase_list(timed: Timed) -> list[float]:
    """Phases worth trying: one without Tensor work, fewer for long kernels."""
    if not any(type(price) is TensorPrice for price in timed.prices):
        return [0.0]
    windows = timed.line.total_ns / timed.rates("throttle.window_ns")
    count = PHASES >> sum(windows > limit for limit in FEWER_PHASES_ABOVE)
    return [i / count for i in range(count)]


def _phases(timed: Timed, advance: Advance) -> Phases:
    totals = {0.0: timed.line.total_ns / 1e3}
    chosen = phase_list(timed)
    for i, phase in enumerate(chosen[1:], 1):
        advance("timing", i / len(chosen))
        totals[phase] = run(timed.tasks, timed.prices, timed.rates, Options(phase=phase)).total_ns / 1e3
    return Phases(totals)


def _shifted(phases: Phases, extra_us: float) -> Phases:
    return Phases({phase: us + extra_us for phase, us in phases.at_us.items()})


def _report(
    timed: Timed, phases: Phases, lookahead_us: float, standalone: bool, args: tuple[Any, ...], problem: Problem | None
) -> Profile:
    known = problem or Problem()
    tasks, prices, line, rates = timed.tasks, timed.prices, timed.line, timed.rates
    cores = len(timed.execution.programs)
    links = critical_path(tasks, prices, line)
    rests = Rests(timed)
    shares = [(link, rests.share(link)) for link in links]
    resting = {name for link, share in shares if share > 0.0 for name in link.constants}
    transfers = [price for price in prices if type(price) is DmaPrice]
    hbm_bytes = sum(price.hbm_bytes for price in transfers)
    matmul_flops = sum(price.flops for price in prices if type(price) is TensorPrice)
    dtype = known.dtype or _first_dtype(args)
    min_bytes = known.min_bytes if known.min_bytes is not None else argument_bytes(args, timed.execution.outputs)
    limit = roofline(min_bytes, known.flops or 0, dtype, cores, rates)
    span_ns = line.total_ns
    engines = engine_use(tasks, prices, line)
    return Profile(
        kernel=timed.kernel,
        lnc=cores,
        phases=phases,
        lookahead_us=lookahead_us,
        standalone=standalone,
        instructions=len(tasks),
        engines=tuple(engines),
        bound_by=_bound_by(links, timed),
        path_kinds=_shares(links, lambda link: _what(link, timed), span_ns),
        path_lines=_shares(links, lambda link: _where(link, timed), span_ns),
        inferred_share=sum(link.duration_ns * share for link, share in shares) / span_ns,
        inferred_constants=tuple(constant.name for constant in inferred(resting)),
        dma_transfers=len(transfers),
        dma_bytes=sum(price.payload_bytes for price in transfers),
        hbm_bytes=hbm_bytes,
        hbm_fraction=hbm_bytes / (span_ns * bytes_per_ns(cores, rates)),
        hbm_bound_share=line.hbm_bound_ns / span_ns,
        dma_efficiency=_efficiency(transfers, rates),
        dma_elements=_elements(transfers),
        matmul_flops=matmul_flops,
        mfu=(matmul_flops if known.flops is None else known.flops) / (span_ns * peak_flops_per_ns(dtype, cores, rates)),
        flops=known.flops,
        min_bytes=min_bytes,
        roofline_us=limit.us,
        roofline_limit=limit.limit,
        dtype=dtype,
        sbuf_peak_bytes=max(space.peak_bytes for space in line.sbuf),
        psum_peak_banks=timed.execution.psum_peak_banks,
        space_stall_us=_space_stall(engines),
        table_loads=len(line.table_loads),
        full_rate_share=_full_rate_share(timed),
    )


def argument_bytes(args: Iterable[Any], outputs: Any) -> int:
    """Bytes of all arrays in arguments and results, each once."""
    return sum(_array_bytes(value) for value in (*args, outputs))


def _array_bytes(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(_array_bytes(item) for item in value)
    if isinstance(value, dict):
        return sum(_array_bytes(item) for item in value.values())
    if isinstance(value, ArraySpec):
        return value.num_bytes
    if is_torch(value):
        return int(value.numel() * value.element_size())
    return int(value.nbytes) if hasattr(value, "nbytes") else 0


def _first_dtype(args: tuple[Any, ...]) -> str:
    for value in args:
        if hasattr(value, "dtype"):
            name = canonical(value.dtype)
            if name is not None:
                return name
    return "bfloat16"


def _what(link: Link, timed: Timed) -> str:
    """A link in words: the instruction or the stage of a DMA."""
    source = timed.tasks.source[link.task]
    if link.kind in (DMA_FLOW, DMA_START, DMA_ISSUE, DMA_QUEUE):
        way = "load" if source.writes and source.writes[0].info.on_chip else "store"
        return f"{link.kind} ({way})"
    if link.kind in (ISSUE, LATENCY):
        return f"{source.engine} {source.op} {link.kind}"
    if link.kind == HOP:
        return f"hop to {source.engine}"
    return link.kind


def _where(link: Link, timed: Timed) -> str:
    source = timed.tasks.source[link.task]
    return f"{source.file}:{source.line}"


def _shares(links: Sequence[Link], key: Callable[[Link], str], span_ns: float) -> tuple[Share, ...]:
    totals: Counter[str] = Counter()
    for link in links:
        totals[key(link)] += link.duration_ns  # type: ignore[assignment]
    return tuple(Share(what, ns / 1e3, ns / span_ns) for what, ns in totals.most_common() if ns > 0.0)


def _bound_by(links: Sequence[Link], timed: Timed) -> str:
    """The resource that most of the critical path is spent on."""
    totals: dict[str, float] = {}
    for link in links:
        name = _resource(link, timed)
        totals[name] = totals.get(name, 0.0) + link.duration_ns
    return max(totals, key=lambda name: totals[name]) if totals else "nothing"


def _resource(link: Link, timed: Timed) -> str:
    if link.kind == DMA_FLOW:
        line = timed.line
        flowing = sum(line.dma_busy_ns) / len(line.dma_busy_ns)
        return "hbm" if line.hbm_bound_ns > flowing / 2 else "dma"
    if link.kind == DMA_ISSUE:
        return "dma issue"
    if link.kind in (DMA_START, DMA_QUEUE):
        return "dma latency"
    if link.kind in (ISSUE, LATENCY):
        return str(timed.tasks.source[link.task].engine)
    return "latency" if link.kind == HOP else link.kind


def _efficiency(transfers: Sequence[DmaPrice], rates: Rates) -> float:
    busy = sum(sum(price.work_ns) for price in transfers)
    ideal = sum(price.payload_bytes for price in transfers) / rates("dma.engine_bytes_per_ns")
    return ideal / busy if busy else 1.0


def _elements(transfers: Sequence[DmaPrice]) -> tuple[tuple[int, int], ...]:
    counts: Counter[int] = Counter()
    for price in transfers:
        for size, count in price.elements:
            counts[round(size)] += count
    return tuple(sorted(counts.items()))


def _space_stall(engines: Sequence[EngineUse]) -> float:
    stalls = [us for use in engines for what, us in use.stalls_us.items() if what.endswith("space")]
    return max(stalls, default=0.0)


def _full_rate_share(timed: Timed) -> float | None:
    """Share of the span at full rate, of the core that has most of it."""
    if not any(type(price) is TensorPrice for price in timed.prices):
        return None
    begin, end = timed.line.begin_ns, timed.line.end_ns
    shares = []
    for changes in timed.line.throttle_changes:
        ends = [time for time, _ in changes[1:]] + [end]
        full = sum(
            max(0.0, min(stop, end) - max(time, begin))
            for (time, fast), stop in zip(changes, ends, strict=True)
            if fast
        )
        shares.append(full / (end - begin))
    return max(shares)


def _with_sensitivity(
    found: Profile, timed: Timed, extra_us: float, constants: dict[str, float], advance: Advance
) -> Profile:
    """The profile with one entry for each inferred constant that any price or wait of the kernel may rest on."""
    chosen = [
        constant
        for constant in hw.CONSTANTS.values()
        if constant.standing == "inferred" and constant.name not in constants and _matters(constant.name, timed)
    ]
    entries = []
    for i, constant in enumerate(chosen):
        advance(f"sensitivity: {constant.name}", i / len(chosen))
        ends = [
            found.phases.phase0_us
            if end == constant.value
            else _total_us(timed, {**constants, constant.name: end}) + extra_us
            for end in (constant.low, constant.high)
        ]
        entries.append(Sensitivity(constant.name, constant.low, constant.high, *ends))
    entries.sort(key=lambda entry: -entry.spread_us(found.phases.phase0_us))
    return dataclasses.replace(found, sensitivity=tuple(entries))


def _matters(name: str, timed: Timed) -> bool:
    """Whether a constant takes part in this kernel's timeline: as a price, or in how tasks are put in time."""
    priced = {read for price in timed.prices for read in _read_by(price)}
    return name in priced or name in _TIMELINE_CONSTANTS


def _read_by(price: AnyPrice) -> frozenset[str]:
    return price.constants | price.issue_constants if type(price) is DmaPrice else price.constants


#: Inferred constants that the timeline itself reads.
_TIMELINE_CONSTANTS = frozenset({"dma.hwdge_queue_depth", "sync.hop_to_gpsimd_ns"})


def _total_us(timed: Timed, constants: dict[str, float]) -> float:
    rates = Rates(constants)
    prices = PriceList(rates)
    again = [prices(source) for source in timed.tasks.source]
    return run(timed.tasks, again, rates).total_ns / 1e3
