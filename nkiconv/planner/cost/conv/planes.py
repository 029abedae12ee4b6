"""Algorithms of volumes that may take planes of taps as channels: two problems, of which the faster is chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

from ....schedules.conv_algorithms import seen_by
from ....schedules.geometry import num_taps
from ....schedules.planes import (
    dmas_of_piece,
    is_by_plane,
    planes_unsupported,
    wants_channels,
    windows_in_pieces,
    without_planes,
)
from ....schedules.relayout import plain_of, relayout_ns
from ....schedules.tiles import PARTS, div_ceil
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, with_settings
from .common import Conv2dAlgorithm


class OfVolumes(Algorithm):
    """An algorithm of images, for volumes: configs say `planes` where planes of taps are channels."""

    def __init__(self, inner: Conv2dAlgorithm) -> None:
        self.name, self.inner = inner.algorithm, inner
        self.order = (*inner.order, "planes")

    def _folded(self, shape: Shape) -> Shape | None:
        """The problem whose planes of taps are channels, or None where they cannot be."""

        def folded() -> Shape | None:
            if planes_unsupported(self.name, plain_of(self.name, shape.geometry), shape.options):
                return None
            geometry = seen_by(self.name, shape.geometry, _channels(None))
            return dataclasses.replace(shape, geometry=geometry, memo={})

        return shape.once((f"{self.name}, planes", None), folded)

    def _of(self, shape: Shape, config: Config) -> tuple[Shape, Config]:
        """The problem that a config is for, and what it says of that."""
        folded = self._folded(shape) if wants_channels(config) else None
        return (shape, config) if folded is None else (folded, without_planes(config))

    def guesses(self, shape: Shape) -> list[Guess]:
        found = [self.guess(shape, None)]
        if self._folded(shape) is not None:
            found.append(self.guess(shape, _channels(None)))
        return [one for one in found if one is not None]

    def guess(self, shape: Shape, config: Config) -> Guess | None:
        own, inner = self._of(shape, config)
        found = self.inner.guess(own, inner)
        if found is None or own is shape:
            return found
        copies_ns = relayout_ns(shape.target, self.name, shape.geometry, shape.options)
        ns = found.ns + copies_ns + self._borders_ns(own, found.config)
        return dataclasses.replace(found, config=_channels(found.config), ns=ns)

    def _borders_ns(self, folded: Shape, config: Config) -> float:
        """ns of triggers for windows that x or the frames in front of it have in part; where rows of x are beside each
        other, each row comes by itself."""
        settings = dict(config or ())
        each = settings.get("rows", 1) * settings.get("shifts", 1) * dmas_of_piece(folded.geometry)
        pieces_ns = windows_in_pieces(folded.geometry) * each * folded.target.static_issue_ns / PARTS
        return float(pieces_ns + self._order_ns(folded))

    def _order_ns(self, folded: Shape) -> float:
        """ns of two engines that put the plain filters of a first M tile in the order of x, block by block."""
        geometry, target = folded.geometry, folded.target
        if geometry.packed or not is_by_plane(geometry):
            return 0.0
        elements = min(geometry.C, PARTITIONS) * num_taps(geometry)
        runs_ns = geometry.depth.taps * target.vector_fixed_ns
        each_ns = runs_ns + elements * (target.vector_16bit_ns if geometry.itemsize == 2 else target.vector_ns)
        return float(div_ceil(geometry.C, PARTITIONS) * each_ns / PARTS)

    def is_short(self, shape: Shape, config: Config) -> bool:
        return self.inner.is_short(*self._of(shape, config))

    def complete(self, shape: Shape, config: Config) -> Config:
        own, inner = self._of(shape, config)
        found = self.inner.complete(own, inner)
        return found if own is shape else _channels(found)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        found, folded = self.inner.configs(shape, wide), self._folded(shape)
        return found if folded is None else found + [_channels(one) for one in self.inner.configs(folded, wide)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        own, inner = self._of(shape, config)
        found = self.inner.near(own, inner)
        return found if own is shape else [_channels(one) for one in found]

    def completed(self, shape: Shape, config: Config) -> Any:
        own, inner = self._of(shape, config)
        return own is shape, self.inner.completed(own, inner)


def _channels(config: Config) -> Config:
    return with_settings(config, planes="channels")
