"""Integers that the device knows, registers and NkiScalars: made from memory, and read back."""

import numpy as np
from isa_tiles import get, put
from pairs import run

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl


def register(value):
    """A register whose value came from memory."""
    loaded = nisa.register_alloc()
    nisa.register_load(loaded, put(np.array([[value]], np.int32)))
    return loaded


def scalar(value, dtype="int32", buffer=nl.sbuf):
    """An NkiScalar."""
    return nisa.scalar_load(put(np.array([[value]], dtype), buffer=buffer))


def value_of(one):
    cell = nl.ndarray((1, 1), nl.int32)
    (nisa.scalar_store if isinstance(one, nisa.NkiScalar) else nisa.register_store)(cell, one)
    return int(get(cell)[0, 0])


def seen(loop):
    """Values of a loop's induction register, in order; `loop` gets the function to call with each."""
    values = []
    run(lambda: loop(lambda i: values.append(value_of(i))))
    return values


#: lower, upper and step of loops; how a bound may be given, both in NKI 0.6 and in 0.7.
BOUNDS = [(0, 4, 1), (1, 8, 3), (5, 5, 1), (7, 2, 1), (-3, 2, 2)]
MAKES = {"ints": int, "registers": nisa.VirtualRegister, "loaded": register}
