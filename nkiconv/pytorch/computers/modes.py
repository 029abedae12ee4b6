"""Who computes an operator: torch or the simulator on the host, the kernel on a Neuron device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import UnsupportedError
from . import host

if TYPE_CHECKING:
    import torch

    from ..operators.convolution import Convolution

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


def convolve(
    asked: Convolution,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    packed: torch.Tensor | None = None,
) -> torch.Tensor:
    """y of checked tensors, wherever they are."""
    who = computer(x)
    if who == "torch":
        return host.convolve(asked, x, w, bias, residual)
    if who == "device":
        from . import device

        return device.convolve(asked, x, w, bias, residual, packed)
    from . import simulated

    convolve_there = simulated.convolve if who == "simulate" else simulated.compare
    return convolve_there(asked, x, w, bias, residual, packed)


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
