"""Matmuls of a chunk of x for a bank of outputs: which taps meet x where, by which factors, into which sums."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.cuts import put_first
from ....schedules.geometry import filter_rows, met, num_taps
from ....schedules.tiles import div_ceil
from ..call import of_array
from ..sums import Product, elements_met, home_tap, is_whole, sums_met
from .cuts import home_row, tap_order
from .fold import chunk_window, group_depth, group_met, job_axis, tap_groups
from .fp8 import multiply_pair, pairs_in
from .pairs_fp8 import ALONE, stores_zeros
from .parts import parts_to, prepare_to
from .stationaries import stationary_of_product
from .winograd import ORDER_OF_SUMS


@dataclass
class Factor(nl.NKIObject):
    """What is multiplied for a chunk, and where sums go. adds: to what is there; low, parts: whether low parts must be
    there, and how many RowParts of x."""

    acc_psum: object
    stationaries: object
    x_sbuf: object
    adds: bool = False
    low: bool = False
    parts: int = 0


def factors_of(work, one, chunk, tile, every):
    """Factors of a chunk: one, or those of pairs, high parts first; in the last chunk last, as the rest has one
    read-out more to go through."""
    filters, index, banks = work.batch.filters, one.results.index, one.banks
    own = filters.by_job[index][chunk]
    w_sbuf = own.tile
    if work.preparing == None:
        w_sbuf, x_sbuf = of_array(w_sbuf, work.operands), of_array(tile, work.operands)
        return [Factor(acc_psum=banks[0], stationaries=w_sbuf, x_sbuf=x_sbuf)]
    parts = parts_to(tile, band_rows_met(one, every))
    prepare_to(work, parts)
    if work.geometry.direct != None:
        return factors_of_sums(work.geometry, banks, w_sbuf, tile.tiles[0])
    high, low = tile.tiles
    main = Factor(acc_psum=banks[0], stationaries=w_sbuf, x_sbuf=high, parts=parts)
    left = Factor(acc_psum=banks[1], stationaries=own.low, x_sbuf=high, low=True, parts=parts)
    right = Factor(acc_psum=banks[1], stationaries=w_sbuf, x_sbuf=low, adds=True, low=True, parts=parts)
    return [left, right, main] if chunk > 0 and chunk + 1 == len(one.results.job.chunks) else [main, left, right]


def band_rows_met(one, every):
    """Rows of x of a band, from its first, that some products meet."""
    end = 0
    for product in every:
        rows = product.rows
        end = max(end, rows[3] + (rows[2] - 1) * rows[4] + 1)
    return end - one.results.band.h0


def factors_of_sums(geometry, banks, w_sbuf, x_sbuf):
    """Factors of sums of frames: those of each plane of taps, whose sums stay apart."""
    found = []
    parts, planes, height, width = x_sbuf.shape
    each, S, rows, kn = w_sbuf.shape[1] // geometry.planes.taps, w_sbuf.shape[2], w_sbuf.shape[3], w_sbuf.shape[4]
    for plane in ORDER_OF_SUMS:
        if plane < len(banks):
            own_sbuf = w_sbuf[0:parts, plane * each : (plane + 1) * each, 0:S, 0:rows, 0:kn]
            x_planes = x_sbuf[0:parts, plane:planes, 0:height, 0:width]
            found.append(Factor(acc_psum=banks[plane], stationaries=own_sbuf, x_sbuf=x_planes))
    return found


def multiply(work, one, chunk, factor, product, accumulate):
    """One matmul of a chunk."""
    if one.results.job.chunks[chunk][3] != ALONE:
        multiply_pair(work, one, chunk, factor, product, accumulate)
        return
    band, bank = one.results.band, one.bank
    job, parts = one.results.job, product.parts
    outputs = (band.z0 + bank.z, band.p0 + bank.p, band.q0 + bank.q)
    elements = (band.d0, band.h0, chunk_window(work.geometry, job.chunks[chunk], band)[0])
    nisa.nc_matmul(
        dst=sums_met(factor.acc_psum, product, outputs),
        stationary=stationary_of_product(factor.stationaries, work.geometry, job, job.chunks[chunk], product),
        moving=elements_met(factor.x_sbuf, (0, parts), product, elements),
        accumulate=accumulate,
    )


def matmuls_of(geometry, job, chunk, band, bank, which):
    """Matmuls of a chunk for a bank, `which` of its band: Products, or Pairs of them."""
    every = products(geometry, job, chunk, band, bank)
    return every if chunk[3] == ALONE else pairs_in(geometry, chunk, every, band, bank, which)


def num_matmuls(geometry, job):
    """Matmuls of all chunks of a job for a bank, or as many for one of a few rows more."""
    found = 0
    for chunk in job.chunks:
        pairs = div_ceil(filter_rows(geometry) * tap_groups(geometry, chunk), 2)
        found += pairs if stores_zeros(chunk) else num_taps(geometry)
    return found


def products(geometry, job, chunk, band, bank):
    """Matmuls of a chunk for a bank of outputs, in the order in which taps are transposed; one that meets all of them
    first."""
    axis, found, whole = job_axis(geometry, job), [], -1
    first, meets_all = home_row(geometry, axis)
    home = home_tap(geometry.columns) if chunk[2] == 1 else 0
    meets_all = meets_all and home >= 0
    # planes of taps whose sums stay apart meet the same
    rows = (geometry.planes.taps if geometry.direct == None else 1) * axis.taps
    for row in tap_order(rows, first):
        on_planes = met(geometry.planes, row // axis.taps, band.z0 + bank.z, bank.zn)
        on_rows = met(axis, row % axis.taps, band.p0 + bank.p, bank.pn)
        for group in range(tap_groups(geometry, chunk) if on_planes[2] > 0 and on_rows[2] > 0 else 0):
            on_columns = group_met(geometry, chunk, group, band.q0 + bank.q, bank.qn)
            if on_columns[2] > 0:
                parts = group_depth(geometry, chunk, group) * chunk[1]
                product = Product(row=row, group=group, parts=parts, planes=on_planes, rows=on_rows, columns=on_columns)
                is_first = row == first and group == home
                if not meets_all:
                    is_first = whole < 0 and is_whole(product, bank.zn, bank.pn, bank.qn)
                if is_first:
                    whole = len(found)
                found.append(product)
    if whole > 0:
        found = put_first(found, whole)
    return found
