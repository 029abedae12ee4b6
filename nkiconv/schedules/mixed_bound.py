"""The bound of `mixed` and `vector`: pieces pass one by one through clocks of the engines (`engines.Engines`).

It assumes that matmuls on zeros, whose number `planner.clock` finds, fill the wait for the first diagonals. It leaves
out states, zeros around x, gaps of a dilated x, filters after the first and loads of a separate residual, which hardly
depend on settings.
"""

from __future__ import annotations

from ..simulator.timing.target import Target
from .banded import config_unsupported
from .depthwise import Options, RowGeometry, arrival_ns, gate_ns, inputs_of
from .engines import Engines
from .mixed import (
    GATED_AHEAD,
    MixedPiece,
    MixedSchedule,
    MixedSettings,
    complete,
    cut_pieces,
    filter_block,
    mixed_cuts,
    widths_of,
)
from .options import Epilogue
from .recipes import vector_steps
from .rows import RowTile, run_length, tile_count, tile_list
from .tiles import BANK_COLUMNS, PARTS, div_ceil

#: Taps above which all recipes are alike: the engines besides Tensor take a small part of the taps.
MANY_TAPS = 64
#: Most tiles that the bound reads; the others take the rate of the second half of these.
LOOKED_AT = 12
#: Share of a throttle window in which matmuls on zeros bring the Tensor Engine to its full rate.
WARM_SHARE = 0.45
#: Most ns that they fill, and the share of a window that the Tensor Engine may wait and keep its full rate.
WARM_MOST_NS = 13_600.0
WAIT_SHARE = 0.5


def bound_ns(
    geometry: RowGeometry, options: Options, plan: MixedSchedule, target: Target, *, is_slow: bool = False
) -> float:
    """ns of a core, about. is_slow: the Tensor Engine is at half rate throughout, as its work does not keep it at full
    rate."""
    tiles, engines = tile_list(geometry, plan.rows, PARTS - 1, LOOKED_AT), Engines(target)
    if not tiles:
        return 0.0
    rows, taps = tiles[0].rows, min(filter_block(geometry), tiles[-1].t + 1 - tiles[0].t) * geometry.S
    filters_ns = engines.load(rows, target.row_ns(taps, geometry.w_s, 4), 4 * rows * taps)
    x = [_loads(geometry, plan, engines, tile, (i == 0, i == len(tiles) - 1)) for i, tile in enumerate(tiles)]
    if plan.taps:
        busy_ns = target.gpsimd_fixed_ns + plan.taps * rows * target.gpsimd_select_ns
        filters_ns = engines.on("gpsimd", filters_ns, busy_ns, busy_ns + target.gpsimd_done_ns)
    engines.gpsimd, first_ns = filters_ns, max(filters_ns, x[0][0][1])
    full_at = float("inf") if is_slow else target.window_ns * (1 if first_ns > WARM_SHARE * target.window_ns else 2)
    column_ns, matmul_ns = target.tensor_column_ns, target.matmul_ns
    if geometry.itemsize == 4:
        column_ns, matmul_ns = target.tensor_column_fp32_ns, 2 * target.matmul_fp32_ns
    streamed_ns, all_ns, gap_ns = 0.0, 0.0, first_ns if first_ns > WARM_MOST_NS else 0.0
    item, ends = options.epilogue.y_itemsize, [0.0] * len(tiles)
    arrived: list[float] = []
    pieces = cut_pieces(plan, options.epilogue, tiles)
    for place, piece in enumerate(pieces):
        for coming in pieces[len(arrived) : place + 1 + GATED_AHEAD]:
            there_ns = next((ns for end, ns in x[coming.tile] if end >= coming.q0 + coming.qn), x[coming.tile][-1][1])
            arrived.append(_gated(geometry, coming.qn * geometry.stride, engines, there_ns))
        there_ns, taps = arrived[place], piece.recipe[0]
        if taps:
            streamed_ns += taps * piece.qn * column_ns
            busy_ns = taps * (piece.qn * column_ns + div_ceil(piece.qn, BANK_COLUMNS) * matmul_ns)
            busy_ns = max(busy_ns, taps * target.matmul_columns_min * column_ns)
            start = max(engines.tensor, there_ns, filters_ns)
            gap_ns, all_ns = max(gap_ns, start - max(engines.tensor, first_ns)), all_ns + busy_ns
            slow_ns = max(0.0, min(full_at - start, busy_ns / target.half_rate))
            engines.tensor = start + slow_ns + busy_ns - slow_ns * target.half_rate
        ready_ns = _sums(piece, options.epilogue, engines, there_ns)
        tile = tiles[piece.tile]
        row_ns = target.row_ns(piece.qn, geometry.y_q, item)
        engines.store(ready_ns - target.hop_ns, tile.rows, row_ns, tile.rows * piece.qn * item, _dmas(tile))
        ends[piece.tile] = engines.stores
    least_ns = target.window_work * (engines.tensor - first_ns)
    # work that does not bring the array back to its full rate must not let it wait
    if gap_ns > WAIT_SHARE * target.window_ns and streamed_ns < target.window_work / target.half_rate * all_ns:
        least_ns = streamed_ns + 1
    if not is_slow and 0.0 < streamed_ns < least_ns:
        return bound_ns(geometry, options, plan, target, is_slow=True)
    end, late, middle = max(engines.stores, target.first_packet_ns + engines.moved), len(tiles) - 2, len(tiles) // 2
    more = tile_count(geometry, plan.rows) - len(tiles) if late > middle else 0
    rate_ns = max((ends[late] - ends[middle]) / (late - middle), engines.moved / len(tiles)) if more else 0.0
    return end + more * rate_ns + target.dma_end_ns


def _dmas(tile: RowTile) -> int:
    """DMAs for the groups of a tile, about: one for each image if images have several groups each."""
    images = len({n for n, _ in tile.groups})
    return 1 if images == len(tile.groups) else images


def _loads(
    geometry: RowGeometry, plan: MixedSchedule, engines: Engines, tile: RowTile, ends: tuple[bool, bool]
) -> list[tuple[int, float]]:
    """(end column, ns at which its x is in SBUF) of each load of a tile. ends: (is first, is last) tile."""
    found, target, item, place = [], engines.target, geometry.itemsize, 0
    for columns in mixed_cuts(tile.qn, widths_of(tile.qn, plan, *ends)[0]):
        end = run_length(geometry, columns)
        elements, place = min(geometry.W, div_ceil(end - place, geometry.lhs_dilation)), end
        row_ns = target.row_ns(elements, geometry.x_w, item)
        for _ in range(inputs_of(geometry)):
            there_ns = engines.load(tile.rows, row_ns, tile.rows * elements * item, _dmas(tile))
        found.append((columns, there_ns))
    if "C" in geometry.chunks:
        row_ns = target.row_ns(tile.qn, geometry.x_w, item)
        engines.load(tile.rows, row_ns, tile.rows * tile.qn * item, _dmas(tile))
    return found


def _gated(geometry: RowGeometry, elements: int, engines: Engines, there: float) -> float:
    """The ns at which so many elements of x are multiplied by their gate."""
    target = engines.target
    for name, element_ns in (("scalar", arrival_ns(geometry, target)), ("vector", gate_ns(geometry, target))):
        if element_ns:
            busy_ns = target.vector_fixed_ns + elements * element_ns
            there = engines.on(name, there, busy_ns, busy_ns)
    return there


def _sums(piece: MixedPiece, epilogue: Epilogue, engines: Engines, there: float) -> float:
    """The ns at which a piece's y is ready, after Tensor's taps."""
    target, (taps, chain, head, second), qn = engines.target, piece.recipe, piece.qn
    chains = [engines.tensor + target.matmul_done_ns + target.hop_ns] if taps else []
    product_ns = target.scalar_fixed_operand_ns + qn * target.scalar_ns
    done_ns = target.scalar_act_done_ns + target.scalar_operand_done_ns + qn * target.scalar_ns
    chains += [engines.on("scalar", there, product_ns, done_ns) for _ in range((not taps) + head)]
    ready, both = chains[0], max(chains)
    if chain + second:
        step_ns = qn * target.vector_sum_ns + target.vector_fixed_sum_ns
        wait_ns = target.vector_done_ns + target.vector_operand_done_ns + target.hop_ns - target.vector_fixed_sum_ns
        # two chains alternate, or the halves of one chain of two pieces
        steps = max(chain, second) if head else div_ceil(chain, 2)
        busy_ns = max((chain + second) * step_ns, steps * (step_ns + wait_ns))
        start = max(ready if chain else both, both + second * (step_ns + wait_ns) - busy_ns)
        ready = engines.on("vector", start, busy_ns, max(busy_ns, 0 if head else chain * (step_ns + wait_ns)) + wait_ns)
    if head:
        name = "vector" if piece.vector_joins or (taps and not chain) else "gpsimd"
        element_ns, fixed_ns = target.gpsimd_ns * qn, target.gpsimd_fixed_ns
        if name == "vector":
            element_ns, fixed_ns = target.vector_ns * qn, target.vector_fixed_psum_ns
        ready = engines.on(name, max(ready, both), fixed_ns + element_ns, fixed_ns + element_ns)
    if piece.last > vector_steps(piece.recipe) + head:
        if epilogue.residual or piece.vector_reads:
            busy_ns = target.vector_fixed_psum_ns + qn * target.vector_ns
            ready = engines.on("vector", ready, busy_ns, busy_ns)
        if not piece.vector_reads and (epilogue.activation or not epilogue.residual):
            done_ns = target.scalar_act_done_ns if epilogue.activation or epilogue.bias else target.scalar_done_ns
            busy_ns = target.scalar_fixed_ns + qn * target.scalar_ns
            ready = engines.on("scalar", ready, busy_ns, done_ns + qn * target.scalar_ns)
    return ready


def first(geometry: RowGeometry, options: Options, target: Target, on_tensor: bool) -> list[MixedSettings]:
    """Settings by a rule; empty with many taps that `banded` supports, which needs far fewer matmuls."""
    few = geometry.S <= MANY_TAPS or config_unsupported(geometry, options, None) != ""
    return [complete(geometry, options, None, target, on_tensor)] if few or options.strict_nonfinite else []
