"""Which norms follow convolutions: their input is the output of one convolution that nothing else sees.

torch.fx's graph of the model shows that. What cannot be traced so is run once on shapes alone, with a made-up image,
while every operator is watched; of what does not run either, its parts are tried, and the order in nn.Sequential.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .norms import is_norm

Copy = Callable[[torch.nn.Module], torch.nn.Module]
#: Positions along each axis of a made-up image, the first that runs.
_EXTENTS = (64, 224)


class Pair(NamedTuple):
    """A convolution and the norm behind it."""

    convolution: str
    norm: str


def pairs(module: torch.nn.Module, prefix: str, copied: Copy) -> Iterator[tuple[Pair, str]]:
    """(pair, how it was found) below a module of the model, whose names begin with `prefix`."""
    if is_norm(module) or not any(is_norm(one) for one in module.modules()):
        return
    for how, find in (("traced", _traced), ("watched", _watched)):
        found = find(module, copied)
        if found is not None:
            yield from ((Pair(prefix + one, prefix + other), how) for one, other in sorted(found))
            return
    if type(module).forward is torch.nn.Sequential.forward and "forward" not in vars(module):
        for (name, one), (following, other) in itertools.pairwise(module._modules.items()):
            if isinstance(one, _ConvNd) and other is not None and is_norm(other):
                yield Pair(prefix + name, prefix + following), "by order"
    for name, child in module.named_children():
        yield from pairs(child, f"{prefix}{name}.", copied)


def _traced(module: torch.nn.Module, copied: Copy) -> set[Pair] | None:
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
    """torch.fx's, for which every convolution and every norm is one node."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _ConvNd) or is_norm(m) or super().is_leaf_module(m, module_qualified_name)


def _of_graph(graph: fx.Graph, kinds: Mapping[str, torch.nn.Module]) -> Iterator[Pair]:
    """Norms of a convolution's result, where both are called once, and nothing else sees the result."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    for node in graph.nodes:
        before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not (isinstance(before, fx.Node) and node.op == before.op == "call_module"):
            continue
        one, other = str(before.target), str(node.target)
        if not (isinstance(kinds[one], _ConvNd) and is_norm(kinds[other])):
            continue
        once = calls[before.target] == calls[node.target] == len(before.users) == 1
        if once and len(before.args) == 1 and read.isdisjoint((one, other)):
            yield Pair(one, other)


def _watched(module: torch.nn.Module, copied: Copy) -> set[Pair] | None:
    """The pairs of one run on shapes alone; None where the module does not run on one made-up image."""
    first = next((one for one in module.modules() if isinstance(one, _ConvNd)), None)
    if first is None or isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        return None
    for extent in _EXTENTS:
        alone = copied(module)
        watch = _Watch(alone)
        shape = (1, first.in_channels, *[extent] * len(first.kernel_size))
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), watch:
            try:
                outputs = alone(torch.empty(shape, dtype=first.weight.dtype, device=first.weight.device))
            except Exception:  # the module's own code, which may raise whatever it likes
                continue
        return set(watch.pairs(outputs))
    return None


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees who makes and who reads the results of convolutions, and who reads parameters of either."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running: list[str] = []
        self.calls: Counter[str] = Counter()
        self.made: dict[int, tuple[str, Tensor]] = {}  # results, by id; held, so that no id comes twice
        self.norms: dict[str, str] = {}  # the convolution whose result a norm was given
        self.spoilt: set[str] = set()  # whose results or parameters others see
        self.owners: dict[int, str] = {}
        for name, module in model.named_modules():
            if isinstance(module, _ConvNd) or is_norm(module):
                self.owners |= {id(one): name for one in (*module.parameters(), *module.buffers())}
                module.register_forward_pre_hook(self._enter(name), with_kwargs=True)
                module.register_forward_hook(self._leave(name, isinstance(module, _ConvNd)))

    def _enter(self, name: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.calls[name] += 1
            given = self.made.get(id(args[0])) if len(args) == 1 and not named else None
            if is_norm(module) and given is not None:
                self.norms[name] = given[0]
            self.running.append(name)

        return hook

    def _leave(self, name: str, convolves: bool) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            self.running.pop()
            if convolves and isinstance(output, Tensor):
                self.made[id(output)] = (name, output)

        return hook

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and see what it reads."""
        for one in tree_leaves((args, kwargs or {})):
            maker, owner = self.made.get(id(one)), self.owners.get(id(one))
            if maker is not None and not any(self.norms.get(name) == maker[0] for name in self.running):
                self.spoilt.add(maker[0])
            if owner is not None and owner not in self.running:
                self.spoilt.add(owner)
        return func(*args, **(kwargs or {}))

    def pairs(self, outputs: Any) -> Iterator[Pair]:
        """What was seen; outputs: of the model, which sees what it returns."""
        for one in tree_leaves(outputs):
            if id(one) in self.made:
                self.spoilt.add(self.made[id(one)][0])
        norms = Counter(self.norms.values())
        for norm, convolution in self.norms.items():
            once = self.calls[norm] == self.calls[convolution] == norms[convolution] == 1
            if once and self.spoilt.isdisjoint((norm, convolution)):
                yield Pair(convolution, norm)
