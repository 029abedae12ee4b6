"""Integers that the device knows: registers and NkiScalars in and out of memory, as indices, and what they are not."""

import numpy as np
import pytest
from isa_tiles import evaluate, get, put, same
from on_device import scalar
from pairs import Pair, check, named, run

from nkiconv.simulator import NkiError, execute, jit, profiling
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl


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
]  # fmt: skip


@named(PAIRS)
def test_pairs(pair):
    check(pair, __file__)


def test_nki_06_has_registers_instead():
    with pytest.raises(NkiError, match=r"NKI184: scalar_load: .* came with NKI 0\.7; use registers"):
        execute(jit(lambda: kept(scalar(1))), (), nki="0.6")
    with pytest.raises(ValueError, match=r"nki='0\.5': accepted are 0\.6, 0\.7"):
        execute(jit(lambda: None), (), nki="0.5")
