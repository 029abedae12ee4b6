"""Filters of turned as moving operands, [c, product, plane, k] in SBUF, planes of taps from the last to the first."""

from ...._nki import nisa, nl
from ....schedules.tiles import cut, cut_at
from ..._engines import is_16bit, pick
from ..boxes import load_box
from ..filter_feed import transpose_together, transposes_of_bank
from .products import parts_of


def load_turned_filters(operands, geometry):
    """(first output channel, tile [k, c, t, r, s]) of filters as they lie, at most 128 output channels each."""
    apart, found = geometry.w_strides, []
    T, R, S = geometry.planes.taps, geometry.rows.taps, geometry.columns.taps
    for part in cut(geometry.K, nl.tile_size.pmax):
        raw_sbuf = nl.ndarray((part[1], geometry.C, T * R * S), dtype=operands.w_dtype, buffer=nl.sbuf)
        pattern = [[apart[0], part[1]], [apart[1], geometry.C], [1, T * R * S]]
        load_box(raw_sbuf, operands.w, (0, 0, 0), pattern, part[0] * apart[0])
        found.append((part[0], raw_sbuf.reshape((part[1], geometry.C, T, R, S))))
    return found


def turn_filters(operands, geometry, plan, raws, ledger):
    """[c, product, plane, k]: for each product its channels of all planes side by side, which the array transposes."""
    T, K, P_MAX = geometry.planes.taps, geometry.K, nl.tile_size.pmax
    filters_sbuf = nl.ndarray((P_MAX, len(plan.products), T, K), dtype=operands.w_dtype, buffer=nl.sbuf)
    for index in range(len(plan.products)):
        product = plan.products[index]
        chunk = plan.chunks[product.chunk]
        parts = parts_of(chunk, product.pieces)
        for raw in raws:
            k0, raw_sbuf = raw
            kn = raw_sbuf.shape[0]
            own_sbuf = nl.ndarray((kn, T, parts), dtype=operands.w_dtype, buffer=nl.sbuf)
            for piece in chunk[: product.pieces]:
                r, s, part, c0, cn = product.r + piece.r, product.s + piece.s, piece.part, piece.c0, piece.count
                if geometry.flipped:
                    r, s = geometry.rows.taps - 1 - r, geometry.columns.taps - 1 - s
                nisa.tensor_copy(
                    dst=own_sbuf[0:kn, 0:T, part : part + cn],
                    src=raw_sbuf[0:kn, c0 : c0 + cn, 0:T, r, s].permute((0, 2, 1)),
                    engine=pick(ledger, T * cn, is_16bit(operands.w_dtype)),
                )
            for some in cut_at(T, transposes_of_bank(kn, geometry.itemsize)):
                first, count = some
                sources = []
                for plane in range(first, first + count):
                    sources.append(own_sbuf[0:kn, plane if geometry.flipped else T - 1 - plane, 0:parts])
                into = filters_sbuf[0:parts, index, first : first + count, k0 : k0 + kn]
                transpose_together(into, sources, geometry.itemsize, ledger)
    return filters_sbuf
