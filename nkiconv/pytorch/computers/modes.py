"""The backend of an operator: torch or the simulator on the host, the kernel on a Neuron device.

Where torch computes and nothing records the calls, torch's own functions run without one of nkiconv's operators
(`is_torchs`), with torch's derivatives, transforms and cost.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ...errors import shown
from ..errors import KindError, UnsupportedError, as_torchs

VARIABLE = "NKICONV_CPU"
#: Values of `NKICONV_CPU`: torch computes; the kernel runs in the simulator; both run and must agree.
MODES = ("torch", "simulate", "compare")
#: Kinds of devices that are a NeuronCore: of torch-neuronx's native backend, and of torch_xla.
NEURON = ("neuron", "xla", "privateuseone")


#: Whether torch computes on the host for any NKICONV_CPU: in this process, in all threads.
_by_torch = False


@contextmanager
def by_torch() -> Iterator[None]:
    """Under it torch computes on the host, as with NKICONV_CPU=torch: in float64 too."""
    global _by_torch
    before, _by_torch = _by_torch, True
    try:
        yield
    finally:
        _by_torch = before


def mode() -> str:
    """The value of NKICONV_CPU. Raises UnsupportedError if it is not one of MODES."""
    wanted = MODES[0] if _by_torch else os.environ.get(VARIABLE, MODES[0])
    if wanted not in MODES:
        raise UnsupportedError(f"{VARIABLE}={wanted!r}: accepted are {', '.join(MODES)}; set one, or unset it")
    return wanted


def told_layer(layer: str | None) -> str | None:
    """The layer that a module's call names: torch.compile's, which serves all blocks of a model, name it to compare."""
    compiles = torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting()
    return None if compiles and mode() != "compare" else layer


#: Whether calls that leave `strict_nonfinite` open ask for it: in this process, in all threads.
_strict_nonfinite = False


def set_strict_nonfinite(enabled: bool) -> None:
    """Whether calls of nkiconv's functions and modules that leave `strict_nonfinite` open (None) ask for it.

    With it NaN and Inf of x reach exactly the outputs that the definition gives them, and so in gradients by x; kernels
    may be slower. It holds in this process, in all threads, from now on; a backward follows its forward.

    Args:
        enabled: True or False, with which a process begins.

    Returns: nothing.

    Raises: KindError (ValueError and TypeError).
    """
    global _strict_nonfinite
    _strict_nonfinite = wants_strict_nonfinite(enabled, open_to=())


@contextmanager
def strict_nonfinite(enabled: bool = True) -> Iterator[None]:
    """`set_strict_nonfinite` within a block; the value before is restored after it.

    Returns: the context manager.

    Raises: KindError (ValueError and TypeError).
    """
    before = _strict_nonfinite
    set_strict_nonfinite(enabled)
    try:
        yield
    finally:
        set_strict_nonfinite(before)


def wants_strict_nonfinite(value: bool | None, open_to: tuple[None, ...] = (None,)) -> bool:
    """Whether a call with strict_nonfinite=value asks for it: None leaves it to the process's switch.

    Raises KindError where it is no bool, or no value of `open_to`.
    """
    if type(value) is bool:
        return value
    if value is not None or open_to == ():
        accepted = ", ".join(map(str, (True, False, *open_to)))
        raise KindError(f"strict_nonfinite={shown(value)}: accepted are {accepted}; pass one of them")
    return _strict_nonfinite


def is_autocast(kind: str) -> bool:
    """Whether torch.autocast is on for a type of device; some types, such as meta, have none."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def is_torchs(x: object) -> bool:
    """Whether a call with x is torch's alone: on cpu and in mode "torch", of a tensor that is no subclass's, which
    functorch's are not, and with nobody (torch.compile, torch.export, torch.jit.trace, a TorchDispatchMode) who is to
    see nkiconv's operators; and every call under torch.onnx.export, as ONNX has torch's convolutions.
    """
    return (
        not is_recorded()
        and type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.is_cpu  # type: ignore[attr-defined]  # a tensor
        and computer(x) == "torch"  # type: ignore[arg-type]
    ) or is_onnx()


def is_onnx() -> bool:
    """Whether torch.onnx.export is at work, but for its last resort, torch.export with strict=True."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()  # which torch imports when it is first used


def is_recorded() -> bool:
    """Whether torch.compile, torch.export, torch.jit.trace or a TorchDispatchMode is active.

    Modes of selective checkpointing do not count: they apply a policy to torch's operators.
    """
    return bool(
        torch.compiler.is_compiling()
        or (torch._C._len_torch_dispatch_stack() and not all(map(_is_checkpoints, _get_current_dispatch_mode_stack())))
        or _len_torch_dispatch_stack_pre_dispatch()  # type: ignore[no-untyped-call]
        or torch._C._get_tracing_state() is not None
    )


def is_checkpointed() -> bool:
    """Whether selective checkpointing keeps results of operators, or gives kept ones back."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return False
    return any(map(_is_checkpoints, _get_current_dispatch_mode_stack()))


def _is_checkpoints(mode: object) -> bool:
    return type(mode).__module__ == "torch.utils.checkpoint"


def is_traced() -> bool:
    """Whether torch.jit.trace is at work, under which shapes are tensors."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def takes_float64(x: torch.Tensor) -> bool:
    """Whether torch would compute with x, which may be float64 then."""
    return x.device.type == "cpu" and mode() == "torch"


def computer(x: torch.Tensor) -> str:
    """Who computes on x's device: "device", or one of MODES on the host. Raises UnsupportedError where none can."""
    kind = x.device.type
    if kind in NEURON:
        return "device"
    if kind != "cpu":
        raise UnsupportedError(
            f"input.device={x.device}: kernels run on Neuron devices, torch and the simulator on cpu; move the tensors"
        )
    return mode()


def results(
    x: torch.Tensor, by_torch: Callable[[], Any], by_kernel: Callable[[Any], Any], compared: Callable[[Any], Any]
) -> Any:
    """By torch, or by the kernel on the backend of x's device, a `kernels.Backend`; compared: of the simulator's
    results, torch's."""
    who = computer(x)
    if who == "torch":
        return by_torch()
    with as_torchs():
        if who == "device":
            return by_kernel(lazy("device").BACKEND)
        found = by_kernel(lazy("simulated").BACKEND)
        return found if who == "simulate" else compared(found)


def lazy(name: str) -> Any:
    """A module of backends that imports the planner."""
    return importlib.import_module(f".{name}", __package__)
