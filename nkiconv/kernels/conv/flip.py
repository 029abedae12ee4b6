"""Filters of transposed convolutions, [C, K / groups, ...] with taps in reverse order, for algorithms that read them in
order.

A transposed convolution is one of x with lhs_dilation, whose filter has its taps in reverse order and its channels
swapped. Some algorithms read such filters as they are; the others get a copy in HBM, which each core makes for itself.
"""

from dataclasses import replace

from ..._nki import nl
from ...schedules.geometry import filter_rows, num_taps, writes_rows
from ...schedules.implicit_gemm_channels import has_own_m_tiles, left_over
from ...schedules.tiles import QUADRANT, cut, cut_at
from .._dma import copy
from .filter_feed import turn_forwards

#: Bytes a partition of a piece of the copy.
FLIP_BYTES = 8192


def flips(algorithm, geometry):
    """Whether an algorithm gets a copy of the filter."""
    return geometry.flipped and not reads_backwards(algorithm, geometry)


def reads_backwards(algorithm, geometry):
    """Whether an algorithm reads such filters as they are; some, those of images alone."""
    images = geometry.groups == 1 and geometry.planes.taps == 1
    if algorithm == "implicit_gemm":
        plain = geometry.precision in (None, "bf16", "tf32") and geometry.hbm_itemsize > 1
        if plain and geometry.groups > 1 and geometry.groups == geometry.C and geometry.groups == geometry.K:
            return True
        if not plain or geometry.planes.taps > 1 or not has_own_m_tiles(geometry):
            return False
        # folded channels are put in place as engines address partitions
        return geometry.groups > 1 or (geometry.C > 1 and left_over(geometry.C) % QUADRANT == 0)
    if algorithm == "stacked":
        return geometry.groups > 1 or (images and geometry.hbm_itemsize > 1)
    if algorithm == "activation_stationary":
        return images or geometry.groups > 1 or writes_rows(geometry)
    return algorithm == "weight_stationary"


def has_outputs_first(geometry):
    """Whether a copy is [K, C / groups, ...]: of groups, and of volumes whose planes of taps may be channels."""
    few = geometry.C * geometry.planes.taps <= nl.tile_size.pmax
    return geometry.groups > 1 or (geometry.planes.taps > 1 and few)


def forwards_of(algorithm, geometry):
    """The Geometry that an algorithm sees: strides of the copy, [C, K, ...] or [K, C / groups, ...]."""
    if not flips(algorithm, geometry):
        return geometry
    taps, columns, each = num_taps(geometry), geometry.columns.taps, geometry.C // geometry.groups
    of_k, of_c = (each * taps, taps) if has_outputs_first(geometry) else (taps, geometry.K * taps)
    return replace(geometry, w_strides=(of_k, of_c, columns, 1), flipped=False)


def flip_pieces(geometry):
    """((first input channel, how many), (first output channel of a group, how many)) of pieces: whole groups of input
    channels, or parts of one."""
    each, P_MAX = geometry.C // geometry.groups, nl.tile_size.pmax
    most_k = max(1, FLIP_BYTES // (num_taps(geometry) * geometry.itemsize))
    channels = []
    if geometry.groups == 1 or each > P_MAX:
        for g in range(geometry.groups):
            for part in cut(each, P_MAX):
                channels.append((g * each + part[0], part[1]))
    else:
        channels = cut_at(geometry.C, P_MAX // each * each)
    found = []
    for part in channels:
        for outputs in cut(geometry.K // geometry.groups, most_k):
            found.append((part, outputs))
    return found


def flip_instructions(algorithm, geometry):
    """Instructions of a core for the copy."""
    return len(flip_pieces(geometry)) * (num_taps(geometry) + 2) if flips(algorithm, geometry) else 0


def copy_forwards(algorithm, operands, geometry):
    """Make operands.w a copy with taps in order where the algorithm needs one."""
    if not flips(algorithm, geometry):
        return
    rows, columns, strides = filter_rows(geometry), geometry.columns.taps, geometry.w_strides
    taps, each, dtype = rows * columns, geometry.C // geometry.groups, operands.w.dtype
    forwards_hbm = nl.ndarray((geometry.K * each * taps,), dtype=dtype, buffer=nl.private_hbm)
    for piece in flip_pieces(geometry):
        c0, cn = piece[0]
        k0, kn = piece[1]
        raw_sbuf = nl.ndarray((cn, kn, rows, columns), dtype=dtype, buffer=nl.sbuf)
        pattern = [[strides[1], cn], [strides[0], kn], [strides[2], rows], [strides[3], columns]]
        copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=c0 * strides[1] + k0 * strides[0]))
        found_sbuf = turn_forwards(raw_sbuf).reshape((cn, kn, taps))
        if not has_outputs_first(geometry):
            pattern = [[geometry.K * taps, cn], [1, kn * taps]]
            offset = (c0 * geometry.K + k0) * taps
            copy(forwards_hbm.ap(pattern=pattern, offset=offset), found_sbuf.reshape((cn, kn * taps)))
        else:
            own = geometry.K // geometry.groups
            inside = min(cn, each)
            pattern = [[own * each * taps, cn // inside], [taps, inside], [each * taps, kn], [1, taps]]
            offset = (c0 // each * own + k0) * each * taps + c0 % each * taps
            copy(forwards_hbm.ap(pattern=pattern, offset=offset), found_sbuf)
    operands.w = forwards_hbm
