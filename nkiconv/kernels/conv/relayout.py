"""Copies in HBM for algorithms that do not read x or write y as stored; `schedules.relayout` decides which. The cores
share copies, and wait for each other before they read them.
"""

from ..._nki import nisa, nl
from ...schedules.relayout import (
    copies_x,
    copies_y,
    pieces_of,
    residual_to_rows,
    x_to_rows,
    y_to_pixels,
)
from ...schedules.tiles import PARTS, size_of
from .._dma import copy, load_transposed
from .._engines import copy_balanced, new_ledger
from .call import part_of_core
from .regions import offset_at, pattern_of


def copy_in(algorithm, operands, geometry):
    """Replace operands.x and operands.residual by copies, and operands.y by a new tensor, if the algorithm needs
    them."""
    if copies_x(algorithm, geometry):
        sources = [operands.x] if operands.frames == None else [operands.frames, operands.x]
        operands.x = rows_copy(sources, x_to_rows(geometry))
        operands.frames = None
    if copies_y(algorithm, geometry):
        if operands.residual != None:
            operands.residual = rows_copy([operands.residual], [residual_to_rows(geometry)])
        operands.y = nl.ndarray((size_of(operands.y.shape),), dtype=operands.y.dtype, buffer=nl.shared_hbm)


def copy_out(algorithm, y_hbm, operands, geometry, options):
    """Write y from the algorithm's copy, if it has one."""
    if copies_y(algorithm, geometry):
        meet(operands.y)
        for part in y_to_pixels(geometry, options):
            copy_transposed(y_hbm, operands.y, part)


def rows_copy(sources, parts):
    """A copy [n, c, h, w] in HBM of NHWC tensors; parts: the Transposed of each."""
    rows_hbm = nl.ndarray((sum(size_of(part.shape) for part in parts),), dtype=sources[0].dtype, buffer=nl.shared_hbm)
    for source_hbm, part in zip(sources, parts):
        copy_transposed(rows_hbm, source_hbm, part)
    meet(rows_hbm)
    return rows_hbm


def in_twos(hbm):
    """A tensor of single bytes as one of two neighbouring bytes, [elements, 1] of bf16."""
    return hbm.reshape((size_of(hbm.shape) // 2, 2)).view(nl.bfloat16)


def halves(strides):
    """Strides along channels, planes, rows and columns in elements of two bytes."""
    return [1, *(step // 2 for step in strides[1:4])]


def meet(hbm):
    """Have each of two cores wait for the other's writes."""
    if nl.num_programs() == PARTS:
        nisa.core_barrier(data=hbm, cores=(0, 1))


def copy_transposed(target_hbm, source_hbm, part):
    """Transpose this core's share of a Transposed."""
    dtype, ledger = source_hbm.dtype, new_ledger()
    by, to = part.source, part.target
    for piece in part_of_core(pieces_of(part)):
        n, nn, a, an, h, hn, b, bn = piece
        source = part.source_first + offset_at(by, (a, n, h, b))
        target = part.target_first + offset_at(to, (a, n, h, b))
        if part.is_sorted:
            raw_sbuf = nl.ndarray((nn * hn, bn, an), dtype=dtype, buffer=nl.sbuf)
            pattern = pattern_of((by[1], by[2], by[3], by[0]), (nn, hn, bn, an))
            copy(raw_sbuf, source_hbm.ap(pattern=pattern, offset=source))
            lines_sbuf = nl.ndarray((nn * hn, an, bn), dtype=dtype, buffer=nl.sbuf)
            copy_balanced(lines_sbuf, raw_sbuf.permute((0, 2, 1)), ledger)
            pattern = pattern_of((to[1], to[2], to[0], to[3]), (nn, hn, an, bn))
        elif part.in_twos:
            twos_sbuf = nl.ndarray((an // 2, nn, hn, bn), dtype=nl.bfloat16, buffer=nl.sbuf)
            load_transposed(twos_sbuf, in_twos(source_hbm), halves(by), source // 2, ledger)
            lines_sbuf = nl.ndarray((an // 2, 2, nn * hn * bn), dtype=dtype, buffer=nl.sbuf)
            found = twos_sbuf.view(dtype).reshape((an // 2, nn * hn * bn, 2)).permute((0, 2, 1))
            copy_balanced(lines_sbuf, found, ledger)
            lines_sbuf = lines_sbuf.reshape((an // 2, 2, nn, hn, bn))
            pattern = [[2 * to[0], an // 2], [to[0], 2], *pattern_of(to, (an, nn, hn, bn))[1:]]
        else:
            lines_sbuf = nl.ndarray((an, nn, hn, bn), dtype=dtype, buffer=nl.sbuf)
            load_transposed(lines_sbuf, source_hbm, by, source, ledger)
            pattern = pattern_of(to, (an, nn, hn, bn))
        copy(target_hbm.ap(pattern=pattern, offset=target), lines_sbuf)
