"""The options of `nkiconv run` with --input, and the parsing of those typed as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ...errors import GeometryError, NkiconvError, UnsupportedError
from ...rules import ACTIVATIONS
from .options import option_name
from .paths import idle_force

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


def _file(what: str) -> Any:
    """An option that takes FILE or FILE:NAME."""
    return typer.Option(metavar="FILE[:NAME]", help=what)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The options as typed; None if not given. Paths are FILE or FILE:NAME."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[:NAME]|SHAPE:DTYPE",
            help="x: .npy, .npz, .safetensors, .png, .jpg or .wav. Of a kernel FILE.py:KERNEL, in order: such files, "
            "or random data, as in 1x512x5000:bf16; repeatable.",
        ),
    ] = None
    filter: Annotated[str | None, _file(r"w: \[C, S], \[K, C/groups, S] or \[K, C/groups, R, S].")] = None
    bias: Annotated[str | None, _file(r"\[K].")] = None
    residual: Annotated[str | None, _file("Added to the sums; shape of y.")] = None
    residual_position: Annotated[
        str | None, typer.Option(help="pre_activation (default) or post_activation.", show_default=False)
    ] = None
    activation: Annotated[str | None, typer.Option(help=f"One of {', '.join(ACTIVATIONS)}.")] = None
    out: Annotated[str | None, _file("Write y to this file if it is right; arrays by the name y.")] = None
    force: Annotated[bool, typer.Option("--force", help="Let --out overwrite.")] = False
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of named cases instead of their own; of pictures and sound instead of fp32; of files, what NumPy's "
            "raw |V2 (bf16) and |V1 (fp8_e4m3, fp8_e5m2) are."
        ),
    ] = None
    operation: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(OPERATIONS)}. Default: depthwise_conv1d, conv1d, conv2d by w's rank."),
    ] = None
    groups: Annotated[int | None, typer.Option(help="Of conv1d and conv2d. Default 1.")] = None
    stride: Annotated[str | None, typer.Option(help="int, or height,width for images. Default 1.")] = None
    padding: Annotated[
        str | None,
        typer.Option(
            help="int; left,right of rows; height,width or top,bottom,left,right of images; valid, same, or causal for "
            "rows. Default 0."
        ),
    ] = None
    dilation: Annotated[str | None, typer.Option(help="Distance of neighbouring taps, as --stride. Default 1.")] = None
    lhs_dilation: Annotated[
        str | None, typer.Option(help="Distance of neighbouring inputs, as --stride. Default 1.")
    ] = None
    filter_layout: Annotated[
        str | None, typer.Option(help="Of w in its file: KCRS, RSCK or KRSC; for conv1d KCS, SCK or KSC.")
    ] = None

    @property
    def x(self) -> str:
        """The file of x."""
        assert self.input
        return self.input[0]

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
        yield from idle_force(self.force, {"--out": self.out})
        if self.residual_position is not None and self.residual is None:
            yield UnsupportedError(
                f"--residual-position={self.residual_position}: there is no --residual; give one or drop it"
            )

    def not_taken(self, operation: str, layout: str | None, precision: str | None) -> Iterator[NkiconvError]:
        """Options that were given and that the operation has no use for."""
        values = {**vars(self), "layout": layout, "precision": precision}
        for name, why in _NOT_TAKEN.get(operation, {}).items():
            if values[name] is not None:
                yield UnsupportedError(f"{option_name(name)}={values[name]}: {operation} takes none ({why}); drop it")

    def geometry(self, operation: str) -> dict[str, Any]:
        """stride, padding, dilation, lhs_dilation and groups, those that were given, as the operation takes them.

        Raises GeometryError: text that is no number, or too many numbers.
        """
        axes = {"conv2d": 2, "depthwise_conv2d": 2, "conv3d": 3}.get(operation, 1)
        extents = {"stride": self.stride, "dilation": self.dilation, "lhs_dilation": self.lhs_dilation}
        found: dict[str, Any] = {
            name: extents_of(option_name(name), text, axes) for name, text in extents.items() if text is not None
        }
        if self.padding is not None:
            found["padding"] = _padding(self.padding, axes)
        return found if self.groups is None else {**found, "groups": self.groups}


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
