"""Who registers the operators: torch-neuronx, so that its compiler sees the kernels inside of them, else torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch


def registrar() -> Callable[..., Any]:
    """torch-neuronx's way to register an operator, which lets its compiler see the kernel; else torch's."""
    try:
        found: Callable[..., Any] = importlib.import_module("torch_neuronx").nki_op
    except Exception:  # not there, an older one without it, or the stub of PyPI, which raises whatever it likes
        found = torch.library.custom_op
    return found
