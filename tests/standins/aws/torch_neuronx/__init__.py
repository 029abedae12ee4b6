"""Stands for torch-neuronx of SDK 2.33: `nki_op`, whose body torch.compile traces, and `wrap_nki`, by which a launch is
one node of the graph, `torch.ops.neuron_standin.launch`.

torch's own `triton_op` registers operators in the same way: it traces their bodies where operators become functional.
"""

from collections.abc import Sequence

import nki
import torch

from nkiconv.simulator import ArraySpec
from nkiconv.simulator import simulate as simulated

nki_op = torch.library.triton_op

#: What each node launches: kernel, cores, names of its tensors, and its compile-time arguments.
calls = []


def wrap_nki(kernel):
    """A kernel that torch.compile can see."""
    return Wrapped(kernel, None)


class Wrapped:
    """A kernel on so many cores."""

    def __init__(self, kernel, lnc):
        self.kernel, self.lnc = kernel, lnc

    def __getitem__(self, lnc):
        return Wrapped(self.kernel, lnc)

    def __call__(self, *args, **kwargs):
        given = nki.arguments(self.kernel.func, args, kwargs)
        tensors = {name: one for name, one in given.items() if isinstance(one, torch.Tensor)}
        constants = {name: one for name, one in given.items() if name not in tensors}
        nki.require_plain(constants)
        call = (self.kernel, self.lnc, tuple(tensors), constants)
        if call not in calls:
            calls.append(call)
        found = torch.ops.neuron_standin.launch(list(tensors.values()), calls.index(call))
        return found[0] if len(found) == 1 else tuple(found)


@torch.library.custom_op("neuron_standin::launch", mutates_args=())
def launch(tensors: Sequence[torch.Tensor], call: int) -> list[torch.Tensor]:
    """Run a kernel."""
    kernel, lnc, names, constants = calls[call]
    found = (kernel if lnc is None else kernel[lnc])(**dict(zip(names, tensors, strict=True)), **constants)
    return list(found) if isinstance(found, tuple) else [found]


@launch.register_fake
def _(tensors, call):
    kernel, lnc, names, constants = calls[call]
    specs = {}
    for name, tensor in zip(names, tensors, strict=True):
        specs[name] = ArraySpec(tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch."))
    found = simulated(kernel[lnc].on_cores(), trace_only=True)(**specs, **constants)
    found = found if isinstance(found, tuple) else (found,)
    return [tensors[0].new_empty(one.shape, dtype=getattr(torch, str(one.dtype))) for one in found]


def launches_of(graph):
    """The `nki.Launch` of each launch node of a torch.fx graph, in order."""
    found = []
    for node in graph.nodes:
        if node.target is torch.ops.neuron_standin.launch.default:
            tensors, call = node.args
            kernel, lnc, names, constants = calls[call]
            shapes = {name: tuple(one.meta["val"].shape) for name, one in zip(names, tensors, strict=True)}
            found.append(nki.Launch(kernel.func.__name__, lnc, shapes, constants))
    return found
