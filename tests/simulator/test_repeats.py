"""Loops on the device: of long ones some iterations are recorded, and the profile is that of all; registers and scalars
in and out of memory, as indices, and what they are not.
"""

import gc
import itertools
import sys
import tracemalloc

import numpy as np
import pytest
from isa_tiles import evaluate, get, put, same
from on_device import scalar
from pairs import Pair, each_pair, run, vary
from timelines import tile

from nkiconv import simulator
from nkiconv.simulator import ArraySpec, NkiError, execute, iterations, jit, profiling
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.profiling import profile

X = ArraySpec((128, 512), "float32")
COUNTS = ("instructions", "dma_transfers", "dma_bytes", "hbm_bytes", "matmul_flops", "dma_elements")


@jit
def chain(x, trips):
    """Each iteration waits for the one before it."""
    kept, y = tile(), tile(buffer=nl.shared_hbm)
    nisa.dma_copy(kept, x)
    nl.fori_loop(0, trips, lambda _: nisa.tensor_scalar(kept, kept, nl.add, 1.0))
    nisa.dma_copy(y, kept)
    return y


@jit
def stream(x, trips):
    """Iterations of a load, a product and a store, which overlap."""
    y = tile(buffer=nl.shared_hbm)
    weights = nl.zeros((128, 128), nl.bfloat16, nl.sbuf)

    def body(_):
        loaded, made, sums = tile(), tile(), tile(buffer=nl.psum)
        nisa.dma_copy(loaded, x)
        narrow = tile(dtype=nl.bfloat16)
        nisa.tensor_copy(narrow, loaded)
        nisa.nc_matmul(sums, weights, narrow)
        nisa.tensor_copy(made, sums)
        nisa.dma_copy(y, made)

    nl.fori_loop(0, trips, body)
    return y


@jit
def nested(x, trips):
    """A loop of loops, with work before, between and after the inner ones."""
    kept, y = tile(), tile(buffer=nl.shared_hbm)
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


@pytest.mark.parametrize(("value", "buffer"), [(7, nl.hbm), (2**31 - 1, nl.sbuf), (-(2**31), nl.hbm)])
def test_a_value_goes_through_registers(value, buffer):
    def body():
        first, second = nisa.register_alloc(), nisa.register_alloc(3)
        nisa.register_load(first, put(np.array([[value]], np.int32), buffer=buffer))
        nisa.register_move(second, first)
        nisa.register_move(first, 42)
        outs = [nl.ndarray((1, 1), nl.int32, buffer) for _ in range(2)]
        for out, register in zip(outs, (first, second), strict=True):
            nisa.register_store(out, register)
        return [get(out).item() for out in outs]

    assert evaluate(body) == [42, value]


def test_a_register_without_a_value_is_not_stored():
    with pytest.raises(NkiError, match="NKI160"):
        evaluate(lambda: nisa.register_store(nl.ndarray((1, 1), nl.int32), nisa.register_alloc()))


def test_the_core_is_gen3():
    assert nisa.get_nc_version() is nisa.nc_version.gen3
    assert nisa.get_nc_sub_version() == 0


#: Views by one register or NkiScalar of value i, as of NumPy too, and where: the partition dim takes none.
BY_REGISTER = {
    "rows of one": (lambda t, i, ds: t[i, 1:3], ("hbm",)),
    "middle": (lambda t, i, ds: t[0:4, i, 0:6:2], ("hbm", "sbuf")),
    "last": (lambda t, i, ds: t[..., i], ("hbm", "sbuf")),
    "beside an int": (lambda t, i, ds: t[2, i], ("hbm",)),
    "two rows": (lambda t, i, ds: t[ds(i, 2)], ("hbm",)),
    "two of the middle": (lambda t, i, ds: t[0:3, ds(i, 2), 2:5], ("hbm", "sbuf")),
}


@pytest.mark.parametrize(("name", "buffer", "make"), [
    *((name, buffer, nisa.register_alloc) for name, (_, buffers) in BY_REGISTER.items() for buffer in buffers),
    ("middle", "sbuf", scalar), ("two of the middle", "sbuf", lambda i: scalar(i - 1) + 1),
    ("two rows", "hbm", scalar), ("beside an int", "hbm", lambda i: scalar(i, "int64")),
])  # fmt: skip
def test_registers_and_scalars_index_tensors(name, buffer, make):
    rng, i = np.random.default_rng(9), 2
    view = BY_REGISTER[name][0]
    values = rng.normal(size=(5, 4, 6)).astype(np.float32)
    expected = view(values, i, lambda start, size: slice(start, start + size))

    def body():
        source = view(put(values, buffer=getattr(nl, buffer)), make(i), nl.ds)
        assert source.shape == expected.shape
        assert source.is_indirect()
        out = nl.ndarray(expected.shape if expected.ndim > 1 else (1, *expected.shape), nl.float32)
        (nisa.dma_copy if buffer == "hbm" else nisa.tensor_copy)(out, source)
        return get(out)

    same(evaluate(body).reshape(expected.shape), np.ascontiguousarray(expected))


DTYPES = {"int32": np.int32, "int64": np.int64}
#: The documented example of a 32-bit scalar that wraps, and others; exact in Python.
ARITHMETIC = {
    "sum": lambda a, b: a + b, "int sum": lambda a, b: 7 + a + 1, "difference": lambda a, b: a - b,
    "from an int": lambda a, b: 3 - a, "product": lambda a, b: a * b, "int product": lambda a, b: 4 * a * 100_000 + 1,
    "negative": lambda a, b: -a,
}  # fmt: skip


def stored(value, buffer=nl.sbuf):
    out = nl.ndarray((1, 1), value.dtype, buffer)
    nisa.scalar_store(out, value)
    return get(out)


@pytest.mark.parametrize(("dtype", "buffer"), [("int32", nl.sbuf), ("int64", nl.hbm)])
def test_values_go_through_scalars(dtype, buffer):
    limits = np.iinfo(DTYPES[dtype])
    for value in (0, 7, -5, limits.max, limits.min):
        same(evaluate(lambda: stored(scalar(value, dtype, buffer), buffer)), np.array([[value]], DTYPES[dtype]))  # noqa: B023


@pytest.mark.cover
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_wraps_at_the_width_of_the_scalar(name, dtype):
    compute, info = ARITHMETIC[name], np.iinfo(DTYPES[dtype])
    for a, b in ((100_000, 100_000), (info.max, 1), (info.min, -3)):
        wrapped = (compute(a, b) - info.min) % 2**info.bits + info.min
        found = evaluate(lambda: stored(compute(scalar(a, dtype), scalar(b, dtype))))  # noqa: B023
        assert found.item() == wrapped


def test_what_is_recorded():
    """Each operation is an instruction that waits for those before it; without data nothing has a value."""

    def body():
        nisa.scalar_store(nl.ndarray((1, 1), nl.int32), scalar(2) * 3 - 1)

    found = run(body).instructions
    assert [one.op for one in found][-4:] == ["scalar_load", "scalar_arithmetic", "scalar_arithmetic", "scalar_store"]
    assert [one.after for one in found[-3:]] == [[one] for one in found[-4:-1]]
    traced = run(body, trace_only=True).instructions
    assert [one.op for one in traced] == [one.op for one in found]
    assert profiling.profile(jit(body))().modelled_us > 0


def narrow(dtype):
    return nl.ndarray((2, 4), dtype, nl.sbuf)


def summed(dst, src):
    return nisa.dma_compute(dst, [src], nl.add)


def loaded(shape=(1, 1), dtype=nl.int32, buffer=nl.sbuf):
    return nisa.scalar_load(nl.zeros(shape, dtype, buffer) if buffer is nl.sbuf else nl.ndarray(shape, dtype, buffer))


def kept(value, dtype=nl.int32):
    nisa.scalar_store(nl.ndarray((1, 1), dtype), value)


def indexed(dtype):
    tile = nl.zeros((2, 4), nl.float32)
    nisa.tensor_copy(nl.ndarray((2, 1), nl.float32), tile[:, nl.ds(scalar(1, dtype), 1)])


PAIRS = [
    Pair("NKI161", "one element", lambda: kept(loaded()), lambda: kept(loaded((2, 1))), r"src is \[2, 1\] int32"),
    Pair("NKI161", "dtype", lambda: kept(loaded()), lambda: kept(loaded(dtype=nl.uint32)), "uint32 in sbuf"),
    Pair("NKI161", "psum", lambda: kept(loaded()), lambda: kept(loaded(buffer=nl.psum)), "in psum"),
    Pair("NKI161", "an int", lambda: kept(scalar(3)), lambda: kept(3), "value is 3, expected an NkiScalar"),
    Pair("NKI161", "a register", lambda: kept(scalar(3)), lambda: kept(nisa.register_alloc(3)), "value is"),
    Pair("NKI161", "width", lambda: kept(scalar(3)), lambda: kept(scalar(3, "int64")), "an NkiScalar of int64"),
    Pair("NKI161", "mixed", lambda: kept(scalar(3) + scalar(1)), lambda: kept(scalar(3) + scalar(1, "int64")),
         "add of an int32 scalar and an NkiScalar of int64"),
    Pair("NKI161", "float", lambda: kept(scalar(3) * 2), lambda: kept(scalar(3) * 2.0), "int32 scalar and 2.0"),
    Pair("NKI161", "large", lambda: kept(scalar(3) + (2**31 - 1)), lambda: kept(scalar(3) + 2**31), "and 2147483648"),
    Pair("NKI161", "on chip", lambda: indexed("int32"), lambda: indexed("int64"), "an int64 index"),
    Pair("NKI032", "comparison", lambda: kept(scalar(3)), lambda: scalar(3) < 4, "result of a comparison"),
    Pair("NKI032", "quotient", lambda: kept(scalar(3)), lambda: scalar(3) // 2, r"it has \+ - \*"),
    Pair("NKI032", "branch", lambda: kept(scalar(3)), lambda: kept(scalar(3) if scalar(1) else scalar(2)),
         "an NkiScalar used as a Python value"),
    Pair("NKI055", "compute", lambda: nisa.memset(narrow(nl.int32), 1), lambda: nisa.memset(narrow(nl.int64), 1),
         "dst is int64"),
    Pair("NKI055", "cast", lambda: nisa.dma_copy(narrow(nl.int32), nl.zeros((2, 4), nl.int8)),
         lambda: nisa.dma_copy(narrow(nl.int64), nl.zeros((2, 4), nl.int8)), "dst is int64"),
    Pair("NKI055", "register", lambda: nisa.register_load(nisa.register_alloc(), nl.zeros((1, 1), nl.int32)),
         lambda: nisa.register_load(nisa.register_alloc(), put(np.ones((1, 1), np.int64))), "src is int64"),
    *(vary("NKI055", f"{call.__name__} by DMA", lambda t, call=call: call(*(put(np.ones((4, 4), t)) for _ in "ab")),
           np.int32, np.int64, " is int64") for call in (summed, nisa.dma_transpose)),
]  # fmt: skip

test_pairs = each_pair(PAIRS, __file__)


def test_nki_06_has_registers_instead():
    with pytest.raises(NkiError, match=r"NKI184: scalar_load: .* came with NKI 0\.7; use registers"):
        execute(jit(lambda: kept(scalar(1))), (), nki="0.6")
    with pytest.raises(ValueError, match=r"nki='0\.5': accepted are 0\.6, 0\.7"):
        execute(jit(lambda: None), (), nki="0.5")
