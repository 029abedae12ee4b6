"""What instructions and DMAs take on trn2, for compile-time decisions: ns, by the names of trn2.toml's rows.

They decide who works and how work is cut, never what is computed. A test holds each against trn2.toml.
"""

#: A column of a 16-bit matmul at full rate (1 / pe_ghz), and of an fp32 one (its passes and cycles a row).
TENSOR_COLUMN_NS = 0.4167
TENSOR_COLUMN_FP32_NS = 1.6667
#: A matmul, and each pass of an fp32 one, beside its columns (pe.issue_overhead_ns, issue_overhead_fp32_ns).
MATMUL_NS = 2.5
MATMUL_FP32_NS = 5.0
#: An element of Vector's work, where all operands have 16 bits too (vector.ns_per_elem_1x, ns_per_elem_2x), of
#: scalar_tensor_tensor with any (ns_per_elem_scalar_tensor_tensor, inferred there), of a memset (memset_ns_per_elem).
VECTOR_NS = 1.0417
VECTOR_NS_16BIT = 0.5208
VECTOR_SUM_NS = 1.0417
VECTOR_MEMSET_NS = 0.832
#: An instruction of Vector's that reads SBUF or PSUM, and more where an operand is [P, 1] (vector.issue_fixed_sbuf_ns,
#: issue_fixed_psum_ns, issue_fixed_ptrscalar_extra_ns).
VECTOR_FIXED_NS = 60.0
VECTOR_FIXED_PSUM_NS = 65.0
VECTOR_FIXED_OPERAND_NS = 69.0
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
SMALL_RUN_NS = 11.5
TINY_RUN_NS = 55.0
TINY_RUN_BYTES = 4
SURE_RUN_BYTES = 256
DMA_ENGINES = 16
#: Partitions of SBUF that one DMA engine serves (dma.rows_per_engine).
ROWS_AN_ENGINE = 8
#: A byte of HBM traffic of one core while both are at work (dma.hbm_stack_gbps / 2).
HBM_BYTE_NS = 0.002793


def run_ns(num_bytes):
    """ns of one DMA engine for a contiguous run; short ones have floors."""
    if num_bytes <= TINY_RUN_BYTES:
        return TINY_RUN_NS
    return max(RUN_NS + num_bytes * BYTE_NS, SMALL_RUN_NS if num_bytes <= SURE_RUN_BYTES else 0.0)


def row_ns(count, step, itemsize):
    """ns of one DMA engine for `count` elements `step` apart: one run, or one for each where they are no neighbours."""
    if step > 1 and count > 1:
        return count * run_ns(itemsize)
    return run_ns(count * itemsize)
