"""What kernels decide by is what trn2.toml says: every price of `kernels/_prices.py` against its row."""

import pytest

from nkiconv.kernels import _prices
from nkiconv.simulator.timing import Rates, hbm_ns

pytestmark = pytest.mark.simulator_only
RATES = Rates()
CYCLE_NS = 1 / RATES("clock.pe_ghz")

EXPECTED = {
    "TENSOR_COLUMN_NS": CYCLE_NS * RATES("pe.cyc_per_row_16bit"),
    "TENSOR_COLUMN_FP32_NS": CYCLE_NS * RATES("pe.cyc_per_row_fp32_pass") * RATES("pe.fp32_passes"),
    "TRANSPOSE_PASSES_FP32": RATES("pe.cyc_per_row_fp32_pass"),
    "MATMUL_NS": RATES("pe.issue_overhead_ns"),
    "MATMUL_FP32_NS": RATES("pe.issue_overhead_fp32_ns"),
    "VECTOR_NS": RATES("vector.ns_per_elem_1x"),
    "VECTOR_NS_16BIT": RATES("vector.ns_per_elem_2x"),
    "VECTOR_SUM_NS": RATES("vector.ns_per_elem_scalar_tensor_tensor"),
    "VECTOR_MEMSET_NS": RATES("vector.memset_ns_per_elem"),
    "VECTOR_FIXED_NS": RATES("vector.issue_fixed_sbuf_ns"),
    "VECTOR_FIXED_PSUM_NS": RATES("vector.issue_fixed_psum_ns"),
    "VECTOR_FIXED_SUM_NS": RATES("vector.issue_fixed_scalar_tensor_tensor_ns"),
    "SCALAR_NS": RATES("scalar.ns_per_elem"),
    "SCALAR_FIXED_OPERAND_NS": RATES("scalar.act_bias_issue_sbuf_ns"),
    "GPSIMD_NS": RATES("gpsimd.elementwise_ns_per_elem"),
    "GPSIMD_FIXED_NS": RATES("gpsimd.issue_fixed_ns"),
    "GPSIMD_SELECT_NS": RATES("gpsimd.affine_select_ns_per_elem"),
    "EXCHANGE_NS": RATES("lnc2.barrier_seam_ns") + RATES("lnc2.sendrecv_4k_ns"),
    "EXCHANGE_BYTES": RATES("dma.max_element_bytes_packet"),
    "EXCHANGE_BYTE_NS": 1 / RATES("dma.steady_core_gbps"),
    "STATIC_ISSUE_NS": RATES("dma.static_issue_ns"),
    "RUN_NS": RATES("dma.element_overhead_ns"),
    "BYTE_NS": 1 / RATES("dma.engine_bytes_per_ns"),
    "SMALL_RUN_NS": RATES("dma.small_element_ns"),
    "TINY_RUN_NS": RATES("dma.tiny_element_ns"),
    "TINY_RUN_BYTES": RATES("dma.tiny_element_bytes"),
    "SURE_RUN_BYTES": RATES("dma.sure_element_bytes"),
    "DMA_ENGINES": RATES("dma.engines"),
    "ROWS_AN_ENGINE": RATES("dma.rows_per_engine"),
    "HBM_LONG_BYTE_NS": 2 / RATES("dma.hbm_shared_gbps"),
    "HBM_RUN_NS": 2 * RATES("dma.hbm_run_ns"),
    "HBM_RUN_BYTES": RATES("dma.hbm_run_least_bytes"),
    "HBM_BYTE_NS": 2 * hbm_ns(1, 4096, RATES),
    "MATMUL_START_NS": RATES("pe.cold_ldw_16bit_full_ns"),
    "MATMUL_DONE_NS": RATES("pe.completion_full_ns"),
    "MATMUL_DONE_HALF_NS": RATES("pe.completion_half_ns"),
    "MATMUL_COLUMNS_MIN": RATES("pe.min_interval_rows"),
    "ROW_TILE_COLUMNS": RATES("pe.row_tile_interval_rows"),
    "WINDOW_NS": RATES("throttle.window_ns"),
    "WINDOW_WORK": RATES("throttle.threshold"),
    "HALF_RATE": RATES("throttle.half_rate"),
    "VECTOR_DONE_NS": RATES("vector.lat_fixed_psum_ns"),
    "VECTOR_OPERAND_DONE_NS": RATES("vector.lat_fixed_ptrscalar_extra_ns"),
    "SCALAR_DONE_NS": RATES("scalar.copy_lat_psum_ns"),
    "SCALAR_ACT_DONE_NS": RATES("scalar.act_lat_sbuf_ns"),
    "SCALAR_OPERAND_DONE_NS": RATES("scalar.per_broadcast_operand_ns"),
    "GPSIMD_DONE_NS": RATES("gpsimd.lat_fixed_ns"),
    "SCALAR_FIXED_NS": RATES("scalar.copy_issue_ns"),
    "SCALAR_FIXED_PSUM_NS": RATES("scalar.act_bias_issue_psum_ns"),
    "VECTOR_FIXED_MEMSET_NS": RATES("vector.memset_issue_fixed_ns"),
    "HOP_NS": RATES("sync.hop_to_vector_ns"),
    "HOP_TENSOR_NS": RATES("sync.hop_to_pe_ns"),
    "HOP_DMA_NS": RATES("sync.hop_to_dma_issue_ns"),
    "FIRST_PACKET_NS": RATES("dma.static_first_packet_ns"),
    "LOAD_SKEW_NS": RATES("dma.engine_skew_load_ns"),
    "STORE_SKEW_NS": RATES("dma.engine_skew_store_ns"),
    "DMA_END_NS": RATES("dma.sem_write_ns"),
    "DMA_DONE_NS": RATES("dma.done_to_consumer_ns"),
}


@pytest.mark.parametrize("run_bytes", [64, 2048, 4096, 16384])
def test_hbm_traffic_is_that_of_the_table_for_each_of_two_cores(run_bytes):
    assert _prices.hbm_ns(10**6, run_bytes) == pytest.approx(2 * hbm_ns(10**6, run_bytes, RATES), rel=2e-4)


def test_every_price_is_looked_up():
    assert {name for name in vars(_prices) if name.isupper()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_price_is_that_of_the_table(name):
    assert getattr(_prices, name) == pytest.approx(EXPECTED[name], rel=2e-4)
