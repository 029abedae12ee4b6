"""`activation_stationary` of depthwise problems on the host: sizes of blocks, and what is worked on together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from ....schedules.activation_stationary import DepthwiseSettings
from ....schedules.activation_stationary_build import unsupported_reason
from ....schedules.block_windows import window_width
from ....schedules.cuts import window_of
from ....schedules.depthwise_blocks import BlockSchedule, block_bytes, blocks_misfit
from ....schedules.frames import is_transposed
from ....schedules.pixel_tiles import outputs_apart
from ....schedules.tiles import PARTS, div_ceil, fits_sbuf
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Shape, pairs_of
from .common import Settled
from .depthwise_bound import BlockBound

#: Windows of a row of y that are tried, at most; heights of blocks, those of the fewest below each other first.
WINDOWS, HEIGHTS = 10, 4
#: Channels of a chunk that are tried, beside all of a core's, and half of these.
CHUNKS = (8, 16, 32, 64, 128)
#: Buffers, and matmuls that warm the array up; sizes of blocks of which all other settings are tried together.
BUFFERS = (4, 2)
TOGETHER = 12
#: Settings that a wide search starts from.
WIDE_BEST = 8
#: Bytes a partition of matrices that come together, about.
MATRICES_BYTES = 32_768


class DepthwiseBlocks(Settled):
    """Toeplitz matrices of all taps, blocks of rows and columns."""

    algorithm, settings, refusal = "activation_stationary", DepthwiseSettings, staticmethod(unsupported_reason)

    def plan_ns(self, shape: Shape, geometry: Any, plan: Any) -> float:
        return BlockBound(shape.target, plan, shape.extras).ns()

    def best(self, shape: Shape, geometry: Any, given: dict[str, Any]) -> Any:
        return next(iter(ranked(shape, geometry, given)), None)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if self.refusal(shape.geometry, shape.extras, None):
            return [None]
        kinds = _kinds(shape.geometry)
        each = (ranked(shape, shape.geometry, {"disjoint": one}) for one in kinds)
        return [pairs_of(one) for found in each for one in itertools.islice(found, WIDE_BEST if wide else 1)]

    def near(self, shape: Shape, config: Config) -> list[Config]:
        settled = dict(self.settle(shape, config) or ())
        stride = shape.geometry.rows.stride * outputs_apart(shape.geometry.rows)
        now = {name: settled[name] for name in ("rows", "channels")}
        return list(DepthwiseSettings.near(config, now, rows=(now["rows"] - stride, now["rows"] + stride)))

    def tiles(self, shape: Shape, plan: Any) -> int:
        return len(plan.items)


def ranked(shape: Shape, geometry: Any, given: dict[str, Any]) -> Iterator[DepthwiseSettings]:
    """Settings that have the given ones and fit, of the cheapest sizes of blocks first, of these those of least time
    first."""

    def by_price(some: Iterable[DepthwiseSettings]) -> list[DepthwiseSettings]:
        found: list[tuple[float, int, DepthwiseSettings]] = []
        for one in some:
            if blocks_misfit(geometry, one) == "":
                bound = BlockBound(shape.target, BlockSchedule(geometry, one), shape.extras)
                found.append((bound.ns(), len(found), one))
        return [one for _, _, one in sorted(found)]

    sizes = by_price(sizes_of(geometry, given))
    for first in range(0, len(sizes), TOGETHER):
        every = (one for size in sizes[first : first + TOGETHER] for one in shares_of(geometry, given, size))
        for one in by_price(every):
            if fits_sbuf(block_bytes(geometry, BlockSchedule(geometry, one), shape.extras)):
                yield one


def sizes_of(geometry: Any, given: dict[str, Any]) -> Iterator[DepthwiseSettings]:
    """Sizes of blocks, and how many the array takes at once, with the other settings that are given, or some."""
    N, stride, repeats = geometry.planes.out, geometry.rows.stride, outputs_apart(geometry.rows)
    channels = min(CHUNKS[1], div_ceil(geometry.C, PARTS))
    share = {"channels": channels, "together": 1, "buffers": BUFFERS[0]}
    for columns, disjoint in _widths(geometry, given):
        tallest = _tallest(geometry, columns, disjoint)
        for rows in _given(given, "rows", _heights(geometry.rows.out, tallest, stride, repeats)):
            sizes = {"rows": rows, "columns": columns, "disjoint": disjoint}
            blocks = div_ceil(geometry.rows.out * stride, rows)
            for below in _given(given, "below", {div_ceil(blocks, count) for count in (1, 2, 4, 8)}):
                most = max(1, PARTITIONS // below)
                for images in _given(given, "images", {div_ceil(N, div_ceil(N, most)), min(N, most)}):
                    together = {"beside": 1, "below": below, "images": images}
                    if is_transposed(geometry):
                        windows = div_ceil(geometry.columns.out, columns)
                        side = max(1, min(windows, PARTITIONS // (below * images)))
                        together["beside"] = div_ceil(windows, div_ceil(windows, side))
                    yield DepthwiseSettings(**{**share, **sizes, **together, **given})


def _kinds(geometry: Any) -> tuple[int, ...]:
    """Values of `disjoint`."""
    return (0,) if is_transposed(geometry) else (0, 1)


def _widths(geometry: Any, given: dict[str, Any]) -> list[tuple[int, int]]:
    """Columns of y of windows, and whether these are disjoint, of planes either."""
    Q, each = geometry.columns.out, outputs_apart(geometry.columns)
    columns = _given(given, "columns", {div_ceil(Q, count * each) * each for count in range(1, WINDOWS + 1)})
    return list(itertools.product(columns, _given(given, "disjoint", _kinds(geometry))))


def _tallest(geometry: Any, columns: int, disjoint: int) -> int:
    """Most rows from a block to the next that the partitions hold of windows of so many columns of y."""
    rows, width = geometry.rows, window_width(geometry.columns, columns, disjoint == 1)
    unit = outputs_apart(rows) * rows.stride
    most = PARTITIONS // max(1, width) * rows.lhs_dilation
    if disjoint == 1:
        most += rows.stride - window_of(rows, 1)
    return int(max(0, most) // unit * unit)


def shares_of(geometry: Any, given: dict[str, Any], size: DepthwiseSettings) -> Iterator[DepthwiseSettings]:
    """Settings with some sizes of blocks."""
    for channels in _given(given, "channels", _chunks(geometry)):
        most = _together(geometry, size.rows, window_of(geometry.columns, size.columns), channels)
        for together in _given(given, "together", {1, div_ceil(most, 2), most}):
            for buffers in _given(given, "buffers", BUFFERS):
                yield dataclasses.replace(size, channels=channels, together=together, buffers=buffers)


def _together(geometry: Any, rows: int, width: int, channels: int) -> int:
    """Chunks whose matrices come together: as many as MATRICES_BYTES hold of windows that overlap, in rounds as even as
    can be; disjoint ones take about as much."""
    depth = div_ceil(window_of(geometry.rows, rows // geometry.rows.stride), rows)
    chunks = div_ceil(div_ceil(geometry.C, PARTS), channels)
    most = max(1, MATRICES_BYTES // (depth * rows * width * geometry.itemsize * channels))
    return int(div_ceil(chunks, div_ceil(chunks, most)))


def _given(given: dict[str, Any], name: str, values: set[int] | tuple[int, ...]) -> list[int]:
    return [given[name]] if name in given else sorted(values)


def _heights(out: int, most: int, stride: int, repeats: int) -> set[int]:
    """Rows of blocks: the least of each number of blocks below each other, fewest first."""
    found: dict[int, int] = {}
    for rows in range(most, 0, -stride * repeats):
        found[div_ceil(out * stride, rows)] = rows
    return {found[count] for count in sorted(found)[:HEIGHTS]}


def _chunks(geometry: Any) -> set[int]:
    """Channels of chunks, in as many for one core as for the other."""
    mine = div_ceil(geometry.C, PARTS)
    whole = {mine, div_ceil(mine, 2)} | {one for one in CHUNKS if one < mine}
    if is_transposed(geometry):
        return whole | {geometry.C}
    return {one for one in whole if one <= PARTITIONS}
