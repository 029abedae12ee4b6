"""torch's own conv1d to conv3d, and transposed ones, by nkiconv's, for whoever calls them: modules, subclasses, models.

What nkiconv does not take stays with torch. That is told once for each function and cause, in a warning.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...errors import ComparisonError, NkiconvError
from .. import functional, transposed
from ..computers import modes
from ..operators.tensor_kinds import DTYPES

#: torch.nn.functional's are the same objects.
_OURS: dict[Any, Any] = {
    torch.conv1d: functional.conv1d,
    torch.conv2d: functional.conv2d,
    torch.conv3d: functional.conv3d,
    torch.conv_transpose1d: transposed.conv_transpose1d,
    torch.conv_transpose2d: transposed.conv_transpose2d,
    torch.conv_transpose3d: transposed.conv_transpose3d,
}


def intercept() -> Intercept:
    """A context manager under which `torch.conv1d` to `conv3d` and `torch.conv_transpose1d` to `3d` (those of
    torch.nn.functional too) are nkiconv's.

        with nkiconv.pytorch.intercept():
            y = model(x)

    It reaches whatever calls these functions: torch's modules, subclasses of them that pad or normalize filters first,
    and forwards that read a weight and convolve by themselves. Convolutions that nkiconv does not take stay with torch:
    dtypes other than bf16, fp16, fp32 and, on the host, fp64; tensor subclasses with a meaning of their own. A warning
    tells each cause once; errors of calls that torch refuses too are torch's.

    It holds in the thread that enters it, and ends with the block, also by an exception; blocks may be nested.
    Derivatives are nkiconv's whether or not backward runs inside.
    torch.compile traces through it: what was compiled outside is compiled once more inside.

    Returns: the context manager; one may be entered again after it was left.

    Raises: nothing; under it ComparisonError with NKICONV_CPU=compare, where a kernel is off.
    """
    return Intercept()


class Intercept(TorchFunctionMode):
    """See `intercept`."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[tuple[str, str], str] = {}  # why calls stayed with torch, by function and cause

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, or ours in its place."""
        named = kwargs or {}
        ours = _OURS.get(func)
        if ours is None or self._is_inner() or not all(issubclass(kind, torch.Tensor) for kind in types):
            return func(*args, **named)
        reason = _foreign(types, (*args, *named.values()))
        if not reason:
            try:
                return ours(*args, **named)
            except ComparisonError:
                raise
            except NkiconvError as error:
                reason = str(error)
        found = func(*args, **named)
        if not torch.compiler.is_compiling():
            self._tell(func.__name__, reason)
        return found

    def _is_inner(self) -> bool:
        """Whether a block around this one does the work; while this runs, the block is off the stack itself."""
        stack = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return any(isinstance(mode, Intercept) for mode in stack)

    def _tell(self, name: str, reason: str) -> None:
        cause = name, re.split(r"[=:]", reason, maxsplit=1)[0]
        if cause not in self.told:
            self.told[cause] = reason
            warnings.warn(f"nkiconv.pytorch.intercept: {name} stays with torch: {reason}", stacklevel=4)


def _foreign(types: Any, arguments: tuple[Any, ...]) -> str:
    """Why tensors of these kinds are not ours, or ""."""
    kinds = [kind.__name__ for kind in types if kind is not torch.nn.Parameter]
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    kinds += [type(one).__name__ for one in tensors if is_traceable_wrapper_subclass(one)]
    if kinds:
        return f"tensor kind: {', '.join(dict.fromkeys(kinds))} has a meaning that nkiconv does not know"
    dtypes = [str(one.dtype) for one in tensors if not _takes(one)]
    if dtypes:  # torch.compile cannot trace the error that ours would raise
        return f"dtype: {', '.join(dict.fromkeys(dtypes))} is none of {', '.join(map(str, DTYPES))}"
    return ""


def _takes(tensor: torch.Tensor) -> bool:
    return tensor.dtype in DTYPES or (tensor.dtype == torch.float64 and modes.takes_float64(tensor))


@functools.cache
def intercepted(kind: Any) -> Any:
    """A subclass of a module's class whose forward runs under `intercept`."""
    forward = kind.forward

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        with intercept():
            return forward(self, *args, **named)

    more = {"forward": call, "__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
    made = type(kind)(kind.__name__, (kind,), {**more, "__reduce_ex__": _reduce, "_intercepted": kind})
    assert inspect.signature(made.forward) == inspect.signature(forward)
    return made


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    """How to pickle a module whose class nobody can import: by the class that it was made from."""
    reduced: Any = object.__reduce_ex__(self, max(2, int(protocol)))
    return (_instance, (self._intercepted,), *reduced[2:])


def _instance(kind: type) -> Any:
    made: Any = intercepted(kind)
    return made.__new__(made)
