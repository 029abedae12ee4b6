"""Pairs of convolution and norm: the norm is the only reader of the convolution's output, for all inputs of the model.

torch.fx's graphs of the model prove that. Where a forward branches on its inputs, such as an image's size, each path is
a graph, and a pair must be one in all of them. A module that torch.fx cannot trace is one call in the graph of the
module around it; its own graphs prove its parts, as long as no code reaches past it. A module without graphs proves
nothing about its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn.modules.conv import _ConvNd

from .norms import is_norm
from .uses import called_whole
from .ways import Copy, UntraceableError, graphs_of

#: Modules by their names in a region.
Kinds = Mapping[str, torch.nn.Module]


class Pair(NamedTuple):
    """A convolution and the norm that follows it."""

    convolution: str
    norm: str


@dataclass
class Found:
    """The pairs of a model, and why there can be none inside of some modules."""

    pairs: list[Pair] = field(default_factory=list)
    unproved: dict[str, str] = field(default_factory=dict)  # by the module's name

    def why_not(self, norm: str) -> str:
        """Why a norm is in no pair."""
        around = [name for name in self.unproved if not name or norm.startswith(f"{name}.")]
        if around:
            return self.unproved[max(around, key=len)]
        return "does not follow one convolution that nothing else sees"


Wanted = Callable[[torch.nn.Module], bool]


def pairs(model: torch.nn.Module, copied: Copy) -> Found:
    """The proved pairs of a model."""
    regions, unproved = regions_of(model, copied, is_norm)
    found = Found(unproved=unproved)
    for region in regions:
        seen = [_Graph(graph, region.kinds) for graph in region.graphs]
        for pair in sorted(set().union(*(graph.pairs for graph in seen))):
            if all(pair in graph.pairs or graph.used.isdisjoint(pair) for graph in seen):
                found.pairs.append(Pair(region.prefix + pair.convolution, region.prefix + pair.norm))
    return found


@dataclass(frozen=True)
class Region:
    """A module that others call as a whole, so that a proof about its parts by its own graphs holds in the model."""

    prefix: str  # of names in it
    graphs: list[fx.Graph]
    kinds: Kinds

    @property
    def nodes(self) -> Iterator[fx.Node]:
        """Of all its graphs."""
        return (node for graph in self.graphs for node in graph.nodes)


def module_of(node: Any, kinds: Kinds) -> torch.nn.Module | None:
    """The module that a node calls; None of others, and of what is no node."""
    return kinds[str(node.target)] if isinstance(node, fx.Node) and node.op == "call_module" else None


def regions_of(
    model: torch.nn.Module, copied: Copy, wanted: Wanted, every_call: bool = True
) -> tuple[list[Region], dict[str, str]]:
    """(regions with `wanted` modules, the reason why a module has no graph by its name).

    every_call: whether only the graphs may call parts of a region, for any *args and **kwargs; without it a region is
    any module whose forward has graphs.
    """
    regions, unproved = list[Region](), dict[str, str]()

    def add(module: torch.nn.Module, name: str) -> None:
        if wanted(module) or not any(wanted(one) for one in module.modules()):
            return
        prefix = f"{name}." if name else ""
        try:
            graphs, whole = graphs_of(module, copied, every_call)
            if not graphs and not every_call:  # as of models that are called by other methods
                raise UntraceableError("its forward raises an error whatever it is given")
        except UntraceableError as error:
            for part in called_whole(module) if every_call else dict(module.named_children()):
                add(module.get_submodule(part), prefix + part)
            unproved[name] = f"torch.fx cannot trace {name or 'the model'}, which runs it: {error}"
            return
        regions.append(Region(prefix, graphs, dict(module.named_modules())))
        used = {one for graph in graphs for one in (*_calls(graph), *_read(graph))}
        closed = [inner for inner, part in module.named_modules() if inner and type(part) in whole]
        for inner in closed:
            if any(inner.startswith(f"{outer}.") for outer in closed):
                continue
            if every_call and any(one.startswith(f"{inner}.") for one in used):
                unproved[prefix + inner] = f"{name or 'the model'} reaches into {prefix}{inner}, around its forward"
            else:
                add(module.get_submodule(inner), prefix + inner)

    add(model, "")
    return regions, unproved


def _calls(graph: fx.Graph) -> Counter[str]:
    """How often a graph calls each module."""
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_module")


def _read(graph: fx.Graph) -> set[str]:
    """The modules whose tensors a graph reads."""
    return {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}


class _Graph:
    """Which modules one graph calls or reads, and its pairs."""

    def __init__(self, graph: fx.Graph, kinds: Kinds) -> None:
        self.calls, self.read = _calls(graph), _read(graph)
        self.used = self.calls.keys() | self.read
        self.pairs = {pair for node in graph.nodes for pair in self._pair(node, kinds)}

    def _pair(self, node: fx.Node, kinds: Kinds) -> Iterator[Pair]:
        """A norm of a convolution's result, where both are called once, and nothing else sees the result."""
        before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not (isinstance(before, fx.Node) and node.op == before.op == "call_module"):
            return
        pair = Pair(str(before.target), str(node.target))
        if not (isinstance(kinds[pair.convolution], _ConvNd) and is_norm(kinds[pair.norm])):
            return
        once = self.calls[pair.convolution] == self.calls[pair.norm] == len(before.users) == 1
        if once and len(before.args) == 1 and self.read.isdisjoint(pair):
            yield pair
