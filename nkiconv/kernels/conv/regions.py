"""Transfers of regions between HBM and SBUF: filters, biases, residuals, results (x: `_prologue`).

`schedules.regions` defines a region.
"""

import itertools

from ..._nki import nisa, nl
from ...schedules.geometry import filter_rows, num_taps
from ...schedules.regions import offset_at as offset_at
from ...schedules.regions import pattern_of as pattern_of
from ...schedules.regions import region_at as region_at
from ...schedules.regions import residuals_in_turn
from ...schedules.tiles import div_ceil, picked, size_of
from .._dma import copy, copy_moved, load, load_transposed, spot
from .._dma import load_region as load_region
from .call import scale_residual
from .filter_feed import tiles_in_turn


def load_regions(tile, hbm, regions, moved=None, transposes=False):
    """Load regions into a tile; moved: as in `load_region`; transposes: channels are neighbours in HBM."""
    for one in regions:
        if transposes:
            strides = [step for step, _ in one[1]]
            load_transposed(spot(tile, one[0], one[1]), hbm, strides, one[2], None)
        else:
            load_region(tile, hbm, one[0], one[1], one[2], moved)


def store_regions(hbm, tile, regions, moved=None):
    """Store regions of a tile to HBM; moved: as in `load_region`."""
    for one in regions:
        if moved == None:
            copy(hbm.ap(pattern=one[1], offset=one[2]), spot(tile, one[0], one[1]))
        else:
            dst = hbm.ap(pattern=one[1], offset=one[2], scalar_offset=moved, indirect_dim=0)
            copy_moved(dst, spot(tile, one[0], one[1]), tile.dtype != hbm.dtype)


def residual_of(operands, shape, regions, ragged=None, transposes=False, turns=None):
    """The residual in these regions of a tile times beta, fp32 if beta is not 1; or None. ragged: None, or an index of
    the tile with all elements outside of the regions, which are zeros; transposes: as in `load_regions`; turns: None,
    or iterators over a circular buffer by the shape of its tiles, made here."""
    if operands.residual == None:
        return None
    if turns is None:
        residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    else:
        if shape not in turns:
            count = residuals_in_turn(size_of(shape[1:]))
            turns[shape] = itertools.cycle(tiles_in_turn(count, shape, operands.residual.dtype))
        residual_sbuf = next(turns[shape])
    if ragged != None:
        nisa.memset(dst=residual_sbuf[ragged], value=0.0, engine=nisa.engine.gpsimd)
    load_regions(residual_sbuf, operands.residual, regions, operands.moved, transposes)
    return scale_residual(residual_sbuf, operands.beta)


def clear_window(tile, h0, h1, w0, w1, engine):
    """Zero rows h0 .. h1-1, columns w0 .. w1-1 of a tile [c, images, rows, columns]; both ranges may be empty."""
    if h0 < h1 and w0 < w1:
        nisa.memset(dst=tile[:, :, h0:h1, w0:w1], value=0.0, engine=engine)


def around(height, width, filled):
    """(first row, end, first column, end) of the regions of height x width rows and columns around `filled`."""
    first, end, low, high = filled
    end, high = max(first, end), max(low, high)
    found = (0, first, 0, width), (end, height, 0, width), (first, end, 0, low), (first, end, high, width)
    return [one for one in found if one[0] < one[1] and one[2] < one[3]]


def load_filters(operands, geometry, k, c, block=None, by_input=False, copies=1):
    """Load filters into a new tile [k, c, r, s], or by input [c, k, r, s], in `copies` copies along the partitions.

    k, c: (first, count) of output channels, and of input channels of their group. block: (first row, rows, first
    column, columns) of taps; None: all, rows of all planes.
    """
    r0, rn, s0, sn = block or (0, filter_rows(geometry), 0, geometry.columns.taps)
    axes = (1, 0, 2, 3) if by_input else (0, 1, 2, 3)
    strides, shape = picked(geometry.w_strides, axes), picked((k[1], c[1], rn, sn), axes)
    tile_sbuf = nl.ndarray((copies * shape[0], *shape[1:]), dtype=operands.w_dtype, buffer=nl.sbuf)
    offset = offset_at(geometry.w_strides, (k[0], c[0], r0, s0))
    for index in range(copies):
        load_region(tile_sbuf, operands.w, (index * shape[0], 0, 0, 0), pattern_of(strides, shape), offset)
    return tile_sbuf


def load_as_stored(operands, geometry, k):
    """Load all filters of output channels (first, count) with neighbours in HBM, taps or input channels, as neighbours:
    a view [k, c, r, s]."""
    by_k, by_c, by_r, by_s = geometry.w_strides
    if by_c != 1:
        return load_filters(operands, geometry, k, (0, geometry.C))
    shape = (k[1], filter_rows(geometry), geometry.columns.taps, geometry.C)
    tile_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    load(tile_sbuf, operands.w, pattern_of((by_k, by_r, by_s, by_c), shape), k[0] * by_k)
    return tile_sbuf.permute((0, 3, 1, 2))


def load_depthwise(operands, geometry, c0, cn):
    """Load the filters of channels with outputs of their own into a new tile [c, output, r, s]."""
    each, (by_k, by_c, by_r, by_s) = geometry.K // geometry.C, geometry.w_strides
    apart, shape = by_c if geometry.flipped else each * by_k, (cn, each, filter_rows(geometry), geometry.columns.taps)
    tile_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
    load(tile_sbuf, operands.w, pattern_of((apart, by_k, by_r, by_s), shape), c0 * apart)
    return tile_sbuf


def load_packed(tile, w_hbm, geometry, c0, cn, k0, kn):
    """Load channels c0 .. c0+cn-1 of a packed filter, [K / each, C, taps, each] in HBM, as [c, taps, k] of a tile: the
    parts of its blocks with output channels k0 .. k0+kn-1."""
    taps, each = num_taps(geometry), geometry.packed
    size, end = taps * each, k0 + kn
    for block in range(k0 // each, div_ceil(end, each)):
        first = max(k0, block * each)
        pattern = [[size, cn], [each, taps], [1, min(end, (block + 1) * each) - first]]
        offset = (block * geometry.C + c0) * size + first - block * each
        load_region(tile, w_hbm, (0, 0, first - k0), pattern, offset)


def block_pieces(outputs, parts, height, j0, jn):
    """Pieces (first block, blocks, first part, parts, rows of each) of blocks j0 .. j0+jn-1, each `parts` times
    `height` rows, within `outputs` rows: whole blocks, whole parts of the last one, and its partial part."""
    span = parts * height
    whole = max(0, min(jn, outputs // span - j0))
    rest = max(0, outputs - (j0 + whole) * span) if whole < jn else 0
    part = (whole, 1, 0, rest // height, height), (whole, 1, rest // height, 1, rest % height)
    return [one for one in ((0, whole, 0, parts, height), *part) if one[1] > 0 and one[3] > 0 and one[4] > 0]
