"""Who registers the operators: torch-neuronx, so that its compiler sees the kernels inside of them, else torch."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch


def registrar() -> Callable[..., Any]:
    """torch-neuronx's way to register an operator, which lets its compiler see the kernel; else torch's.

    A torch-neuronx that is there and cannot be imported is a RuntimeWarning; an older one has no `nki_op`.
    """
    try:
        neuronx: Any = importlib.import_module("torch_neuronx")
    except Exception as error:  # the stub of PyPI raises whatever it likes
        if not (isinstance(error, ModuleNotFoundError) and error.name == "torch_neuronx"):
            warnings.warn(
                f"torch_neuronx: cannot be imported ({type(error).__name__}: {error}), so torch registers nkiconv's "
                f"operators, and torch.compile will not see their kernels; repair its installation, or uninstall it",
                RuntimeWarning,
                stacklevel=2,
            )
        neuronx = None
    return getattr(neuronx, "nki_op", torch.library.custom_op)
