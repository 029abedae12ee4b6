"""Memory does not grow with the number of calls, whatever a kernel does."""

import gc
import sys
import tracemalloc

import numpy as np
import pytest

from nkiconv import simulator
from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

#: Calls that fill caches, and bytes that one call may leave on average, far less than one object.
WARM, LEFT_BYTES = 50, 5


@simulator.jit
def meets(x):
    """Two cores that meet at a barrier, each in a thread of its own."""
    core = nl.program_id(0)
    both, out = (nl.ndarray((2, 64), nl.float32, nl.shared_hbm) for _ in range(2))
    nisa.dma_copy(both[core], nl.load(x)[0, 0:64])
    nisa.core_barrier(both, (0, 1))
    nisa.dma_copy(out[core], both[1 - core])
    return out


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


@simulator.jit
def refused(x):
    """A rule that is broken on the way."""
    tile = nl.load(x)
    nisa.tensor_copy(tile, tile[:, 0:3])


def attempt(kernel, x):
    """One call, which ends as it must."""
    if kernel is not refused:
        simulator.simulate(kernel)(x)
        return
    with pytest.raises(NkiError, match="NKI045"):
        simulator.simulate(kernel)(x)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer, such as coverage, keeps memory of its own")
@pytest.mark.parametrize(
    ("kernel", "calls"), [(meets[2], 300), (loops, 1000), (refused, 300)], ids=["barrier", "loop", "error"]
)
def test_hundreds_of_calls(kernel, calls):
    x = np.ones((4, 64), np.float32)
    for _ in range(WARM):
        attempt(kernel, x)
    gc.collect()
    tracemalloc.start()
    try:
        attempt(kernel, x)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(calls):
            attempt(kernel, x)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < LEFT_BYTES * calls
    finally:
        tracemalloc.stop()
