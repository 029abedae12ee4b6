"""Puts a profile together from a timed kernel: engines, critical path, traffic, memory, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..arguments import ArraySpec, is_torch
from ..dtypes import canonical
from ..timeline import ENGINES, times_run
from ..timing import DmaPrice, Rates, TensorPrice
from .path import DMA_FLOW, DMA_ISSUE, DMA_QUEUE, DMA_START, HOP, ISSUE, LATENCY, Link, critical_path
from .report import Phases, Profile, Share
from .rests import Rests
from .roofline import bytes_per_ns, peak_flops_per_ns, roofline
from .settings import Settings
from .timed import Timed
from .usage import EngineUse, engine_use


def assemble(
    timed: Timed, phases: Phases, lookahead_us: float, launch_us: float, args: tuple[Any, ...], settings: Settings
) -> Profile:
    """The profile of a timed kernel.

    Args: phases, lookahead_us: totals to report, launch_us of which are the launch. args: the kernel's arguments, for
        their bytes and dtype.
    """
    known = settings.problem
    tasks, prices, line, rates = timed.tasks, timed.prices, timed.line, timed.rates
    cores = len(timed.execution.programs)
    links = critical_path(tasks, prices, line)
    rests = Rests(timed)
    shares = [(link, rests.share(link)) for link in links]
    resting = {name for link, share in shares if share > 0.0 for name in rests.names(link)}
    times = _times(timed)
    counted = list(zip(prices, times, strict=True))
    transfers = [(price, count) for price, count in counted if type(price) is DmaPrice]
    hbm_bytes = sum(price.hbm_bytes * count for price, count in transfers)
    matmul_flops = sum(price.flops * count for price, count in counted if type(price) is TensorPrice)
    dtype = known.dtype or _first_dtype(args)
    min_bytes = known.min_bytes if known.min_bytes is not None else argument_bytes(args, timed.execution.outputs)
    limit = roofline(min_bytes, known.flops or 0, dtype, cores, rates)
    span_ns, total_ns = line.total_ns, timed.us * 1e3
    engines = engine_use(tasks, prices, line)
    return Profile(
        kernel=timed.kernel,
        lnc=cores,
        phases=phases,
        lookahead_us=lookahead_us,
        standalone=settings.standalone,
        launch_us=launch_us,
        before_us=max(0.0, line.begin_ns - min(line.start)) / 1e3,
        after_us=max(0.0, max(line.visible) - line.end_ns) / 1e3,
        instructions=sum(times),
        engines=tuple(engines),
        bound_by=bound_by(timed, links),
        path_kinds=_shares(links, lambda link: _what(link, timed), span_ns),
        path_lines=_shares(links, lambda link: _where(link, timed), span_ns),
        inferred_share=sum(link.duration_ns * share for link, share in shares) / span_ns,
        inferred_constants=tuple(sorted(resting)),
        dma_transfers=sum(count for _, count in transfers),
        dma_bytes=sum(price.payload_bytes * count for price, count in transfers),
        hbm_bytes=hbm_bytes,
        hbm_fraction=hbm_bytes / (total_ns * bytes_per_ns(cores, rates)),
        hbm_bound_share=line.hbm_bound_ns / span_ns,
        dma_efficiency=_efficiency(transfers, rates),
        dma_elements=_elements(transfers),
        matmul_flops=matmul_flops,
        mfu=(matmul_flops if known.flops is None else known.flops)
        / (total_ns * peak_flops_per_ns(dtype, cores, rates)),
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
        extrapolated_us=timed.us - span_ns / 1e3,
    )


def argument_bytes(args: Iterable[Any], outputs: Any) -> int:
    """Bytes of all arrays in arguments and results; an array given twice counts once."""
    distinct = {id(value): value for value in (*args, outputs) if not isinstance(value, ArraySpec)}
    specs = [value for value in (*args, outputs) if isinstance(value, ArraySpec)]
    return sum(_array_bytes(value) for value in (*distinct.values(), *specs))


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


def bound_by(timed: Timed, links: Sequence[Link]) -> str:
    """The resource that most of the critical path is spent on. links: of the path."""
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


def _efficiency(transfers: Sequence[tuple[DmaPrice, int]], rates: Rates) -> float:
    busy = sum(sum(price.work_ns) for price, _ in transfers)
    ideal = sum(price.payload_bytes for price, _ in transfers) / rates("dma.engine_bytes_per_ns")
    return ideal / busy if busy else 1.0


def _times(timed: Timed) -> list[int]:
    """How often each task runs."""
    if not any(program.repeats for program in timed.execution.programs):
        return [1] * len(timed.tasks)
    cores = [times_run(program) for program in timed.execution.programs]
    engines = zip(timed.tasks.engine, timed.tasks.source, strict=True)
    return [int(cores[engine // len(ENGINES)][source.index]) for engine, source in engines]


def _elements(transfers: Sequence[tuple[DmaPrice, int]]) -> tuple[tuple[int, int], ...]:
    counts: Counter[int] = Counter()
    for price, runs in transfers:
        for size, count in price.elements:
            counts[round(size)] += count * runs
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
    for core in range(timed.tasks.num_cores):
        full = [max(0.0, min(stop, end) - max(time, begin)) for time, stop, fast in timed.line.rates(core) if fast]
        shares.append(sum(full) / (end - begin))
    return max(shares)
