"""Files that commands write: whether they can be, asked before any work."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...errors import MissingPackageError, NkiconvError, UnsupportedError


def unwritable(option: str, path: Path | None, kind: str, *, force: bool = True) -> Iterator[UnsupportedError]:
    """Why a file cannot be written; empty if it can, or none is asked for. kind: the wanted kind of file for messages,
    "a .npy file"; force: whether it may exist."""
    if path is None:
        return
    if path.is_dir():
        yield UnsupportedError(f"{option}={path}: is a directory; give the path of {kind}")
    elif not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        yield UnsupportedError(
            f"{option}={path}: {path.parent} is not a directory that can be written; make it or choose another"
        )
    elif path.is_file() and not force:
        yield UnsupportedError(f"{option}={path}: exists; name another, or overwrite it with --force")


def undrawable(path: Path | None, *, force: bool) -> Iterator[NkiconvError]:
    """Why there can be no picture at --plot, which needs matplotlib; empty if there can, or none is asked for."""
    yield from unwritable("--plot", path, "a .png file", force=force)
    if path is not None and path.suffix != ".png":
        yield UnsupportedError(f"--plot={path}: must end in .png; name it so")
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        yield MissingPackageError.of(f"--plot={path}", "matplotlib", "plots")


def idle_force(force: bool, files: Mapping[str, Path | str | None]) -> Iterator[UnsupportedError]:
    """Why --force is refused where none of the options that name files to write is given."""
    if force and not any(files.values()):
        options = " or ".join(files)
        yield UnsupportedError(f"--force: lets {options} overwrite, and there is no {options}; give one or drop it")
