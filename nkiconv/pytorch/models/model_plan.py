"""Modelled time of a model's convolutions on trn2: each distinct one is planned once, and their times are summed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import rules
from ...errors import DtypeError, LayoutError, UnsupportedError, refuse, shown
from ...launches import launch_mode
from ...planner import Plan, Request
from ...planner.entry import answer
from ...planner.explain import SCREEN, problem_words, table
from ...planner.plan import ESTIMATED
from ...planner.request import least_bytes
from ...rules import DIRECTIONS, LAYOUTS, VOLUME_LAYOUTS
from .advice import Advice, advise, folding
from .conversion import check_module
from .flops import Share
from .launch_costs import LaunchCost, launch_cost
from .only_ways import plan_b2b, plan_mlp, plan_split
from .recording import Convolved, Other, Recording, record
from .report import Report
from .statistics_plan import StatisticsRow, rows_of

#: Instructions of a core above which neuronx-cc refuses a graph, as users report it (HunyuanImage 3's decoder, 10.7
#: million against 10); a kernel alone is refused from half of that on.
GRAPH_INSTRUCTIONS_MAX = 10_000_000
#: Rows that `print` shows, and characters of a layer there and of a line of another cell.
PRINTED, LAYER, CELL = 12, 18, 22
#: Called with the current step and the share of it that is done; None while that is unknown.
Advance = Callable[[str, "float | None"], None]


@dataclass(frozen=True)
class Row:
    """Equal convolutions of a model, and their plan. Times are modelled, in us."""

    convolved: Convolved
    layers: tuple[str, ...]  # names of the modules that run them, in order of their first calls
    calls: int
    plan: Plan | None  # None where the planner has none; the kernel takes the algorithm of the least bound then
    reason: str = ""  # why it has none

    @property
    def us(self) -> float:
        """All calls together; 0 without a plan."""
        return 0.0 if self.plan is None else self.calls * self.plan.modelled_us

    @property
    def instructions(self) -> int:
        """Of all calls and cores; 0 without a plan."""
        return 0 if self.plan is None else self.calls * self.plan.instructions

    @property
    def hbm_bytes(self) -> int:
        """That all calls read and write at the least: arguments and results once each."""
        problem, asked = self.convolved.problem, self.convolved.asked
        residual = 0 if asked.residual is None else math.prod(problem.output_shape)
        hidden = self.convolved.hidden  # of two filters in one kernel, in the place of one
        filters = hidden * (problem.C + problem.K) - problem.C * problem.K if hidden else 0
        return self.calls * (least_bytes(problem, asked) + (residual + filters) * problem.itemsize)

    @property
    def cache_bytes(self) -> int:
        """Of the frames that all calls keep for the next chunk of a video, as many as windows overlap; 0 where planes
        after x are seen."""
        problem = self.convolved.problem
        if not problem.is_volume or problem.transposed:
            return 0
        depth = problem.depth
        if depth.hi > 0:
            return 0
        plane = problem.N * problem.C * problem.H * problem.W * problem.itemsize
        return self.calls * max(0, depth.window - depth.stride) * plane


@dataclass(frozen=True)
class Kept:
    """Equal convolutions that stay in torch."""

    other: Other
    calls: int
    reason: str


@dataclass(frozen=True)
class ModelPlan:
    """The convolutions of one run of a model, and kernels of statistics for norms in them. `rows`: those with most
    modelled time first."""

    rows: tuple[Row, ...]
    kept: tuple[Kept, ...]
    uncalled: tuple[str, ...]  # convolutions of the model that this run did not call
    ran_on: str  # "fake tensors", "meta tensors" or "data"
    lnc: int
    report: Report  # of the conversion
    flops: Share  # whose the arithmetic of the convolutions is
    because: str = ""  # the model's error on fake tensors, where it ran on data instead
    most_instructions: int = GRAPH_INSTRUCTIONS_MAX  # of a core, that a compiler takes in one graph
    calls: tuple[tuple[str, int], ...] = ()  # (layer, instructions of all cores) of each call, in order
    advice: tuple[Advice, ...] = ()  # on the rows that lose most against their limits, where it was asked for
    fusing: str = ""  # the saving by folding batch norms, where advice was asked for and there are any
    statistics: tuple[StatisticsRow, ...] = ()  # of norms in fused chains; those with most modelled time first
    mode: str | None = None  # of launches, one of launches.MODES

    def __str__(self) -> str:
        """A table of the longest rows, their sum, and advice for the slowest."""
        headings = "layer", "calls", "shape", "algorithm", "us", "limit"
        rows = [_printed(self, row) for row in self.rows[:PRINTED]]
        if len(self.rows) > PRINTED:
            rest = self.rows[PRINTED:]
            rows.append((f"{len(rest)} more", "", "", "", f"{sum(row.us for row in rest):,.1f}", ""))
        rows.append(("sum", "", "", "", f"{self.modelled_us:,.1f}", f"{self.roofline_fraction:.0%}"))
        rows += [(name, str(calls or ""), "", "", f"{us:,.1f}", "") for name, calls, us in self.totals]
        cores = "2 cores" if self.lnc == 2 else "1 core"
        head = f"convolutions on trn2, {cores}, modelled us of all calls, share of the limit"
        said = [self.fusing, self.fused_note, self.launch_note]
        notes = [*map(str, self.advice), *filter(None, said), str(self.flops)]
        wrapped = [line for note in notes for line in textwrap.wrap(note, SCREEN, subsequent_indent="  ")]
        return "\n".join([head, *table(headings, rows, right=(1, 4, 5), most=CELL), *wrapped])

    @property
    def quick(self) -> bool:
        """Whether any time is of an estimate that nothing was held against."""
        return any(row.plan is not None and row.plan.effort == ESTIMATED for row in self.rows)

    @property
    def modelled_us(self) -> float:
        """The sum over the convolutions that have a plan; nothing else that the model does is in it."""
        return sum(row.us for row in self.rows)

    @property
    def statistics_us(self) -> float:
        """The sum over the kernels of statistics, which comes on top."""
        return sum(row.calls * row.us for row in self.statistics)

    @property
    def fused_note(self) -> str:
        """What fused calls compute besides, in words; "" without any."""
        if not self.report.fuses:
            return ""
        return (
            "fused calls also compute norms, activations, sums or splits; without fusing these are passes of their "
            "own, which no sum counts, so the two sums do not compare"
        )

    @property
    def launches(self) -> int:
        """Of convolutions and of statistics."""
        return sum(row.calls for row in self.rows) + sum(row.calls for row in self.statistics)

    @property
    def launch_cost(self) -> LaunchCost | None:
        """Of these launches; None where no mode was asked for."""
        return None if self.mode is None else launch_cost(self.mode, self.launches, self.graphs)

    @property
    def total_us(self) -> float:
        """Kernels, those of statistics too, and their launches where a mode was asked for, without overlap."""
        return self.modelled_us + self.statistics_us + (0.0 if self.launch_cost is None else self.launch_cost.us)

    @property
    def totals(self) -> tuple[tuple[str, int, float], ...]:
        """(name, launches or 0, us) of the rows below the sum: statistics, launches where a mode was asked for, and all
        together; empty without both."""
        cost, found = self.launch_cost, []
        if self.statistics:
            found.append(("statistics of norms", sum(row.calls for row in self.statistics), self.statistics_us))
        if cost is not None:
            found.append((f"launches, {cost.mode}", cost.launches, cost.us))
        together = "with statistics" if cost is None else "with launches"
        return (*found, (together, 0, self.total_us)) if found else ()

    @property
    def launch_note(self) -> str:
        """How the cost of launches is made up, in words; "" without a mode."""
        cost = self.launch_cost
        if cost is None:
            return ""
        return (
            f"launches, {cost.mode}: {cost.words} = {cost.us:,.1f} us ({cost.low:,.1f} to {cost.high:,.1f}) of "
            "convolutions and their statistics alone; the sum is without overlap of host and device"
        )

    @property
    def hbm_bytes(self) -> int:
        """That all of these move, convolutions the least that they can."""
        return sum(row.hbm_bytes for row in self.rows) + sum(row.calls * row.hbm_bytes for row in self.statistics)

    def toward(self, direction: str) -> ModelPlan:
        """The rows of one direction alone: "forward", "dgrad" or "wgrad"."""
        rows = tuple(row for row in self.rows if row.convolved.direction == direction)
        return dataclasses.replace(self, rows=rows, calls=(), statistics=self.statistics * (direction == DIRECTIONS[0]))

    @property
    def directions(self) -> tuple[str, ...]:
        """Those that there are rows of."""
        return tuple(one for one in DIRECTIONS if any(row.convolved.direction == one for row in self.rows))

    @property
    def instructions(self) -> int:
        """Of the kernels of all calls and cores, as one compiled graph has them: the body of a loop on the device once
        a call."""
        return sum(row.instructions for row in self.rows)

    @property
    def cuts(self) -> tuple[tuple[str, int], ...]:
        """Where to cut the model so that no graph has more instructions than a compiler takes: (layer, which of its
        calls, from 1) that begins a graph of its own, in order. Each graph goes on as long as it can."""
        found: list[tuple[str, int]] = []
        total, seen = 0, Counter[str]()
        for layer, count in self.calls:
            seen[layer] += 1
            total += count
            if total > self.lnc * self.most_instructions and total > count:
                found.append((layer, seen[layer]))
                total = count
        return tuple(found)

    @property
    def cache_bytes(self) -> int:
        """Of the frames that convolutions of volumes without padding after them keep for a video's next chunk."""
        return sum(row.cache_bytes for row in self.rows)

    @property
    def graphs(self) -> int:
        """Graphs that `cuts` makes."""
        return len(self.cuts) + 1

    @property
    def roofline_fraction(self) -> float:
        """The hardware's limits, summed, over the modelled sum; 0 without any."""
        limits = sum(row.calls * row.plan.roofline_us for row in self.rows if row.plan is not None)
        return limits / self.modelled_us if self.modelled_us else 0.0

    def share(self, row: Row) -> float:
        """A row's part of the sum."""
        return row.us / self.modelled_us if self.modelled_us else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""

        def own(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        return {
            **own("lnc", "ran_on", "because"),
            "flops": self.flops.as_dict(),
            **own("modelled_us", "statistics_us", "launches"),
            **({} if self.launch_cost is None else {**self.launch_cost.as_dict(), "total_us": self.total_us}),
            **own("hbm_bytes", "instructions", "cache_bytes", "graphs"),
            "cuts": [list(one) for one in self.cuts],
            "roofline_fraction": self.roofline_fraction,
            "directions": {
                one: {"modelled_us": found.modelled_us, "roofline_fraction": found.roofline_fraction}
                for one, found in ((one, self.toward(one)) for one in self.directions)
            },
            "rows": [self._row_dict(row) for row in self.rows],
            "kept": [{**dataclasses.asdict(one.other), "calls": one.calls, "reason": one.reason} for one in self.kept],
            "uncalled": list(self.uncalled),
            "statistics": [dataclasses.asdict(one) for one in self.statistics],
            "advice": [dataclasses.asdict(one) for one in self.advice],
            "conversion": self.report.as_dict(),
        }

    def _row_dict(self, row: Row) -> dict[str, Any]:
        return {
            "layers": list(row.layers),
            "calls": row.calls,
            **dataclasses.asdict(row.convolved),
            "modelled_us": None if row.plan is None else row.us,
            "instructions": None if row.plan is None else row.instructions,
            "cache_bytes": row.cache_bytes,
            "hbm_bytes": row.hbm_bytes,
            "share": None if row.plan is None else self.share(row),
            "plan": None if row.plan is None else row.plan.as_dict(),
            "reason": row.reason,
        }


def _printed(found: ModelPlan, row: Row) -> tuple[str, ...]:
    """A row of the table that `print` shows."""
    more = f" +{len(row.layers) - 1}" if len(row.layers) > 1 else ""
    more += "" if row.convolved.direction == "forward" else f" {row.convolved.direction}"
    name, room = row.layers[0] or "(the model)", LAYER - len(more)
    name = f"{name if len(name) <= room else f'…{name[1 - room :]}'}{more}"
    shape, _ = problem_words(row.convolved.problem, row.convolved.asked)
    if row.plan is None:
        return name, str(row.calls), shape, "no plan", "-", "-"
    return name, str(row.calls), shape, row.plan.algorithm, f"{row.us:,.1f}", f"{row.plan.roofline_fraction:.0%}"


def _ignore(_what: str, _share: float | None) -> None:
    """An `Advance` that does nothing."""


def plan_model(
    model: torch.nn.Module,
    inputs: Sequence[Any],
    named: Mapping[str, Any] | None = None,
    *,
    lnc: int = 2,
    fold_batchnorm: bool = False,
    fuse: bool = False,
    polyphase: bool = False,
    causal_conv1d: bool = True,
    functional: bool = True,
    training: bool = False,
    layout: str | None = None,
    mode: str | None = None,
    advice: bool = False,
    quick: bool = False,
    wide: bool = False,
    use_cache: bool = True,
    advance: Advance = _ignore,
) -> ModelPlan:
    """Plan every convolution that a model runs, in eval mode without gradients or, with `training`, with the gradients
    too. The model does not change.

    Args:
        model: any module. A copy of it is converted and run once: on fake tensors (shapes only) if the model allows
            that, else on the data of `inputs`. Parameters on meta stay there.
        inputs, named: arguments of its forward.
        lnc: cores, 1 or 2. fold_batchnorm, fuse, polyphase, causal_conv1d, functional: as in `convert`; rows of fused
            chains are their convolutions with x_scale (the kernels that take statistics of x and make a scale of them
            are in `statistics`), and of two linear layers of images one row, C channels to K, by their only algorithm,
            pointwise_mlp. Filters are packed where the model's modules are frozen: convert it before.
        training: also plan the gradients by inputs and filters that a step of training runs (batch norms in eval mode,
            which changes none of these).
        layout: "NCHW" or "NHWC": plan as if x and y were in that order in memory, volumes in NCDHW or NDHWC; rows of
            depthwise_conv1d stay as they are. None: as the operators run, which is NCHW.
        mode: also count what launches cost, as others have measured it: "eager", each by itself; "compiled", in graphs
            of torch.compile; "xla", under torch_xla.
        advice: also say why the slowest layers are slow, and what they would take in other forms.
        quick: instead of a search, time what a Neuron device takes where the cache has no plan: a tenth of the work.
            Nothing is put into the cache.
        wide, use_cache, advance: as in `nkiconv.plan`. Plans are those that a Neuron device then takes from the cache.

    Returns: a `ModelPlan`.

    Raises: DtypeError, UnsupportedError, also where the model itself raises; PlanningError, under AWS's NKI, where the
        process that searches ends or cannot start.
    """
    how = {"wide": wide, "use_cache": use_cache, "quick": quick}
    options = {"fold_batchnorm": fold_batchnorm, "fuse": fuse, "polyphase": polyphase}
    options |= {"causal_conv1d": causal_conv1d, "functional": functional}
    check_module(model)
    _check(inputs, named, lnc, layout, mode, {"training": training, "advice": advice, **how, **options})
    advance("running the model", None)
    found = record(model, inputs, named or {}, training=training, **options)
    rows, layers_of = [], found.convolved
    for i, (convolved, layers) in enumerate(layers_of.items()):
        told = _part(advance, layers[0] or "the model", i, len(layers_of))
        names = tuple(dict.fromkeys(layers))
        convolved = _in_layout(convolved, layout)
        try:
            rows.append(Row(convolved, names, len(layers), _plan_of(convolved, lnc, told, how)))
        except UnsupportedError as error:
            rows.append(Row(convolved, names, len(layers), None, str(error)))
    rows.sort(key=lambda row: -row.us)
    kept, uncalled = kept_of(found, functional), _uncalled(found)
    each = {row.convolved: row.instructions // row.calls for row in rows}
    calls = tuple((layer, each[_in_layout(convolved, layout)]) for layer, convolved in found.order)
    single = [row for row in rows if not row.convolved.has_one_way]
    said = advise(single, lnc, sum(row.us for row in rows), advance, use_cache=use_cache) if advice else ()
    fusing = folding(model, rows, lnc) if advice and not (fold_batchnorm or training) else ""
    return ModelPlan(
        tuple(rows), kept, uncalled, found.ran_on, lnc, found.report, found.share, found.because, calls=calls,
        advice=said, fusing=fusing, statistics=rows_of(found.statistics, lnc), mode=mode,
    )  # fmt: skip


def _check(inputs: Any, named: Any, lnc: Any, layout: Any, mode: Any, flags: dict[str, Any]) -> None:
    """Refuse arguments of `plan_model`; flags: those that are True or False."""
    if not isinstance(inputs, (tuple, list)):
        kind = type(inputs).__name__
        raise DtypeError(f"inputs: must be a list or tuple of forward's arguments, not {kind}; pass [x]")
    if not isinstance(named, Mapping | None) or not all(isinstance(name, str) for name in named or ()):
        raise DtypeError(f"named={shown(named)}: must be a dict of forward's arguments by name; pass {{'x': x}}")
    refuse(UnsupportedError, rules.lnc(lnc), *itertools.starmap(rules.flag, flags.items()))
    if flags["quick"] and flags["wide"]:
        raise UnsupportedError("quick=True, wide=True: one times a single choice, the other many; drop one")
    refuse(UnsupportedError, launch_mode(mode))
    refuse(LayoutError, rules.layout("layout", layout, (None, *LAYOUTS)))
    if flags["training"] and flags["fold_batchnorm"]:
        raise UnsupportedError("training=True, fold_batchnorm=True: what is folded is not trained; drop one")


def _plan_of(convolved: Convolved, lnc: int, advance: Advance, how: dict[str, bool]) -> Plan:
    """The plan of a convolution, or of the block of which it is a part; how: options of `answer`."""
    operation = "depthwise_conv1d" if convolved.splits or convolved.mixer else convolved.operation
    request = Request(problem=convolved.problem, lnc=lnc, asked=convolved.asked, operation=operation)
    if convolved.hidden:
        return plan_mlp(request, convolved.hidden, convolved.x_norm)
    if convolved.mixer:
        return plan_b2b(request, convolved.mixer)
    if convolved.splits:
        return plan_split(request, convolved.splits, convolved.tokens_first, convolved.within)
    return answer(request, advance=advance, **how)


def _in_layout(convolved: Convolved, layout: str | None) -> Convolved:
    """A convolution with x and y in another order in memory, filters plain; rows of depthwise_conv1d have one order."""
    problem = convolved.problem
    if layout is None or convolved.operation == "depthwise_conv1d" or convolved.has_one_way:
        return convolved
    name = VOLUME_LAYOUTS[LAYOUTS.index(layout)] if problem.is_volume else layout
    asked = convolved.asked if name == problem.layout else dataclasses.replace(convolved.asked, packed=False)
    return dataclasses.replace(convolved, problem=problem.replace(layout=name), asked=asked)


def _part(advance: Advance, name: str, i: int, count: int) -> Advance:
    """The progress of one of several plans."""
    return lambda what, share: advance(f"{name}: {what}", (i + (share or 0.0)) / count)


def kept_of(found: Recording, functional: bool) -> tuple[Kept, ...]:
    """What stayed in torch in a run of a model converted with or without `functional`, and why."""
    reasons = {entry.name: entry.reason for entry in found.report.kept}
    function = "is called as a function, with arguments that nkiconv does not take"
    if not functional:
        function = "is called as a function, and functional=False leaves such calls to torch"
    return tuple(Kept(other, calls, reasons.get(other.layer, function)) for other, calls in found.others.items())


def _uncalled(found: Recording) -> tuple[str, ...]:
    """Convolutions that the run left out: neither their module was called nor a function with their weight as it is."""
    # layers of images run where something reads them
    called = found.called | {layer.name for layer in found.report.layers if layer.fused}
    return tuple(one.name for one in found.report.entries if one.name not in called and not one.function)
