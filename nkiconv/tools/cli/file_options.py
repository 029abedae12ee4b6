"""The options of `nkiconv run` with --input, and the parsing of those typed as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import GeometryError, NkiconvError, UnsupportedError

#: Operations on files, by the rank of the filter that means each; depthwise_conv2d has to be asked for.
BY_RANK = {2: "depthwise_conv1d", 3: "conv1d", 4: "conv2d"}
OPERATIONS = (*BY_RANK.values(), "depthwise_conv2d")
#: Largest number of an option.
_MOST = 2**31 - 1
#: Options that an operation has no use for, and why.
_NOT_TAKEN = {
    "depthwise_conv1d": {
        "groups": "each channel has its own filter",
        "layout": "rows are [N, C, W]",
        "filter_layout": "filters are [C, S]",
        "precision": "products of fp32 are taken as fp32",
    },
    "depthwise_conv2d": {
        "groups": "there are as many as channels",
        "filter_layout": "filters are [C * multiplier, 1, R, S]",
        "lhs_dilation": "only conv2d has it",
    },
}


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The options as typed; None if not given. Paths are FILE or FILE:NAME."""

    input: str | None = None
    filter: str | None = None
    bias: str | None = None
    residual: str | None = None
    residual_position: str | None = None
    out: str | None = None
    force: bool | None = None
    dtype: str | None = None
    operation: str | None = None
    groups: int | None = None
    stride: str | None = None
    padding: str | None = None
    dilation: str | None = None
    lhs_dilation: str | None = None
    activation: str | None = None
    filter_layout: str | None = None

    def given(self) -> list[str]:
        """The options that were given, as typed."""
        return [_option(name) for name, value in vars(self).items() if value not in (None, False)]

    def contradictions(self) -> Iterator[NkiconvError]:
        """Options that no files could make sense of."""
        if self.input is not None and self.filter is None:
            yield UnsupportedError(
                "--filter: is needed with --input; give the file of w, [C, S], [K, C / groups, S] or "
                "[K, C / groups, R, S]"
            )
        if self.operation is not None and self.operation not in OPERATIONS:
            yield UnsupportedError(
                f"--operation={self.operation}: accepted are {', '.join(OPERATIONS)}; use one of them"
            )
        if self.force and self.out is None:
            yield UnsupportedError("--force: lets --out overwrite, and there is no --out; give one or drop it")
        if self.residual_position is not None and self.residual is None:
            yield UnsupportedError(
                f"--residual-position={self.residual_position}: there is no --residual; give one or drop it"
            )

    def not_taken(self, operation: str, layout: str | None, precision: str | None) -> Iterator[NkiconvError]:
        """Options that were given and that the operation has no use for."""
        values = {**vars(self), "layout": layout, "precision": precision}
        for name, why in _NOT_TAKEN.get(operation, {}).items():
            if values[name] is not None:
                yield UnsupportedError(f"{_option(name)}={values[name]}: {operation} takes none ({why}); drop it")

    def geometry(self, operation: str) -> dict[str, Any]:
        """stride, padding, dilation, lhs_dilation and groups, those that were given, as the operation takes them.

        Raises GeometryError: text that is no number, or too many numbers.
        """
        axes = {"conv2d": 2, "depthwise_conv2d": 2, "conv3d": 3}.get(operation, 1)
        extents = {"stride": self.stride, "dilation": self.dilation, "lhs_dilation": self.lhs_dilation}
        found: dict[str, Any] = {
            name: extents_of(_option(name), text, axes) for name, text in extents.items() if text is not None
        }
        if self.padding is not None:
            found["padding"] = _padding(self.padding, axes)
        return found if self.groups is None else {**found, "groups": self.groups}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


#: One number an axis, in words and for example, by how many axes there are.
_EACH = {
    1: ("one number (rows have one axis)", "2"),
    2: ("one number or height,width", "2,1"),
    3: ("one number or depth,height,width", "1,2,2"),
}
#: The same of padding.
_SIDES = {
    1: "one number or left,right",
    2: "one number, height,width or top,bottom,left,right",
    3: "one number, depth,height,width or front,back,top,bottom,left,right",
}


def extents_of(option: str, text: str, axes: int) -> Any:
    """An int, or one for each of several axes.

    Raises GeometryError: text that is no number, or too many numbers.
    """
    numbers = _numbers(option, text)
    if len(numbers) == 1:
        return numbers[0]
    if axes > 1 and len(numbers) == axes:
        return numbers
    wanted, example = _EACH[axes]
    raise GeometryError(f"{option}={text}: must be {wanted}; write {option} {example}, say")


def _padding(text: str, axes: int) -> Any:
    """An int, pairs of ints, or a name as typed."""
    numbers = _numbers("--padding", text)
    if not numbers and "," not in text:
        return text
    if len(numbers) == 1:
        return numbers[0]
    if axes == 1 and len(numbers) == 2:
        return numbers
    if axes > 1 and len(numbers) == axes:
        return tuple((number, number) for number in numbers)
    if axes > 1 and len(numbers) == 2 * axes:
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
    raise GeometryError(f"--padding={text}: must be {_SIDES[axes]}, or a name; give as many")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """The ints between commas; empty if one of them is not an int.

    Raises GeometryError: one of them is beyond 32 bits.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        return ()
    if any(abs(number) > _MOST for number in numbers):
        raise GeometryError(f"{option}={text}: must lie within {_MOST:,} (extents are 32-bit ints); give less")
    return numbers
