"""torch's own conv1d to conv3d, and transposed ones, replaced by nkiconv's for every caller: modules, models.

Calls that nkiconv does not take stay with torch, with one warning for each function and cause.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

from ...errors import ComparisonError, NkiconvError, UnsupportedError
from .. import functional, transposed
from ..computers import modes
from ..operators.tensor_kinds import DTYPES
from .pending import Pending, tensor_of


def _convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
    groups: int, *, strict_nonfinite: bool | None,
) -> Any:  # fmt: skip
    """`torch.convolution`, which graphs of torch.export have in the place of all others."""
    rank = weight.dim() - 2
    if rank not in (1, 2, 3):
        raise UnsupportedError(f"weight.shape={tuple(weight.shape)}: must have 3 to 5 axes; convolve by torch")
    numbers = (stride, padding, output_padding, groups, dilation) if transposed else (stride, padding, dilation, groups)
    ours = _BY_NAME[f"conv{'_transpose' * transposed}{rank}d"]
    return ours(input, weight, bias, *numbers, strict_nonfinite=strict_nonfinite)


#: Ours by the names of torch's functions.
_BY_NAME: dict[str, Any] = {
    **{f"conv{rank}d": getattr(functional, f"conv{rank}d") for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": getattr(transposed, f"conv_transpose{rank}d") for rank in (1, 2, 3)},
    "convolution": _convolution,
}


def _called(name: str) -> Iterator[Any]:
    """The callables of a name: torch's function (torch.nn.functional's is the same object) and the operators that
    graphs of torch.export call."""
    packet = getattr(torch.ops.aten, name)
    yield from (getattr(torch, name), packet)
    yield from (getattr(packet, overload) for overload in packet.overloads() if overload != "out")


#: The name in `torch` of each function and operator that nkiconv takes the place of.
FUNCTIONS: dict[Any, str] = {theirs: name for name in _BY_NAME for theirs in _called(name)}
_OURS: dict[Any, Any] = {theirs: _BY_NAME[name] for theirs, name in FUNCTIONS.items()}


#: Tensors without a meaning of their own.
_PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter)


#: Attribute of a converted module: the strict_nonfinite of its forward.
STRICT = "nkiconv_strict_nonfinite"


def intercept(strict_nonfinite: bool | None = None) -> Intercept:
    """A context manager under which `torch.conv1d` to `conv3d` and `torch.conv_transpose1d` to `3d` (those of
    torch.nn.functional too) are nkiconv's, and so are the operators of these names, which graphs of torch.export call.

        with nkiconv.pytorch.intercept():
            y = model(x)

    It holds for all callers of these functions: torch's modules, subclasses that pad or normalize filters first, and
    forwards that read a weight and call a function. Convolutions that nkiconv does not take stay with torch: dtypes
    other than bf16, fp16, fp32 and, on the host, fp64; tensor subclasses with a meaning of their own. A warning tells
    each cause once. Calls that torch refuses raise torch's error.

    It holds in the thread that enters it, and ends with the block, also by an exception; blocks may be nested.
    Derivatives are nkiconv's whether or not backward runs inside.
    torch.compile traces through it: a function compiled outside is compiled once more inside.

    Args:
        strict_nonfinite: of the convolutions, as in `conv2d`; None: as `set_strict_nonfinite` says.

    Returns: the context manager; one may be entered again after it was left.

    Raises: KindError; under it ComparisonError with NKICONV_CPU=compare, where a kernel is off.
    """
    modes.wants_strict_nonfinite(strict_nonfinite)
    return Intercept(strict_nonfinite)


class Intercept(TorchFunctionMode):
    """See `intercept`."""

    def __init__(self, strict_nonfinite: bool | None = None) -> None:
        super().__init__()
        self.strict_nonfinite = strict_nonfinite
        self.told: dict[tuple[str, str], str] = {}  # why calls stayed with torch, by function and cause

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, or ours in its place."""
        if func is torch.Tensor.unflatten and torch.compiler.is_compiling():
            func = torch.unflatten  # the method calls super()'s, which torch.compile traces under no mode
        ours = _OURS.get(func)
        named = kwargs or {}
        if ours is not None and any(issubclass(kind, Pending) for kind in types):
            types = [kind for kind in types if not issubclass(kind, Pending)]
            args, named = tree_map(tensor_of, (args, named))
        if ours is not None and any(issubclass(kind, torch.fx.Proxy) for kind in types):
            more = {} if self.strict_nonfinite is None else {"strict_nonfinite": self.strict_nonfinite}
            found: Any = torch.fx.Proxy.__torch_function__(taken(FUNCTIONS[func]), types, args, {**named, **more})
            return found
        of_tensors = all(issubclass(kind, torch.Tensor) for kind in types)  # unlike a tracer's proxies
        if ours is None or self._is_inner() or "out" in named or not of_tensors:
            return func(*args, **named)
        reason = _foreign(types, (*args, *named.values()))
        if not reason:
            try:
                return ours(*args, **named, strict_nonfinite=self.strict_nonfinite)
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
        if torch._C._len_torch_function_stack() == 0:
            return False
        stack = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        return any(isinstance(mode, Intercept) for mode in stack)

    def _tell(self, name: str, reason: str) -> None:
        cause = name, re.split(r"[=:]", reason, maxsplit=1)[0]
        if cause not in self.told:
            self.told[cause] = reason
            warnings.warn(f"nkiconv.pytorch.intercept: {name} stays with torch: {reason}", stacklevel=4)


def _foreign(types: Any, arguments: tuple[Any, ...]) -> str:
    """Why tensors of these kinds are not ours, or ""."""
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    kinds = [kind.__name__ for kind in types if kind is not torch.nn.Parameter]
    kinds += [
        type(one).__name__ for one in tensors if type(one) not in _PLAIN_KINDS and is_traceable_wrapper_subclass(one)
    ]
    if kinds:
        return f"tensor kind: {', '.join(dict.fromkeys(kinds))} has a meaning that nkiconv does not know"
    dtypes = [str(one.dtype) for one in tensors if not _takes(one)]
    if dtypes:  # torch.compile cannot trace the error that ours would raise
        return f"dtype: {', '.join(dict.fromkeys(dtypes))} must be one of {', '.join(map(str, DTYPES))}"
    return ""


def _takes(tensor: torch.Tensor) -> bool:
    return tensor.dtype in DTYPES or (tensor.dtype == torch.float64 and modes.takes_float64(tensor))


def _under_intercept(name: str) -> Any:
    theirs = getattr(torch, name)

    def call(*args: Any, strict_nonfinite: bool | None = None, **named: Any) -> Any:
        with intercept(strict_nonfinite):
            return theirs(*args, **named)

    call.__name__ = call.__qualname__ = name
    return call


# The code of a torch.fx graph imports the functions that it calls, by name.
globals().update({name: _under_intercept(name) for name in _BY_NAME})


def taken(name: str) -> Any:
    """The function of torch of that name under `intercept`, for graphs."""
    return globals()[name]
