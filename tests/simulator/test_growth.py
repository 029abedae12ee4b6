"""Memory does not grow with the number of calls, whatever a kernel does."""

import gc
import itertools
import sys
import tracemalloc

import numpy as np
import pytest

from nkiconv import simulator
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

#: Calls that come first, to fill caches and Python's lists of free objects, and rounds of calls after them.
WARM, ROUNDS = 100, 3
#: Bytes that a call of a round may leave on average, far less than one object (16).
LEFT_BYTES = 1


@simulator.jit
def loops(x):
    """Registers, a device loop, PSUM, and a view at run time."""
    tile, sums = nl.load(x), nl.ndarray((4, 64), nl.float32, nl.psum)
    register = nisa.register_alloc(3)
    nl.fori_loop(0, register, lambda _: nisa.nc_matmul(sums, tile[0:4, 0:4], tile[0:4, 0:64]) and None)
    out = nl.ndarray((4, 64), nl.float32, nl.shared_hbm)
    nisa.tensor_copy(tile, sums)
    nl.store(out, tile)
    return out


def rounds(call, calls):
    """Bytes that are held more after a round of calls than before it, for each round."""
    held = []
    tracemalloc.start()  # before the first call: what it does not see made, it does not see replaced
    try:
        for _ in range(WARM):
            call()
        for _ in range(ROUNDS + 1):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
            for _ in range(calls):
                call()
    finally:
        tracemalloc.stop()
    return [after - before for before, after in itertools.pairwise(held)]


@pytest.mark.slow
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer, such as coverage, keeps memory of its own")
def test_hundreds_of_calls():
    """What calls keep grows in every round; what else the process does grows in some."""
    x = np.ones((4, 64), np.float32)
    assert min(rounds(lambda: simulator.simulate(loops)(x), 250)) < LEFT_BYTES * 250
