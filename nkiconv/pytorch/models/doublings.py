"""Fuse upsampling by 2 ("nearest", "nearest-exact") into the convolution after it, as x_upsample.

A module that calls `interpolate`, or torch's Upsample, returns an `Upsampled`, and the convolution reads its image; any
other reader makes torch compute it. So every order of calls gives the modules' results. torch.fx's graphs prove that
the convolution is the only reader and that no operator between them changes a tensor in place. The kernel's result is
unchanged, and so are statistics of it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from ..computers.modes import is_autocast
from ..fused_module import stored_filter
from .chains import agrees
from .classes import Changed, change_class
from .follows import Kinds, Region, module_of
from .fusing import doubled, ends_of, mark
from .pending import Upsampled, handed_on, tensor_of
from .producers import are_hooked, nothing_changes, only_user
from .report import Doubling
from .ways import Copy, UntraceableError, graphs_of

_MODES = ("nearest", "nearest-exact")
_GROWN = partial(F.interpolate, scale_factor=2, mode=_MODES[0])
_SIGNATURE = inspect.signature(F.interpolate)
#: Methods that return a tensor, or one of another dtype, of which the convolution reads the same pixels.
_CASTS = ("float", "type_as", "to")
#: Functions of Python that change nothing: a forward may look at its input's dtype.
_PURE = (getattr, operator.eq)


def find(
    model: torch.nn.Module,
    regions: Sequence[Region],
    unproved: Iterable[str],
    taken: Sequence[str],
    copied: Copy,
    polyphase: bool,
) -> tuple[Doubling, ...]:
    """A Doubling for each module that upsamples by 2, fused or with the reason against it.

    regions: those with convolutions; unproved: names of modules with convolutions but without graphs of all calls;
    taken: names of convolutions that may read an `Upsampled`; polyphase: whether those of stride 1 may sum taps.
    """
    found: dict[str, set[tuple[str | None, str]]] = {}
    for region in (*regions, *_by_default(model, unproved, copied)):
        for node in region.nodes:
            owner = _owner(node, region.kinds)
            if owner is not None:
                ways = found.setdefault(region.prefix + owner if owner else region.prefix[:-1], set())
                ways.add(_read_by(node, region))
    return tuple(_doubling(model, name, ways, taken, polyphase) for name, ways in found.items())


def _by_default(model: torch.nn.Module, names: Iterable[str], copied: Copy) -> Iterator[Region]:
    """Of these modules those that call `interpolate`, given one argument: diffusers' take the size that it has instead
    of a factor, from which no graph follows."""
    for name in names:
        module: Any = model.get_submodule(name)
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is None or F.interpolate.__name__ not in code.co_names:
            continue
        try:
            graphs, _ = graphs_of(module, copied, with_extras=False, by_default=True)
        except UntraceableError:
            continue
        yield Region(f"{name}." if name else "", graphs, dict(module.named_modules()))


def _owner(node: fx.Node, kinds: Kinds) -> str | None:
    """The name, in the region, of the module whose forward upsamples by 2 in a node; None for other nodes."""
    if (one := module_of(node, kinds)) is not None:
        is_one = type(one) in (torch.nn.Upsample, torch.nn.UpsamplingNearest2d)
        return str(node.target) if is_one and doubles_by(None, vars(one)) else None
    if node.op != "call_function" or node.target is not F.interpolate:
        return None
    given = _SIGNATURE.bind(*node.args, **node.kwargs)
    around = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
    return (around or [""])[-1] if doubles_by(None, given.arguments) else None


def doubles_by(rank: int | None, given: Mapping[str, Any]) -> bool:
    """Whether `interpolate` doubles rows and columns by copying pixels, with these arguments by name; rank: axes of
    its input, where they are known."""
    factor = given.get("scale_factor")
    factors = factor if isinstance(factor, (tuple, list)) else (factor, factor)
    plain = given.get("size") is None and given.get("align_corners") is None and not given.get("antialias", False)
    exact = len(factors) == 2 and all(isinstance(one, (int, float)) and one == 2 for one in factors)
    return plain and exact and given.get("mode", "nearest") in _MODES and rank in (None, 4)


def _read_by(node: fx.Node, region: Region) -> tuple[str | None, str]:
    """(the convolution that alone sees an upsampled image, why it cannot read the small one)."""
    kinds, last = region.kinds, node
    while (user := only_user(last)) is not None and user.op == "call_method" and user.target in _CASTS:
        if user.args[0] is not last:
            break
        last = user
    if user is None or not isinstance(module_of(user, kinds), _ConvNd):
        return None, "is not followed by one convolution that alone sees its result"
    name = f"{region.prefix}{user.target}"
    if len(user.args) > 1 or user.kwargs:
        return name, "its convolution is given more than an image"
    if not nothing_changes(node, user, kinds, lambda one: one.target in (*_CASTS, *_PURE)):
        return name, "what runs between it and its convolution may change the image in place"
    return name, "a module of it has hooks, which would see no tensor" if are_hooked(node, user, kinds) else ""


def _doubling(
    model: torch.nn.Module, name: str, ways: set[tuple[str | None, str]], taken: Sequence[str], polyphase: bool
) -> Doubling:
    """The Doubling of a module; ways: (convolution, reason against it) of each of its upsamplings."""
    reasons = sorted(reason for _, reason in ways if reason)
    convolutions = tuple(sorted({one for one, _ in ways if one is not None}))
    polyphase = polyphase and all(_has_phases(model.get_submodule(one)) for one in convolutions)
    if not reasons:
        reasons = [reason for one in convolutions for reason in _reasons(model, one, taken, polyphase)]
    return Doubling(name, convolutions, polyphase and not reasons, reasons[0] if reasons else "")


def _has_phases(convolution: Any) -> bool:
    """Whether several taps of a convolution meet one pixel of an image that is doubled, the same ones at every other
    output."""
    steps, padding = {*convolution.stride, *convolution.dilation}, convolution.padding
    if steps != {1} or len(convolution.kernel_size) != 2 or isinstance(padding, str):
        return False
    sides = zip(convolution.kernel_size, padding, strict=True)
    return max(convolution.kernel_size) > 1 and all(side < taps for taps, side in sides)


def _reasons(model: torch.nn.Module, name: str, taken: Sequence[str], polyphase: bool) -> Iterator[str]:
    """Why a convolution takes no x_upsample."""
    convolution: Any = model.get_submodule(name)
    if name not in taken:
        yield "its convolution is not swapped by this call, or is in another fusion, as its own row says"
    elif convolution.transposed or len(convolution.kernel_size) != 2:
        yield "its convolution is transposed, or is none of images"
    elif convolution.padding_mode != "zeros":
        yield f"its convolution pads by padding_mode={convolution.padding_mode!r}"
    elif not (stored_filter(convolution).is_meta or agrees(convolution, _GROWN, partial(doubled, polyphase=polyphase))):
        yield "fused, it differs by more than rounding explains"


def take(model: torch.nn.Module, fused: Sequence[Doubling]) -> None:
    """Make modules return an `Upsampled`."""
    for one in fused:
        change_class(model.get_submodule(one.name), Doubles)
        for name in one.convolutions if one.polyphase else ():
            convolution = model.get_submodule(name)
            mark(convolution, ends_of(convolution)._replace(polyphase=True))


class Doubles(Changed):
    """A module in whose forward images that are doubled are pending."""

    def forward(self, *args: Any, **named: Any) -> Any:
        with _Doubling():
            return super().forward(*args, **named)


class _Doubling(TorchFunctionMode):
    """Makes `interpolate` by 2 return an `Upsampled`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        named = kwargs or {}
        if func is F.interpolate and args:
            x, given = tensor_of(args[0]), _SIGNATURE.bind(*args, **named).arguments
            # a tracer's proxy is no tensor
            if isinstance(x, Tensor) and not is_autocast(x.device.type) and doubles_by(x.dim(), given):
                return handed_on(Upsampled, x)
        return func(*args, **named)
