"""The algorithms of gradients of filters: the default of a bare kernel, by their bounds."""

from __future__ import annotations

import functools

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import blocks_candidates, depthwise_algorithms, diagonals_candidates, skewed
from .depthwise import Options, RowGeometry
from .geometry import Geometry


@functools.lru_cache(maxsize=128)
def default_of(geometry: Geometry, bias: bool) -> str:
    """The algorithm of a kernel that is called without one: that of the least bound; if none runs, blocks, which
    refuses the call."""
    target = Target.of(Rates())
    blocks = blocks_candidates.candidates(target, geometry, {}, 1, bias)
    diagonals = diagonals_candidates.candidates(target, geometry, None, 1)
    if not diagonals or diagonals_candidates.plan(geometry, None, bias)[0] is None:
        return "blocks"
    return "diagonals" if not blocks or diagonals[0][0] < blocks[0][0] else "blocks"


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
