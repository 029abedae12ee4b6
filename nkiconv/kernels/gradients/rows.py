"""x and gy as rows of all images and channels, which become the channels of one image, as stored or copied; and fp32
sums over images, and over the positions of a row, in an order that does not depend on the number of cores.
"""

from dataclasses import dataclass, replace
from itertools import product

from ..._nki import nisa, nl
from ...schedules.depthwise import RowGeometry
from ...schedules.relayout import to_rows
from ...schedules.tiles import cut_at, div_ceil, lines_of
from .._dma import copy
from ..conv.call import part_of_core
from ..conv.relayout import meet, rows_copy


@dataclass
class Rows(nl.NKIObject):
    """N * C rows of a tensor in HBM, `row` elements apart, elements `step` apart; rows of a copy if it has `parts`."""

    row: int
    step: int
    parts: list


def flat_rows(geometry, is_x):
    """Rows of x of a convolution, or of its gy."""
    N, C, size = geometry.N, geometry.C, geometry.W if is_x else geometry.Q
    x_steps, gy_steps = (geometry.x_n, geometry.x_c, geometry.x_w), (geometry.y_n, geometry.y_c, geometry.y_q)
    n_step, c_step, step = x_steps if is_x else gy_steps
    if (step == 1 or size == 1) and (N == 1 or C == 1 or n_step == C * c_step):
        return Rows(row=n_step if C == 1 else c_step, step=step, parts=[])
    part = to_rows((C, N, 1, size), geometry.itemsize, (c_step, n_step, 0, step), 1, N, 0)
    # a copy that an engine does not sort is transposed by DMA, whose channels must be neighbours
    return Rows(row=size, step=1, parts=[replace(part, is_sorted=part.is_sorted or c_step != 1)])


def copy_rows(hbm, rows):
    """The tensor of the rows: hbm, or a copy, which the cores share and wait for."""
    return hbm if len(rows.parts) == 0 else rows_copy([hbm], rows.parts)


def gradient_geometry(forward, x_rows, gy_rows):
    """The RowGeometry of the convolution of x with gy: y is each image's gradient, in fp32 if there are several."""
    several, C = forward.N > 1, forward.N * forward.C
    stride, dilation = forward.dilation, forward.stride if forward.Q > 1 else 1
    reach = (forward.S - 1) * stride + (forward.Q - 1) * dilation + 1 - (forward.W - 1) * forward.lhs_dilation - 1
    return RowGeometry(
        *(1, C, forward.W, forward.Q, forward.S),
        *(stride, dilation, forward.lhs_dilation, forward.pad_left, reach - forward.pad_left),
        *(C * x_rows.row, x_rows.row, x_rows.step, gy_rows.row, gy_rows.step),
        *(C * forward.S, forward.S if several else forward.w_c, 1 if several else forward.w_s),
        itemsize=forward.itemsize,
        times=forward.times,
    )


#: Most bytes a partition of a tile of sums of several images, and of a tile of rows; most columns of a piece of sums;
#: least tiles of rows.
FOLD_BYTES, ROWS_BYTES, FOLD_COLUMNS, ROWS_TILES = 32_768, 16_384, 512, 8


def fold_images(sums_hbm, images, lines, into_hbm, added_hbm):
    """This core's part of fp32 sums [images, lines, elements] over images, plus added_hbm or None, into a tensor in
    HBM. lines: (lines, their length, HBM elements between lines of that tensor, and between elements of a line)."""
    count, length, line_step, step = lines
    columns = cut_at(length, max(1, min(FOLD_COLUMNS, FOLD_BYTES // (4 * images))))
    pieces = list(product(cut_at(count, nl.tile_size.pmax), columns))
    for (line, n), (column, m) in part_of_core(pieces):
        pattern, offset = [[line_step, n], [step, m]], line * line_step + column * step
        region = [[length, n], [count * length, images], [1, m]]
        found_sbuf = summed(sums_hbm, region, line * length + column, 1)
        if added_hbm != None:
            added_sbuf = nl.ndarray((n, m), dtype=nl.float32, buffer=nl.sbuf)
            copy(added_sbuf, added_hbm.ap(pattern=pattern, offset=offset))
            nisa.tensor_tensor(dst=found_sbuf, data1=found_sbuf, data2=added_sbuf, op=nl.add)
        if into_hbm.dtype != nl.float32:
            rounded_sbuf = nl.ndarray((n, m), dtype=into_hbm.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=rounded_sbuf, src=found_sbuf)
            found_sbuf = rounded_sbuf
        copy(into_hbm.ap(pattern=pattern, offset=offset), found_sbuf)


def summed(hbm, pattern, offset, axis):
    """Sums of a region [lines, ., .] in HBM over its axis 1 or 2, in parts that fit: fp32 [lines, columns] in SBUF."""
    (_, lines), (_, columns), (step, count) = pattern[0], pattern[3 - axis], pattern[axis]
    parts = cut_at(count, max(1, FOLD_BYTES // (4 * columns)))
    sums_sbuf = nl.ndarray((lines, columns, len(parts)), dtype=nl.float32, buffer=nl.sbuf)
    for part, (first, some) in enumerate(parts):
        of_part = [*pattern[:axis], [step, some], *pattern[axis + 1 :]]
        part_sbuf = nl.ndarray([extent for _, extent in of_part], dtype=hbm.dtype, buffer=nl.sbuf)
        copy(part_sbuf, hbm.ap(pattern=of_part, offset=offset + first * step))
        data = part_sbuf if axis == 2 else part_sbuf.permute((0, 2, 1))
        nisa.tensor_reduce(dst=sums_sbuf[0:lines, 0:columns, part : part + 1], op=nl.add, data=data, axis=2)
    if len(parts) > 1:
        whole_sbuf = nl.ndarray((lines, columns, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=whole_sbuf, op=nl.add, data=sums_sbuf, axis=2)
        sums_sbuf = whole_sbuf
    return sums_sbuf.reshape((lines, columns))


def sum_positions(gy_hbm, geometry, images, db_hbm):
    """This core's part of db: sums of gy's rows, the filters of a RowGeometry, over positions and images."""
    rows, sums_hbm = geometry.C, db_hbm
    if images > 1:
        sums_hbm = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    # as many neighbouring rows a partition as fit, at most as many as leave ROWS_TILES tiles of all partitions
    each = ROWS_BYTES // (geometry.itemsize * min(geometry.S, ROWS_BYTES // geometry.itemsize))
    each = min(each, div_ceil(rows, ROWS_TILES * nl.tile_size.pmax))
    tiles = lines_of(rows, each)
    for first, lines, some in part_of_core(tiles):
        pattern = [[some * geometry.w_c, lines], [geometry.w_c, some], [geometry.w_s, geometry.S]]
        sums_sbuf = summed(gy_hbm, pattern, first * geometry.w_c, 2)
        copy(sums_hbm.ap(pattern=[[some, lines], [1, some]], offset=first), sums_sbuf)
    if images > 1:
        meet(sums_hbm)
        fold_images(sums_hbm, images, (1, rows // images, rows // images, 1), db_hbm, None)
