"""`nki.typing`: annotations that declare the shape of a kernel's tensor parameters.

``def kernel(x: nt.tensor[128, 512])`` declares a shape, ``x: nt.tensor`` only that x is a tensor. A launch whose array
has another shape is refused (NKI175): the documents say that shapes are declared, not what happens when they differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .rules import refuse_launch
from .tensor import NkiTensor

__all__ = ["tensor"]


class _Declares(type):
    """Makes ``tensor[128, 512]`` a tensor type of that shape."""

    shape: tuple[int, ...] | None

    def __getitem__(cls, shape: Any) -> Any:
        sizes = shape if isinstance(shape, tuple) else (shape,)
        if any(type(n) is not int or n < 1 for n in sizes) or not sizes:
            raise TypeError(f"nt.tensor[{shape!r}]: sizes must be positive ints")
        return _Declares(f"tensor{list(sizes)}", (tensor,), {"shape": sizes})


class tensor(metaclass=_Declares):
    """A tensor parameter, of any shape; `tensor[128, 512]` is one of that shape (positive ints)."""

    shape = None


def check(function: Callable[..., Any], bound: Mapping[str, Any]) -> None:
    """Each argument has the shape that its parameter's annotation declares, or is None (NKI175)."""
    for name, declared in _annotations(function).items():
        if not isinstance(declared, _Declares) or declared.shape is None or bound.get(name) is None:
            continue
        value = bound[name]
        if type(value) is not NkiTensor or value.shape != declared.shape:
            found = f"has shape {value.shape}" if type(value) is NkiTensor else f"is {value!r}"
            refuse_launch("NKI175", f"{name} {found}, declared {declared.shape}")


def _annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A function's annotations, with text evaluated; empty if one has no meaning outside its own scope."""
    try:
        return inspect.get_annotations(function, eval_str=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}
