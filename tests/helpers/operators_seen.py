"""Which operators run. With one that looks on they are nkiconv's, without one torch's own where torch computes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Seen(TorchDispatchMode):
    """The operators that run, in order, and what they are given."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    @property
    def names(self):
        return [func.name() for func, *_ in self.calls]

    @property
    def nkiconvs(self):
        return [one for one in self.calls if one[0].namespace == "nkiconv"]

    @property
    def convolutions(self):
        """Those that convolve, and nkiconv's for gradients of filters, but not torch's."""
        return [name for name in self.names if "conv" in name and "backward" not in name]

    @property
    def only_nkiconvs(self):
        return are_nkiconvs(self.convolutions)


def seen(function, *args, **named):
    """(result, names of the convolutions that ran)."""
    with Seen() as mode:
        y = function(*args, **named)
    return y, mode.convolutions


def are_nkiconvs(names):
    """Whether there were convolutions and all were nkiconv's."""
    return {name.partition("::")[0] for name in names} == {"nkiconv"}


def assert_nkiconvs(call, expected, names=None):
    """A call has this result, and all its convolutions are nkiconv's, these where they are named."""
    y, found = seen(call)
    assert are_nkiconvs(found) if names is None else found == names
    assert torch.equal(y, expected)
