"""Chains of a model that one kernel computes: norm, activation, convolution, and the sum with a residual after it.

torch.fx's graphs of all paths through a module's forward (`follows`) prove two things: the convolution is the only
reader of the normalized and activated tensor, and no operator changes the norm's input in place before the convolution
reads it. Each chain is compared with its modules in float64 before it is made. Calls outside of the graphs, such as a
norm called by other code, stay correct: see `callers`.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn.modules.conv import _ConvNd

from ..computers import modes
from ..fused_module import operator_of, stored_filter
from .classes import change_class, ours
from .follows import Kinds, Region, module_of
from .fusing import After, Ends, HandsOn, activation_of_norm, fused, is_channel_norm, mark, norm_arguments
from .norms import CLOSE, alone_of
from .pending import Normed, Padding
from .producers import are_hooked, is_of_channels, of_norms, only_user, quotient_after, sum_after
from .report import Chain
from .ways import Copy

#: Where torch's activations and dropouts are defined.
_STEPS = ("torch.nn.modules.activation", "torch.nn.modules.dropout", "torch.nn.modules.linear")
_HOOKED = "a module of it has hooks, which would see no tensor"
#: torch.fx's operators with a value per channel, as the functions that `Normed.step` takes.
ROW_STEPS = {operator.mul: torch.mul, torch.mul: torch.mul, operator.add: torch.add, torch.add: torch.add}
_ROW = torch.empty(1, 0, 1, 1, 1)
_NOT_ALONE = "is not followed by one convolution, with at most an activation between, that alone sees its result"


class _Steps(NamedTuple):
    """A chain as one graph has it, by names in the region."""

    norm: str
    rows: tuple[Any, ...]  # torch.mul, torch.add, where numbers for each channel multiply the norm, and are added
    activation: str | None  # nkiconv's name
    paddings: tuple[Padding, ...]  # by copies of pixels
    between: tuple[str, ...]  # modules of the activation and of dropout
    convolution: str
    adds: bool
    over_one: bool  # whether the sum is divided by 1


def find(
    model: torch.nn.Module,
    regions: Sequence[Region],
    unproved: Mapping[str, str],
    swapped: Sequence[str],
    folded: Sequence[str],
    copied: Copy,
) -> tuple[Chain, ...]:
    """A Chain for every norm of channels, fused or with the reason against it.

    regions, unproved: results of `regions_of`; swapped: names of convolutions that may take a norm; folded: names of
    norms that go into filters.
    """
    # the graphs of a module without norms do not show the readers of its result
    regions = [region for region in regions if any(map(is_channel_norm, region.kinds.values()))]
    steps: dict[str, set[_Steps | str]] = {}
    for region in regions:
        for name, found in _of_region(region):
            steps.setdefault(name, set()).add(found)
    chains = []
    for name, module in model.named_modules():
        if not is_channel_norm(module):
            continue
        ways = steps.get(name, {_unseen(name, module, unproved)})
        if name in folded:
            chains.append(Chain(name, reason="is folded into the convolution before it"))
        elif isinstance(module, HandsOn):
            chains.append(Chain(name, reason="is in a fused chain already"))
        elif told := sorted(one for one in ways if isinstance(one, str)):
            chains.append(Chain(name, reason=told[0]))
        else:
            own = [way for way in ways if isinstance(way, _Steps)]
            adds, over_one = all(way.adds for way in own), all(way.over_one for way in own)
            one = own[0]._replace(adds=adds, over_one=over_one)
            if any(way._replace(adds=adds, over_one=over_one) != one for way in own):
                chains.append(Chain(name, reason="is called in several chains"))
                continue
            reason = next(_reasons(model, one, swapped), "")
            padding = " and ".join(padding.mode for padding in one.paddings)
            more: dict[str, Any] = {"padding": padding, "modulated": bool(one.rows), "reason": reason}
            chains.append(Chain(name, one.activation, one.between, one.convolution, adds, over_one, **more))
    sources, shifted = of_norms(model, regions, chains, swapped, copied)
    return tuple(
        dataclasses.replace(one, statistics=known, offset=bool(known) and one.norm in shifted)
        for one, known in ((one, sources.get(one.norm, ())) for one in chains)
    )


def _unseen(name: str, norm: torch.nn.Module, unproved: Mapping[str, str]) -> str:
    """Why no graph calls a norm."""
    around = [outer for outer in unproved if not outer or name.startswith(f"{outer}.")]
    arguments = norm_arguments(norm)
    if isinstance(arguments, str) and not around:
        return arguments
    return unproved[max(around, key=len)] if around else "is not called in forward"


def _of_region(region: Region) -> Iterator[tuple[str, _Steps | str]]:
    """(norm, the steps after it or the reason against a chain) of each call in a region's graphs."""
    prefix = region.prefix
    for node in region.nodes:
        if is_channel_norm(module_of(node, region.kinds)):
            name, found = f"{prefix}{node.target}", _steps(node, region.kinds)
            if not isinstance(found, str):
                between = tuple(prefix + one for one in found.between)
                found = found._replace(norm=name, between=between, convolution=prefix + found.convolution)
            yield name, found


def _steps(norm: fx.Node, kinds: Kinds) -> _Steps | str:
    """The chain that a call of a norm begins, or why it begins none."""
    if len(norm.args) != 1 or norm.kwargs:
        return _NOT_ALONE
    between, value, node = list[str](), _of_nothing(activation_of_norm(kinds[str(norm.target)])), norm
    while (after := only_user(node)) is not None and _next(node) is after:
        one = module_of(after, kinds)
        if isinstance(one, _ConvNd):
            if len(after.args) > 1 or after.kwargs:
                return _NOT_ALONE
            if are_hooked(norm, after, kinds):
                return _HOOKED
            total = sum_after(after, kinds)
            over_one = total is not None and quotient_after(total) is not None
            found = str(norm.target), (*value.rows,), value.activation, value.paddings, (*between,), str(after.target)
            return _Steps(*found, total is not None, over_one)
        value, node = _stepped(value, node, after, one), after
        if not isinstance(value, Normed):
            return _NOT_ALONE
        if one is not None and are_hooked(norm, after, kinds):
            return _HOOKED
        between += [str(after.target)] * (one is not None)
    return _NOT_ALONE


def activation_at(node: fx.Node, before: fx.Node, kinds: Kinds) -> str | None:
    """nkiconv's name of a node's activation, or None; the node is the only user of `before`."""
    value = _stepped(_of_nothing(), before, node, module_of(node, kinds))
    return value.activation if isinstance(value, Normed) else None


class _NoTensorError(Exception):
    """A module asks for a tensor."""


class _Nothing:
    """A norm that gives no tensor."""

    training = False

    def plain_forward(self, _x: Tensor) -> Tensor:
        raise _NoTensorError


def _of_nothing(own: str | None = None) -> Normed:
    """A pending norm of images of unknown size, with at most three axes beside N and C."""
    return Normed(_Nothing(), torch.empty([0] * 5), own)


def _next(node: fx.Node) -> fx.Node:
    """The call after a node: between them nothing runs that could change its input."""
    after = node.next
    while after.op in ("get_attr", "placeholder") or is_of_channels(after):
        after = after.next
    return after


def _stepped(value: Normed, before: fx.Node, node: fx.Node, module: Any) -> Any:
    """The pending value after a node, the only user of `before`; None if the node is no step of a chain."""
    if node.target in ROW_STEPS and len(node.args) == 2 and before in node.args:
        of_channels = any(is_of_channels(one) for one in node.args if one is not before)  # none is another of y + y
        return value.step(ROW_STEPS[node.target], (_ROW,), node.kwargs) if of_channels else None
    if not node.args or node.args[0] is not before:
        return None
    if node.op == "call_function":
        return value.step(node.target, node.args[1:], node.kwargs)
    if node.op != "call_module" or type(module).__module__ not in _STEPS:
        return None
    try:
        return module.forward(value)
    except _NoTensorError:
        return None


def _reasons(model: torch.nn.Module, steps: _Steps, swapped: Sequence[str]) -> Iterator[str]:
    """Why a chain stays as it is, though nothing else sees its values; the first reason is the one to tell."""
    convolution: Any = model.get_submodule(steps.convolution)
    norm = model.get_submodule(steps.norm)
    parts = [norm, *map(model.get_submodule, steps.between), convolution]
    arguments = norm_arguments(norm)
    if steps.convolution not in swapped:
        yield "its convolution is not swapped by this call, as its own row says"
    if convolution.transposed:
        yield "its convolution is transposed"
    if operator_of(convolution) == "depthwise_conv1d":
        yield "its convolution is of depthwise rows, which norm_act_conv1d leaves to depthwise_conv1d"
    if any("forward" in vars(part) for part in parts):
        yield "a module of it has a forward of its own"
    if isinstance(arguments, str):
        yield arguments
    elif not stored_filter(convolution).is_meta:
        try:
            is_same = _agrees(norm, steps, convolution)
        except Exception as error:  # of modules that do not go together
            yield f"raises {type(error).__name__} on a probe in float64: {error}"
        else:
            yield "" if is_same else "fused, it differs by more than rounding explains"


def _agrees(norm: torch.nn.Module, steps: _Steps, convolution: Any) -> bool:
    """Whether the fused call equals the modules in sequence, in float64."""
    alone = alone_of(norm)
    arguments = norm_arguments(alone)
    assert not isinstance(arguments, str)

    def normed(x: Tensor) -> Normed:
        found = Normed(alone, x, activation_of_norm(alone))
        generator = torch.Generator().manual_seed(1)
        for function in steps.rows:
            row = torch.randn(*x.shape[:2], *[1] * (x.dim() - 2), dtype=x.dtype, generator=generator)
            found.rows[function] = row
        found.activation, found.paddings = steps.activation, steps.paddings
        return found

    def before(x: Tensor) -> Tensor:
        return normed(x).finished(alone(x))

    def together(own: Any, x: Tensor, after: After) -> Tensor:
        return fused(normed(x), own, x, after, arguments)

    return agrees(convolution, before, together)


@torch.no_grad()
def agrees(
    convolution: Any, before: Callable[[Tensor], Tensor], together: Callable[[Any, Tensor, After], Tensor]
) -> bool:
    """Whether one call equals convolution(before(x)) + residual, in float64.

    together: that call; takes the convolution as nkiconv's, x, and its epilogue.
    """
    plain = alone_of(convolution)
    own, most = copy.deepcopy(plain), copy.deepcopy(plain)
    change_class(own, ours)
    for one in most.parameters():
        one.abs_()
    generator = torch.Generator().manual_seed(0)
    each = zip(own.kernel_size, own.dilation, own.stride, strict=True)
    extents = [(taps - 1) * gap + 2 + step for taps, gap, step in each]
    x = 2 * torch.randn(2, own.in_channels, *extents, dtype=torch.float64, generator=generator) + 1
    h = before(x)
    expected: Tensor = plain.forward(h)
    residual = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    with modes.by_torch():
        found = together(own, x, After(residual))
    limit = CLOSE * (most.forward(1 + h.abs()) + residual.abs())
    return bool(((found - expected - residual).abs() <= limit).all())


def take(model: torch.nn.Module, fusible: Sequence[Chain]) -> None:
    """Make the modules of each chain one call."""
    norms = [(name, model.get_submodule(chain.norm)) for chain in fusible for name in chain.statistics]
    always = {name for name, norm in norms if getattr(norm, "running_mean", None) is None}
    giving = {name for name, _ in norms}
    shifts = {name for chain in fusible if chain.offset for name in chain.statistics}
    ends = {name: Ends(statistics=True, training=name not in always, shifts=name in shifts) for name in giving}
    for chain in fusible:
        assert chain.convolution is not None
        norm = model.get_submodule(chain.norm)
        change_class(norm, HandsOn)
        mark(norm, Ends(statistics=bool(chain.statistics)))
        after = ends.get(chain.convolution, Ends())
        ends[chain.convolution] = after._replace(adds=chain.adds, over_one=chain.over_one)
    for name, end in ends.items():
        mark(model.get_submodule(name), end)
