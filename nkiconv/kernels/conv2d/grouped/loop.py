"""The loop of grouped conv2d: x of a chunk comes in, tiles of the array work side by side, rows are put together."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger, is_16bit
from ..._epilogue import finish
from ..._prices import VECTOR_FIXED_NS, VECTOR_NS_16BIT
from ..._tiles import div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..call import of_array, reader, scale_residual
from .filters import build_filters, load_filters, make_rulers
from .plan import FILTER_BUFFERS, banks_of, block_met, tiles_of, y_buffers


@dataclass
class Chunk(nl.NKIObject):
    """A chunk of tiles: filters as loaded and as stationaries, bias [(uh, k), tile] or None."""

    index: int
    tiles: list
    loaded: list
    filters_sbuf: object
    bias_sbuf: object


def run_grouped(operands, geometry, extras, grouped):
    """This core's part of the units; x of the next ones is loaded before one is worked on."""
    mine = share(len(grouped.units), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    units = units_of(grouped, mine)
    ledger = Ledger(vector_ns=0.0, scalar_ns=0.0)
    chunk = start_chunk(operands, geometry, grouped, units[0].chunk)
    xs = [load_x(operands, geometry, grouped, units[0], first_rows(geometry, grouped, units[0]))]
    zeros_sbuf = warm_zeros()
    chunks = abs(units[len(units) - 1].chunk - units[0].chunk) + 1
    rulers = make_rulers(operands, geometry, grouped, min(FILTER_BUFFERS, chunks))
    warm_up(zeros_sbuf, grouped.warmup, 1)
    finish_chunk(operands, geometry, grouped, rulers, chunk, ledger)
    following = None
    for index in range(len(units)):
        unit = units[index]
        while len(xs) < min(len(units), index + grouped.buffers):
            xs.append(load_x(operands, geometry, grouped, units[len(xs)], 0))
        if index + 1 < len(units) and units[index + 1].chunk != unit.chunk:
            # the array turns the next chunk's filters before this one's last sums, engines place them meanwhile
            following = start_chunk(operands, geometry, grouped, units[index + 1].chunk)
            finish_chunk(operands, geometry, grouped, rulers, following, ledger)
        last = index + 1 == len(units)
        work_unit(operands, geometry, extras, grouped, chunk, unit, xs[index], zeros_sbuf, ledger, last)
        xs[index] = None
        if following != None:
            chunk, following = following, None


def units_of(grouped, mine):
    """A core's units; a chunk that both cores share, of which each has fewer units, is the last for both, so that
    little is left to store when the array is done."""
    units = []
    for index in range(mine[1]):
        units.append(grouped.units[mine[0] + (index if mine[0] == 0 else mine[1] - 1 - index)])
    return units


def start_chunk(operands, geometry, grouped, index):
    """A Chunk whose filters are on their way."""
    loaded = load_filters(operands, geometry, grouped, index)
    tiles = tiles_of(geometry, grouped, index)
    bias_sbuf = load_bias_of_blocks(operands.bias, grouped, tiles)
    return Chunk(index=index, tiles=tiles, loaded=loaded, filters_sbuf=None, bias_sbuf=bias_sbuf)


def finish_chunk(operands, geometry, grouped, rulers, chunk, ledger):
    """Make the stationaries of a chunk."""
    chunk.filters_sbuf = build_filters(operands, chunk.loaded, geometry, grouped, rulers, chunk.index, ledger)
    chunk.loaded = []


def load_bias_of_blocks(bias_hbm, grouped, tiles):
    """[(uh, k), tile] fp32 in SBUF, or None."""
    if bias_hbm == None:
        return None
    Kt, Uh = grouped.Kt, grouped.Uh
    bias_sbuf = nl.ndarray((Uh * Kt, len(tiles)), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=bias_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for index in range(len(tiles)):
        for uh in range(Uh):
            copy(
                bias_sbuf[uh * Kt : uh * Kt + tiles[index].kn, index : index + 1],
                bias_hbm.ap(pattern=[[1, tiles[index].kn], [1, 1]], offset=tiles[index].k0),
            )
    return bias_sbuf


def first_rows(geometry, grouped, unit):
    """Rows of x that the first bank of a unit needs: they are loaded first."""
    blocks = banks_of(geometry, grouped, unit)[0][1]
    return min(unit.hn, (blocks - 1) * grouped.Uh * geometry.rows.stride + grouped.height)


def load_x(operands, geometry, grouped, unit, first):
    """[(tile, c), images, rows, columns] of x in SBUF, the `first` rows before the others; None where there is none."""
    if unit.hn == 0 or unit.wn == 0:
        return None
    tiles = tiles_of(geometry, grouped, unit.chunk)
    x_sbuf = nl.ndarray((nl.tile_size.pmax, unit.nn, unit.hn, unit.wn), dtype=operands.x_dtype, buffer=nl.sbuf)
    total = tiles[len(tiles) - 1].c0 + tiles[len(tiles) - 1].cn - tiles[0].c0
    dense = tiles[0].cn == grouped.T
    parts = [(0, first), (first, unit.hn)] if 0 < first and first < unit.hn else [(0, unit.hn)]
    for part in range(len(parts)):
        low, high = parts[part]
        for index in range(1 if dense else len(tiles)):
            tile = tiles[index]
            count = total if dense else tile.cn
            offset = unit.n0 * geometry.x_n + tile.c0 * geometry.x_c
            offset += (unit.h0 + low) * geometry.x_h + unit.w0 * geometry.x_w
            pattern = [
                [geometry.x_c, count],
                [geometry.x_n, unit.nn],
                [geometry.x_h, high - low],
                [geometry.x_w, unit.wn],
            ]
            copy(
                x_sbuf[tile.index * grouped.T : tile.index * grouped.T + count, 0 : unit.nn, low:high, 0 : unit.wn],
                operands.x.ap(pattern=pattern, offset=offset),
            )
    return of_array(x_sbuf, operands)


@dataclass
class Place(nl.NKIObject):
    """Where a tile's results are: buffer, first partition of its read-outs, and which output row's is also its own."""

    buffer: int
    base: int
    own: int


def place_of(grouped, tile):
    """The Place of a tile.

    A read-out writes (uh, k) of one uw to as many neighbouring partitions. One uh lies where the tile's results belong,
    the others are copied there; tiles whose read-outs overlap take different buffers.
    """
    each = grouped.Uh * grouped.Kt
    column = tile.index * grouped.Kt
    page, first = column // nl.tile_size.pmax, column % nl.tile_size.pmax
    own = first % each // grouped.Kt
    return Place(buffer=page * grouped.Uh + own, base=first // each * each, own=own)


def work_unit(operands, geometry, extras, grouped, chunk, unit, x_sbuf, zeros_sbuf, ledger, last):
    """Results of a unit: banks of all tiles one after the other, then the stores.

    last: whether nothing hides the stores, so that each bank's results leave at once.
    """
    Q, Uh = geometry.columns.out, grouped.Uh
    ys = []
    for _ in range(y_buffers(grouped)):
        shape = (nl.tile_size.pmax, unit.nn, unit.mn * Uh, Q)
        ys.append(nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf))
    residuals = []
    for index in range(len(chunk.tiles)):
        residuals.append(load_residual(operands, geometry, grouped, chunk.tiles[index], unit))
    banks = banks_of(geometry, grouped, unit)
    for which in range(len(banks)):
        bank = banks[which]
        sums = accumulate(geometry, grouped, chunk, unit, bank, x_sbuf, zeros_sbuf)
        for index in range(len(chunk.tiles)):
            read_out(extras.epilogue, geometry, grouped, chunk, index, bank, sums[index], ys, residuals[index], ledger)
        if which + 1 == len(banks) or banks[which + 1][0] != bank[0]:
            # all columns of these rows are there
            for index in range(len(chunk.tiles)):
                tile = chunk.tiles[index]
                move_rows(geometry, grouped, tile, unit, bank, ys, ledger)
                if last:
                    store(operands.y, geometry, grouped, tile, unit, bank[0], bank[1], ys)
    if not last:
        for index in range(len(chunk.tiles)):
            store(operands.y, geometry, grouped, chunk.tiles[index], unit, 0, unit.mn, ys)


def accumulate(geometry, grouped, chunk, unit, bank, x_sbuf, zeros_sbuf):
    """Sums [(uw, uh, k), images, blocks of rows, blocks of columns] of a bank in PSUM, for each tile.

    Elements of the window that all blocks see come first, so that the others add to what is there; where none is, a
    product of zeros does. The tiles take turns: each has its own rows of the array.
    """
    m, mn, j, jn = bank
    columns = grouped.Uw * grouped.Uh * grouped.Kt
    sums = []
    for _ in range(len(chunk.tiles)):
        sums.append(nl.ndarray((columns, unit.nn, mn, jn), dtype=nl.float32, buffer=nl.psum))
    every = products(geometry, grouped, unit, bank)
    started = len(every) == 0 or every[0].rows[2] < mn or every[0].columns[2] < jn
    if started:
        nothing = [[zeros_sbuf.shape[1], 1], [0, unit.nn], [0, mn], [0, jn]]
        for index in range(len(sums)):
            nisa.nc_matmul(
                dst=sums[index],
                stationary=zeros_sbuf[0:1, 0:columns],
                moving=zeros_sbuf.ap(pattern=nothing, offset=0),
                accumulate=False,
            )
    for which in range(len(every)):
        one = every[which]
        rows, cols = one.rows, one.columns
        h, w = rows[3] - unit.h0, cols[3] - unit.w0
        p, q = rows[0] - unit.m0 - m, cols[0] - j
        for index in range(len(sums)):
            tile = chunk.tiles[index]
            first = tile.index * grouped.T
            nisa.nc_matmul(
                dst=sums[index][0:columns, 0 : unit.nn, p : p + rows[2], q : q + cols[2]],
                stationary=chunk.filters_sbuf[first : first + tile.cn, one.a, one.b, 0:columns],
                moving=x_sbuf[
                    first : first + tile.cn,
                    0 : unit.nn,
                    h : h + (rows[2] - 1) * rows[4] + 1 : rows[4],
                    w : w + (cols[2] - 1) * cols[4] + 1 : cols[4],
                ],
                accumulate=started or which > 0,
                tile_position=(first, 0),
                tile_size=(grouped.T, nl.tile_size.pmax),
            )
    return sums


@dataclass
class Product(nl.NKIObject):
    """One matmul of each tile: element (a, b) of the window, and where it meets x, as `block_met` says."""

    a: int
    b: int
    rows: tuple
    columns: tuple


def products(geometry, grouped, unit, bank):
    """Matmuls of a bank; those that meet all of its blocks first."""
    m, mn, j, jn = bank
    whole, partial = [], []
    for index in range(len(grouped.window)):
        a, b = grouped.window[index]
        rows = block_met(geometry.rows, grouped.Uh, a, unit.m0 + m, mn)
        columns = block_met(geometry.columns, grouped.Uw, b, j, jn)
        if rows[2] > 0 and columns[2] > 0:
            found = whole if rows[2] == mn and columns[2] == jn else partial
            found.append(Product(a=a, b=b, rows=rows, columns=columns))
    return whole + partial


def read_out(epilogue, geometry, grouped, chunk, index, bank, sums_psum, ys, residual_sbuf, ledger):
    """Sums of a tile to every Uh-th row of its buffer, columns in their order."""
    m, mn, j, jn = bank
    Uh, Uw, images = grouped.Uh, grouped.Uw, sums_psum.shape[1]
    place = place_of(grouped, chunk.tiles[index])
    each = Uh * grouped.Kt
    bias_sbuf = None
    if chunk.bias_sbuf != None:
        bias_sbuf = chunk.bias_sbuf[0:each, index : index + 1]
    for uw in range(Uw):
        count = min(jn, div_ceil(geometry.columns.out - uw, Uw) - j)
        if count > 0:
            row, q = m * Uh + place.own, j * Uw + uw
            residual = None
            if residual_sbuf != None:
                residual = residual_sbuf[0:each, 0:images, m : m + mn, q : q + (count - 1) * Uw + 1 : Uw]
            finish(
                ys[place.buffer][
                    place.base : place.base + each,
                    0:images,
                    row : row + (mn - 1) * Uh + 1 : Uh,
                    q : q + (count - 1) * Uw + 1 : Uw,
                ],
                sums_psum[uw * each : (uw + 1) * each, 0:images, 0:mn, 0:count],
                bias_sbuf,
                residual,
                epilogue,
                reader(ledger, epilogue, images * mn * count),
            )


def move_rows(geometry, grouped, tile, unit, bank, ys, ledger):
    """Rows uh of a tile's blocks to the partitions and places where they belong."""
    place = place_of(grouped, tile)
    y_sbuf, Uh, Q = ys[place.buffer], grouped.Uh, geometry.columns.out
    first, to = bank[0] * Uh, place.base + place.own * grouped.Kt
    for uh in range(Uh):
        count = min(bank[1], div_ceil(geometry.rows.out - uh, Uh) - unit.m0 - bank[0])
        if uh != place.own and count > 0:
            source = place.base + uh * grouped.Kt
            src = y_sbuf[
                source : source + tile.kn,
                0 : unit.nn,
                first + place.own : first + place.own + (count - 1) * Uh + 1 : Uh,
                0:Q,
            ]
            dst = y_sbuf[
                to : to + tile.kn,
                0 : unit.nn,
                first + uh : first + uh + (count - 1) * Uh + 1 : Uh,
                0:Q,
            ]
            # Vector's fastest mode
            step_ns = VECTOR_NS_16BIT / 2 if is_16bit(y_sbuf.dtype) else VECTOR_NS_16BIT
            ledger.vector_ns = ledger.vector_ns + VECTOR_FIXED_NS + unit.nn * count * Q * step_ns
            nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)


def y_rows(geometry, grouped, tile, unit, m, mn):
    """(first row of y, how many) of blocks m .. m+mn-1 of a unit."""
    p0 = (unit.m0 + m) * grouped.Uh
    return p0, min(geometry.rows.out - p0, mn * grouped.Uh)


def store(y_hbm, geometry, grouped, tile, unit, m, mn, ys):
    """Blocks m .. m+mn-1 of rows of a tile."""
    place = place_of(grouped, tile)
    first, Q = place.base + place.own * grouped.Kt, geometry.columns.out
    p0, pn = y_rows(geometry, grouped, tile, unit, m, mn)
    pattern = [[geometry.y_k, tile.kn], [geometry.y_n, unit.nn], [geometry.y_p, pn], [geometry.y_q, Q]]
    offset = unit.n0 * geometry.y_n + tile.k0 * geometry.y_k + p0 * geometry.y_p
    row = m * grouped.Uh
    copy(
        y_hbm.ap(pattern=pattern, offset=offset),
        ys[place.buffer][first : first + tile.kn, 0 : unit.nn, row : row + pn, 0:Q],
    )


def load_residual(operands, geometry, grouped, tile, unit):
    """The residual of a tile times beta, [(uh, k), images, blocks of rows, columns], or None."""
    if operands.residual == None:
        return None
    Kt, Uh, Q = grouped.Kt, grouped.Uh, geometry.columns.out
    shape = (Uh * Kt, unit.nn, unit.mn, Q)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for uh in range(Uh):
        p = unit.m0 * Uh + uh
        count = min(unit.mn, div_ceil(geometry.rows.out - uh, Uh) - unit.m0)
        if count > 0:
            pattern = [
                [geometry.r_k, tile.kn],
                [geometry.r_n, unit.nn],
                [Uh * geometry.r_p, count],
                [geometry.r_q, Q],
            ]
            offset = unit.n0 * geometry.r_n + tile.k0 * geometry.r_k + p * geometry.r_p
            copy(
                residual_sbuf[uh * Kt : uh * Kt + tile.kn, 0 : unit.nn, 0:count, 0:Q],
                operands.residual.ap(pattern=pattern, offset=offset),
            )
    return scale_residual(residual_sbuf, operands.beta)
