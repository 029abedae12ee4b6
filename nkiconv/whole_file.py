"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, for a block to write; at its end that takes the name, or is deleted if it raised.

    Nobody sees a part of a file, and what was there stays until then. Where `path` is a link, the file that it leads to
    is replaced; what is no regular file, a device or a pipe, is written in place.

    Raises OSError where the disk refuses: it names `path`, not the temporary file.
    """
    if path.exists() and not path.is_file():
        with _named(path):
            yield path
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with _named(path):
            yield part
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """An OSError's reason, with the path that the caller knows."""
    try:
        yield
    except OSError as error:
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
