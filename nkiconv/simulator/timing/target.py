"""trn2's prices for cost models: one object, made from one set of constants.

Every field is a row of trn2.toml, or follows from some as its comment says; ns and bytes. Cost models do arithmetic on
shapes and choose; the timeline itself works on `Rates`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .dma import hbm_ns
from .rates import Rates

#: Cores that use the HBM: a core's rate is its rate while the other moves as much.
_CORES = 2


@dataclass(frozen=True)
class Target:
    """Prices by name; `run_ns`, `row_ns` and `hbm_ns` put those of DMA together."""

    # Tensor
    tensor_column_ns: float  # a column of a 16-bit matmul at full rate
    tensor_column_fp32_ns: float  # of an fp32 one: its passes and cycles a row
    transpose_passes_fp32: float  # a column of a transpose of fp32 over one of 16 bits
    matmul_ns: float  # a matmul, besides its columns
    matmul_fp32_ns: float  # each pass of an fp32 one
    matmul_columns_min: int  # columns between matmuls at least
    row_tile_columns: int  # columns from a matmul on one tile of the array's rows to the next on another
    matmul_done_ns: float  # from the end of a stream to its sums, at full rate
    window_ns: float  # the throttle's windows
    window_work: float  # work in one of them, of all it could do, from which the next is at full rate
    half_rate: float  # the rate else
    matmul_passes_fp32: float  # passes of an fp32 matmul
    onezero_passes_fp32: float  # passes of one whose moving operand has ones and zeros only
    # Vector: an element, an instruction, from its start to its result besides its elements
    vector_ns: float
    vector_16bit_ns: float  # all operands of 16 bits
    vector_4x_ns: float  # copies of 16 bits in SBUF
    vector_sum_ns: float  # scalar_tensor_tensor
    vector_memset_ns: float
    vector_fixed_ns: float
    vector_fixed_psum_ns: float
    vector_fixed_sum_ns: float  # scalar_tensor_tensor with a [P, 1] operand
    vector_done_ns: float
    vector_operand_done_ns: float  # a [P, 1] operand's share
    # Scalar
    scalar_ns: float
    scalar_fixed_ns: float  # a copy
    scalar_fixed_psum_ns: float  # an activation that reads PSUM
    scalar_fixed_operand_ns: float  # an instruction with a [P, 1] operand
    scalar_done_ns: float
    scalar_act_done_ns: float
    # GpSimd
    gpsimd_ns: float
    gpsimd_fixed_ns: float
    gpsimd_select_ns: float  # an element of affine_select
    gpsimd_done_ns: float
    # DMA
    static_issue_ns: float  # the trigger of a static one
    hwdge_issue_ns: float  # of one whose descriptors hardware makes
    hwdge_again_ns: float  # from one of those to the next right behind it
    first_packet_ns: float  # from a trigger to the first packet
    load_skew_ns: float  # between the first packets of the first and the last engine
    store_skew_ns: float
    dma_end_ns: float  # from the last packet to the semaphore
    dma_done_ns: float  # from there to the engine that waits
    dma_engines: int
    rows_an_engine: int  # partitions of SBUF that one engine serves
    element_ns: float  # a run of contiguous bytes on one engine
    byte_ns: float
    small_run_ns: float  # short runs at least
    tiny_run_ns: float
    tiny_run_bytes: float
    sure_run_bytes: float  # below these small_run_ns is the least
    hbm_long_byte_ns: float  # HBM traffic of one core while both are at work: a byte, and a run,
    hbm_element_ns: float
    hbm_run_bytes: float  # which counts as no shorter than this
    hbm_byte_ns: float  # a byte of runs of 4 KiB
    transpose_rate: float  # of a DMA that transposes, from HBM
    transpose_rate_sbuf: float  # within SBUF
    # Semaphores, from a result to its reader: on Vector and the others, on the array, at a DMA's trigger
    hop_ns: float
    hop_tensor_ns: float
    hop_dma_ns: float
    # Two cores that exchange tiles: their meeting with the first bytes, how many those are, each more
    exchange_ns: float
    exchange_bytes: float
    exchange_byte_ns: float

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

    def copy_ns(self, itemsize: int) -> float:
        """Vector's ns for an element of a copy of so many bytes."""
        return self.vector_16bit_ns if itemsize == 2 else self.vector_ns

    def hbm_ns(self, num_bytes: float, run_bytes: float) -> float:
        """One core's HBM traffic in runs of so many bytes while both cores are at work."""
        return num_bytes * (self.hbm_long_byte_ns + self.hbm_element_ns / max(run_bytes, self.hbm_run_bytes))


@functools.lru_cache(maxsize=8)
def _target(overrides: tuple[tuple[str, float], ...]) -> Target:
    rates = Rates(dict(overrides))
    cycle_ns = rates.cycle_ns("pe")
    return Target(
        tensor_column_ns=cycle_ns * rates("pe.cyc_per_row_16bit"),
        tensor_column_fp32_ns=cycle_ns * rates("pe.cyc_per_row_fp32_pass") * rates("pe.fp32_passes"),
        transpose_passes_fp32=rates("pe.cyc_per_row_fp32_pass"),
        matmul_ns=rates("pe.issue_overhead_ns"),
        matmul_fp32_ns=rates("pe.issue_overhead_fp32_ns"),
        matmul_columns_min=int(rates("pe.min_interval_rows")),
        row_tile_columns=int(rates("pe.row_tile_interval_rows")),
        matmul_done_ns=rates("pe.completion_full_ns"),
        window_ns=rates("throttle.window_ns"),
        window_work=rates("throttle.threshold"),
        half_rate=rates("throttle.half_rate"),
        matmul_passes_fp32=rates("pe.fp32_passes"),
        onezero_passes_fp32=rates("pe.fp32_passes") / rates("pe.onezero_speedup_fp32"),
        vector_ns=rates("vector.ns_per_elem_1x"),
        vector_16bit_ns=rates("vector.ns_per_elem_2x"),
        vector_4x_ns=rates("vector.ns_per_elem_4x"),
        vector_sum_ns=rates("vector.ns_per_elem_scalar_tensor_tensor"),
        vector_memset_ns=rates("vector.memset_ns_per_elem"),
        vector_fixed_ns=rates("vector.issue_fixed_sbuf_ns"),
        vector_fixed_psum_ns=rates("vector.issue_fixed_psum_ns"),
        vector_fixed_sum_ns=rates("vector.issue_fixed_scalar_tensor_tensor_ns"),
        vector_done_ns=rates("vector.lat_fixed_psum_ns"),
        vector_operand_done_ns=rates("vector.lat_fixed_ptrscalar_extra_ns"),
        scalar_ns=rates("scalar.ns_per_elem"),
        scalar_fixed_ns=rates("scalar.copy_issue_ns"),
        scalar_fixed_psum_ns=rates("scalar.act_bias_issue_psum_ns"),
        scalar_fixed_operand_ns=rates("scalar.act_bias_issue_sbuf_ns"),
        scalar_done_ns=rates("scalar.copy_lat_psum_ns"),
        scalar_act_done_ns=rates("scalar.act_lat_sbuf_ns"),
        gpsimd_ns=rates("gpsimd.elementwise_ns_per_elem"),
        gpsimd_fixed_ns=rates("gpsimd.issue_fixed_ns"),
        gpsimd_select_ns=rates("gpsimd.affine_select_ns_per_elem"),
        gpsimd_done_ns=rates("gpsimd.lat_fixed_ns"),
        static_issue_ns=rates("dma.static_issue_ns"),
        hwdge_issue_ns=rates("dma.hwdge_issue_ns"),
        hwdge_again_ns=rates("dma.hwdge_again_ns"),
        first_packet_ns=rates("dma.static_first_packet_ns"),
        load_skew_ns=rates("dma.engine_skew_load_ns"),
        store_skew_ns=rates("dma.engine_skew_store_ns"),
        dma_end_ns=rates("dma.sem_write_ns"),
        dma_done_ns=rates("dma.done_to_consumer_ns"),
        dma_engines=int(rates("dma.engines")),
        rows_an_engine=int(rates("dma.rows_per_engine")),
        element_ns=rates("dma.element_overhead_ns"),
        byte_ns=1 / rates("dma.engine_bytes_per_ns"),
        small_run_ns=rates("dma.small_element_ns"),
        tiny_run_ns=rates("dma.tiny_element_ns"),
        tiny_run_bytes=rates("dma.tiny_element_bytes"),
        sure_run_bytes=rates("dma.sure_element_bytes"),
        hbm_long_byte_ns=_CORES / rates("dma.hbm_shared_gbps"),
        hbm_element_ns=_CORES * rates("dma.hbm_run_ns"),
        hbm_run_bytes=rates("dma.hbm_run_least_bytes"),
        hbm_byte_ns=_CORES * hbm_ns(1, 4096, rates),
        transpose_rate=rates("dma.dma_transpose_frac_hbm"),
        transpose_rate_sbuf=rates("dma.dma_transpose_frac_sbuf"),
        hop_ns=rates("sync.hop_to_vector_ns"),
        hop_tensor_ns=rates("sync.hop_to_pe_ns"),
        hop_dma_ns=rates("sync.hop_to_dma_issue_ns"),
        exchange_ns=rates("lnc2.barrier_seam_ns") + rates("lnc2.sendrecv_4k_ns"),
        exchange_bytes=rates("dma.max_element_bytes_packet"),
        exchange_byte_ns=1 / rates("dma.steady_core_gbps"),
    )
