"""The probes, by engine: the constants of each, and why its slope determines them.

A latency and the hop to its reader always come as a sum, so one of every such pair keeps its value: the hop to the same
engine, the hop to the array, `vector.lat_fixed_psum_ns`, and the time from a DMA's last packet to its reader. Plans
depend on the sums alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .kernels import arrays, streams, transfers
from .probe import Probe

#: Rounds of probes that tell a small part of their slopes.
_MORE = 4
_FEW = "independent instructions of few columns: the fixed part of the issue interval"
_MANY = "independent instructions of many columns: the rate"
_CHAIN = "each instruction waits for the one before: the latency, with a hop"


def _stream(
    name: str,
    step: str | tuple[str, ...],
    columns: int,
    *constants: str,
    engine: str = "vector",
    dtype: str = "bfloat16",
) -> Probe:
    """Independent instructions, on several tiles in rotation."""
    steps, tiles = (step,) if isinstance(step, str) else step, 8
    settings = {"steps": steps, "engines": (engine,) * len(steps), "columns": columns, "tiles": tiles}
    shape, design = (streams.PARTITIONS, (tiles + 1) * columns), _FEW if columns < 64 else _MANY
    return Probe(name, design, streams.stream, shape, (64, 512), constants, settings, dtype)


def _chain(name: str, steps: tuple[str, ...], engines: tuple[str, ...], *constants: str, design: str = _CHAIN) -> Probe:
    """Instructions on one tile, on these engines in rotation."""
    settings = {"steps": steps, "engines": engines, "columns": 8, "tiles": 1}
    counts = 12 * len(steps), 120 * len(steps)
    shape = streams.PARTITIONS, 16
    return Probe(name, design, streams.stream, shape, counts, constants, settings)


def _vector() -> list[Probe]:
    stt = "scalar_tensor_tensor"
    return [
        _stream("vector_4x_few", "tensor_scalar", 16, "vector.issue_fixed_sbuf_ns"),
        _stream("vector_4x", "tensor_scalar", 1024, "vector.ns_per_elem_4x"),
        _stream("vector_2x", "tensor_tensor", 1024, "vector.ns_per_elem_2x"),
        _stream("vector_2x_fp32", "tensor_scalar", 512, "vector.ns_per_elem_2x", dtype="float32"),
        _stream("vector_1x", "tensor_tensor", 512, "vector.ns_per_elem_1x", dtype="float32"),
        _stream("vector_operand", "tensor_scalar_operand", 16, "vector.issue_fixed_ptrscalar_extra_ns"),
        _stream("vector_stt", stt, 512, "vector.ns_per_elem_scalar_tensor_tensor"),
        _stream("vector_stt_fp32", stt, 512, "vector.ns_per_elem_scalar_tensor_tensor", dtype="float32"),
        _stream("vector_stt_operand", f"{stt}_operand", 16, "vector.issue_fixed_scalar_tensor_tensor_ns"),
        _stream("vector_memset_few", ("memset", "tensor_scalar"), 16, "vector.memset_issue_fixed_ns"),
        _stream("vector_memset", ("memset", "tensor_scalar"), 1024, "vector.memset_ns_per_elem"),
        Probe(
            "vector_casts", "bf16 to fp32, and back: the first rate", streams.casts, (streams.PARTITIONS, 8 * 512),
            (32, 256), ("vector.bf16_to_fp32_copy_ns_elem",), {"columns": 512, "tiles": 8},
        ),
        _chain("vector_chain", ("tensor_scalar",), ("vector",), "vector.lat_fixed_sbuf_ns"),
        _chain("vector_chain_tensors", ("tensor_tensor",), ("vector",), "vector.lat_fixed_tensor_tensor_ns"),
        _chain("vector_chain_operand", ("tensor_scalar_operand",), ("vector",), "vector.lat_fixed_ptrscalar_ns"),
        Probe(
            "loop_branch", "iterations of a loop on the device, with four instructions each", streams.loop,
            (streams.PARTITIONS, 64), (16, 144), ("control.compare_branch_ns",), {"columns": 16, "tiles": 4},
        ),
    ]  # fmt: skip


def _scalar() -> list[Probe]:
    tables = "two functions in rotation: each loads the activation table of the other's place"
    return [
        _stream("scalar_few", "sigmoid", 16, "scalar.copy_issue_ns", engine="scalar"),
        _stream("scalar", "sigmoid", 512, "scalar.ns_per_elem", engine="scalar"),
        _stream("scalar_bias", "sigmoid_operand", 16, "scalar.act_bias_issue_sbuf_ns", engine="scalar"),
        _chain("scalar_chain", ("sigmoid",), ("scalar",), "scalar.copy_lat_sbuf_ns"),
        _chain("scalar_chain_bias", ("sigmoid_operand",), ("scalar",), "scalar.act_lat_sbuf_ns"),
        _chain(
            "scalar_tables", ("sigmoid", "tanh"), ("scalar", "scalar"), "scalar.act_table_load_ns", design=tables
        ),
    ]  # fmt: skip


def _gpsimd() -> list[Probe]:
    return [
        _stream("gpsimd_few", "tensor_tensor", 16, "gpsimd.issue_fixed_ns", engine="gpsimd"),
        _stream("gpsimd", "tensor_tensor", 512, "gpsimd.elementwise_ns_per_elem", engine="gpsimd"),
        _stream("gpsimd_select_few", "affine_select", 16, "gpsimd.affine_select_issue_fixed_ns", engine="gpsimd"),
        _stream("gpsimd_select", "affine_select", 512, "gpsimd.affine_select_ns_per_elem", engine="gpsimd"),
        _chain("gpsimd_chain", ("tensor_tensor",), ("gpsimd",), "gpsimd.lat_fixed_ns"),
        Probe(
            "gpsimd_gather", "each gather waits for the one before: many columns, the rate", streams.gathers,
            (streams.PARTITIONS, 256), (4, 40), ("gpsimd.n_gather_ns_per_elem",), {"columns": 256}, "float32",
        ),
    ]  # fmt: skip


def _hops() -> list[Probe]:
    """Chains through two engines. Each has both latencies and both hops, so that three pairs tell three hops."""
    steps = {"vector": "tensor_scalar", "scalar": "sigmoid", "gpsimd": "tensor_tensor"}
    found = []
    for a, b in (("vector", "scalar"), ("vector", "gpsimd"), ("scalar", "gpsimd")):
        found.append(
            _chain(f"hops_{a}_{b}", (steps[a], steps[b]), (a, b), f"sync.hop_to_{a}_ns", f"sync.hop_to_{b}_ns")
        )
    return found


def _products(name: str, design: str, columns: int, *constants: str, rows: int = 128, dtype: str = "bfloat16") -> Probe:
    shape = streams.PARTITIONS, 2 * streams.PARTITIONS + columns
    counts = (128, 384) if columns >= 512 else (256, 1024)
    rounds = 1 if rows == streams.PARTITIONS else _MORE
    settings = {"columns": columns, "rows": rows}
    return Probe(name, design, arrays.products, shape, counts, constants, settings, dtype, rounds)


def _evacuation(name: str, read: str, engine: str, pieces: int, *constants: str, banks: int = 4) -> Probe:
    design = "matmuls and the evacuation of their banks in pieces: the engine that reads PSUM binds"
    if banks == 1:
        design = "one bank: matmul and evacuation wait for each other"
    shape = streams.PARTITIONS, streams.PARTITIONS + banks * arrays.BANK_COLUMNS
    settings = {"read": read, "engine": engine, "pieces": pieces, "banks": banks}
    counts = (8, 64) if pieces == 1 else (4, 24)
    rounds = _MORE if banks == 1 else 1
    return Probe(name, design, arrays.evacuations, shape, counts, constants, settings, rounds=rounds)


def _tensor() -> list[Probe]:
    wide = "matmuls of 512 columns at full rate: a column"
    return [
        _products("matmul", wide, 512),
        _products("matmul_fp32", wide, 512, "pe.cyc_per_row_fp32_pass", dtype="float32"),
        _products("matmul_narrow", "matmuls of 32 columns: the least interval", 32, "pe.min_interval_rows"),
        _products(
            "row_tiles_narrow", "matmuls of 128 columns on four row tiles in rotation: the issue binds", 128,
            "pe.row_tile_interval_rows", rows=32,
        ),
        _products(
            "row_tiles_160", "matmuls of 160 columns on four row tiles: what they wait for each other", 160,
            "pe.row_tiles_overlap", rows=32,
        ),
        _products(
            "row_tiles", "matmuls of 512 columns on four row tiles in rotation: at best four times as many", 512,
            "pe.row_tiles_overlap", rows=32,
        ),
        Probe(
            "matmul_double_row", "fp8 matmuls of 512 columns and 256 rows of K: modelled as bf16's of 128",
            arrays.double_rows, (streams.PARTITIONS, 2, 768), (128, 384), (), {"columns": 512},
        ),
        Probe(
            "transpose", "transposes of [128, 128] bf16: modelled as matmuls of 128 columns", arrays.transposes,
            (streams.PARTITIONS, 512), (48, 128), (),
        ),
        Probe(
            "transpose_fp32", "transposes of [128, 128] fp32: one pass", arrays.transposes, (streams.PARTITIONS, 512),
            (32, 96), ("pe.cyc_per_row_fp32_pass",), {}, "float32",
        ),
        _evacuation("evacuate_vector_few", "copy", "vector", 32, "vector.issue_fixed_psum_ns"),
        _evacuation("evacuate_vector", "copy", "vector", 1, "vector.ns_per_elem_1x"),
        _evacuation("evacuate_vector_add", "add", "vector", 1, "vector.ns_per_elem_1x"),
        _evacuation("evacuate_vector_operand", "scale", "vector", 32, "vector.issue_fixed_ptrscalar_extra_ns"),
        _evacuation("evacuate_scalar_few", "copy", "scalar", 32, "scalar.copy_issue_ns"),
        _evacuation("evacuate_scalar", "copy", "scalar", 4, "scalar.ns_per_elem"),
        _evacuation("evacuate_scalar_bias", "bias", "scalar", 32, "scalar.act_bias_issue_psum_ns"),
        _evacuation("matmul_chain", "copy", "vector", 1, "pe.completion_half_ns", banks=1),
    ]  # fmt: skip


def _loads(
    name: str, design: str, mode: str, rows: int, runs: int, elements: int, counts: tuple[int, int], *constants: str,
    engine: str = "unknown",
) -> Probe:  # fmt: skip
    settings = {"mode": mode, "engine": engine, "rows": rows, "runs": runs, "elements": elements}
    pitch = max(2 * elements, 16)
    return Probe(name, design, transfers.loads, (rows, counts[1], runs, pitch), counts, constants, settings)


def _triggers() -> list[Probe]:
    one, all_rows = (
        "DMAs of one row: the trigger binds",
        "DMAs of 128 rows: the trigger, unless the engines take longer",
    )
    few, some = (64, 512), (16, 128)
    return [
        _loads("static_loads", one, "none", 1, 1, 32, few, "dma.static_issue_ns"),
        Probe(
            "static_stores", one, transfers.stores, (1, 32), few, ("dma.static_issue_ns",),
            {"mode": "none", "engine": "unknown"},
        ),
        _loads("static_loads_128", all_rows, "none", 128, 1, 32, some, "dma.static_issue_ns"),
        _loads("hwdge_loads_row", one, "hwdge", 1, 1, 32, few, "dma.hwdge_issue_row_ns", engine="sync"),
        _loads("hwdge_loads_128", all_rows, "hwdge", 128, 1, 32, some, "dma.hwdge_again_ns", engine="sync"),
        _loads("hwdge_loads_scalar", all_rows, "hwdge", 128, 1, 32, some, "dma.hwdge_again_ns", engine="scalar"),
        _loads("default_loads_128", all_rows, "unknown", 128, 1, 32, some, "dma.hwdge_again_ns"),
        Probe(
            "hwdge_after_pause", "stores that Scalar triggers after eight activations each: its work waits for them",
            transfers.stores_between, (streams.PARTITIONS, 32), some, ("dma.hwdge_issue_ns",),
        ),
        _loads("swdge_loads_128", all_rows, "swdge", 128, 1, 32, some, "dma.swdge_issue_gap_ns"),
    ]  # fmt: skip


def _elements() -> list[Probe]:
    design = "loads into eight rows, which one DMA engine serves: an element of "
    return [
        _loads("elements_2", design + "2 B", "none", 8, 16, 1, (8, 48), "dma.tiny_element_ns"),
        _loads("elements_64", design + "64 B", "none", 8, 16, 32, (16, 128), "dma.small_element_ns"),
        _loads("elements_256", design + "256 B", "none", 8, 8, 128, (8, 64), "dma.element_overhead_ns"),
        _loads("elements_512", design + "512 B", "none", 8, 4, 256, (8, 64), "dma.element_overhead_ns"),
        _loads("elements_4096", design + "4 KiB", "none", 8, 1, 2048, (4, 32), "dma.engine_bytes_per_ns"),
        _loads(
            "core_loads", "loads of 4 KiB rows by all of a core's engines", "none", 128, 1, 2048, (4, 32),
            "dma.steady_core_gbps",
        ),
        Probe(
            "dma_transpose", "transposes of [512, 128] from HBM: the share of the rate", transfers.transposed_loads,
            (96, 512, 128), (16, 96), ("dma.dma_transpose_frac_hbm",), {"within": False},
        ),
        Probe(
            "dma_transpose_sbuf", "transposes of [128, 128] within SBUF", transfers.transposed_loads, (96, 128, 128),
            (16, 96), ("dma.dma_transpose_frac_sbuf",), {"within": True},
        ),
    ]  # fmt: skip


def _relay(name: str, rows: int, mode: str, *constants: str) -> Probe:
    design = f"a tile of {rows} rows that DMAs move, each after the one before: the first packet's latency"
    settings = {"mode": mode, "through": False}
    return Probe(name, design, transfers.relay, (rows, 32), (16, 96), constants, settings, rounds=_MORE)


def _copies(name: str, cores: int, elements: int, counts: tuple[int, int], *constants: str) -> Probe:
    design = (
        f"copies within HBM in runs of {2 * elements} B, {cores} core{'s' * (cores > 1)}: each byte crosses it twice"
    )
    shape = cores, streams.PARTITIONS, counts[1], elements
    return Probe(name, design, transfers.copies, shape, counts, constants, rounds=_MORE)


def _memory() -> list[Probe]:
    return [
        _relay("relay_static", 8, "none", "dma.static_first_packet_ns"),
        _relay("relay_static_128", 128, "none", "dma.engine_skew_load_ns"),
        _relay("relay_hwdge", 8, "hwdge", "dma.hwdge_first_packet_load_ns"),
        _copies("hbm_long", 2, 8192, (2, 8), "dma.hbm_shared_gbps"),
        _copies("hbm_short", 2, 1024, (8, 64), "dma.hbm_run_ns"),
        _copies("hbm_one_core", 1, 8192, (2, 8)),
    ]


def _cores() -> list[Probe]:
    shape, counts = (streams.PARTITIONS, 16), (8, 64)
    return [
        Probe(
            "barrier", "barriers one after another", transfers.exchanges, shape, counts, ("lnc2.barrier_seam_ns",),
            {"send": False}, rounds=_MORE,
        ),
        Probe(
            "sendrecv", "exchanges of 4 KiB one after another", transfers.exchanges, shape, counts,
            ("lnc2.sendrecv_4k_ns",), {"send": True}, rounds=_MORE,
        ),
    ]  # fmt: skip


_PARTS: tuple[Callable[[], list[Any]], ...] = (
    _vector, _scalar, _gpsimd, _hops, _tensor, _triggers, _elements, _memory, _cores
)  # fmt: skip
#: All probes, in the order in which they run.
PROBES: tuple[Probe, ...] = tuple(probe for part in _PARTS for probe in part())
