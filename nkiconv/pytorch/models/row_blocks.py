"""Modules with a depthwise convolution of rows whose forward can run with the fused calls of `rows`.

Each runs on a small input in float64 on the host, by its own forward and fused; if the results differ, it stays. Names
of classes prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from ..causal import model_files
from ..causal.installation import Installation
from ..computers import modes
from ..norm_act_modules import is_hooked
from .classes import change_class, ours
from .norms import CLOSE, alone_of
from .report import RowBlock
from .rows import CALLS, FusesRows, Fusing, TakesGlu
from .ways import Copy

#: Rows of a probe, and its tokens beyond those that the filter spans.
_N, _MORE = 2, 5


def find(
    model: torch.nn.Module, swapped: Sequence[str], causal_conv1d: bool, strict_nonfinite: bool | None, copied: Copy
) -> tuple[RowBlock, ...]:
    """A RowBlock for each module that holds a depthwise convolution of rows, fused or with the reason against it.

    swapped: names of the convolutions that may be in a fused call; the others as in `convert`.
    """
    found = []
    for name, module in model.named_modules():
        own = {".".join(filter(None, [name, child])): one for child, one in module.named_children()}
        rows = {child: one for child, one in own.items() if _is_depthwise(one)}
        if not rows:
            continue
        if reason := next(filter(None, _reasons(module, not rows.keys() <= set(swapped), strict_nonfinite)), ""):
            found.append(RowBlock(name, reason=reason))
        else:
            found.append(_proved(name, module, causal_conv1d, copied))
    return tuple(found)


def _reasons(module: torch.nn.Module, is_left: bool, strict_nonfinite: bool | None) -> Iterator[str]:
    """Reasons against fusing a module that do not depend on its forward."""
    parts = [one for one in module.modules() if one is not module]
    yield "is fused already" * isinstance(module, FusesRows)
    yield "its convolution is not swapped by this call, as its own row says" * is_left
    yield "fused calls have no strict_nonfinite" * modes.wants_strict_nonfinite(strict_nonfinite)
    hooks = is_hooked(*parts)
    yield "a module of it has hooks, which would see no tensor" * hooks
    yield "a module of it has a forward of its own" * any("forward" in vars(one) for one in module.modules())


def _is_depthwise(module: torch.nn.Module) -> bool:
    """Whether a module is a depthwise convolution of rows that a fused call can replace."""
    if not isinstance(module, torch.nn.Conv1d) or module.padding_mode != "zeros":
        return False
    return module.groups == module.in_channels == module.out_channels > 1 == module.stride[0] == module.dilation[0]


def _proved(name: str, module: torch.nn.Module, causal_conv1d: bool, copied: Copy) -> RowBlock:
    """The RowBlock of a module: its fused calls if they equal its modules, or the reason against them."""
    is_meta = any(one.is_meta for one in module.parameters())
    try:
        alone = copied(module) if is_meta else alone_of(module)
    except Exception as error:  # of what a module holds
        return RowBlock(name, reason=f"cannot be copied ({type(error).__name__}: {error})")
    for part in alone.modules():
        part.training &= not isinstance(part, _DropoutNd)  # dropout is not compared
    with Installation() as undo:
        for file in {id(one): one for part in alone.modules() for one in model_files.files_of(part)}.values():
            if causal_conv1d:
                model_files.set_in(file, undo, strict_nonfinite=False)
        x, expected = _first_run(alone, is_meta)
        if isinstance(expected, str):
            return RowBlock(name, reason=expected)
        _take_one(alone, [inner for inner, part in alone.named_modules() if isinstance(part, torch.nn.Conv1d)])
        noted: list[Fusing] = []
        vars(alone)[CALLS] = noted
        try:
            found = _run(alone, x)
        except Exception as error:  # the module's own code may raise any exception
            return RowBlock(name, reason=f"fused, it raises {type(error).__name__}: {error}")
    calls = tuple(call for mode in noted for call in mode.calls)
    if not calls:
        return RowBlock(name, reason="what its forward does around the convolution is in no fused call")
    limit = CLOSE * expected.abs().max()
    if not is_meta and not (found.shape == expected.shape and bool(((found - expected).abs() <= limit).all())):
        return RowBlock(name, reason="fused, it differs by more than rounding explains")
    means = {id(mean) for mode in noted for mean in mode.norms}
    norms = [inner for inner, part in alone.named_modules() if id(getattr(part, "running_mean", None)) in means]
    return RowBlock(name, calls, tuple(".".join(filter(None, [name, inner])) for inner in norms))


def _first_run(module: torch.nn.Module, is_meta: bool) -> tuple[Tensor, Any]:
    """(the first probe that a forward takes, its result, or why it takes none)."""
    told, x = "nothing shows how many channels it takes", torch.empty(0)
    for x in _probes(module, is_meta):
        try:
            return x, _run(module, x)
        except Exception as error:  # the module's own code may raise any exception
            told = f"its forward raises {type(error).__name__} on a probe of shape {tuple(x.shape)}: {error}"
    return x, told


def _probes(module: torch.nn.Module, is_meta: bool) -> Iterator[Tensor]:
    """Inputs that a forward may take, of its first layer's channels: tokens first, then channels first."""
    channels = next(filter(None, map(_channels, module.children())), None)
    if channels is None:
        return
    dtype = next(one.dtype for one in module.parameters() if one.is_floating_point())
    taps = max(one.kernel_size[0] for one in module.children() if isinstance(one, torch.nn.Conv1d))
    generator = torch.Generator().manual_seed(0)
    for shape in ((_N, taps + _MORE, channels), (_N, channels, taps + _MORE)):
        x = torch.randn(shape, dtype=torch.float64, generator=generator)
        yield x.to("meta", dtype) if is_meta else x


def _channels(layer: Any) -> int | None:
    """Channels that a layer takes."""
    if isinstance(layer, torch.nn.LayerNorm):
        return int(layer.normalized_shape[-1])
    if isinstance(layer, torch.nn.Linear):
        return int(layer.in_features)
    return int(layer.in_channels) if isinstance(layer, torch.nn.Conv1d) and layer.groups == 1 else None


@torch.no_grad()
def _run(module: torch.nn.Module, x: Tensor) -> Tensor:
    with modes.by_torch():
        y = module(x)
    first = y[0] if isinstance(y, (tuple, list)) else y
    if not isinstance(first, Tensor):
        raise TypeError(f"it returns {type(first).__name__}")
    return first


def _take_one(module: torch.nn.Module, convolutions: Sequence[str]) -> None:
    """Let a module's forward make fused calls; convolutions: names of those in it that are, or are to be, nkiconv's."""
    for name in convolutions:
        part: Any = module.get_submodule(name)
        if not hasattr(part, "_convolved"):
            change_class(part, ours)
            part.layer, part.strict_nonfinite = None, None
        change_class(part, TakesGlu)
    change_class(module, FusesRows)


def take(target: torch.nn.Module, blocks: Sequence[RowBlock], swapped: Sequence[str]) -> None:
    """The same of each block of a model, after all else; swapped: the convolutions that are nkiconv's."""
    for block in blocks:
        prefix = f"{block.name}." if block.name else ""
        _take_one(target.get_submodule(block.name), [one[len(prefix) :] for one in swapped if one.startswith(prefix)])
