"""A convolution's result before it is computed: its call may take a norm over channels and an activation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .pending import Pending, activation_of, drops_nothing, is_changed_since, is_in_place, version_of


class Summed(Pending):
    """A convolution's result, whose norm over the channels of a pixel and activation may come into the same call.

    call: of that norm's module or None, and an activation or None; channels: of the result; given: tensors that the
    convolution reads.
    """

    def __init__(self, call: Callable[[Any, str | None], Tensor], channels: int, given: list[Tensor]) -> None:
        self.call, self.channels, self.given = call, channels, given
        self.versions = list(map(version_of, given))
        self.norm: Any = None
        self.activation: str | None = None

    def normed(self, norm: Any) -> Summed:
        """The same with a norm."""
        found = copy.copy(self)
        found.norm = norm
        return found

    def compute(self) -> Tensor:
        """Compute it by one call. Raises UnsupportedError: an input of the convolution has changed since its call."""
        for one, version in zip(self.given, self.versions, strict=True):
            is_changed_since(one, version)
        return self.call(self.norm, self.activation)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """An activation after the norm, or a dropout that drops nothing."""
        if drops_nothing(function, args, named):
            return self
        activation = activation_of(function, named)
        if activation is None or self.norm is None or self.activation is not None:
            return None
        found = self if is_in_place(function, args, named) else self.normed(self.norm)
        found.activation = activation
        return found
