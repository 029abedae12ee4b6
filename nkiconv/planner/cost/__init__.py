"""Cost models: what each algorithm takes on a target, and which settings it takes best.

One file an algorithm, under its operation's family and its own name; each has an `ALGORITHM`. Prices are here, and in
the simulator's timing, and nowhere else. Of an algorithm without a file the declared settings are known, `SETTINGS` of
its schedule.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec

from ... import schedules
from ...schedules.planes import BY_CHANNELS
from .algorithm import Algorithm, Declared
from .conv.planes import OfVolumes

#: The folder of an operation's algorithms, here and among the kernels, where it is not conv.
_FAMILIES = {"depthwise_conv1d": "depthwise_conv1d"} | dict.fromkeys(
    ("depthwise_conv1d_weight", "conv2d_weight", "conv3d_weight"), "gradients"
)


@functools.cache
def algorithm(operation: str, name: str) -> Algorithm:
    """An algorithm by the names that the operation's kernel knows it by."""
    module = f"{__name__}.{_FAMILIES.get(operation, 'conv')}.{name}"
    if find_spec(module) is None:
        return Declared(import_module(f"{schedules.__name__}.{name}").SETTINGS)
    found: Algorithm = import_module(module).ALGORITHM
    if operation in ("conv3d", "conv_transpose3d") and name in BY_CHANNELS:
        return OfVolumes(name, found)
    return found
