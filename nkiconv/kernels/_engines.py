"""Who reads PSUM out: Vector or Scalar, whichever has had less to do so far.

A compile-time ledger of the read-outs of a kernel in ns, from the engines' published rates (trn2.toml: vector.*,
scalar.*), so that neither waits for the other's backlog. It decides only who works, never what is computed.
"""

from dataclasses import dataclass

from .._nki import nisa, nl
from ._prices import SCALAR_NS, VECTOR_FIXED_NS, VECTOR_NS, VECTOR_NS_16BIT


@dataclass
class Ledger(nl.NKIObject):
    """ns of work given to each engine."""

    vector_ns: float
    scalar_ns: float


def is_16bit(dtype):
    """Whether Vector has a fast mode for the dtype."""
    return dtype == nl.bfloat16 or dtype == nl.float16


def pick(ledger, elements, fast):
    """The engine that would be done first with a read-out of that many elements a partition, and book it there."""
    vector_ns = VECTOR_FIXED_NS + elements * (VECTOR_NS_16BIT if fast else VECTOR_NS)
    scalar_ns = VECTOR_FIXED_NS + elements * SCALAR_NS
    if ledger.vector_ns + vector_ns <= ledger.scalar_ns + scalar_ns:
        ledger.vector_ns = ledger.vector_ns + vector_ns
        return nisa.engine.vector
    ledger.scalar_ns = ledger.scalar_ns + scalar_ns
    return nisa.engine.scalar
