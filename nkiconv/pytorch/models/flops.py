"""How much of the convolutions' arithmetic is nkiconv's, counted in a run from the shapes of every operator that runs.

A dispatch mode sees every operator below autograd: nkiconv's, and those that stay in torch, transposed and 3-d ones
too. A flop is an addition or a multiplication, as torch counts them; biases and activations are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_PREFIX = "nkiconv::"
#: The operator of two convolutions.
POINTWISE_MLP = "pointwise_mlp"


@dataclass
class Share:
    """Flops of the convolutions of a run."""

    nkiconv: int = 0
    others: dict[str, int] = field(default_factory=dict)  # by operator

    @property
    def torch(self) -> int:
        """Flops of those that stay in torch."""
        return sum(self.others.values())

    @property
    def fraction(self) -> float:
        """nkiconv's part of all, 0 to 1; 1 where nothing convolves."""
        total = self.nkiconv + self.torch
        return self.nkiconv / total if total else 1.0

    def add(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Count a call, if it is a convolution."""
        if not is_convolution(func):
            return
        name, flops = func.name(), flops_of(func, args, result)
        if name.startswith(_PREFIX):
            self.nkiconv += flops
        else:
            self.others[name] = self.others.get(name, 0) + flops

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"nkiconv": self.nkiconv, "torch": self.torch, "fraction": self.fraction}

    def __str__(self) -> str:
        """In words."""
        if not self.nkiconv + self.torch:
            return "nothing convolves"
        text = f"{self.fraction:.1%} of {self.nkiconv + self.torch:,} flops of convolutions are nkiconv's"
        rest = ", ".join(f"{name} {flops:,}" for name, flops in self.others.items())
        return f"{text}; the others: {rest}" if rest else text


def is_convolution(func: Any) -> bool:
    """Whether an operator convolves, forward: one of nkiconv's or another."""
    plain = func.name().rpartition("::")[2]
    convolves = "conv" in plain or plain == POINTWISE_MLP
    return convolves and not any(word in plain for word in ("convert", "backward", "_weight"))


def flops_of(func: Any, args: Sequence[Any], result: Any) -> int:
    """As torch counts the operator; of others two for each product of an input and a tap, 0 where filters are no
    tensor."""
    if func._overloadpacket in flop_registry:
        return int(flop_registry[func._overloadpacket](*args, out_val=result))
    first = result[0] if isinstance(result, (tuple, list)) else result
    tensors = [one for one in args[:2] if isinstance(one, torch.Tensor)]
    if len(tensors) < 2 or not isinstance(first, torch.Tensor):
        return 0
    x, w = tensors
    if func.name() == "aten::conv_tbc":  # whose filters are [S, C, K]
        return 2 * math.prod(first.shape) * math.prod(w.shape[:2])
    # of a transposed one each input meets all taps, of the others each output
    places = x if "transpose" in func.name() else first
    return 2 * math.prod(places.shape) * math.prod(w.shape[1:])


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the convolutions among the operators that run under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.share = Share()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count it."""
        result = func(*args, **(kwargs or {}))
        self.share.add(func, args, result)
        return result


def in_training(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules in training mode, with their names. Those that torch.jit.freeze made have no mode."""
    return ((name, one) for name, one in model.named_modules() if getattr(one, "training", False))


def share_of(model: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]) -> Share:
    """Of one run of a model in eval mode, in which no norm moves its statistics, and without gradients."""
    counter, training = Counter(), [module for _, module in in_training(model)]
    model.eval()
    try:
        with torch.no_grad(), counter:
            model(*inputs, **named)
    finally:
        for module in training:
            module.training = True
    return counter.share
