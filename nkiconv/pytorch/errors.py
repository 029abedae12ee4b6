"""nkiconv's errors as the torch layer raises them: RuntimeErrors too, as torch's own refusals are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import errors
from ..errors import NkiconvError, raise_all

__all__ = [
    "ComparisonError",
    "DtypeError",
    "FrozenFilterError",
    "GeometryError",
    "KindError",
    "LayoutError",
    "NkiconvError",
    "UnsupportedError",
    "as_torchs",
    "raise_all",
]


class GeometryError(errors.GeometryError, RuntimeError):
    """`nkiconv.errors.GeometryError`, and a RuntimeError."""


class KindError(GeometryError, TypeError):
    """A GeometryError of a value that is no number, for which torch raises TypeError."""


class DtypeError(errors.DtypeError, RuntimeError):
    """`nkiconv.errors.DtypeError`, and a RuntimeError."""


class LayoutError(errors.LayoutError, RuntimeError):
    """`nkiconv.errors.LayoutError`, and a RuntimeError."""


class UnsupportedError(errors.UnsupportedError, RuntimeError):
    """`nkiconv.errors.UnsupportedError`, and a RuntimeError."""


class FrozenFilterError(UnsupportedError, AttributeError):
    """A frozen filter is to train, or is asked for an attribute that only a Parameter has."""


class ComparisonError(errors.ComparisonError, RuntimeError):
    """`nkiconv.errors.ComparisonError`, and a RuntimeError."""


_TORCHS: tuple[type[NkiconvError], ...] = (
    GeometryError, DtypeError, LayoutError, UnsupportedError, ComparisonError
)  # fmt: skip


@contextmanager
def as_torchs() -> Iterator[None]:
    """Raise errors of kernels and their checks as the torch layer's errors of the same kind."""
    try:
        yield
    except NkiconvError as error:
        if isinstance(error, RuntimeError):
            raise
        kind = next((one for one in _TORCHS if issubclass(one, type(error))), None)
        if kind is None:
            raise
        raise kind(str(error), error.violations) from error
