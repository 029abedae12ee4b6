"""trn2's prices for cost models: one object, made from one set of constants.

Every field is a row of trn2.toml, or follows from some as its comment says; ns and bytes. Cost models do arithmetic on
shapes and choose; the timeline itself works on `Rates`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from ..hardware import PARTITIONS
from .dma import hbm_ns
from .rates import Rates

#: Cores that use the HBM: a core's rate is its rate while the other moves as much.
_CORES = 2


def _made(of: Callable[[Rates], float]) -> Any:
    """A field that is made from rows."""
    return field(metadata={"made": of})


def _row(name: str, kind: Callable[[float], float] = float) -> Any:
    """A field that is a row."""
    return _made(lambda rates: kind(rates(name)))


@dataclass(frozen=True)
class Target:
    """Prices by name; `run_ns`, `row_ns` and `hbm_ns` put those of DMA together."""

    # Tensor
    #: a column of a 16-bit matmul at full rate
    tensor_column_ns: float = _made(lambda rates: rates.cycle_ns("pe") * rates("pe.cyc_per_row_16bit"))
    #: of an fp32 one: its passes and cycles a row
    tensor_column_fp32_ns: float = _made(
        lambda rates: rates.cycle_ns("pe") * rates("pe.cyc_per_row_fp32_pass") * rates("pe.fp32_passes")
    )
    #: a column of a transpose of fp32 over one of 16 bits
    transpose_passes_fp32: float = _row("pe.cyc_per_row_fp32_pass")
    matmul_ns: float = _row("pe.issue_overhead_ns")  # a matmul, besides its columns
    matmul_fp32_ns: float = _row("pe.issue_overhead_fp32_ns")  # each pass of an fp32 one
    matmul_columns_min: int = _row("pe.min_interval_rows", int)  # columns between matmuls at least
    #: columns from a matmul on one tile of the array's rows to the next on another
    row_tile_columns: int = _row("pe.row_tile_interval_rows", int)
    matmul_done_ns: float = _row("pe.completion_full_ns")  # from the end of a stream to its sums, at full rate
    window_ns: float = _row("throttle.window_ns")  # the throttle's windows
    #: work in one of them, of all it could do, from which the next is at full rate
    window_work: float = _row("throttle.threshold")
    half_rate: float = _row("throttle.half_rate")  # the rate else
    matmul_passes_fp32: float = _row("pe.fp32_passes")  # passes of an fp32 matmul
    #: passes of one whose moving operand has ones and zeros only
    onezero_passes_fp32: float = _made(lambda rates: rates("pe.fp32_passes") / rates("pe.onezero_speedup_fp32"))
    # Vector: an element, an instruction, from its start to its result besides its elements
    vector_ns: float = _row("vector.ns_per_elem_1x")
    vector_16bit_ns: float = _row("vector.ns_per_elem_2x")  # all operands of 16 bits
    vector_4x_ns: float = _row("vector.ns_per_elem_4x")  # copies of 16 bits in SBUF
    vector_sum_ns: float = _row("vector.ns_per_elem_scalar_tensor_tensor")  # scalar_tensor_tensor
    vector_memset_ns: float = _row("vector.memset_ns_per_elem")
    vector_fixed_ns: float = _row("vector.issue_fixed_sbuf_ns")
    vector_fixed_psum_ns: float = _row("vector.issue_fixed_psum_ns")
    #: scalar_tensor_tensor with a [P, 1] operand
    vector_fixed_sum_ns: float = _row("vector.issue_fixed_scalar_tensor_tensor_ns")
    vector_done_ns: float = _row("vector.lat_fixed_psum_ns")
    vector_operand_done_ns: float = _row("vector.lat_fixed_ptrscalar_extra_ns")  # a [P, 1] operand's share
    # Scalar
    scalar_ns: float = _row("scalar.ns_per_elem")
    scalar_fixed_ns: float = _row("scalar.copy_issue_ns")  # a copy
    scalar_fixed_psum_ns: float = _row("scalar.act_bias_issue_psum_ns")  # an activation that reads PSUM
    scalar_fixed_operand_ns: float = _row("scalar.act_bias_issue_sbuf_ns")  # an instruction with a [P, 1] operand
    scalar_done_ns: float = _row("scalar.copy_lat_psum_ns")
    scalar_act_done_ns: float = _row("scalar.act_lat_sbuf_ns")
    # GpSimd
    gpsimd_ns: float = _row("gpsimd.elementwise_ns_per_elem")
    gpsimd_gather_ns: float = _row("gpsimd.n_gather_ns_per_elem")
    gpsimd_fixed_ns: float = _row("gpsimd.issue_fixed_ns")
    gpsimd_select_ns: float = _row("gpsimd.affine_select_ns_per_elem")  # an element of affine_select
    gpsimd_done_ns: float = _row("gpsimd.lat_fixed_ns")
    # DMA
    static_issue_ns: float = _row("dma.static_issue_ns")  # the trigger of a static one
    hwdge_issue_ns: float = _row("dma.hwdge_issue_ns")  # of one whose descriptors hardware makes
    hwdge_again_ns: float = _row("dma.hwdge_again_ns")  # from one of those to the next right behind it
    hwdge_row_ns: float = _row("dma.hwdge_issue_row_ns")  # the same of one partition
    first_packet_ns: float = _row("dma.static_first_packet_ns")  # from a trigger to the first packet
    load_skew_ns: float = _row("dma.engine_skew_load_ns")  # between the first packets of the first and the last engine
    store_skew_ns: float = _row("dma.engine_skew_store_ns")
    dma_end_ns: float = _row("dma.sem_write_ns")  # from the last packet to the semaphore
    dma_done_ns: float = _row("dma.done_to_consumer_ns")  # from there to the engine that waits
    dma_engines: int = _row("dma.engines", int)
    rows_an_engine: int = _row("dma.rows_per_engine", int)  # partitions of SBUF that one engine serves
    element_ns: float = _row("dma.element_overhead_ns")  # a run of contiguous bytes on one engine
    byte_ns: float = _made(lambda rates: 1 / rates("dma.engine_bytes_per_ns"))
    small_run_ns: float = _row("dma.small_element_ns")  # short runs at least
    tiny_run_ns: float = _row("dma.tiny_element_ns")
    tiny_run_bytes: float = _row("dma.tiny_element_bytes")
    sure_run_bytes: float = _row("dma.sure_element_bytes")  # below these small_run_ns is the least
    #: HBM traffic of one core while both are at work: a byte, and a run,
    hbm_long_byte_ns: float = _made(lambda rates: _CORES / rates("dma.hbm_shared_gbps"))
    hbm_element_ns: float = _made(lambda rates: _CORES * rates("dma.hbm_run_ns"))
    hbm_run_bytes: float = _row("dma.hbm_run_least_bytes")  # which counts as no shorter than this
    hbm_byte_ns: float = _made(lambda rates: _CORES * hbm_ns(1, 4096, rates))  # a byte of runs of 4 KiB
    transpose_rate: float = _row("dma.dma_transpose_frac_hbm")  # of a DMA that transposes, from HBM
    transpose_rate_sbuf: float = _row("dma.dma_transpose_frac_sbuf")  # within SBUF
    # Semaphores, from a result to its reader: on Vector and the others, on the array, at a DMA's trigger
    hop_ns: float = _row("sync.hop_to_vector_ns")
    hop_tensor_ns: float = _row("sync.hop_to_pe_ns")
    hop_dma_ns: float = _row("sync.hop_to_dma_issue_ns")
    # Two cores that exchange tiles: their meeting with the first bytes, how many those are, each more
    exchange_ns: float = _made(lambda rates: rates("lnc2.barrier_seam_ns") + rates("lnc2.sendrecv_4k_ns"))
    exchange_bytes: float = _row("dma.max_element_bytes_packet")
    exchange_byte_ns: float = _made(lambda rates: 1 / rates("dma.steady_core_gbps"))

    @property
    def first_load_ns(self) -> float:
        """ns from a core's start until an engine can read a first load, without its bytes."""
        return self.first_packet_ns + self.load_skew_ns + self.dma_end_ns + self.dma_done_ns

    @property
    def last_store_ns(self) -> float:
        """ns from the end of the last sums to the end of their store, without their elements: evacuation, DMA."""
        evacuation_ns = self.matmul_done_ns + self.scalar_done_ns + 2 * self.hop_ns
        return evacuation_ns + self.first_packet_ns + self.store_skew_ns + self.dma_end_ns

    @property
    def round_trip_ns(self) -> float:
        """ns of a copy in HBM through SBUF, from its first load to the end of its last store, without its elements."""
        return self.first_load_ns + self.last_store_ns

    @staticmethod
    def of(rates: Rates) -> Target:
        """The target under these constants."""
        return _target(tuple(sorted(rates.overrides.items())))

    def run_ns(self, num_bytes: float) -> float:
        """One DMA engine's ns for a contiguous run; short ones have floors."""
        if num_bytes <= self.tiny_run_bytes:
            return self.tiny_run_ns
        least = self.small_run_ns if num_bytes <= self.sure_run_bytes else 0.0
        return max(self.element_ns + num_bytes * self.byte_ns, least)

    def row_ns(self, count: float, step: int, itemsize: int) -> float:
        """The same of `count` elements `step` apart: one run, or one for each where they are no neighbours."""
        if step > 1 and count > 1:
            return count * self.run_ns(itemsize)
        return self.run_ns(count * itemsize)

    def hwdge_ns(self, parts: float) -> float:
        """From a trigger whose descriptors hardware makes, for so many partitions, to the next right behind it."""
        share = (min(parts, PARTITIONS) - 1) / (PARTITIONS - 1)
        return self.hwdge_row_ns + (self.hwdge_again_ns - self.hwdge_row_ns) * share

    def copy_ns(self, itemsize: int) -> float:
        """Vector's ns for an element of a copy of so many bytes."""
        return self.vector_16bit_ns if itemsize == 2 else self.vector_ns

    def hbm_ns(self, num_bytes: float, run_bytes: float) -> float:
        """One core's HBM traffic in runs of so many bytes while both cores are at work."""
        return num_bytes * (self.hbm_long_byte_ns + self.hbm_element_ns / max(run_bytes, self.hbm_run_bytes))


@functools.lru_cache(maxsize=8)
def _target(overrides: tuple[tuple[str, float], ...]) -> Target:
    rates = Rates(dict(overrides))
    return Target(**{one.name: one.metadata["made"](rates) for one in fields(Target)})
