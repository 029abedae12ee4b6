"""product="fp8_pairs": x with the zeros that pairs need, and their matmuls; `implicit_gemm` defines pairs.

x of a K tile is [channels, slots, images, rows, columns], of NEIGHBOURS [pairs of channels, 1, images, rows, (column,
slot)]. Zeros above and below are stored if a bank has several images, one below the other, or if taps pair; zeros left
and right only if taps pair.
"""

import itertools

from ...._nki import nisa, nl
from ....schedules.implicit_gemm import NEIGHBOURS, TAPS, tap_groups
from ....schedules.regions import offset_at
from ....schedules.tiles import size_of
from ..._dma import load_transposed
from ..._prologue import load_x
from ..relayout import halves, in_twos


def load_paired(operands, geometry, x, h0, hn):
    """Load `hn` rows of a paired XTile, from row h0 of its output tile on."""
    k_tile, out_tile, place, (x_sbuf,) = x.k_tile, x.out_tile, x.place, x.tiles
    top = out_tile.h0 - place.row + h0
    if k_tile.pairing == NEIGHBOURS:
        # two channels as an element of two bytes
        dst = x_sbuf.view(nl.bfloat16)[:, 0, 0 : out_tile.zn, top : top + hn]
        strides, first = geometry.x_strides, (k_tile.c0, out_tile.d0, out_tile.h0 + h0, place.column)
        load_transposed(dst, in_twos(operands.x), halves(strides), offset_at(strides, first) // 2, None)
        return
    for slot, copy_index in itertools.product(range(k_tile.slots), range(k_tile.depth)):
        p = copy_index * k_tile.cn
        dst = x_sbuf[p : p + k_tile.cn, slot, 0 : out_tile.zn, top : top + hn, 0 : place.columns]
        first = place.column + copy_index * geometry.columns.dilation
        load_x(dst, operands, geometry, (k_tile.first_channel(slot), out_tile.d0, out_tile.h0 + h0, first))


def new_paired(operands, geometry, x):
    """A new tile for x of a paired K tile, with zeros around x."""
    k_tile, out_tile, place, (parts, images, pitch, columns) = x.k_tile, x.out_tile, x.place, x.shape
    slots, top = k_tile.slots, out_tile.h0 - place.row
    if k_tile.pairing == NEIGHBOURS:
        slots, columns = 1, 2 * columns
    x_sbuf = nl.ndarray((parts, slots, images, pitch, columns), dtype=operands.x_dtype, buffer=nl.sbuf)
    if out_tile.zn > 1 or k_tile.pairing == TAPS:
        zero(x_sbuf[:, :, :, 0:top])
        zero(x_sbuf[:, :, 0 : out_tile.zn, top + out_tile.hn : pitch])
    if k_tile.pairing == TAPS:
        rows_sbuf = x_sbuf.reshape((parts, slots * images * pitch, columns))
        left, shift = min(columns, max(0, -place.column)), (k_tile.depth - 1) * geometry.columns.dilation
        zero(rows_sbuf[:, :, 0:left])
        zero(rows_sbuf[:, :, max(left, min(columns, geometry.columns.size - place.column - shift)) : columns])
    return x_sbuf


def zero(x_sbuf):
    """Zero a tile, if it has elements."""
    if size_of(x_sbuf.shape) > 0:
        nisa.memset(dst=x_sbuf, value=0.0, engine=nisa.engine.gpsimd)


def multiply_pair(geometry, one, x, factor, pair, accumulate):
    """Issue one matmul of a paired K tile: its access patterns step from one slot to the next, or from one tap to the
    other."""
    out_tile, m_tile, bank, k_tile, place = one.results.out_tile, one.results.m_tile, one.bank, x.k_tile, x.place
    (p0, _, pn, *_), (q0, _, qn, *_) = pair.rows, pair.columns
    kn, w_sbuf = m_tile.kn, factor.w_sbuf
    apart = one.banks[0].shape[2]
    count = (bank.zn - 1) * apart + pn

    def tap_place(tap):
        """Offsets of a tap (in x, in stationaries) from the first tap."""
        step = tap[0] * geometry.rows.dilation * place.columns + tap[1] * k_tile.depth * geometry.columns.dilation
        return step, (tap[0] * tap_groups(geometry, k_tile) + tap[1]) * kn

    at, w_at = tap_place((pair.row, pair.group))
    (slots, slot), each = (k_tile.slots, place.elements), 2 if k_tile.pairing == NEIGHBOURS else 1
    w_slot = w_sbuf.shape[1] // slots * w_sbuf.shape[2] * kn
    step, w_step = 1 if each == 2 else slot, w_slot
    if pair.second is not None:
        step, w_step = (other - own for other, own in zip(tap_place(pair.second), (at, w_at), strict=True))
    row = bank.z0 * place.rows + p0 * geometry.rows.stride - geometry.rows.before - place.row
    at += row * place.columns + q0 * geometry.columns.stride - geometry.columns.before - place.column
    parts, double = x.shape[0], pair.second is not None or slots == 2
    how = {"perf_mode": nisa.matmul_perf_mode.double_row} if double else {}
    window = [[each * place.columns * geometry.rows.stride, count], [each * geometry.columns.stride, qn]]
    stationary = [[slots * w_slot, parts], *([[w_step, 2]] if double else []), [1, m_tile.kn]]
    moving = [[slots * slot, parts], *([[step, 2]] if double else []), *window]
    sums = one.banks[0].reshape((m_tile.kn, bank.zn * apart, bank.qn))
    p, q = p0 - out_tile.p0 - bank.p0, q0 - out_tile.q0 - bank.q0
    nisa.nc_matmul(
        dst=sums[0 : m_tile.kn, p : p + count, q : q + qn],
        stationary=w_sbuf.ap(pattern=stationary, offset=w_at),
        moving=factor.x_sbuf.ap(pattern=moving, offset=each * at),
        accumulate=accumulate,
        **how,
    )
