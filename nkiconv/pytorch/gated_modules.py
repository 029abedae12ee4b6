"""Modules of gated convolutions of rows; parameters have the names and shapes of a depthwise torch.nn.Conv1d's."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..errors import shown
from .errors import UnsupportedError
from .function_modes import refuse_script
from .gated import gated_short_conv, glu_conv1d

if TYPE_CHECKING:
    from typing import Self  # which came with Python 3.11

# torch.fx traces a model with these modules into calls of these functions, which it does not look into.
torch.fx.wrap("gated_short_conv")
torch.fx.wrap("glu_conv1d")


class _Gated(torch.nn.Conv1d):
    """A depthwise convolution of rows with products around it."""

    __prepare_scriptable__ = refuse_script

    @classmethod
    def _of(cls, conv: torch.nn.Conv1d, **more: Any) -> Self:
        """One with the parameters of a depthwise convolution, the same tensors."""
        made = cls(conv.out_channels, conv.kernel_size[0], bias=conv.bias is not None, device="meta", **more)
        made.weight, made.bias = conv.weight, conv.bias
        return made.train(conv.training)


class GatedShortConv(_Gated):
    """The part of transformers' Lfm2ShortConv between its two projections: y = C * (causal convolution of B * x).

    A state_dict of its `conv` loads. forward takes the first projection's result, with channels before tokens or, with
    layout="NWC", as it is:

        conv = nkiconv.pytorch.nn.GatedShortConv.from_module(lfm2.conv, layout="NWC")
        hidden = lfm2.out_proj(conv(lfm2.in_proj(hidden)))                                 # [N, W, D]
        y, states = conv(bcx, states, return_final_states=True)                            # pieces, or steps
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        order: str = "BCx",
        layout: str = "NCW",
        layer: str | None = None,
    ) -> None:
        more: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__(channels, channels, kernel_size, padding=kernel_size - 1, groups=channels, **more)
        self.order, self.layout, self.layer = order, layout, layer

    @staticmethod
    def from_module(
        conv: torch.nn.Conv1d, order: str = "BCx", layer: str | None = None, *, layout: str = "NCW"
    ) -> GatedShortConv:
        """One with the parameters of a depthwise torch.nn.Conv1d, the same tensors.

        Raises UnsupportedError: it is not depthwise, or has a stride, dilation or padding by other than zeros.
        """
        _check_depthwise(conv)
        return GatedShortConv._of(conv, order=order, layout=layout, layer=layer)

    def forward(self, input: Tensor, initial_states: Tensor | None = None, *, return_final_states: bool = False) -> Any:
        """As `nkiconv.pytorch.gated_short_conv`."""
        more: dict[str, Any] = {"return_final_states": return_final_states, "layer": self.layer}
        more |= {"order": self.order, "layout": self.layout}
        return gated_short_conv(input, self.weight, self.bias, initial_states, **more)


class ConformerConv(_Gated):
    """GLU, depthwise convolution, BatchNorm of eval mode in filters and bias, activation: the middle of a Conformer's
    convolution module, from [N, 2 * D, W] to [N, D, W].

        conv = nkiconv.pytorch.nn.ConformerConv.from_modules(module.depthwise_conv, module.batch_norm)
        y = conv(module.pointwise_conv1(x))
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        padding: str | int | tuple[int, int] = "same",
        activation: str | None = "silu",
        layer: str | None = None,
    ) -> None:
        more: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__(channels, channels, kernel_size, groups=channels, **more)
        self.sides, self.activation, self.layer = padding, activation, layer

    @staticmethod
    def from_modules(
        conv: torch.nn.Conv1d,
        norm: torch.nn.BatchNorm1d | None = None,
        *,
        padding: str | int | tuple[int, int] | None = None,
        activation: str | None = "silu",
        layer: str | None = None,
    ) -> ConformerConv:
        """One of a depthwise torch.nn.Conv1d and the BatchNorm1d that follows it, both in eval mode: torch's
        fuse_conv_bn_eval, rounded to the filter's dtype. Without a norm the parameters are the same tensors.

        padding: None: the convolution's own.

        Raises UnsupportedError: the convolution is not depthwise, or has a stride, dilation or padding by other than
        zeros; the norm is in training, or keeps no statistics.
        """
        _check_depthwise(conv)
        if norm is not None and (norm.training or norm.running_mean is None):
            raise UnsupportedError(f"norm={shown(norm)}: must be in eval mode and keep statistics; call eval()")
        with torch.no_grad():
            folded: torch.nn.Conv1d = conv if norm is None else fuse_conv_bn_eval(copy.copy(conv).eval(), norm)
        given: Any = conv.padding if isinstance(conv.padding, str) else conv.padding[0]
        sides = given if padding is None else padding
        return ConformerConv._of(folded, padding=sides, activation=activation, layer=layer)

    def forward(self, input: Tensor, initial_states: Tensor | None = None, *, return_final_states: bool = False) -> Any:
        """As `nkiconv.pytorch.glu_conv1d`."""
        more: dict[str, Any] = {"return_final_states": return_final_states, "layer": self.layer}
        more |= {"padding": self.sides, "activation": self.activation}
        return glu_conv1d(input, self.weight, self.bias, initial_states, **more)


def _check_depthwise(conv: torch.nn.Conv1d) -> None:
    """Refuse convolutions other than depthwise ones of rows."""
    plain = (conv.stride, conv.dilation, conv.padding_mode) == ((1,), (1,), "zeros")
    if not (conv.groups == conv.in_channels == conv.out_channels and plain):
        raise UnsupportedError(
            f"conv={shown(conv)}: must have a filter a channel (groups = channels), stride and dilation 1 and zeros "
            f"for padding; leave it in torch"
        )
