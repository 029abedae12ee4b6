"""Batch norms that follow convolutions, in eval mode: how they are found, and multiplied into filters and bias.

A batch norm may go where its input is the output of one convolution that nothing else sees. torch.fx's graph of the
model shows that; of what cannot be traced, the graphs of its parts do, and the order in nn.Sequential.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ...errors import NkiconvError, UnsupportedError
from .report import Fold

Copy = Callable[[torch.nn.Module], torch.nn.Module]
_SHOWN = 3
#: The batch norm of each rank of filters; SyncBatchNorm is any rank's.
_OF_RANK = {3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Pair(NamedTuple):
    """A convolution and the batch norm behind it."""

    convolution: str
    batchnorm: str


def violations(model: torch.nn.Module) -> Iterator[NkiconvError]:
    """Why nothing may be folded: modules in training mode, where batch norms use the batch's own statistics."""
    training = [name or "the model" for name, module in model.named_modules() if module.training]
    if training:
        names = ", ".join(training[:_SHOWN]) + (f" and {len(training) - _SHOWN} more" if training[_SHOWN:] else "")
        yield UnsupportedError(f"fold_batchnorm=True: needs eval mode, and {names} are in training; call model.eval()")


def find(model: torch.nn.Module, swapped: Sequence[str], copied: Copy) -> tuple[Fold, ...]:
    """What is to become of every batch norm; swapped: names of the convolutions that may take one."""
    before = {pair.batchnorm: (pair.convolution, how) for pair, how in _pairs(model, "", copied)}
    places = Counter(id(module) for _name, module in model.named_modules(remove_duplicate=False))
    owners = Counter(id(one) for module in model.modules() for one in module.parameters(recurse=False))
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        if name not in before:
            found.append(Fold(name, None, reason="does not follow one convolution that nothing else sees"))
            continue
        convolution, how = before[name]
        reason = "its convolution stays in torch"
        if convolution in swapped:
            reason = "; ".join(_reasons(model.get_submodule(convolution), module, places, owners))
        found.append(Fold(name, convolution, how, reason))
    return tuple(found)


def _reasons(convolution: Any, norm: _BatchNorm, places: Counter[int], owners: Counter[int]) -> Iterator[str]:
    """Why a pair stays as it is."""
    wanted = (_OF_RANK[2 + len(convolution.kernel_size)], torch.nn.SyncBatchNorm)
    if type(norm) not in wanted or "forward" in vars(norm):
        yield f"is a {type(norm).__name__}, which is not {wanted[0].__name__}"
    if norm.running_mean is None or norm.running_var is None:
        yield "has no running statistics"
    elif norm.num_features != convolution.out_channels:
        yield f"has {norm.num_features} channels, its convolution {convolution.out_channels}"
    if any(getattr(module, hooks) for module in (convolution, norm) for hooks in _HOOKS):
        yield "it or its convolution has hooks, which would see other values"
    if parametrize.is_parametrized(convolution) or convolution._parameters.get("weight") is None:
        yield "its convolution's weight is not a plain parameter"
    elif any(owners[id(one)] > 1 for one in convolution.parameters(recurse=False)):
        yield "its convolution shares parameters with another module"
    if max(places[id(convolution)], places[id(norm)]) > 1:
        yield "it or its convolution is in several places of the model"


def _pairs(module: torch.nn.Module, prefix: str, copied: Copy) -> Iterator[tuple[_Pair, str]]:
    """(pair, how it was found) below a module of the model, whose names begin with `prefix`."""
    if not any(isinstance(one, _BatchNorm) for one in module.modules()) or isinstance(module, _BatchNorm):
        return
    traced = _traced(module, copied)
    if traced is not None:
        yield from ((_Pair(prefix + one, prefix + other), "traced") for one, other in sorted(traced))
        return
    if type(module).forward is torch.nn.Sequential.forward and "forward" not in vars(module):
        for (name, one), (following, other) in itertools.pairwise(module._modules.items()):
            if isinstance(one, _ConvNd) and isinstance(other, _BatchNorm):
                yield _Pair(prefix + name, prefix + following), "by order"
    for name, child in module.named_children():
        yield from _pairs(child, f"{prefix}{name}.", copied)


def _traced(module: torch.nn.Module, copied: Copy) -> set[_Pair] | None:
    """The pairs of a module's graph; None where it has none.

    An argument with a default is a tensor in one trace and its default in another: pairs are those of both.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        graphs = [_Tracer().trace(copied(module))]
        if defaults:
            graphs.append(_Tracer().trace(copied(module), concrete_args=defaults))
    except Exception:  # it is the model's code that runs on fx's proxies, and may raise whatever it likes
        return None
    kinds = dict(module.named_modules())
    return set.intersection(*(set(_of_graph(graph, kinds)) for graph in graphs))


class _Tracer(fx.Tracer):
    """torch.fx's, for which every convolution is one node."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (_ConvNd, _BatchNorm)) or super().is_leaf_module(m, module_qualified_name)


def _of_graph(graph: fx.Graph, kinds: Mapping[str, torch.nn.Module]) -> Iterator[_Pair]:
    """Batch norms of a convolution's result, where both are called once, and nothing else sees the result."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    for node in graph.nodes:
        before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not (isinstance(before, fx.Node) and node.op == before.op == "call_module"):
            continue
        one, other = str(before.target), str(node.target)
        if not (isinstance(kinds[one], _ConvNd) and isinstance(kinds[other], _BatchNorm)):
            continue
        once = calls[before.target] == calls[node.target] == len(before.users) == 1
        if once and len(before.args) == 1 and read.isdisjoint((one, other)):
            yield _Pair(one, other)


def fold(model: torch.nn.Module, asked: Fold) -> None:
    """Multiply a batch norm into its convolution, in float64 and rounded once; an Identity takes its place."""
    assert asked.convolution is not None
    convolution: Any = model.get_submodule(asked.convolution)
    norm: Any = model.get_submodule(asked.batchnorm)
    with torch.no_grad():
        statistics = norm.running_mean.double(), norm.running_var.double(), norm.eps
        scales = _double(norm.weight), _double(norm.bias)
        weight, bias = fuse_conv_bn_weights(
            convolution.weight.double(), _double(convolution.bias), *statistics, *scales
        )
    learns, dtype = convolution.weight.requires_grad, convolution.weight.dtype
    convolution.weight = torch.nn.Parameter(weight.detach().to(dtype), learns)
    convolution.bias = torch.nn.Parameter(bias.detach().to(dtype), learns)
    parent, _dot, last = asked.batchnorm.rpartition(".")
    setattr(model.get_submodule(parent), last, torch.nn.Identity().train(norm.training))


def _double(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.double()
