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

__all__ = [
    "ArraySpec",
    "CapacityWarning",
    "Execution",
    "Installation",
    "Instruction",
    "Kernel",
    "KernelAssertionError",
    "LaunchedKernel",
    "NkiError",
    "NkiInstalledError",
    "NkiValidationError",
    "NotSimulatedError",
    "OverwriteWarning",
    "RaceWarning",
    "TensorTruthWarning",
    "compiler",
    "execute",
    "install",
    "isa",
    "jit",
    "language",
    "simulate",
    "typing",
]

#: The modules in which names are, each imported at its first use: who needs constants alone does not wait for the rest.
_HOMES = {
    "ArraySpec": "arguments",
    "CapacityWarning": "errors",
    "Execution": "launch",
    "Installation": "installation",
    "Instruction": "program",
    "Kernel": "launch",
    "KernelAssertionError": "errors",
    "LaunchedKernel": "launch",
    "NkiError": "errors",
    "NkiInstalledError": "installation",
    "NkiValidationError": "errors",
    "NotSimulatedError": "errors",
    "OverwriteWarning": "errors",
    "RaceWarning": "errors",
    "TensorTruthWarning": "errors",
    "execute": "launch",
    "install": "installation",
    "jit": "launch",
    "simulate": "launch",
}
_MODULES = {"compiler": "compiler", "isa": "isa", "language": "language", "typing": "declarations"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
