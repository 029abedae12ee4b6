"""Candidate settings of `blocks` in order of their bound: for a kernel without a config, and for the host, whose search
begins with them.

The bound prices a table of settings at once (`tables`): the busier of the Tensor Engine and of DMA, plus the first
loads, the last stores and the waits for buffers. The total time of Vector and Scalar for transposes, and copies with
zeros, do not improve the order of settings and are left out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np

from ..simulator.timing.target import Target
from .blocks import (
    BLOCK_BYTES,
    BUFFERS_MAX,
    GY_TRANSPOSED,
    LINES,
    TRANSPOSED,
    BlocksSettings,
    apart_beside,
    banks_of_taps,
    blocks_geometry,
    columns_beside,
    config_unsupported,
    exchange_unsupported,
    in_places,
    max_channels,
    most_beside,
    pixels_unsupported,
    planes_of,
    sum_banks,
    taps_beside,
    units_of_tile,
)
from .blocks_schedule import CHAIN, SUMS_BYTES, build, gathered_bytes
from .blocks_transposes import RAWS_LEAST, RUN_BYTES, gang_of, gy_as_x, member_of, spacing_of
from .cuts import window_of
from .geometry import Geometry, num_taps
from .prices import Prices, transposing_ns
from .settings import Config, declarations, values_of
from .tables import Table, ceil, dma_ns, joined, some, table
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, SBUF_BYTES, div_ceil

#: Rows and columns of a block that are tried, besides half of them and all.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)
#: Accumulators of a pass along output and input channels that are tried, besides half of them and all.
OUTPUTS, INPUTS = (1, 2, 4, 8), (1, 2, 3, 4, 6)
#: Row tiles that are tried.
SIDES = (1, 2, 4)
#: Matmuls on zeros of candidate settings.
WARM_UP = 28
#: The part of the less busy engine's time that the busier one does not hide.
EXPOSED = 0.1
#: Further settings, tried if better ones do not fit.
SPARE = 6


def candidates(
    target: Target, geometry: Geometry, config: Config, count: int, bias: bool
) -> list[tuple[float, BlocksSettings]]:
    """(ns, settings) of the `count` candidates of least time that hold the given settings and fit; [] if the config is
    refused. geometry: of x and gy in memory."""
    if config_unsupported(geometry, config, bias):
        return []
    given = dict(config or ())
    every = (0, LINES, TRANSPOSED, GY_TRANSPOSED) if given.get("side", 1) == 1 else (0,)
    places = values_of(given, "exchanged", (0, 1) if pays_exchanged(geometry, bias) else (0,))
    found: list[Iterator[tuple[float, BlocksSettings]]] = []
    for exchanged, pixels in product(places, values_of(given, "pixels", every)):
        known = {"warmup": WARM_UP, **given, "exchanged": exchanged, "pixels": pixels}
        source = in_places(geometry, tuple(known.items()))
        if "pixels" in given or not pixels_unsupported(source, pixels):
            known |= {"columns": 1, "beside": 1} if pixels == LINES else {}
            found.append(_least(BlocksBound(target, source, pixels), known, count + SPARE))
    least = heapq.merge(*found, key=lambda one: one[0])
    return [*islice((one for one in least if build(geometry, one[1].pairs, bias)[0] is not None), count)]


def pays_exchanged(geometry: Geometry, bias: bool) -> bool:
    """Whether x and gy can be exchanged and the Tensor Engine then has less work."""
    (K, C), config = (geometry.K, geometry.C), (("exchanged", 1),)
    return div_ceil(C, P_MAX) * K < div_ceil(K, P_MAX) * C and not exchange_unsupported(geometry, config, bias)


def _least(bound: BlocksBound, known: Mapping[str, Any], count: int) -> Iterator[tuple[float, BlocksSettings]]:
    """(ns, settings) of the `count` settings of least time; some may exceed SBUF."""
    priced = bound.priced(_sizes(bound, known))
    for at in np.argsort(priced["ns"], kind="stable")[:count]:
        if priced["ns"][at] < math.inf:
            every = {
                name: int(priced[name][at] if name in priced else known[name]) for name in declarations(BlocksSettings)
            }
            yield float(priced["ns"][at]), BlocksSettings(**every)


def _sizes(bound: BlocksBound, given: Mapping[str, Any]) -> Table:
    """Candidate settings that hold the given ones, without buffers unless given, and without warm-up."""
    geometry, is_transposed = bound.geometry, bound.pixels > 0
    P, Q, K, C = geometry.rows.out, geometry.columns.out, geometry.K // geometry.groups, geometry.C // geometry.groups
    # narrower blocks would have short runs of x
    wide = (Q,) if geometry.x_strides[0] != 1 else _parts(Q, EXTENTS)
    whole, found = div_ceil(K, P_MAX), []
    besides = values_of(given, "beside", (one for one in (1, 2, 4) if one <= most_beside(geometry)))
    for beside, side in product(besides, values_of(given, "side", (1,) if is_transposed else SIDES)):
        most, own, least = max_channels(geometry, beside), div_ceil(C, side), columns_beside(geometry, beside)
        rows = [one for one in _parts(P, EXTENTS) if P % one == 0 or bound.pixels != GY_TRANSPOSED]
        # accumulators of channels that are transposed together need not wait for others
        widths = (most, min(most, P_MAX)) if bound.pixels == TRANSPOSED else (most,)
        for channels in values_of(given, "channels", (div_ceil(own, div_ceil(own, one)) for one in widths)):
            parts = div_ceil(C, channels)
            of_channels = table(
                outputs=values_of(given, "outputs", _parts(whole, OUTPUTS)),
                inputs=values_of(given, "inputs", _parts(parts, INPUTS)),
                split=values_of(given, "split", (0, 1)),
                rows=values_of(given, "rows", rows),
                columns=[one for one in values_of(given, "columns", wide) if one >= least],
                channels=(channels,),
                beside=(beside,),
                side=(side,),
            )
            # several row tiles take as many loads each: they pay for whole planes, or if a tile has all units
            units = geometry.planes.out * ceil(P, of_channels["rows"]) * ceil(Q, of_channels["columns"])
            pays = (side == 1) | (units == geometry.planes.out) | (units <= P_MAX // side)
            found.append(some(of_channels, pays | ("side" in given)))
    t = joined(found)
    return {**t, "buffers": np.full_like(t["rows"], given["buffers"])} if "buffers" in given else t


def _parts(whole: int, values: tuple[int, ...]) -> list[int]:
    """`values` up to `whole`, and half and all of it."""
    return sorted({one for one in (*values, div_ceil(whole, 2), whole) if one <= whole})


class BlocksBound(Prices):
    """Times of the busier of two cores, in ns: settings are the same on one core. Tables have a column for each of
    BlocksSettings except the warm-up, and the columns that methods add to the tables they return."""

    def __init__(self, target: Target, source: Geometry, pixels: int) -> None:
        """source: Geometry of x and gy in memory; pixels: the setting."""
        self.pixels, (geometry, self.source) = pixels, blocks_geometry(source, pixels)
        super().__init__(target, geometry)
        self.most = units_of_tile(geometry, pixels)
        self.banks, self.planes = sum_banks(pixels), [count for _, count in planes_of(geometry.planes)]
        self.K, self.C = geometry.K // geometry.groups, geometry.C // geometry.groups

    def priced(self, t: Table) -> Table:
        """The table with buffers, and ns from the first load to the last store; infinite if too few buffers fit."""
        t = self.loaded(self.products(self.sized(t)))
        stored_ns = self.stored_ns(t)
        passes, rounds = t["passes"], ceil(t["accumulators"], self.banks)
        tile_ns, count = t["array_ns"], passes * t["tiles"]
        array_ns, moved_ns = count * tile_ns, count * t["moved_ns"] + (passes - 1) * stored_ns
        # a pass's tiles are all loaded before its first accumulators are stored; the next pass's then too, if they fit
        waits_ns = moved_ns / np.where(t["buffers"] < 2 * t["tiles"], 1, passes) - array_ns / (rounds * passes)
        # from a tile's load into a buffer to the buffer's next load; transposed tiles do not wait for it
        again_ns = count * (self.target.first_load_ns + t["moved_ns"]) + array_ns
        again_ns = 0 if self.pixels >= TRANSPOSED else again_ns / np.maximum(1, t["buffers"])
        array_ns = np.where(rounds > 1, array_ns + np.maximum(0, waits_ns), np.maximum(array_ns, again_ns))
        # after the last loads: a row of the last tile, or all of it except for one accumulator
        last = np.where(t["split"] > 0, 1 / t["rows"], 1 - (1 - 1 / t["rows"]) / t["accumulators"])
        last_ns = 0 if self.pixels >= TRANSPOSED else tile_ns * last
        busiest_ns = np.maximum(t["first_ns"] + array_ns, moved_ns + last_ns) + EXPOSED * np.minimum(array_ns, moved_ns)
        # the first transposes, of each pass whose tiles are not transposed during the pass before
        starts = np.where(t["buffers"] < 2 * t["tiles"], passes, 1) if self.pixels >= TRANSPOSED else 0
        busiest_ns += starts * self.target.first_load_ns
        ns = self.target.first_load_ns + busiest_ns + self.end_ns(t) + stored_ns
        return {**t, "ns": np.where(t["buffers"] > 0, ns, np.inf)}

    def sized(self, t: Table) -> Table:
        """The table with a core's accumulators of a pass, its passes and tiles of a pass; channels and bytes of a tile,
        rows and columns of its windows, members of its gang."""
        geometry, parts = self.geometry, np.where(t["split"] > 0, PARTS, 1)
        ks, cs = ceil(self.K, P_MAX), ceil(self.C, t["channels"])
        outputs, inputs = np.minimum(t["outputs"], ks), np.minimum(t["inputs"], cs)
        each, is_one = outputs * inputs * banks_of_taps(geometry), (cs == 1) & (ks == 1)
        together = np.where(is_one, np.clip(self.banks // each, 1, geometry.groups), 1)
        passes = ceil(geometry.groups, together) * ceil(ks, outputs) * ceil(cs, inputs)
        t = t | {
            "chunks": inputs,
            "along_k": ceil(ks, outputs),
            "along_c": ceil(cs, inputs),
            "accumulators": together * each,
            "passes": ceil(passes, PARTS // parts),
        }
        t["c"] = np.minimum(self.C, t["channels"] * ceil(inputs, t["side"])) * together
        t["k"] = np.minimum(self.K, P_MAX * outputs) * together
        t["h"], t["w"] = window_of(geometry.rows, t["rows"]), window_of(geometry.columns, t["columns"])
        size = t["h"] * t["w"] * geometry.planes.taps * t["c"] + t["rows"] * t["columns"] * t["k"]
        t["unit_bytes"], t["gang"] = size * geometry.itemsize, 1
        if self.pixels < TRANSPOSED:
            units = geometry.planes.out * ceil(geometry.rows.out, t["rows"]) * ceil(geometry.columns.out, t["columns"])
            return t | {"tiles": ceil(ceil(units, parts), self.most // t["side"])}
        t["planes"], t["down"], t["across"], places = member = member_of(geometry, t["rows"], t["columns"])
        room = np.minimum(BLOCK_BYTES // t["unit_bytes"], CHAIN // (t["rows"] * t["columns"]))
        channels, most = t["c"] if self.pixels == TRANSPOSED else t["k"], max(self.planes)
        t["gang"] = gang = gang_of(geometry, self.pixels, member, channels, parts, room)
        t["is_apart"] = (gang > 1) & (gang >= 2 * most) & (places > 1)
        tiles = sum(ceil(total, gang * t["planes"]) for total in self.planes)
        return t | {"tiles": ceil(tiles * ceil(places, np.maximum(1, gang // most)), parts)}

    def products(self, t: Table) -> Table:
        """The table with ns of the Tensor Engine for a tile's products: the last output channels may be packed; row
        tiles run at once, and each matmul takes at least a few columns."""
        apart, ks = apart_beside(self.geometry), ceil(self.K, P_MAX)
        at_once = t["chunks"] / ceil(t["chunks"], t["side"])
        banks, found_ns = t["accumulators"] * t["gang"], 0.0
        for beside, share in (1, (ks - 1) / ks), (t["beside"], 1 / ks):
            whole, rest = np.divmod(t["columns"], beside * apart)
            matmuls = banks * share * t["rows"] * (whole * apart + np.minimum(rest, apart)) / at_once
            width = np.minimum(BANK_COLUMNS, taps_beside(self.geometry, beside) * t["channels"])
            found_ns = found_ns + matmuls * (
                np.maximum(width, self.target.matmul_columns_min) * self.column_ns + self.fixed_ns
            )
        return t | {"array_ns": found_ns}

    def loaded(self, t: Table) -> Table:
        """The table with buffers, ns of DMA for a tile and of the loads before its first product, and ns of the Tensor
        Engine for its transposes too."""
        load_x = self._transposed if self.pixels == TRANSPOSED else self._moved
        load_gy = self._transposed if self.pixels >= TRANSPOSED else self._moved
        x, gy = load_x(t, self.source, t["c"]), load_gy(t, gy_as_x(self.source), t["k"])
        t = self.buffered({**t, "first_ns": x[2] + gy[2], "raw_bytes": x[3] + gy[3]})
        # tiles that fit SBUF are loaded and transposed once for passes that share channels; x in memory order, and gy
        # with row tiles, count in each pass: counted once, estimates took up to 1.2 and 2.4 times as long
        is_kept = t["buffers"] >= t["tiles"]
        of_x = np.where(is_kept & (self.pixels == TRANSPOSED), 1 / np.minimum(t["along_k"], t["passes"]), 1)
        is_shared = is_kept & (t["along_k"] == 1) & (t["side"] == 1)
        of_gy = np.where(is_shared, 1 / np.minimum(t["along_c"], t["passes"]), 1)
        planes = self.geometry.planes
        if self.pixels == TRANSPOSED and planes.taps > 1 and planes.stride == planes.dilation == 1:
            # taps that see a transposed plane one after the other
            own = np.minimum(1, planes.size / planes.out / planes.taps)
            of_x = np.where((t["gang"] == 1) & (t["planes"] == 1), own * of_x, of_x)
        array_ns, moved_ns = (of_x * x[at] + of_gy * gy[at] for at in (0, 1))
        return t | {"array_ns": t["array_ns"] + array_ns, "moved_ns": moved_ns}

    def _moved(self, t: Table, seen: Geometry, channels: Any) -> tuple[Any, Any, Any, int]:
        """As `_transposed`, for a tile of an x that is loaded as it is, or transposed by DMA."""
        geometry, target, item = self.geometry, self.target, self.geometry.hbm_itemsize
        # with several row tiles, whole planes are loaded without zeros around them
        whole = (t["rows"] == geometry.rows.out) & (t["columns"] == geometry.columns.out) & (t["side"] > 1)
        extent, across = window_of(seen.rows, t["rows"]), window_of(seen.columns, t["columns"])
        high = np.where(whole, np.minimum(extent, seen.rows.size), extent)
        wide = np.where(whole, np.minimum(across, seen.columns.size), across)
        elements, width, strides = t["gang"] * high * wide * channels, seen.columns.size, seen.x_strides
        if self.pixels == LINES:
            load_ns = np.maximum(transposing_ns(target, width, elements, channels, item), target.hwdge_again_ns)
            load_ns = np.maximum(self.most // width * load_ns, target.hbm_ns(self.most * elements * item, width * item))
            return 0.0, load_ns, load_ns, 0
        run = np.where(whole & (strides[0] == high * wide), high * wide, wide)
        run = np.where(channels == seen.C, wide * channels, channels) if strides[0] == 1 else run
        load_ns = seen.planes.taps * dma_ns(target, P_MAX, elements, run, item)
        # the first rows of a window, or all of several members' windows
        return 0.0, load_ns, load_ns * (np.minimum(1, seen.rows.taps / extent) if self.pixels == 0 else 1), 0

    def _transposed(self, t: Table, seen: Geometry, channels: Any) -> tuple[Any, Any, Any, Any]:
        """(ns of the Tensor Engine, of DMA, and of the first piece's load, bytes of loaded pieces) of a tile of an x
        that the Tensor Engine transposes: a transpose for each place of a window that taps see and each chunk of
        channels."""
        rows, columns, taps, item = seen.rows, seen.columns, seen.planes.taps, self.geometry.itemsize
        extent, width = window_of(rows, t["rows"]), window_of(columns, t["columns"])
        high = np.minimum(rows.size, window_of(rows, t["rows"] * t["down"]))
        wide = np.minimum(columns.size, window_of(columns, t["columns"] * t["across"]))
        count = ceil(extent, spacing_of(rows, t["rows"], rows.taps))
        count = count * ceil(width, spacing_of(columns, t["columns"], columns.taps, t["beside"]))
        times = taps * ceil(t["gang"], np.maximum(1, P_MAX // channels)) * ceil(channels, P_MAX)
        parts = np.minimum(P_MAX, taps * t["gang"] * channels / times)
        # rows of windows in a piece, which are loaded together
        lines = ceil(RUN_BYTES, wide * item)
        pieces = np.where(t["is_apart"], 1, np.maximum(1, (2 * extent + lines) // (2 * lines)))
        together, row = ceil(extent, pieces), t["planes"] * wide * item
        run = np.where(pieces == 1, high, together) * wide
        moved_ns = dma_ns(self.target, parts, t["planes"] * high * wide, run, item)
        raw_bytes = RAWS_LEAST * row * np.where(pieces == 1, high, t["down"] * together)
        array_ns = times * count * self.transpose_ns()
        return array_ns, times * moved_ns, taps * moved_ns / pieces, raw_bytes

    def buffered(self, t: Table) -> Table:
        """The table with buffers: for two passes of tiles, for one or for two tiles if transposed, or as many as fit; 0
        if too few fit."""
        tiles, is_pe, in_rounds = t["tiles"], self.pixels >= TRANSPOSED, t["accumulators"] > self.banks
        needed = np.where(in_rounds, tiles, 1 if is_pe else np.minimum(2, tiles))
        wanted = np.where(in_rounds | (not is_pe), 2 * tiles, np.minimum(2, tiles))
        room = SBUF_BYTES - SUMS_BYTES - gathered_bytes(self.geometry, t["channels"]) - t["raw_bytes"]
        fit = np.minimum(BUFFERS_MAX, np.minimum(BLOCK_BYTES, room) // (t["unit_bytes"] * t["gang"]))
        return {"buffers": np.where(needed <= fit, np.minimum(wanted, fit), 0).astype(np.int64), **t}

    def stored_ns(self, t: Table) -> Any:
        """ns of DMA for a pass's sums if x and gy are exchanged, in runs of an input channel's taps; else 0."""
        geometry, taps = self.geometry, self.geometry.rows.taps * self.geometry.columns.taps
        if not geometry.flipped:
            return 0.0
        run = taps if geometry.w_strides[1] > geometry.w_strides[3] else 1
        elements = taps * t["channels"] * t["accumulators"] / np.where(t["split"] > 0, PARTS, 1)
        return dma_ns(self.target, P_MAX, elements, run, 4)

    def end_ns(self, t: Table) -> Any:
        """ns that Vector needs for accumulators after their matmuls, of the last store, and of the exchange of both
        cores' sums."""
        target, taps = self.target, self.geometry.rows.taps * self.geometry.columns.taps
        count, rounds = np.minimum(t["accumulators"], self.banks), t["passes"] * ceil(t["accumulators"], self.banks)
        each_ns = t["beside"] * np.minimum(BANK_COLUMNS, taps * t["channels"]) * target.vector_ns
        # sums of one are evacuated during the matmuls of the next
        waits_ns = rounds * (count - 1) * np.maximum(0, each_ns - t["array_ns"] / t["accumulators"])
        width = np.minimum(BANK_COLUMNS, taps_beside(self.geometry, t["beside"]) * t["channels"])
        size = np.minimum(4 * self.geometry.K * self.C * num_taps(self.geometry), count * BANK_BYTES * P_MAX)
        exchanged_ns = target.exchange_ns + np.maximum(0, size - target.exchange_bytes) * target.exchange_byte_ns
        exchanged_ns = exchanged_ns + count * width * target.vector_ns + size / PARTS * target.hbm_long_byte_ns
        return each_ns + waits_ns + np.where(t["split"] > 0, exchanged_ns, 0) + target.last_store_ns
