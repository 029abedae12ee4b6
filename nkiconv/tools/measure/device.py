"""The interface of a machine for measuring: run a kernel once, and time a chain of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

#: The arrays of one call of a kernel; everything else that it takes is a keyword argument.
Call = tuple[Any, ...]


class Device(Protocol):
    """A machine with NeuronCores, or something that stands for one in a test."""

    @property
    def name(self) -> str:
        """The machine's name, as in "trn2.48xlarge"."""

    @property
    def description(self) -> str:
        """The name, and the versions of the compiler and the runtime."""

    @property
    def clock(self) -> str:
        """The kind of `seconds`, as in "wall time of a graph"."""

    def run(self, launched: Any, args: Call, kwargs: dict[str, Any]) -> Any:
        """The NumPy outputs of one call of a launched kernel, `kernel[lnc]`, on NumPy arrays."""

    def seconds(self, launched: Any, calls: Sequence[Call], kwargs: dict[str, Any]) -> float:
        """Wall time of one graph that makes these calls one after another, compiled and warmed up before.

        Every call has arrays of its own, so that no compiler makes one call of two. The same arguments mean the same
        graph, as long as `forget` is not called.
        """

    def forget(self) -> None:
        """Drop the graphs and arrays that earlier calls of `seconds` left on the machine."""
