"""The rules that the simulator enforces, as one table, and `fail`, which raises one of them.

Ids never change meaning. Sources: "guide" = NKI language guide, "aps" = access-pattern guide, "isa X" = contract of
nki.isa.X, "arch"/"inf2" = architecture guides, "rn" = NKI release notes, "mig" = migration guide, "lnc" = LNC guide.
"""

# ruff: noqa: E501  a table with one rule a line

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from .errors import NkiError

_PACKAGE = __name__.rpartition(".")[0]
#: Modules between a kernel and a rule: NumPy's functions ask for the arrays of their arguments.
_WITHIN = (_PACKAGE, "numpy.")


@dataclass(frozen=True)
class Rule:
    """One rule: stable id, text, source, and remedy."""

    id: str
    text: str
    source: str
    remedy: str


# fmt: off
_TABLE = (
    # Tensors, views and memory.
    ("NKI001", "a tensor's dtype is one that trn2 stores", "nki-dtype", "use a dtype of nki.language that trn2 has"),
    ("NKI002", "a shape is a tuple of positive ints; on chip it has at least 2 dims", "guide", "give partition and free sizes >= 1"),
    ("NKI003", "an SBUF or PSUM tensor has at most 128 partitions", "rn 0.6", "tile dim 0 by nl.tile_size.pmax"),
    ("NKI004", "a view has at most 5 dims", "guide", "merge dims with flatten_dims or reshape"),
    ("NKI005", "a buffer is a memory region object of nki.language", "mig 0.3", "use nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm"),
    ("NKI006", "an index or slice stays inside its dimension", "guide", "clip the slice to the tensor's shape"),
    ("NKI007", "a slice is not empty and its step is at least 1", "isa NkiTensor.slice", "skip empty tiles; use a positive step"),
    ("NKI008", "the partition dim of an on-chip tensor stays dim 0, unsplit and unmerged", "isa NkiTensor", "move data across partitions with nc_transpose or dma_copy"),
    ("NKI009", "a reshape keeps the number of elements", "rn 0.5", "give sizes whose product is the tensor's size"),
    ("NKI010", "reshape, flatten_dims and view need the touched dims contiguous", "isa NkiTensor", "copy into a fresh tile first"),
    ("NKI011", "on chip the first step of an access pattern is the tensor's free size", "aps", "write [[free_size, partitions], ...]"),
    ("NKI012", "an access pattern stays inside the tensor's storage", "aps", "reduce the counts, the steps or the offset"),
    ("NKI013", ".ap with an explicit offset is only used on a tensor that starts at its storage", "aps and isa NkiTensor.ap disagree", "call .ap on the tensor itself, not on a view of it"),
    ("NKI014", "broadcast and squeeze_dim take a dimension of size 1", "isa NkiTensor", "slice the dimension to size 1 first"),
    ("NKI015", "a dimension, permutation or pattern names each dim exactly once", "isa NkiTensor", "list every dim once"),
    ("NKI016", "an instruction reads only elements that something wrote", "guide: ndarray does not initialise", "write or memset the elements first"),
    ("NKI017", "a destination addresses each element once", "aps", "write to a view without stride 0 or overlap"),
    ("NKI018", "live SBUF tensors fit 212,728 bytes per partition", "nki-library", "use smaller tiles or fewer buffers"),
    ("NKI019", "live PSUM tensors fit 8 banks of 2 KiB a partition", "arch", "use smaller tiles or fewer accumulators"),
    ("NKI020", "an explicit address lies in the buffer and overlaps no live tensor", "isa ndarray", "choose another (partition, byte) address"),
    ("NKI021", "a tensor is used by the program that made it, while it runs", "lnc", "pass data between cores through shared_hbm"),
    ("NKI022", "a kernel returns tensors of nl.shared_hbm", "mig 0.3", "allocate outputs with buffer=nl.shared_hbm"),
    ("NKI023", "a kernel writes every element of what it returns", "guide: ndarray does not initialise", "store every tile, the last partial ones too"),
    ("NKI024", "a kernel takes no list arguments", "mig 0.3", "pass a tuple"),
    ("NKI025", "an array argument has a dtype and layout that trn2 stores", "nki-dtype", "cast or copy it before the call"),
    ("NKI026", "a launch grid is one int, the LNC degree in use", "rn 0.5, lnc", "launch with kernel[1] or kernel[2], as NEURON_LOGICAL_NC_CONFIG says"),
    ("NKI027", "both programs of a launch run the same control flow", "lnc", "make only indices depend on program_id"),
    ("NKI028", "no two cores touch the same shared element, one of them changing it, without a barrier between", "isa core_barrier", "give the cores disjoint parts or call nisa.core_barrier"),
    ("NKI029", "NKI calls run inside a kernel", "guide", "call them from a function given to nki.jit or nki.simulate"),
    ("NKI030", "enum parameters take enum members", "mig 0.3", "use the members of nki.isa's enums, not ints or strings"),
    ("NKI031", "tensor contents are not known while the kernel is built", "guide", "compute with nki.isa instructions"),
    ("NKI032", "a register or NkiScalar does not steer Python", "isa VirtualRegister, NkiScalar", "use nl.fori_loop or nl.while_loop"),
    ("NKI033", "a kernel writes only to arrays that are writable", "simulator", "pass a writable array"),
    ("NKI034", "a core runs at most 5,000,000 instructions", "reported by users as NCC_EBVF030", "split the work over several calls, or use larger tiles"),
    ("NKI035", "the target platform is trn2", "simulator guide", "unset NEURON_PLATFORM_TARGET_OVERRIDE or set it to trn2"),
    ("NKI036", "a run-time index is a static int32 or uint32 tensor in SBUF, [1, 1] or [P, 1], or (scalar_offset) a register or NkiScalar", "aps, isa dma_copy", "copy the indices to an int32 tile in SBUF"),
    ("NKI037", "a view has one indirection, which stays as it is: no second index, other dtype or change of the indexed dim", "isa NkiTensor.is_indirect", "reshape, view and slice first, then index"),
    ("NKI038", "a vector of indices counts dim 0 of an HBM tensor, a scalar index any dim but the partition dim", "isa NkiTensor.select, vector_select", "index another dim, or move the data to HBM"),
    ("NKI039", "an index of .ap counts a dim of a dense tensor and keeps its element size", "aps and isa NkiTensor.ap disagree", "call .ap on the tensor itself, or on .view(dtype) of it"),
    # Operands of any compute instruction.
    ("NKI040", "each operand is in a memory that the engine reads or writes", "isa memory types", "copy it to the right memory first"),
    ("NKI041", "the engine can run the instruction", "isa", "choose one of the engines named"),
    ("NKI042", "GpSimd does not touch PSUM", "arch", "use the Vector or Scalar Engine, or copy to SBUF"),
    ("NKI043", "operands start at partition 0 (over 64 partitions), 0/64 (33-64) or 0/32/64/96 (up to 32)", "inf2", "align the slice's first partition"),
    ("NKI044", "operands have the same number of partitions", "isa tile size", "slice them alike"),
    ("NKI045", "operands have the same number of elements a partition", "isa tile size", "slice them alike"),
    ("NKI046", "an operand walks at most 3 free dims (4 for tensor_reduce, iota, affine_select)", "aps", "split the instruction"),
    ("NKI047", "two input tensors are not both in PSUM", "isa tensor_tensor", "copy one of them to SBUF"),
    ("NKI048", "the op is one that the instruction supports", "nki-aluop, nki-act-func", "choose an op of the table"),
    ("NKI049", "the op, argument or call exists on trn2", "isa", "it needs NeuronCore-v4"),
    ("NKI050", "bitvec ops take integer tensors and are not mixed with arithmetic ops", "isa tensor_scalar", "use integer dtypes and ops of one kind"),
    ("NKI051", "a scalar operand is a number or a float32 tile of one element a partition", "isa tensor_scalar", "pass a float or an fp32 [P, 1] tile"),
    ("NKI052", "the tensors named have the same dtype", "isa", "cast with tensor_copy first"),
    ("NKI053", "an axis has at most 65,535 elements and a stride of at most 32,767 elements", "inf2", "split the free axis"),
    ("NKI054", "only dma_copy, dma_transpose, dma_compute and (on chip, with a scalar index) tensor_copy take an indirect view", "aps, isa dma_copy, mig 0.4", "copy it to a tile first"),
    ("NKI055", "int64 is moved by dma_copy, without a cast, and by scalar_load and scalar_store; nothing computes on it", "isa scalar_load", "use int32, or compute on an NkiScalar"),
    # Vector, Scalar and GpSimd instructions.
    ("NKI060", "memset's value is a number of the tensor's kind and range", "mig 0.3", "pass an int for integer tensors"),
    ("NKI061", "the predicate is an unsigned (select_reduce: 8/16-bit) integer tensor", "isa tensor_copy_predicated", "make the predicate uint8"),
    ("NKI062", "axis names the last free dims, contiguously, never dim 0", "isa tensor_reduce", "reduce the innermost dims"),
    ("NKI063", "the reduction op is one that the instruction reduces with", "nki-aluop", "choose a legal reduction op"),
    ("NKI064", "negate goes with arithmetic ops", "isa tensor_reduce", "drop negate"),
    ("NKI065", "bn_stats reads at most 512 elements a partition and writes 6", "isa bn_stats", "tile by nl.tile_size.bn_stats_fmax"),
    ("NKI066", "bn_aggr reads triples and writes 2 elements a partition", "isa bn_aggr", "pass outputs of bn_stats"),
    ("NKI067", "op is an activation function", "nki-act-func", "choose a function of the table"),
    ("NKI068", "the accumulator arguments fit the instruction", "isa activation", "see reduce_op, reduce_cmd and reduce_res"),
    ("NKI069", "an activation's input is inside its valid range", "nki-act-func", "clamp the input first"),
    ("NKI070", "scale is a float or fp32 [P, 1]; bias a float or a [P, 1] tile that is not tf32", "isa activation", "cast scale or bias"),
    ("NKI071", "a pattern is at most 4 pairs [step, count] that cover the free elements", "isa iota", "make the counts multiply to the elements a partition"),
    ("NKI072", "on_false_value is a float", "isa affine_select", "write 0.0, not 0"),
    ("NKI073", "a shuffle mask has 32 entries, each 0-31 or 255", "isa nc_stream_shuffle", "fix the mask"),
    ("NKI074", "Scalar runs multiply-add, multiply or add; GpSimd runs rsqrt, and only that; Vector runs the rest", "isa tensor_scalar", "use engine.vector"),
    ("NKI075", "a unary op takes no operand (None or 0)", "isa tensor_scalar", "drop the operand"),
    ("NKI076", "op1 and operand1 come together", "isa tensor_scalar", "give both or neither"),
    ("NKI077", "accumulator registers are reset before they are reduced into or read", "isa tensor_scalar_reduce", "start with reduce_cmd.reset_reduce"),
    ("NKI078", "reverse0 is not supported by tensor_scalar_reduce", "isa tensor_scalar_reduce", "reorder the operation"),
    ("NKI079", "shuffled tensors start at a partition that the number of active quadrants allows", "isa nc_stream_shuffle", "align src and dst"),
    ("NKI080", "offset and channel_multiplier are int32 constants", "isa iota", "pass ints of at most 32 bits"),
    ("NKI081", "a search reads tiles of at most 3 dims with 8 (match_replace8: 1) to 16,384 elements a partition, and looks for 8 values; max8 and find_index8 write [P, 8]", "isa max8, nc_find_index8", "reshape or split the free dims; give the small tile 8 elements a partition"),
    ("NKI082", "a search writes indices as uint16 or uint32", "isa nc_find_index8", "make the index tile uint32"),
    ("NKI083", "values that are put in order hold no NaN", "no document places one", "clean the data first"),
    ("NKI084", "range_start is an int and all indices lie within 2^24", "isa range_select", "split the range"),
    ("NKI085", "range_select writes FP32_MIN where a test fails", "isa range_select", "pass -3.4028235e+38, or nothing"),
    ("NKI086", "local_gather reads whole groups of 16 partitions, 1 to 4096 indices a core, 1, 2, 4, 8, 16 or 32 elements each", "isa local_gather", "pad the partitions or split the gather"),
    ("NKI087", "gathered elements lie inside their partition", "isa local_gather, nc_n_gather", "clip the indices"),
    ("NKI088", "segment ids are whole numbers of at least 0", "isa sequence_bounds", "number the segments from 1; 0 is padding"),
    ("NKI089", "topk chooses 1 <= k < 32768 of 8 <= n < 65536 elements of 2-d tiles of whole groups of 16 partitions", "isa topk", "fix n or the tiles"),
    ("NKI090", "random bits are integers; a seed is 32 bits [1, 1], a state uint32 [P, 6]", "isa rng, set_rng_seed, rand_set_state", "use an integer tile of that shape"),
    ("NKI091", "a drop probability is between 0 and 1", "isa dropout", "clip the probability"),
    # Tensor Engine.
    ("NKI101", "stationary and moving have the same number of partitions (the contraction)", "isa nc_matmul", "slice both to the same rows"),
    ("NKI102", "the contraction fits the tile's rows, the stationary operand its columns", "isa nc_matmul", "use fewer of them or a larger tile_size"),
    ("NKI103", "the stationary operand has at most 128 columns", "isa nc_matmul", "split the stationary free dim"),
    ("NKI104", "the moving operand has at most 512 columns", "isa nc_matmul", "split the moving free dim into tiles of 512"),
    ("NKI105", "dst is [stationary columns, moving columns]", "isa nc_matmul", "slice dst to the product's shape"),
    ("NKI106", "dst of a matmul is float32", "isa nc_matmul", "allocate the PSUM tile as nl.float32"),
    ("NKI107", "matmul operands are fp8, bf16, fp16, or both fp32/tf32", "isa nc_matmul", "cast one operand"),
    ("NKI108", "a matmul result lies inside one PSUM bank", "arch", "keep dst within 2 KiB a partition of one bank"),
    ("NKI109", "accumulate=True adds to what a matmul wrote", "isa nc_matmul", "start with accumulate=False (a memset does not count)"),
    ("NKI111", "double_row takes fp8 operands [K, 2, M] and [K, 2, N], untiled columns", "isa nc_matmul", "reshape the operands or drop perf_mode"),
    ("NKI112", "tile_position and tile_size come together, rows and columns 32, 64 or 128, starts multiples of them", "isa nc_matmul", "fix the tile"),
    ("NKI113", "a transposing matmul keeps the dtype, needs a square moving operand, and does not accumulate", "isa nc_matmul, arch", "use nc_transpose"),
    ("NKI114", "nc_transpose is [128, 128] SBUF to PSUM on Tensor, [32, 32] on Vector", "isa nc_transpose", "tile the transpose"),
    ("NKI115", "a PSUM address is aligned to 4 bytes", "nl.tile_size.psum_min_align", "start at an even 16-bit element"),
    # DMA.
    ("NKI130", "DMA does not touch PSUM", "mig 0.3", "copy PSUM to SBUF with tensor_copy"),
    ("NKI131", "DMA moves as many elements as it writes", "isa dma_copy", "slice src and dst to the same number of elements"),
    ("NKI132", "hwdge does not cast", "mig 0.3", "use the default dge_mode, or .view"),
    ("NKI133", "engine is sync or scalar, and only with dge_mode.hwdge", "isa dma_copy", "drop engine, or set dge_mode=nisa.dge_mode.hwdge"),
    ("NKI134", "oob_mode.skip goes with an indirect access", "isa dma_compute", "drop oob_mode"),
    ("NKI135", "dma_compute adds 1 to 16 sources with scales of 1.0", "isa dma_compute", "use an engine instruction"),
    ("NKI136", "dma_transpose reverses 2-d and 3-d, swaps the ends of 4-d, into SBUF of exactly that shape", "isa dma_transpose", "fix axes or dst"),
    ("NKI137", "the hardware transposes 2-byte data with a last dim of at most 128 and an allowed first dim", "isa dma_transpose", "use dge_mode.unknown or another shape"),
    ("NKI138", "a run-time index is inside its dim and the access inside the tensor, unless oob_mode.skip", "isa dma_copy", "clip the index, or pass oob_mode=nisa.oob_mode.skip"),
    ("NKI139", "a vector of indices is for one side of a DMA of unknown or swdge mode, one for each row; a scalar index for any mode but none", "DGE guide", "use the default dge_mode"),
    ("NKI140", "a dma_compute with indices has 2 sources: SBUF adds HBM rows to itself, or HBM rows add an SBUF tile, each row once", "isa dma_compute", "gather with dma_copy first"),
    ("NKI141", "an indirect dma_transpose reads HBM rows of 2-byte data by uint32 indices [16..128, I]", "isa dma_transpose", "gather with dma_copy, then transpose"),
    # Two cores and registers.
    ("NKI150", "core_barrier and sendrecv need LNC2", "isa core_barrier", "launch with kernel[2]"),
    ("NKI151", "core_barrier takes a shared_hbm tensor, cores=(0, 1) and an engine of the core, which DMA is not", "isa core_barrier", "pass the shared tensor; leave the engine to GpSimd"),
    ("NKI152", "sendrecv exchanges equal SBUF tiles between ranks 0 and 1", "isa sendrecv", "make src and dst alike"),
    ("NKI153", "GpSimd's DMA moves at most 1024/512/256 bytes per partition of 32/16/8-bit data", "isa sendrecv", "use dma_engine.dma"),
    ("NKI154", "both cores meet at the same barrier or sendrecv", "isa core_barrier", "call it on both cores in the same order"),
    ("NKI160", "register calls take registers, 32-bit ints and one-element tensors", "isa register_alloc", "allocate with nisa.register_alloc"),
    ("NKI161", "an NkiScalar is the int32 or int64 of a [1, 1] tile, computed by + - * with ints and scalars of its dtype; an int64 indexes HBM alone", "isa NkiScalar, scalar_load, scalar_store", "load it with nisa.scalar_load; write ints with nisa.memset"),
    # Device loops, scheduling and annotations.
    ("NKI170", "a device loop has int, int32 NkiScalar or register bounds, a positive compile-time step, and register conditions", "isa fori_loop, while_loop", "pass ints, nisa.scalar_load's scalars, or registers from nisa.register_alloc"),
    ("NKI171", "a device loop is not opened inside nl.no_reorder", "isa no_reorder", "open the no_reorder block in the loop's body"),
    ("NKI172", "the induction register of a dynamic_range loop is not written", "rn 0.4", "copy it with nisa.register_move first"),
    ("NKI173", "an instruction waits for others, of its own iteration of a device loop or from outside the loop", "isa NkiInstruction.depends_on", "order instructions of one body"),
    ("NKI174", "a schedule is pairs (later, earlier) of names that one instruction each bears", "scheduling guide", "give the instructions different names; put the later one first"),
    ("NKI176", "the iterations of a device loop do the same: hardware has one copy of the body", "dynamic loops guide", "use nl.static_range for what Python changes, or registers and tensors for what the device counts"),
    ("NKI177", "a device loop ends by its bounds: no break or return leaves it", "dynamic loops guide", "compute the bound first, or use nl.while_loop"),
    ("NKI178", "a tensor that a device loop's body allocates is one memory: it holds what the last iteration put there", "dynamic loops guide", "allocate it before the loop, with a dim for the iterations"),
    ("NKI179", "both cores run a device loop equally often", "lnc guide", "give both cores the same bound, and skip work by predicates"),
    ("NKI180", "topk writes its results like its input, element i at partition i % 16 and column i // 16 of its 16 partitions: the first ceil(k / 16) columns, and of the last the first k % 16 partitions", "topk of nki-library; isa topk says [P, k]", "read the results with that layout, as nki-library's gpsimd_topk does"),
    ("NKI181", "a grid cuts the last dims of a tensor, or of a grid, by tuples of positive ints of one length of at least 2", "nl.tiles, blocks, alloc_tiles, alloc_blocks", "give tile_shape, block_shape and element_shape as tuples of ints"),
    ("NKI182", "a grid is indexed by ints and by slices of step 1, inside it", "nl.tiles", "loop over range(grid.shape[0])"),
    ("NKI183", "`data` of several on-chip tiles is tiles side by side in one row of a 2-d grid", "nl.alloc_tiles, NkiGrid", "take a tile at a time, as is_data_representable says"),
    ("NKI184", "a call is one of the version of NKI that the launch is for (0.7 unless it says nki='0.6')", "mig 0.7", "use what that version has instead"),
    ("NKI185", "a kernel that another one calls has no compile_config of its own that differs from that one's", "isa nki.compiler.SpecializationConfig", "give the outer kernel the config, or SpecializationConfig(allow_nested_config_override=True)"),
    ("NKI175", "an argument has the shape that its nt.tensor annotation declares", "mig 0.3", "pass an array of that shape, or change the annotation"),
)
# fmt: on

RULES: dict[str, Rule] = {row[0]: Rule(*row) for row in _TABLE}


def kernel_frame() -> tuple[FrameType | None, str]:
    """First frame outside the simulator and NumPy, and the function that it called (the instruction's name)."""
    frame: FrameType | None = sys._getframe(2)
    op = "kernel"
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_WITHIN):
        op = frame.f_code.co_name
        if op == "__call__":  # an operator token: nl.add(x, y)
            op = getattr(frame.f_locals["self"], "name", op)
        frame = frame.f_back
    return frame, op


def kernel_line() -> tuple[str, str]:
    """file:line of the kernel that runs, "" for none, and the simulator function that it called."""
    frame, op = kernel_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "", op


def broken(rule: str, op: str, detail: str, operands: dict[str, str] | None = None, location: str = "") -> NkiError:
    """The error of a broken rule, with its remedy."""
    return NkiError(rule, op, detail, operands, location, RULES[rule].remedy)


def refuse_launch(rule: str, detail: str) -> NoReturn:
    """Raise a rule of launches."""
    raise broken(rule, "launch", detail)


def refused_call(rule: str, name: str, detail: str, **operands: Any) -> Callable[..., NoReturn]:
    """A call that code may name, and that breaks a rule when it is made."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise broken(rule, name, detail, _described(operands), kernel_line()[0])

    return refuse


def fail(rule: str, detail: str, **operands: Any) -> NoReturn:
    """Raise a rule as an `NkiError` for the instruction that is being called.

    Operands are described by their own `describe()` when they have one. The instruction's name and the kernel's source
    line come from the call stack.
    """
    location, op = kernel_line()
    raise broken(rule, op, detail, _described(operands), location)


def _described(operands: dict[str, Any]) -> dict[str, str]:
    return {name: value.describe() if hasattr(value, "describe") else repr(value) for name, value in operands.items()}
