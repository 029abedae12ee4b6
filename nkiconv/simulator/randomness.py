"""The random number generators of one core's Vector Engine and GpSimd.

No document gives the sequences of trn2's generators. Those here have the right range, distribution and state, depend
only on their seeds, and continue from one instruction to the next. The numbers differ from hardware's.
"""

from __future__ import annotations

import numpy as np

from . import hardware as hw
from .dtypes import Array

#: Words of one GpSimd lane's state (isa rand_set_state).
STATE_WORDS = 6
#: The increment of XORWOW's counter at every step (Marsaglia, Xorshift RNGs, 2003).
_STEP = np.uint32(362437)


class Generators:
    """Both generators of a core. Without a seed they start the same way in every run, and differently on each core."""

    def __init__(self, core: int) -> None:
        self._core = core
        self._vector: np.random.Generator | None = None
        self._lanes: Array | None = None

    def seed_vector(self, seed: int) -> None:
        """Start the Vector Engine's generator from a 32-bit seed."""
        self._vector = np.random.default_rng(seed)

    def vector(self) -> np.random.Generator:
        """The Vector Engine's generator."""
        if self._vector is None:
            self._vector = np.random.default_rng([self._core, 0])
        return self._vector

    def lanes(self) -> Array:
        """State of GpSimd's 128 lanes: uint32 [128, 6]."""
        if self._lanes is None:
            start = np.random.default_rng([self._core, 1])
            self._lanes = start.integers(0, 1 << 32, (hw.PARTITIONS, STATE_WORDS), dtype=np.uint32)
        return self._lanes

    def lane_bits(self, first: int, lanes: int, count: int) -> Array:
        """The next `count` 32-bit numbers of some GpSimd lanes: uint32 [lanes, count], by XORWOW."""
        state = self.lanes()[first : first + lanes]
        x, y, z, w, v, counter = (column.copy() for column in state.T)
        out = np.empty((lanes, count), np.uint32)
        for i in range(count):
            t = x ^ (x >> np.uint32(2))
            x, y, z, w = y, z, w, v
            v = v ^ (v << np.uint32(4)) ^ t ^ (t << np.uint32(1))
            counter = counter + _STEP
            out[:, i] = v + counter
        state[...] = np.stack([x, y, z, w, v, counter], axis=1)
        return out
