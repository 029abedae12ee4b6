"""Cost models: what each algorithm takes on a target, and which settings it takes best.

One file an algorithm, under its operation's and its own name; each has an `ALGORITHM`. Prices are here, and in the
simulator's timing, and nowhere else.
"""

from __future__ import annotations

from importlib import import_module

from .algorithm import Algorithm


def algorithm(operation: str, name: str) -> Algorithm:
    """An algorithm by the names that the operation's kernel knows it by."""
    found: Algorithm = import_module(f"{__name__}.{operation}.{name}").ALGORITHM
    return found
