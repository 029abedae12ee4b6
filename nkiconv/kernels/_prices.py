"""What instructions and DMAs take on trn2, for compile-time decisions: ns, by the names of trn2.toml's rows.

They decide who works and how work is cut, never what is computed. A test holds each against trn2.toml.
"""

#: A column of a 16-bit matmul at full rate (1 / pe_ghz), and of an fp32 one (its passes and cycles a row).
TENSOR_COLUMN_NS = 0.4167
TENSOR_COLUMN_FP32_NS = 1.6667
#: What a column of a transpose of fp32 takes of those of 16 bits (pe.cyc_per_row_fp32_pass: one pass).
TRANSPOSE_PASSES_FP32 = 2
#: A matmul, and each pass of an fp32 one, beside its columns (pe.issue_overhead_ns, issue_overhead_fp32_ns).
MATMUL_NS = 2.5
MATMUL_FP32_NS = 5.0
#: An element of Vector's work, where all operands have 16 bits too (vector.ns_per_elem_1x, ns_per_elem_2x), of
#: scalar_tensor_tensor with any (ns_per_elem_scalar_tensor_tensor), of a memset (memset_ns_per_elem).
VECTOR_NS = 1.0417
VECTOR_NS_16BIT = 0.5208
VECTOR_SUM_NS = 1.0417
VECTOR_MEMSET_NS = 0.832
#: An instruction of Vector's that reads SBUF or PSUM, and a scalar_tensor_tensor with a [P, 1] operand
#: (vector.issue_fixed_sbuf_ns, issue_fixed_psum_ns, issue_fixed_scalar_tensor_tensor_ns).
VECTOR_FIXED_NS = 60.0
VECTOR_FIXED_PSUM_NS = 65.0
VECTOR_FIXED_SUM_NS = 65.0
#: An element of Scalar's work, and an instruction with a [P, 1] operand (scalar.ns_per_elem, act_bias_issue_sbuf_ns).
SCALAR_NS = 0.8333
SCALAR_FIXED_OPERAND_NS = 185.0
#: GpSimd: an element and an instruction (gpsimd.elementwise_ns_per_elem, issue_fixed_ns, both inferred there), an
#: element of affine_select (affine_select_ns_per_elem).
GPSIMD_NS = 1.6667
GPSIMD_FIXED_NS = 126.9
GPSIMD_SELECT_NS = 0.846
#: DMA: the trigger of a static one (dma.static_issue_ns), a run of contiguous bytes and each byte of it on one of the
#: engines (element_overhead_ns, engine_bytes_per_ns), short and tiny runs at least (small_element_ns of
#: small_element_bytes, tiny_element_ns of tiny_element_bytes; below sure_element_bytes small_element_ns is the least).
STATIC_ISSUE_NS = 58.0
RUN_NS = 4.7
BYTE_NS = 0.03676
SMALL_RUN_NS = 10.5
TINY_RUN_NS = 55.0
TINY_RUN_BYTES = 4.0
SURE_RUN_BYTES = 256.0
DMA_ENGINES = 16
#: Partitions of SBUF that one DMA engine serves (dma.rows_per_engine).
ROWS_AN_ENGINE = 8
#: HBM traffic of one core while both are at work: a byte and a run of contiguous bytes (dma.hbm_shared_gbps,
#: hbm_run_ns), which counts as no shorter than so many (hbm_run_least_bytes), and a byte of runs of 4 KiB.
HBM_LONG_BYTE_NS = 0.002941
HBM_RUN_NS = 0.66
HBM_RUN_BYTES = 2048
HBM_BYTE_NS = 0.003102
#: From the first operands to the stream where the array has paused (pe.cold_ldw_16bit_full_ns), from the end of a
#: stream to its sums, at full and at half rate (completion_full_ns, completion_half_ns), columns between matmuls at
#: least (min_interval_rows).
MATMUL_START_NS = 16.0
MATMUL_DONE_NS = 164.0
MATMUL_DONE_HALF_NS = 206.0
MATMUL_COLUMNS_MIN = 128
#: Columns from a matmul on one tile of the array's rows to the next on another (pe.row_tile_interval_rows, inferred
#: there).
ROW_TILE_COLUMNS = 64
#: The array's rate: windows, work in one of them from which the next is at full rate (throttle.window_ns, threshold),
#: and the rate else (half_rate).
WINDOW_NS = 3413.333
WINDOW_WORK = 0.3725
HALF_RATE = 0.5
#: From the start of an instruction to its result, beside its elements: Vector's with and without a [P, 1] operand
#: (vector.lat_fixed_psum_ns, lat_fixed_ptrscalar_extra_ns), Scalar's copies out of PSUM and its activations, and an
#: operand's share (scalar.copy_lat_psum_ns, act_lat_sbuf_ns, per_broadcast_operand_ns), GpSimd's (gpsimd.lat_fixed_ns).
VECTOR_DONE_NS = 157.0
VECTOR_OPERAND_DONE_NS = 58.0
SCALAR_DONE_NS = 158.0
SCALAR_ACT_DONE_NS = 280.0
SCALAR_OPERAND_DONE_NS = 91.0
GPSIMD_DONE_NS = 176.9
#: A Scalar copy beside its elements, an activation that reads PSUM (scalar.copy_issue_ns, act_bias_issue_psum_ns), a
#: memset on Vector (vector.memset_issue_fixed_ns).
SCALAR_FIXED_NS = 60.0
SCALAR_FIXED_PSUM_NS = 143.3
VECTOR_FIXED_MEMSET_NS = 58.0
#: From a result to what waits for it on another engine, on the array, at a DMA's trigger (sync.hop_to_vector_ns,
#: hop_to_pe_ns, hop_to_dma_issue_ns).
HOP_NS = 38.0
HOP_TENSOR_NS = 52.0
HOP_DMA_NS = 32.0
#: From a DMA's trigger to its first packet (dma.static_first_packet_ns), between the first packets of the first and the
#: last engine (engine_skew_load_ns, engine_skew_store_ns), from the last packet to whoever waits for it
#: (sem_write_ns and done_to_consumer_ns).
FIRST_PACKET_NS = 775.0
LOAD_SKEW_NS = 300.0
STORE_SKEW_NS = 150.0
DMA_END_NS = 7.0
DMA_DONE_NS = 380.0
#: Two cores that exchange tiles: ns of their meeting with the first bytes (lnc2.barrier_seam_ns, sendrecv_4k_ns), how
#: many those are (dma.max_element_bytes_packet), and ns of each more (dma.steady_core_gbps).
EXCHANGE_NS = 2354.0
EXCHANGE_BYTES = 4096
EXCHANGE_BYTE_NS = 0.00241


def run_ns(num_bytes):
    """ns of one DMA engine for a contiguous run; short ones have floors."""
    run_bytes = float(num_bytes)
    if run_bytes <= TINY_RUN_BYTES:
        return TINY_RUN_NS
    return max(RUN_NS + run_bytes * BYTE_NS, SMALL_RUN_NS if run_bytes <= SURE_RUN_BYTES else 0.0)


def hbm_ns(num_bytes, run_bytes):
    """ns of one core's HBM traffic in runs of so many bytes while both cores are at work."""
    return num_bytes * (HBM_LONG_BYTE_NS + HBM_RUN_NS / max(run_bytes, HBM_RUN_BYTES))


def row_ns(count, step, itemsize):
    """ns of one DMA engine for `count` elements `step` apart: one run, or one for each where they are no neighbours."""
    if step > 1 and count > 1:
        return count * run_ns(itemsize)
    return run_ns(count * itemsize)
