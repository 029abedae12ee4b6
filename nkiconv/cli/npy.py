"""Arrays from and to .npy files: every way a file can be wrong has a name, and no half-written file is left.

NumPy saves a bf16 array of ml_dtypes as raw bytes of dtype |V2; `--dtype bf16` says what they are.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import DtypeError, FileFormatError, UnsupportedError
from ..problem import DTYPES
from ..reference import AnyArray
from .paths import unwritable

_MAGIC = b"\x93NUMPY"
#: How NumPy spells the dtype of a saved bf16 array.
_RAW_BF16 = np.dtype("V2")


def load(option: str, path: Path, dtype: str | None) -> AnyArray:
    """The array of a .npy file, mapped rather than read.

    Args:
        option: what the path was given as, for messages. dtype: "bf16" reinterprets |V2; other names change nothing.

    Raises:
        FileFormatError: no such file, not .npy, truncated, or Python objects. DtypeError: |V2 without dtype="bf16".
    """
    name = f"{option}={path}"
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise FileFormatError(f"{name}: cannot be read ({error.strerror}); give the path of a .npy file") from error
    if start != _MAGIC:
        kind = "is a .npz or zip archive" if start[:2] == b"PK" else "does not start as .npy files do"
        raise FileFormatError(f"{name}: {kind}; save one array with numpy.save")
    try:
        array: AnyArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, TypeError) as error:
        if "object" in str(error):
            raise FileFormatError(f"{name}: holds Python objects, which are not loaded; save numbers") from error
        raise FileFormatError(f"{name}: is truncated or damaged ({error}); save it again with numpy.save") from error
    if array.dtype == _RAW_BF16:
        if dtype != "bf16":
            raise DtypeError(
                f"{name}: has dtype |V2, raw pairs of bytes; if it was saved from bf16 (NumPy writes that as |V2), "
                "add --dtype bf16"
            )
        return array.view(DTYPES["bf16"])
    return array


def check_free(option: str, path: Path, force: bool) -> None:
    """Refuse, before any work, a path that cannot be written or that exists, unless `force`.

    Raises UnsupportedError.
    """
    for error in unwritable(option, path, "a .npy file"):
        raise error
    if path.exists() and not force:
        raise UnsupportedError(
            f"{option}={path}: exists already, and is not overwritten; give another path or add --force"
        )


def save(option: str, path: Path, array: AnyArray, force: bool) -> None:
    """Write a .npy file in one step: a temporary file beside it takes its name when it is complete.

    Raises UnsupportedError: as `check_free`, or the disk refused.
    """
    check_free(option, path, force)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("xb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UnsupportedError(f"{option}={path}: cannot be written ({error.strerror}); choose another path") from error
