"""Boxes of HBM on their way to and from tiles in SBUF: rows of x, filters, biases, residuals, results.

A box is (first, pattern, offset): where it begins in a tile, an index for each axis, and an access pattern of HBM whose
last entries are the tile's free axes; what is before them are its partitions. One of x also says whether it is of the
frames in front.
"""

from ..._nki import nisa, nl
from ...schedules.frames import plane_pieces
from ...schedules.geometry import num_taps
from ...schedules.planes import channel_pieces, is_by_plane, sources_of, taps_inside
from ...schedules.tiles import div_ceil
from .._dma import copy, copy_moved
from .call import scale_residual
from .frames import tensor_of


def offset_at(strides, first):
    """Offset in HBM of an element of a tensor with strides along four axes, and between several volumes."""
    inside = first[0] * strides[0] + first[2] * strides[2] + first[3] * strides[3]
    if len(strides) == 4:
        return inside + first[1] * strides[1]
    return inside + first[1] // strides[5] * strides[4] + first[1] % strides[5] * strides[1]


def pattern_of(strides, counts):
    """Access pattern of so many neighbours along four axes."""
    return [[strides[0], counts[0]], [strides[1], counts[1]], [strides[2], counts[2]], [strides[3], counts[3]]]


def box_at(strides, place, first, counts):
    """The box of so many neighbours along four axes, at `place` in a tile, `first` in a tensor with these strides."""
    return place, pattern_of(strides, counts), offset_at(strides, first)


def boxes_of_x(geometry, channels, planes, first, counts):
    """Boxes of x for a tile [c, planes, rows, columns], from its first element on.

    channels, planes: (first, how many); first, counts: of rows and columns. Where planes of taps are channels, planes
    outside x have no box.
    """
    c0, cn = channels
    found = []
    if geometry.depth != None:
        for source in sources_of(geometry):
            for piece in channel_pieces(geometry, c0, cn):
                append_channel_boxes(found, source, piece, is_by_plane(geometry), planes, (first, counts))
        return found
    for part in plane_pieces(geometry, planes[0], planes[1]):
        extents, there = (cn, part.count, counts[0], counts[1]), (c0, part.plane, first[0], first[1])
        found.append(box_at(part.strides, (0, part.first, 0, 0), there, extents) + (part.framed,))
    return found


def append_channel_boxes(found, source, piece, by_plane, planes, window):
    """Append the boxes from one tensor of a piece of planes of taps that are channels; see `boxes_of_x`. window: first
    and counts there; by_plane: see `planes.is_by_plane`."""
    depth, strides, framed = source
    part, c, count, t, tn = piece
    d0, dn = planes
    first, counts = window
    z = 0
    while z < dn:
        tap, seen, plane = taps_inside(depth, t, tn, d0 + z)
        together = 1
        while seen == tn and z + together < dn and taps_inside(depth, t, tn, d0 + z + together)[1] == tn:
            together += 1
        own = [[strides[1] * depth.stride, together], [strides[2], counts[0]], [strides[3], counts[1]]]
        taps, channels = [strides[1] * depth.dilation, seen], [strides[0], count]
        if seen == tn or (by_plane and seen > 0):
            leading = [taps] if count == 1 else [taps, channels] if by_plane else [channels, taps]
            place = (part + tap * count, z, 0, 0)
            found.append((place, leading + own, offset_at(strides, (c, plane, first[0], first[1])), framed))
        elif seen > 0:
            for index in range(count):
                place = (part + index * tn + tap, z, 0, 0)
                offset = offset_at(strides, (c + index, plane, first[0], first[1]))
                found.append((place, [taps] + own, offset, framed))
        z += together


def spot(tile, first, pattern):
    """What an access pattern of HBM fills of a tile of 2 to 5 axes, from index `first` of each on."""
    lead = len(pattern) - len(first) + 1
    parts = 1
    for index in range(lead):
        parts = parts * pattern[index][1]
    end = first[0] + parts
    ends = [end]
    for index in range(lead, len(pattern)):
        ends.append(first[index - lead + 1] + pattern[index][1])
    if len(first) == 2:
        return tile[first[0] : end, first[1] : ends[1]]
    if len(first) == 3:
        return tile[first[0] : end, first[1] : ends[1], first[2] : ends[2]]
    if len(first) == 4:
        return tile[first[0] : end, first[1] : ends[1], first[2] : ends[2], first[3] : ends[3]]
    return tile[first[0] : end, first[1] : ends[1], first[2] : ends[2], first[3] : ends[3], first[4] : ends[4]]


def load_box(tile, hbm, first, pattern, offset, moved=None):
    """Load one box into a tile. moved: None, or a register with a row offset into `hbm`."""
    if moved == None:
        copy(spot(tile, first, pattern), hbm.ap(pattern=pattern, offset=offset))
    else:
        src = hbm.ap(pattern=pattern, offset=offset, scalar_offset=moved, indirect_dim=0)
        copy_moved(spot(tile, first, pattern), src, tile.dtype != hbm.dtype)


def load_boxes(tile, hbm, boxes, moved=None):
    """Boxes into a tile; moved: as of `load_box`."""
    for one in boxes:
        load_box(tile, hbm, one[0], one[1], one[2], moved)


def load_x(tile, operands, boxes):
    """Boxes of x into a tile."""
    for one in boxes:
        load_box(tile, tensor_of(operands, one[3]), one[0], one[1], one[2], operands.moved)


def store_boxes(hbm, tile, boxes, moved=None):
    """Boxes from a tile to HBM; moved: as of `load_box`."""
    for one in boxes:
        if moved == None:
            copy(hbm.ap(pattern=one[1], offset=one[2]), spot(tile, one[0], one[1]))
        else:
            dst = hbm.ap(pattern=one[1], offset=one[2], scalar_offset=moved, indirect_dim=0)
            copy_moved(dst, spot(tile, one[0], one[1]), tile.dtype != hbm.dtype)


def load_bias_as(bias_hbm, shape, pattern, offset):
    """Biases by an access pattern, fp32 in a tile of their own; or None."""
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    copy(bias_sbuf, bias_hbm.ap(pattern=pattern, offset=offset))
    return bias_sbuf


def residual_of(operands, shape, boxes, ragged):
    """The residual in these boxes of a tile times beta, fp32 if it was multiplied; or None. ragged: zeros elsewhere."""
    if operands.residual == None:
        return None
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    if ragged:
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    load_boxes(residual_sbuf, operands.residual, boxes)
    return scale_residual(residual_sbuf, operands.beta)


def clear_window(tile, h0, h1, w0, w1, engine):
    """Zeros in rows h0 .. h1-1, columns w0 .. w1-1 of a tile [c, images, rows, columns], if there are any."""
    if h0 < h1 and w0 < w1:
        nisa.memset(dst=tile[0 : tile.shape[0], 0 : tile.shape[1], h0:h1, w0:w1], value=0.0, engine=engine)


def load_packed(tile, w_hbm, geometry, c0, cn, k0, kn):
    """Channels c0 .. c0+cn-1 of a packed filter, [K / each, C, taps, each] in HBM, as [c, taps, k] in a tile: parts of
    blocks with output channels k0 .. k0+kn-1."""
    taps, each = num_taps(geometry), geometry.packed
    size, end = taps * each, k0 + kn
    for block in range(k0 // each, div_ceil(end, each)):
        first = max(k0, block * each)
        pattern = [[size, cn], [each, taps], [1, min(end, (block + 1) * each) - first]]
        offset = (block * geometry.C + c0) * size + first - block * each
        load_box(tile, w_hbm, (0, 0, first - k0), pattern, offset)


def block_pieces(outputs, parts, height, j0, jn):
    """(first block, blocks, first part, parts, rows of each) that blocks j0 .. j0+jn-1 of `parts` times `height` rows
    have of so many rows of outputs: whole blocks, whole parts of the last one, and the part with some rows."""
    span = parts * height
    whole = max(0, min(jn, outputs // span - j0))
    rest = max(0, outputs - (j0 + whole) * span) if whole < jn else 0
    found = []
    for piece in (
        (0, whole, 0, parts, height),
        (whole, 1, 0, rest // height, height),
        (whole, 1, rest // height, 1, rest % height),
    ):
        if piece[1] > 0 and piece[3] > 0 and piece[4] > 0:
            found.append(piece)
    return found
