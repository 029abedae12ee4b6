"""AWS's Neuron Kernel Interface on NumPy: the modules of ``import nki``, for machines without Neuron packages.

It runs kernels as plain Python, checks every documented rule of NKI and trn2 that it knows (`rules.RULES`), and
records every instruction. It imports nothing else of nkiconv.
"""

from __future__ import annotations

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
from .install import Installation, NkiInstalledError, install
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
