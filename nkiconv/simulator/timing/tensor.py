"""Prices of the Tensor Engine.

One matmul loads its stationary operand and streams the moving one, a column a cycle for 16-bit and fp8 data; the load
hides behind the stream before it. fp32 makes two passes of two cycles a column, an fp32 transpose one pass.
"""

from __future__ import annotations

from typing import Any

from .. import hardware as hw
from .prices import TensorPrice
from .rates import Rates


def tensor_price(dtype: str, params: dict[str, Any], rates: Rates) -> TensorPrice:
    """Price of an nc_matmul or nc_transpose.

    Args:
        dtype: of the moving operand (fp32 and tf32 only meet each other; fp32 is the slower).
        params: contraction, columns, moving_columns, is_transpose, onezero, tile_position, tile_size. Column tiles are
            priced as the whole array: that they run side by side is documented, how much that saves is not.
    """
    columns = params["moving_columns"]
    passes, cycles = _passes(dtype, params, rates)
    column_ns = rates.cycle_ns("pe") * passes * cycles
    tile_size, tile_position = params.get("tile_size", ()), params.get("tile_position", ())
    tiled = bool(tile_size) and tile_size[0] < hw.PARTITIONS
    rows = tile_size[0] if tiled else hw.PARTITIONS
    interval = float(columns)
    if columns < hw.STATIONARY_FREE_MAX:
        interval = max(columns, rates("pe.min_interval_rows"))
    issue = rates("pe.row_tile_interval_rows") * column_ns if tiled else 0.0
    overlap = rates("pe.row_tiles_overlap") if tiled else 0.0
    share = rows / hw.PARTITIONS
    gap = passes * rates("pe.issue_overhead_fp32_ns") if passes > 1 else rates("pe.issue_overhead_ns")
    full, half = _loads(passes, cycles)
    flops = 0 if params["is_transpose"] else 2 * params["contraction"] * params["columns"] * columns
    return TensorPrice(
        stream_ns=columns * column_ns,
        interval_ns=interval * column_ns,
        gap_ns=gap,
        between_ns=gap * (passes - 1) / passes if passes > 1 else 0.0,
        load_ns=rates(full),
        load_half_ns=rates(half),
        work=share + (1.0 - share) * (1.0 - overlap),  # a matmul on all rows overlaps with no other
        first_row=tile_position[0] if tiled else 0,
        rows=rows,
        tiled=tiled,
        issue_ns=issue,
        overlap=overlap,
        flops=flops,
        constants=rates.take_read(),
    )


def _passes(dtype: str, params: dict[str, Any], rates: Rates) -> tuple[float, float]:
    """Passes over the moving operand, and cycles a column in each."""
    if dtype != "float32":
        return 1, rates("pe.cyc_per_row_16bit")
    passes = 1.0 if params["is_transpose"] else rates("pe.fp32_passes")
    if params.get("onezero") and not params["is_transpose"]:
        passes /= rates("pe.onezero_speedup_fp32")
    return passes, rates("pe.cyc_per_row_fp32_pass")


def _loads(passes: float, cycles: float) -> tuple[str, str]:
    """Names of the constants from operands there to stream after a pause, at full and at half rate."""
    if passes * cycles == 1:
        return "pe.cold_ldw_16bit_full_ns", "pe.cold_ldw_16bit_half_ns"
    if passes == 1:
        return ("pe.cold_ldw_fp32_transpose_ns",) * 2
    return "pe.cold_ldw_fp32_full_ns", "pe.cold_ldw_fp32_half_ns"
