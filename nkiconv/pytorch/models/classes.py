"""Classes that `convert` gives modules in the place of their own: subclasses with the same name and parameters.

A module keeps its object, and with it its parameters, hooks and flags. Nobody can import such a class, so its instances
are pickled by the class that it was made from.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import parametrize

from .. import nn
from . import videos
from .intercept import STRICT, intercept

#: Our class for each of torch's.
OURS: dict[type, type] = {
    getattr(torch.nn, name): getattr(nn, name)
    for rank in (1, 2, 3)
    for name in (f"Conv{rank}d", f"ConvTranspose{rank}d")
}
Change = Callable[[Any], Any]
_CHANGES: dict[str, Change] = {}


def define(made: Callable[[Any], tuple[tuple[type, ...], dict[str, Any]]]) -> Change:
    """A function from a class to its subclass; made: gives the subclass's bases and namespace. Its forward has the
    signature of the class's: torch.export and trainers read it."""

    @functools.cache
    def of_forward(kind: Any, _forward: Any) -> Any:
        bases, more = made(kind)
        own = {name: getattr(kind, name) for name in ("__module__", "__doc__", "__qualname__")}
        if "forward" in more:
            more["forward"].__signature__ = inspect.signature(kind.forward)
        return type(kind)(kind.__name__, bases, {**own, "__reduce_ex__": _reduce, "_changed": (name, kind), **more})

    def changed(kind: Any) -> Any:
        return of_forward(kind, kind.forward)  # as it is now: forwards of classes are replaced

    name = made.__name__
    _CHANGES[name] = changed
    return changed


@define
def converted(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """One of our classes and the module's own at once, of a subclass of torch's: without a forward of its own, or with
    one that `videos` knows."""
    base = next(ours for theirs, ours in OURS.items() if issubclass(kind, theirs))
    known = videos.forward_of(kind)
    return ((base, kind), {}) if known is None else ((kind, base), known)


@define
def intercepted(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """A subclass whose forward runs under `intercept` with the module's attribute STRICT."""

    @functools.wraps(kind.forward)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        with intercept(getattr(self, STRICT, None)):
            return kind.forward(self, *args, **named)  # as it is in this call

    return (kind,), {"forward": call}


@define
def left_out(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """A class whose forward stays torch's under `intercept` too."""

    @functools.wraps(kind.forward)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return kind.forward(self, *args, **named)

    return (kind,), {"forward": call}


def ours(kind: Any) -> Any:
    """Our class for torch's or for a subclass of it."""
    return OURS[kind] if kind in OURS else converted(kind)


def is_changed(module: torch.nn.Module, change: Change) -> bool:
    """Whether a module's class is one that `change` made, perhaps below others."""
    return any(_CHANGES[name] is change for name in _history(type(module))[0])


def _history(kind: Any) -> tuple[tuple[str, ...], Any]:
    """(names of the changes that made a class, the first one's first, the class that they began with)."""
    names: tuple[str, ...] = ()
    while hasattr(kind, "_changed"):
        name, kind = kind._changed
        names = (name, *names)
    return names, kind


def origin(kind: Any) -> Any:
    """The class from which nkiconv made this one, or the class itself."""
    return _history(kind)[1]


def change_class(module: Any, change: Change) -> None:
    """Give a module the class that `change` makes of its own.

    torch made one for each parametrized module, on top of the original: again on top of ours, torch undoes it as well.
    """
    kind: Any = type(module)
    if parametrize.is_parametrized(module):
        namespace = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        module.__class__ = type(kind.__name__, (change(kind.__bases__[0]),), namespace)
    else:
        module.__class__ = change(kind)


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    reduced: Any = object.__reduce_ex__(self, max(2, int(protocol)))
    return (_instance, _history(type(self)), *reduced[2:])


def _instance(names: tuple[str, ...], kind: Any) -> Any:
    """An empty module of a changed class."""
    for name in names:
        kind = _CHANGES[name](kind)
    return kind.__new__(kind)
