"""Forwards that may see pending results: those that the proof of a chain read.

A module that hands on a `Pending`, and the modules around it, compute what leaves the outermost of their forwards that
runs. So code that calls modules by themselves gets tensors: C++ of torch (autograd functions, checkpoints, scripted
functions) would read the memory of a tensor in a Pending.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .classes import Changed, change_class
from .pending import Pending, tensor_of

#: Name of the attribute of a module with the proofs whose chains run in its forward.
_PROOFS = "nkiconv_proofs"
#: Name of the attribute of a hook that reads no tensor.
READS_NOTHING = "nkiconv_reads_nothing"


class _Running(threading.local):
    """Proofs of which a forward runs in this thread, and where."""

    where: Any = None
    proofs: frozenset[str] = frozenset()


_RUNNING = _Running()


def _where() -> Any:
    """Whether gradients are on, and hooks of what they save: others than before where a checkpoint calls."""
    return torch.is_grad_enabled(), torch._C._autograd._top_saved_tensors_default_hooks(True)


def _new(module: torch.nn.Module) -> frozenset[str]:
    """The proofs of a module of which no forward runs here."""
    own: frozenset[str] = vars(module).get(_PROOFS, frozenset())  # a slice of a Sequential has none
    return own - _RUNNING.proofs if own and _RUNNING.where == _where() else own


@contextmanager
def within(module: torch.nn.Module) -> Iterator[None]:
    """As in a module's forward."""
    before, (where, proofs) = vars(_RUNNING).copy(), (_where(), _new(module))
    proofs |= _RUNNING.proofs if _RUNNING.where == where else frozenset()
    _RUNNING.where, _RUNNING.proofs = where, proofs
    try:
        yield
    finally:
        vars(_RUNNING).update({"where": None, "proofs": frozenset(), **before})


class Computes(Changed):
    """A module whose forward returns tensors, unless it is called within another one of the same proof, and no hook
    comes after it: one may read the result, or, as FSDP's, take parameters away of which that is computed."""

    def forward(self, *args: Any, **named: Any) -> Any:
        is_outermost = not torch.compiler.is_compiling() and bool(_new(self))
        with within(self) if is_outermost else nullcontext():
            found = super().forward(*args, **named)
        if torch.compiler.is_compiling() or not (is_outermost or has_hooks_after(self)):
            return found
        pends = any(isinstance(one, Pending) for one in tree_leaves(found))
        return tree_map(tensor_of, found) if pends else found


def has_hooks_after(module: torch.nn.Module) -> bool:
    """Whether a hook comes after a module's forward that may read tensors."""
    hooks = (*module._forward_hooks.values(), *module._backward_hooks.values(), *module._backward_pre_hooks.values())
    return any(not getattr(hook, READS_NOTHING, False) for hook in hooks)


def take(model: torch.nn.Module, handing: Mapping[str, str], prefixes: Iterable[str]) -> None:
    """Let modules that hand on pending results do so within the forwards that were read.

    handing: the module that holds a chain by the name of each module of it that hands on a result; prefixes: of the
    regions whose graphs prove chains. A chain outside of all of them is proved by the forward of the module that holds
    it.
    """
    proofs: dict[str, str] = {}
    for name, inside in handing.items():
        prefix = max((one for one in prefixes if _dotted(inside).startswith(one)), key=len, default=_dotted(inside))
        parts = name.split(".") if name else []
        around = [".".join(parts[:count]) for count in range(len(parts) + 1)]
        around = [one for one in around if _dotted(one).startswith(prefix)]
        if not all(map(_can_change, map(model.get_submodule, around[:1]))):
            continue
        proof = proofs.setdefault(prefix, uuid.uuid4().hex)
        for module in filter(_can_change, map(model.get_submodule, around)):
            vars(module)[_PROOFS] = vars(module).get(_PROOFS, frozenset()) | {proof}
            change_class(module, Computes)


def _dotted(name: str) -> str:
    """The prefix of names in a module."""
    return f"{name}." if name else ""


def _can_change(module: torch.nn.Module) -> bool:
    """Whether a module has a forward of its class, which is its own."""
    own = isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule)) or "forward" in vars(module)
    return not own and type(module).forward is not torch.nn.Module.forward
