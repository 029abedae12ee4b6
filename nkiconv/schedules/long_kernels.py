"""Kernels that are too long: for the compiler, or to be unrolled.

A core's instructions are estimated from the time of its bound, which every algorithm has: nothing else counts them
before a kernel is traced. The simulator's trace counts exactly, and refuses the same kernels (NKI034).
"""

from __future__ import annotations

import math

from ..simulator.hardware import INSTRUCTIONS_MAX
from .tiles import PARTS

#: ns of a core from one instruction to the next, for the estimate: named kernels take 28 to 220, half of them 90 or
#: more, and up to 650 with fp32 matmuls of four passes. A short one refuses some kernels of more than 0.3 s that the
#: compiler would take; a long one would let the simulator trace millions of instructions before it refuses.
ISSUE_NS = 60.0
#: The fewest instructions of an output tile.
TILE_INSTRUCTIONS = 14
#: ns of the bound above which a device loop is better than a faster kernel of unrolled steps.
UNROLLED_NS = 1e7


def too_long(what: str, ns: float) -> str:
    """Why the compiler does not take a kernel; "" if it does. what: extents and the algorithm; ns: of a core of two."""
    return too_many(what, ns / ISSUE_NS)


def too_many_tiles(what: str, tiles: int) -> str:
    """Why the compiler does not take so many output tiles of two cores; "" if it may: asked before they are listed."""
    return too_many(what, TILE_INSTRUCTIONS * tiles / PARTS)


def too_many(what: str, count: float) -> str:
    """Why the compiler does not take about so many instructions of a core; "" if it does."""
    if count <= INSTRUCTIONS_MAX:
        return ""
    return (
        f"{what} needs about {count:.0f} instructions on a core, the compiler takes {INSTRUCTIONS_MAX}; split its "
        f"images, rows, tokens or channels over {math.ceil(count / INSTRUCTIONS_MAX)} calls"
    )
