"""nkiconv's functions under torch's function modes, such as `intercept`: a mode sees one call, and nothing inside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch.overrides import handle_torch_function

from ..errors import shown
from .errors import UnsupportedError

Function = TypeVar("Function", bound=Callable[..., Any])


def one_call(function: Function) -> Function:
    """The function, which a mode sees whole; each attribute of a tensor that it reads would be a call otherwise."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        layer = named.get("layer")
        if layer is not None and not isinstance(layer, str):
            raise UnsupportedError(f"layer={shown(layer)}: must be None or a name for messages; pass a str")
        if is_watched():
            return handle_torch_function(call, args, *args, **named)
        return function(*args, **named)

    return unscripted(call)  # type: ignore[return-value]  # it has the function's signature


def unscripted(function: Function) -> Function:
    """The function, which torch.jit.script refuses by name."""
    vars(function)["__prepare_scriptable__"] = refuse_script
    return function


def refuse_script(*_: Any) -> NoReturn:
    """Stand in for nkiconv's functions and modules under torch.jit.script. Raises UnsupportedError."""
    raise UnsupportedError(
        "torch.jit.script: cannot compile nkiconv's functions and modules; use torch.compile, torch.export or "
        "torch.jit.trace"
    )


def is_watched() -> bool:
    """Whether a function mode is on; code that torch.compile traces asks nothing."""
    return not torch.compiler.is_compiling() and torch._C._is_torch_function_mode_enabled()
