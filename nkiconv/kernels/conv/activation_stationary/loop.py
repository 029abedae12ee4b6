"""The loop of a core: all products of an output tile, filters on their way between matmuls, evacuation and stores.

Pixels, rows of volumes and blocks of depthwise problems yield output tiles, and load x of the next one before they do.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.geometry import Geometry
from ....schedules.options import Options
from ....schedules.tiles import div_ceil
from ..._engines import Ledger
from ..._epilogue import evacuate
from ..._pixel_norms import evacuate_normalized, load_norm
from ..call import Operands, of_array
from ..regions import load_bias_as
from .filters import filters_until, fold_filters, place_next, waiting_to

#: Matmuls between the transposes of a K tile's filters and their use, at least: they hide the evacuations.
LEAD_MATMULS = 12


@dataclass
class Work(nl.NKIObject):
    """What one core has at hand. y_sbuf, residual_sbuf, kept_sbuf: of the output tile that is evacuated; waiting:
    results that are to be transposed, or None; norm: NormOperands in SBUF, or None; y_tiles: of rows of y in turn, or
    None."""

    operands: Operands
    geometry: Geometry
    options: Options
    plan: object
    ledger: Ledger
    zeros_sbuf: object
    filters: object = None
    bias_sbuf: object = None
    norm: object = None
    y_tiles: object = None
    y_sbuf: object = None
    residual_sbuf: object = None
    kept_sbuf: object = None
    waiting: object = None


def work_tiles(work, tiles):
    """Output tiles, or some banks of one, one after the other: (products, how many of a K tile at most, leave) of each.

    products(K tile): yields (sums, stationary, moving, whether sums are there); leave(): evacuates the sums. Filters
    that are moving operands are put in place between the matmuls that come before theirs.
    """
    operands, geometry, plan = work.operands, work.geometry, work.plan
    for products, count, leave in tiles:
        filters, lead = work.filters, div_ceil(LEAD_MATMULS, count)
        for k_tile in range(1 if filters == None else len(plan.k_tiles)):
            if filters != None:
                filters_until(work, k_tile)
                if not plan.by_rows and plan.source.fold > 1 and not filters.folded:
                    fold_filters(geometry, plan.source, filters)
            for dst, stationary, moving, adds in products(k_tile):
                nisa.nc_matmul(
                    dst=dst,
                    stationary=of_array(stationary, operands),
                    moving=of_array(moving, operands),
                    accumulate=adds,
                )
                if filters != None and waiting_to(filters, k_tile + lead) > 0:
                    place_next(work)
        leave()


def load_bias(work, k0, kn, fold=1):
    """Biases of output channels k0 .. k0+kn-1 on all partitions, `fold` times, and what a norm multiplies and adds."""
    P_MAX = nl.tile_size.pmax
    pattern = [[0, P_MAX], [0, fold], [1, kn]]
    work.bias_sbuf = load_bias_as(work.operands.bias, (P_MAX, fold * kn), pattern, k0)
    work.norm = load_norm(work.operands.norm, kn)


def evacuate_pixels(work, dst_sbuf, acc_psum, k0, residual_sbuf=None, kept_sbuf=None):
    """Sums [positions, n, k] with the epilogue, of output channels from k0 of the group on; with a norm, of all of a
    pixel or of several rows' pixels; kept_sbuf: as of `evacuate_normalized`."""
    bias_sbuf, (positions, n, kn) = work.bias_sbuf, acc_psum.shape
    if bias_sbuf != None:
        bias_sbuf = bias_sbuf[0:positions, k0 : k0 + kn].expand_dim(1).broadcast(1, n)
    options, K = work.options, work.geometry.K
    if work.norm != None:
        for k in range(0, kn, K):
            y, acc, bias, residual, kept = (
                None if one == None else one[0:positions, 0:n, k : k + K]
                for one in (dst_sbuf, acc_psum, bias_sbuf, residual_sbuf, kept_sbuf)
            )
            evacuate_normalized(y, acc, bias, residual, options.epilogue, work.norm, work.ledger, kept)
        return
    evacuate(dst_sbuf, acc_psum, bias_sbuf, residual_sbuf, options.epilogue, work.ledger, options.strict_nonfinite)
