"""Options that several commands share, the cases they name, and how `--constant NAME=VALUE` is read."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeVar

import typer

from ... import cases
from ...cases import Case
from ...errors import NkiconvError, UnsupportedError, raise_all

CASES = typer.Argument(metavar="CASE...", help="See nkiconv cases.")

Names = Annotated[list[str], CASES]
NoNames = Annotated[list[str] | None, CASES]
Dtype = Annotated[
    str | None,
    typer.Option(help="bf16, fp16, fp32, or but for depthwise_conv1d fp8_e4m3 or fp8_e5m2, instead of the case's own."),
]
Precision = Annotated[
    str | None,
    typer.Option(help="How products are taken: of fp32 bf16, tf32 or fp16x3; of bf16 and fp16 volumes winograd."),
]
Layout = Annotated[str | None, typer.Option(help="Of x and y in memory: NCHW or NHWC, instead of the case's own.")]
Direction = Annotated[
    str,
    typer.Option(help="forward, or a gradient of the convolution: dgrad, that of x, or wgrad, that of its filters."),
]
Lnc = Annotated[int, typer.Option(help="Cores: 1 or 2.")]
Algorithm = Annotated[str | None, typer.Option(help="Default: the estimate.")]
Constants = Annotated[
    list[str] | None,
    typer.Option("--constant", metavar="NAME=VALUE", help="A modelling constant instead of trn2.toml's; repeatable."),
]
Arg = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Of a kernel: a Python literal or nl.NAME; repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Let files be overwritten.")]
Fresh = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write cached plans.")]


_Options = TypeVar("_Options")


def typed(kind: type[_Options], arguments: dict[str, Any]) -> _Options:
    """A dataclass of options, from all arguments of a command by name."""
    return kind(**{one.name: arguments[one.name] for one in dataclasses.fields(kind)})  # type: ignore[arg-type]


def named_cases(names: list[str] | None, layout: str | None, direction: str = "forward") -> list[Case]:
    """The cases of these names, in another layout if one is given, or their gradients.

    Raises: UnsupportedError, LayoutError: there is no such case, layout or direction.
    """
    found = [cases.get(name) for name in names or []]
    if layout is not None:
        found = [dataclasses.replace(case, problem=case.problem.replace(layout=layout)) for case in found]
    return [case.toward(direction) for case in found]


def read_constants(given: list[str] | None) -> dict[str, float]:
    """{name: value} of NAME=VALUE options.

    Raises UnsupportedError: one of them is not of that form, or two have one name.
    """
    found: dict[str, float] = {}
    errors: list[NkiconvError] = []
    for text in given or []:
        name, equals, value = text.partition("=")
        if name.strip() in found:
            errors.append(UnsupportedError(f"--constant={text}: {name.strip()} is given twice; drop one"))
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            errors.append(UnsupportedError(f"--constant={text}: must be NAME=VALUE with a number; see trn2.toml"))
    raise_all("nkiconv cannot read these constants", errors)
    return found
