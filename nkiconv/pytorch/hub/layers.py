"""Layers whose forward `kernels.kernelize` puts in place of a module's: modules without state, with only a forward.

`Conv1d` and `Conv2d` replace torch's modules, `causal_conv1d_fn` and `causal_conv1d_update` the functions of
transformers that have these names. A forward runs with the attributes of the module that it was put into.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import causal_conv1d_fn as _causal_conv1d_fn
from nkiconv.pytorch import causal_conv1d_update as _causal_conv1d_update
from nkiconv.pytorch import functional
from nkiconv.pytorch.fused_module import padded

#: Arguments of causal_conv1d_fn that transformers' models pass on, among ones for other layers, from their callers.
_PASSED_ON = ("seq_idx", "cu_seqlens", "initial_states", "return_final_states", "final_states_out")


class Conv1d(nn.Module):
    """For `torch.nn.Conv1d`; one filter a channel goes to the depthwise kernel.

    Padding with anything but zeros is torch's, in front of the kernel.
    """

    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        """y [N, K, Q] of input [N, C, W], or both without N.

        Raises: UnsupportedError where the module is a subclass with a forward of its own, whose place this would take;
        otherwise as `nkiconv.pytorch.conv1d`.
        """
        y: Tensor = functional.conv1d(*_call(self, nn.Conv1d, input))
        return y


class Conv2d(nn.Module):
    """For `torch.nn.Conv2d`, otherwise as `Conv1d`."""

    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        """y [N, K, P, Q] of input [N, C, H, W], or both without N. Errors as in `Conv1d`."""
        y: Tensor = functional.conv2d(*_call(self, nn.Conv2d, input))
        return y


class causal_conv1d_fn(nn.Module):
    """For transformers' function of this name; arguments, results and errors as in `nkiconv.pytorch`.

    Arguments with other names are for other layers, and ignored.
    """

    can_torch_compile = True

    def forward(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """y [N, C, L] of hidden_states [N, C, L], weight [C, width], bias [C]."""
        ours = {name: kwargs[name] for name in _PASSED_ON if name in kwargs}
        return _causal_conv1d_fn(hidden_states, weight, bias, activation=activation, **ours)


class causal_conv1d_update(nn.Module):
    """For transformers' function of this name; arguments, results and errors as in `nkiconv.pytorch`."""

    can_torch_compile = True

    def forward(
        self,
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        """y [N, C, L] of hidden_states [N, C, L], which also move conv_state on in place."""
        return _causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


def _call(module: Any, kind: Any, input: Tensor) -> tuple[Any, ...]:
    """(input, weight, bias, stride, padding, dilation, groups) of a module of torch's kind."""
    own = [name for name in ("forward", "_conv_forward") if getattr(type(module), name) is not getattr(kind, name)]
    if own:
        raise UnsupportedError(
            f"{type(module).__name__}: has its own {' and '.join(own)}, whose place the kernel would take; keep it out "
            f"with the condition= of kernels.replace_kernel_forward_from_hub"
        )
    padding = module.padding
    if module.padding_mode != "zeros":
        input, padding = padded(input, module._reversed_padding_repeated_twice, module.padding_mode), 0
    return input, module.weight, module.bias, module.stride, padding, module.dilation, module.groups
