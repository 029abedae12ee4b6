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
    """Filters of up to plan.filters groups from group0 on: for each piece [groups, channels, S] in SBUF."""
    every = div_ceil(block.length, plan.channels)
    groups = min(plan.filters, every - group0)
    ends = group0 + groups == every and block.length % plan.channels != 0
    regular = groups - 1 if ends else groups
    tiles = []
    for h in range(plan.pieces):
        w_sbuf = nl.ndarray((groups, plan.channels, geometry.S), dtype=operands.w.dtype, buffer=nl.sbuf)
        if regular > 0:
            load_groups(w_sbuf, operands.w, geometry, plan, 0, regular, piece_start(block, h) + group0 * plan.channels)
        if ends:
            load_groups(
                w_sbuf, operands.w, geometry, plan, regular, 1, piece_start(block, h) + block.length - plan.channels
            )
        tiles.append(w_sbuf)
    return tiles


def load_groups(w_sbuf, w_hbm, geometry, plan, row, groups, c0):
    """Filters of groups that follow each other from channel c0 on, into rows from `row` on."""
    copy(
        w_sbuf[row : row + groups, 0 : plan.channels, 0 : geometry.S],
        w_hbm.ap(
            pattern=[[plan.channels * geometry.w_c, groups], [geometry.w_c, plan.channels], [geometry.w_s, geometry.S]],
            offset=c0 * geometry.w_c,
        ),
    )


def turn_filters(tiles, geometry, plan, width, shift):
    """For each column q: [(c, position), h, group] in SBUF, what each position of each channel is multiplied by.

    Placing taps of a column, transposing those of the one before and reading out the one before that: none waits.
    """
    groups = tiles[0].shape[0]
    rows = plan.channels * width
    dtype = tiles[0].dtype
    placed, raw, turned = [], [], []
    for step in range(geometry.Q + 2):
        if step < geometry.Q:
            placed.append(place_taps(tiles, geometry, plan, width, taps_met(geometry, width, shift, step)))
        if 1 <= step and step <= geometry.Q:
            raw.append(turn_column(placed[step - 1], plan, rows, groups, dtype))
            placed[step - 1] = None
        if step >= 2:
            turned_sbuf = nl.ndarray((rows, plan.pieces, groups), dtype=dtype, buffer=nl.sbuf)
            if raw[step - 2] == None:
                nisa.memset(dst=turned_sbuf, value=0.0)
            else:
                nisa.tensor_copy(dst=turned_sbuf, src=raw[step - 2][0:rows, 0 : plan.pieces, 0:groups])
            raw[step - 2] = None
            turned.append(turned_sbuf)
    return turned


def place_taps(tiles, geometry, plan, width, met):
    """Of each piece [groups, channels, width] in SBUF: taps where they meet positions, else zeros; [] if none do."""
    groups = tiles[0].shape[0]
    placed = []
    for h in range(plan.pieces if met[1] > 0 else 0):
        placed_sbuf = tiles[h][0:groups, 0 : plan.channels, met[0] : met[0] + met[1]]
        if met[1] < width:
            taps_sbuf = placed_sbuf
            placed_sbuf = nl.ndarray((groups, plan.channels, width), dtype=taps_sbuf.dtype, buffer=nl.sbuf)
            nisa.memset(dst=placed_sbuf, value=0.0)
            end = met[2] + (met[1] - 1) * geometry.dilation + 1
            nisa.tensor_copy(
                dst=placed_sbuf[0:groups, 0 : plan.channels, met[2] : end : geometry.dilation], src=taps_sbuf
            )
        placed.append(placed_sbuf)
    return placed


def turn_column(placed, plan, rows, groups, dtype):
    """Placed taps transposed: [(c, position), h, group] in PSUM, or None where there are none."""
    if len(placed) == 0:
        return None
    even = groups + groups % 2  # a matmul starts at an even 16-bit element of PSUM
    turned_psum = nl.ndarray((rows, plan.pieces, even), dtype=dtype, buffer=nl.psum)
    for h in range(plan.pieces):
        nisa.nc_transpose(dst=turned_psum[0:rows, h, 0:groups], data=placed[h], engine=nisa.engine.tensor)
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
