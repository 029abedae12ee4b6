"""Matmuls of a chunk of x for a bank of outputs: which taps meet x where, by which factors, into which sums."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._tiles import div_ceil
from ..call import of_array
from ..cuts import put_first
from ..geometry import met
from .cuts import tap_order
from .fold import chunk_window, group_depth, group_met, job_axis, tap_groups
from .fp8 import multiply_pair, pairs_in
from .fp16x3 import advance_pairs, parts_to, split_to, sums_of
from .pairs_fp8 import ALONE, stores_zeros


@dataclass
class Factor(nl.NKIObject):
    """What is multiplied for a chunk, and where sums go. adds: to what is there; low, parts: whether low parts must be
    there, and how many Parts of x."""

    acc_psum: object
    stationaries: object
    x_sbuf: object
    adds: bool
    low: bool
    parts: int


def factors_of(work, one, chunk, tile, every):
    """Factors of a chunk: one, or those of pairs, high parts first; in the last chunk last, as the rest has one
    read-out more to go through."""
    filters, index, pairing = work.batch.filters, one.results.index, work.pairing
    w_sbuf = filters.tiles[index][chunk]
    if pairing == None:
        w_sbuf, x_sbuf = of_array(w_sbuf, work.operands), of_array(tile, work.operands)
        factor = Factor(acc_psum=one.acc_psum, stationaries=w_sbuf, x_sbuf=x_sbuf, adds=False, low=False, parts=0)
        return [factor]
    end = 0
    for which in range(len(every)):
        rows = every[which].rows
        end = max(end, rows[3] + (rows[2] - 1) * rows[4] + 1)
    parts, w_low, rest_psum = parts_to(tile, end - one.results.band.h0), filters.lows[index][chunk], one.rest_psum
    split_to(work, parts)
    high, low = tile.high_sbuf, tile.low_sbuf
    main = Factor(acc_psum=one.acc_psum, stationaries=w_sbuf, x_sbuf=high, adds=False, low=False, parts=parts)
    left = Factor(acc_psum=rest_psum, stationaries=w_low, x_sbuf=high, adds=False, low=True, parts=parts)
    right = Factor(acc_psum=rest_psum, stationaries=w_sbuf, x_sbuf=low, adds=True, low=True, parts=parts)
    return [left, right, main] if chunk > 0 and chunk + 1 == len(one.results.job.chunks) else [main, left, right]


def end_pairs(work, pieces, parts):
    """Give the instructions of pairs until so many pieces of filters and Parts of x are done."""
    filters, pairing = work.batch.filters, work.pairing
    while filters.ended < pieces or pairing.ended < parts:
        advance_pairs(work)


def write_zeros(work, one):
    """Zeros into a bank of Sums by a product of zeros."""
    zeros_sbuf, acc_psum = work.zeros_sbuf, one.acc_psum
    outputs, nn, pn, qn = acc_psum.shape
    nothing = [[zeros_sbuf.shape[1], 1], [0, nn], [0, pn], [0, qn]]
    for kind in range(sums_of(work.geometry)):
        nisa.nc_matmul(
            dst=acc_psum if kind == 0 else one.rest_psum,
            stationary=zeros_sbuf[0:1, 0:outputs],
            moving=zeros_sbuf.ap(pattern=nothing, offset=0),
            accumulate=False,
        )
    one.started = True


def multiply(work, one, chunk, factor, product, accumulate):
    """One matmul of a chunk."""
    if one.results.job.chunks[chunk][3] != ALONE:
        multiply_pair(work, one, chunk, factor, product, accumulate)
        return
    band, bank, acc_psum = one.results.band, one.bank, factor.acc_psum
    job, stationaries, x_sbuf = one.results.job, factor.stationaries, factor.x_sbuf
    rows, columns = product.rows, product.columns
    p, q = rows[0] - band.p0 - bank.p, columns[0] - band.q0 - bank.q
    h, w = rows[3] - band.h0, columns[3] - chunk_window(work.geometry, job.chunks[chunk], band)[0]
    nisa.nc_matmul(
        dst=acc_psum[
            0 : acc_psum.shape[0],
            0 : bank.nn,
            p : p + (rows[2] - 1) * rows[1] + 1 : rows[1],
            q : q + (columns[2] - 1) * columns[1] + 1 : columns[1],
        ],
        stationary=stationaries[0 : product.parts, product.row, product.group, 0 : job.rows, 0 : job.kn],
        moving=x_sbuf[
            0 : product.parts,
            bank.n : bank.n + bank.nn,
            h : h + (rows[2] - 1) * rows[4] + 1 : rows[4],
            w : w + (columns[2] - 1) * columns[4] + 1 : columns[4],
        ],
        accumulate=accumulate,
    )


@dataclass
class Product(nl.NKIObject):
    """One matmul of a chunk: which taps meet x where, as `geometry.met` says, and how many partitions of it."""

    row: int
    group: int
    parts: int
    rows: tuple
    columns: tuple


def matmuls_of(geometry, job, chunk, band, bank, which):
    """Matmuls of a chunk for a bank, `which` of its band: Products, or Pairs of them."""
    p0, q0 = band.p0 + bank.p, band.q0 + bank.q
    every = products(geometry, job, chunk, p0, bank.pn, q0, bank.qn)
    return every if chunk[3] == ALONE else pairs_in(geometry, chunk, every, bank, p0, q0, which)


def num_matmuls(geometry, job):
    """Matmuls of all chunks of a job for a bank, or as many for one of a few rows more."""
    found = 0
    for index in range(len(job.chunks)):
        chunk, taps = job.chunks[index], geometry.rows.taps * geometry.columns.taps
        found += div_ceil(geometry.rows.taps * tap_groups(geometry, chunk), 2) if stores_zeros(chunk) else taps
    return found


def products(geometry, job, chunk, p0, pn, q0, qn):
    """Matmuls of a chunk for a bank of outputs, in the order in which taps are transposed; one that meets all of them
    first."""
    axis = job_axis(geometry, job)
    found, whole = [], -1
    order = tap_order(axis.taps)
    for at in range(axis.taps):
        on_rows = met(axis, order[at], p0, pn)
        for group in range(tap_groups(geometry, chunk) if on_rows[2] > 0 else 0):
            on_columns = group_met(geometry, chunk, group, q0, qn)
            if on_columns[2] > 0:
                if whole < 0 and on_rows[2] == pn and on_columns[2] == qn:
                    whole = len(found)
                parts = group_depth(geometry, chunk, group) * chunk[1]
                found.append(Product(row=order[at], group=group, parts=parts, rows=on_rows, columns=on_columns))
    if whole > 0:
        found = put_first(found, whole)
    return found
