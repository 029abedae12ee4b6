"""The loop of the algorithms with channels on partitions: tiles, pieces, and the order in which their steps are issued.

Loads run `prefetch` tiles ahead of the sums; a tile's diagonals are made one tile ahead. The phases of a piece are
issued one turn apart, newest piece first, so that neighbours in an engine's queue do not wait for each other. The first
tile of a core is loaded, and the first and last are summed, in narrow pieces, so that sums start early and end soon.
"""

from ...._nki import nisa, nl
from ..._warm import warm_up, warm_zeros
from .chains import TileData, phases_of, run_step
from .config import read_rows, rows_defaults
from .dma import allocate_x, load_channels, load_residual_rows, load_x
from .plan import (
    all_recipes,
    any_product,
    cut_pieces,
    cuts_of,
    filter_block,
    most_phases,
    most_tensor_taps,
    read_plan,
    widths_of,
)
from .states import FILLED_AHEAD, fill_state, is_staged, load_blocks
from .tiles import tile_list

#: Blocks of 128 columns of a matmul on zeros.
WARM_BLOCKS = 4


def convolve_rows(operands, geometry, extras, config, on_tensor):
    """Write operands.y: both halves of the work on one core, or each on its own."""
    plan = read_plan(geometry, extras, read_rows(config, rows_defaults(geometry, on_tensor)))
    if nl.num_programs() == 2:
        convolve_half(operands, geometry, extras, plan, tile_list(geometry, plan.rows, nl.program_id(0), 0))
    else:
        convolve_half(operands, geometry, extras, plan, tile_list(geometry, plan.rows, 0, 0))
        convolve_half(operands, geometry, extras, plan, tile_list(geometry, plan.rows, 1, 0))


def convolve_half(operands, geometry, extras, plan, tiles):
    """All tiles of one half, in order."""
    if len(tiles) == 0:
        return
    cuts = []
    for i in range(len(tiles)):
        widths = widths_of(tiles[i].qn, plan, i == 0, i == len(tiles) - 1)
        cuts.append(cuts_of(tiles[i].qn, widths[0]))
    pieces = cut_pieces(plan, tiles)
    chains = []
    for _ in range(len(pieces)):
        chains.append((None, None))

    block = filter_block(geometry)
    end_t = tiles[len(tiles) - 1].t + 1
    filters = []
    states = []
    filled = 0
    xs = []
    datas = []
    phases = most_phases(all_recipes(plan), extras.epilogue)
    for turn in range(len(pieces) + phases - 1):
        if turn < len(pieces):
            i = pieces[turn].tile
            # x of this tile and the next ones; filters come before the first x that needs them
            while len(xs) < len(tiles) and len(xs) <= i + plan.prefetch:
                load_filters(operands, geometry, plan, filters, tiles[0].t, tiles[len(xs)].t, end_t, block)
                tile = tiles[len(xs)]
                staged = is_staged(plan.rows, len(xs))
                if staged:
                    load_blocks(operands, geometry, plan.rows, states, tiles, len(xs))
                x_sbuf = allocate_x(operands, geometry, plan.rows, tile)
                load_x(operands, geometry, extras, plan.rows, tile, x_sbuf, cuts[len(xs)], extras.state and not staged)
                xs.append((x_sbuf, load_residual_rows(operands, geometry, plan.rows, tile)))
                if len(xs) == 1 and plan.warmup > 0:
                    warm_up(warm_zeros(), plan.warmup, WARM_BLOCKS)
            while len(datas) < len(tiles) and len(datas) <= min(i + 1, len(xs) - 1):
                datas.append(tile_data(geometry, plan, tiles, filters, xs, datas, block))
            while filled < len(tiles) and filled <= min(i + FILLED_AHEAD, len(xs) - 1):
                if is_staged(plan.rows, filled):
                    fill_state(geometry, plan.rows, states, tiles, filled, xs[filled][0])
                filled += 1
        run_turn(operands, geometry, extras, plan, datas, pieces, chains, turn, phases)


def run_turn(operands, geometry, extras, plan, datas, pieces, chains, turn, phases):
    """Issue phase 0 of piece `turn`, phase 1 of the piece before it, and so on, their steps in alternation."""
    step = 0
    more = True
    while more:
        more = False
        for phase in range(phases):
            index = turn - phase
            if index < 0 or index >= len(pieces):
                continue
            piece = pieces[index]
            own = phases_of(piece.recipe, extras.epilogue)
            if phase >= len(own) or own[phase][0] + step >= own[phase][1]:
                continue
            more = True
            chains[index] = run_step(
                operands,
                geometry,
                extras,
                plan.rows,
                datas[piece.tile],
                piece,
                own[phase][0] + step,
                chains[index],
            )
        step += 1


def load_filters(operands, geometry, plan, filters, t_first, t, end_t, block):
    """Filters, filters in fp32 and biases of the blocks of channel tiles up to the one that t is in."""
    while len(filters) * block + t_first <= t:
        t0 = len(filters) * block + t_first
        tn = min(block, end_t - t0)
        w_sbuf = load_taps(operands.w, operands.w.dtype, geometry, plan, t0, tn)
        w32_sbuf = w_sbuf
        if operands.w.dtype != nl.float32 and any_product(all_recipes(plan)):
            w32_sbuf = load_taps(operands.w, nl.float32, geometry, plan, t0, tn)
        bias_sbuf = None
        if operands.bias != None:
            bias_sbuf = load_channels(operands.bias, nl.float32, geometry, plan.rows, plan.rows.G, t0, tn, 1, 1, 1)
        filters.append((w_sbuf, w32_sbuf, bias_sbuf))


def load_taps(w_hbm, dtype, geometry, plan, t0, tn):
    """Filters of channel tiles t0 .. t0+tn-1 in a dtype: [partitions, tn * S]."""
    return load_channels(w_hbm, dtype, geometry, plan.rows, plan.rows.G, t0, tn, geometry.w_c, geometry.S, geometry.w_s)


def tile_data(geometry, plan, tiles, filters, xs, datas, block):
    """TileData of the next tile; the stationaries are those of the tile before if the channels are the same."""
    i = len(datas)
    tile = tiles[i]
    local = tile.t - tiles[0].t
    held = filters[local // block]
    place = local % block
    S = geometry.S
    w_sbuf = held[0][0 : tile.rows, place * S : (place + 1) * S]
    bias_sbuf = None
    if held[2] != None:
        bias_sbuf = held[2][0 : tile.rows, place : place + 1]
    diagonals = None
    before = tiles[max(0, i - 1)]
    if i > 0 and before.t == tile.t and before.rows >= tile.rows:
        diagonals = datas[i - 1].diagonals
    elif most_tensor_taps(all_recipes(plan)) > 0:
        diagonals = make_diagonals(w_sbuf, tile.rows, most_tensor_taps(all_recipes(plan)))
    return TileData(
        tile=tile,
        x=xs[i][0],
        diagonals=diagonals,
        w=w_sbuf,
        w32=held[1][0 : tile.rows, place * S : (place + 1) * S],
        bias=bias_sbuf,
        residual=xs[i][1],
    )


def make_diagonals(w_sbuf, rows, taps):
    """[rows, taps, rows]: row p of block s is w[p, s] in column p and zero elsewhere, by one select."""
    diagonals_sbuf = nl.ndarray((rows, taps, rows), dtype=w_sbuf.dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=diagonals_sbuf,
        pattern=[[0, taps], [-1, rows]],
        channel_multiplier=1,
        on_true_tile=w_sbuf[0:rows, 0:taps].expand_dim(2).broadcast(2, rows),
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=0,
    )
    return diagonals_sbuf
