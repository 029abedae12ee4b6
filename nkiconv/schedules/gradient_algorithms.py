"""The algorithms of gradients of filters: the default of a bare kernel, by their bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import (
    blocks,
    blocks_candidates,
    blocks_schedule,
    depthwise_algorithms,
    diagonals,
    diagonals_candidates,
    skewed,
)
from .depthwise import Options, RowGeometry
from .geometry import Geometry
from .settings import Config, Settings, once_a_config

#: The algorithms by name: settings; candidates by (target, geometry, config, count, bias); schedule by (geometry,
#: config, bias), or why there is none.
ALGORITHMS: dict[str, tuple[type[Settings], Callable[..., Any], Callable[..., tuple[Any, str]]]] = {
    "blocks": (blocks.BlocksSettings, blocks_candidates.candidates, blocks_schedule.build),
    "diagonals": (diagonals.DiagonalsSettings, diagonals_candidates.candidates, diagonals.build),
}


@once_a_config
def plan_of(algorithm: str, geometry: Geometry, config: Config, bias: bool) -> tuple[Any, str]:
    """(schedule, "") or (None, the reason against it), a config's open settings filled in by the best candidate."""
    settings, candidates, build = ALGORITHMS[algorithm]
    if settings.unsupported_reason(config) == "" and settings.whole(config) is None:
        found = candidates(Target.of(Rates()), geometry, config, 1, bias)
        config = found[0][1].pairs if found else config
    return build(geometry, config, bias)


@functools.lru_cache(maxsize=128)
def default_of(geometry: Geometry, bias: bool) -> str:
    """The algorithm of a kernel that is called without one: that of the least bound; if none runs, blocks, which
    refuses the call."""
    every = ((name, one[1](Target.of(Rates()), geometry, None, 1, bias)) for name, one in ALGORITHMS.items())
    least = {name: found[0][0] for name, found in every if found}
    return min(least, key=least.__getitem__, default="blocks")


@functools.lru_cache(maxsize=128)
def default_of_rows(forward: RowGeometry, geometry: RowGeometry, options: Options) -> str:
    """The default algorithm of depthwise rows: `skewed`, or an algorithm of the convolution of x with gy.

    forward: the convolution of the gradient; geometry, options: the convolution of x with gy.
    """
    target = Target.of(Rates())
    # the cores synchronise before the gradients of several images are loaded and added
    fold_ns = target.exchange_ns + target.round_trip_ns if forward.N > 1 else 0.0
    found = [(ns + fold_ns, name) for ns, name in depthwise_algorithms.bounds(geometry, options)]
    of_skewed = skewed.candidates(target, forward, None)
    found += [(ns, "skewed") for ns, one in of_skewed if skewed.build(forward, one.pairs)[0]][:1]
    return min(found)[1] if found else depthwise_algorithms.default_of(geometry, options)
