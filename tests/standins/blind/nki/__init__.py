"""Stands for AWS's `nki` where nothing may rest on what it does: kernels can be imported, and only sizes are known."""

import sys
from types import ModuleType

from nkiconv.simulator.language import tile_size


class Opaque:
    """Some name of NKI."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return self._name

    def __eq__(self, other):
        raise AssertionError(f"{self._name} is compared with {other!r}")

    __hash__ = object.__hash__


class Kernel:
    """A jitted kernel."""

    def __init__(self, func):
        self.func = func

    def __getitem__(self, lnc):
        raise AssertionError(f"{self.func.__name__} is launched")

    __call__ = __getitem__


def module(name):
    """A module with every name."""
    found = ModuleType(f"nki.{name}")
    made = {}

    def get(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return made.setdefault(attribute, Opaque(f"nki.{name}.{attribute}"))

    found.NKIObject, found.tile_size = object, tile_size
    found.__getattr__ = get
    return found


isa, language = module("isa"), module("language")
sys.modules["nki.isa"], sys.modules["nki.language"] = isa, language


def jit(func=None):
    """AWS's decorator."""
    return Kernel(func) if func is not None else Kernel


def simulate(kernel):
    """AWS's simulator."""
    raise AssertionError("AWS's simulator runs")
