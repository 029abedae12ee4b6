"""What the search asks of an operation: its kernel, its algorithms, and how a request reads to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from .._nki import nl
from ..errors import NkiconvError
from ..problem import ConvProblem
from ..simulator import ArraySpec
from ..simulator.timing import Rates
from .family import Family, Shape
from .request import Asked, Config, Request, nl_name


class Operation(ABC):
    """One public kernel."""

    #: as in `Plan.operation`, and of the function of `nkiconv` that calls the kernel
    name: str
    #: the `@nki.jit` function
    kernel: Any
    #: names of its algorithms
    algorithms: tuple[str, ...]
    #: nkiconv's names of the dtypes of x and w that it takes
    dtypes: tuple[str, ...]

    @abstractmethod
    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        """Why no algorithm of the kernel runs this."""

    @abstractmethod
    def shape(self, request: Request, rates: Rates) -> Shape:
        """A request as the kernel's own compile-time code describes it."""

    @abstractmethod
    def refusal(self, algorithm: str, shape: Shape, config: Config) -> str:
        """Why the kernel refuses these settings, or ""."""

    @abstractmethod
    def choice(self, shape: Shape) -> tuple[str, Config]:
        """The algorithm and settings that the kernel takes where it is told none."""

    @abstractmethod
    def family(self, algorithm: str) -> Family:
        """What the planner knows of an algorithm."""

    @abstractmethod
    def launch(self, request: Request, algorithm: str | None, config: Config) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of a launch without data; algorithm None: the kernel's choice."""

    @abstractmethod
    def letters(self, shape: Shape) -> dict[str, int]:
        """The problem's letters and parameters by name."""

    @abstractmethod
    def of_channels(self, problem: ConvProblem, count: int) -> ConvProblem:
        """The problem with `count` channels, of those along which times are extrapolated."""

    @abstractmethod
    def channels(self, problem: ConvProblem) -> int:
        """How many of those there are."""

    def symbols(self, shape: Shape, algorithm: str, config: Config) -> dict[str, int]:
        """An algorithm's tile sizes and counts by name."""
        return {name: int(value) for name, value in self.family(algorithm).symbols(shape, config).items()}

    def unit(self, shape: Shape, algorithm: str, config: Config) -> int:
        """Channels that one core works on at once, at least 1."""
        return max(1, self.family(algorithm).unit(shape, config))


def epilogue_arguments(problem: ConvProblem, asked: Asked) -> dict[str, Any]:
    """A kernel's arguments of an epilogue, without data; nothing for what is not asked for."""
    found: dict[str, Any] = {}
    if asked.bias:
        found["bias"] = ArraySpec((problem.K,), "float32")
    if asked.residual is not None:
        found["residual"] = ArraySpec(problem.output_shape, nl_name(problem.out_dtype))
        found["residual_position"] = asked.residual
    if asked.activation is not None:
        found["activation"] = asked.activation
    if asked.out_dtype is not None:
        found["out_dtype"] = getattr(nl, nl_name(asked.out_dtype))
    return found
