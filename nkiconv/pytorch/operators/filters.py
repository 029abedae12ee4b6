"""Filters in the kernel's own order, [K / kn, C, R, S, kn]: packed by callers, or owned by a module that is frozen.

A plain filter passes the Tensor Engine before its first matmul, in every call; a packed one is loaded to where it
belongs. Nothing is packed unless asked for: which one is faster depends on the shape of the images too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from ..errors import DtypeError, FrozenFilterError, GeometryError, LayoutError, UnsupportedError, raise_all
from . import sharding
from .tensor_kinds import DTYPES, are_positive, tensor_violations


def packed_shape(shape: torch.Size, itemsize: int) -> tuple[int, ...]:
    """Of the packed form of a filter [K, C, S], [K, C, R, S] or [K, C, T, R, S]."""
    from ...schedules.implicit_gemm import packed_channels

    K, C, *taps = shape
    if len(taps) == 1:
        taps = [1, *taps]
    kn = packed_channels(K, C, math.prod(taps), itemsize)
    return (K // kn, C, *taps, kn)


def pack_filter(weight: Tensor) -> Tensor:
    """The filter of one group in the kernel's own order, for `packed=` of `conv1d`, `conv2d` and `conv3d`: as
    `nkiconv.pack_filter` of arrays.

    The result is a copy: it does not follow `weight`, and no call checks that both are the same filter. Who passes it
    packs again after each change of the weight; `nn.Conv2d.pack_filter` leaves no second filter that could differ.

    Args:
        weight: [K, C, S], [K, C, R, S] or [K, C, T, R, S]; bf16, fp16 or fp32.

    Returns: [K / kn, C, R, S, kn], R = 1 of [K, C, S], or [K / kn, C, T, R, S, kn]: a contiguous copy without a
        gradient; kn is at most 128.

    Raises: DtypeError, GeometryError, LayoutError; UnsupportedError where K has no divisor that is worth a block.
    """
    errors = list(tensor_violations("weight", weight, kernels_only=True))
    if not errors and weight.dim() not in (3, 4, 5):
        errors.append(LayoutError(f"weight.shape={tuple(weight.shape)}: must have 3 to 5 axes, [K, C, taps]"))
    if not errors and not are_positive(weight.shape):
        errors.append(GeometryError(f"weight.shape={tuple(weight.shape)}: every extent must be at least 1; pass data"))
    if not errors and not worth_a_block(weight.shape, weight.element_size()):
        errors.append(UnsupportedError(f"weight.shape={tuple(weight.shape)}: K has no divisor that is worth a block"))
    raise_all("pack_filter cannot pack this", errors)
    blocks, *inner, kn = packed_shape(weight.shape, weight.element_size())
    return weight.detach().reshape(blocks, kn, *inner).movedim(1, -1).contiguous()


def worth_a_block(shape: torch.Size, itemsize: int) -> bool:
    """Whether K has a divisor that makes runs of some length."""
    from ...planner.conv import LEAST_BLOCK

    return packed_shape(shape, itemsize)[-1] >= min(shape[0], LEAST_BLOCK)


def refusal(module: Any) -> str:
    """Why a module's filter cannot be frozen, or ""."""
    weight = module._parameters.get("weight")
    if module.transposed:
        return "filters of transposed convolutions are loaded as they are"
    if module.training:
        return "the module is in training mode; call eval()"
    if parametrize.is_parametrized(module) or type(weight) is not torch.nn.Parameter:
        return "its weight is no plain Parameter"
    if weight.dtype not in DTYPES:
        return f"its weight is {weight.dtype}, accepted are {', '.join(map(str, DTYPES))}"
    if module.groups > 1:
        return f"groups={module.groups}; filters of groups are not packed"
    if not worth_a_block(weight.shape, weight.element_size()):
        return f"out_channels={module.out_channels} has no divisor that is worth a block"
    return ""


class FrozenFilter:
    """The `weight` of a frozen module: its only filter, which no other code can change or share.

    It is no tensor. Its shape, dtype and device can be read, and `plain()` copies it; all other access, also writing in
    place and .data, is refused by name.
    """

    made: str  #: when, and from what
    _plain: Tensor
    _packed: Tensor
    _learns: bool  # whether its Parameter wanted a gradient

    def __init__(self, weight: torch.nn.Parameter, source: str) -> None:
        """Copy a weight; source: its name for messages."""
        with torch.inference_mode(False):  # autograd must be able to save these tensors
            plain = weight.detach().clone()
            kept = {"_plain": plain, "_packed": pack_filter(plain), "_learns": weight.requires_grad}
        vars(self).update(kept, made=f"{datetime.now().isoformat(' ', 'seconds')} from {source}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy or a pickle, as `__init__`: under torch.inference_mode its tensors come as inference tensors."""
        with torch.inference_mode(False):
            plain, packed = (one.clone() if one.is_inference() else one for one in (state["_plain"], state["_packed"]))
        vars(self).update({**state, "_plain": plain, "_packed": packed})

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """(plain, packed) of calls. They are the filter itself: for modules only, never to be handed out."""
        return self._plain, self._packed

    def plain(self) -> Tensor:
        """A copy in torch's order, [K, C, taps]."""
        return self._plain.clone()

    def parameter(self) -> torch.nn.Parameter:
        """The plain filter as a Parameter, for a module that is frozen no longer."""
        with torch.inference_mode(False):
            return torch.nn.Parameter(self._plain, self._learns)

    def __repr__(self) -> str:
        """Shape, dtype, time and source."""
        return f"FrozenFilter({tuple(self.shape)}, {self.dtype}, made {self.made})"

    def __str__(self) -> str:
        """repr and a remedy, for messages of torch's functions that require a tensor."""
        return (
            f"{repr(self)[:-1]}; a frozen module has no parameter weight: call its unpack_filter(), or convert without "
            f"pack_filters)"
        )

    def __getattr__(self, name: str) -> Any:
        """Shape, dtype and device of the plain filter. Raises FrozenFilterError for what else a tensor has."""
        if name in ("shape", "dtype", "device") and "_plain" in vars(self):
            return getattr(self._plain, name)
        if name.startswith("__") or "made" not in vars(self):
            raise AttributeError(name)  # Python looks these up on any object
        return self._refuse(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises FrozenFilterError."""
        self._refuse(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Called for functions of torch that are given a frozen filter. Raises FrozenFilterError."""
        given = tree_leaves((args, kwargs))
        next(one for one in given if isinstance(one, cls))._refuse(getattr(func, "__name__", str(func)))

    def _refuse(self, name: str) -> NoReturn:
        raise FrozenFilterError(
            f"weight.{name}: the filter is frozen (made {self.made}): it is no tensor, and nothing changes it; "
            f"weight.plain() is a copy, and the module's unpack_filter() makes it a Parameter again"
        )


class Freezes(torch.nn.Module):
    """Packed filters of nkiconv's modules: `weight` is a Parameter, or, in a frozen module, a `FrozenFilter`.

    A frozen module holds one filter and no Parameter of it. A packed copy next to a Parameter could become stale: fused
    optimizers, .data, NumPy's aliases and storages change a Parameter without a trace. So no call can use a filter
    other than the one that `weight`, `state_dict` and repr show.

    While a module is frozen
        `state_dict` has "weight", a copy in torch's order, and no packed filter;
        `load_state_dict` and `to(...)` (dtype, device, memory_format) pack the loaded or moved filter again;
        `weight = Parameter(...)` and `unpack_filter()` unfreeze it;
        `train()` is refused: an optimizer built before holds a Parameter that the module no longer has, and would
        train it without effect;
        `parameters()` has no weight; derivatives by inputs and bias do not change.
    A deep copy, a pickle, torch.inference_mode and torch.compile change nothing of this.
    """

    @property
    def is_frozen(self) -> bool:
        """Whether `weight` is a `FrozenFilter`."""
        return type(vars(self).get("weight")) is FrozenFilter

    def pack_filter(self) -> None:
        """Freeze the filter: own a copy of the weight as it is now, packed for the kernel, in its place.

        For inference. Which of packed and plain is faster depends on the images: `convert(..., pack_filters="frozen")`
        compares plans. On a frozen module it does nothing.

        Raises: UnsupportedError: in training mode, of groups, of transposed convolutions, of a computed weight, of a
            dtype that kernels do not take, or where out_channels has no divisor that is worth a block.
        """
        if not self.is_frozen:
            self._freeze("its weight")

    def unpack_filter(self) -> None:
        """Unfreeze the module: `weight` becomes a new Parameter with the same values, tied to no other.

        Build optimizers after that.
        """
        if self.is_frozen:
            parameter = vars(self).pop("weight").parameter()
            others = dict(self._parameters)
            self._parameters.clear()
            self._parameters.update({"weight": parameter, **others})  # the order of optimizers' states

    def train(self, mode: bool = True) -> Any:
        """As torch's. Raises FrozenFilterError where a frozen module is to train."""
        if mode and self.is_frozen:
            made = vars(self)["weight"].made
            raise FrozenFilterError(
                f"{self._where()}train(): the filter is frozen (made {made}), and optimizers that were made before do "
                f"not know it; call unpack_filter() of each frozen module first, and make the optimizer after that"
            )
        return super().train(mode)

    def _filters(self, input: Any) -> tuple[Tensor, Tensor | None]:
        """(weight, packed filter or None) of a call with such an input."""
        weight: Any = self.weight
        if type(weight) is not FrozenFilter:
            return weight, None
        plain, packed = sharding.replicated(weight, weight.tensors, input)
        return plain, packed

    def _freeze(self, source: str) -> None:
        reason = refusal(self)
        if reason:
            raise UnsupportedError(
                f"{self._where()}its filter cannot be frozen: {reason}; leave it plain (unpack_filter())"
            )
        frozen = FrozenFilter(self._parameters["weight"], source)  # type: ignore[arg-type]  # `refusal` has seen it
        del self._parameters["weight"]
        vars(self)["weight"] = frozen

    def _where(self) -> str:
        name = getattr(self, "layer", None)
        return f"{name}: " if name else ""

    @contextmanager
    def _as_parameter(self, source: str) -> Iterator[None]:
        """Turn a frozen filter into a Parameter within a block, and freeze it again after the block."""
        was_frozen = self.is_frozen
        self.unpack_filter()
        yield
        if was_frozen:
            self._freeze(source)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move or cast the module. Raises DtypeError before that where kernels do not take a frozen filter's dtype."""
        if self.is_frozen:
            dtype = fn(vars(self)["weight"].plain()[:0]).dtype
            if dtype not in DTYPES:
                accepted = ", ".join(map(str, DTYPES))
                raise DtypeError(
                    f"{self._where()}dtype={dtype}: the filter is frozen, for kernels that take {accepted}; call "
                    f"unpack_filter() first"
                )
        with self._as_parameter("a frozen filter, moved or cast"):
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        with self._as_parameter("load_state_dict" if f"{prefix}weight" in state_dict else "its weight"):
            super()._load_from_state_dict(state_dict, prefix, *rest)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.is_frozen:
            destination[f"{prefix}weight"] = vars(self)["weight"].plain()
        super()._save_to_state_dict(destination, prefix, keep_vars)
