"""A shape of the caller's own for `plan`, `tune` and `profile`: extents as options instead of a case's name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ...cases import Case
from ...errors import GeometryError, NkiconvError, UnsupportedError, raise_all
from ...problem import Axis, ConvProblem
from .file_options import FileOptions
from .options import named_cases
from .show import extents

#: Paddings by name; the last is of rows only.
_NAMES = ("valid", "same", "causal")


def _extent(letter: str, what: str) -> Any:
    return typer.Option(f"--{letter}", help=what, show_default=False, rich_help_panel="A shape instead of a case")


def _text(name: str, what: str) -> Any:
    return typer.Option(f"--{name}", help=what, show_default=False, rich_help_panel="A shape instead of a case")


N = Annotated[int | None, _extent("N", "Images (1).")]
C = Annotated[int | None, _extent("C", "Input channels.")]
H = Annotated[int | None, _extent("H", "Input rows (1).")]
W = Annotated[int | None, _extent("W", "Input columns.")]
K = Annotated[int | None, _extent("K", "Output channels (C).")]
R = Annotated[int | None, _extent("R", "Filter rows (1).")]
S = Annotated[int | None, _extent("S", "Filter columns.")]
Groups = Annotated[int | None, _extent("groups", "Of channels (C without K, H and R: depthwise; else 1).")]
Stride = Annotated[str | None, _text("stride", "int, or height,width (1).")]
Padding = Annotated[
    str | None,
    _text(
        "padding",
        "int; left,right of rows; height,width; top,bottom,left,right; valid, same; causal for rows (0).",
    ),
]
Dilation = Annotated[str | None, _text("dilation", "Distance of neighbouring taps, as --stride (1).")]
LhsDilation = Annotated[str | None, _text("lhs-dilation", "Distance of neighbouring inputs, as --stride (1).")]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """As typed; None where not given."""

    N: int | None = None
    C: int | None = None
    H: int | None = None
    W: int | None = None
    K: int | None = None
    R: int | None = None
    S: int | None = None
    groups: int | None = None
    stride: str | None = None
    padding: str | None = None
    dilation: str | None = None
    lhs_dilation: str | None = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]

    def case(self, dtype: str | None, layout: str | None) -> Case:
        """The case that these extents are.

        Raises UnsupportedError: C, W or S is missing. GeometryError, DtypeError, LayoutError: as `ConvProblem`.
        """
        raise_all("this is no shape", list(self._missing()))
        rows = self.H is None and self.R is None
        typed = FileOptions(
            stride=self.stride, padding=self.padding, dilation=self.dilation, lhs_dilation=self.lhs_dilation
        ).geometry("conv1d" if rows else "conv2d")
        stride, dilation, spread = (_pair(typed.get(name, 1), rows) for name in ("stride", "dilation", "lhs_dilation"))
        sizes, taps = (self.H or 1, self.W or 1), (self.R or 1, self.S or 1)
        axes = [Axis(sizes[i], taps[i], stride[i], 0, 0, dilation[i], spread[i]) for i in (0, 1)]
        groups = self.groups
        if groups is None:
            groups = self.C if self.C is not None and rows and self.K is None else 1
        problem = ConvProblem(
            **{name: value for name, value in vars(self).items() if name in "CHWKRS" and value is not None},
            N=1 if self.N is None else self.N,
            groups=groups,
            stride=stride,
            padding=_padding(typed.get("padding", 0), axes, rows),
            rhs_dilation=dilation,
            lhs_dilation=spread,
            dtype=dtype or "bf16",
            layout=layout or "NCHW",
        )
        operations = importlib.import_module("nkiconv.planner.operations")
        return Case(extents(problem), operations.operation_of(problem).name, problem, "the command line", False)

    def _missing(self) -> Iterator[NkiconvError]:
        missing = [name for name in ("C", "W", "S") if getattr(self, name) is None]
        if missing:
            yield UnsupportedError(
                f"{', '.join(f'--{name}' for name in missing)}: a shape has at least C, W and S; give them, or name a "
                "case (nkiconv cases)"
            )


def chosen_cases(names: list[str] | None, shape: Shape, dtype: str | None, layout: str | None) -> list[Case]:
    """The cases that were named, or the one shape that was given.

    Raises UnsupportedError: both or neither; and as `named_cases` and `Shape.case`.
    """
    if names and shape.given:
        raise UnsupportedError(f"{', '.join(shape.given)}: a shape, and {', '.join(names)} is named too; drop one")
    if not names and not shape.given:
        raise UnsupportedError("CASE: none is named; name one (nkiconv cases), or give a shape: --C 512 --W 5000 --S 8")
    return [shape.case(dtype, layout)] if shape.given else named_cases(names, layout)


def _pair(value: Any, rows: bool) -> tuple[int, int]:
    """(height, width) of an int or a pair; rows have no height."""
    return value if isinstance(value, tuple) else (1 if rows else value, value)


def _padding(value: Any, axes: list[Axis], rows: bool) -> Any:
    """((top, bottom), (left, right)) of an int, pairs or a name; axes: height and width, without padding.

    Raises GeometryError: a name that is none, or not of this shape.
    """
    if isinstance(value, tuple):
        return ((0, 0), value) if rows else value
    if not isinstance(value, str):
        return ((0, 0) if rows else (value, value), (value, value))
    named = _NAMES if rows else _NAMES[:2]
    if value not in named:
        raise GeometryError(f"--padding={value}: accepted names are {', '.join(named)}; use one, or numbers")
    if value == "valid":
        return (0, 0), (0, 0)
    if any(axis.lhs_dilation != 1 for axis in axes):
        raise GeometryError(f"--padding={value}: is not defined with --lhs-dilation; give numbers")
    if value == "causal":
        return (0, 0), (axes[1].window - 1, 0)
    same = importlib.import_module("nkiconv.api.calls").same_padding
    return tuple(same(axis.size, axis.taps, axis.stride, axis.rhs_dilation) for axis in axes)
