"""The errors of nkiconv: one class for each kind of refusal, and one way to raise several refusals at once.

Every violation is a sentence of the form `<argument>=<value>: <rule> (<how it was derived>); <what to do>`.
A check collects one exception for each violated rule and hands the list to `raise_all`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any


class NkiconvError(ValueError):
    """Base of every refusal by nkiconv.

    Attributes:
        violations: each violated rule as one sentence; never empty.
    """

    def __init__(self, message: str, violations: Sequence[str] = ()) -> None:
        """Take the text to show and, where it joins several violations, each of them on its own."""
        super().__init__(message)
        self.violations: tuple[str, ...] = tuple(violations) or (message,)


class GeometryError(NkiconvError):
    """An extent, stride, padding, dilation or group count, or a shape that follows from them, is impossible."""


class DtypeError(NkiconvError, TypeError):
    """A data type is unknown, or is not one that the operation takes."""


class LayoutError(NkiconvError):
    """The order of an array's axes is unknown, or is not one that the operation takes."""


class UnsupportedError(NkiconvError):
    """The request makes sense, but nothing here can serve it."""


class MissingPackageError(UnsupportedError, ModuleNotFoundError):
    """An optional package is needed here and is not installed."""

    @classmethod
    def of(cls, what: str, package: str, extra: str, more: str = "") -> MissingPackageError:
        """Name the package and the commands that install it.

        Args: what: the option, file or module that needs it. package: its name on the package index. extra: nkiconv's
            extra that installs it. more: a sentence about it.
        """
        remedy = f"run pip install {package}, or pip install '.[{extra}]' in a checkout of nkiconv"
        return cls(f"{what}: needs {package}, which is not installed; {remedy}{more and f'. {more}'}")


class FileFormatError(NkiconvError):
    """A file does not have the expected format."""


class ComparisonError(NkiconvError):
    """A kernel and torch differ by more than both may be off by (`NKICONV_CPU=compare`)."""


class PlanningError(NkiconvError):
    """The planner's process could not be started, ended early, or did not answer in time."""


class PlanWarning(UserWarning):
    """A kernel on a Neuron device runs without a plan, by the algorithm of the least bound; the message says
    why there is none."""


class LaunchWarning(UserWarning):
    """Launches on a Neuron device take longer than they need to; the message says which setting makes them shorter."""


def join_violations(summary: str, violations: Sequence[str]) -> str:
    """Return one message: the violation itself if there is one, else the summary, their number and a list of them.

    Args:
        summary: what was refused, as in "conv2d cannot run this call on trn2".
        violations: at least one sentence.
    """
    if len(violations) == 1:
        return violations[0]
    return "\n  - ".join([f"{summary}; {len(violations)} reasons", *violations])


def raise_all(summary: str, errors: Iterable[NkiconvError]) -> None:
    """Raise all the errors as one of the first one's class; return if there are none.

    Args:
        summary: what was refused, as in "conv2d cannot run this call on trn2".
        errors: exceptions made but not raised, one or more violations each.

    Raises:
        NkiconvError: of the class of the first, carrying the violations of all of them in order.
    """
    errors = list(errors)
    if not errors:
        return
    violations = [violation for error in errors for violation in error.violations]
    raise type(errors[0])(join_violations(summary, violations), violations)


def refused(kind: type[NkiconvError], *reasons: str) -> Iterator[NkiconvError]:
    """An error of this class for each rule of `rules` that is broken; "" is none."""
    return (kind(reason) for reason in reasons if reason)


def refuse(kind: type[NkiconvError], *reasons: str) -> None:
    """Raise the first of these errors, if there is one."""
    for error in refused(kind, *reasons):
        raise error


def is_array(value: Any) -> bool:
    """Whether this is an array or tensor of any package, or a description of one; a NumPy scalar is not."""
    no_value = isinstance(value, type | ModuleType)
    return not no_value and hasattr(value, "dtype") and getattr(value, "ndim", len(shape_of(value))) > 0


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array; () of all else, and of torch's nested tensors, which raise instead of having one."""
    return () if getattr(value, "is_nested", False) else tuple(getattr(value, "shape", ()))


class _Shown(reprlib.Repr):
    """A repr of bounded length, of arrays by type, shape and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxtuple, self.maxlist, self.maxdict = 6, 12, 12, 12
        self.maxlong, self.maxstring, self.maxother = 80, 200, 200

    def repr1(self, x: Any, level: int) -> str:
        if is_array(x):
            return f"{type(x).__name__} {shape_of(x)} {x.dtype}"
        return super().repr1(x, level)


#: A value as an error's text shows it, however large it is.
shown = _Shown().repr
