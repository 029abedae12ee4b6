"""AWS's Neuron Kernel Interface on NumPy: the modules of ``import nki``, for machines without Neuron packages.

It runs kernels as plain Python, checks every documented rule of NKI and trn2 that it knows (`rules.RULES`), and
records every instruction. It imports nothing else of nkiconv.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import compiler, isa, language
    from . import declarations as typing
    from .arguments import ArraySpec
    from .errors import (
        CapacityWarning,
        KernelAssertionError,
        NkiError,
        NkiValidationError,
        NotSimulatedError,
        OverwriteWarning,
        RaceWarning,
        TensorTruthWarning,
    )
    from .installation import Installation, NkiInstalledError, install
    from .launch import Execution, Kernel, LaunchedKernel, execute, jit, simulate
    from .program import Instruction

#: The modules that names are in, each imported at its first use: who needs constants alone does not wait for the rest.
_HOMES = {
    name: home
    for home, names in {
        "arguments": ("ArraySpec",),
        "errors": (
            "CapacityWarning",
            "KernelAssertionError",
            "NkiError",
            "NkiValidationError",
            "NotSimulatedError",
            "OverwriteWarning",
            "RaceWarning",
            "TensorTruthWarning",
        ),
        "installation": ("Installation", "NkiInstalledError", "install"),
        "launch": ("Execution", "Kernel", "LaunchedKernel", "execute", "jit", "simulate"),
        "program": ("Instruction",),
    }.items()
    for name in names
}
_MODULES = {"compiler": "compiler", "isa": "isa", "language": "language", "typing": "declarations"}

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
