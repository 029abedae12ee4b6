"""`nki.compiler` of NKI 0.7: the options of `nki.jit` for AWS's compiler (nki.compiler, nki.jit; SDK 2.33).

The simulator compiles nothing: only NKI185 depends on them. `barrier_check` fails the compile if one core touches
memory that the other writes without a barrier; the simulator always refuses that (NKI028). Not every field's default is
documented: None leaves it to the compiler.
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
    """Both configs of one kernel, None if it has none."""

    compile: CompileConfig | None = None
    specialization: SpecializationConfig | None = None

    @property
    def overrides(self) -> bool:
        """Whether kernels that it calls may have another compile_config."""
        return self.specialization is not None and self.specialization.allow_nested_config_override


#: The configs of a kernel without options.
NO_CONFIGS = Configs()
