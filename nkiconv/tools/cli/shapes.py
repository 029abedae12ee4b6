"""A shape of the caller's own for `plan`, `tune` and `profile`: extents as options instead of a case's name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ... import rules
from ...axis import Axis, padding_pairs
from ...cases import Case
from ...errors import GeometryError, NkiconvError, UnsupportedError, raise_all, refuse
from ...problem import ConvProblem
from .file_options import FileOptions, extents_of
from .options import given_options, named_cases
from .show import extents


def _option(name: str, what: str) -> Any:
    return typer.Option(f"--{name}", help=what, show_default=False, rich_help_panel="A shape instead of a case")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The options as typed; None if not given."""

    N: Annotated[int | None, _option("N", "Images (1).")] = None
    C: Annotated[int | None, _option("C", "Input channels.")] = None
    D: Annotated[int | None, _option("D", "Input planes, of volumes.")] = None
    H: Annotated[int | None, _option("H", "Input rows (1).")] = None
    W: Annotated[int | None, _option("W", "Input columns.")] = None
    K: Annotated[int | None, _option("K", "Output channels (C).")] = None
    T: Annotated[int | None, _option("T", "Filter planes, of volumes (1).")] = None
    R: Annotated[int | None, _option("R", "Filter rows (1).")] = None
    S: Annotated[int | None, _option("S", "Filter columns.")] = None
    groups: Annotated[
        int | None, _option("groups", "Of channels (C without K, H, R and --transposed: depthwise; else 1).")
    ] = None
    stride: Annotated[str | None, _option("stride", "int, or height,width; of volumes depth,height,width (1).")] = None
    padding: Annotated[
        str | None,
        _option(
            "padding",
            "int; left,right of rows; height,width; top,bottom,left,right; of volumes with depth or front,back before; "
            "valid, same; causal for rows (0). With --transposed what is taken off y, in numbers.",
        ),
    ] = None
    dilation: Annotated[str | None, _option("dilation", "Distance of neighbouring taps, as --stride (1).")] = None
    lhs_dilation: Annotated[
        str | None, _option("lhs-dilation", "Distance of neighbouring inputs, as --stride (1).")
    ] = None
    transposed: Annotated[
        bool, _option("transposed", "A transposed convolution, with torch's stride, padding and dilation.")
    ] = False
    output_padding: Annotated[
        str | None, _option("output-padding", "With --transposed: of y more after each axis, as --stride (0).")
    ] = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return given_options(self)

    def case(self, dtype: str | None, layout: str | None) -> Case:
        """The case that these extents are.

        Raises UnsupportedError: C, W or S is missing. GeometryError, DtypeError, LayoutError: as `ConvProblem`.
        """
        raise_all("this is no shape", [*self._missing(), *self._untransposed()])
        volume = self.D is not None or self.T is not None
        rows = self.H is None and self.R is None and not volume
        typed = FileOptions(
            stride=self.stride, padding=self.padding, dilation=self.dilation, lhs_dilation=self.lhs_dilation
        ).geometry("conv1d" if rows else "conv3d" if volume else "conv2d")
        fields = {name: value for name, value in vars(self).items() if name in "CDHWK" and value is not None} | {
            "N": 1 if self.N is None else self.N,
            "groups": self._groups(rows),
            "dtype": dtype or "bf16",
            "layout": {"NCHW": "NCDHW", "NHWC": "NDHWC"}.get(layout or "", layout) if volume else layout,
        }
        make = self._transposed if self.transposed else self._forward
        problem = make(typed, 3 if volume else 2, rows, fields)
        operations = importlib.import_module("nkiconv.planner.operations")
        return Case(extents(problem), operations.operation_of(problem).name, problem, "the command line", False)

    def _groups(self, rows: bool) -> int:
        """As given; else as many as channels of rows to which there are no output channels."""
        if self.groups is not None:
            return self.groups
        return self.C if self.C is not None and rows and self.K is None and not self.transposed else 1

    def _forward(self, typed: dict[str, Any], axes_count: int, rows: bool, fields: dict[str, Any]) -> ConvProblem:
        """The problem of numbers as typed, and of the other fields."""
        stride, dilation, spread = (
            _places(typed.get(name, 1), axes_count, rows) for name in ("stride", "dilation", "lhs_dilation")
        )
        sizes, taps = (self.D or 1, self.H or 1, self.W or 1), (self.T or 1, self.R or 1, self.S or 1)
        ends = zip(sizes[-axes_count:], taps[-axes_count:], stride, dilation, spread, strict=True)
        axes = [Axis(size, tap, step, 0, 0, apart, between) for size, tap, step, apart, between in ends]
        return ConvProblem(
            **fields,
            **{name: value for name, value in vars(self).items() if name in "TRS" and value is not None},
            stride=stride,
            padding=_padding(typed.get("padding", 0), axes, rows),
            rhs_dilation=dilation,
            lhs_dilation=spread,
        )

    def _transposed(self, typed: dict[str, Any], axes_count: int, rows: bool, fields: dict[str, Any]) -> ConvProblem:
        """The same of a transposed convolution.

        Raises GeometryError: a padding that is a name, output padding that torch refuses.
        """
        padding, more = typed.get("padding", 0), 0
        if isinstance(padding, str):
            raise GeometryError(f"--padding={padding}: is not defined with --transposed; give numbers")
        if self.output_padding is not None:
            more = extents_of("--output-padding", self.output_padding, 1 if rows else axes_count)
        stride, dilation = (_places(typed.get(name, 1), axes_count, rows) for name in ("stride", "dilation"))
        beyond = (0, more) if rows else _places(more, axes_count, rows)
        if any(not 0 <= one < max(pair) for one, *pair in zip(beyond, stride, dilation, strict=True) if one):
            raise GeometryError(
                f"--output-padding={self.output_padding}: must be at least 0 and below stride or dilation on each "
                f"axis; use less"
            )
        return ConvProblem.transpose(
            **fields,
            taps=(self.T or 1, self.R or 1, self.S or 1)[-axes_count:],
            stride=stride,
            padding=_padding(padding, [Axis(1, 1, 1, 0, 0, 1, 1)] * axes_count, rows),
            output_padding=beyond,
            dilation=dilation,
        )

    def _untransposed(self) -> Iterator[NkiconvError]:
        if self.transposed and self.lhs_dilation is not None:
            yield UnsupportedError(
                f"--lhs-dilation={self.lhs_dilation}: is what --stride says with --transposed; drop it"
            )
        if self.output_padding is not None and not self.transposed:
            yield UnsupportedError(
                f"--output-padding={self.output_padding}: is of transposed convolutions; give --transposed, or drop it"
            )

    def _missing(self) -> Iterator[NkiconvError]:
        if self.T is not None and self.D is None:
            yield UnsupportedError(f"--T={self.T}: filter planes need input planes; give --D, or drop it")
        missing = [name for name in ("C", "W", "S") if getattr(self, name) is None]
        if missing:
            yield UnsupportedError(
                f"{', '.join(f'--{name}' for name in missing)}: a shape has at least C, W and S; give them, or name a "
                "case (nkiconv cases)"
            )


def chosen_cases(
    names: list[str] | None, shape: Shape, dtype: str | None, layout: str | None, direction: str
) -> list[Case]:
    """The cases that were named, or the one shape that was given; or their gradients.

    Raises UnsupportedError: both or neither; and as `named_cases` and `Shape.case`.
    """
    if names and shape.given:
        raise UnsupportedError(f"{', '.join(shape.given)}: a shape, and {', '.join(names)} is named too; drop one")
    if not names and not shape.given:
        raise UnsupportedError("CASE: none is named; name one (nkiconv cases), or give a shape: --C 512 --W 5000 --S 8")
    return [shape.case(dtype, layout).toward(direction)] if shape.given else named_cases(names, layout, direction)


def _places(value: Any, axes: int, rows: bool) -> tuple[int, ...]:
    """A number for each axis; rows have no height."""
    if isinstance(value, tuple):
        return value
    return (1, value) if rows else (value,) * axes


def _padding(value: Any, axes: list[Axis], rows: bool) -> Any:
    """Pairs of zeros of an int, pairs or a name; axes: those of x, without padding.

    Raises GeometryError: a name that is none, or not of this shape.
    """
    used = axes[-1:] if rows else axes
    if isinstance(value, str):
        spread = tuple(axis.lhs_dilation for axis in used)
        refuse(
            GeometryError,
            rules.accepted("--padding", value, rules.PADDINGS[: 3 if rows else 2], "use one, or numbers"),
            rules.same_padding(value, spread, len(used), "--padding", "--lhs-dilation"),
        )
    pairs = padding_pairs(value, [(axis.size, axis.taps, axis.stride, axis.rhs_dilation) for axis in used])
    return ((0, 0), *pairs) if rows else pairs
