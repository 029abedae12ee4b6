"""Filters of `update` as the moving operand of its matmuls: for each group of channels, [(c, position), (h, c, q)].

Column (c', q) of piece h holds w[c, s] in row (c, position) if c = c' and tap s of column q meets that position, else
zero.
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil
from .plan import piece_start, taps_met


def make_mask(channels, width, dtype):
    """[(c, position), c'] in SBUF: 1 where c = c'."""
    rows = channels * width
    mask_sbuf = nl.ndarray((rows, channels), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0)
    for side in range(2):
        nisa.affine_select(
            dst=mask_sbuf,
            pattern=[[-width, channels]],
            channel_multiplier=1,
            on_true_tile=mask_sbuf,
            on_false_value=0.0,
            cmp_op=nl.greater_equal if side == 0 else nl.less,
            offset=0 if side == 0 else -width,
        )
    return mask_sbuf


def load_filters(operands, geometry, plan, block, group0):
    """Filters of up to plan.filters groups from group0 on: [(piece, group), channels, S] in SBUF."""
    every = div_ceil(block.length, plan.channels)
    groups = min(plan.filters, every - group0)
    ends = group0 + groups == every and block.length % plan.channels != 0
    regular = groups - 1 if ends else groups
    w_sbuf = nl.ndarray((plan.pieces * groups, plan.channels, geometry.S), dtype=operands.w.dtype, buffer=nl.sbuf)
    for h in range(plan.pieces):
        row = h * groups
        if regular > 0:
            c0 = piece_start(block, h) + group0 * plan.channels
            load_groups(w_sbuf, operands.w, geometry, plan, row, regular, c0)
        if ends:
            c0 = piece_start(block, h) + block.length - plan.channels
            load_groups(w_sbuf, operands.w, geometry, plan, row + regular, 1, c0)
    return w_sbuf


def load_groups(w_sbuf, w_hbm, geometry, plan, row, groups, c0):
    """Filters of groups that follow each other from channel c0 on, into rows from `row` on."""
    copy(
        w_sbuf[row : row + groups, 0 : plan.channels, 0 : geometry.S],
        w_hbm.ap(
            pattern=[[plan.channels * geometry.w_c, groups], [geometry.w_c, plan.channels], [geometry.w_s, geometry.S]],
            offset=c0 * geometry.w_c,
        ),
    )


def turn_filters(w_sbuf, geometry, plan, width, shift):
    """For each column q: [(c, position), piece, group] in SBUF, what each position of each channel is multiplied by.

    Placing taps of a column, transposing those of the one before and reading out the one before that: none waits.
    """
    shape = (plan.channels * width, plan.pieces, w_sbuf.shape[0] // plan.pieces)
    placed, raw, turned = [], [], []
    for step in range(geometry.Q + 2):
        if step < geometry.Q:
            placed.append(place_taps(w_sbuf, geometry, width, taps_met(geometry, width, shift, step)))
        if 1 <= step and step <= geometry.Q:
            raw.append(turn_column(placed[step - 1], shape[0]))
            placed[step - 1] = None
        if step >= 2:
            turned_sbuf = nl.ndarray(shape, dtype=w_sbuf.dtype, buffer=nl.sbuf)
            if raw[step - 2] == None:
                nisa.memset(dst=turned_sbuf, value=0.0)
            else:
                nisa.tensor_copy(
                    dst=turned_sbuf.reshape((shape[0], w_sbuf.shape[0])),
                    src=raw[step - 2][0 : shape[0], 0 : w_sbuf.shape[0]],
                )
            raw[step - 2] = None
            turned.append(turned_sbuf)
    return turned


def place_taps(w_sbuf, geometry, width, met):
    """[(piece, group), channels, width] in SBUF: taps where they meet positions, else zeros; None if none do."""
    rows, channels = w_sbuf.shape[0], w_sbuf.shape[1]
    if met[1] == 0:
        return None
    taps_sbuf = w_sbuf[0:rows, 0:channels, met[0] : met[0] + met[1]]
    if met[1] == width:
        return taps_sbuf
    placed_sbuf = nl.ndarray((rows, channels, width), dtype=w_sbuf.dtype, buffer=nl.sbuf)
    nisa.memset(dst=placed_sbuf, value=0.0)
    end = met[2] + (met[1] - 1) * geometry.dilation + 1
    nisa.tensor_copy(dst=placed_sbuf[0:rows, 0:channels, met[2] : end : geometry.dilation], src=taps_sbuf)
    return placed_sbuf


def turn_column(placed_sbuf, size):
    """Placed taps transposed: [(c, position), (piece, group)] in PSUM, or None where there are none."""
    if placed_sbuf == None:
        return None
    rows = placed_sbuf.shape[0]
    even = rows + rows % 2  # a matmul starts at an even 16-bit element of PSUM
    turned_psum = nl.ndarray((size, even), dtype=placed_sbuf.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum[0:size, 0:rows], data=placed_sbuf, engine=nisa.engine.tensor)
    return turned_psum


def make_bands(turned, mask_sbuf, plan, first, groups):
    """Bands of groups first .. of turned filters: [(c, position), group, h, c, q] in SBUF, the last three flattened."""
    rows, channels, columns = mask_sbuf.shape[0], plan.channels, len(turned)
    size = channels * columns
    bands_sbuf = nl.ndarray((rows, groups, plan.pieces, size), dtype=mask_sbuf.dtype, buffer=nl.sbuf)
    same = mask_sbuf.expand_dim(1).broadcast(1, groups).expand_dim(2).broadcast(2, plan.pieces)
    for q in range(columns):
        taps = turned[q][0:rows, 0 : plan.pieces, first : first + groups].permute((0, 2, 1))
        nisa.tensor_tensor(
            dst=bands_sbuf[0:rows, 0:groups, 0 : plan.pieces, q:size:columns],
            data1=taps.expand_dim(3).broadcast(3, channels),
            data2=same,
            op=nl.multiply,
        )
    return bands_sbuf
