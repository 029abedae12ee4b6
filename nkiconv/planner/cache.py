"""Plans and estimates on disk, a JSON file each, in the user's cache directory, and this process's in memory.

A file's name is a hash of its plan's inputs: problem, epilogue, cores, constants, those of NKICONV_TARGET too, and the
sources of kernels, schedules, model and planner; a checksum in it detects changes.
Several processes may share the directory: files appear whole or not at all.
An error of the directory or a file costs a warning and a search, never a plan.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .. import kernels, problem, schedules, simulator
from ..errors import FileFormatError
from ..simulator.constants import DEFAULT
from ..simulator.hardware import CONSTANTS
from ..whole_file import delete_abandoned, whole_file
from .operations import operation_for
from .plan import Estimate, Plan
from .request import Request

#: The environment's variable that names another directory.
VARIABLE = "NKICONV_CACHE"
#: The files' format; raised with each change.
FORMAT = 5
#: Plans kept in memory.
IN_MEMORY = 1024
#: Most bytes of a file: a plan has some 10 KiB, and a file is parsed as a whole.
MOST_BYTES = 4 << 20
#: The name of a file, without its suffix.
_NAME = re.compile("[0-9a-f]{32}")
Kept = TypeVar("Kept", Plan, Estimate)

_memory: dict[Path, Plan | Estimate] = {}


class CacheWarning(UserWarning):
    """A file or directory of the cache cannot be used; the plan is searched for instead."""


def directory() -> Path:
    """The directory of kept plans: $NKICONV_CACHE, or nkiconv in the operating system's directory for caches.

    Raises RuntimeError: neither is known, as for a user without a home directory.
    """
    named, local, xdg = (os.environ.get(name) for name in (VARIABLE, "LOCALAPPDATA", "XDG_CACHE_HOME"))
    if named:
        return Path(named)
    if sys.platform == "win32":
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "nkiconv" / "cache"
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "nkiconv"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "nkiconv"


def key(request: Request) -> dict[str, Any]:
    """All inputs of a plan, as JSON's types, except `robust`: the last plan of any is kept."""
    known = {"format": FORMAT, "target": CONSTANTS.key, "sources": _sources(), "operation": operation_for(request).name}
    asked = {name: value for name, value in dataclasses.asdict(request).items() if name != "robust"}
    return json.loads(json.dumps({**asked, **known}))  # type: ignore[no-any-return]


def sources_hash() -> str:
    """Twelve hex digits of a modelled time's inputs: sources of kernels, schedules and simulator, constants in use."""
    found = hash_of(kernels, schedules, simulator)
    if CONSTANTS.key == DEFAULT:
        return found
    return hashlib.sha256(f"{found} {CONSTANTS.key}".encode()).hexdigest()[:12]


@functools.cache
def hash_of(*modules: ModuleType) -> str:
    """Twelve hex digits of the sources of modules, and of all files of packages with their constants, at the first
    call."""
    digest = hashlib.sha256()
    for module in modules:
        file = Path(module.__file__ or "")
        root = file.parent
        files = root.rglob("*") if hasattr(module, "__path__") else [file]
        for path in sorted(p for p in files if p.suffix in (".py", ".toml")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _sources() -> str:
    """A hash of all sources that plans and times depend on."""
    return hash_of(kernels, schedules, simulator, problem, sys.modules[__package__ or ""])


def _sha256(document: Any) -> str:
    """The hash of plain data, as JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@functools.lru_cache(maxsize=IN_MEMORY)
def named(request: Request, kind: str) -> tuple[dict[str, Any], str]:
    """(key, name of the file) of a request's plan or estimate."""
    wanted = key(request) if kind == "plan" else {**key(request), "effort": kind}
    return wanted, f"{_sha256(wanted)[:32]}.json"


def load(request: Request, of: type[Kept]) -> Kept | None:
    """The plan or estimate kept for a request; None without one, and with a warning if its file cannot be used."""
    kind = of.__name__.lower()
    wanted, name = named(request, kind)
    try:
        file = directory() / name
    except RuntimeError:
        return None  # `store` warns
    if file in _memory:
        return _memory[file]  # type: ignore[return-value]  # under a plan's key there are plans
    again = f"the {kind} is searched for again"
    try:
        document = _read(file)
        if not isinstance(document, dict) or document.get("key") != wanted:
            _warn(f"{file}: is not the {kind} that its name says; it is ignored, and {again}")
        elif document.get("sha256") != _sha256(document.get(kind)):
            _warn(f"{file}: was changed after nkiconv wrote it; it is ignored, and {again}")
        else:
            return _remember(file, of.from_dict(document.get(kind)))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except FileFormatError as error:
        _warn(f"{file}: {error}; {again}")
    except (OSError, ValueError, RecursionError) as error:
        _warn(f"{file}: cannot be read ({_reason(error)}); {again}")
    return None


def store(request: Request, found: Kept) -> None:
    """Keep a plan or an estimate."""
    kind = type(found).__name__.lower()
    wanted, name = named(request, kind)
    try:
        file = directory() / name
    except RuntimeError as error:
        _warn(f"the {kind} is not kept ({error}); set {VARIABLE} to a directory that can be written")
        return
    _remember(file, found)
    document = json.loads(json.dumps(found.as_dict()))
    text = json.dumps({"key": wanted, kind: document, "sha256": _sha256(document)}, indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _check_regular(file)
        with whole_file(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        where = file if file.exists() else file.parent  # the same words for all plans are shown once
        _warn(f"{where}: cannot be written ({_reason(error)}); set {VARIABLE} to a directory that can")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of the cache: its key and plan or estimate, as far as it can be read."""

    file: Path
    kind: str  # plan, estimate, or "" if it cannot be read
    key: dict[str, Any]
    kept: dict[str, Any]
    size: int  # bytes
    written: float  # seconds since 1970

    @property
    def current(self) -> bool:
        """Whether this version of nkiconv would find it."""
        return self.key.get("format") == FORMAT and self.key.get("sources") == _sources()


def entries() -> Iterator[Entry]:
    """The files of the cache, the newest first; files of other names are ignored.

    Raises FileFormatError: no directory is known, or it cannot be listed.
    """
    try:
        where = directory()
    except RuntimeError as error:
        raise FileFormatError(f"{VARIABLE}: is not set, and there is no home directory ({error}); set it") from None
    try:
        found = [one for one in where.iterdir() if one.match("*.json") and _NAME.fullmatch(one.stem) and one.is_file()]
    except FileNotFoundError:  # no plan was kept yet
        found = []
    except OSError as error:
        raise FileFormatError(f"{where}: cannot be listed ({_reason(error)}); set {VARIABLE} to a directory") from None
    for file in sorted(found, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            document = _read(file)
            kind = next(kind for kind in ("plan", "estimate") if isinstance({**document}.get(kind), dict))
            key, kept = dict(document["key"]), document[kind]
        except (OSError, ValueError, TypeError, KeyError, StopIteration, RecursionError):
            kind, key, kept = "", {}, {}
        status = file.stat()
        yield Entry(file, kind, key, kept, status.st_size, status.st_mtime)


def clear(chosen: Iterable[Entry]) -> None:
    """Delete files of the cache and partial files of killed processes, and forget plans in memory.

    Raises OSError: one of them cannot be deleted.
    """
    forget()
    for one in chosen:
        one.file.unlink(missing_ok=True)
    with suppress(RuntimeError):
        delete_abandoned(directory())


def forget() -> None:
    """Drop plans in memory; files stay."""
    _memory.clear()


def _remember(file: Path, found: Kept) -> Kept:
    """The plan or estimate as it is kept in memory from now on."""
    kept = dataclasses.replace(found, cached=True) if isinstance(found, Plan) else found
    _memory[file] = kept
    while len(_memory) > IN_MEMORY:
        del _memory[next(iter(_memory))]
    return kept


def _check_regular(file: Path) -> None:
    """Raises OSError: the name is not a regular file's, so that reading or writing may block forever."""
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "is no regular file")


def _read(file: Path) -> Any:
    """The document of a file.

    Raises OSError, ValueError, RecursionError: it is no regular file, too large, cannot be read, or is no JSON.
    """
    _check_regular(file)
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"has {size:,} bytes; a plan has at most {MOST_BYTES:,}")
    return json.loads(file.read_text(encoding="utf-8"))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=4)
