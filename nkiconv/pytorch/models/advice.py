"""Why a model's layers are slow, and the modelled times of equivalent forms; no rules of thumb."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import NkiconvError
from ...planner import Asked, Plan, Request
from ...planner.entry import answer
from ...planner.plan import ESTIMATED
from ...problem import ConvProblem
from ...rules import LAYOUTS, VOLUME_LAYOUTS
from ...simulator.hardware import PARTITIONS
from ...simulator.profiling.roofline import bytes_per_ns
from ...simulator.timing import Rates
from .conversion import convert, copied

#: Layers that are looked at, those that lose most against their limits first; from which share of the sum lost on, and
#: below which share of the limit.
LAYERS, LOST, SLOW = 3, 0.01, 0.75
#: A change is told as one from this share of the time on.
BETTER = 0.97
#: Modelled us up to which start-up costs weigh: first DMAs, and the array's first windows at half rate.
SHORT_US = 20.0


@dataclass(frozen=True)
class Change:
    """Another form of a layer, and its modelled time in us."""

    what: str
    us: float


@dataclass(frozen=True)
class Advice:
    """Why a layer is slow, and the modelled times of its other forms, the fastest first."""

    layer: str
    direction: str
    us: float  # of one call
    roofline_fraction: float
    why: tuple[str, ...]
    changes: tuple[Change, ...]

    @property
    def better(self) -> tuple[Change, ...]:
        """The changes that pay."""
        return tuple(one for one in self.changes if one.us <= BETTER * self.us)

    def __str__(self) -> str:
        """Two lines: the reason, and the change that helps."""
        gradient = "" if self.direction == "forward" else f", {self.direction}"
        head = f"{self.layer or 'the model'}{gradient}: {self.us:,.1f} us, {self.roofline_fraction:.0%} of the limit"
        told = self.better or self.changes
        forms = ", ".join(f"{one.what} {one.us:,.1f} us ({one.us / self.us:.2f} x)" for one in told)
        change = f"change: {forms}" if self.better else f"no other form pays: {forms}" if forms else "no other form"
        return f"{head}; {'; '.join(self.why)}. {change[0].upper()}{change[1:]}"


def advise(
    rows: Sequence[Any], lnc: int, total_us: float, advance: Callable[[str, float | None], None], *, use_cache: bool
) -> tuple[Advice, ...]:
    """Advice on the slowest rows of a `ModelPlan`."""
    lost = {i: row.us * (1 - row.plan.roofline_fraction) for i, row in enumerate(rows) if row.plan is not None}
    worth = [i for i in lost if lost[i] >= LOST * total_us and rows[i].plan.roofline_fraction < SLOW]
    chosen = sorted(worth, key=lambda i: -lost[i])[:LAYERS]
    found = []
    for done, i in enumerate(chosen):
        row = rows[i]
        advance(f"{row.layers[0] or 'the model'}: other forms", done / len(chosen))
        found.append(_of_row(row, lnc, use_cache))
    return tuple(found)


def folding(model: torch.nn.Module, rows: Sequence[Any], lnc: int) -> str:
    """A lower bound, in words, of the time that folding batch norms into convolutions saves: a read and a write of each
    normalized tensor at HBM's rate. Returns "" if no norm can be folded."""
    if not any(isinstance(one, _BatchNorm) for one in model.modules()):
        return ""
    report = convert(copied(model).eval(), inplace=True, fold_batchnorm=True)
    names = {fold.convolution for fold in report.folds if fold.folded}
    passes = [
        2 * math.prod(problem.output_shape) * problem.itemsize
        for row in rows
        for name in row.layers
        if name in names and row.convolved.direction == "forward"
        for problem in [row.convolved.problem]
    ]
    if not passes:
        return ""
    us = sum(passes) / bytes_per_ns(lnc, Rates()) / 1e3
    count = f"{len(passes)} batch norm{'s' if len(passes) > 1 else ''}"
    return f"folding {count} into the convolutions before (--fold-batchnorm) saves at least {us:,.1f} us of HBM traffic"


def _of_row(row: Any, lnc: int, use_cache: bool) -> Advice:
    convolved, plan = row.convolved, row.plan
    changes = []
    if plan.effort == ESTIMATED:
        request = Request(problem=convolved.problem, lnc=lnc, asked=convolved.asked, operation=convolved.operation)
        searched = answer(request, use_cache=use_cache)
        changes.append(Change("a plan that is searched for (--search)", searched.modelled_us))
    for what, problem, asked in _forms(convolved.problem, convolved.asked):
        try:
            other = answer(Request(problem=problem, lnc=lnc, asked=asked), use_cache=use_cache, quick=True)
        except NkiconvError:  # that form has no kernel, which is no advice
            continue
        changes.append(Change(what, other.modelled_us))
    fraction = plan.roofline_fraction
    ordered = tuple(sorted(changes, key=lambda one: one.us))
    return Advice(row.layers[0], convolved.direction, plan.modelled_us, fraction, tuple(_reasons(plan)), ordered)


def _forms(problem: ConvProblem, asked: Asked) -> Iterator[tuple[str, ConvProblem, Asked]]:
    """(name, problem, options) of each form that computes the same, or the same at fewer bits."""
    layouts = VOLUME_LAYOUTS if problem.is_volume else LAYOUTS
    plain = dataclasses.replace(asked, packed=False)
    if not problem.is_depthwise or problem.R > 1 or problem.is_volume:
        (layout,) = (one for one in layouts if one != problem.layout)
        yield layout, problem.replace(layout=layout), plain
    if problem.dtype == "fp32":
        yield "bf16", problem.replace(dtype="bf16"), dataclasses.replace(asked, out_dtype=None)
        if asked.precision is None and not problem.is_depthwise:
            yield "fp32 with products in bf16", problem, dataclasses.replace(asked, precision="bf16")
    C, K = (-(-count // PARTITIONS) * PARTITIONS for count in (problem.C, problem.K))
    if problem.groups == 1 and (C, K) != (problem.C, problem.K) and C * K <= 4 * problem.C * problem.K:
        yield f"channels padded to {C} -> {K}", problem.replace(C=C, K=K), plain
    if problem.is_volume is False and problem.N > 1 and problem.direction == "forward" and not asked.packed:
        yield "filters packed", problem, dataclasses.replace(asked, packed=True)


def _reasons(plan: Plan) -> Iterator[str]:
    """The reasons that the plan itself gives for its distance from the limit."""
    problem = plan.problem
    yield f"bound by {plan.bound_by}"
    if plan.modelled_us < SHORT_US:
        yield "so short that start-up costs weigh (first DMAs, the array at half rate)"
    rows, columns = problem.C // problem.groups, problem.K // problem.groups
    if problem.direction == "wgrad":
        yield f"a filter gradient sums over positions, so {problem.dtype} x and gy are transposed on the Tensor Engine"
    elif problem.is_depthwise:
        if plan.bound_by == "tensor":
            yield "an output channel reads one input channel, so most of what the array multiplies by is zeros"
    elif min(rows, columns) < PARTITIONS:
        few = [
            f"{count} {name}{'s' * (count > 1)}"
            for count, name in ((rows, "input"), (columns, "output"))
            if count < PARTITIONS
        ]
        yield f"{' and '.join(few)} per group leave part of the 128 x 128 array idle unless taps are packed into it"
    elif rows % PARTITIONS or columns % PARTITIONS:
        yield f"{rows} inputs and {columns} outputs per group are no multiples of 128: the last tile is part full"
    if plan.bound_by in ("hbm", "dma issue") and plan.x_copy_floor > 1.2:
        yield f"DMA takes {plan.x_copy_floor:.1f} x the time of moving the bytes once"
