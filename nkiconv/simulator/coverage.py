"""How much of documented NKI runs here: the source of the README's coverage table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import isa, language
from .documented import ISA_CALLS, ISA_ENUMS, LANGUAGE_CALLS, LANGUAGE_CONSTANTS, TENSOR_MEMBERS
from .tensor import NkiTensor


@dataclass(frozen=True)
class Coverage:
    """One namespace: how many names AWS documents for gen3, and those that the simulator lacks."""

    namespace: str
    documented: int
    missing: tuple[str, ...]

    @property
    def simulated(self) -> int:
        return self.documented - len(self.missing)


def coverage() -> tuple[Coverage, ...]:
    """Coverage of nki.isa, nki.language and NkiTensor; what raises NotSimulatedError counts as missing."""
    return (
        _covered("nki.isa", ISA_CALLS + ISA_ENUMS, vars(isa)),
        _covered("nki.language", LANGUAGE_CALLS + LANGUAGE_CONSTANTS, vars(language)),
        _covered("NkiTensor", TENSOR_MEMBERS, vars(NkiTensor)),
    )


def _covered(namespace: str, names: tuple[str, ...], present: Mapping[str, object]) -> Coverage:
    return Coverage(namespace, len(names), tuple(name for name in names if name not in present))
