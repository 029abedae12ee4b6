"""`nki.compiler` of NKI 0.7: what `nki.jit` is told of a kernel, for AWS's compiler (nki.compiler, nki.jit; SDK 2.33).

The simulator compiles nothing: all that depends on them is NKI185. What `barrier_check` fails at compile time, a core
that touches what the other writes with no barrier between, the simulator always refuses (NKI028). Not every field's
default is documented: None leaves it to the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AddressRotation(Enum):
    """Whether the compiler may rotate addresses of tensors: where it allocated them itself, always, never."""

    AUTO = "auto"
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """How a kernel is compiled; documented field by field in nki.compiler.CompileConfig."""

    address_rotation: AddressRotation | None = None
    barrier_check: bool | None = None
    dead_code_elim: bool | None = None
    nki_alloc_fallback: bool | None = None
    non_ssa_legalization: bool | None = None
    prefetch_auto: bool | None = None


@dataclass(frozen=True, kw_only=True)
class SpecializationConfig:
    """How a kernel is traced.

    allow_nested_config_override: a kernel that it calls may have another compile_config, which then does not count.
    """

    allow_nested_config_override: bool = False


@dataclass(frozen=True)
class Configs:
    """Both of one kernel, None where it has none."""

    compile: CompileConfig | None = None
    specialization: SpecializationConfig | None = None

    @property
    def overrides(self) -> bool:
        """Whether kernels that it calls may have another compile_config."""
        return self.specialization is not None and self.specialization.allow_nested_config_override


#: Of a kernel that nki.jit is told nothing of.
NO_CONFIGS = Configs()
