"""Plans on disk, one JSON file each, in the user's cache directory, and those of this process in memory.

A plan's file is named by a hash of all that it depends on: problem, epilogue, cores, constants, target, and the sources
of kernels, model, floors and planner. Several processes may share the directory: files appear whole or not at all.
Whatever is wrong with it costs a warning and a search, never a plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

from .. import floors, kernels, problem, simulator
from ..errors import FileFormatError
from ..sources import hash_of
from ..whole_file import whole_file
from .operations import operation_for
from .plan import Plan
from .request import Request

#: The environment's variable that names another directory.
VARIABLE = "NKICONV_CACHE"
TARGET = "trn2"
#: Of the files; raised when they change.
FORMAT = 2
#: Plans kept in memory.
IN_MEMORY = 1024

_memory: OrderedDict[tuple[str, str], Plan] = OrderedDict()


class CacheWarning(UserWarning):
    """A file or directory of the cache is of no use; the plan is searched for instead."""


def directory() -> Path:
    """Where plans are kept: $NKICONV_CACHE, or nkiconv in what the operating system has for caches.

    Raises RuntimeError: neither is known, as of a user without a home directory.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "nkiconv" / "cache"
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "nkiconv"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nkiconv"
    return Path.home() / ".cache" / "nkiconv"


def key(request: Request) -> dict[str, Any]:
    """Everything that a plan depends on, as JSON has it."""
    plain = {
        "format": FORMAT,
        "target": TARGET,
        "sources": hash_of(kernels, simulator, floors, problem, sys.modules[__package__ or ""]),
        **dataclasses.asdict(request),
        "operation": operation_for(request).name,
    }
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def path(request: Request) -> Path:
    """The file of a request's plan."""
    return directory() / f"{_digest(key(request))}.json"


def _digest(of: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:32]


def load(request: Request) -> Plan | None:
    """The plan kept for a request, or None."""
    wanted = key(request)
    try:
        where = directory()
    except RuntimeError:
        return None  # `store` says so
    name = _digest(wanted)
    known = _memory.get((str(where), name))
    if known is not None:
        return known
    file = where / f"{name}.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        _warn(f"{file}: cannot be read ({_reason(error)}); the plan is searched for again")
        return None
    if not isinstance(document, dict) or document.get("key") != wanted:
        _warn(f"{file}: is not the plan that its name says; it is ignored, and the plan is searched for again")
        return None
    try:
        found = Plan.from_dict(document.get("plan"))
    except FileFormatError as error:
        _warn(f"{file}: {error}; the plan is searched for again")
        return None
    wanted_operation = operation_for(request).name
    if (found.problem, found.operation, found.lnc, found.asked) != (
        request.problem,
        wanted_operation,
        request.lnc,
        request.asked,
    ):
        _warn(f"{file}: holds the plan of another problem; it is ignored, and the plan is searched for again")
        return None
    found = dataclasses.replace(found, cached=True)
    _remember((str(where), name), found)
    return found


def store(request: Request, plan: Plan) -> None:
    """Keep a plan."""
    wanted = key(request)
    try:
        where = directory()
    except RuntimeError as error:
        _warn(f"the plan is not kept ({error}); set {VARIABLE} to a directory that can be written")
        return
    name = _digest(wanted)
    _remember((str(where), name), dataclasses.replace(plan, cached=True))
    file = where / f"{name}.json"
    text = json.dumps({"key": wanted, "plan": plan.as_dict()}, indent=1)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        _warn(f"{file}: cannot be written ({_reason(error)}); set {VARIABLE} to a directory that can")


def forget() -> None:
    """Drop what is in memory; files stay."""
    _memory.clear()


def _remember(name: tuple[str, str], plan: Plan) -> None:
    _memory[name] = plan
    while len(_memory) > IN_MEMORY:
        _memory.popitem(last=False)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=4)
