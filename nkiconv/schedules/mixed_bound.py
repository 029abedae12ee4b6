"""The bound of `mixed` and `vector`: the first loads and diagonals, the busiest engine, the last sums and their store.

It assumes that matmuls on zeros, whose number `planner.clock` finds, fill the wait for the first diagonals. It leaves
out states, zeros around x, gaps of a dilated x, filters after the first and loads of a separate residual, which hardly
depend on settings, and Vector's waits for its own sums.
"""

from __future__ import annotations

from collections import Counter

from ..simulator.timing.target import Target
from .banded import config_unsupported
from .depthwise import Options, RowGeometry, inputs_of
from .mixed import MixedPiece, MixedSchedule, MixedSettings, complete, cut_pieces, filter_block, mixed_cuts
from .options import Epilogue
from .prices import Busy, Prices, rows_ns, total_ns
from .recipes import Recipe, vector_steps, work_of
from .row_copies import copied
from .rows import run_length, tile_count, tile_list
from .tiles import PARTS, div_ceil

#: Taps above which all recipes are alike: the engines besides Tensor take a small part of the taps.
MANY_TAPS = 64
#: Most tiles that the bound reads; the middle one stands for the others.
LOOKED_AT = 12


def bound_ns(geometry: RowGeometry, options: Options, plan: MixedSchedule, target: Target) -> float:
    """ns of a core, about."""
    geometry, copies_ns = copied(geometry, options, target)
    tiles, epilogue = tile_list(geometry, plan.rows, PARTS - 1, LOOKED_AT), options.epilogue
    if not tiles:
        return 0.0
    pieces, (first, last), busy = cut_pieces(plan, epilogue, tiles), (tiles[0], tiles[-1]), Busy()
    more = max(0, tile_count(geometry, plan.rows) - len(tiles))
    times = [1 + more * (place == len(tiles) // 2) for place in range(len(tiles))]
    for tile, count in zip(tiles, times, strict=True):
        busy.dma += count * _loaded_ns(geometry, target, tile.rows, tile.qn)
    works: Counter[tuple[int, int, Recipe, bool]] = Counter()
    for piece in pieces:
        works[tiles[piece.tile].rows, piece.qn, piece.recipe, piece.vector_reads] += times[piece.tile]
    for (rows, qn, recipe, vector_reads), count in works.items():
        busy.add(_work(geometry, epilogue, target, qn, recipe, vector_reads), count)
        busy.dma += count * _stored_ns(geometry, epilogue, target, rows, qn)
    # the first tile's filters, x and diagonals
    taps = min(filter_block(geometry), last.t + 1 - first.t) * geometry.S
    filters_ns = rows_ns(target, first.rows, target.row_ns(taps, geometry.w_s, 4), 4 * first.rows * taps)
    there_ns = target.first_load_ns + filters_ns
    x_ns = _loaded_ns(geometry, target, first.rows, mixed_cuts(first.qn, plan, True)[0])
    # a DMA for each image, about, if images have several groups each
    images = len({n for n, _ in first.groups})
    triggers_ns = (1 + (1 if images == len(first.groups) else images)) * target.static_issue_ns
    begin_ns = there_ns + x_ns + triggers_ns
    made_ns = 0.0
    if plan.taps:
        made_ns = target.gpsimd_fixed_ns + plan.taps * first.rows * target.gpsimd_select_ns
        busy.gpsimd += made_ns * len({tile.t for tile in tiles}) * (1 + more / len(tiles))
        made_ns += there_ns + target.gpsimd_done_ns
    stored_ns = _stored_ns(geometry, epilogue, target, last.rows, pieces[-1].qn)
    end_ns = _last_ns(pieces[-1], target) + target.hop_dma_ns + target.first_packet_ns + stored_ns + target.dma_end_ns
    hidden_ns = begin_ns - target.first_packet_ns + stored_ns
    return copies_ns + total_ns(target, begin_ns, hidden_ns, busy, end_ns, made_ns=made_ns)


def _loaded_ns(geometry: RowGeometry, target: Target, rows: int, columns: int) -> float:
    """ns of the DMA engines for the x, with its factor, of so many rows and columns."""
    elements, item = min(geometry.W, div_ceil(run_length(geometry, columns), geometry.lhs_dilation)), geometry.itemsize
    row_ns = target.row_ns(elements, geometry.x_w, item)
    return inputs_of(geometry) * rows_ns(target, rows, row_ns, rows * elements * item)


def _stored_ns(geometry: RowGeometry, epilogue: Epilogue, target: Target, rows: int, columns: int) -> float:
    """ns of the DMA engines for so many rows and columns of y."""
    row_ns = target.row_ns(columns, geometry.y_q, epilogue.y_itemsize)
    return rows_ns(target, rows, row_ns, rows * columns * epilogue.y_itemsize)


def _work(
    geometry: RowGeometry, epilogue: Epilogue, target: Target, qn: int, recipe: Recipe, vector_reads: bool
) -> Busy:
    """The Busy of a piece of so many columns besides DMA."""
    work = work_of(recipe, geometry, epilogue, target, qn)
    vector, scalar = qn * work.vector, qn * work.scalar
    if work.copied and vector_reads:
        vector += qn * target.vector_ns + target.vector_fixed_psum_ns
    elif work.copied:
        scalar += qn * target.scalar_ns + target.scalar_fixed_ns
    return Busy(
        qn * work.tensor, recipe[0] * qn * Prices(target, geometry).column_ns, 0.0, vector, scalar, qn * work.gpsimd
    )


def _last_ns(piece: MixedPiece, target: Target) -> float:
    """ns from a piece's last products to y."""
    taps, _, head, _ = piece.recipe
    steps = vector_steps(piece.recipe)
    step_ns = piece.qn * target.vector_sum_ns + target.vector_done_ns + target.vector_operand_done_ns + target.hop_ns
    found = steps * step_ns + target.hop_ns + (target.matmul_done_ns if taps else 0.0)
    if head:
        found += piece.qn * target.vector_ns + target.vector_fixed_psum_ns
    if piece.last > steps + head:
        found += piece.qn * target.scalar_ns + target.scalar_act_done_ns + target.hop_ns
    return found


def first(geometry: RowGeometry, options: Options, target: Target, on_tensor: bool) -> list[MixedSettings]:
    """Settings by a rule; empty with many taps that `banded` supports, which needs far fewer matmuls."""
    few = geometry.S <= MANY_TAPS or config_unsupported(geometry, options, None) != ""
    return [complete(geometry, options, None, target, on_tensor)] if few or options.strict_nonfinite else []
