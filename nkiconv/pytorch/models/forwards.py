"""Convolutions with a forward of their own, such as causal ones that pad: whether that convolves by nkiconv alone.

Found by running it on shapes without data, in the class that it would get: what it computes counts, not its name.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .flops import Counter

#: Methods in which a subclass may do something else than torch.
_METHODS = ("forward", "_conv_forward")


def own(module: torch.nn.Module, base: type) -> list[str]:
    """Names of the methods that a module, or its class, has in the place of torch's in `base`."""
    found = [name for name in _METHODS if getattr(type(module), name) is not getattr(base, name)]
    return found + [name for name in of_instance(module) if name not in found]


def of_instance(module: torch.nn.Module) -> list[str]:
    """Names of those that it has itself; they may be bound to another module, so that no copy of it can be tried."""
    return [name for name in _METHODS if name in vars(module)]


def convolves_by_nkiconv(module: Any) -> bool:
    """Whether a convolution's forward, given images of its channels, convolves, and nothing of that is torch's.

    False also where it does not run on shapes alone. The module may be changed: pass a copy.
    """
    axes = zip(module.kernel_size, module.dilation, module.stride, strict=True)
    extents = [2 * (taps - 1) * gap + 1 + step for taps, gap, step in axes]
    weight = next(module.parameters())
    x = {"dtype": weight.dtype, "device": weight.device}
    counter = Counter()
    try:
        with warnings.catch_warnings(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), counter:
            warnings.simplefilter("ignore")
            module.forward(torch.empty(1, module.in_channels, *extents, **x))
    except Exception:  # the module's own code, which may raise whatever it likes
        return False
    return counter.share.nkiconv > 0 and counter.share.torch == 0
