"""Matmuls without a reader, which a compiler may drop (trn2.toml, scheduling.drops_unread).

Warm-ups are such matmuls: their sums are never read; they keep the array busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory import PSUM
from ..program import Instruction


def unread_matmuls(instructions: Sequence[Instruction]) -> frozenset[int]:
    """Indices of one core's matmuls and transposes into tiles of PSUM that no instruction reads."""
    read = {region.info.id for each in instructions for region in each.reads if region.info.buffer is PSUM}
    return frozenset(
        each.index
        for each in instructions
        if each.engine == "tensor" and all(region.info.id not in read for region in each.writes)
    )
