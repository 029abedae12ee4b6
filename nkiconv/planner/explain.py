"""Plans as text: a problem in words, the alternatives, the rejected candidates with reasons, and the symbols."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..problem import ConvProblem
from .request import Asked, Config

#: Characters of a line of text, and of a line of `print`.
WIDTH, SCREEN = 116, 80
#: Most and least characters of a line of settings.
SETTINGS_WIDTH, SETTINGS_LEAST = 48, 10
#: The regret above which a search looks for a hedge, and a plan says that it has none.
RUINOUS = 1.15
#: The word before the settings in which a row differs.
BUT = "but "


@dataclass(frozen=True)
class Alternative:
    """A timed algorithm with its settings. Times are modelled, means over two phases (`Traced.us`)."""

    algorithm: str
    config: Config
    us: float
    bound_by: str  # of the problem or part that was timed
    instructions: int  # of all cores, as compiled
    #: extent of the reduced problem that `us` is extrapolated from; None: the whole problem was timed
    extrapolated_from: int | None = None
    #: whether `us` is only a lower bound, above the best: the busiest engine's work, without waits
    at_least: bool = False


@dataclass(frozen=True)
class Rejection:
    """An algorithm with settings that cannot run the problem, and the reason."""

    algorithm: str
    config: Config
    reason: str


@dataclass(frozen=True)
class Risk:
    """An inferred constant that makes a plan slower at an end of its range: the value; the plan's modelled us there;
    and the fastest timed candidate there, perhaps the plan itself, with its us there and as assumed."""

    constant: str
    value: float
    us: float
    algorithm: str
    config: Config
    least_us: float
    assumed_us: float

    @property
    def regret(self) -> float:
        """The plan's time over the least time there."""
        return self.us / self.least_us

    @property
    def text(self) -> str:
        """The risk as a line of text."""
        found = f"{self.constant}, which is inferred, may be {self.value:g}: {self.us:,.2f} us then"
        if self.least_us == self.us:
            return f"{found}, still the least of what was timed"
        least = f"{self.algorithm}, {settings_text(self.config)}, would take {self.least_us:,.2f} us"
        return f"{found}, {self.regret:.2f} times the least: {least}, and {self.assumed_us:,.2f} us as it is assumed"


def settings_text(config: Config) -> str:
    """A config in words."""
    if config is None:
        return "defaults"
    return " ".join(f"{name}={_value_text(value)}" for name, value in config)


def _value_text(value: Any) -> str:
    """A setting's value as text; equal neighbours in a tuple of tuples are written once, as in "(3,1,0,0)x4"."""
    if not isinstance(value, tuple):
        return str(value)
    texts = []
    for one, alike in itertools.groupby(value):
        text, count = _value_text(one), len(list(alike))
        texts += [f"{text}x{count}"] if count > 1 and isinstance(one, tuple) else [text] * count
    return "(" + ",".join(texts) + ")"


def problem_words(problem: ConvProblem, asked: Asked) -> tuple[str, str]:
    """(images and results, as in "8 64 56 56 -> 64 56 56"; filters and all arguments that are not defaults). Rows are
    without their axis of height 1."""
    axes, parts = list(problem.axes), ["x".join(str(axis.taps) for axis in problem.axes)]
    if problem.H == problem.R == problem.P == 1 and not problem.is_volume:
        axes, parts = [problem.width], [f"S={problem.S}"]
    for name in ("stride", "rhs_dilation", "lhs_dilation"):
        values = [getattr(axis, name) for axis in axes]
        if set(values) != {1}:
            parts.append(f"{name.removeprefix('rhs_')}={'x'.join(map(str, dict.fromkeys(values)))}")
    parts += [f"groups={problem.groups}"] if problem.groups > 1 else []
    parts += [problem.dtype] if problem.channels_first else [problem.dtype, problem.layout]
    norm = asked.y_norm and f"{asked.y_norm} norm{', and before it' if asked.return_before_norm else ''}"
    words = "packed" if asked.packed else "", "bias" if asked.bias else "", norm, asked.activation
    on_x = (asked.x_scale and "x_scale", asked.x_shift and "x_shift", asked.x_activation and f"x_{asked.x_activation}")
    after = asked.residual and "residual", asked.return_stats and "statistics"
    parts += [word for word in (*words, *after, asked.chunks, *on_x) if word]
    parts += [f"x_upsample={asked.x_upsample}"] if asked.x_upsample > 1 else []
    x, y = [axis.size for axis in axes], [axis.out for axis in axes]
    shape = " ".join(map(str, (problem.N, problem.C, *x, "->", problem.K, *y)))
    return shape, " ".join(parts)


def runner_up_text(alternatives: Sequence[Alternative]) -> str:
    """The best of the other algorithms, and the ratio of its time; "" without another algorithm."""
    first = alternatives[0]
    others = (one for one in alternatives if one.algorithm != first.algorithm)
    best = min(others, key=lambda one: one.us, default=None)
    if best is None:
        return ""
    least = "at least " if best.at_least else ""
    return f"next best: {best.algorithm}, {least}{best.us / first.us:.2f} times as long"


def alternatives_text(alternatives: Sequence[Alternative], width: int) -> list[str]:
    """A table of alternatives, the fastest first, at most `width` characters wide if wrapped settings allow it."""
    first = {one.algorithm: one.config for one in reversed(alternatives)}
    rows = [_row(one, alternatives[0].us, first[one.algorithm]) for one in alternatives]
    headings = "algorithm", "settings", "us, 2 phases", "x best", "bound by", "instructions"
    others = sum(max(map(len, column)) + 2 for i, column in enumerate(zip(headings, *rows, strict=True)) if i != 1)
    found = table(headings, rows, (2, 3, 5), max(SETTINGS_LEAST, min(SETTINGS_WIDTH, width - others)))
    if any(row[2].startswith("~") for row in rows):
        found.append("~ extrapolated from parts, to rank only")
    if any(row[2].startswith(">") for row in rows):
        note = "> at least: one engine alone, or the instructions' issue, takes longer than the best"
        found += wrapped([note], width)
    if any(row[1].startswith(BUT) for row in rows):
        found.append(f"{BUT.strip()}: the settings of the algorithm's first row, except for these")
    return found


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Lines of text of at most `width` characters, longer ones cut between words."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False)
    return list(itertools.chain.from_iterable(map(wrapper.wrap, lines)))


def _row(one: Alternative, best: float, first: Config) -> tuple[str, ...]:
    """The cells of an alternative; of settings with the same names as its algorithm's first ones, those that differ."""
    sign = ">" if one.at_least else "~" if one.extrapolated_from is not None else ""
    us, share = f"{sign}{one.us:,.2f}", f"{sign if one.at_least else ''}{one.us / best:.2f}"
    config, settings = one.config, settings_text(one.config)
    if config and first and config != first and dict(config).keys() == dict(first).keys():
        settings = BUT + settings_text(tuple(entry for entry in config if entry not in first))
    return one.algorithm, settings, us, share, one.bound_by, f"{one.instructions:,}" if one.instructions else "-"


def rejected_text(rejected: Sequence[Rejection], width: int) -> list[str]:
    """The rejected candidates with their reasons, after an empty line; [] without any."""
    if not rejected:
        return []
    lines = ["", f"{len(rejected)} rejected:"]
    for one in rejected:
        text = f"{one.algorithm}, {settings_text(one.config)}: {one.reason}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return lines


def symbols_text(symbols: Mapping[str, int], width: int) -> list[str]:
    """Names with values, as many in a line as `width` allows."""
    entries = "  ".join(f"{name}={value}" for name, value in symbols.items())
    return textwrap.wrap(entries, width, break_long_words=False, break_on_hyphens=False)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int], most: int = SETTINGS_WIDTH
) -> list[str]:
    """Aligned columns, those of the indices `right` to the right; cells are wrapped to `most` characters."""
    split = [[textwrap.wrap(cell, most, break_on_hyphens=False) or [""] for cell in row] for row in rows]
    widths = [
        max(len(text) for row in [[[h] for h in headings], *split] for text in row[i]) for i in range(len(headings))
    ]

    def lines(cells: Sequence[Sequence[str]]) -> list[str]:
        found = []
        for texts in itertools.zip_longest(*cells, fillvalue=""):
            columns = enumerate(zip(texts, widths, strict=True))
            padded = [text.rjust(n) if i in right else text.ljust(n) for i, (text, n) in columns]
            found.append("  ".join(padded).rstrip())
        return found

    body = [line for row in split for line in lines(row)]
    return [*lines([[h] for h in headings]), *lines([["-" * n] for n in widths]), *body]
