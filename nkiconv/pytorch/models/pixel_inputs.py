"""Fuse a norm over channels into the two 1x1 layers after it, as in ConvNeXt.

The norm returns `NormedPixels`, which the first layer takes; any other use computes the norm by its own forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from ..computers.modes import is_autocast
from ..fused_module import stored_filter
from ..norm_act_modules import is_hooked
from .classes import Changed, change_class
from .follows import Kinds, module_of
from .norms import affine_of_pixels, kind_of, norm_of_kind
from .pending import Pending, tensor_of
from .producers import modules_around

#: Name of the attribute with a norm's (kind, whether channels are the last axis).
_KIND = "nkiconv_x_norm"
_NORMS = (torch.nn.LayerNorm, torch.nn.RMSNorm)
#: Order of axes with channels in front of rows and columns.
FRONT = (0, 3, 1, 2)


class NormedPixels(Pending):
    """A norm of x [N, H, W, C], or [N, C, H, W] in `front`, by its module; forward: of the module's class."""

    def __init__(self, module: Any, x: Tensor, forward: Any) -> None:
        self.module, self.x, self.forward = module, x, forward
        self.kind, last = vars(module)[_KIND]
        self.front = not last
        self.keep(x)

    def compute(self) -> Tensor:
        """By the norm."""
        y: Tensor = self.forward(self.input())
        return y

    def images(self) -> Tensor:
        """The norm's result, [N, C, H, W]."""
        return self.value() if self.front else self.value().permute(FRONT)

    def arguments(self) -> dict[str, Any]:
        """Of `pointwise_mlp`, with the norm's parameters as they are now."""
        kind, weight, bias, eps, _ = norm_of_kind(self.module, self.kind, self.x.shape[1 if self.front else -1])
        return {"x_norm": kind, "x_norm_weight": weight, "x_norm_bias": bias, "x_norm_eps": eps}


class HandsOnPixels(Changed):
    """A norm whose result of an image is NormedPixels."""

    def forward(self, input: Any) -> Any:
        x = tensor_of(input)
        pends = isinstance(x, Tensor) and x.dim() == 4 and not is_autocast(x.device.type)
        pends = pends and affine_of_pixels(self, x.shape[-1 if vars(self)[_KIND][1] else 1]) is not None
        if not pends or is_hooked(self):
            return super().forward(x)
        return NormedPixels(self, x, super().forward)


def channels_of(layer: Any) -> tuple[int, int]:
    """(inputs, outputs) of a linear layer or a 1x1 convolution."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def is_norm(node: fx.Node, kinds: Kinds) -> bool:
    """Whether a node may be a norm over channels."""
    return isinstance(module_of(node, kinds), _NORMS) or node.target in (F.layer_norm, F.rms_norm)


def norm_before(layer: fx.Node, kinds: Kinds, last: bool) -> str | None:
    """The module whose result a layer alone reads, if it is one of `pixel_norms`."""
    node = layer.all_input_nodes[0]
    # of a module that torch.fx looks into, the innermost that the layer is not in
    around = modules_around(node) - modules_around(layer)
    name = str(node.target) if node.op == "call_module" else max(around, key=len, default="")
    norm, linear = kinds.get(name) if name else None, kinds[str(layer.target)]
    if norm is None or isinstance(norm, HandsOnPixels) or not isinstance(getattr(norm, "eps", None), float):
        return None
    inputs, is_meta = channels_of(linear)[0], stored_filter(linear).is_meta
    hooked = is_hooked(norm) or "forward" in vars(norm)
    if hooked or affine_of_pixels(norm, inputs) is None:
        return None
    return None if kind_of(norm, inputs, 2, is_meta, last) is None else name


def take(norm: Any, channels: int, is_meta: bool, last: bool) -> None:
    """Make a norm return `NormedPixels`."""
    vars(norm)[_KIND] = (kind_of(norm, channels, 2, is_meta, last), last)
    change_class(norm, HandsOnPixels)
