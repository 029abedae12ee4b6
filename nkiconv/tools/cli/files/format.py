"""`Format`: a file format of `nkiconv run`, and the arrays read and written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from ....errors import FileFormatError, NkiconvError, UnsupportedError
from ....reference import AnyArray

#: Names of arrays that a message lists.
_LISTED = 12


@dataclass(frozen=True)
class Source:
    """A file, or an array in it, as an option names it; to read or to write."""

    option: str
    path: Path
    name: str | None = None

    @property
    def text(self) -> str:
        """As typed, for messages."""
        return f"{self.option}={self.path}" + ("" if self.name is None else f":{shown(self.name)}")


@dataclass(frozen=True)
class Loaded:
    """An array from a file, and the file's other properties."""

    array: AnyArray
    rate: int | None = None  # frames a second, of sound


class Format(ABC):
    """A kind of file, known by its suffix."""

    what: ClassVar[str]  # as in "a .npy file"
    suffixes: ClassVar[tuple[str, ...]]
    #: Whether its arrays have names.
    named: ClassVar[bool] = False
    #: Operations whose x, residual and y it holds, as [1, C, ...]; None: any array, in memory order.
    media_of: ClassVar[tuple[str, ...] | None] = None

    @abstractmethod
    def read(self, source: Source, dtype: str | None) -> Loaded:
        """The array that the source names.

        Args:
            dtype: for files without one: of raw bytes, or of pictures and sound after reading.

        Raises: FileFormatError: damaged, or of another kind. DtypeError: numbers that cannot be taken.
            UnsupportedError: a name that is not there, or a package that is not installed. OSError.
        """

    def refusals(self, target: Source, shape: tuple[int, ...], origin: Loaded) -> Iterator[NkiconvError]:
        """Why a y of this shape cannot be written, asked before any work; shape: [N, K, ...] of media.

        origin: x, of the same format where the format is of media.
        """
        yield from ()

    @abstractmethod
    def write(self, file: BinaryIO, target: Source, y: AnyArray, origin: Loaded) -> int:
        """Write y, [N, K, ...] of media, to an open file; returns how many of its values were clipped.

        Raises UnsupportedError: values that the format has no place for.
        """


def shown(name: str) -> str:
    """A name from a file, fit for a terminal: short, without control characters."""
    plain = name if name.isprintable() else ascii(name)
    return plain if len(plain) <= 80 else f"{plain[:77]}..."


def chosen_name(source: Source, names: Sequence[str]) -> str:
    """The name of the array in a source of named arrays.

    Raises: FileFormatError: there is none. UnsupportedError: there are several and no name, or none of that name.
    """
    listed = ", ".join(map(shown, names[:_LISTED])) + (", ..." if len(names) > _LISTED else "")
    if not names:
        raise FileFormatError(f"{source.text}: holds no arrays; save one into it")
    if source.name is None and len(names) > 1:
        raise UnsupportedError(
            f"{source.text}: holds {len(names)} arrays, {listed}; add the name of one, as in "
            f"{source.path}:{shown(names[0])}"
        )
    name = names[0] if source.name is None else source.name
    if name not in names:
        raise UnsupportedError(f"{source.text}: has no array of that name; use one of {listed}")
    return name


def one_of_each(source: Source, names: Sequence[str]) -> None:
    """Raises FileFormatError: two arrays have one name."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise FileFormatError(f"{source.text}: has two arrays named {shown(twice[0])}; save it again with one of each")


def as_integers(target: Source, y: AnyArray, scale: float, least: int, most: int) -> tuple[AnyArray, int]:
    """y * scale rounded to integers (halves to even) and clipped to least..most, float64; and how many were clipped.

    Raises UnsupportedError: y has NaN.
    """
    values = np.rint(y.astype(np.float64) * scale)
    if np.isnan(values).any():
        raise UnsupportedError(f"{target.text}: y has NaN, which has no place there; write y to a .npy file")
    clipped = np.clip(values, least, most)
    return clipped, int(np.count_nonzero(clipped != values))
