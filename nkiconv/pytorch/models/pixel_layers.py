"""Linear layers over the channels of images as 1x1 convolutions with their epilogue, as in ConvNeXt.

    activation(linear(x))                             x, residual: [N, H, W, C] as their axes are permuted
    linear(x).permute(0, 3, 1, 2) * scale + residual
    convolution(activation(convolution(x))) * scale + residual        1x1, of [N, C, H, W]

A layer returns `Pixels`, which note an activation, the permutation and a scale per channel, and take the sum's other
term as the residual of one `conv2d`; two layers are one `pointwise_mlp`. As in `pending`, any other use computes them
first. The call of two layers takes the norm of their input too (`pixel_inputs`).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..computers.modes import is_autocast, told_layer
from ..functional import conv2d
from ..fused_module import stored_filter
from ..norm_act_modules import is_hooked
from ..operators.tensor_kinds import DTYPES
from ..pointwise import pointwise_mlp, unsupported
from . import pixel_inputs
from .chains import activation_at
from .classes import Changed, change_class
from .follows import Region, module_of
from .intercept import STRICT
from .only_ways import mlp_of
from .pending import PRODUCTS, Pending, drops_nothing, handed_on, tensor_of
from .pending import SUMS as PENDING_SUMS
from .pixel_inputs import FRONT, NormedPixels, channels_of
from .prices import is_timed, layers_pay, x_norm_pays
from .producers import SUMS, is_through, modules_around, only_user
from .report import PixelLayer

#: Order of axes with channels last.
LAST = (0, 2, 3, 1)
#: Attribute of a layer's name.
LAYER = "nkiconv_layer"
_PERMUTES = (torch.permute, torch.Tensor.permute)


class Pixels(Pending):
    """A layer's result over the channels of x: [N, H, W, K], or, in `front`, [N, K, H, W] as of convolutions.

    x: [N, C, H, W], of the layer, or of `before`, the Pixels of a layer that is in the same call, or of its
    norm, `normed`.
    """

    def __init__(
        self, linear: Any, x: Tensor, before: Pixels | None = None, normed: NormedPixels | None = None
    ) -> None:
        self.linear, self.x, self.before, self.normed = linear, x, before, normed
        self.keep(x)
        self.reads = self.reads if before is None else before.reads
        self.activation: str | None = None
        self.scale: Tensor | None = None
        self.weight: Tensor | None = None
        self.front = is_pointwise(linear)

    def compute(self) -> Tensor:
        """By one call without a residual."""
        y = self.images()
        return y if self.front else y.permute(LAST)

    def images(self, residual: Tensor | None = None) -> Tensor:
        """y + residual, [N, K, H, W]. Raises UnsupportedError: x has changed since the layer was called."""
        self.check()
        weight, bias, own = self.filters(), self.linear.bias, vars(self.linear)
        if self.scale is not None:
            weight, bias = weight * self.scale[:, None], None if bias is None else bias * self.scale
        more: dict[str, Any] = {"residual": residual, "layer": told_layer(own.get(LAYER))}
        together = None if self.activation else self._together(weight, bias, more)
        if together is not None:
            return together
        read = self.normed if self.before is None else self.before
        x = self.x if read is None else read.images()
        more |= {"activation": self.activation, "strict_nonfinite": own.get(STRICT)}
        y: Tensor = conv2d(x, weight[:, :, None, None], bias, **more)
        return y

    def _together(self, weight: Tensor, bias: Tensor | None, more: dict[str, Any]) -> Tensor | None:
        """The result of one kernel with the layer before; None if there is none, or if two kernels are faster."""
        before, x = self.before, self.x
        if before is None:
            return None
        first, normed = before.filters(), before.normed
        # training keeps the hidden channels
        trains = torch.is_grad_enabled() and any(one.requires_grad for one in (x, weight, first))
        if trains or unsupported(x, first, weight):
            return None
        taken = None if normed is None or unsupported(x, first, weight, normed.kind) else normed
        biases, asked = (before.linear.bias, bias), {"activation": before.activation, **more}
        if is_timed(x):
            kind = None if taken is None else taken.kind
            call = mlp_of(x, (first, weight), biases, before.activation, more["residual"], kind)
            if not layers_pay(self.linear, call, x):
                return None
            taken = taken if taken is not None and x_norm_pays(taken.module, call, x) else None
        if taken is not None:
            asked |= taken.arguments()
        elif normed is not None:
            x = normed.images()
        return pointwise_mlp(x, first, weight, *biases, **asked)

    def filters(self) -> Tensor:
        """[K, C], read once: a parametrized weight is computed."""
        if self.weight is None:
            weight: Tensor = self.linear.weight
            self.weight = weight.flatten(1) if weight.dim() > 2 else weight
        return self.weight

    def can_be_before(self, layer: torch.nn.Module) -> bool:
        """Whether a layer that comes after this one can be in its call."""
        return self.is_open() and self.before is None and self.scale is None and self.front == is_pointwise(layer)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """An activation, a dropout that drops nothing, the permutation, a scale, a sum with a tensor of its shape."""
        if drops_nothing(function, args, named):
            return self
        if (found := self.with_activation(function, args, named)) is not None:
            return found
        if named or len(args) < 1:
            return None
        if function in _PERMUTES:
            return self.but(front=True) if not self.front and _order(args) == FRONT else None
        [other] = args[:1]
        if self.activation is not None or not isinstance(other, Tensor) or other.device != self.x.device:
            return None
        N, _, H, W = self.x.shape
        inputs, K = channels_of(self.linear)
        if function in PRODUCTS:
            # in fp16 a product of two small numbers is lost; few pixels are scaled sooner than filters
            fits = other.dtype == stored_filter(self.linear).dtype != torch.float16 and N * H * W > inputs
            shapes = ((K, 1, 1), (1, K, 1, 1)) if self.front else ((K,), (1, 1, 1, K))
            fits = fits and self.scale is None and tuple(other.shape) in shapes
            return self.but(scale=other.reshape(K)) if fits else None
        if function not in PENDING_SUMS or not self.front:
            return None
        same = tuple(other.shape) == (N, K, H, W) and other.dtype == self.x.dtype
        return self.images(other) if same else None

    def permute(self, *axes: Any, dims: Any = None) -> Any:
        """As torch.Tensor's."""
        return self.stepped(torch.permute, Tensor.permute, *axes if dims is None else (dims,))

    def mul(self, other: Any) -> Any:
        """As torch.Tensor's."""
        return self * other


def _order(dims: Sequence[Any]) -> tuple[Any, ...]:
    """Axes of a permutation, given one by one or together."""
    return tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else tuple(dims)


def is_linear(module: torch.nn.Module) -> bool:
    """Whether a module is a linear layer of torch, or one made from it."""
    return isinstance(module, torch.nn.Linear)


def is_pointwise(module: torch.nn.Module) -> bool:
    """Whether a module is a convolution of single pixels, all channels together."""
    return (
        isinstance(module, torch.nn.Conv2d)
        and (*module.kernel_size, *module.stride, module.groups) == (1,) * 5
        and module.padding in ("valid", "same", (0, 0))
    )


class MakesPixels(Changed):
    """A layer whose result of [N, H, W, C], or [N, C, H, W] of a convolution, is Pixels."""

    nkiconv_traced = True

    def forward(self, input: Any, *args: Any, **named: Any) -> Any:
        hooked = args or named or is_hooked(self)
        if isinstance(input, Pixels) and input.can_be_before(self) and not hooked:
            return handed_on(Pixels, self, input.x, input)
        others = isinstance(input, Pending) or not isinstance(input, Tensor)  # of a norm, or of torch.fx
        if is_pointwise(self) and others and not isinstance(input, (Pixels, NormedPixels)):
            return super().forward(input, *args, **named)
        norm = input if isinstance(input, NormedPixels) and input.front == is_pointwise(self) else None
        norm = None if norm is None or not norm.is_open() else norm
        input = tensor_of(input) if norm is None else norm.x
        plain = (
            not isinstance(input, Tensor)  # also where torch.fx traces
            or input.dim() != 4
            or input.numel() == 0
            or input.dtype != stored_filter(self).dtype
            or hooked
            or is_autocast(input.device.type)
        )
        if plain:
            return super().forward(input if norm is None else norm.value(), *args, **named)
        return handed_on(Pixels, self, input if is_pointwise(self) else input.permute(FRONT), normed=norm)


class _Found(NamedTuple):
    """A layer, and the module whose forward computes its result."""

    layer: PixelLayer
    inside: str
    second: str = ""  # the layer that may be in its call


def find(model: torch.nn.Module, regions: Sequence[Region], swapped: Sequence[str]) -> tuple[PixelLayer, ...]:
    """A PixelLayer for every linear layer between permutations of images and every pair of 1x1 convolutions.

    regions: those with such layers; swapped: names of the convolutions that are nkiconv's.
    """
    found: dict[str, set[_Found]] = {}
    for region in regions:
        for one in _of_region(region):
            found.setdefault(one.layer.name, set()).add(one)
    layers = {
        name: dataclasses.replace(one.layer, reason=next(_reasons(model, one.layer, one.inside, swapped), ""))
        if not ways
        else PixelLayer(name, reason="is called in several ways")
        for name, (one, *ways) in found.items()
    }
    # a norm is in the call of two layers alone
    seconds = {one.layer.name: layers.get(one.second) for every in found.values() for one in every}
    return tuple(
        one if one.fused and getattr(seconds[name], "fused", False) else dataclasses.replace(one, norm=None)
        for name, one in layers.items()
    )


def _of_region(region: Region) -> Iterator[_Found]:
    for graph in region.graphs:
        firsts = [node for node in graph.nodes if _is_layer(node, region.kinds, is_pointwise)]
        pairs = [(one, after) for one in firsts for after in [_second(one, region.kinds, is_pointwise)] if after]
        convolutions = dict.fromkeys(node for pair in pairs for node in pair)
        linear = [node for node in graph.nodes if _is_layer(node, region.kinds, is_linear)]
        for node in (*linear, *convolutions):
            found = _layer(node, region)
            if found is not None:
                yield found


def _is_layer(node: fx.Node, kinds: Any, wanted: Any) -> bool:
    """Whether a node calls a module that is `wanted`, with one argument."""
    return wanted(module_of(node, kinds)) and len(node.all_input_nodes) == 1


def _second(node: fx.Node, kinds: Any, wanted: Any) -> fx.Node | None:
    """The layer that alone sees another's activated result."""
    activation, after = None, node
    while (user := only_user(after)) is not None:
        if activation is not None and _is_layer(user, kinds, wanted):
            return user
        activation = activation or activation_at(user, after, kinds)
        if activation is None or not (activation_at(user, after, kinds) or is_through(user, kinds)):
            return None
        after = user
    return None


def _layer(node: fx.Node, region: Region) -> _Found | None:
    """The fused call that a call of a linear layer is part of; None if its tensors are no images."""
    images = is_pointwise(region.kinds[str(node.target)])
    activation, front, scaled, adds, after = None, images, False, False, node
    while (user := only_user(after)) is not None:
        named = None if activation is not None or front != images else activation_at(user, after, region.kinds)
        if named is not None:
            activation = named
        elif _permutes(user, FRONT) and not front:
            front = True
        elif user.target in (operator.mul, torch.mul, "mul") and not activation and not scaled:
            [*others] = [one for one in user.all_input_nodes if one is not after]
            scaled = len(others) == 1 and _is_parameter(others[0])
            if not scaled:
                break
        elif user.target in SUMS and front and not activation and len(user.args) == 2:
            adds = True
            break
        elif not is_through(user, region.kinds):
            break
        after = user
    if not front and not _comes_permuted(node, region.kinds):  # both are of images
        return None
    inside = set.intersection(modules_around(node) - {str(node.target)}, *map(modules_around, after.users))
    # the layer must be the only reader of its input, because it reads it later
    alone = len(node.all_input_nodes[0].users) == 1
    reason = "" if alone else "is not the only one that sees its input"
    second = _second(node, region.kinds, is_pointwise if images else is_linear)
    norm = None if second is None else pixel_inputs.norm_before(node, region.kinds, not images)
    norm = norm and f"{region.prefix}{norm}"
    found = PixelLayer(f"{region.prefix}{node.target}", activation, scaled and adds, adds, norm, reason)
    around = f"{region.prefix}{max(inside, key=len, default='')}".removesuffix(".")
    return _Found(found, around, f"{region.prefix}{second.target}" if second else "")


def _comes_permuted(node: fx.Node, kinds: Any) -> bool:
    """Whether a layer's input is an image whose channels were made last, perhaps normalised."""
    before = node.all_input_nodes[0]
    while not _permutes(before, LAST):
        if not pixel_inputs.is_norm(before, kinds):
            return False
        before = before.all_input_nodes[0]
    return True


def _permutes(node: fx.Node, order: tuple[int, ...]) -> bool:
    return node.target in (*_PERMUTES, "permute") and _order(node.args[1:]) == order


def _is_parameter(node: fx.Node) -> bool:
    """Whether a node is a parameter or buffer, perhaps reshaped."""
    while node.target in ("reshape", "view") and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node.op == "get_attr"


def _reasons(model: torch.nn.Module, found: PixelLayer, inside: str, swapped: Sequence[str]) -> Iterator[str]:
    """Why a layer stays as it is; the first reason is the one to tell."""
    linear: Any = model.get_submodule(found.name)
    _, *parts = model.get_submodule(inside).modules()
    if found.reason:
        yield found.reason
    if isinstance(linear, MakesPixels):
        yield "is a convolution already"
    if is_pointwise(linear):
        if found.name not in swapped:
            yield "is not swapped by this call, or is in a chain with its norm, as its own row says"
    elif type(linear).forward is not torch.nn.Linear.forward or "forward" in vars(linear):
        yield "has a forward of its own"
    if is_hooked(*parts):
        yield f"a module in {inside or 'the model'} has hooks, which would see no tensor"
    if (dtype := stored_filter(linear).dtype) not in (*DTYPES, torch.float64):
        yield f"weights are {dtype}; accepted are {', '.join(map(str, DTYPES))}"
    if found.activation is None and not found.adds:
        yield "has no activation or sum after it that a convolution takes"


def take(model: torch.nn.Module, layers: Sequence[PixelLayer], strict_nonfinite: bool | None) -> None:
    """Make each layer hand on Pixels."""
    for layer in layers:
        module = model.get_submodule(layer.name)
        vars(module).update({LAYER: layer.name, STRICT: strict_nonfinite})
        change_class(module, MakesPixels)
        if layer.norm is not None:
            norm, last = model.get_submodule(layer.norm), not is_pointwise(module)
            pixel_inputs.take(norm, channels_of(module)[0], stored_filter(module).is_meta, last)
