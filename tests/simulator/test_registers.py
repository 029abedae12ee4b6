"""Registers: values in and out of memory, and which NeuronCore answers."""

from __future__ import annotations

import numpy as np
import pytest
from isa_tiles import evaluate, get, put

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.hbm], ids=["sbuf", "hbm"])
@pytest.mark.parametrize("value", [0, 7, -5, 2**31 - 1, -(2**31)])
def test_a_value_goes_through_registers(value, buffer):
    def body():
        first, second = nisa.register_alloc(), nisa.register_alloc(3)
        nisa.register_load(first, put(np.array([[value]], np.int32), buffer=buffer))
        nisa.register_move(second, first)
        out = nl.ndarray((1, 1), nl.int32, buffer)
        nisa.register_store(out, second)
        return get(out)

    assert evaluate(body) == value


def test_constants_are_moved():
    def body():
        register = nisa.register_alloc(1)
        nisa.register_move(register, 42)
        out = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(out, register)
        return get(out)

    assert evaluate(body) == 42


def test_a_register_without_a_value_is_not_stored():
    with pytest.raises(NkiError, match="NKI160"):
        evaluate(lambda: nisa.register_store(nl.ndarray((1, 1), nl.int32), nisa.register_alloc()))


@pytest.mark.parametrize("use", [bool, int, range], ids=["if", "int", "range"])
def test_a_register_does_not_steer_python(use):
    with pytest.raises(NkiError, match="NKI032"):
        evaluate(lambda: use(nisa.register_alloc(3)))


def test_the_core_is_gen3():
    assert nisa.get_nc_version() is nisa.nc_version.gen3
    assert nisa.get_nc_sub_version() == 0
