"""fp32 numbers as pairs of fp16: high = fp16(v), low = fp16(2^11 (v - high)), so that v is high + 2^-11 low.

What is left of v below its 11 bits, v - high, is exact in fp32 and at most 2^-11 |v|; times 2^11 it has the size of v
itself and is as far from fp16's subnormal numbers. `nkiconv.bounds` derives what products of pairs lose.
"""

from ...._nki import nisa, nl
from ..._prices import SCALAR_FIXED_NS, SCALAR_NS, VECTOR_FIXED_NS, VECTOR_NS, VECTOR_NS_16BIT

#: Between the scales of low and high parts, and back.
UP = 2048.0
DOWN = 1.0 / 2048.0


def split(high_sbuf, low_sbuf, data, rest_sbuf, elements, copy_ns, ledger):
    """High and low parts of fp32 data.

    Args:
        high_sbuf, low_sbuf: fp16, of data's shape. data: in SBUF or PSUM. rest_sbuf: fp32, for what the high part
            leaves; data itself, or another tile where data is in PSUM.
        elements: of data, a partition. copy_ns: what Vector takes to round one of them.
    """
    nisa.tensor_copy(dst=high_sbuf, src=data, engine=pick(ledger, elements, copy_ns))
    ledger.vector_ns = ledger.vector_ns + VECTOR_FIXED_NS + elements * VECTOR_NS
    nisa.tensor_tensor(dst=rest_sbuf, data1=data, data2=high_sbuf, op=nl.subtract, engine=nisa.engine.vector)
    nisa.tensor_scalar(
        dst=low_sbuf,
        data=rest_sbuf,
        op0=nl.multiply,
        operand0=UP,
        engine=pick(ledger, elements, VECTOR_NS_16BIT),
    )


def pick(ledger, elements, vector_ns):
    """Vector, at so many ns an element, or Scalar: who would be done first; booked there."""
    vector_ns = VECTOR_FIXED_NS + elements * vector_ns
    scalar_ns = SCALAR_FIXED_NS + elements * SCALAR_NS
    if ledger.vector_ns + vector_ns <= ledger.scalar_ns + scalar_ns:
        ledger.vector_ns = ledger.vector_ns + vector_ns
        return nisa.engine.vector
    ledger.scalar_ns = ledger.scalar_ns + scalar_ns
    return nisa.engine.scalar
