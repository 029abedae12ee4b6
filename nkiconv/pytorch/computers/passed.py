"""Calls on the host that passed every check before, which need not be checked again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import modes

#: Calls that are remembered of each kind; when there are more, all are forgotten.
MOST = 4096
#: A FakeTensor's shape may be symbols, which have no hash.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def key_of(*values: Any) -> tuple[Any, ...] | None:
    """The properties of a call's arguments that checks read; None if a tensor is not a plain strided one on cpu, or is
    nested, without a shape."""
    found: list[Any] = []
    for one in values:
        if one is None or type(one) is str or type(one) is bool:
            found.append(one)
        elif not isinstance(one, torch.Tensor):
            found.append(repr(one))  # 1, 1.0 and True are equal
        elif type(one) in _PLAIN and one.is_cpu and one.layout is torch.strided and not one.is_nested:
            found += (one.shape, one.dtype, one.requires_grad)
        else:
            return None
    return tuple(found)


def remember(passed: dict[Any, Any], key: Any, value: Any = None) -> None:
    """Keep a value for a call that passed its checks."""
    if len(passed) >= MOST:
        passed.clear()
    passed[key] = value


def once(check: Callable[..., None]) -> Callable[..., None]:
    """A check of kinds, shapes and dtypes, never of numbers in tensors, that is left out where it passed before.

    It takes `direct` besides its arguments: that `modes.is_torchs` holds, where a caller has asked.
    """
    passed: dict[Any, None] = {}

    @functools.wraps(check)
    def checked(*args: Any, direct: bool = False) -> None:
        if not direct and (
            modes.is_traced() or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
        ):  # shapes may be symbols or tensors, which have no hash
            return check(*args)
        key = key_of("torch" if direct else modes.mode(), torch.is_grad_enabled(), *args)
        if key not in passed:
            check(*args)
            if key is not None:
                remember(passed, key)
        return None

    return checked
