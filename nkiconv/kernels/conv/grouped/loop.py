"""The loop of grouped conv2d: x of a wave comes in, tiles of the array work side by side, rows are put together."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.frames import plane_pieces
from ....schedules.geometry import is_of_planes, met
from ....schedules.tiles import div_ceil
from ..._engines import START_WORK, copy_work, new_ledger
from ..._warm import accumulator, warm_up, warm_zeros
from ..boxes import box_at, load_box, offset_at, pattern_of, residual_of, store_boxes
from ..call import finish_shared, of_array, part_of_core
from ..filter_feed import tiles_in_turn
from ..ring import load_until, start_ring, tile_of_load
from ..sums import Product, elements_met, is_whole, spaced, sums_met, zero_sums
from .filters import build_filters, load_grouped_filters, make_rulers, spread_filters
from .units import FILTER_BUFFERS, banks_of_unit, tiles_of_wave, y_pages

#: Units before the first of a wave, at most, that its stationaries are made at.
AHEAD = 2


@dataclass
class Wave(nl.NKIObject):
    """A wave of tiles: filters as loaded, spread and as stationaries, bias [(uh, k), tile] or None."""

    tiles: list
    loaded: list
    spreads: list
    bias_sbuf: object
    filters_sbuf: object = None


def run_grouped(operands, geometry, extras, grouped):
    """This core's part of the units; x of the next ones is loaded before one is worked on.

    Stationaries of a wave are made AHEAD units before its first, or at the first of the wave before; filters of the one
    after it are loaded and spread then, while engines and array work on others.
    """
    _, units = part_of_core(grouped.units)
    count = len(units)
    if count == 0:
        return
    order = order_of(units)
    ledger = new_ledger()
    ring = ring_of_units(operands, geometry, grouped, units)
    waves = [start_wave(operands, geometry, grouped, order[0])]
    load_until(ring, operands, 1)
    if len(order) > 1:
        waves.append(start_wave(operands, geometry, grouped, order[1]))
    zeros_sbuf = warm_zeros()
    rulers = make_rulers(operands, geometry, grouped, min(FILTER_BUFFERS, len(order)))
    warm = warm_up(zeros_sbuf, grouped.warmup, 1)
    spread_wave(geometry, grouped, rulers, waves, 0)
    finish_wave(operands, geometry, grouped, rulers, waves, 0, ledger)
    spread_wave(geometry, grouped, rulers, waves, 1)
    at, made = 0, 1
    for index in range(count):
        load_until(ring, operands, index + grouped.buffers)
        here, after, soon = units[index], units[min(index + 1, count - 1)], units[min(index + AHEAD, count - 1)]
        own = waves[at]
        # no further than the next wave: the one after it has the buffer of this one
        if made == at + 1 and soon.wave != here.wave:
            finish_wave(operands, geometry, grouped, rulers, waves, made, ledger)
            made += 1
            if len(waves) < len(order):
                waves.append(start_wave(operands, geometry, grouped, order[len(waves)]))
            spread_wave(geometry, grouped, rulers, waves, made)
        if after.wave != here.wave:
            waves[at] = None
            at += 1
        last = index + 1 == count
        x_sbuf = None
        if len(ring.tiles) > 0:
            x_sbuf = of_array(tile_of_load(ring, index), operands)
        zeros = (zeros_sbuf, warm)
        work_on_unit(operands, geometry, extras.epilogue, grouped, own, here, x_sbuf, zeros, ledger, last)


def order_of(units):
    """Waves of units, each once, in order."""
    found = []
    for unit in units:
        if len(found) == 0 or found[len(found) - 1] != unit.wave:
            found.append(unit.wave)
    return found


def start_wave(operands, geometry, grouped, index):
    """A Wave whose filters are on their way."""
    loaded = load_grouped_filters(operands, geometry, grouped, index)
    tiles = tiles_of_wave(geometry, grouped, index, grouped.waves[index][2])
    bias_sbuf = None
    if operands.bias != None:
        bias_sbuf = nl.ndarray((grouped.Uh * grouped.Kt, len(tiles)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=bias_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        for which in range(len(tiles)):
            tile = tiles[which]
            for uh in range(grouped.Uh):
                load_box(bias_sbuf, operands.bias, (uh * grouped.Kt, which), [[1, tile.kn], [1, 1]], tile.k0)
    return Wave(tiles=tiles, loaded=loaded, spreads=[], bias_sbuf=bias_sbuf)


def spread_wave(geometry, grouped, rulers, waves, at):
    """Put zeros between the groups of a wave's filters, if there is such a wave."""
    if at < len(waves):
        waves[at].spreads = spread_filters(waves[at].loaded, geometry, grouped, rulers)
        waves[at].loaded = []


def finish_wave(operands, geometry, grouped, rulers, waves, at, ledger):
    """Make the stationaries of a wave."""
    waves[at].filters_sbuf = build_filters(operands, waves[at].spreads, geometry, grouped, rulers, at, ledger)
    waves[at].spreads = []


def rows_of_first_bank(grouped, unit):
    """Rows of x that the first bank of a unit needs: they are loaded first."""
    blocks = banks_of_unit(grouped, unit)[0][1]
    return min(unit.hn, (blocks - 1) * grouped.rows.stride + grouped.rows.taps)


def ring_of_units(operands, geometry, grouped, units):
    """The Ring of x [(tile, c), planes, rows, columns] of units, of one shape on any number of cores; without tiles
    where no unit needs any. The rows of the first bank of all come before the others."""
    planes, height, width, loads = 0, 0, 0, []
    for unit in grouped.units:
        planes, height, width = max(planes, unit.dn), max(height, unit.hn), max(width, unit.wn)
    for index in range(len(units)):
        first = rows_of_first_bank(grouped, units[index]) if index == 0 else 0
        loads.append(boxes_of_unit(geometry, grouped, units[index], first))
    if min(min(planes, height), width) == 0:
        loads = []
    return start_ring(grouped.buffers, (nl.tile_size.pmax, planes, height, width), operands.x_dtype, loads)


def boxes_of_unit(geometry, grouped, unit, first):
    """x of a unit as boxes, the `first` rows before the others."""
    tiles = tiles_of_wave(geometry, grouped, unit.wave, len(unit.parts))
    each = len(tiles) // len(unit.parts)
    dense = tiles[0].cn == grouped.T
    boxes = []
    for bounds in ((0, first), (first, unit.hn)):
        for index in range(0, len(tiles) if unit.wn > 0 else 0, each if dense else 1):
            tile = tiles[index]
            part = unit.parts[tile.lane]
            low, high = bounds[0], min(part.hn, bounds[1])
            # tiles without gaps between their channels are one box
            end = tiles[index + each - 1] if dense else tile
            pieces = plane_pieces(geometry, part.d0, part.dn) if low < high and part.dn > 0 else []
            for piece in pieces:
                extents = (end.c0 + end.cn - tile.c0, piece.count, high - low, unit.wn)
                there = (tile.c0, piece.plane, part.h0 + low, unit.w0)
                first = (tile.index * grouped.T, piece.first, low, 0)
                boxes.append(box_at(piece.strides, first, there, extents) + (piece.framed,))
    return boxes


def grouped_place(grouped, tile):
    """(buffer, first partition of its read-outs, which output row's is also its own) of a tile's results.

    A read-out writes (uh, k) of one uw to as many neighbouring partitions. One uh lies where the tile's results belong,
    the others are copied there; tiles whose read-outs overlap take different buffers.
    """
    each = grouped.Uh * grouped.Kt
    column = tile.index * grouped.Kt
    page, first = column // nl.tile_size.pmax, column % nl.tile_size.pmax
    own = first % each // grouped.Kt
    return page * grouped.Uh + own, first // each * each, own


def work_on_unit(operands, geometry, epilogue, grouped, wave, unit, x_sbuf, zeros, ledger, last):
    """Results of a unit: banks of all tiles one after the other, then the stores.

    zeros: (zeros in SBUF, WarmBanks); last: whether nothing hides the stores: each bank's results leave at once then.
    """
    tiles = wave.tiles[0 : len(wave.tiles) // grouped.waves[unit.wave][2] * len(unit.parts)]
    Q, Uh = geometry.columns.out, grouped.Uh
    shape = (nl.tile_size.pmax, unit.zn, unit.mn * Uh, Q)
    ys = tiles_in_turn(y_pages(grouped) * Uh, shape, operands.y.dtype)
    residuals = []
    for tile in tiles:
        boxes = residual_boxes(geometry, grouped, tile, unit)
        residuals.append(residual_of(operands, (Uh * grouped.Kt, unit.zn, unit.mn, Q), boxes, True))
    banks = banks_of_unit(grouped, unit)
    for which in range(len(banks)):
        bank = banks[which]
        sums = sums_of_bank(geometry, grouped, wave, tiles, unit, bank, x_sbuf, zeros)
        for index in range(len(tiles)):
            if sums[index] != None:
                residual = residuals[index]
                read_out(epilogue, geometry, grouped, wave, index, bank, sums[index], ys, residual, ledger)
        if which + 1 == len(banks) or banks[which + 1][0] != bank[0]:
            # all columns of these rows are there
            for tile in tiles:
                move_rows(geometry, grouped, tile, unit, bank, ys, ledger)
                if last:
                    store_tile(operands.y, geometry, grouped, tile, unit, bank[0], bank[1], ys)
    if not last:
        for tile in tiles:
            store_tile(operands.y, geometry, grouped, tile, unit, 0, unit.mn, ys)


def sums_of_bank(geometry, grouped, wave, tiles, unit, bank, x_sbuf, zeros):
    """Sums [(uw, uh, k), images, blocks of rows, blocks of columns] of a bank in PSUM, for each tile; None where its
    part has no such rows.

    The tiles take turns: each has its own rows of the array.
    """
    m, most, j, jn = bank
    every, longest = [], 0
    for part in unit.parts:
        found = products_of_bank(geometry, grouped, part, unit.zn, (m, min(most, part.mn - m), j, jn))
        every.append(found)
        longest = max(longest, len(found))
    sums, started = [], []
    for tile in tiles:
        part, found = unit.parts[tile.lane], every[tile.lane]
        mn = min(most, part.mn - m)
        acc_psum, are_zeros = None, False
        if mn > 0:
            acc_shape = (grouped.Uw * grouped.Uh * grouped.Kt, unit.zn, mn, jn)
            acc_psum, are_zeros = accumulator(zeros[1], acc_shape)
            covered = False
            if len(found) > 0:
                covered = is_whole(found[0], unit.zn, mn, jn)
            if not covered and not are_zeros:
                zero_sums(acc_psum, zeros[0])
                are_zeros = True
        sums.append(acc_psum)
        started.append(are_zeros)
    for which in range(longest):
        for index in range(len(tiles)):
            tile = tiles[index]
            found = every[tile.lane]
            if which < len(found):
                multiply_tile(sums[index], grouped, wave, tile, unit, bank, x_sbuf, found[which], started[index])
                started[index] = True
    return sums


def multiply_tile(acc_psum, grouped, wave, tile, unit, bank, x_sbuf, product, started):
    """One matmul of a tile, added to what is there if the sums have started."""
    part, first = unit.parts[tile.lane], tile.index * grouped.T
    nisa.nc_matmul(
        dst=sums_met(acc_psum, product, (part.z0, part.m0 + bank[0], bank[2])),
        stationary=wave.filters_sbuf[first : first + tile.cn, product.row, product.group, 0 : acc_psum.shape[0]],
        moving=elements_met(x_sbuf, (first, tile.cn), product, (part.d0, part.h0, unit.w0)),
        accumulate=started,
        tile_position=(first, 0),
        tile_size=(grouped.T, nl.tile_size.pmax),
    )


def products_of_bank(geometry, grouped, part, zn, bank):
    """Products of a bank of a part: an element of the window each. Those that meet all of its blocks come first, the
    others add to what is there; of volumes only the first one, which meets all of any bank, if there is one."""
    m, mn, j, jn = bank
    found, whole, partial = [], [], []
    for place in grouped.window if mn > 0 else []:
        t, a, b = place
        product = Product(
            row=t * grouped.rows.taps + a,
            group=b,
            planes=met(geometry.planes, t, part.z0, zn),
            rows=met(grouped.rows, a, part.m0 + m, mn),
            columns=met(grouped.columns, b, j, jn),
        )
        if product.planes[2] * product.rows[2] * product.columns[2] > 0:
            found.append(product)
            if is_whole(product, zn, mn, jn):
                whole.append(product)
            else:
                partial.append(product)
    by_number = is_of_planes(geometry) and len(whole) > 0 and is_whole(found[0], zn, mn, jn)
    return found if by_number else whole + partial


def read_out(epilogue, geometry, grouped, wave, index, bank, sums_psum, ys, residual_sbuf, ledger):
    """Sums of a tile to every Uh-th row of its buffer, columns in their order."""
    m, j, jn = bank[0], bank[2], bank[3]
    Uh, Uw, images, mn = grouped.Uh, grouped.Uw, sums_psum.shape[1], sums_psum.shape[2]
    buffer, base, own = grouped_place(grouped, wave.tiles[index])
    each = Uh * grouped.Kt
    bias_sbuf = None if wave.bias_sbuf == None else wave.bias_sbuf[0:each, index : index + 1]
    for uw in range(Uw):
        count = min(jn, div_ceil(geometry.columns.out - uw, Uw) - j)
        if count > 0:
            columns, all_images = (j * Uw + uw, count, Uw), (0, images, 1)
            residual = None
            if residual_sbuf != None:
                residual = spaced(residual_sbuf, (0, each), all_images, (m, mn, 1), columns)
            y = spaced(ys[buffer], (base, each), all_images, (m * Uh + own, mn, Uh), columns)
            sums = sums_psum[uw * each : (uw + 1) * each, 0:images, 0:mn, 0:count]
            finish_shared(y, sums, bias_sbuf, residual, epilogue, ledger, images * mn * count)


def move_rows(geometry, grouped, tile, unit, bank, ys, ledger):
    """Rows uh of a tile's blocks to the partitions and places where they belong."""
    buffer, base, own = grouped_place(grouped, tile)
    part, y_sbuf, Uh, columns = unit.parts[tile.lane], ys[buffer], grouped.Uh, (0, geometry.columns.out, 1)
    first, to = bank[0] * Uh, base + own * grouped.Kt
    for uh in range(Uh):
        count = min(min(bank[1], part.mn - bank[0]), div_ceil(geometry.rows.out - uh, Uh) - part.m0 - bank[0])
        if uh != own and count > 0:
            source, images = base + uh * grouped.Kt, (0, unit.zn, 1)
            elements = unit.zn * count * geometry.columns.out
            ledger.vector = ledger.vector + START_WORK + elements * copy_work(y_sbuf.dtype)
            nisa.tensor_copy(
                dst=spaced(y_sbuf, (to, tile.kn), images, (first + uh, count, Uh), columns),
                src=spaced(y_sbuf, (source, tile.kn), images, (first + own, count, Uh), columns),
                engine=nisa.engine.vector,
            )


def store_tile(y_hbm, geometry, grouped, tile, unit, m, mn, ys):
    """Blocks m .. m+mn-1 of rows of a tile, as far as its part has them."""
    buffer, base, own = grouped_place(grouped, tile)
    part, strides = unit.parts[tile.lane], geometry.y_strides
    p0 = (part.m0 + m) * grouped.Uh
    pn = min(geometry.rows.out - p0, min(mn, part.mn - m) * grouped.Uh)
    if pn > 0:
        first, extents = (base + own * grouped.Kt, 0, m * grouped.Uh, 0), (tile.kn, unit.zn, pn, geometry.columns.out)
        store_boxes(y_hbm, ys[buffer], [box_at(strides, first, (tile.k0, part.z0, p0, 0), extents)])


def residual_boxes(geometry, grouped, tile, unit):
    """Boxes of the residual of a tile, [(uh, k), images, blocks of rows, columns]."""
    Uh, part = grouped.Uh, unit.parts[tile.lane]
    strides = geometry.y_strides
    found = []
    for uh in range(Uh):
        count = min(part.mn, div_ceil(geometry.rows.out - uh, Uh) - part.m0)
        if count > 0:
            pattern = pattern_of(strides, (tile.kn, unit.zn, count, geometry.columns.out))
            pattern[2][0] = Uh * strides[2]
            offset = offset_at(strides, (tile.k0, part.z0, part.m0 * Uh + uh, 0))
            found.append(((uh * grouped.Kt, 0, 0, 0), pattern, offset))
    return found
