"""A convolution's result before it is computed: its call may take a norm over channels, numbers for each channel after
it, and an activation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..computers.host import activate
from .pending import PRODUCTS, SUMS, Modulated, drops_nothing


class Summed(Modulated):
    """A convolution's result, whose norm over the channels of a pixel, a factor and a term for each channel, and an
    activation may come into the same call.

    call: of this; channels: of the result; given: tensors that the convolution reads, the first one x, its input.
    """

    def __init__(self, call: Callable[[Summed], Tensor], channels: int, given: list[Tensor]) -> None:
        self.call, self.channels, self.x = call, channels, given[0]
        self.keep(*given)
        self.rows = {}
        self.norm: Any = None
        self.activation: str | None = None
        self.last = False  # whether channels are the last axis

    def normed(self, norm: Any) -> Summed:
        """The same with a norm."""
        found = copy.copy(self)
        found.norm = norm
        return found

    def compute(self) -> Tensor:
        """Compute it by one call. Raises UnsupportedError: an input of the convolution has changed since its call."""
        self.check()
        y = self.call(self)
        return y.movedim(1, -1) if self.last else y

    def finished(self, y: Tensor, last: bool) -> Tensor:
        """From the convolution's result, what its norm, for channels as the `last` axis or not, and the later steps
        make of it by themselves."""
        z: Tensor = self.norm.plain_forward(y.movedim(1, -1)).movedim(-1, 1) if last else self.norm.plain_forward(y)
        z = self.modulated(z)
        return z if self.activation is None else activate(z, self.activation)

    def movedim(self, source: Any, destination: Any) -> Any:
        """This with channels as the last axis, or again as the second; of the tensor for other axes."""
        back = (source, destination) == ((-1, 1) if self.last else (1, -1))
        if not (back and self.is_open()):
            return self.value().movedim(source, destination)
        found = copy.copy(self)
        found.last = not self.last
        return found

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """After the norm a product with numbers for each channel, a sum with such, an activation; or a dropout that
        drops nothing."""
        if drops_nothing(function, args, named):
            return self
        if self.norm is None or self.last or self.activation is not None:
            return None
        if function in (*PRODUCTS, *SUMS):
            return self.with_row(function, args, named, [1, self.channels, *self.x.shape[2:]])
        return self.with_activation(function, args, named)
