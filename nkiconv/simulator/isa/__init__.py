"""`nki.isa` on NumPy: each call checks its rules, computes, and records one instruction."""

from __future__ import annotations

from typing import Any

from ..documented import ISA_CALLS, ISA_ENUMS, ISA_GEN4, ISA_SCALARS
from ..errors import NkiValidationError
from ..objects import VirtualRegister
from ..program import Instruction as NkiInstruction
from ..rules import refused_call
from ..scalars import NkiScalar
from . import enums
from .dma import dma_compute, dma_copy, dma_transpose
from .enums import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from .gathers import local_gather, nc_n_gather, nonzero_with_count, sequence_bounds
from .gpsimd_engine import affine_select, iota, tensor_partition_reduce
from .random_numbers import dropout, rand_get_state, rand_set_state, rng, set_rng_seed
from .ranges import range_select, tensor_scalar_cumulative
from .reductions import (
    bn_aggr,
    bn_stats,
    nc_stream_shuffle,
    select_reduce,
    tensor_reduce,
    tensor_scalar_reduce,
)
from .scalar_engine import activation, activation_reduce
from .search import max8, nc_find_index8, nc_match_replace8
from .sync import (
    core_barrier,
    get_nc_sub_version,
    get_nc_version,
    register_alloc,
    register_load,
    register_move,
    register_store,
    scalar_load,
    scalar_store,
    sendrecv,
)
from .tensor_engine import nc_matmul, nc_transpose
from .topk import topk
from .vector_engine import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
    tensor_tensor_scan,
)

#: The enums as a module, where nki-library's kernels look for them.
constants = enums

#: Module constants that NKI keeps for old kernels.
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown

#: The documented names, and three that kernels have from other pages.
__all__ = [*ISA_CALLS, *ISA_SCALARS, *ISA_ENUMS, "NkiInstruction", "NkiValidationError", "VirtualRegister"]


def __getattr__(name: str) -> Any:
    """Documented calls of trn3 are refused by name when called."""
    if name in ISA_GEN4:
        return refused_call("NKI049", name, f"nki.isa.{name} needs NeuronCore-v4 (trn3); the target is trn2")
    raise AttributeError(f"module 'nki.isa' has no attribute {name!r}")
