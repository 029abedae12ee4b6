"""The interface of an operation: its kernel, its algorithms, and the kernel's description of a request."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import pixel_norms
from .._nki import nl
from ..errors import NkiconvError
from ..kernels._epilogue import read_epilogue
from ..problem import ConvProblem
from ..rules import RESIDUAL_POSITIONS, in_words_of
from ..schedules.options import Epilogue, Norm, Prologue
from ..simulator import ArraySpec
from ..simulator.collector import without_collector
from ..simulator.timing import Rates
from . import clock
from .clock import Choice
from .cost.algorithm import Algorithm, Guess, Shape, once, symbols_of
from .parts import part_of
from .request import Asked, Config, Request, nl_name


class Operation(ABC):
    """One public kernel."""

    #: the name in `Plan.operation`, that of the function of `nkiconv` that calls the kernel
    name: str
    #: the `@nki.jit` function
    kernel: Any
    #: names of its algorithms, and the host's Algorithm of each
    algorithms: tuple[str, ...]
    known: Mapping[str, Algorithm]
    #: nkiconv's names of the supported dtypes of x and w
    dtypes: tuple[str, ...]
    #: whether it is a transposed convolution, whose words refusals use
    transposed = False
    #: instructions that an estimate traces, see `clock.fastest`
    budget = clock.BUDGET
    #: extents that parts do not cut, see `parts.part_of`
    kept: frozenset[str] = frozenset()
    #: the algorithm whose refusal is reported if no algorithm runs
    fallback: str

    @abstractmethod
    def violations(self, problem: ConvProblem, asked: Asked) -> Iterator[NkiconvError]:
        """Why no algorithm of the kernel runs a problem with these arguments."""

    def shape(self, request: Request, rates: Rates) -> Shape:
        """The Shape of a request by the kernel's compile-time code; for a big problem the Shape of a part, by
        `parts.part_of`, with the whole's in `whole`."""
        part, times = part_of(request.problem, request.asked, self.kept)
        whole = self.whole_shape(request, rates)
        if part is request.problem:
            return whole
        found = self.whole_shape(dataclasses.replace(request, problem=part), rates, times)
        return dataclasses.replace(found, whole=whole, chunks=whole.chunks)

    @abstractmethod
    def whole_shape(self, request: Request, rates: Rates, times: int = 1) -> Shape:
        """The Shape of the whole request; times: how many times a problem has it, if it is a part."""

    def fits_whole(self, shape: Shape, algorithm: str, config: Config) -> bool:
        """Whether the kernel takes settings of a part for the whole, too: its memory depends on all extents. The part
        is asked first: it refuses too many instructions before the whole's tiles are listed."""
        fits = self.fits_part(shape, algorithm, config)
        return fits and (shape.whole is None or not self.kernel_reason(algorithm, shape.whole, config))

    def fits_part(self, shape: Shape, algorithm: str, config: Config) -> bool:
        """Whether the kernel takes settings for a part; those of a whole are known to fit."""
        return shape.whole is None or not self.kernel_reason(algorithm, shape, config)

    @abstractmethod
    def kernel_reason(self, algorithm: str, shape: Shape, config: Config) -> str:
        """Why the kernel refuses all settings of a config; "" if it does not."""

    @abstractmethod
    def arguments(
        self, request: Request, algorithm: str | None, config: Config
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of a launch without data; algorithm None: the kernel's choice."""

    @abstractmethod
    def letters(self, shape: Shape) -> dict[str, int]:
        """The problem's extents by their letters, and its parameters by name."""

    def complete(self, algorithm: str, shape: Shape, config: Config) -> Config:
        """A config with its open settings filled in, as in the kernel's launch."""

        def completed() -> Config:
            of_stream = self._stream_settings(algorithm, shape) if config is None and shape.chunks else None
            return of_stream or self.known[algorithm].complete(shape, config)

        return shape.once((f"{algorithm}, settled", config), completed)

    def unsupported_reason(self, algorithm: str, shape: Shape, config: Config) -> str:
        """Why the kernel refuses a config; "" if it does not."""
        completed = self.complete(algorithm, shape, config)
        key = f"{algorithm}, refused", completed
        return in_words_of(self.transposed, shape.once(key, lambda: self.kernel_reason(algorithm, shape, completed)))

    def launch(self, request: Request, algorithm: str, config: Config) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of a launch without data, with all settings."""
        shape = self.shape(request, Rates(dict(request.constants)))
        return self.arguments(request, algorithm, self.complete(algorithm, shape, config))

    def choice(self, request: Request, shape: Shape) -> tuple[str, Config]:
        """The algorithm and settings of an estimate: of the candidates near the least by cost models, the fastest by
        `clock`, on the Shape's part of the request.

        Args: shape: the request's.
        """
        part = dataclasses.replace(request, problem=part_of(request.problem, request.asked, self.kept)[0])

        def launch(algorithm: str, config: Config) -> clock.Launch:
            return self.kernel[request.lnc], *self.arguments(part, algorithm, config)

        with without_collector():
            return clock.fastest(self.ranked(shape), launch, shape.rates, self.budget)

    def ranked(self, shape: Shape) -> list[Choice]:
        """Algorithms with settings near the least by cost models, the least first; for a video only the one with its
        stream's order of sums, if the kernel runs it.

        Settings of algorithms whose first guess is near the least are refined. If all refuse, the fallback, which
        refuses too.
        """
        of_stream = self.stream_choice(shape)
        if of_stream is not None:
            config = self.complete(of_stream[0], shape, None)
            if not self.kernel_reason(of_stream[0], shape, config):
                return [(of_stream[0], config)]
        # the best of each algorithm before all others
        refined: dict[Choice, tuple[bool, float]] = {}
        for name, guess in sorted(self.near_least(shape, self.algorithms), key=lambda one: one[1].ns):
            for one in self.known[name].refined(shape, guess):
                refined.setdefault((name, one.config), (any(other == name for other, _ in refined), one.ns))
        most_ns = clock.NEAR * min(refined.values(), default=(False, 0.0))[1]
        near = [one for one in sorted(refined, key=refined.__getitem__) if refined[one][1] <= most_ns]
        return [one for one in near if self.fits_whole(shape, *one)] or [(self.refuser(shape), None)]

    def refuser(self, shape: Shape) -> str:
        """The algorithm whose refusal is reported if none runs a problem."""
        return self.fallback

    def excludes(self, algorithm: str, shape: Shape) -> bool:
        """Whether an algorithm refuses a problem with any settings because of the arguments."""
        return False

    def near_least(self, shape: Shape, algorithms: Sequence[str], near: float = clock.NEAR) -> list[tuple[str, Guess]]:
        """(algorithm, first guess) of these algorithms, without guesses far above the least; without long kernels
        whose steps could run as device loops but do not, unless all are such."""

        def fits(one: tuple[str, Guess]) -> bool:
            return self.fits_whole(shape, one[0], one[1].config)

        def least_of(some: list[tuple[str, Guess]], fits: Callable[[tuple[str, Guess]], bool]) -> Guess | None:
            return next((one[1] for one in sorted(some, key=lambda one: one[1].ns) if fits(one)), None)

        every = sorted(algorithms, key=lambda one: self.known[one].turn)
        names = [one for one in every if not self.excludes(one, shape)]
        for limit in (near, math.inf):  # without, if others were left out for a guess that does not fit the whole
            found: list[tuple[str, Guess]] = []
            short: list[tuple[str, Guess]] = []
            least: Guess | None = None
            for name in names:
                most_ns = math.inf if least is None else limit * least.ns
                own = [(name, one) for one in self.known[name].guesses(shape, most_ns)]
                found += own
                short += [one for one in own if self.known[name].is_short(shape, one[1])]
                least = least_of(short, lambda one: self.fits_part(shape, one[0], one[1].config))
            if least is None or least is least_of(short, fits):
                break
        for some in (short, found):
            if (least := least_of(some, fits)) is not None:
                return [one for one in some if one[1].ns <= near * least.ns and fits(one)]
        return []

    def symbols(self, shape: Shape, algorithm: str, config: Config) -> dict[str, int]:
        """An algorithm's tile sizes and counts by name."""
        return symbols_of(self.known[algorithm].completed(shape, config))

    # A video and all its chunks have one order of sums, so that they round alike. It depends on the algorithm and some
    # of its settings (`Algorithm.order`): the best ones for chunks of a few lengths together.

    @once
    def stream_choice(self, shape: Shape) -> Choice | None:
        """The algorithm and settings of the first chunk of a video; None if it is no video.

        It is the best for all chunks together among the choices that are near the least for the first.
        """
        if not shape.chunks:
            return None
        first, *others = shape.chunks
        orders: dict[Choice, Guess] = {}
        for name, guess in sorted(self.near_least(first, self.algorithms), key=lambda one: one[1].ns):
            orders.setdefault((name, self.ordered(name, guess.config)), guess)

        def product_ns(order: Choice) -> float:
            guesses = [orders[order], *(self.known[order[0]].guess(one, order[1]) for one in others)]
            return math.prod(math.inf if one is None else one.ns for one in guesses)

        if not orders:
            return None
        best = min(orders, key=product_ns) if len(orders) > 1 else next(iter(orders))
        return best[0], orders[best].config

    def ordered(self, algorithm: str, config: Config) -> Config:
        """The settings of a config that decide the order of sums."""
        return tuple((name, value) for name, value in config or () if name in self.known[algorithm].order)

    def chunk_config(self, algorithm: str, shape: Shape) -> Config:
        """All settings of an algorithm for the first chunk of a video; None if it is no video."""
        best = self.stream_choice(shape)
        if best is None or best[0] == algorithm:
            return best and best[1]
        return self.known[algorithm].complete(shape.chunks[0], None)

    def _stream_settings(self, algorithm: str, shape: Shape) -> Config:
        """All settings in a video's order of sums: the others are the best, or if these do not fit the first chunk's;
        None if the kernel refuses both, or the algorithm has only one order."""
        first = self.chunk_config(algorithm, shape)
        own = self.ordered(algorithm, first)
        tried = (self.known[algorithm].complete(shape, own), first) if own else ()
        return next((one for one in tried if not self.kernel_reason(algorithm, shape, one)), None)


def epilogue_of(problem: ConvProblem, asked: Asked) -> Epilogue:
    """The kernels' Epilogue of a request."""
    present = True
    found: Epilogue = read_epilogue(
        asked.activation,
        present if asked.bias else None,
        None if asked.residual is None else present,
        asked.residual or RESIDUAL_POSITIONS[0],
        4 if (asked.out_dtype or problem.out_dtype) == "fp32" else 2,
        asked.chunks or "x",
        None if asked.y_norm is None else Norm(asked.y_norm, *(getattr(asked, name) for name in pixel_norms.BELONG)),
    )
    return found


def epilogue_arguments(problem: ConvProblem, asked: Asked) -> dict[str, Any]:
    """A kernel's arguments of the epilogue, without data; only those that are asked for."""
    found: dict[str, Any] = {}
    if asked.bias:
        found["bias"] = ArraySpec((problem.K,), "float32")
    if asked.residual is not None:
        found["residual"] = ArraySpec(problem.output_shape, nl_name(problem.out_dtype))
        found["residual_position"] = asked.residual
    found |= asked.given("activation", "y_norm")
    if asked.y_norm is not None:
        found |= {name: ArraySpec((problem.K,), "float32") for name in pixel_norms.OF_CHANNELS if getattr(asked, name)}
        found |= asked.given("return_before_norm")
    if asked.out_dtype is not None:
        found["out_dtype"] = getattr(nl, nl_name(asked.out_dtype))
    return found


def prologue_of(asked: Asked) -> Prologue:
    """The kernels' Prologue of a request."""
    return Prologue(asked.x_scale or "", asked.x_shift or "", asked.x_activation or "", asked.x_upsample)


def prologue_arguments(problem: ConvProblem, asked: Asked) -> dict[str, Any]:
    """A kernel's arguments of the prologue, without data; only those that are asked for."""
    found = asked.given("x_activation", "x_upsample")
    for name, form in asked.given("x_scale", "x_shift").items():
        shape = (problem.C,) if form == "channel" else (problem.N, problem.C)
        found[name] = ArraySpec(shape, "float32")
    return found
