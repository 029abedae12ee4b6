"""Fuse a norm over channels into the convolution before it, as in video VAEs.

The convolution returns a `Summed`, on which the norm and an activation are noted. Its first use computes them by one
call, `conv3d` with y_norm, where that is faster (`prices`), or the convolution alone if no norm came. So every order of
calls gives the modules' results. Published blocks are known by the `fingerprint` of their code, which says which norm
follows which convolution; a run in float64 shows that a norm is one of `nkiconv.pixel_norms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...pixel_norms import NORMS
from ...planner import estimate
from ...planner.request import Asked, Request
from ...problem import ConvProblem
from .. import functional
from ..computers import modes
from ..computers.host import activate
from ..errors import NkiconvError
from ..fused_module import stored_filter
from ..norm_act_modules import is_hooked
from .classes import Changed, change_class, origin
from .norms import affine_of_pixels, kind_of, norm_of_kind
from .pending import PRODUCTS, SUMS, Joined, Modulated, drops_nothing, handed_on, tensor_of
from .prices import norm_pays
from .report import Chain
from .videos import fingerprint

#: (convolution, norm after it) of blocks, by the fingerprint of their forward; of diffusers 0.42.
_KNOWN: dict[str, tuple[str, str]] = {
    # WanResidualBlock, QwenImageResidualBlock
    "e1a7d814563f9c328322042f0d0a278b56feed3de127e99cb38dab34698634cc": ("conv1", "norm2"),
    "a6fd53648dd52836e5066172e1b1d932f14c4381727e7e72040d6d050f6ce7af": ("conv1", "norm2"),
    # HunyuanVideo15ResnetBlock, HunyuanImageRefinerResnetBlock
    "28493fd2570877316e62154ccd044b7749f94d0d6b1691871b2b1bf63f1a3100": ("conv1.conv", "norm2"),
    # LTXVideoResnetBlock3d; LTX2VideoResnetBlock3d
    "cacc5f2352ad3d96be2aca0e3882838ca58970ce32a8984b1086893d21732488": ("conv1.conv", "norm2"),
    "34d8742f41039e3f8c80e5e59dd6f9e98b9afe39ae0d9154e73ca69b1693fcdc": ("conv1.conv", "norm2"),
}
#: Name of the attribute of a norm that is its `Seen`.
SEEN = "nkiconv_y_norm"


class Seen(NamedTuple):
    """A norm by its kind, its number of channels, and whether they are the last axis."""

    kind: str
    channels: int
    last: bool


class Summed(Modulated):
    """A convolution's result, whose norm over the channels of a pixel, a factor and a term for each channel, and an
    activation may come into the same call.

    call: of this; channels: of the result; given: tensors that the convolution reads, the first one x, its input.
    """

    def __init__(self, call: Callable[[Summed], Tensor], channels: int, given: list[Tensor]) -> None:
        self.call, self.channels, self.x = call, channels, given[0]
        self.keep(*given)
        self.rows = {}
        self.norm_module: Any = None
        self.activation: str | None = None
        self.last = False  # whether channels are the last axis

    def compute(self) -> Tensor:
        """Compute it by one call. Raises UnsupportedError: an input of the convolution has changed since its call."""
        self.check()
        y = self.call(self)
        return y.movedim(1, -1) if self.last else y

    def finished(self, y: Tensor, last: bool) -> Tensor:
        """From the convolution's result, what its norm, for channels as the `last` axis or not, and the later steps
        make of it by themselves."""
        norm = self.norm_module.plain_forward
        z: Tensor = norm(y.movedim(1, -1)).movedim(-1, 1) if last else norm(y)
        z = self.modulated(z)
        return z if self.activation is None else activate(z, self.activation)

    def movedim(self, source: Any, destination: Any) -> Any:
        """This with channels as the last axis, or again as the second; of the tensor for other axes."""
        back = (source, destination) == ((-1, 1) if self.last else (1, -1))
        if not (back and self.is_open()):
            return self.value().movedim(source, destination)
        return self.but(last=not self.last)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """After the norm a product with numbers for each channel, a sum with such, an activation; or a dropout that
        drops nothing."""
        if drops_nothing(function, args, named):
            return self
        if self.norm_module is None or self.last or self.activation is not None:
            return None
        if function in (*PRODUCTS, *SUMS):
            return self.with_row(function, args, named, [1, self.channels, *self.x.shape[2:]])
        return self.with_activation(function, args, named)


def find(model: torch.nn.Module, swapped: Sequence[str]) -> tuple[Chain, ...]:
    """A Chain for every norm of the classes that known blocks have after a convolution.

    swapped: names of the convolutions that may take one.
    """
    pairs = dict(_pairs(model))
    kinds = {type(model.get_submodule(name)) for name in pairs}
    return tuple(
        Chain(name, convolution=pairs.get(name), reason=next(_reasons(model, name, pairs.get(name), swapped)))
        for name, module in model.named_modules()
        if type(module) in kinds
    )


def _pairs(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """(norm, the convolution before it) in known blocks."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.") or "forward" in vars(module):
            continue
        names = _KNOWN.get(fingerprint(origin(type(module)).forward) or "")
        if names is not None:
            convolution, norm = (f"{name}.{one}".lstrip(".") for one in names)
            yield norm, convolution


def _reasons(model: torch.nn.Module, name: str, before: str | None, swapped: Sequence[str]) -> Iterator[str]:
    """Why a norm stays by itself, or ""; the first is the one to tell."""
    norm: Any = model.get_submodule(name)
    if isinstance(norm, TakesSums):
        yield "is in a fused chain already"
    if before is None:
        yield "does not follow a convolution of a block whose code is known"
        return
    convolution: Any = model.get_submodule(before)
    if before not in swapped:
        yield "its convolution is not swapped by this call, as its own row says"
    if convolution.groups != 1 or convolution.transposed or len(convolution.kernel_size) == 1:
        yield "its convolution has groups, or is none of images or volumes"
    _, *parts = model.get_submodule(name.rpartition(".")[0]).modules()
    if is_hooked(*parts):
        yield "a module of it has hooks, which would see no tensor"
    if "forward" in vars(norm):
        yield "a module of it has a forward of its own"
    if affine_of_pixels(norm, convolution.out_channels) is None:
        yield f"has no weight of the convolution's {convolution.out_channels} channels"
        return
    if _seen(norm, convolution) is None:
        yield f"is a {type(norm).__name__}, which is found to compute none of {', '.join(NORMS)}"
    yield _refusal(convolution)


def _seen(norm: Any, convolution: Any) -> Seen | None:
    rank, channels = len(convolution.kernel_size), convolution.out_channels
    is_meta = stored_filter(convolution).is_meta
    for last in (False, True):
        kind = kind_of(norm, channels, rank, is_meta, last)
        if kind is not None:
            return Seen(kind, channels, last)
    return None


def _refusal(convolution: Any) -> str:
    """Why no kernel normalizes a convolution's result, for an image or video of some size; "" if one does."""
    rank = len(convolution.kernel_size)
    sizes: dict[str, Any] = dict(zip("DHW"[-rank:], (8, 64, 64)[-rank:], strict=True))
    sizes |= zip("TRS"[-rank:], convolution.kernel_size, strict=True)
    problem = ConvProblem(N=1, C=convolution.in_channels, K=convolution.out_channels, dtype="bf16", **sizes)
    try:
        estimate.estimate(Request(problem=problem, asked=Asked(y_norm=NORMS[0], y_norm_weight=True)))
    except NkiconvError as error:
        return f"no kernel takes it: {error}"
    return ""


def take(model: torch.nn.Module, chains: Sequence[Chain]) -> None:
    """Make each norm part of its convolution's call."""
    for chain in chains:
        assert chain.convolution is not None
        norm, convolution = model.get_submodule(chain.norm), model.get_submodule(chain.convolution)
        vars(norm)[SEEN] = _seen(norm, convolution)
        change_class(norm, TakesSums)
        change_class(convolution, HandsOnSums)


class TakesSums(Changed):
    """A norm that notes itself on the `Summed` of its convolution."""

    plain_forward = Changed.forward

    def forward(self, input: Any, *args: Any, **named: Any) -> Any:
        takes = isinstance(input, Summed) and input.is_open() and input.norm_module is None and not (args or named)
        takes = takes and (input.channels, input.last) == vars(self)[SEEN][1:] and not is_hooked(self)
        takes = takes and affine_of_pixels(self, input.channels) is not None
        return input.but(norm_module=self) if takes else super().forward(tensor_of(input), *args, **named)


class HandsOnSums(Changed):
    """A convolution whose result is pending until something but its norm asks for it."""

    def forward(self, *args: Any, **named: Any) -> Any:
        args, named = tuple(map(_given, args)), {name: tensor_of(one) for name, one in named.items()}
        read = [one.x if isinstance(one, Joined) else one for one in (*args, *named.values())]
        x = read[0] if args else None
        pends = isinstance(x, Tensor) and x.dim() == len(self.kernel_size) + 2 and not modes.is_autocast(x.device.type)
        pends = pends and self.activation is None and not torch.compiler.is_compiling()
        plain = super().forward
        if not pends or is_hooked(self):
            return plain(*args, **named)

        def call(summed: Summed) -> Tensor:
            together = None if summed.norm_module is None else _called(self, args, named, summed)
            if together is not None:
                return together
            y: Tensor = plain(*args, **named)
            return y if summed.norm_module is None else summed.finished(y, vars(summed.norm_module)[SEEN].last)

        given = [one for one in read if isinstance(one, Tensor)]
        return handed_on(Summed, call, self.out_channels, given)


def _given(one: Any) -> Any:
    """An argument: a video behind copies of its first plane as it is, a tensor in the place of other pending ones."""
    return one if isinstance(one, Joined) and one.is_open() else tensor_of(one)


def _called(convolution: Any, args: tuple[Any, ...], named: dict[str, Any], summed: Summed) -> Tensor | None:
    """The result of one call of a convolution with its norm and the steps after it, for torch's forward or one that
    `videos` knows; None if it is neither, or if one call is slower."""
    rank, module, activation = len(convolution.kernel_size), summed.norm_module, summed.activation
    norm = norm_of_kind(module, vars(module)[SEEN].kind, convolution.out_channels, **summed.modulation())
    own: Any = functional.conv2d if rank == 2 else functional.conv3d
    norm_arguments = {"y_norm": norm.kind, "y_norm_weight": norm.weight, "y_norm_bias": norm.bias}

    def function(x: Tensor, weight: Tensor, bias: Any, *numbers: Any, **asked: Any) -> Tensor | None:
        frames = asked.get("initial_frames")
        frames = None if frames is None or frames.shape[2] == 0 else frames
        strict = modes.wants_strict_nonfinite(asked["strict_nonfinite"])
        fused = functional.Fused(activation, strict_nonfinite=strict)
        if not norm_pays(module, own.__name__, (x, weight, bias, asked["packed"], frames), numbers, norm, fused):
            return None
        more = {**asked, **norm_arguments, "y_norm_eps": norm.eps, "activation": activation}
        y: Tensor = own(x, weight, bias, *numbers, **more)
        return y

    known = getattr(type(convolution), "fused_forward", None)
    if known is not None:
        found: Tensor | None = known(convolution, args, named, function)
        return found
    x, *residual = args
    x, more = (x, {}) if not isinstance(x, Joined) else (x.x, {"initial_frames": x.parts()[1]})
    y: Tensor | None = convolution._convolved(function, x, *(residual or [None]), **more)
    return y
