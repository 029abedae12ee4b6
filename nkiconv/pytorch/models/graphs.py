"""Convolutions in graphs of torch.fx, as `torch.export` and `torch.fx.symbolic_trace` give them: calls of functions,
which stay nkiconv's in copies of the graph and in files, where a class of its own would not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from .intercept import FUNCTIONS, taken
from .report import Entry

#: How a convolution of a graph is nkiconv's.
TAKEN = "a call in its graph, which is nkiconv's"
LEFT = "is a call in a graph, and functional=False leaves such calls to torch"


def entries(model: torch.nn.Module, functional: bool) -> Iterator[Entry]:
    """The convolutions that graphs of a model call as functions; functional: whether they are to be nkiconv's."""
    for name, graph in _graphs(model):
        for node, function in _calls(graph):
            reason, taken = ("", TAKEN) if functional else (LEFT, "")
            operator = function if functional and function != "convolution" else None
            where = f"{name}.{node.name}".lstrip(".")
            yield Entry(where, str(node.target), _shape(node), operator, reason, function=taken)


def take(model: torch.nn.Module, strict_nonfinite: bool | None) -> None:
    """Let the graphs of a model call nkiconv's functions, with such a strict_nonfinite."""
    for _name, graph in _graphs(model):
        calls = [*_calls(graph)]
        for node, function in calls:
            node.target = taken(function)
            if strict_nonfinite is not None:
                node.kwargs = {**node.kwargs, "strict_nonfinite": strict_nonfinite}
        if calls:
            graph.recompile()


def _graphs(model: torch.nn.Module) -> Iterator[tuple[str, fx.GraphModule]]:
    for name, module in model.named_modules():
        if isinstance(module, fx.GraphModule):
            yield name, module


def _calls(graph: fx.GraphModule) -> Iterator[tuple[fx.Node, str]]:
    """(node, name of the function in `torch`) of each convolution."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in FUNCTIONS and "out" not in node.kwargs:
            yield node, FUNCTIONS[node.target]


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Of a call's filter, where torch.export has noted it."""
    weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    value = weight.meta.get("val") if isinstance(weight, fx.Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
