"""Matmuls of a K tile of x for a bank of outputs: by which factors, into which sums."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_channels import ALONE
from ....schedules.implicit_gemm_outputs import chunk_window
from ..sums import elements_met, sums_met
from .fp8 import multiply_pair
from .stationaries import stationary_of_product


@dataclass
class Factor(nl.NKIObject):
    """What is multiplied for a K tile, and where sums go. adds: to what is there; low, parts: whether low parts must be
    there, and how many parts of x."""

    acc_psum: object
    stationaries: object
    x_sbuf: object
    adds: bool = False
    low: bool = False
    parts: int = 0


def multiply(geometry, one, chunk, factor, product, accumulate):
    """One matmul of a K tile for a bank of Sums."""
    band, bank, job = one.results.band, one.bank, one.results.job
    if chunk.pairing != ALONE:
        multiply_pair(geometry, one, chunk, factor, product, accumulate)
        return
    outputs = (band.z0 + bank.z, band.p0 + bank.p, band.q0 + bank.q)
    elements = (band.d0, band.h0, chunk_window(geometry, chunk, band)[0])
    nisa.nc_matmul(
        dst=sums_met(factor.acc_psum, product, outputs),
        stationary=stationary_of_product(factor.stationaries, geometry, job, chunk, product),
        moving=elements_met(factor.x_sbuf, (0, product.parts), product, elements),
        accumulate=accumulate,
    )
