"""Options that several commands share, the cases they name, and how `--constant NAME=VALUE` is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from ... import cases
from ...cases import Case
from ...errors import NkiconvError, UnsupportedError, raise_all
from ...problem import dtype_name

Names = Annotated[list[str] | None, typer.Argument(metavar="CASE...", help="See nkiconv cases.")]
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
Input = Annotated[
    list[str] | None,
    typer.Option(metavar="SHAPE:DTYPE|FILE", help="Of a kernel, in order: 1x512x5000:bf16, or .npy; repeatable."),
]
Arg = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Of a kernel: a Python literal or nl.NAME; repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Let files be overwritten.")]
Fresh = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write cached plans.")]


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """How cases are to be run or planned; None: as they say."""

    dtype: Dtype = None
    precision: Precision = None
    layout: Layout = None
    lnc: Lnc = 2

    @property
    def known(self) -> str | None:
        """The dtype by nkiconv's name."""
        return None if self.dtype is None else dtype_name(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Choice(Kinds):
    """With an algorithm; None: the estimate."""

    algorithm: Algorithm = None

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of `profile_case` and the like by name; cases have the layout."""
        return {"dtype": self.known, "precision": self.precision, "lnc": self.lnc, "algorithm": self.algorithm}


def option_name(name: str) -> str:
    """An option, as typed, by its parameter's name."""
    return f"--{name.replace('_', '-')}"


def given_options(group: Any) -> list[str]:
    """The options of a dataclass that were given, as typed."""
    return [option_name(name) for name, value in vars(group).items() if value is not None and value is not False]


def misplaced(given: Mapping[str, Any], why: str) -> Iterator[UnsupportedError]:
    """Refusals of those options, by name, that have a value; why: what is wrong with each, and what to do."""
    yield from (UnsupportedError(f"{option}: {why}") for option, value in given.items() if value)


def named_cases(names: list[str] | None, layout: str | None, direction: str = "forward") -> list[Case]:
    """The cases of these names, in another layout if one is given, or their gradients.

    Raises: UnsupportedError, LayoutError: there is no such case, layout or direction.
    """
    found = [cases.get(name) for name in names or []]
    if layout is not None:
        found = [dataclasses.replace(case, problem=case.problem.replace(layout=layout)) for case in found]
    return [case.toward(direction) for case in found]


_Value = TypeVar("_Value")


def assigned(
    option: str,
    texts: Sequence[str],
    value_of: Callable[[str], _Value],
    rule: str,
    is_name: Callable[[str], bool] = bool,
) -> dict[str, _Value]:
    """{name: value} of NAME=VALUE options. value_of: of the text; rule: what VALUE must be, and what to do.

    Raises UnsupportedError: some of them are not of that form, or two have one name.
    """
    found: dict[str, _Value] = {}
    errors: list[NkiconvError] = []
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name in found:
            errors.append(UnsupportedError(f"{option}={text}: {name} is given twice; drop one"))
        try:
            found[name] = value_of(value)
        except (ValueError, SyntaxError, AttributeError):
            equals = ""
        if not (equals and is_name(name)):
            errors.append(UnsupportedError(f"{option}={text}: must be NAME=VALUE{rule}"))
    raise_all(f"nkiconv cannot read {option}", errors)
    return found


def read_constants(given: list[str] | None) -> dict[str, float]:
    """{name: value} of --constant NAME=VALUE."""
    return assigned("--constant", given or (), float, " with a number; see trn2.toml")
