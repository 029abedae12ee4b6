"""Classes that `convert` gives modules in the place of their own: subclasses with the same name and parameters.

A module keeps its object, and with it its parameters, hooks and flags. Nobody can import such a class, so its instances
are pickled by the class that it was made from.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
#: Functions from a class to its subclass, by the name of what changes.
_CHANGES: dict[str, Callable[[Any], Any]] = {}


class Changed(torch.nn.Module):
    """Methods that a module gets in front of its class's: `change_class` makes a class of both, in which a forward
    calls super()'s. nkiconv_traced: whether torch.fx looks into it, which calls torch's modules as they are.
    plain_forward, where a subclass has it: the forward of the module's class."""

    nkiconv_traced = False
    if TYPE_CHECKING:  # attributes are the class's

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, **named: Any) -> None:
        what: Any = cls
        if cls.__bases__ == (Changed,):  # no class of both
            _CHANGES[cls.__name__] = lambda kind: _both(what, kind, kind.forward)  # as it is now: some are replaced


@functools.cache
def _both(change: Any, kind: Any, forward: Any) -> Any:
    """A class and a change. Its forward has the signature of the class's: torch.export and trainers read it."""

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        return change.forward(self, *args, **named)

    plain = {"plain_forward": forward} if hasattr(change, "plain_forward") else {}
    found = _made(change.__name__, kind, (change, kind), {"forward": call, **plain})
    found.__module__ = change.__module__ if change.nkiconv_traced else found.__module__
    return found


def _made(name: str, kind: Any, bases: tuple[Any, ...], more: dict[str, Any]) -> Any:
    own = {one: getattr(kind, one) for one in ("__module__", "__doc__", "__qualname__")}
    return type(kind)(kind.__name__, bases, {**own, "__reduce_ex__": _reduce, "_changed": (name, kind), **more})


@functools.cache
def _converted(kind: Any, _forward: Any) -> Any:
    """One of our classes and the module's own at once, of a subclass of torch's: without a forward of its own, or with
    one that `videos` knows."""
    base = next(ours for theirs, ours in OURS.items() if issubclass(kind, theirs))
    known = videos.forward_of(kind)
    return _made("ours", kind, (base, kind) if known is None else (kind, base), known or {})


def ours(kind: Any) -> Any:
    """Our class for torch's or for a subclass of it."""
    return OURS[kind] if kind in OURS else _converted(kind, kind.forward)


_CHANGES["ours"] = ours


class Intercepted(Changed):
    """A module whose forward runs under `intercept` with its attribute STRICT."""

    def forward(self, *args: Any, **named: Any) -> Any:
        with intercept(getattr(self, STRICT, None)):
            return super().forward(*args, **named)


class LeftOut(Changed):
    """A module whose forward stays torch's under `intercept` too."""

    def forward(self, *args: Any, **named: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return super().forward(*args, **named)


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


def change_class(module: Any, what: Any) -> None:
    """Give a module the class that a `Changed`, or the function `ours`, makes of its own, unless it has it.

    torch made one for each parametrized module, on top of the original: again on top of ours, torch undoes it as well.
    """
    kind: Any = type(module)
    if isinstance(what, type) and isinstance(module, what):
        return
    change = _CHANGES[what.__name__]
    if parametrize.is_parametrized(module):
        namespace = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        module.__class__ = type(kind.__name__, (change(kind.__bases__[0]),), namespace)
    else:
        module.__class__ = change(kind)


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    reduced: Any = object.__reduce_ex__(self, max(2, int(protocol)))
    return (_instance, _history(type(self)), *reduced[2:])


def _instance(names: tuple[str, ...], kind: Any) -> Any:
    """An empty module of a changed class. A process that has fused nothing has not imported the changes yet."""
    if not _CHANGES.keys() >= set(names):
        importlib.import_module(".fusion", __package__)
    for name in names:
        kind = _CHANGES[name](kind)
    return kind.__new__(kind)
