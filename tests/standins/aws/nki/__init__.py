"""Stands for AWS's `nki`: nkiconv's simulator under its name, with a list of what is launched.

Kernels are as AWS's are in what callers notice: they have no hash, and take compile-time arguments of Python's own
types only. Where NKI_ARTIFACTS_DIR is set before the import, a launch leaves a NEFF there, a JSON document, and then
finds no device. NKI_STANDIN=wrong has `simulate` give a wrong result, raise has loads fail inside kernels.
"""

import dataclasses
import inspect
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nkiconv.simulator import ArraySpec, compiler, isa, language
from nkiconv.simulator import jit as simulated_jit
from nkiconv.simulator import simulate as simulate_simulated

sys.modules["nki.isa"], sys.modules["nki.language"], sys.modules["nki.compiler"] = isa, language, compiler

#: Every launch on data, in order.
launches = []
ARTIFACTS, FAULT = os.environ.get("NKI_ARTIFACTS_DIR"), os.environ.get("NKI_STANDIN", "")
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
    compile_config: compiler.CompileConfig | None = None
    inner: object = field(init=False, compare=False)

    def __post_init__(self):
        self.inner = simulated_jit(self.func)

    def __getitem__(self, lnc):
        return dataclasses.replace(self, lnc=lnc)

    def __call__(self, *args, **kwargs):
        given = arguments(self.func, args, kwargs)
        if ARTIFACTS is not None:
            compiled(self, given)
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


def compiled(kernel, given):
    """Leave the NEFF of a launch, and fail to run it."""
    constants = {name: one for name, one in given.items() if not hasattr(one, "shape")}
    require_plain(constants)
    specs = {
        name: ArraySpec(one.shape, str(one.dtype)) if hasattr(one, "shape") else one for name, one in given.items()
    }
    simulate_simulated(kernel.on_cores(), trace_only=True)(**specs)
    told = {
        "lnc": kernel.lnc,
        "constants": constants,
        "barrier_check": bool(kernel.compile_config and kernel.compile_config.barrier_check),
    }
    names = "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_LOGICAL_NC_CONFIG", "NKI_DEBUG_INFO"
    told |= {name: os.environ.get(name) for name in names}
    (Path(ARTIFACTS) / "kernel.neff").write_text(json.dumps(told))
    raise OSError("libnrt.so.1: cannot open shared object file")


def jit(fn=None, *, compile_config=None, specialization_config=None):
    """AWS's decorator."""
    return Kernel(fn, None, compile_config) if fn is not None else lambda one: Kernel(one, None, compile_config)


def simulate(kernel):
    """AWS's simulator."""
    found = simulate_simulated(kernel.on_cores())
    return found if FAULT != "wrong" else lambda *args, **kwargs: found(*args, **kwargs) + 1


def refuse_loads(*args, **kwargs):
    """A load that the compiler refuses, as its messages are."""
    raise RuntimeError("Failed to compile NKI kernel:\nCollected 1 different diagnostics:\n- [x1] error: no such DMA")


if FAULT == "raise":
    isa.dma_copy = refuse_loads
