"""Candidate settings of `diagonals` in order of their bound: for a kernel without a config, and for the host, whose
search begins with them. The bound: the busiest of the Tensor Engine, DMA and evacuation, over all steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..simulator.timing.target import Target
from .blocks import gradient_unsupported
from .cuts import window_of
from .diagonals import (
    READ_MOST,
    ROOM_BYTES,
    DiagonalsSettings,
    build,
    config_unsupported,
    diagonals_unsupported,
)
from .geometry import Geometry
from .prices import Prices
from .settings import Config, values_of
from .tables import Table, ceil, dma_ns, some, table
from .tiles import BANK_COLUMNS, P_MAX, PARTS

#: Further settings, tried if better ones do not fit.
SPARE = 6


def candidates(
    target: Target, geometry: Geometry, config: Config, count: int, bias: bool
) -> list[tuple[float, DiagonalsSettings]]:
    """(ns, settings) of the `count` candidates of least time that hold the given settings and fit; [] if diagonals do
    not take the problem."""
    if config_unsupported(geometry, config) or gradient_unsupported(geometry) or diagonals_unsupported(geometry):
        return []
    found = DiagonalsBound(target, geometry).least(dict(config or ()), count + SPARE)
    return [*islice((one for one in found if build(geometry, one[1].pairs, bias)[0] is not None), count)]


#: Rows and columns of a block that are tried, groups packed along partitions and columns, groups of a pass.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 28, 32, 64, 128)
SIDES, BELOW, BESIDE, GROUPS = (1, 2, 4), (1, 2, 4), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 12, 16, 32, 64)
#: For each way to share the Tensor Engine: the number of blocks whose units are tried, and the most time of the Tensor
#: Engine of these, over the least.
BLOCKS, IDLE = 6, 1.3
#: Matmuls on zeros of candidate settings; tiles of units that SBUF has room for.
WARM_UP, BUFFERS = 40, 2


def distinct(options: Sequence[Any], most: Any) -> Any:
    """[options, blocks]: values of a setting up to `most` for each block, each once; 0 in place of others."""
    found = np.array([np.broadcast_to(one, most.shape) for one in options])
    again = np.array([(found[:at] == one).any(axis=0) for at, one in enumerate(found)])
    return np.where(again | (found > most), 0, found)


class DiagonalsBound(Prices):
    """Times of the busier of two cores, in ns; settings are the same on one core."""

    def __init__(self, target: Target, geometry: Any) -> None:
        super().__init__(target, geometry)
        self.c, self.k = geometry.C // geometry.groups, geometry.K // geometry.groups
        self.T, self.last = geometry.planes.taps, geometry.x_strides[0] == 1 and geometry.C > 1
        self.taps = self.c * geometry.rows.taps * geometry.columns.taps

    def least(self, given: Mapping[str, int], count: int) -> list[tuple[float, DiagonalsSettings]]:
        """(ns, settings) of the `count` candidates of least time that hold the given settings."""
        rows = self.units(given, self.blocks(given))
        if not len(rows["side"]):
            return []
        ns = self.ns(rows)
        found = np.argsort(ns, kind="stable")[:count]
        settings = [{name: int(one[at]) for name, one in rows.items()} for at in found]
        return [(float(ns[at]), DiagonalsSettings(**one)) for at, one in zip(found, settings, strict=True)]

    def sums(self, rows: Any, columns: Any) -> Any:
        """Columns of the products of a group and a block: the whole window, at most x."""
        height = np.minimum(window_of(self.geometry.rows, rows), self.geometry.rows.size)
        return self.c * height * np.minimum(window_of(self.geometry.columns, columns), self.geometry.columns.size)

    def product_ns(self, t: Table) -> Any:
        """ns of the Tensor Engine for a block of all units of a row tile."""
        least = np.where(t["side"] > 1, t["side"] * self.target.row_tile_columns, self.target.matmul_columns_min)
        return np.maximum(t["beside"] * t["sums"], least) * self.column_ns + self.fixed_ns

    def blocks(self, given: Mapping[str, int]) -> Table:
        """Blocks that need little time of the Tensor Engine."""
        P, Q, groups = self.geometry.rows.out, self.geometry.columns.out, self.geometry.groups
        every = {"side": SIDES, "below": BELOW, "beside": [one for one in BESIDE if one < 2 * groups]}
        every |= {"rows": [one for one in EXTENTS if one <= P], "columns": sorted({*(e for e in EXTENTS if e <= Q), Q})}
        t = table(**{name: values_of(given, name, values) for name, values in every.items()})
        t["sums"] = self.sums(t["rows"], t["columns"])
        fits = t["rows"] * t["columns"] * t["beside"] * self.k <= P_MAX // t["below"]
        t = some(t, fits & (t["beside"] * t["sums"] <= BANK_COLUMNS))
        sets = ceil(ceil(groups, t["beside"]), t["side"])
        taken = ceil(P, t["rows"]) * ceil(Q, t["columns"]) * self.product_ns(t) * sets
        # the best for each way to share the Tensor Engine: which way is best depends on DMA and evacuation
        way = (t["side"] * 8 + t["below"]) * 64 + t["beside"]
        order = np.lexsort((taken, way))
        first = np.searchsorted(way[order], way[order])
        good = (np.arange(len(order)) - first < BLOCKS) & (taken[order] <= IDLE * taken[order][first])
        return some(t, order[good])

    def units(self, given: Mapping[str, int], blocks: Table) -> Table:
        """Candidate settings for some blocks."""
        geometry = self.geometry
        down, across = ceil(geometry.rows.out, blocks["rows"]), ceil(geometry.columns.out, blocks["columns"])
        most = ceil(ceil(geometry.groups, blocks["beside"]), blocks["side"])
        options = {
            "down": distinct([down, ceil(down, 2), ceil(down, 4), 4, 3, 2, 1], down),
            "across": distinct([across, ceil(across, 2), ceil(across, 4), 4, 3, 2, 1], across),
            "groups": distinct([most, ceil(most, PARTS), *GROUPS], most),
        }
        for name in options.keys() & given.keys():
            options[name] = np.full((1, len(most)), given[name])
        strips = values_of(given, "strips", (0, 1) if self.last else (0,))
        at = table(block=range(len(most)), **{name: range(len(one)) for name, one in options.items()}, strips=strips)
        t = {**some(blocks, at["block"]), "strips": at["strips"]}
        t |= {name: one[at[name], at["block"]] for name, one in options.items()}
        good = (t["down"] > 0) & (t["across"] > 0) & (t["groups"] > 0)
        if "groups" not in given:
            good &= (t["groups"] % t["below"] == 0) | (t["groups"] == most[at["block"]])
        t = some(t, good)
        rest = {"split": 0, "warmup": WARM_UP, **given}
        for name in ("split", "warmup"):
            t[name] = np.full_like(t["rows"], rest[name])
        if "split" not in given:
            # the cores share tiles if there is a single pass
            t["split"] = np.where(t["side"] * t["groups"] * t["beside"] >= geometry.groups, 1, 0)
        t = some(t, self.bytes(t) <= ROOM_BYTES) if "groups" not in given else t
        return {name: t[name] for name in [one.name for one in dataclasses.fields(DiagonalsSettings)]}

    def bytes(self, t: Table) -> Any:
        """Approximate bytes a partition."""
        rows, columns = t["rows"] * t["down"], t["columns"] * t["across"]
        size = (self.T * self.sums(rows, columns) + rows * columns * self.k) * t["groups"] * t["beside"]
        accumulators = ceil(t["groups"], t["below"]) * self.T
        return size * self.geometry.itemsize * BUFFERS + 8 * t["side"] * (accumulators * self.taps + 2 * READ_MOST)

    def ns(self, t: Table) -> Any:
        """ns from the first load to the last store."""
        geometry, target, T = self.geometry, self.target, self.T
        t = {**t, "sums": self.sums(t["rows"], t["columns"])}
        rows, columns = t["rows"] * t["down"], t["columns"] * t["across"]
        down, units = ceil(geometry.rows.out, rows), geometry.planes.out * ceil(geometry.columns.out, columns)
        size = P_MAX // t["side"]
        steps = np.where(t["strips"] > 0, down * ceil(units, size), ceil(down * units, size))
        passes = ceil(ceil(geometry.groups, t["beside"]), t["side"] * t["groups"])
        steps = np.where(t["split"] > 0, ceil(steps, PARTS), steps)
        passes = np.where(t["split"] > 0, passes, ceil(passes, PARTS))
        accumulators = ceil(t["groups"], t["below"]) * T
        whole = t["below"] * t["rows"] * t["columns"] * t["beside"] * self.k == P_MAX
        products = t["groups"] * T * t["down"] * t["across"] + np.where((t["below"] > 1) & ~whole, accumulators, 0)
        waits_ns = t["side"] * (target.matmul_done_ns + target.hop_ns)  # for each row tile's last sums
        array_ns = products * self.product_ns(t) + waits_ns
        moving_ns = self.moving_ns(t, rows, columns)
        # Vector and Scalar share evacuations
        read_ns = t["beside"] * t["sums"] / (1 / target.vector_ns + 1 / target.scalar_ns)
        reads_ns = t["side"] * accumulators * read_ns + waits_ns
        streamed_ns = products * t["beside"] * t["sums"] * self.column_ns
        # GpSimd gathers a step's diagonals, and adds them to those of the steps before
        gathers_ns = t["side"] * accumulators * self.taps * (target.gpsimd_gather_ns + target.gpsimd_ns)
        others_ns = np.maximum(np.maximum(moving_ns, reads_ns), gathers_ns)
        # the Tensor Engine is at half rate if its products fill too little of a step
        short = streamed_ns < target.window_work * np.maximum(array_ns, others_ns)
        array_ns = np.where(short, array_ns / target.half_rate, array_ns)
        step_ns = np.maximum(array_ns, others_ns)
        # the last gather follows its products
        ends_ns = target.round_trip_ns + passes * (target.gpsimd_fixed_ns + t["split"] * target.exchange_ns)
        return step_ns * (steps * passes - 1) + array_ns + moving_ns + reads_ns + gathers_ns + ends_ns

    def moving_ns(self, t: Table, rows: Any, columns: Any) -> Any:
        """ns of a step's DMAs, on average."""
        geometry = self.geometry
        height: Any = np.minimum(window_of(geometry.rows, rows), geometry.rows.size)
        strip = ceil(geometry.rows.size, ceil(geometry.rows.out, rows))
        height = np.where(t["strips"] > 0, strip, height)
        width = np.minimum(window_of(geometry.columns, columns), geometry.columns.size)
        groups = t["groups"] * t["beside"]
        x = self.dma_ns(height, width, groups * self.c, geometry.columns.size, geometry.C, geometry.x_strides)
        y = self.dma_ns(rows, columns, groups * self.k, geometry.columns.out, geometry.K, geometry.y_strides)
        return self.T * x + y

    def dma_ns(self, h: Any, w: Any, c: Any, width: int, channels: int, strides: Any) -> Any:
        """ns of DMA for h rows, w columns and c channels a partition, of a tensor of `width` columns and `channels`."""
        # whole rows of the tensor form one run, unless the block's rows are longer
        if strides[0] != 1:
            run = np.where(w == width, h, 1) * np.minimum(w, width)
        else:
            run = np.where(c == channels, np.minimum(w, width), 1) * c
        return dma_ns(self.target, P_MAX, h * np.minimum(w, width) * c, run, self.geometry.hbm_itemsize)
