"""NHWC for algorithms that read rows of x and write rows of y: copies of x, y and the residual in HBM, as NCHW.

A copy transposes two axes: of x, c, side by side before, and w, side by side then; of y the same the other way round.
DMA transposes them on the way to SBUF, from where they leave as runs; with few channels, or elements of one byte, an
engine sorts the pixels of whole rows instead, as few partitions would be slow, and DMA transposes no single bytes. The
cores share each copy, and wait for each other before it is read.
"""

from dataclasses import dataclass, replace

from ..._nki import nisa, nl
from ...schedules.cuts import cut_volumes, most_of
from ...schedules.frames import are_side_by_side, parts_of_x
from ...schedules.geometry import writes_rows
from ...schedules.tiles import INSTRUCTIONS_MAX, PARTS, cut, div_ceil, size_of
from .._dma import copy, load_transposed
from .._engines import is_16bit, new_ledger, pick
from .call import part_of_core
from .flip import flip_instructions, forwards_of
from .regions import offset_at, pattern_of

#: Algorithms that take NHWC without a copy, but for x of single bytes.
OWN = ("implicit_gemm", "activation_stationary")
#: Up to so many channels, if there are as many columns, an engine sorts the pixels of rows.
FEW = 64
#: Bytes a partition of one piece of a copy.
PIECE_BYTES = 16_384


@dataclass
class Transposed(nl.NKIObject):
    """Elements [a, n, h, b] of two tensors in HBM, their bytes, and their strides in both: a has stride 1 in the
    source, b in the target."""

    shape: tuple
    item: int
    source: tuple
    target: tuple
    #: offsets of the first element
    source_first: int
    target_first: int
    #: whether an engine transposes them
    is_sorted: bool
    #: that the n are planes of
    volumes: int


def copies_x(algorithm, geometry):
    """Whether an algorithm gets a copy of x."""
    own = algorithm in OWN and geometry.hbm_itemsize > 1
    own = own and not (algorithm == "activation_stationary" and writes_rows(geometry))
    return not own and are_side_by_side(geometry) and geometry.x_strides[3] > 1


def copies_y(algorithm, geometry):
    """Whether an algorithm writes a copy of y."""
    return algorithm not in OWN and geometry.y_strides[0] == 1 and geometry.K > 1 and geometry.y_strides[3] > 1


def plain_of(algorithm, geometry, options):
    """The Geometry that an algorithm sees: strides of the copies, those of filters too."""
    found = forwards_of(algorithm, geometry)
    rows, columns = geometry.rows, geometry.columns
    if copies_x(algorithm, geometry):
        found = replace(found, x_strides=dense(geometry.C, rows.size, columns.size), frames=None)
    if copies_y(algorithm, geometry):
        found = replace(found, y_strides=dense(geometry.K, rows.out, columns.out))
    return found


def dense(channels, height, width):
    """Strides along channels, planes, rows and columns of rows side by side, channels of a plane next to each other."""
    return (height * width, channels * height * width, width, 1)


def copy_in(algorithm, operands, geometry):
    """Have operands.x and operands.residual be copies where the algorithm needs them, and operands.y one to be
    written."""
    if copies_x(algorithm, geometry):
        sources = [operands.x] if operands.frames == None else [operands.frames, operands.x]
        operands.x = rows_copy(sources, x_to_rows(geometry))
        operands.frames = None
    if copies_y(algorithm, geometry):
        if operands.residual != None:
            operands.residual = rows_copy([operands.residual], [residual_to_rows(geometry)])
        operands.y = nl.ndarray((size_of(operands.y.shape),), dtype=operands.y.dtype, buffer=nl.shared_hbm)


def copy_out(algorithm, y_hbm, operands, geometry, options):
    """y from the copy that the algorithm wrote, if it did."""
    if copies_y(algorithm, geometry):
        meet(operands.y)
        for part in y_to_pixels(geometry, options):
            copy_transposed(y_hbm, operands.y, part)


def rows_copy(sources, parts):
    """A copy [n, c, h, w] in HBM of NHWC tensors, a Transposed each."""
    elements = 0
    for part in parts:
        elements += size_of(part.shape)
    rows_hbm = nl.ndarray((elements,), dtype=sources[0].dtype, buffer=nl.shared_hbm)
    for index in range(len(parts)):
        copy_transposed(rows_hbm, sources[index], parts[index])
    meet(rows_hbm)
    return rows_hbm


def meet(hbm):
    """Have two cores wait for what both write."""
    if nl.num_programs() == PARTS:
        nisa.core_barrier(data=hbm, cores=(0, 1))


def x_to_rows(geometry):
    """x as its copy has it, the frames in front before it."""
    C, H, W, planes = geometry.C, geometry.rows.size, geometry.columns.size, geometry.planes
    found = []
    for part in parts_of_x(geometry, planes):
        shape = (C, planes.images * part.count, H, W)
        found.append(to_rows(shape, geometry.hbm_itemsize, part.strides, planes.images, planes.size, part.first))
    return found


def residual_to_rows(geometry):
    """The residual as its copy has it, of four bytes an element at most."""
    shape = (geometry.K, geometry.planes.out, geometry.rows.out, geometry.columns.out)
    return to_rows(shape, 4, geometry.y_strides, geometry.planes.images, geometry.planes.out, 0)


def to_rows(shape, item, strides, volumes, planes, first):
    """Channels of NHWC, [c, n, h, w], as rows: planes from `first` on of each volume of a copy that has
    so many of all volumes."""
    target = dense(shape[0], shape[2], shape[3])
    by_plane = target[1]
    if shape[1] < planes:
        target = target + (planes // volumes * by_plane, shape[1] // volumes)
    return Transposed(
        shape=shape,
        item=item,
        source=strides,
        target=target,
        source_first=0,
        target_first=first * by_plane,
        is_sorted=item == 1 or shape[0] <= min(FEW, shape[3]),
        volumes=volumes,
    )


def y_to_pixels(geometry, options):
    """y from its copy: as rows, or pixels that are evenly spaced in y as rows of 128 and one of the rest."""
    K, P, Q = geometry.K, geometry.rows.out, geometry.columns.out
    is_sorted, step = K <= min(FEW, Q), geometry.y_strides[3] if Q > 1 else geometry.y_strides[2]
    each, lines, line_step = Q, [(0, P, Q)], geometry.y_strides[2]
    if not is_sorted and (P == 1 or Q == 1 or geometry.y_strides[2] == Q * step):
        each = nl.tile_size.pmax
        whole = P * Q // each
        lines, line_step = [(0, whole, each), (whole * each, 1, P * Q % each)], each * step
    found = []
    for line in lines:
        first, count, columns = line
        if count * columns > 0:
            found.append(
                Transposed(
                    shape=(columns, geometry.planes.out, count, K),
                    item=options.epilogue.y_itemsize,
                    source=(1, K * P * Q, each, P * Q),
                    target=(step, geometry.y_strides[1], line_step, 1) + tuple(geometry.y_strides[4:]),
                    source_first=first,
                    target_first=first * step,
                    is_sorted=is_sorted,
                    volumes=geometry.planes.images,
                )
            )
    return found


def copies_of(algorithm, geometry, options):
    """All that is copied for an algorithm."""
    found = x_to_rows(geometry) if copies_x(algorithm, geometry) else []
    if copies_y(algorithm, geometry):
        found = found + y_to_pixels(geometry, options)
        if options.residual:
            found.append(residual_to_rows(geometry))
    return found


def copy_transposed(target_hbm, source_hbm, part):
    """This core's share of a Transposed."""
    dtype, ledger = source_hbm.dtype, new_ledger()
    by, to = part.source, part.target
    for piece in part_of_core(pieces_of(part))[1]:
        n, nn, a, an, h, hn, b, bn = piece
        source = part.source_first + offset_at(by, (a, n, h, b))
        target = part.target_first + offset_at(to, (a, n, h, b))
        if part.is_sorted:
            raw_sbuf = nl.ndarray((nn * hn, bn, an), dtype=dtype, buffer=nl.sbuf)
            pattern = pattern_of((by[1], by[2], by[3], by[0]), (nn, hn, bn, an))
            copy(raw_sbuf, source_hbm.ap(pattern=pattern, offset=source))
            lines_sbuf = nl.ndarray((nn * hn, an, bn), dtype=dtype, buffer=nl.sbuf)
            engine = pick(ledger, an * bn, is_16bit(dtype))
            nisa.tensor_copy(dst=lines_sbuf, src=raw_sbuf.permute((0, 2, 1)), engine=engine)
            pattern = pattern_of((to[1], to[2], to[0], to[3]), (nn, hn, an, bn))
        else:
            lines_sbuf = nl.ndarray((an, nn, hn, bn), dtype=dtype, buffer=nl.sbuf)
            load_transposed(lines_sbuf, source_hbm, by, source, False, ledger)
            pattern = pattern_of(to, (an, nn, hn, bn))
        copy(target_hbm.ap(pattern=pattern, offset=target), lines_sbuf)


def pieces_of(part):
    """(first, how many) of n, a, h, b of the pieces of a Transposed, with rows on the partitions where they are sorted,
    else with a; an even number where rows allow it."""
    A, N, H, B = part.shape
    P_MAX, most, together, volumes = nl.tile_size.pmax, PIECE_BYTES // part.item, 1, part.volumes
    if part.is_sorted:
        most = max(1, most // min(A, B))
        a_parts, b_parts, heights = cut(A, most if A > B else A), cut(B, most if A <= B else B), cut(H, P_MAX)
        if len(a_parts) * len(b_parts) == 1:
            together = P_MAX // H
    else:
        a_parts, b_parts = cut(A, P_MAX), cut(B, most)
        heights = cut(H, max(1, most // most_of(b_parts)))
        if len(b_parts) == 1:
            together = most // (H * B)
    parts = div_ceil(N // volumes, max(1, min(together, div_ceil(N, PARTS))))
    images = cut_volumes(N, volumes, volumes * parts)
    if len(images) * len(a_parts) * len(b_parts) * len(heights) % PARTS == 1 and H >= PARTS * len(heights):
        heights = cut(H, div_ceil(H, PARTS * len(heights)))
    found = []
    for n in images:
        for a in a_parts:
            for h in heights:
                for b in b_parts:
                    found.append(n + a + h + b)
    return found


def relayout_unsupported(algorithm, geometry, options):
    """Why the copies cannot be made, or ""."""
    count = relayout_instructions(algorithm, geometry, options)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.planes.out}, H={geometry.rows.size}, W={geometry.columns.size}: copies of x and y as NCHW "
            f"need {count} instructions, the compiler takes {INSTRUCTIONS_MAX}; split N over several calls"
        )
    return ""


def relayout_instructions(algorithm, geometry, options):
    """Instructions of both cores for the copies, a piece of x or y three at most, and where the cores meet; of filters
    for one core, as each makes its own."""
    return flip_instructions(algorithm, geometry) + instructions_of_copies(copies_of(algorithm, geometry, options))


def instructions_of_copies(parts):
    """Instructions of both cores for some copies, at most."""
    total = 0
    for part in parts:
        total += 3 * len(pieces_of(part)) + 1
    return total
