"""Conformer's convolution modules as one call: GLU, depthwise convolution of rows, BatchNorm of eval mode, activation.

The convolution in front of the GLU hands on a `Projected`, on which the GLU is noted; the depthwise one makes `Rows` of
it, which note the norm and end with the activation, by one `glu_conv1d`. A call without the GLU, as of models that mask
between the two, is one `conv1d` with the norm and the activation. As in `pending`, whatever else is done with them
computes them first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..computers import modes
from ..computers.host import activate
from ..functional import conv1d
from ..gated import glu_conv1d
from ..norm_act_modules import HOOKS
from .chains import activation_at
from .classes import change_class, define, is_changed, ours
from .follows import Region, regions_of
from .fusing import norm_arguments, takes_pending, takes_statistics
from .norms import CLOSE
from .pending import Pending, activation_of, is_changed_since, is_in_place, tensor_of, version_of
from .producers import only_user
from .report import RowStage
from .ways import Copy

#: The axis of channels, as F.glu may be told it.
_CHANNELS = (1, -2)


class Projected(Pending):
    """x [N, 2 * D, W] of the module in front of a GLU, or, once that is noted, glu(x, dim=1)."""

    def __init__(self, x: Tensor, gated: bool = False) -> None:
        self.x, self.gated, self.version = x, gated, version_of(x)

    def compute(self) -> Tensor:
        """By torch's GLU."""
        is_changed_since(self.x, self.version)
        return F.glu(self.x, 1) if self.gated else self.x

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The GLU."""
        dims = [*args, *named.values()]
        if self.gated or function is not F.glu or dims not in [[axis] for axis in _CHANNELS]:
            return None
        return Projected(self.x, True)


class Rows(Pending):
    """What a depthwise convolution makes of x [N, D, W], or of glu(x, dim=1) of [N, 2 * D, W], perhaps normalised."""

    def __init__(self, convolution: Any, x: Tensor, gated: bool) -> None:
        self.convolution, self.x, self.gated = convolution, x, gated
        self.norm: Any = None
        self.activation: str | None = convolution.activation
        self.version = version_of(x)

    def compute(self) -> Tensor:
        """By one call. Raises UnsupportedError: x has changed since the convolution was called."""
        is_changed_since(self.x, self.version)
        own = self.convolution
        weight, bias = own.weight, own.bias
        if self.norm is not None:
            weight, bias = _folded(weight, bias, self.norm)
        padding = own.padding if isinstance(own.padding, str) else own.padding[0]
        more = {"padding": padding, "activation": self.activation, "layer": own.layer}
        if self.gated:
            y: Tensor = glu_conv1d(self.x, weight, bias, **more)
            return y
        strict = own.strict_nonfinite
        alone: Tensor = conv1d(self.x, weight, bias, groups=own.groups, strict_nonfinite=strict, **more)
        return alone

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The activation, with which the call is complete."""
        activation = activation_of(function, named)
        if activation is None or self.activation is not None:
            return None
        found = self if is_in_place(function, args, named) else copy.copy(self)
        found.activation = activation
        return found.value()

    def normed(self, norm: Any) -> Rows | None:
        """The same with a BatchNorm; None where something has been done since the convolution."""
        if self.tensor is not None or self.norm is not None or self.activation is not None:
            return None
        found = copy.copy(self)
        found.norm = norm
        return found


def _folded(weight: Tensor, bias: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """Filters and bias of a convolution and the BatchNorm of eval mode after it, rounded once to the filters' dtype."""
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    scale = (norm.running_var.to(wide) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.to(wide)
    shift = -norm.running_mean.to(wide) if bias is None else bias.to(wide) - norm.running_mean.to(wide)
    shift = shift * scale
    if norm.bias is not None:
        shift = shift + norm.bias.to(wide)
    return (weight.to(wide) * scale[:, None, None]).to(weight.dtype), shift.to(weight.dtype)


def _obstacle(norm: Any) -> str:
    """Why a norm cannot be in filters and bias; empty where it can."""
    arguments = norm_arguments(norm)
    if isinstance(arguments, str):
        return arguments
    return "takes statistics of the batch; call model.eval() first" if takes_statistics(arguments) else ""


def _is_plain(module: Any, x: Any) -> bool:
    """Whether a module computes its result at once: hooks see it, or autocast chooses dtypes, or torch.fx traces."""
    hooked = any(getattr(module, hooks) for hooks in HOOKS)
    return hooked or not isinstance(x, Tensor) or x.dim() != 3 or modes.is_autocast(x.device.type)


@define
def projects(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """The class of a module in front of a GLU."""

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        y = kind.forward(self, *args, **named)
        return y if _is_plain(self, y) else Projected(y)

    return (kind,), {"forward": forward, "__module__": __name__}


@define
def takes_gate(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """The class of a depthwise convolution that computes its stage."""

    def forward(self: Any, input: Any, *args: Any, **named: Any) -> Any:
        gated = isinstance(input, Projected) and input.tensor is None and input.gated
        x = input.x if gated else tensor_of(input)
        if args or named or _is_plain(self, x) or x.dtype != self.weight.dtype:
            return kind.forward(self, tensor_of(input), *args, **named)
        return Rows(self, x, gated)

    return (kind,), {"forward": forward}


@define
def is_noted(kind: Any) -> tuple[tuple[type, ...], dict[str, Any]]:
    """The class of a BatchNorm that goes into the filters of Rows."""

    def forward(self: Any, input: Any) -> Any:
        hooked = any(getattr(self, hooks) for hooks in HOOKS)
        noted = isinstance(input, Rows) and not hooked and not _obstacle(self)
        found = input.normed(self) if noted else None
        return kind.forward(self, tensor_of(input)) if found is None else found

    return (kind,), {"forward": forward, "plain_forward": kind.forward, "__module__": __name__}


def find(model: torch.nn.Module, swapped: Sequence[str], folded: Sequence[str], copied: Copy) -> tuple[RowStage, ...]:
    """What is to become of every depthwise convolution of rows after a GLU.

    swapped: names of the convolutions that are nkiconv's; folded: of the norms that go into filters before.
    """
    regions, _ = regions_of(model, copied, _is_depthwise, every_call=False)
    found: dict[str, set[RowStage]] = {}
    for region in regions:
        for stage in _of_region(region, folded):
            found.setdefault(stage.convolution, set()).add(stage)
    return tuple(_judged(model, name, sorted(stages, key=str), swapped) for name, stages in found.items())


def _judged(model: torch.nn.Module, name: str, stages: Sequence[RowStage], swapped: Sequence[str]) -> RowStage:
    if len(stages) > 1:
        return RowStage(name, reason="is called in several ways")
    reason = next(_reasons(model, stages[0], swapped), "")
    return RowStage(name, stages[0].projection, stages[0].norm, stages[0].activation, reason)


def _is_depthwise(module: Any) -> bool:
    return isinstance(module, torch.nn.Conv1d) and module.groups == module.in_channels == module.out_channels > 1


def _of_region(region: Region, folded: Sequence[str]) -> Iterator[RowStage]:
    for graph in region.graphs:
        for node in graph.nodes:
            before = node.all_input_nodes[0] if len(node.all_input_nodes) == 1 else None
            if before is None or not _is_glu(node, region.kinds) or before.op != "call_module":
                continue
            convolution = only_user(node)
            if convolution is None or convolution.op != "call_module" or only_user(before) is not node:
                continue
            if _is_depthwise(region.kinds[str(convolution.target)]):
                yield _stage(str(before.target), convolution, region, folded)


def _is_glu(node: fx.Node, kinds: Any) -> bool:
    """Whether a node is a GLU of channels."""
    if node.op == "call_module":
        module = kinds[str(node.target)]
        return type(module) is torch.nn.GLU and module.dim in _CHANNELS
    dims = [*node.args[1:], *node.kwargs.values()]
    return node.target is F.glu and dims in [[axis] for axis in _CHANNELS]


def _stage(projection: str, convolution: fx.Node, region: Region, folded: Sequence[str]) -> RowStage:
    """The stage of a convolution's call after a GLU."""
    prefix, node, norm = region.prefix, convolution, None
    while (after := only_user(node)) is not None and after.op == "call_module":
        module = region.kinds[str(after.target)]
        if isinstance(module, _BatchNorm) and norm is None:
            norm = prefix + str(after.target)
        elif type(module) is not torch.nn.Identity:
            break
        node = after
    activation = None if after is None else activation_at(after, node, region.kinds)
    norm = None if norm in folded else norm
    return RowStage(f"{prefix}{convolution.target}", prefix + projection, norm, activation)


def _reasons(model: torch.nn.Module, stage: RowStage, swapped: Sequence[str]) -> Iterator[str]:
    """Why a stage stays as it is; the first reason is the one to tell."""
    convolution: Any = model.get_submodule(stage.convolution)
    norm: Any = None if stage.norm is None else model.get_submodule(stage.norm)
    parts = [convolution, model.get_submodule(stage.projection), *[norm] * (norm is not None)]
    if is_changed(convolution, takes_gate):
        yield "is one call with its GLU already"
    if stage.convolution not in swapped:
        yield "is not swapped by this call, as its own row says"
    if (convolution.stride, convolution.dilation, convolution.padding_mode) != ((1,), (1,), "zeros"):
        yield "has a stride, a dilation or a padding by other than zeros"
    if stage.activation is None:
        yield "is not followed by an activation that nkiconv fuses, with at most a BatchNorm between"
    if any(getattr(part, hooks) for part in parts for hooks in HOOKS):
        yield "a module of it has hooks, which would see no tensor"
    if any("forward" in vars(part) for part in parts):
        yield "a module of it has a forward of its own"
    if norm is not None and _obstacle(norm):
        yield f"its norm {_obstacle(norm)}"
    elif not convolution.weight.is_meta and not _agrees(convolution, norm, stage.activation):
        yield "fused, it differs by more than rounding explains"


@torch.no_grad()
def _agrees(convolution: Any, norm: Any, activation: str | None) -> bool:
    """Whether the one call gives, in float64, what the modules do one after the other."""
    own, alone = copy.deepcopy(convolution).cpu().double(), copy.deepcopy(norm)
    change_class(own, ours)
    own.layer = own.strict_nonfinite = None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2 * own.in_channels, 2 * own.kernel_size[0] + 1, dtype=torch.float64, generator=generator)
    gated = F.glu(x, 1)
    numbers = own.stride, own.padding, own.dilation, own.groups
    expected = F.conv1d(gated, own.weight, own.bias, *numbers)
    bias = None if own.bias is None else own.bias.abs()
    limit = 1 + F.conv1d(gated.abs(), own.weight.abs(), bias, *numbers)
    rows = Rows(own, x, True)
    if alone is not None:
        alone = alone.cpu().double()
        scale, _ = _folded(torch.ones_like(own.weight), None, alone)
        expected = alone(expected)
        limit = limit * (1 + scale[:, :1, 0].abs()) + expected.abs() + alone.running_mean.abs()[:, None]
        rows.norm = alone
    rows.activation = activation
    with modes.by_torch():
        found = rows.value()
    expected = expected if activation is None else activate(expected, activation)
    return bool(((found - expected).abs() <= CLOSE * limit).all())


def take(model: torch.nn.Module, stages: Sequence[RowStage], swapped: Sequence[str]) -> None:
    """Make the modules of each fused stage hand on what is pending, which all swapped convolutions then read."""
    fused = [stage for stage in stages if stage.fused]
    for name in swapped if fused else ():
        if not is_changed(model.get_submodule(name), takes_pending):
            change_class(model.get_submodule(name), takes_pending)
    for stage in fused:
        change_class(model.get_submodule(stage.projection), projects)
        change_class(model.get_submodule(stage.convolution), takes_gate)
        if stage.norm is not None:
            change_class(model.get_submodule(stage.norm), is_noted)
