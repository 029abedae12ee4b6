"""Stands for AWS's `nki`: nkiconv's simulator under its name, with a list of what is launched.

Kernels are as AWS's are in what callers notice: they have no hash, and take compile-time arguments of Python's own
types only.
"""

import inspect
import sys
from dataclasses import dataclass, field

from nkiconv.simulator import isa, language
from nkiconv.simulator import jit as simulated_jit
from nkiconv.simulator import simulate as simulate_simulated

sys.modules["nki.isa"], sys.modules["nki.language"] = isa, language

#: Every launch on data, in order.
launches = []
PLAIN = (int, bool, str, float, type(None))


@dataclass(frozen=True)
class Launch:
    """What a kernel was called with: shapes of its tensors, and its compile-time arguments, by name."""

    kernel: str
    lnc: int
    shapes: dict
    constants: dict


@dataclass
class Kernel:
    """A jitted kernel, on `lnc` cores."""

    func: object
    lnc: int | None = None
    inner: object = field(init=False, compare=False)

    def __post_init__(self):
        self.inner = simulated_jit(self.func)

    def __getitem__(self, lnc):
        return Kernel(self.func, lnc)

    def __call__(self, *args, **kwargs):
        given = arguments(self.func, args, kwargs)
        launches.append(note(self.func, self.lnc, given))
        return self.on_cores()(**given)

    def on_cores(self):
        """What the simulator runs; without a grid NEURON_LOGICAL_NC_CONFIG says on how many cores."""
        return self.inner if self.lnc is None else self.inner[self.lnc]


def arguments(function, args, kwargs):
    """Arguments of a call by name, without those that have their default."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)


def note(function, lnc, given):
    """The `Launch` of arguments by name. Raises TypeError for compile-time arguments that are not Python's own."""
    shapes = {name: tuple(one.shape) for name, one in given.items() if hasattr(one, "shape")}
    constants = {name: one for name, one in given.items() if name not in shapes}
    require_plain(constants)
    return Launch(function.__name__, lnc, shapes, constants)


def require_plain(constants):
    """Refuse values that NKI's compiler would not know."""
    for name, value in constants.items():
        todo = [value]
        while todo:
            one = todo.pop()
            if type(one) is tuple:
                todo += one
            elif type(one) not in PLAIN:
                raise TypeError(f"{name}={value!r}: {type(one)} is no compile-time argument")


def jit(func=None):
    """AWS's decorator."""
    return Kernel(func) if func is not None else Kernel


def simulate(kernel):
    """AWS's simulator."""
    return simulate_simulated(kernel.on_cores())
