"""The report of `convert`: one row for each convolution, and the batch norms that were folded into filters."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..causal.installation import Installation
from .flops import Share, share_of
from .prices import STATISTICS, SUM, is_apart, told

#: Attributes of a report, and the kind of fused call that each lists.
_TOLD = {
    "doublings": "upsamplings by 2 on the way into a convolution",
    "layers": "layers of images are 1x1 convolutions with what follows them",
    "blocks": "modules with depthwise convolutions of rows make fused calls",
}
#: Columns of `str(report)`.
WIDTH = 120


@dataclass(frozen=True)
class Entry:
    """One convolution of a model; swapped exactly where there is no reason against it."""

    name: str  # as in named_modules, the first where it has several; "" for the model itself
    kind: str  # its class, before
    weight: tuple[int, ...]  # shape of its filters; empty where unknown
    operator: str | None  # of torch.ops.nkiconv, where that runs it
    reason: str = ""
    packed: bool = False  # whether its filter is frozen, packed for the kernel
    packing: str = ""  # when that was made, or why not; empty unless it was asked for
    epilogue: str = ""  # the sum and the activation in its call, where fusing was asked for
    function: str = ""  # nkiconv's function that its layer calls with its filter in place of its forward

    @property
    def swapped(self) -> bool:
        """Whether it is a module of nkiconv's now, and was not before."""
        return not self.reason and not self.function


@dataclass(frozen=True)
class Fold:
    """One batch norm: the convolution that it went into, or why it stays."""

    batchnorm: str
    convolution: str | None
    reason: str = ""
    activation: str | None = None  # the norm's own, which is in the convolution's epilogue now

    @property
    def folded(self) -> bool:
        """Whether it is part of the convolution now."""
        return not self.reason

    def __str__(self) -> str:
        """Where it is."""
        more = f" with its {self.activation}" if self.activation else ""
        return f"folded{more} into {self.convolution or 'the model'}"


class Found:
    """A candidate for fusing; it is fused if there is no reason against it."""

    reason: str

    @property
    def fused(self) -> bool:
        """Whether one call computes it now."""
        return not self.reason


@dataclass(frozen=True)
class Chain(Found):
    """A norm and the steps after it: fused into one call if there is no reason against it."""

    norm: str
    activation: str | None = None  # of `nkiconv.rules.ACTIVATIONS`
    between: tuple[str, ...] = ()  # names of its module, where it is one, and of dropout's
    convolution: str | None = None
    adds: bool = False  # whether a sum that follows is in the call too, where its other term has the result's shape
    over_one: bool = False  # whether that is divided by 1, which is left out
    statistics: tuple[str, ...] = ()  # convolutions that return statistics of the norm's input
    padding: str = ""  # by pixels, between: a mode of torch.nn.functional.pad
    offset: bool = False  # whether numbers for each channel that are added to that before are in the call too
    modulated: bool = False  # whether values per channel that scale and shift the norm's result are
    reason: str = ""

    def __str__(self) -> str:
        """Its modules in order."""
        modulation = ["numbers for each channel"] * self.modulated
        steps = (
            *modulation,
            *(self.between or filter(None, [self.activation])),
            *[f"{self.padding} padding"] * bool(self.padding),
        )
        return " -> ".join([*steps, self.convolution or "the model", *["sum"] * self.adds])


@dataclass(frozen=True)
class Doubling(Found):
    """A module that doubles rows and columns of images, "nearest": in the call of the convolution that follows exactly
    where there is no reason against it."""

    name: str
    convolutions: tuple[str, ...] = ()  # one for each place of its forward
    polyphase: bool = False  # whether they are transposed ones now, of sums of taps
    reason: str = ""

    def __str__(self) -> str:
        """What follows it, and how."""
        convolutions = " or ".join(one or "the model" for one in self.convolutions)
        return f"{'sums of taps' if self.polyphase else 'x_upsample=2'} of {convolutions}"


@dataclass(frozen=True)
class PixelLayer(Found):
    """A layer over the channels of images, linear or a 1x1 convolution: in one call with what follows it exactly where
    there is no reason against it."""

    name: str
    activation: str | None = None  # of `nkiconv.rules.ACTIVATIONS`
    scaled: bool = False  # whether a number of each channel that multiplies it goes into its filters
    adds: bool = False  # whether a sum that follows is in the call too
    norm: str | None = None  # the norm of its input that is in the call too, of two layers, where nothing trains
    reason: str = ""

    def __str__(self) -> str:
        """The steps of its call."""
        steps = [self.norm, "1x1 convolution", self.activation, "scale" * self.scaled, "sum" * self.adds]
        return " -> ".join(filter(None, steps))


@dataclass(frozen=True)
class RowBlock(Found):
    """A module that holds a depthwise convolution of rows: fused calls of its forward, or why there are none."""

    name: str
    calls: tuple[str, ...] = ()  # functions of nkiconv.pytorch with what is in them, of one forward without a cache
    norms: tuple[str, ...] = ()  # BatchNorms in them
    reason: str = ""

    def __str__(self) -> str:
        """Its calls."""
        return ", ".join(self.calls)


@dataclass(frozen=True)
class Report:
    """The converted model and a row for each convolution; `str` of it is a table."""

    model: torch.nn.Module
    entries: tuple[Entry, ...]
    folds: tuple[Fold, ...] = ()  # empty unless folding was asked for
    installation: Installation = field(default_factory=Installation)  # undoes what was set outside of the model
    functional: bool = False  # whether functions of torch are nkiconv's in the model's forward
    measured: Share | None = None  # of the run on `example_inputs`, where there was one
    chains: tuple[Chain, ...] = ()  # one a norm of channels; empty unless fusing was asked for
    layers: tuple[PixelLayer, ...] = ()  # one a layer of images, linear or 1x1; empty unless fusing was asked for
    blocks: tuple[RowBlock, ...] = ()  # one a module with depthwise rows; empty unless fusing was asked for
    doublings: tuple[Doubling, ...] = ()  # one a module that upsamples by 2; empty unless fusing was asked for

    @property
    def swapped(self) -> tuple[Entry, ...]:
        """The convolutions that are nkiconv's now."""
        return tuple(entry for entry in self.entries if entry.swapped)

    @property
    def kept(self) -> tuple[Entry, ...]:
        """The convolutions that stay as they were."""
        return tuple(entry for entry in self.entries if entry.reason)

    @property
    def by_function(self) -> tuple[Entry, ...]:
        """The convolutions that stay modules of torch while a function, nkiconv's now, is called with their filters."""
        return tuple(entry for entry in self.entries if entry.function)

    @property
    def fuses(self) -> bool:
        """Whether any call computes a chain."""
        return any(self._is_fused(one) for found in self._found.values() for one in found)

    def share(self, *inputs: Any, **named: Any) -> Share:
        """nkiconv's share of the convolutions' flops in one run of the model's forward.

        Args: inputs, named: of forward. The model runs once on them, in eval mode and without gradients.

        Raises: the model's own errors.
        """
        return share_of(self.model, inputs, named)

    def headline(self) -> Iterator[str]:
        """A summary in words: first the share of flops, if it was measured."""
        if self.measured is not None:
            yield f"On example_inputs, {self.measured}"
        functions = f", {len(self.by_function)} of them by functions that their layers call" if self.by_function else ""
        count = len(self.swapped) + len(self.by_function)
        text = f"{count} of {len(self.entries)} convolutions are nkiconv's{functions}"
        yield text if self.measured else f"{text}; example_inputs would tell their share of the flops"
        if self.functional:
            yield "torch's convolution functions are nkiconv's in the model's forward"
        if self.folds:
            folded = sum(fold.folded for fold in self.folds)
            yield f"{folded} of {len(self.folds)} batch norms folded into convolutions"
        if ends := sum(bool(entry.epilogue) for entry in self.entries):
            yield f"{ends} convolutions with the sum or the activation after them in their call"
        if self._norms:
            fused = sum(map(self._is_fused, self._norms))
            known = sum(bool(chain.statistics) for chain in self._norms)
            more = f", {known} with statistics from the one before" if known else ""
            yield f"{fused} of {len(self._norms)} norms fused with a convolution{more}"
        for kind, words in _TOLD.items():
            if found := self._found[kind]:
                yield f"{sum(one.fused for one in found)} of {len(found)} {words}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "flops": None if self.measured is None else self.measured.as_dict(),
            "entries": [{**dataclasses.asdict(entry), "swapped": entry.swapped} for entry in self.entries],
            "folds": [{**dataclasses.asdict(fold), "folded": fold.folded} for fold in self.folds],
            **{
                kind: [{**dataclasses.asdict(one), "fused": self._is_fused(one)} for one in found]
                for kind, found in self._found.items()
            },
        }

    @property
    def _found(self) -> dict[str, Sequence[Any]]:
        return {"chains": self.chains, "doublings": self.doublings, "layers": self.layers, "blocks": self.blocks}

    @property
    def _norms(self) -> list[Chain]:
        """The chains but for norms that are folded, which have a row of their own."""
        folded = {fold.batchnorm for fold in self.folds if fold.folded}
        return [chain for chain in self.chains if chain.norm not in folded]

    def table(self) -> Table:
        """Convolutions, those that stay first, then batch norms and chains; alike ones share a row."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("name", "module", "weight", "operator"):
            table.add_column(heading, overflow="fold")
        table.add_column("stays as it is because, or runs by", overflow="fold", ratio=1)
        kept_first = sorted(self.entries, key=lambda entry: not entry.reason)
        for names, cells in _alike((entry.name, self._cells(entry)) for entry in kept_first):
            table.add_row(names, *map(Text, cells))
        for kind, rows in self._rows():
            if rows:
                table.add_section()
            for names, (words,) in _alike((name, (_beside(name, words),)) for name, words in rows):
                table.add_row(names, kind, "", "", Text(words))
        return table

    def _cells(self, entry: Entry) -> tuple[str, ...]:
        """What stands beside a convolution's name."""
        operator = ", ".join([entry.operator or "-", *["packed"] * entry.packed, *self._epilogue(entry)])
        weight = "x".join(map(str, entry.weight)) or "-"
        return entry.kind, weight, operator, entry.reason or entry.function or entry.packing

    def _rows(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """(kind, (name, result) of each) of the modules that are no convolutions."""
        yield "batch norm", [(one.batchnorm, one.reason or str(one)) for one in self.folds]
        yield "norm", [(one.norm, self._of_chain(one)) for one in self._norms]
        yield "upsampling", [(one.name, one.reason or str(one)) for one in self.doublings]
        yield "layer of images", [(one.name, self._of_layer(one)) for one in self.layers]
        yield "rows", [(one.name, one.reason or str(one)) for one in self.blocks]

    def _is_fused(self, one: Found) -> bool:
        """Whether one call computes it: no reason is against it, and of a norm no price of all calls."""
        return one.fused and not (isinstance(one, Chain) and is_apart(self.model.get_submodule(one.norm)))

    def _of_chain(self, chain: Chain) -> str:
        part = self.model.get_submodule
        words = chain.reason or told(part(chain.norm), f"one call with {chain}")
        if chain.statistics:
            words += f"; statistics {', '.join(told(part(one), f'from {one}', STATISTICS) for one in chain.statistics)}"
        return words + ", whose sum with numbers for each channel it takes in" * chain.offset

    def _epilogue(self, entry: Entry) -> Iterator[str]:
        if entry.epilogue:
            yield told(self.model.get_submodule(entry.name), entry.epilogue, SUM)

    def _of_layer(self, layer: PixelLayer) -> str:
        if layer.reason:
            return layer.reason
        of_norm = "" if layer.norm is None else told(self.model.get_submodule(layer.norm), "")
        return "; ".join(filter(None, [told(self.model.get_submodule(layer.name), str(layer)), of_norm]))

    def __str__(self) -> str:
        """The headline and the table as text."""
        screen = Console(file=io.StringIO(), width=WIDTH, highlight=False)
        screen.print(*(Text(line) for line in self.headline()), sep="\n")
        screen.print(self.table())
        assert isinstance(screen.file, io.StringIO)
        return "\n".join(line.rstrip() for line in screen.file.getvalue().rstrip().splitlines())


def _alike(rows: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[Text, tuple[str, ...]]]:
    """(names, cells) of rows whose cells are equal: the first name, and how many more."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        found.setdefault(cells, []).append(name or "(the model)")
    for cells, names in found.items():
        yield Text(f"{names[0]} +{len(names) - 1} more" if len(names) > 1 else names[0]), cells


def _beside(name: str, words: str) -> str:
    """Words about a module, with names of modules beside it without the names of those that hold both."""
    parent, _, own = name.rpartition(".")
    return re.sub(rf"(?<![\w.]){re.escape(parent)}\.(?!{re.escape(own)}\b)", "", words) if parent else words
