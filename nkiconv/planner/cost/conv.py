"""The algorithms of images and volumes: settings in the order of a bound of the busiest engine."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from ...schedules import activation_stationary_candidates, implicit_gemm_candidates, weight_stationary_candidates
from ...schedules.activation_stationary import settings_of
from ...schedules.conv_algorithms import fills_partitions, plan_of, seen_by
from ...schedules.geometry import num_phases, num_taps
from ...schedules.implicit_gemm import X_BYTES, ImplicitGemmSettings
from ...schedules.long_kernels import UNROLLED_NS
from ...schedules.planes import (
    dmas_of_piece,
    is_by_plane,
    planes_unsupported,
    wants_channels,
    windows_in_pieces,
    without_planes,
)
from ...schedules.relayout import plain_of, relayout_ns
from ...schedules.settings import Settings
from ...schedules.tiles import PARTS, div_ceil
from ...schedules.weight_stationary_candidates import FAMILIES, SIZES_OF_BLOCKS
from ...simulator.hardware import PARTITIONS
from ..clock import NEAR
from ..request import Config
from .algorithm import Algorithm, Guess, Shape, once, with_settings

#: Starts of a search, and of a wide one.
STARTS = 8, 32


class ConvAlgorithm(Algorithm):
    """An algorithm whose kernel's plan gives the schedule of settings.

    For volumes a config may name `planes`: with planes of taps as channels, the algorithm has a problem of images
    instead. Methods of subclasses are asked of the problem that the algorithm has.
    """

    name: str
    #: (bound, settings) of a plain problem
    candidates: Callable[..., Iterable[tuple[float, Any]]]

    def settings_of(self, shape: Shape, config: Config) -> type[Settings]:
        """The settings' dataclass."""
        raise NotImplementedError

    def tried(self, shape: Shape, config: Config, most_ns: float = math.inf) -> Iterable[tuple[float, Any]]:
        """(bound without copies, complete settings) that agree with a config and run, the least bound first; those
        above `most_ns` may be left out."""
        geometry = seen_by(self.name, shape.geometry, None)
        return self.candidates(shape.target, geometry, shape.options, config, most_ns)

    def starts(self, shape: Shape, wide: bool) -> list[Config]:
        """The starts of a search, for the problem that the algorithm has."""
        return [one.pairs for _, one in itertools.islice(self.tried(shape, None), STARTS[wide])] or [None]

    def neighbours(self, shape: Shape, config: Config) -> list[Config]:
        """Configs that differ from this one in one setting."""
        raise NotImplementedError

    def guesses(self, shape: Shape, most_ns: float = math.inf) -> list[Guess]:
        found = []
        for config in [None] if self._folded(shape) is None else [None, _channels(None)]:
            if (one := self.guess(shape, config, most_ns)) is not None:
                found.append(one)
                most_ns = min(most_ns, NEAR * one.ns)
        return found

    def guess(self, shape: Shape, config: Config, most_ns: float = math.inf) -> Guess | None:
        own, inner = self._of(shape, config)
        found = self._first(own, inner, most_ns)
        if found is None:
            return None
        ns, pairs = found[0] + relayout_ns(shape.target, self.name, own.geometry, shape.options), found[1].pairs
        if own is shape:
            return Guess(pairs, ns)
        ns += relayout_ns(shape.target, self.name, shape.geometry, shape.options)
        return Guess(_channels(pairs), ns + _planes_ns(own, dict(pairs)))

    def is_short(self, shape: Shape, guess: Guess) -> bool:
        if guess.ns * shape.geometry.times <= UNROLLED_NS:
            return True
        return bool(getattr(self.plan(shape, guess.config), "is_looped", True))

    def complete(self, shape: Shape, config: Config) -> Config:
        own, inner = self._of(shape, config)
        settings = self.settings_of(own, inner).whole(inner)
        if settings is None:
            first = self._first(own, inner, math.inf)
            settings = first and first[1]
        found = settings.pairs if settings else inner
        return found if own is shape else _channels(found)

    @once
    def _first(self, shape: Shape, config: Config, most_ns: float) -> tuple[float, Any] | None:
        return next(iter(self.tried(shape, config, most_ns)), None)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found, folded = self.starts(shape, wide), self._folded(shape)
        return found if folded is None else found + [_channels(one) for one in self.starts(folded, wide)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        own, inner = self._of(shape, config)
        found = self.neighbours(own, inner)
        return found if own is shape else [_channels(one) for one in found]

    def completed(self, shape: Shape, config: Config) -> Any:
        return self._of(shape, config)[0] is shape, self.plan(shape, config)

    @once
    def plan(self, shape: Shape, config: Config) -> Any:
        """The kernel's plan of settings that it does not refuse."""
        return plan_of(self.name, shape.geometry, shape.options, self.complete(shape, config))[0]

    @once
    def _folded(self, shape: Shape) -> Shape | None:
        """The Shape with planes of taps as channels; None if they cannot be."""
        if planes_unsupported(self.name, plain_of(self.name, shape.geometry), shape.options):
            return None
        geometry = seen_by(self.name, shape.geometry, _channels(None))
        return dataclasses.replace(shape, geometry=geometry, memo={})

    def _of(self, shape: Shape, config: Config) -> tuple[Shape, Config]:
        """(Shape of the problem that a config is for, the config's settings of that problem)."""
        folded = self._folded(shape) if wants_channels(config) else None
        return (shape, config) if folded is None else (folded, without_planes(config))


def _channels(config: Config) -> Config:
    return with_settings(config, planes="channels")


def _planes_ns(folded: Shape, settings: dict[str, Any]) -> float:
    """ns besides copies with planes of taps as channels: triggers of DMAs for windows that x or its halo frames have in
    part, one for each row if rows of x are neighbours; and two engines reorder the plain filters of a first M tile to
    x's order, block by block."""
    geometry, target = folded.geometry, folded.target
    each = settings.get("rows", 1) * settings.get("shifts", 1) * dmas_of_piece(geometry)
    pieces_ns = windows_in_pieces(geometry) * each * target.static_issue_ns / PARTS
    if geometry.packed or not is_by_plane(geometry):
        return float(pieces_ns)
    elements = min(geometry.C, PARTITIONS) * num_taps(geometry)
    runs_ns = geometry.depth.taps * target.vector_fixed_ns
    each_ns = runs_ns + elements * target.copy_ns(geometry.itemsize)
    return float(pieces_ns + div_ceil(geometry.C, PARTITIONS) * each_ns / PARTS)


class ImplicitGemm(ConvAlgorithm):
    """One matmul a tap."""

    name, order = "implicit_gemm", ("fold", "product", "planes")
    candidates = staticmethod(implicit_gemm_candidates.candidates)

    def settings_of(self, shape: Shape, config: Config) -> type[Settings]:
        return ImplicitGemmSettings

    def neighbours(self, shape: Shape, config: Config) -> list[Config]:
        known = {
            "x_bytes": dict(config or ()).get("x_bytes", X_BYTES),
            "warmup": self.plan(shape, config).settings.warmup,
        }
        return list(ImplicitGemmSettings.near(config, known))


class ActivationStationary(ConvAlgorithm):
    """Pixels as stationary operands, filters as moving operands."""

    name, order, turn = "activation_stationary", ("fold", "copies"), 1
    candidates = staticmethod(activation_stationary_candidates.candidates)

    def settings_of(self, shape: Shape, config: Config) -> type[Settings]:
        return settings_of(plain_of(self.name, shape.geometry), shape.options)

    def neighbours(self, shape: Shape, config: Config) -> list[Config]:
        now, values = dict(self.complete(shape, config) or ()), {}
        geometry = plain_of(self.name, shape.geometry)
        if not now:
            return []  # none of the tried sizes fit
        if "side" in now:
            every, side = activation_stationary_candidates.sides_of(geometry), now["side"]
            values["side"] = [one for one in every if one < side][-1:] + [one for one in every if one > side][:1]
        if "rows" in now:
            apart = geometry.rows.stride * num_phases(geometry.rows)
            values["rows"] = [now["rows"] - apart, now["rows"] + apart]
        return list(settings_of(geometry, shape.options).near(config, now, **values))


class OfBlocks(ConvAlgorithm):
    """An algorithm of FAMILIES, whose schedules have outputs in blocks: K packing, or groups on row tiles, transposed
    convolutions phase by phase and M packing."""

    def __init__(self, name: str, most: int, near: float, order: tuple[str, ...]) -> None:
        """most: most candidates that are timed. near: their largest ratio to the least bound."""
        self.name, self.timed, self.order, self.turn = name, (most, near), order, 2 * (name == "stacked")
        self.candidates = functools.partial(weight_stationary_candidates.candidates, name)

    def guesses(self, shape: Shape, most_ns: float = math.inf) -> list[Guess]:
        if self._folded(shape) is not None:
            return super().guesses(shape, most_ns)
        if self.name == "stacked" and fills_partitions(shape.geometry):
            return []
        most, near = self.timed
        found = self.tried(shape, None, most_ns)[:most]
        copies_ns = relayout_ns(shape.target, self.name, shape.geometry, shape.options)
        return [Guess(one.pairs, copies_ns + ns) for ns, one in found if ns <= near * found[0][0]]

    def settings_of(self, shape: Shape, config: Config) -> type[Settings]:
        kind: type[Settings] = FAMILIES[self.name].settings_class(shape.geometry, config)
        return kind

    @once
    def tried(self, shape: Shape, config: Config, most_ns: float = math.inf) -> list[tuple[float, Any]]:
        return list(super().tried(shape, config, most_ns))

    def neighbours(self, shape: Shape, config: Config) -> list[Config]:
        complete = self.complete(shape, config)
        every = self.tried(shape, None)
        sizes = [tuple(pair for pair in one.pairs if pair[0] in self.order) for _, one in every]
        others = [with_settings(complete, **dict(one)) for one in dict.fromkeys(sizes) if one]
        return [*self.settings_of(shape, complete).near(complete), *(one for one in others if one != complete)]


ALGORITHMS: dict[str, Algorithm] = {
    "implicit_gemm": ImplicitGemm(),
    "stacked": OfBlocks("stacked", 2, 1.1, (*SIZES_OF_BLOCKS, "planes")),
    "activation_stationary": ActivationStationary(),
    "weight_stationary": OfBlocks(
        "weight_stationary", 3, 1.15, ("rows", "height", "width", "outputs", "depth", "taps", "lanes")
    ),
}
