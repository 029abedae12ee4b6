"""NHWC for algorithms that read rows of x and write rows of y: copies of x, y and the residual in HBM, as NCHW.

A copy transposes two axes: of x, c, side by side before, and w, side by side then; of y the same the other way round.
DMA transposes them on the way to SBUF, from where they leave as runs; with few channels, or elements of one byte, an
engine sorts the pixels of whole rows instead, as few partitions would be slow, and DMA transposes no single bytes. The
cores share each copy, and wait for each other before it is read.
"""

from dataclasses import dataclass

from ..._nki import nisa, nl
from .._dma import copy
from .._engines import is_16bit, new_ledger, pick
from .._tiles import INSTRUCTIONS_MAX, PARTS, cut, div_ceil, share
from .boxes import corner, strides_of_x
from .cuts import most_of, strides_of_residual, strides_of_y
from .geometry import Geometry
from .transposes import load_transposed

#: Algorithms that take channels side by side as they are, but for x of single bytes.
OWN = ("taps", "swapped")
#: Up to so many channels, if there are as many columns, an engine sorts the pixels of rows.
FEW = 64
#: Bytes a partition of one piece of a copy.
PIECE_BYTES = 16_384


@dataclass
class Transposed(nl.NKIObject):
    """Elements [n, a, h, b] of two tensors in HBM, and their strides in both: a is side by side in the source, b in the
    target. is_sorted: whether an engine transposes them."""

    shape: tuple
    source: tuple
    target: tuple
    #: offsets of the first element
    source_first: int
    target_first: int
    is_sorted: bool


def copies_x(algorithm, geometry):
    """Whether an algorithm gets a copy of x."""
    own = algorithm in OWN and geometry.hbm_itemsize > 1
    return not own and geometry.x_c == 1 and geometry.C > 1 and geometry.x_w > 1


def copies_y(algorithm, geometry):
    """Whether an algorithm writes a copy of y."""
    return algorithm not in OWN and geometry.y_k == 1 and geometry.K > 1 and geometry.y_q > 1


def plain_of(algorithm, geometry, extras):
    """The Geometry that an algorithm sees: strides of the copies."""
    rows, columns = geometry.rows, geometry.columns
    x, y, r = strides_of_x(geometry), strides_of_y(geometry), strides_of_residual(geometry)
    if copies_x(algorithm, geometry):
        x = dense(geometry.C, rows.size, columns.size)
    if copies_y(algorithm, geometry):
        y = dense(geometry.K, rows.out // extras.pool[0], columns.out // extras.pool[1])
        r = dense(geometry.K, rows.out, columns.out)
    return Geometry(
        N=geometry.N,
        C=geometry.C,
        K=geometry.K,
        groups=geometry.groups,
        rows=rows,
        columns=columns,
        x_n=x[0],
        x_c=x[1],
        x_h=x[2],
        x_w=x[3],
        w_k=geometry.w_k,
        w_c=geometry.w_c,
        w_r=geometry.w_r,
        w_s=geometry.w_s,
        y_n=y[0],
        y_k=y[1],
        y_p=y[2],
        y_q=y[3],
        r_n=r[0],
        r_k=r[1],
        r_p=r[2],
        r_q=r[3],
        packed=geometry.packed,
        itemsize=geometry.itemsize,
        hbm_itemsize=geometry.hbm_itemsize,
        fast=geometry.fast,
        precision=geometry.precision,
    )


def dense(channels, height, width):
    """Strides along n, c, h, w of rows side by side."""
    return (channels * height * width, height * width, width, 1)


def copy_in(algorithm, operands, geometry):
    """Have operands.x and operands.residual be copies where the algorithm needs them, and operands.y one to be
    written."""
    if copies_x(algorithm, geometry):
        operands.x = rows_copy(operands.x, x_to_rows(geometry))
    if copies_y(algorithm, geometry):
        if operands.residual != None:
            operands.residual = rows_copy(operands.residual, residual_to_rows(geometry))
        N, P, Q, K = operands.y.shape
        operands.y = nl.ndarray((N * P * Q * K,), dtype=operands.y.dtype, buffer=nl.shared_hbm)


def copy_out(algorithm, y_hbm, operands, geometry, extras):
    """y from the copy that the algorithm wrote, if it did."""
    if copies_y(algorithm, geometry):
        meet(operands.y)
        for part in y_to_pixels(geometry, extras.pool):
            copy_transposed(y_hbm, operands.y, part)


def rows_copy(source_hbm, part):
    """A copy [n, c, h, w] in HBM of a tensor whose channels lie side by side."""
    N, C, H, W = part.shape
    rows_hbm = nl.ndarray((N * C * H * W,), dtype=source_hbm.dtype, buffer=nl.shared_hbm)
    copy_transposed(rows_hbm, source_hbm, part)
    meet(rows_hbm)
    return rows_hbm


def meet(hbm):
    """Have two cores wait for what both write."""
    if nl.num_programs() == PARTS:
        nisa.core_barrier(data=hbm, cores=(0, 1))


def itemsize_of(hbm):
    """Bytes of an element."""
    return 4 if hbm.dtype == nl.float32 else (2 if is_16bit(hbm.dtype) else 1)


def x_to_rows(geometry):
    """x as its copy has it."""
    shape = (geometry.N, geometry.C, geometry.rows.size, geometry.columns.size)
    return to_rows(shape, strides_of_x(geometry), geometry.hbm_itemsize)


def residual_to_rows(geometry):
    """The residual as its copy has it."""
    shape = (geometry.N, geometry.K, geometry.rows.out, geometry.columns.out)
    return to_rows(shape, strides_of_residual(geometry), 2)


def to_rows(shape, strides, item):
    """Channels that lie side by side, [n, c, h, w] of elements of so many bytes, as rows."""
    return Transposed(
        shape=shape,
        source=strides,
        target=dense(shape[1], shape[2], shape[3]),
        source_first=0,
        target_first=0,
        is_sorted=item == 1 or shape[1] <= min(FEW, shape[3]),
    )


def y_to_pixels(geometry, pool):
    """y from its copy: as rows, or pixels that are evenly spaced in y as rows of 128 and one of the rest."""
    P, Q = geometry.rows.out // pool[0], geometry.columns.out // pool[1]
    is_sorted, step = geometry.K <= min(FEW, Q), geometry.y_q if Q > 1 else geometry.y_p
    if is_sorted or (P > 1 and Q > 1 and geometry.y_p != Q * step):
        return [pixels_of(geometry, P * Q, (P, Q), (geometry.y_p, geometry.y_q), 0, 0, is_sorted)]
    each = nl.tile_size.pmax
    tiles, rest = P * Q // each, P * Q % each
    found = []
    if tiles > 0:
        found.append(pixels_of(geometry, P * Q, (tiles, each), (each * step, step), 0, 0, False))
    if rest > 0:
        first = tiles * each
        found.append(pixels_of(geometry, P * Q, (1, rest), (rest * step, step), first, first * step, False))
    return found


def pixels_of(geometry, pixels, sizes, strides, source_first, target_first, is_sorted):
    """Rows and columns of pixels of y, of so many an image, from its copy: sizes, and strides in y."""
    return Transposed(
        shape=(geometry.N, sizes[1], sizes[0], geometry.K),
        source=(geometry.K * pixels, 1, sizes[1], pixels),
        target=(geometry.y_n, strides[1], strides[0], 1),
        source_first=source_first,
        target_first=target_first,
        is_sorted=is_sorted,
    )


def copy_transposed(target_hbm, source_hbm, part):
    """This core's share of a Transposed."""
    pieces, ledger = pieces_of(part, itemsize_of(source_hbm)), new_ledger()
    mine = share(len(pieces), nl.num_programs(), nl.program_id(0))
    for piece in pieces[mine[0] : mine[0] + mine[1]]:
        n, nn, a, an, h, hn, b, bn = piece
        source = part.source_first + corner(part.source, n, a, h, b)
        target = part.target_first + corner(part.target, n, a, h, b)
        if part.is_sorted:
            pattern = [[part.source[0], nn], [part.source[2], hn], [part.source[3], bn], [1, an]]
            raw_sbuf = nl.ndarray((nn * hn, bn, an), dtype=source_hbm.dtype, buffer=nl.sbuf)
            copy(raw_sbuf, source_hbm.ap(pattern=pattern, offset=source))
            sorted_sbuf = nl.ndarray((nn * hn, an, bn), dtype=source_hbm.dtype, buffer=nl.sbuf)
            engine = pick(ledger, an * bn, is_16bit(source_hbm.dtype))
            nisa.tensor_copy(dst=sorted_sbuf, src=raw_sbuf.permute((0, 2, 1)), engine=engine)
            pattern = [[part.target[0], nn], [part.target[2], hn], [part.target[1], an], [1, bn]]
            copy(target_hbm.ap(pattern=pattern, offset=target), sorted_sbuf)
        else:
            lines_sbuf = nl.ndarray((an, nn, hn, bn), dtype=source_hbm.dtype, buffer=nl.sbuf)
            strides = (part.source[0], part.source[2], part.source[3])
            load_transposed(lines_sbuf, source_hbm, strides, source, ledger)
            pattern = [[part.target[1], an], [part.target[0], nn], [part.target[2], hn], [1, bn]]
            copy(target_hbm.ap(pattern=pattern, offset=target), lines_sbuf)


def pieces_of(part, item):
    """(first, how many) of n, a, h, b of the pieces of a Transposed, with rows on the partitions where they are sorted,
    else with a; an even number where rows allow it."""
    N, A, H, B = part.shape
    P_MAX, together = nl.tile_size.pmax, 1
    if part.is_sorted:
        most = max(1, PIECE_BYTES // (item * min(A, B)))
        a_parts, b_parts = cut(A, most if A > B else A), cut(B, most if A <= B else B)
        heights = cut(H, P_MAX)
        if len(a_parts) * len(b_parts) == 1:
            together = P_MAX // H
    else:
        a_parts, b_parts = cut(A, P_MAX), cut(B, PIECE_BYTES // item)
        heights = cut(H, max(1, PIECE_BYTES // (item * most_of(b_parts))))
        if len(b_parts) == 1:
            together = PIECE_BYTES // (item * H * B)
    images = cut(N, max(1, min(together, div_ceil(N, PARTS))))
    if len(images) * len(a_parts) * len(b_parts) * len(heights) % PARTS == 1 and H >= PARTS * len(heights):
        heights = cut(H, div_ceil(H, PARTS * len(heights)))
    found = []
    for n in images:
        for a in a_parts:
            for h in heights:
                for b in b_parts:
                    found.append(n + a + h + b)
    return found


def relayout_refusal(algorithm, geometry, extras):
    """Why the copies cannot be made, or ""."""
    count = relayout_instructions(algorithm, geometry, extras)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, H={geometry.rows.size}, W={geometry.columns.size}: copies of x and y as NCHW need "
            f"{count} instructions, the compiler takes {INSTRUCTIONS_MAX}; split N over several calls"
        )
    return ""


def relayout_instructions(algorithm, geometry, extras):
    """Instructions of both cores for the copies: three a piece at most, and where the cores meet."""
    total = 0
    if copies_x(algorithm, geometry):
        total += 3 * len(pieces_of(x_to_rows(geometry), geometry.hbm_itemsize)) + 1
    if copies_y(algorithm, geometry):
        for part in y_to_pixels(geometry, extras.pool):
            total += 3 * len(pieces_of(part, extras.epilogue.y_itemsize)) + 1
        if extras.residual:
            total += 3 * len(pieces_of(residual_to_rows(geometry), 4)) + 1
    return total
