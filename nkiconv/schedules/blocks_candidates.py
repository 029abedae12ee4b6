"""Settings of `blocks` in order of the least time that they can take (`blocks_bound`): of a bare kernel, and for the
host, whose search begins with them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice, product
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .blocks import (
    FEW_PASSES,
    LINES,
    TRANSPOSED,
    BlocksSettings,
    blocks_geometry,
    columns_beside,
    config_unsupported,
    exchange_unsupported,
    in_places,
    is_transposed,
    max_channels,
    most_beside,
    takes_lines,
    units_of_tile,
)
from .blocks_bound import BlocksBound
from .blocks_schedule import BlocksSchedule, build
from .geometry import Geometry
from .settings import Config, once_a_config
from .tiles import P_MAX, div_ceil

#: Rows and columns of a block that are tried, besides all of them.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)
#: Accumulators of a pass along output and input channels that are tried, besides half of them and all.
OUTPUTS, INPUTS = (1, 2, 4), (1, 2, 4)
#: Row tiles that are tried.
SIDES = (1, 2, 4)
#: What blocks may take of the Tensor Engine over those that take least.
IDLE = 1.15
#: Matmuls on zeros of settings to compare.
WARM_UP = 28
#: Settings to fall back on where better ones do not fit.
SPARE = 6


def plan(geometry: Geometry, config: Config, bias: bool, cores: int) -> tuple[BlocksSchedule | None, str]:
    """What `build` returns, of the settings that a config leaves open as candidates have them best."""
    return build(geometry, chosen(geometry, config, bias, cores), bias, cores)


@once_a_config
def chosen(geometry: Geometry, config: Config, bias: bool, cores: int) -> Config:
    """A config with all settings: those that it leaves open as candidates have them best; itself where none fits."""
    if config_unsupported(geometry, config, bias) or len(config or ()) == len(fields(BlocksSettings)):
        return config
    found = candidates(Target.of(Rates()), geometry, dict(config or ()), 1, bias, cores)
    return found[0][1] if found else config


def candidates(
    target: Target, geometry: Geometry, given: Mapping[str, Any], count: int, bias: bool, cores: int
) -> list[tuple[float, Config]]:
    """(ns, config) of so many of least time that have the given settings and fit. geometry: of x and gy in memory."""
    found: list[tuple[float, Config]] = []
    for exchanged in choices(given, "exchanged", (0, 1) if pays_exchanged(geometry, bias) else (0,)):
        own = {**given, "exchanged": exchanged}
        found += _in_places(target, geometry, own, count, bias, cores)
    return heapq.nsmallest(count, found, key=lambda one: one[0])


def pays_exchanged(geometry: Geometry, bias: bool) -> bool:
    """Whether x and gy may change places, so that the Tensor Engine has less to do."""
    (K, C), config = (geometry.K, geometry.C), (("exchanged", 1),)
    return div_ceil(C, P_MAX) * K < div_ceil(K, P_MAX) * C and not exchange_unsupported(geometry, config, bias)


def _in_places(
    target: Target, geometry: Geometry, given: Mapping[str, Any], count: int, bias: bool, cores: int
) -> list[tuple[float, Config]]:
    """`candidates` with x and gy in the places that are given."""
    found: list[tuple[float, int, Config]] = []
    source = in_places(geometry, tuple(given.items()))
    for pixels in choices(given, "pixels", (0,) if given.get("side", 1) > 1 else (0, LINES, TRANSPOSED)):
        config: Config = (("pixels", pixels),)
        lines, known = takes_lines(source, config), {"warmup": WARM_UP, **given, "pixels": pixels}
        if pixels and not (lines or is_transposed(source, config) or "pixels" in given):
            continue
        known |= {"columns": 1, "beside": 1} if lines else {}
        blocks = blocks_geometry(source, config)[0]
        bound = BlocksBound(target, blocks, source, 0 if blocks is source else pixels, units_of_tile(blocks, lines))
        least = _least(bound, known, count + SPARE)
        every = ((ns, _fitting(geometry, bound, one, known, bias, cores)) for ns, one in least)
        for ns, config in islice((one for one in every if one[1] is not None), count):
            found.append((ns, len(found), config))
    return [(ns, config) for ns, _, config in heapq.nsmallest(count, found)]


def _fitting(
    geometry: Geometry, bound: BlocksBound, one: BlocksSettings, given: Mapping[str, Any], bias: bool, cores: int
) -> Config:
    """The settings if they fit, or with one buffer where two do not; else None."""
    found = replace(one, warmup=given["warmup"], pixels=given["pixels"], exchanged=given["exchanged"])
    counts = (one.buffers, 1) if bound.pixels == TRANSPOSED and "buffers" not in given else (one.buffers,)
    for buffers in counts:
        config = replace(found, buffers=buffers).pairs
        if build(geometry, config, bias, cores)[0] is not None:
            return config
    return None


def _least(bound: BlocksBound, given: Mapping[str, Any], count: int) -> list[tuple[float, BlocksSettings]]:
    """(ns, settings) of the few of least time, the first of those alike."""
    kept: list[tuple[float, int, BlocksSettings]] = []
    for least_ns, at, one in sorted((bound.least_ns(one), at, one) for at, one in enumerate(_sizes(bound, given))):
        if len(kept) >= count and least_ns >= kept[count - 1][0]:
            break
        buffers = given.get("buffers") or bound.buffers(one)
        if buffers:
            one = replace(one, buffers=buffers)
            kept = sorted([*kept, (bound.ns(one), at, one)])[:count]
    return [(ns, one) for ns, _, one in kept]


def choices(given: Mapping[str, Any], name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Values of a setting: the given one, or these."""
    return (given[name],) if name in given else tuple(dict.fromkeys(values))


def _sizes(bound: BlocksBound, given: Mapping[str, Any]) -> Iterator[BlocksSettings]:
    """Settings to compare that have the given ones, but for buffers and warm-up."""
    geometry, is_transposed = bound.geometry, bound.pixels > 0
    P, Q, K, C = geometry.rows.out, geometry.columns.out, geometry.K // geometry.groups, geometry.C // geometry.groups
    # x's runs would be short otherwise
    wide = (Q,) if geometry.x_strides[0] != 1 else _parts(Q, EXTENTS)
    shapes = list(product(choices(given, "rows", _parts(P, EXTENTS)), choices(given, "columns", wide)))
    whole = div_ceil(K, P_MAX)
    besides = choices(given, "beside", (one for one in (1, 2, 4) if one <= most_beside(geometry)))
    for beside, side in product(besides, choices(given, "side", (1,) if is_transposed else SIDES)):
        most = max_channels(geometry, beside)
        # several row tiles pay where planes are blocks, whose zeros are left out
        least = columns_beside(geometry, beside)
        some = [one for one in shapes if one[1] >= least and (side == 1 or "side" in given or one == (P, Q))]
        every = BlocksSettings(1, 1, most, whole, div_ceil(C, most), beside, side, 1, 0, 0, 0, 0)
        blocks, own = _full(bound, some, every), div_ceil(C, side)
        # accumulators of channels that are transposed together need not wait for others
        widths = (most, min(most, P_MAX)) if bound.pixels == TRANSPOSED else (most,)
        for channels in choices(given, "channels", (div_ceil(own, div_ceil(own, one)) for one in widths)):
            parts = div_ceil(C, channels)
            ways = choices(given, "outputs", _parts(whole, OUTPUTS)), choices(given, "inputs", _parts(parts, INPUTS))
            for outputs, inputs in product(*ways):
                passes = geometry.groups * div_ceil(whole, outputs) * div_ceil(parts, inputs)
                # many passes are shared as well as halves are, whose sums the cores need not add
                splits = choices(given, "split", (0, 1) if passes < FEW_PASSES else (0,))
                for split, (rows, columns) in product(splits, blocks):
                    yield BlocksSettings(rows, columns, channels, outputs, inputs, beside, side, 1, 0, split, 0, 0)


def _full(bound: BlocksBound, shapes: list[tuple[int, int]], every: BlocksSettings) -> list[tuple[int, int]]:
    """Of shapes of blocks (rows, columns) those that leave little of the Tensor Engine idle, if a pass has all sums."""
    taken = [bound.array_ns(replace(every, rows=rows, columns=columns)) for rows, columns in shapes]
    return [one for one, ns in zip(shapes, taken, strict=True) if ns <= IDLE * min(taken)]


def _parts(whole: int, values: tuple[int, ...]) -> list[int]:
    """These values as far as a whole, half of it and all."""
    return sorted({one for one in (*values, div_ceil(whole, 2), whole) if one <= whole})
