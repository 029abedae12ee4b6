"""One order of sums for a video and all chunks that it may come in, so that they round alike.

What decides an order is the algorithm and some of its settings (`Algorithm.order`). Those of a video are what chunks of
a few lengths (`Shape.chunks`) take best together, whatever its depth is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .cost.algorithm import Guess, Shape
from .request import Config

if TYPE_CHECKING:
    from .operation import Operation


def chosen(operation: Operation, shape: Shape) -> tuple[str, Config] | None:
    """The algorithm and settings of the first chunk of a video; None of what is no video.

    What is best for each chunk; where that differs, of what is near the least for one what takes least for all.
    """
    return shape.once(("stream", None), lambda: _chosen(operation, shape) if shape.chunks else None)


def _chosen(operation: Operation, shape: Shape) -> tuple[str, Config] | None:
    near = [operation.near_least(one, operation.algorithms) for one in shape.chunks]
    best = [min(found, key=lambda one: one[1].ns) for found in near if found]
    if not best:
        return None
    if len({_order_of(operation, *one) for one in best}) == 1:
        return best[0][0], best[0][1].config
    orders = sorted({_order_of(operation, *one) for found in near for one in found}, key=repr)
    name, order = min(orders, key=lambda one: _ns(operation, shape, *one))
    return name, operation.algorithm(name).settle(shape.chunks[0], order)


def _order_of(operation: Operation, name: str, guess: Guess) -> tuple[str, Config]:
    return name, _ordered(operation, name, guess.config)


def _ordered(operation: Operation, algorithm: str, config: Config) -> Config:
    """The settings of a config that decide the order."""
    return tuple((name, value) for name, value in config or () if name in operation.algorithm(algorithm).order)


def _ns(operation: Operation, shape: Shape, algorithm: str, order: Config) -> float:
    """What the chunks take in an order, as a product."""
    guesses = [operation.algorithm(algorithm).guess(one, order) for one in shape.chunks]
    return math.prod(math.inf if one is None else one.ns for one in guesses)


def _chunk_config(operation: Operation, algorithm: str, shape: Shape) -> Config:
    """All settings of an algorithm for the first chunk."""
    best = chosen(operation, shape)
    if best is None:
        return None
    return best[1] if best[0] == algorithm else operation.algorithm(algorithm).settle(shape.chunks[0], None)


def order(operation: Operation, algorithm: str, shape: Shape) -> dict[str, Any]:
    """Settings of an algorithm that all chunks of a video have; none of what is no video."""
    return dict(_ordered(operation, algorithm, _chunk_config(operation, algorithm, shape)) or ())


def settings(operation: Operation, algorithm: str, shape: Shape) -> Config:
    """All settings in a video's order: the others best, or where those do not fit as the first chunk has them; None
    where the kernel refuses both, or the algorithm has but one order."""
    of_chunk = _chunk_config(operation, algorithm, shape)
    own = _ordered(operation, algorithm, of_chunk)
    tried = (operation.algorithm(algorithm).settle(shape, own), of_chunk) if own else ()
    return next((one for one in tried if not operation.refusal_of(algorithm, shape, one)), None)
