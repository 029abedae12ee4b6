"""Named convolutions: the same list for the command line, the tests and the profiles.

A suite is a CSV file in nkiconv/data, a row a case. Its `source` column says where the shape comes from: nki-library's
tests of its depthwise conv1d, or layers of published models.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from nkiconv.errors import UnsupportedError
from nkiconv.problem import ConvProblem


@dataclass(frozen=True)
class Case:
    """A convolution worth naming."""

    name: str  # unique over all suites
    suite: str  # a key of `SUITES`
    problem: ConvProblem
    source: str  # who uses this shape
    headline: bool  # whether it belongs in a short table of results

    def toward(self, direction: str) -> Case:
        """The case of a gradient, "dgrad" or "wgrad", by its name; itself for "forward".

        Raises UnsupportedError: as `ConvProblem.toward`.
        """
        problem = self.problem.toward(direction)
        name = self.name if direction == "forward" else f"{self.name} {direction}"
        return dataclasses.replace(self, name=name, problem=problem)


@functools.cache
def load(suite: str) -> tuple[Case, ...]:
    """Return the cases of a suite, in the order of its file.

    Raises:
        UnsupportedError: no suite has this name.
    """
    suite = SUITE_ALIASES.get(suite, suite)
    if suite not in SUITES:
        raise UnsupportedError(f"suite={suite!r}: unknown name; use one of {', '.join(SUITES)}")
    text = (resources.files("nkiconv") / "data" / f"{suite}.csv").read_text(encoding="utf-8")
    return tuple(_case(suite, row) for row in csv.DictReader(text.splitlines()))


def names(suite: str | None = None) -> tuple[str, ...]:
    """Return the names of a suite's cases, or of all cases.

    Raises:
        UnsupportedError: no suite has this name.
    """
    suites = SUITES if suite is None else (suite,)
    return tuple(case.name for one in suites for case in load(one))


def get(name: str) -> Case:
    """Return the case of this name, from any suite.

    Raises:
        UnsupportedError: no such case; the message lists the closest names.
    """
    known = {case.name: case for suite in SUITES for case in load(suite)}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        remedy = f"did you mean {', '.join(close)}?" if close else "nkiconv.cases.names() lists them"
        raise UnsupportedError(f"case={name!r}: unknown name (among {len(known)}); {remedy}")
    return known[name]


def _case(suite: str, row: dict[str, str]) -> Case:
    return Case(row["name"], suite, SUITES[suite](row), row["source"], row["headline"] == "1")


def _depthwise_conv1d(row: dict[str, str]) -> ConvProblem:
    return ConvProblem(
        **_ints(row, "N C W S"),
        groups=int(row["C"]),
        stride=(1, int(row["stride"])),
        padding=((0, 0), _int_pair(row, "pad_left", "pad_right")),
        rhs_dilation=(1, int(row["dilation"])),
        dtype=row["dtype"],
    )


def _conv2d(row: dict[str, str]) -> ConvProblem:
    return ConvProblem(
        **_ints(row, "N C H W K R S groups"),
        stride=_int_pair(row, "stride_h", "stride_w"),
        padding=(_int_pair(row, "pad_top", "pad_bottom"), _int_pair(row, "pad_left", "pad_right")),
        rhs_dilation=_int_pair(row, "dil_h", "dil_w"),
        dtype=row["dtype"],
    )


def _conv3d(row: dict[str, str]) -> ConvProblem:
    sides = (("pad_front", "pad_back"), ("pad_top", "pad_bottom"), ("pad_left", "pad_right"))
    return ConvProblem(
        **_ints(row, "N C D H W K T R S groups"),
        stride=tuple(int(row[f"stride_{axis}"]) for axis in "dhw"),
        padding=tuple(_int_pair(row, *side) for side in sides),
        dtype=row["dtype"],
    )


def _conv_transpose(row: dict[str, str]) -> ConvProblem:
    """A row with torch's arguments; those of depth are empty of images."""
    axes, extents = ("dhw", "N C D H W K groups") if row["D"] else ("hw", "N C H W K groups")

    def places(what: str) -> tuple[int, ...]:
        return tuple(int(row[f"{what}_{axis}"]) for axis in axes)

    return ConvProblem.transpose(
        **_ints(row, extents),
        taps=tuple(int(row[letter]) for letter in "TRS"[-len(axes) :]),
        stride=places("stride"),
        padding=tuple((side, side) for side in places("pad")),
        output_padding=places("more"),
        dilation=places("dil"),
        dtype=row["dtype"],
    )


def _ints(row: dict[str, str], columns: str) -> dict[str, Any]:
    return {column: int(row[column]) for column in columns.split()}


def _int_pair(row: dict[str, str], first: str, second: str) -> tuple[int, int]:
    return int(row[first]), int(row[second])


#: Shorter names of suites.
SUITE_ALIASES = {"depthwise": "depthwise_conv1d"}
#: How a row of each suite's file is read.
SUITES: dict[str, Callable[[dict[str, str]], ConvProblem]] = {
    "depthwise_conv1d": _depthwise_conv1d,
    "conv2d": _conv2d,
    "conv3d": _conv3d,
    "conv_transpose": _conv_transpose,
    "deepbench": _conv2d,
    "training": _conv2d,
}
