"""Every call that AWS documents in nki.isa and nki.language, and which of them trn2 has.

Names are facts of AWS's API index of NKI 0.6 and of the pages that 0.7 adds (SDK 2.33: release notes, migration guide,
"NKI Scalar Values", nki.compiler); the coverage table of docs/kernels.md is generated from here.
"""

from __future__ import annotations

ISA_CALLS = (
    "nc_matmul", "nc_transpose", "activation", "activation_reduce", "tensor_reduce", "tensor_partition_reduce",
    "tensor_tensor", "tensor_tensor_scan", "scalar_tensor_tensor", "tensor_scalar", "tensor_scalar_reduce",
    "tensor_scalar_cumulative", "tensor_copy", "tensor_copy_predicated", "reciprocal", "iota", "dropout",
    "affine_select", "range_select", "select_reduce", "sequence_bounds", "memset", "bn_stats", "bn_aggr",
    "local_gather", "nc_n_gather", "dma_copy", "dma_transpose", "dma_compute", "max8", "nc_find_index8",
    "nc_match_replace8", "nc_stream_shuffle", "register_alloc", "register_load", "register_move", "register_store",
    "core_barrier", "sendrecv", "rng", "rand_set_state", "rand_get_state", "set_rng_seed", "nonzero_with_count",
    "topk", "get_nc_version", "get_nc_sub_version",
)  # fmt: skip

#: NKI 0.7's additions to nki.isa: integers that the device computes.
ISA_SCALARS = ("NkiScalar", "scalar_load", "scalar_store")

#: nki.compiler of NKI 0.7: the options of nki.jit.
COMPILER = ("CompileConfig", "SpecializationConfig", "AddressRotation")

#: Calls of nki.isa that need NeuronCore-v4 (their documents say so).
ISA_GEN4 = ("nc_matmul_mx", "activate2", "exponential", "quantize_mx", "rand2")

ISA_ENUMS = ("engine", "dma_engine", "reduce_cmd", "dge_mode", "oob_mode", "matmul_perf_mode", "nc_version")

LANGUAGE_CALLS = (
    "ndarray", "zeros", "ones", "full", "zeros_like", "empty_like", "shared_constant", "shared_identity_matrix",
    "rand", "random_seed", "load", "load_transpose2d", "store", "copy", "matmul", "transpose", "abs", "add", "arctan",
    "ceil", "cos", "exp", "floor", "log", "maximum", "minimum", "multiply", "negative", "power", "reciprocal", "rsqrt",
    "sign", "sin", "sqrt", "square", "subtract", "tan", "tanh", "trunc", "relu", "sigmoid", "silu", "silu_dx", "gelu",
    "gelu_dx", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "gelu_apprx_tanh", "mish", "softplus", "softmax", "erf",
    "erf_dx", "dropout", "rms_norm", "all", "max", "mean", "min", "prod", "sum", "var", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and",
    "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift", "broadcast_to", "ds", "expand_dims", "where",
    "gather_flattened", "affine_range", "sequential_range", "static_range", "fori_loop", "while_loop",
    "is_psum", "is_sbuf", "is_hbm", "is_on_chip", "device_print", "no_reorder", "program_id", "num_programs",
    "program_ndim",
)  # fmt: skip

#: NKI 0.7's additions: tensors as grids of tiles.
LANGUAGE_GRIDS = ("tiles", "blocks", "alloc_tiles", "alloc_blocks", "NkiGrid", "NkiTileGrid", "NkiBlockGrid")

#: Names of nki.language that need NeuronCore-v4.
LANGUAGE_GEN4 = ("abs_max", "abs_min", "prelu", "bypass", "float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")

#: Functions of nki.language that its documents list as not supported, and remedies.
LANGUAGE_REFUSED = {
    "divide": "no engine divides; multiply by nl.reciprocal",
    "fmod": "no engine has a modulo",
    "mod": "no engine has a modulo",
}

LANGUAGE_CONSTANTS = (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32", "bfloat16",
    "tfloat32", "float8_e4m3", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "sbuf", "psum", "hbm", "private_hbm",
    "shared_hbm", "tile_size", "average", "NKIObject", "NkiTensor",
)  # fmt: skip

TENSOR_MEMBERS = (
    "shape", "strides", "offset", "name", "dtype", "buffer", "ndim", "size", "is_contiguous", "get_pattern",
    "is_indirect", "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "reshape",
    "rearrange", "slice", "select", "vector_select", "ap", "view", "reinterpret_cast",
)  # fmt: skip

#: Methods of NkiTensor that need NeuronCore-v4.
TENSOR_GEN4 = ("indirect",)
