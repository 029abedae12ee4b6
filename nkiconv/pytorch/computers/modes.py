"""Who computes an operator: torch or the simulator on the host, the kernel on a Neuron device.

Where torch computes, and nothing records what runs, its own functions are called without an operator of ours around
them (`is_torchs`): their derivatives, transforms and cost are torch's.
"""

from __future__ import annotations

import os
import sys

import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch

from ..errors import UnsupportedError

VARIABLE = "NKICONV_CPU"
#: What `NKICONV_CPU` may be: torch computes; the kernel runs in the simulator; both do and must agree.
MODES = ("torch", "simulate", "compare")
#: Kinds of devices that are a NeuronCore: of torch-neuronx's native backend, and of torch_xla.
NEURON = ("neuron", "xla", "privateuseone")


def mode() -> str:
    """NKICONV_CPU's value. Raises UnsupportedError where it is none of MODES."""
    wanted = os.environ.get(VARIABLE, MODES[0])
    if wanted not in MODES:
        raise UnsupportedError(f"{VARIABLE}={wanted!r}: accepted are {', '.join(MODES)}; set one, or unset it")
    return wanted


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
    """Whether torch.compile, torch.export, torch.jit.trace or a TorchDispatchMode is at work."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or _len_torch_dispatch_stack_pre_dispatch()  # type: ignore[no-untyped-call]
        or torch._C._get_tracing_state() is not None
    )


def is_traced() -> bool:
    """Whether torch.jit.trace is at work, under which shapes are tensors."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def takes_float64(x: torch.Tensor) -> bool:
    """Whether torch would compute with x, which may be float64 then."""
    return x.device.type == "cpu" and mode() == "torch"


def computer(x: torch.Tensor) -> str:
    """Who computes on x's device: "device", or one of MODES on the host. Raises UnsupportedError where nobody does."""
    kind = x.device.type
    if kind in NEURON:
        return "device"
    if kind != "cpu":
        raise UnsupportedError(
            f"input.device={x.device}: kernels run on Neuron devices, torch and the simulator on cpu; move the tensors"
        )
    return mode()
