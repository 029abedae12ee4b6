"""Registers: values in and out of memory, tensors that they index, and which NeuronCore answers."""

import numpy as np
import pytest
from isa_tiles import evaluate, get, put, same

from nkiconv.simulator import NkiError
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


#: Views by one register of value i, as indices say it of NumPy too, and where: the partition dim takes no register.
BY_REGISTER = {
    "row": (lambda t, i, ds: t[i], ("hbm",)),
    "rows of one": (lambda t, i, ds: t[i, 1:3], ("hbm",)),
    "middle": (lambda t, i, ds: t[0:4, i, 0:6:2], ("hbm", "sbuf")),
    "last": (lambda t, i, ds: t[..., i], ("hbm", "sbuf")),
    "beside an int": (lambda t, i, ds: t[2, i], ("hbm",)),
    "two rows": (lambda t, i, ds: t[ds(i, 2)], ("hbm",)),
    "two of the middle": (lambda t, i, ds: t[0:3, ds(i, 2), 2:5], ("hbm", "sbuf")),
}


@pytest.mark.parametrize(
    ("name", "buffer"), [(name, buffer) for name, (_, buffers) in BY_REGISTER.items() for buffer in buffers]
)
def test_registers_index_tensors(name, buffer):
    rng, i = np.random.default_rng(9), 2
    view = BY_REGISTER[name][0]
    values = rng.normal(size=(5, 4, 6)).astype(np.float32)
    expected = view(values, i, lambda start, size: slice(start, start + size))

    def body():
        source = view(put(values, buffer=getattr(nl, buffer)), nisa.register_alloc(i), nl.ds)
        assert source.shape == expected.shape
        assert source.is_indirect()
        out = nl.ndarray(expected.shape if expected.ndim > 1 else (1, *expected.shape), nl.float32)
        (nisa.dma_copy if buffer == "hbm" else nisa.tensor_copy)(out, source)
        return get(out)

    same(evaluate(body).reshape(expected.shape), np.ascontiguousarray(expected))
