"""The functions that model files look up by causal-conv1d's names, set to nkiconv's where files are imported already.

A file of transformers decides when it is imported which `causal_conv1d_fn` and `causal_conv1d_update` its layers call:
names of the file, or attributes that its layers copied from there.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from ...errors import ComparisonError, NkiconvError
from .functions import causal_conv1d_fn, causal_conv1d_update
from .installation import Installation

#: Ours, by the names that are looked up.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "causal_conv1d_update": causal_conv1d_update,
}
#: The name of the first argument there.
_ROWS = "hidden_states"


def files_of(module: torch.nn.Module) -> Iterator[ModuleType]:
    """The files that define a module's class and its bases, as far as these look for causal-conv1d's functions."""
    for kind in type(module).__mro__:
        file = sys.modules.get(kind.__module__)
        if file is not None and looks(file):
            yield file


def looks(file: ModuleType | torch.nn.Module) -> bool:
    """Whether a file looks for the functions, or a layer keeps them as attributes."""
    return any(name in vars(file) for name in FUNCTIONS)


def set_in(
    file: ModuleType | torch.nn.Module, undo: Installation, missing: bool = False, strict_nonfinite: bool | None = None
) -> None:
    """Let a file, for all its models, or a layer that keeps the functions as attributes, call nkiconv's.

    missing: also in the place of a None, which says that the package is not there. strict_nonfinite: of these calls;
    None: as it was set in the file before, else as `set_strict_nonfinite` says.
    """
    names = vars(file)
    for name, ours in FUNCTIONS.items():
        found = names.get(name)
        if name in names and (missing or found is not None) and not _is_ours(found, ours, strict_nonfinite):
            undo.set(names, name, _instead_of(found, ours, strict_nonfinite))


def _is_ours(function: Any, ours: Callable[..., Any], strict_nonfinite: bool | None) -> bool:
    """Whether a function is ours already, with such a strict_nonfinite where one is asked for."""
    if function is not ours and getattr(function, "__wrapped__", None) is not ours:
        return False
    return strict_nonfinite in (None, vars(function).get("strict_nonfinite"))


def _instead_of(theirs: Any, ours: Callable[..., Any], strict_nonfinite: bool | None) -> Callable[..., Any]:
    """nkiconv's function with the arguments that model files pass; a call that it refuses goes to theirs, with one
    warning.

    Layers pass on all arguments of their callers; those unknown to nkiconv's function are dropped.
    """
    known = frozenset(inspect.signature(ours).parameters)
    told = False

    @functools.wraps(ours)
    def call(*args: Any, **named: Any) -> Any:
        mine = {name: one for name, one in named.items() if name in known}
        if _ROWS in named:
            mine["x"] = named[_ROWS]
        mine.setdefault("strict_nonfinite", strict_nonfinite)
        try:
            return ours(*args, **mine)
        except ComparisonError:
            raise
        except NkiconvError as error:
            if theirs is None:
                raise
            if not torch.compiler.is_compiling():
                tell(error)
            return theirs(*args, **named)

    def tell(error: NkiconvError) -> None:
        nonlocal told
        if not told:
            told = True
            warnings.warn(f"{ours.__name__}: stays with the model's own function: {error}", stacklevel=3)

    vars(call)["strict_nonfinite"] = strict_nonfinite
    return call
