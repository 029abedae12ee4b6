"""Candidate settings of `blocks` in order of their bound (`blocks_bound`): for a kernel without a config, and for the
host, whose search begins with them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .blocks import (
    GY_TRANSPOSED,
    LINES,
    TRANSPOSED,
    BlocksSettings,
    columns_beside,
    config_unsupported,
    exchange_unsupported,
    in_places,
    max_channels,
    most_beside,
    pixels_unsupported,
)
from .blocks_bound import BlocksBound
from .blocks_schedule import BlocksSchedule, build
from .geometry import Geometry
from .settings import Config, declarations, once_a_config, values_of
from .tables import Table, joined, table
from .tiles import P_MAX, div_ceil

#: Rows and columns of a block that are tried, besides half of them and all.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32)
#: Accumulators of a pass along output and input channels that are tried, besides half of them and all.
OUTPUTS, INPUTS = (1, 2, 4, 8), (1, 2, 3, 4, 6)
#: Row tiles that are tried.
SIDES = (1, 2, 4)
#: Matmuls on zeros of candidate settings.
WARM_UP = 28
#: Further settings, tried if better ones do not fit.
SPARE = 6


def plan(geometry: Geometry, config: Config, bias: bool) -> tuple[BlocksSchedule | None, str]:
    """As `build`, with a config's open settings filled in by the best candidate."""
    return build(geometry, chosen(geometry, config, bias), bias)


@once_a_config
def chosen(geometry: Geometry, config: Config, bias: bool) -> Config:
    """The config completed by the best candidate that fits; itself if no candidate does."""
    if config_unsupported(geometry, config, bias) or len(config or ()) == len(declarations(BlocksSettings)):
        return config
    found = candidates(Target.of(Rates()), geometry, dict(config or ()), 1, bias)
    return found[0][1] if found else config


def candidates(
    target: Target, geometry: Geometry, given: Mapping[str, Any], count: int, bias: bool
) -> list[tuple[float, Config]]:
    """(ns, config) of the `count` candidates of least time that hold the given settings and fit. geometry: of x and gy
    in memory."""
    every = (0, LINES, TRANSPOSED, GY_TRANSPOSED) if given.get("side", 1) == 1 else (0,)
    places = values_of(given, "exchanged", (0, 1) if pays_exchanged(geometry, bias) else (0,))
    found: list[Iterator[tuple[float, Config]]] = []
    for exchanged, pixels in product(places, values_of(given, "pixels", every)):
        known = {"warmup": WARM_UP, **given, "exchanged": exchanged, "pixels": pixels}
        source = in_places(geometry, tuple(known.items()))
        if "pixels" in given or not pixels_unsupported(source, pixels):
            known |= {"columns": 1, "beside": 1} if pixels == LINES else {}
            found.append(_least(BlocksBound(target, source, pixels), known, count + SPARE))
    least = heapq.merge(*found, key=lambda one: one[0])
    return [*islice((one for one in least if build(geometry, one[1], bias)[0] is not None), count)]


def pays_exchanged(geometry: Geometry, bias: bool) -> bool:
    """Whether x and gy can be exchanged and the Tensor Engine then has less work."""
    (K, C), config = (geometry.K, geometry.C), (("exchanged", 1),)
    return div_ceil(C, P_MAX) * K < div_ceil(K, P_MAX) * C and not exchange_unsupported(geometry, config, bias)


def _least(bound: BlocksBound, known: Mapping[str, Any], count: int) -> Iterator[tuple[float, Config]]:
    """(ns, config) of the `count` settings of least time; some may exceed SBUF."""
    priced = bound.priced(_sizes(bound, known))
    for at in np.argsort(priced["ns"], kind="stable")[:count]:
        if priced["ns"][at] < math.inf:
            every = {
                name: int(priced[name][at] if name in priced else known[name]) for name in declarations(BlocksSettings)
            }
            yield float(priced["ns"][at]), BlocksSettings(**every).pairs


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
            found.append(of_channels)
    t = joined(found)
    return {**t, "buffers": np.full_like(t["rows"], given["buffers"])} if "buffers" in given else t


def _parts(whole: int, values: tuple[int, ...]) -> list[int]:
    """`values` up to `whole`, and half and all of it."""
    return sorted({one for one in (*values, div_ceil(whole, 2), whole) if one <= whole})
