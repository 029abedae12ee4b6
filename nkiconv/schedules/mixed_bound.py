"""The bound of `mixed` and `vector`: the first loads and diagonals, the busiest engine, the last sums and their store.

It assumes that matmuls on zeros, whose number `planner.clock` finds, fill the wait for the first diagonals. It leaves
out states, zeros around x, gaps of a dilated x, filters after the first and loads of a separate residual, which hardly
depend on settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from ..simulator.timing.target import Target
from .banded import config_unsupported
from .depthwise import Options, RowGeometry, inputs_of
from .mixed import MixedPiece, MixedSchedule, MixedSettings, complete, cut_pieces, filter_block, mixed_cuts
from .options import Epilogue
from .prices import array_end_ns, first_load_ns, overlapped_ns, rows_ns
from .recipes import vector_steps, work_of
from .rows import RowTile, run_length, tile_count, tile_list
from .tiles import PARTS, div_ceil

#: Taps above which all recipes are alike: the engines besides Tensor take a small part of the taps.
MANY_TAPS = 64
#: Most tiles that the bound reads; the middle one stands for the others.
LOOKED_AT = 12


class _Work(NamedTuple):
    """ns of a tile by engine. streamed: of Tensor's, its columns at full rate; loads, stores: triggers of DMAs."""

    tensor: float
    streamed: float
    vector: float
    scalar: float
    gpsimd: float
    moved: float
    loads: float
    stores: float


def bound_ns(geometry: RowGeometry, options: Options, plan: MixedSchedule, target: Target) -> float:
    """ns of a core, about."""
    tiles, epilogue = tile_list(geometry, plan.rows, PARTS - 1, LOOKED_AT), options.epilogue
    if not tiles:
        return 0.0
    pieces, (first, last) = cut_pieces(plan, epilogue, tiles), (tiles[0], tiles[-1])
    by_tile = groupby(pieces, lambda one: one.tile)
    works = [_work(geometry, epilogue, target, tiles[place], some) for place, some in by_tile]
    more = max(0, tile_count(geometry, plan.rows) - len(tiles))
    total = _Work(*(sum(each) + more * each[len(each) // 2] for each in zip(*works, strict=True)))
    # the first tile's filters, x and diagonals
    there_ns, taps = first_load_ns(target), min(filter_block(geometry), last.t + 1 - first.t) * geometry.S
    filters_ns = rows_ns(target, first.rows, target.row_ns(taps, geometry.w_s, 4), 4 * first.rows * taps)
    cuts = mixed_cuts(first.qn, plan, True)
    x_ns = there_ns + filters_ns + _loaded_ns(geometry, target, first, cuts[0])
    first_issue_ns, last_issue_ns = (_dmas(one) * target.static_issue_ns for one in (first, last))
    x_ns += target.static_issue_ns + first_issue_ns
    made_ns = target.gpsimd_fixed_ns + plan.taps * first.rows * target.gpsimd_select_ns if plan.taps else 0.0
    start_ns = max(x_ns, there_ns + filters_ns + made_ns + target.gpsimd_done_ns * (plan.taps > 0))
    gpsimd_ns = total.gpsimd + made_ns * len({tile.t for tile in tiles}) * (1 + more / len(tiles))
    # the busiest engine, and the last piece after its products
    others = total.vector, total.scalar, gpsimd_ns, total.loads - first_issue_ns, total.stores - last_issue_ns
    array_ns = array_end_ns(target, start_ns, total.tensor)
    if total.streamed < target.window_work * max(total.tensor, total.moved, *others):
        array_ns = start_ns + total.tensor / target.half_rate
    own_ns, after_ns = _last_ns(pieces[-1], target)
    busy_ns = overlapped_ns(array_ns - x_ns + own_ns, *others) + after_ns
    end_ns = target.hop_dma_ns + target.first_packet_ns + _stored_ns(geometry, epilogue, target, last, pieces[-1].qn)
    moved_ns = target.first_packet_ns + filters_ns + total.moved
    return max(x_ns + busy_ns + end_ns + last_issue_ns, moved_ns) + target.dma_end_ns


def _dmas(tile: RowTile) -> int:
    """DMAs for the groups of a tile, about: one for each image if images have several groups each."""
    images = len({n for n, _ in tile.groups})
    return 1 if images == len(tile.groups) else images


def _loaded_ns(geometry: RowGeometry, target: Target, tile: RowTile, columns: int) -> float:
    """ns of the DMA engines for the x, with its factor, of a tile's columns."""
    elements, item = min(geometry.W, div_ceil(run_length(geometry, columns), geometry.lhs_dilation)), geometry.itemsize
    row_ns = target.row_ns(elements, geometry.x_w, item)
    return inputs_of(geometry) * rows_ns(target, tile.rows, row_ns, tile.rows * elements * item)


def _stored_ns(geometry: RowGeometry, epilogue: Epilogue, target: Target, tile: RowTile, columns: int) -> float:
    """ns of the DMA engines for so many columns of y."""
    row_ns = target.row_ns(columns, geometry.y_q, epilogue.y_itemsize)
    return rows_ns(target, tile.rows, row_ns, tile.rows * columns * epilogue.y_itemsize)


def _work(
    geometry: RowGeometry, epilogue: Epilogue, target: Target, tile: RowTile, pieces: Iterable[MixedPiece]
) -> _Work:
    """The work of a tile with these pieces."""
    column_ns = target.tensor_column_ns if geometry.itemsize == 2 else target.tensor_column_fp32_ns
    issue_ns, has_factor = _dmas(tile) * target.static_issue_ns, "C" in geometry.chunks
    moved_ns = _loaded_ns(geometry, target, tile, tile.qn)
    if has_factor:
        row_ns = target.row_ns(tile.qn, geometry.x_w, geometry.itemsize)
        moved_ns += rows_ns(target, tile.rows, row_ns, tile.rows * tile.qn * geometry.itemsize)
    found = _Work(0.0, 0.0, 0.0, 0.0, 0.0, moved_ns, (inputs_of(geometry) + has_factor) * issue_ns, 0.0)
    for piece in pieces:
        qn, (taps, chain, head, second) = piece.qn, piece.recipe
        work = work_of(piece.recipe, geometry, epilogue, target, qn)
        # two chains alternate, or the halves of one chain of two pieces
        _, waits_ns = _taps_ns(piece, target, max(chain, second) if head else div_ceil(chain, 2))
        vector, scalar = qn * work.vector + waits_ns, qn * work.scalar
        if work.copied and piece.vector_reads:
            vector += qn * target.vector_ns + target.vector_fixed_psum_ns
        elif work.copied:
            scalar += qn * target.scalar_ns + target.scalar_fixed_ns
        stored_ns = _stored_ns(geometry, epilogue, target, tile, qn)
        one = _Work(qn * work.tensor, taps * qn * column_ns, vector, scalar, qn * work.gpsimd, stored_ns, 0.0, issue_ns)
        found = _Work(*map(sum, zip(found, one, strict=True)))
    return found


def _taps_ns(piece: MixedPiece, target: Target, steps: int) -> tuple[float, float]:
    """(ns of Vector for a piece's taps, ns of its waits if `steps` of them follow one another)."""
    _, chain, _, second = piece.recipe
    step_ns = piece.qn * target.vector_sum_ns + target.vector_fixed_sum_ns
    own_ns = (chain + second) * step_ns
    return own_ns, max(0.0, steps * (step_ns + _wait_ns(target)) - own_ns)


def _wait_ns(target: Target) -> float:
    """ns that Vector waits for its own sum."""
    return target.vector_done_ns + target.vector_operand_done_ns + target.hop_ns - target.vector_fixed_sum_ns


def _last_ns(piece: MixedPiece, target: Target) -> tuple[float, float]:
    """ns from a piece's last products to y: (of Vector's taps, of waits and other instructions)."""
    taps, _, head, _ = piece.recipe
    steps = vector_steps(piece.recipe)
    own_ns, after_ns = _taps_ns(piece, target, steps)
    after_ns += target.hop_ns + (_wait_ns(target) if steps else 0.0) + (target.matmul_done_ns if taps else 0.0)
    if head:
        after_ns += piece.qn * target.vector_ns + target.vector_fixed_psum_ns
    if piece.last > steps + head:
        after_ns += piece.qn * target.scalar_ns + target.scalar_act_done_ns + target.hop_ns
    return own_ns, after_ns


def first(geometry: RowGeometry, options: Options, target: Target, on_tensor: bool) -> list[MixedSettings]:
    """Settings by a rule; empty with many taps that `banded` supports, which needs far fewer matmuls."""
    few = geometry.S <= MANY_TAPS or config_unsupported(geometry, options, None) != ""
    return [complete(geometry, options, None, target, on_tensor)] if few or options.strict_nonfinite else []
