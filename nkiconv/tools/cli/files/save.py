"""Files written in one step: no half-written file is left, and none is overwritten unasked."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from ....errors import UnsupportedError
from ....whole_file import whole_file
from ..paths import unwritable
from .format import Source


def check_free(target: Source, what: str, force: bool) -> None:
    """Refuse, before any work, a path that cannot be written or that exists, unless `force`; what: "a .npy file".

    Raises UnsupportedError.
    """
    path = target.path
    for error in unwritable(target.option, path, what):
        raise error
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
