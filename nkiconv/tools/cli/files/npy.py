"""Arrays as .npy files, mapped rather than read.

NumPy saves arrays of ml_dtypes as raw bytes, bf16 as |V2 and fp8 as |V1; `--dtype` gives their type.
"""

from __future__ import annotations

import math
import tokenize
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ....errors import DtypeError, FileFormatError
from ....problem import DTYPES
from ....reference import AnyArray
from .format import Format, Loaded, Source

_MAGIC = b"\x93NUMPY"
_ZIP = b"PK"
#: Longest header that is parsed, characters; NumPy's own are below 200.
_MAX_HEADER = 10_000
#: The most bytes of an array that is read: more is too slow in the simulator.
ARRAY_MAX = 1 << 29
#: Dtypes of raw bytes, by bytes an element.
_RAW = {2: ("bf16",), 1: ("fp8_e4m3", "fp8_e5m2")}


class Npy(Format):
    """One array as numpy.save writes it."""

    what = "a .npy file"
    suffixes = (".npy",)

    def read(self, source: Source, dtype: str | None) -> Loaded:
        """As `Format.read`."""
        with source.path.open("rb") as file:
            header = read_header(source.text, file)
            size = file.seek(0, 2)
            check_size(source.text, header, size - header.start)
        order: Any = header.order
        array = np.memmap(source.path, header.dtype, "r", header.start, header.shape, order)
        return Loaded(as_dtype(source.text, np.asarray(array), dtype))

    def write(self, file: BinaryIO, target: Source, y: AnyArray, origin: Loaded) -> int:
        """As `Format.write`."""
        np.save(file, y, allow_pickle=False)
        return 0


@dataclass(frozen=True)
class Header:
    """The header of a .npy file, and the position of the data."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str  # "C" or "F"
    start: int

    @property
    def nbytes(self) -> int:
        """Of the data."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(text: str, file: BinaryIO) -> Header:
    """The checked header of a .npy file that is open at its beginning; text: its name in messages.

    Raises: FileFormatError: not .npy, damaged, or without numbers. DtypeError: numbers of the other byte order.
    """
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
        kind = "is a .npz or zip archive" if start[:2] == _ZIP else "does not start as .npy files do"
        raise FileFormatError(f"{text}: {kind}; save one array with numpy.save, or give the file its own suffix")
    file.seek(-len(_MAGIC), 1)
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version[0]}.{version[1]} of the format, which arrays of numbers do not need")
        readers: dict[tuple[int, int], Any] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, in_fortran, dtype = readers[version](file, max_header_size=_MAX_HEADER)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileFormatError(f"{text}: is truncated or damaged ({reason}); save it again with numpy.save") from error
    if dtype.hasobject:
        raise FileFormatError(f"{text}: holds Python objects, which are not loaded; save numbers")
    if dtype.names is not None or dtype.subdtype is not None:
        raise FileFormatError(f"{text}: holds records of dtype {dtype}; save one field as an array of its own")
    if not dtype.isnative:
        raise DtypeError(f"{text}: has dtype {dtype.str}, the other byte order; save array.astype({dtype.name!r})")
    if any(extent < 0 or isinstance(extent, bool) for extent in shape):
        raise FileFormatError(f"{text}: is damaged (shape {shape}); save it again with numpy.save")
    return Header(dtype, shape, "F" if in_fortran else "C", file.tell())


def check_size(text: str, header: Header, size: int) -> None:
    """Raises FileFormatError: not as many bytes of data as the header says, none, or more than are read here."""
    if header.nbytes == 0:
        raise FileFormatError(f"{text}: holds no elements (shape {header.shape}, {header.dtype}); save data")
    if size != header.nbytes:
        kind = "is truncated or damaged" if size < header.nbytes else "has something after the array"
        raise FileFormatError(
            f"{text}: {kind} ({size:,} bytes of data, shape {header.shape} of {header.dtype} takes {header.nbytes:,}); "
            "save it again with numpy.save"
        )
    if header.nbytes > ARRAY_MAX:
        raise FileFormatError(
            f"{text}: holds {header.nbytes:,} bytes unpacked, shape {header.shape}; at most {ARRAY_MAX:,} are taken "
            "here: plan or profile the shape, and run a part"
        )


def as_dtype(text: str, array: AnyArray, dtype: str | None) -> AnyArray:
    """The array, raw bytes as the dtype that the caller says they are.

    Raises DtypeError: raw bytes without a dtype, or that cannot have the given one.
    """
    if array.dtype.kind != "V":
        return array
    accepted = _RAW.get(array.dtype.itemsize, ())
    if dtype in accepted:
        return array.view(DTYPES[dtype])
    raw = f"{text}: has dtype |V{array.dtype.itemsize}, raw bytes"
    if not accepted:
        raise DtypeError(f"{raw} that are no numbers of NKI; save numbers")
    raise DtypeError(
        f"{raw}; if it was saved from {' or '.join(accepted)} (which NumPy writes so), "
        f"add --dtype {' or --dtype '.join(accepted)}, or save .safetensors, which name the dtype"
    )
