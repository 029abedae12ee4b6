"""The algorithms of gradients of filters of images and volumes: who is chosen."""

from __future__ import annotations

import functools

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from . import blocks_candidates, diagonals_candidates
from .geometry import Geometry


@functools.lru_cache(maxsize=128)
def default_of(geometry: Geometry, bias: bool, cores: int) -> str:
    """The algorithm of a kernel that is called without one: that of the least bound; blocks, to be refused, where none
    runs."""
    target = Target.of(Rates())
    blocks = blocks_candidates.candidates(target, geometry, {}, 1, bias, cores)
    diagonals = diagonals_candidates.candidates(target, geometry, None, 1)
    if not diagonals or diagonals_candidates.plan(geometry, None, bias, cores)[0] is None:
        return "blocks"
    return "diagonals" if not blocks or diagonals[0][0] < blocks[0][0] else "blocks"
