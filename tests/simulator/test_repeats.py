"""Long device loops without data: some iterations are recorded, and the profile is that of all of them. Many calls:
memory does not grow with their number.
"""

import gc
import itertools
import sys
import tracemalloc

import numpy as np
import pytest

from nkiconv import simulator
from nkiconv.simulator import ArraySpec, execute, iterations, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.profiling import profile

X = ArraySpec((128, 512), "float32")
COUNTS = ("instructions", "dma_transfers", "dma_bytes", "hbm_bytes", "matmul_flops", "dma_elements")


def tile(dtype=nl.float32):
    return nl.ndarray((128, 512), dtype=dtype, buffer=nl.sbuf)


@jit
def chain(x, trips):
    """Each iteration waits for the one before it."""
    kept, y = tile(), nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(kept, x)
    nl.fori_loop(0, trips, lambda _: nisa.tensor_scalar(kept, kept, nl.add, 1.0))
    nisa.dma_copy(y, kept)
    return y


@jit
def stream(x, trips):
    """Iterations of a load, a product and a store, which overlap."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    weights = nl.zeros((128, 128), nl.bfloat16, nl.sbuf)

    def body(_):
        loaded, made, sums = tile(), tile(), nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(loaded, x)
        narrow = tile(nl.bfloat16)
        nisa.tensor_copy(narrow, loaded)
        nisa.nc_matmul(sums, weights, narrow)
        nisa.tensor_copy(made, sums)
        nisa.dma_copy(y, made)

    nl.fori_loop(0, trips, body)
    return y


@jit
def nested(x, trips):
    """A loop of loops, with work before, between and after the inner ones."""
    kept, y = tile(), nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(kept, x)

    def outer(_):
        nisa.activation(kept, nl.exp, kept)
        nl.fori_loop(0, trips, lambda _: nisa.tensor_scalar(kept, kept, nl.add, 1.0))
        nisa.tensor_scalar(kept, kept, nl.multiply, 0.5)
        nl.fori_loop(0, 2 * trips, lambda _: nisa.tensor_scalar(kept, kept, nl.subtract, 1.0))

    nl.fori_loop(0, trips, outer)
    nisa.dma_copy(y, kept)
    return y


@pytest.mark.cover(0, keep=["nested-20-256-1", "chain-300-64-2"])
@pytest.mark.parametrize(
    ("kernel", "trips", "least", "lnc"), [(chain, 300, 64, 2), (stream, 1200, 4096, 1), (nested, 20, 256, 1)]
)
def test_the_profile_is_that_of_all_iterations(kernel, trips, least, lnc, monkeypatch):
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 10**9)
    whole = profile(kernel[lnc])(X, trips)
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", least)
    short = profile(kernel[lnc])(X, trips)
    assert whole.extrapolated_us == 0.0
    assert short.extrapolated_us > whole.modelled_us / 3
    assert [getattr(short, name) for name in COUNTS] == [getattr(whole, name) for name in COUNTS]
    # the middle half of what is recorded is steady, so the rest is as long; the throttle's windows are not a whole
    # number of iterations, which moves the Tensor Engine's rate
    assert short.modelled_us == pytest.approx(whole.modelled_us, rel=0.02)
    assert short.lookahead_us == pytest.approx(whole.lookahead_us, rel=0.02)
    assert "iterations of device loops that were not recorded" in " ".join(str(short).split())


def test_a_billion_iterations(monkeypatch):
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 64)
    found = profile(chain[1])(X, 10**9)
    assert found.instructions > 10**9
    assert len(found.timed.tasks) < 2 * iterations.RECORDED_INSTRUCTIONS
    thousandth = profile(chain[1])(X, 10**6)
    assert found.modelled_us == pytest.approx(1000 * thousandth.modelled_us, rel=1e-3)


def test_the_last_iteration_is_recorded(monkeypatch):
    """What the body leaves in a register is what all iterations leave there."""
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 64)
    left = []

    @jit
    def kernel(x):
        register = nisa.register_alloc(0)

        def body(i):
            nisa.memset(tile(), 0.0)
            nisa.register_move(register, i)

        nl.fori_loop(nisa.register_alloc(0), 1000, body)
        left.append(register.value)

    [program] = execute(kernel, (X,), trace_only=True).programs
    assert left == [999]
    [repeat] = program.repeats
    assert repeat.skipped + len(repeat.ends) == 1000


def test_loops_that_depend_on_the_iteration_around_them_are_recorded_whole(monkeypatch):
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 64)

    @jit
    def kernel(x):
        kept = tile()
        nisa.dma_copy(kept, x)
        step = lambda _: nisa.tensor_scalar(kept, kept, nl.add, 1.0)  # noqa: E731
        nl.fori_loop(1, 20, lambda i: nl.fori_loop(0, i, step))

    [program] = execute(kernel, (X,), trace_only=True).programs
    recorded = sum(one.op == "tensor_scalar" for one in program.instructions)
    assert recorded + sum(repeat.skipped for repeat in program.repeats) == sum(range(1, 20))


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


@pytest.mark.slow
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer, such as coverage, keeps memory of its own")
def test_hundreds_of_calls_leave_nothing():
    """What calls keep grows in every round, by more than a byte a call; what else the process does grows in some."""
    x, held = np.ones((4, 64), np.float32), []
    tracemalloc.start()  # before the first call: what it does not see made, it does not see replaced
    try:
        for calls in (100, 250, 250, 250):
            for _ in range(calls):
                simulator.simulate(loops)(x)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert min(after - before for before, after in itertools.pairwise(held)) < 250
