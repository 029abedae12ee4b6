"""Filters in the kernel's own order, [K / kn, C, R, S, kn], packed once for inference, where that pays.

A plain filter passes the Tensor Engine before its first matmul, in every call; a packed one is loaded to where it
belongs. A module keeps it beside its weight, as a buffer that is not part of its state_dict.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from ...planner.conv import LEAST_BLOCK, block_of
from ..computers import modes
from ..errors import LayoutError, UnsupportedError, raise_all
from .tensor_kinds import DTYPES, tensor_violations

#: Input and output channels from which a packed filter pays: fewer inputs are stacked on the array where the filter is
#: plain, and fewer outputs leave half of a block empty (packed, of 8 x 56 x 56 pixels: 64 -> 64 channels 31.9 us for
#: 20.8, 96 -> 64 37.6 for 37.0, 128 -> 128 of 28 x 28 15.7 for 16.4, modelled).
INPUTS, OUTPUTS = 65, 128


def packed_shape(shape: torch.Size, itemsize: int) -> tuple[int, ...]:
    """Of the packed form of a filter [K, C, S], [K, C, R, S] or [K, C, T, R, S]."""
    K, C, *taps = shape
    if len(taps) == 1:
        taps = [1, *taps]
    kn = block_of(K, C, math.prod(taps), itemsize)
    return (K // kn, C, *taps, kn)


def pack_filter(weight: Tensor) -> Tensor:
    """The filter of one group in the kernel's own order, for `packed=` of `conv1d`, `conv2d` and `conv3d`: as
    `nkiconv.pack_filter` of arrays.

    Args:
        weight: [K, C, S], [K, C, R, S] or [K, C, T, R, S]; bf16, fp16 or fp32.

    Returns: [K / kn, C, R, S, kn], R = 1 of [K, C, S], or [K / kn, C, T, R, S, kn]: a contiguous copy without a
        gradient; kn is at most 128.

    Raises: DtypeError, LayoutError; UnsupportedError where K has no divisor that is worth a block.
    """
    errors = list(tensor_violations("weight", weight, kernels_only=True))
    if not errors and weight.dim() not in (3, 4, 5):
        errors.append(LayoutError(f"weight.shape={tuple(weight.shape)}: must have 3 to 5 axes, [K, C, taps]"))
    if not errors and not worth_a_block(weight.shape, weight.element_size()):
        errors.append(UnsupportedError(f"weight.shape={tuple(weight.shape)}: K has no divisor that is worth a block"))
    raise_all("pack_filter cannot pack this", errors)
    blocks, *inner, kn = packed_shape(weight.shape, weight.element_size())
    return weight.detach().reshape(blocks, kn, *inner).movedim(1, -1).contiguous()


def worth_a_block(shape: torch.Size, itemsize: int) -> bool:
    """Whether K has a divisor that makes runs of some length."""
    return packed_shape(shape, itemsize)[-1] >= min(shape[0], LEAST_BLOCK)


def refusal(module: Any) -> str:
    """Why a module's filter is not packed, or ""."""
    if module.transposed:
        return "filters of transposed convolutions are loaded as they are"
    if module.training:
        return "in training mode"
    if parametrize.is_parametrized(module) or not isinstance(module._parameters.get("weight"), torch.nn.Parameter):
        return "its weight is computed"
    if module.weight.dtype not in DTYPES:
        return f"its weight is {module.weight.dtype}"
    if module.groups > 1:
        return f"groups={module.groups}"
    if module.in_channels < INPUTS or module.out_channels < OUTPUTS:
        return f"{module.in_channels} -> {module.out_channels} channels: from {INPUTS} -> {OUTPUTS} on it pays"
    if not worth_a_block(module.weight.shape, module.weight.element_size()):
        return f"out_channels={module.out_channels} has no divisor that is worth a block"
    return ""


class Packs(torch.nn.Module):
    """What our modules have for it: a buffer `packed_weight` that follows `weight`, once there is one.

    There is none where torch computes: the first call of a kernel makes it, and so does moving the module to a device.
    """

    #: whether kernels are to have a packed filter
    _packs: bool = False
    #: what the weight was when it was packed: its place in memory and its version
    _packed_from: tuple[int, int] | None = None

    def pack_filter(self) -> str:
        """Pack the filter for inference, again where it was; returns why not, or "".

        Calls in eval mode then use it, until the weight changes, after which the next one packs again. Of what
        torch.compile has compiled, `load_state_dict` packs again; after any other change call this.
        """
        reason = refusal(self)
        if reason:
            self.drop_packed()
        else:
            self._packs = True
            if not modes.is_torchs(self.weight):
                self._pack()
        return reason

    def drop_packed(self) -> None:
        """Use the plain filter only."""
        if "packed_weight" in self._buffers:
            self._buffers["packed_weight"] = None
        self._packs, self._packed_from = False, None

    def packed_filter(self) -> Tensor | None:
        """The packed filter of the weight as it is now; None in training mode, where nothing is to be packed, and where
        torch computes.
        """
        if not self._packs or self.training:
            return None
        packed = self._buffers.get("packed_weight")
        if torch.compiler.is_compiling():
            return packed
        now = _state(self.weight)
        if now is None or modes.is_torchs(self.weight):
            return None  # a weight of a transform, which is none of ours; or nobody to take it
        if packed is None or now != self._packed_from:
            return None if refusal(self) else self._pack()
        return packed

    def _pack(self) -> Tensor:
        """The filter packed, and kept unless it is a tensor of a tracer's."""
        packed = pack_filter(self.weight)  # type: ignore[arg-type]  # a Parameter: `refusal` has seen it
        if type(packed) is not Tensor:
            return packed
        before = self._buffers.get("packed_weight")
        if before is not None and _alike(before, packed):
            packed = before.copy_(packed)  # compiled code holds on to it
        elif "packed_weight" in self._buffers:
            self.packed_weight = packed
        else:
            self.register_buffer("packed_weight", packed, persistent=False)
            self.register_load_state_dict_post_hook(_pack_again)  # type: ignore[no-untyped-call]
        self._packed_from = _state(self.weight)
        return packed

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move or cast the module; where that takes it from torch to kernels, its filter is packed."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._packs and self._buffers.get("packed_weight") is None:
            self.pack_filter()
        return self


def _state(weight: Any) -> tuple[int, int] | None:
    """Where a weight lies and how often it was changed; None where it has no memory of its own."""
    if type(weight) is not torch.nn.Parameter:
        return None
    return weight.data_ptr() if weight.device.type != "meta" else 0, weight._version


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _pack_again(module: Any, _incompatible: Any) -> None:
    """After load_state_dict: what was packed is packed again."""
    if getattr(module, "packed_weight", None) is not None:
        module.pack_filter()
