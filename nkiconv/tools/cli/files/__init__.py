"""Files of arrays, pictures and sound, in and out of `nkiconv run`: one file a format, all behind `format.Format`.

Nothing is unpickled, nothing is unpacked to disk, every way a file can be wrong has a name. No half-written file is
left, and none is overwritten unasked.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ....errors import FileFormatError, UnsupportedError, raise_all
from ....whole_file import whole_file
from ..paths import unwritable
from .format import Format, Loaded, Source
from .image import Image
from .npy import Npy
from .npz import Npz
from .safetensors import Safetensors
from .wav import Wav

__all__ = ["FORMATS", "Format", "Loaded", "Source", "check_free", "format_of", "load", "save", "source"]

FORMATS: tuple[Format, ...] = (Npy(), Npz(), Safetensors(), Image(), Wav())

_SUFFIXES = {suffix: one for one in FORMATS for suffix in one.suffixes}
#: FILE:NAME, split after the first suffix that is one of ours.
_NAMED = re.compile(rf"(?P<path>.*?(?:{'|'.join(map(re.escape, _SUFFIXES))})):(?P<name>.+)", re.IGNORECASE | re.DOTALL)


def source(option: str, text: str) -> Source:
    """The source FILE or FILE:NAME; the name of an existing file is that file, even with colons.

    Raises UnsupportedError: a name for a file of one array.
    """
    named = _NAMED.fullmatch(text)
    if named is None or _exists(text):
        return Source(option, Path(text))
    found = Source(option, Path(named["path"]), named["name"])
    one = format_of(found)
    if not one.named:
        raise UnsupportedError(f"{found.text}: {one.what} has no arrays by name; drop :{named['name']}")
    return found


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # too long for a path
        return False


def format_of(found: Source) -> Format:
    """The format that the file's suffix names.

    Raises UnsupportedError: it names none, or a directory.
    """
    if found.path.is_dir():
        raise UnsupportedError(f"{found.text}: is a directory; give the path of a file")
    one = _SUFFIXES.get(found.path.suffix.lower())
    if one is None:
        raise UnsupportedError(f"{found.text}: must end in {', '.join(_SUFFIXES)}; convert the file, or name it so")
    return one


def load(found: Source, dtype: str | None) -> Loaded:
    """The array that a source names; see `Format.read`.

    Raises: FileFormatError, DtypeError, UnsupportedError.
    """
    one = format_of(found)
    try:
        if not stat.S_ISREG(found.path.stat().st_mode):
            raise FileFormatError(f"{found.text}: is no regular file; give the path of {one.what}")
        return one.read(found, dtype)
    except OSError as error:
        reason = error.strerror or error
        raise FileFormatError(f"{found.text}: cannot be read ({reason}); give the path of {one.what}") from error


def check_free(target: Source, what: str, force: bool) -> None:
    """Refuse, before any work, a path that cannot be written or that exists, unless `force`; what: "a .npy file".

    Raises UnsupportedError.
    """
    path = target.path
    raise_all("this cannot be written", unwritable(target.option, path, what))
    if path.exists() and not force:
        raise UnsupportedError(
            f"{target.option}={path}: exists already, and is not overwritten; give another path or add --force"
        )


def save(target: Source, what: str, force: bool, write: Callable[[BinaryIO], int]) -> int:
    """The result of `write` for a temporary file next to the target's, renamed to it when it is complete.

    Raises UnsupportedError: as `check_free`, or the disk refused.
    """
    check_free(target, what, force)
    try:
        with whole_file(target.path) as part, part.open("xb") as file:
            return write(file)
    except OSError as error:
        reason = error.strerror or error
        raise UnsupportedError(f"{target.text}: cannot be written ({reason}); choose another path") from error
