"""Filters of `update` as the moving operand of its matmuls: for each group of channels, [(c, position), (h, c, q)].

Column (c', q) of piece h holds w[c, s] in row (c, position) if c = c' and tap s of column q meets that position, else
zero.
"""

from ...._nki import nisa, nl
from ....schedules.channels import row_start
from ....schedules.tiles import div_ceil
from ....schedules.update import group_runs, taps_met
from ..._dma import copy
from ..._masks import keep_between


def make_mask(channels, width, dtype):
    """[(c, position), c'] in SBUF: 1 where c = c'."""
    rows = channels * width
    mask_sbuf = nl.ndarray((rows, channels), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0)
    keep_between(mask_sbuf, [[-width, channels]], width, mask_sbuf)
    return mask_sbuf


def load_update_filters(operands, geometry, plan, block, group0):
    """Filters of up to plan.filters groups from group0 on: [(piece, group), channels, S] in SBUF."""
    groups = min(plan.filters, div_ceil(block.length, plan.channels) - group0)
    runs = group_runs(block, plan, group0, groups)
    w_sbuf = nl.ndarray((plan.pieces * groups, plan.channels, geometry.S), dtype=operands.w.dtype, buffer=nl.sbuf)
    for h in range(plan.pieces):
        for run in runs:
            first, count, start = run
            row = h * groups + first - group0
            pattern = [[plan.channels * geometry.w_c, count], [geometry.w_c, plan.channels], [geometry.w_s, geometry.S]]
            copy(
                w_sbuf[row : row + count, 0 : plan.channels, 0 : geometry.S],
                operands.w.ap(pattern=pattern, offset=(row_start(block, h) + start) * geometry.w_c),
            )
    return w_sbuf


def transpose_filters(w_sbuf, geometry, plan, width, shift):
    """For each column q: [(c, position), piece, group] in SBUF, what each position of each channel is multiplied by.

    Placing taps of a column, transposing those of the one before and reading out the one before that: none waits.
    """
    size, rows = plan.channels * width, w_sbuf.shape[0]
    placed, raw, found = [], [], []
    for step in range(geometry.Q + 2):
        if step < geometry.Q:
            placed.append(place_taps(w_sbuf, geometry, width, taps_met(geometry, width, shift, step)))
        if 1 <= step and step <= geometry.Q:
            raw.append(transpose_column(placed[step - 1], size))
            placed[step - 1] = None
        if step >= 2:
            filters_sbuf = nl.ndarray((size, plan.pieces, rows // plan.pieces), dtype=w_sbuf.dtype, buffer=nl.sbuf)
            if raw[step - 2] == None:
                nisa.memset(dst=filters_sbuf, value=0.0)
            else:
                nisa.tensor_copy(dst=filters_sbuf.reshape((size, rows)), src=raw[step - 2][0:size, 0:rows])
            raw[step - 2] = None
            found.append(filters_sbuf)
    return found


def place_taps(w_sbuf, geometry, width, valid_range):
    """[(piece, group), channels, width] in SBUF: taps where they meet positions, else zeros; None if none do."""
    rows, channels = w_sbuf.shape[0], w_sbuf.shape[1]
    if valid_range[1] == 0:
        return None
    taps_sbuf = w_sbuf[0:rows, 0:channels, valid_range[0] : valid_range[0] + valid_range[1]]
    if valid_range[1] == width:
        return taps_sbuf
    placed_sbuf = nl.ndarray((rows, channels, width), dtype=w_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=placed_sbuf, value=0.0)
    end = valid_range[2] + (valid_range[1] - 1) * geometry.dilation + 1
    nisa.tensor_copy(dst=placed_sbuf[0:rows, 0:channels, valid_range[2] : end : geometry.dilation], src=taps_sbuf)
    return placed_sbuf


def transpose_column(placed_sbuf, size):
    """Placed taps transposed: [(c, position), (piece, group)] in PSUM, or None where there are none."""
    if placed_sbuf == None:
        return None
    rows = placed_sbuf.shape[0]
    even = rows + rows % 2  # a matmul starts at an even 16-bit element of PSUM
    placed_psum = nl.ndarray((size, even), dtype=placed_sbuf.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=placed_psum[0:size, 0:rows], data=placed_sbuf, engine=nisa.engine.tensor)
    return placed_psum


def make_bands(filters, mask_sbuf, plan, first, groups):
    """Bands of groups first .. of transposed filters: [(c, position), group, (h, c, q)] in SBUF."""
    rows, channels, columns = mask_sbuf.shape[0], plan.channels, len(filters)
    size = channels * columns
    bands_sbuf = nl.ndarray((rows, groups, plan.pieces, size), dtype=mask_sbuf.dtype, buffer=nl.sbuf)
    same = mask_sbuf.expand_dim(1).broadcast(1, groups).expand_dim(2).broadcast(2, plan.pieces)
    for q in range(columns):
        taps = filters[q][0:rows, 0 : plan.pieces, first : first + groups].permute((0, 2, 1))
        nisa.tensor_tensor(
            dst=bands_sbuf[0:rows, 0:groups, 0 : plan.pieces, q:size:columns],
            data1=taps.expand_dim(3).broadcast(3, channels),
            data2=same,
            op=nl.multiply,
        )
    return bands_sbuf
