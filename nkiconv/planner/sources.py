"""A hash of source files, so that results that rest on them can be told from stale ones."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from types import ModuleType

from .. import kernels, schedules, simulator
from ..simulator.constants import DEFAULT
from ..simulator.hardware import CONSTANTS


def sources_hash() -> str:
    """Twelve hex digits of everything that a modelled time depends on: kernels, schedules, simulator and constants in
    use."""
    found = hash_of(kernels, schedules, simulator)
    if CONSTANTS.key == DEFAULT:
        return found
    return hashlib.sha256(f"{found} {CONSTANTS.key}".encode()).hexdigest()[:12]


@functools.cache
def hash_of(*modules: ModuleType) -> str:
    """Twelve hex digits of the sources of modules, and of all in packages with their constants; as they were when this
    was first asked."""
    digest = hashlib.sha256()
    for module in modules:
        file = Path(module.__file__ or "")
        root = file.parent
        files = root.rglob("*") if hasattr(module, "__path__") else [file]
        for path in sorted(p for p in files if p.suffix in (".py", ".toml")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
