"""The sum after a convolution that its call may take, and the norm that reads its result, from graphs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ..fused_module import operator_of
from ..norm_act_modules import is_hooked
from . import videos
from .follows import Kinds, Region, module_of
from .fusing import is_channel_norm, norm_arguments, takes_statistics
from .report import Chain
from .ways import Copy, UntraceableError, graphs_of

SUMS = (operator.add, operator.iadd, torch.add)
#: Operators whose results are values per channel if their inputs are.
_OF_ROWS = (operator.add, operator.mul, torch.chunk, "chunk")
#: Modules that may run between a convolution and the reader of its result: they change nothing in place.
_HARMLESS = (_ConvNd, torch.nn.Identity)
_THROUGH = (torch.nn.Identity, torch.nn.modules.dropout._DropoutNd)
#: How classes and functions of timm, torchvision and transformers end that return their input in eval mode.
_DEPTHS = ("DropPath", "StochasticDepth", "stochastic_depth")
#: Methods that may return the tensor itself.
_PERHAPS_ITSELF = ("to", "contiguous")


def only_user(node: fx.Node) -> fx.Node | None:
    """All that sees a value, where that is one node."""
    [*users] = node.users
    return users[0] if len(users) == 1 else None


def sum_after(convolution: fx.Node, kinds: Kinds) -> fx.Node | None:
    """The sum with something else, not of fewer axes or rows, where that is all that sees a convolution's result."""
    node = only_user(convolution)
    if node is None or other_term(node, convolution) is None or are_hooked(convolution, node, kinds):
        return None
    return node if nothing_changes(convolution, node, kinds) else None


def other_term(total: fx.Node, term: fx.Node) -> fx.Node | None:
    """The other term of a node that adds to `term`, if the call of `term` may take the sum: not if it has fewer axes or
    rows than the sum, nor if the sum changes it in place."""
    if total.target not in SUMS or total.kwargs or len(total.args) != 2:
        return None
    first, second = total.args
    other = second if first is term else first
    if not isinstance(other, fx.Node) or other is term or (total.target is operator.iadd and first is not term):
        return None
    return None if other.target is operator.getitem else other  # a row or a column of a broadcast


def is_of_channels(node: Any) -> bool:
    """Whether a node computes values per channel, out of place: parts, sums and products of tensors that an index gives
    further axes."""
    if not isinstance(node, fx.Node) or node.target not in (operator.getitem, *_OF_ROWS):
        return False
    if node.target is operator.getitem:
        has_new_axes = isinstance(node.args[1], tuple) and None in node.args[1]
        return has_new_axes or is_of_channels(node.args[0])
    terms = [one for one in node.args if isinstance(one, fx.Node)]
    return len(terms) == 1 and is_of_channels(terms[0])


def modules_around(node: fx.Node) -> set[str]:
    """Names of the modules whose forward a call is in."""
    return {name for name, _ in node.meta.get("nn_module_stack", {}).values()}


def are_hooked(first: fx.Node, last: fx.Node, kinds: Kinds) -> bool:
    """Whether a module that a value leaves or enters from one call to another has hooks, which would see it."""
    between = modules_around(first) ^ modules_around(last)
    return is_hooked(*(kinds[name] for name in between))


def quotient_after(node: fx.Node) -> fx.Node | None:
    """The division by 1 where that is all that sees a value."""
    after = only_user(node)
    if after is None or after.target is not operator.truediv or after.args[0] is not node:
        return None
    return after if type(after.args[1]) in (int, float) and after.args[1] == 1 else None


def nothing_changes(
    first: fx.Node, last: fx.Node, kinds: Kinds, passes: Callable[[fx.Node], bool] = lambda _: False
) -> bool:
    """Whether nothing between two nodes changes a tensor in place; passes: tells other calls that do not."""
    between = itertools.takewhile(lambda one: one is not last, _after(first))
    return all(_is_harmless(one, kinds) or passes(one) for one in between)


def is_through(node: fx.Node, kinds: Kinds) -> bool:
    """Whether a call returns its first argument in eval mode: dropout and stochastic depth."""
    module = module_of(node, kinds)
    called: Any = node.target if module is None else type(module)
    return getattr(called, "__name__", "").endswith(_DEPTHS) or (
        isinstance(called, type) and issubclass(called, _THROUGH)
    )


def _after(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def _is_harmless(node: fx.Node, kinds: Kinds) -> bool:
    module = module_of(node, kinds)
    return (
        isinstance(module, _HARMLESS)
        or is_channel_norm(module)
        or node.target is F.pad
        or node.op in ("get_attr", "placeholder")
        or (node.op == "call_method" and node.target in _PERHAPS_ITSELF)
    )


def of_norms(
    model: torch.nn.Module, regions: Sequence[Region], chains: Sequence[Chain], swapped: Sequence[str], copied: Copy
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """(sources by norm, the norms that read theirs with a value per channel added).

    The sources of a fused norm with statistics are convolutions: in every graph that calls the norm, they write its
    input, and in every graph that calls the convolution, such norms read its result.

    chains: of the model; swapped: names of the convolutions that are nkiconv's.
    """
    fused = {chain.norm: model.get_submodule(chain.norm) for chain in chains if chain.fused}
    wanted = {name for name, norm in fused.items() if takes_statistics(norm_arguments(norm))}
    ends = {chain.convolution: chain for chain in chains if chain.fused}
    giving = {name for name in swapped if _can_give(model.get_submodule(name))}
    read: dict[str, set[str | None]] = {}  # the convolutions of all calls of a norm
    calls: dict[str, list[bool]] = {}  # whether a norm reads the result, for all calls of a convolution
    shifted = set[str]()
    for region in regions:
        written = _Written(region, ends, copied)
        for graph in region.graphs:
            norms = [node for node in graph.nodes if written.name(node) in wanted]
            sources = [written.source(node) for node in norms]
            shifted |= {written.name(node) for node in norms if written.shifted(node) is not None}
            for node, source in zip(norms, sources, strict=True):
                read.setdefault(written.name(node), set()).add(None if source is None else written.by(source))
            for node in graph.nodes:
                if node.op == "call_module" and (name := written.by(node)) is not None:
                    calls.setdefault(name, []).append(node in sources)
    giving = {name for name in giving if all(calls.get(name, [False]))}
    known = {norm: tuple(sorted(map(str, names))) for norm, names in read.items() if names <= giving}
    return known, shifted


def _can_give(convolution: Any) -> bool:
    """Whether a kernel returns statistics; that of depthwise rows and the forwards of videos do not."""
    depthwise = operator_of(convolution) == "depthwise_conv1d"
    return not (depthwise or videos.forward_of(type(convolution)) is not None)


class _Written:
    """The writers of the tensors in a region's graphs; ends: chains by their convolution."""

    def __init__(self, region: Region, ends: Mapping[str | None, Chain], copied: Copy) -> None:
        self.region, self.ends, self.copied = region, ends, copied
        self.returned: dict[str, str | None] = {}

    def name(self, node: fx.Node) -> str:
        """Of a module that is called; "" of other nodes, which is no norm's or convolution's in a region."""
        return f"{self.region.prefix}{node.target}" if node.op == "call_module" else ""

    def by(self, node: fx.Node) -> str | None:
        """The convolution whose result a call of a module returns."""
        target = str(node.target)
        module = self.region.kinds[target]
        if isinstance(module, _ConvNd):
            return f"{self.region.prefix}{target}"
        if len(node.args) != 1 or node.kwargs:
            return None
        if target not in self.returned:
            self.returned[target] = _returned(module, self.copied)
        inner = self.returned[target]
        return None if inner is None else f"{self.region.prefix}{target}.{inner}"

    def source(self, norm: fx.Node) -> fx.Node | None:
        """The call that writes a norm's input, alone or with the sum in it."""
        kinds, node = self.region.kinds, norm.args[0]
        while isinstance(node, fx.Node) and node.op == "call_method" and node.target in _PERHAPS_ITSELF:
            node = node.args[0]
        if not isinstance(node, fx.Node) or not nothing_changes(node, norm, kinds):
            return None
        if node.op == "call_module":
            end = self.ends.get(self.name(node))
            return node if self.by(node) is not None and (end is None or not end.adds) else None
        if (shifted := self.shifted(norm)) is not None:
            return shifted
        total = node.args[0] if node.target is operator.truediv else node
        if not isinstance(total, fx.Node):
            return None
        for one in total.args:
            end = self.ends.get(self.name(one)) if isinstance(one, fx.Node) else None
            if isinstance(one, fx.Node) and end is not None and end.adds and sum_after(one, kinds) is total:
                is_quotient = end.over_one and quotient_after(total) is node
                return one if node is total or is_quotient else None
        return None

    def shifted(self, norm: fx.Node) -> fx.Node | None:
        """The call of a convolution whose sum with a broadcast term has a norm as its only reader."""
        total = norm.args[0]
        if not isinstance(total, fx.Node) or total.target not in SUMS or total.kwargs or only_user(total) is not norm:
            return None
        kinds = self.region.kinds
        for one, other in (total.args, total.args[::-1]):
            is_row = isinstance(other, fx.Node) and other.target is operator.getitem
            if not is_row or not isinstance(one, fx.Node) or only_user(one) is not total:
                continue
            if isinstance(module_of(one, kinds), _ConvNd) and not are_hooked(one, norm, kinds):
                return one
        return None


def _returned(module: torch.nn.Module, copied: Copy) -> str | None:
    """The convolution in a module, by its name there, whose result all ways through its forward return,
    given one argument."""
    if not any(isinstance(one, _ConvNd) for one in module.modules()) or type(module).__module__.startswith("torch.nn"):
        return None
    try:
        graphs, _ = graphs_of(module, copied, with_extras=False, by_default=True)
    except UntraceableError:
        return None
    kinds, found = dict(module.named_modules()), set[str | None]()
    for graph in graphs:
        [end] = [node for node in graph.nodes if node.op == "output"]
        node = end.args[0]
        is_last = isinstance(module_of(node, kinds), _ConvNd) and only_user(node) is end
        found.add(str(node.target) if is_last else None)
    return found.pop() if len(found) == 1 else None
