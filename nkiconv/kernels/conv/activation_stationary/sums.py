"""Sums in PSUM: every product of some banks, filters on their way between matmuls, evacuation with the epilogue."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.geometry import Geometry
from ....schedules.options import Options
from ....schedules.tiles import div_ceil
from ..._engines import Ledger, new_ledger
from ..._epilogue import evacuate
from ..._warm import warm_zeros
from ..call import Operands, of_array
from ..regions import load_bias_as
from .filters import filters_until, fold_filters, place_next, start_filters, waiting_to

#: Matmuls between the transposes of a K tile's filters and their use, at least: they hide the evacuations.
LEAD_MATMULS = 12


@dataclass
class Work(nl.NKIObject):
    """What one core has at hand. y_sbuf, residual_sbuf: of the output tile that is evacuated; waiting: results that are
    to be transposed, or None."""

    operands: Operands
    geometry: Geometry
    options: Options
    plan: object
    ledger: Ledger
    zeros_sbuf: object
    filters: object = None
    bias_sbuf: object = None
    y_sbuf: object = None
    residual_sbuf: object = None
    waiting: object = None


def start_work(operands, geometry, options, plan):
    """The Work of a core that has done nothing."""
    return Work(operands, geometry, options, plan, new_ledger(), warm_zeros())


def start_group(work, k0, kn):
    """Filters of output channels k0 .. k0+kn-1, nothing loaded yet."""
    work.filters = start_filters(work.operands, work.geometry, work.plan, k0, kn)


def load_bias(work, k0, kn, fold=1):
    """Their biases on all partitions, `fold` times."""
    P_MAX = nl.tile_size.pmax
    pattern = [[0, P_MAX], [0, fold], [1, kn]]
    work.bias_sbuf = load_bias_as(work.operands.bias, (P_MAX, fold * kn), pattern, k0)


def multiply(work, matmuls, per_chunk):
    """Every product of some banks, filters placed between them. matmuls(chunk): yields (sums, stationary, moving,
    whether sums are there) of a K tile, `per_chunk` of them at most."""
    operands, geometry, filters = work.operands, work.geometry, work.filters
    lead, last = div_ceil(LEAD_MATMULS, per_chunk), len(work.plan.chunks) - 1
    for chunk in range(last + 1):
        filters_until(operands, geometry, filters, chunk, work.ledger)
        if not work.plan.by_rows and work.plan.source.fold > 1 and not filters.folded:
            fold_filters(geometry, work.plan.source, filters)
        for dst, stationary, moving, adds in matmuls(chunk):
            nisa.nc_matmul(
                dst=dst,
                stationary=of_array(stationary, operands),
                moving=of_array(moving, operands),
                accumulate=adds,
            )
            if waiting_to(filters, chunk + lead) > 0:
                place_next(operands, geometry, filters, work.ledger)


def evacuate_pixels(work, dst_sbuf, acc_psum, k0, residual_sbuf=None):
    """Sums [positions, n, k] with the epilogue, of output channels from k0 of the group on."""
    bias_sbuf, (positions, n, kn) = work.bias_sbuf, acc_psum.shape
    if bias_sbuf != None:
        bias_sbuf = bias_sbuf[0:positions, k0 : k0 + kn].expand_dim(1).broadcast(1, n)
    options = work.options
    evacuate(dst_sbuf, acc_psum, bias_sbuf, residual_sbuf, options.epilogue, work.ledger, options.strict_nonfinite)
