"""Atomic writes: a file is replaced by a complete one or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path next to `path` for a block to write; renamed to `path` at the end, or deleted on an exception.

    No reader sees a part of a file; the old file stays until then. If `path` is a link, its target is replaced; a
    device or a pipe is written in place.

    Raises OSError if the disk refuses; it names `path`, not the temporary file.
    """
    if path.exists() and not path.is_file():
        with _named(path):
            yield path
        return
    target = Path(os.path.realpath(path))
    delete_abandoned(target.parent, target.name)
    part = target.with_name(f".{target.name}.{_machine()}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with _named(path):
            yield part
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def delete_abandoned(folder: Path, name: str = "*") -> None:
    """Delete the temporary files of a target, or of all targets, whose process on this machine was killed."""
    for part in folder.glob(f".{name}.{_machine()}.*.part"):
        found = _PART.fullmatch(part.name)
        if found and not _runs(int(found["process"])):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


#: The end of a temporary file's name.
_PART = re.compile(r".*\.(?P<process>[0-9]+)\.[0-9a-f]{8}\.part")


def _machine() -> str:
    """This machine's name, as part of a file's; process numbers are of a machine, and directories may be shared."""
    return re.sub("[^0-9A-Za-z]", "-", platform.node()) or "unnamed"


def _runs(process: int) -> bool:
    """Whether there is such a process; yes where the system cannot be asked without harm."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """An OSError's reason, with the path that the caller knows. NumPy's has none: it says how much was written."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            full = shutil.disk_usage(path.parent).free == 0
            number = errno.ENOSPC if full else errno.EIO
            raise OSError(number, os.strerror(number) if full else str(error), str(path)) from error
        error.filename, error.filename2 = str(path), None
        raise


def write_page(lines: Sequence[str], out: Path | None) -> None:
    """Write lines to a file, which is there whole or not at all, or to stdout where there is none."""
    text = "\n".join(lines).rstrip() + "\n"
    if out is None:
        print(text, end="")
        return
    with whole_file(out) as part:
        part.write_text(text, encoding="utf-8")
