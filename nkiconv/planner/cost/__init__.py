"""Cost models: what each algorithm takes on a target, and which settings it takes best.

One file an algorithm, under its operation's family and its own name; each has an `ALGORITHM`. Prices are here, and in
the simulator's timing, and nowhere else.
"""

from __future__ import annotations

import functools
from importlib import import_module

from ...schedules.planes import BY_CHANNELS
from .algorithm import Algorithm
from .algorithm import symbols_of as symbols_of
from .conv.planes import OfVolumes

#: The folder of an operation's algorithms, here and among the kernels, where it is not conv.
_FAMILIES = {"depthwise_conv1d": "depthwise_conv1d"} | dict.fromkeys(
    ("depthwise_conv1d_weight", "conv2d_weight", "conv3d_weight"), "gradients"
)


@functools.cache
def algorithm(operation: str, name: str) -> Algorithm:
    """An algorithm by the names that the operation's kernel knows it by."""
    module = import_module(f"{__name__}.{_FAMILIES.get(operation, 'conv')}.{name}")
    if operation in ("conv3d", "conv_transpose3d") and name in BY_CHANNELS:
        return OfVolumes(module.ALGORITHM)
    found: Algorithm = module.ALGORITHM
    return found
