"""AWS's own depthwise conv1d kernel, loaded from a checkout of nki-library; this package contains none of it."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import FileFormatError, UnsupportedError
from ...simulator.installation import NkiInstalledError, install

#: Where a checkout has packages, the one that its kernels are in, and in that the module of the kernel of this name.
SOURCES, PACKAGE = "src", "nkilib_src"
MODULE, KERNEL = f"{PACKAGE}.nkilib.experimental.conv.depthwise_conv1d", "depthwise_conv1d_implicit_gemm"


@dataclass(frozen=True)
class Library:
    """A checkout's kernel: `kernel[lnc]` can be launched while it is open, `sha256` (12 digits) is of its file."""

    kernel: Any
    sha256: str


def kernel_file(checkout: Path) -> Path:
    """The file of the kernel.

    Raises FileFormatError: the folder is no checkout of nki-library, or one without it.
    """
    found = checkout.joinpath(SOURCES, *MODULE.split(".")).with_suffix(".py")
    if not found.is_file():
        raise FileFormatError(
            f"{checkout}: has no {found.relative_to(checkout)}; give the folder of a checkout of nki-library that does"
        )
    return found


@contextmanager
def opened(checkout: Path) -> Iterator[Library]:
    """The kernel of a checkout, with the simulator as its `nki`; modules and paths are as before afterwards.

    Raises: FileFormatError: the folder has no such kernel, or its file does not load. UnsupportedError: AWS's own nki
        is installed, which this does not hide.
    """
    file = kernel_file(checkout)
    try:
        installation = install()
    except NkiInstalledError as error:
        raise UnsupportedError(f"{checkout}: {error}; compare where AWS's nki is not installed") from None
    before = {name: module for name, module in sys.modules.items() if _is_theirs(name)}
    path = str((checkout / SOURCES).resolve())
    with installation:
        for name in before:
            del sys.modules[name]
        sys.path.insert(0, path)
        importlib.invalidate_caches()
        try:
            yield Library(_loaded(checkout), hashlib.sha256(file.read_bytes()).hexdigest()[:12])
        finally:
            sys.path.remove(path)
            for name in [name for name in sys.modules if _is_theirs(name)]:
                del sys.modules[name]
            sys.modules.update(before)


def _is_theirs(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _loaded(checkout: Path) -> Any:
    """The kernel, from importing the checkout's code."""
    try:
        return getattr(importlib.import_module(MODULE), KERNEL)
    except Exception as error:
        raise FileFormatError(
            f"{checkout}: {MODULE}.{KERNEL} does not load ({type(error).__name__}: {error}); give another checkout"
        ) from error
