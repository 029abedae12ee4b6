"""Depthwise conv1d with channels on partitions and the taps shared by the engines.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

A tile holds 128 rows of x with their halo, each element of x loaded once. Tensor multiplies a tap by a diagonal matrix
of 128 channels' filters, a shifted view of the tile as the moving operand, and accumulates its taps in PSUM; Vector
adds a tap while it evacuates PSUM (y = x_s * w_s + psum), so that the evacuation takes no separate pass; Scalar can
head a second chain with a product, and GpSimd add the chains. `schedules.recipes` has the recipes, `schedules.rows` the
tiles of rows. `vector` is the same loop without taps on Tensor.

Engine plan: Sync issues loads, up to PREFETCH tiles ahead; Vector fills columns outside rows; GpSimd makes diagonals
one tile ahead, adds chains, issues stores; pieces of a tile's columns go through Tensor, Vector, Scalar and GpSimd in
phases. The phases of a piece are issued one step of the pipeline apart, newest piece first, so that neighbours in an
engine's queue do not wait for each other. The first tile of a part is loaded and summed in narrow pieces at first, so
that sums start early. Bound by HBM while the recipe's engines are faster, up to about 4 taps in bf16 and in fp32;
beyond by Tensor, Vector, Scalar and GpSimd together.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches every channel of its tile at the columns that read it.
`vector` never mixes channels; it is bound by HBM in fp32 with up to 4 taps, else by Vector, about 1.04 ns a tap and
column of 128 channels, and is as fast for short problems as for long ones, as it does not use the Tensor Engine.
"""

from dataclasses import dataclass, field
from functools import partial

from ..._nki import nisa, nl
from ...schedules.channels import ChannelBlock, row_runs
from ...schedules.depthwise import Options, RowGeometry, place_of_tap
from ...schedules.mixed import GATED_AHEAD, MixedSchedule, cut_pieces, filter_block, mixed_cuts
from ...schedules.recipes import needs_finish, vector_steps
from ...schedules.rows import channels_of, held_by_all, positions_of, regions_of, run_length, tile_list
from ...schedules.tiles import BANK_COLUMNS, div_ceil
from .._engines import scaled
from .._epilogue import evacuate
from .._masks import constant, make_diagonals
from .._prologue import finish_gates
from .._warm import WARM_BLOCKS, accumulator, warm_up, warm_zeros
from ..conv.sums import multiply
from .geometry import parts_of_core
from .tensors import RowTensors


def convolve_rows(tensors, geometry, options, plan):
    """Write y, for `mixed` and `vector`: a new piece begins while earlier ones continue."""
    for part in parts_of_core():
        tiles = tile_list(geometry, plan.rows, part, 0)
        pieces = cut_pieces(plan, options.epilogue, tiles)
        held, chains = [HeldTile() for _ in tiles], [[None, None] for _ in pieces]
        steps = max((end - begin for piece in pieces for begin, end in piece.phases), default=0)
        run = MixedRun(tensors, geometry, options, plan, tiles, held, pieces, chains)
        for newest in range(len(pieces) + plan.phases - 1):
            if newest < len(pieces):
                prepare(run, pieces[newest].tile)
                for piece in pieces[newest : newest + GATED_AHEAD + 1]:
                    finish_gates(held[piece.tile].gates, None)
            for step in range(steps):
                for phase in range(min(plan.phases, newest + 1)):
                    place = newest - phase
                    phases = pieces[place].phases if place < len(pieces) else ()
                    if phase < len(phases) and phases[phase][0] + step < phases[phase][1]:
                        run_step(run, place, phases[phase][0] + step)


@dataclass
class HeldTile:
    """A tile in SBUF, each tensor None until it is loaded, or without one: x, and its pending products or prologues;
    the residual [rows, qn]; filters [rows, S] and bias [rows, 1] in fp32; stationaries [rows, taps, rows]."""

    x: object = None
    gates: list = field(default_factory=list)
    residual: object = None
    w: object = None
    bias: object = None
    diagonals: object = None


@dataclass
class MixedRun:
    """The state of one part of the work: the HeldTile of each tile; the current chains [A, B] of each piece, each a
    tile or None; filters and biases [partitions, ...] of each block of channel tiles; WarmBanks; the number of tiles
    with x loaded, and with filters and stationaries."""

    tensors: RowTensors
    geometry: RowGeometry
    options: Options
    plan: MixedSchedule
    tiles: list
    held: list
    pieces: list
    chains: list
    filters: list = field(default_factory=list)
    warm: list = field(default_factory=list)
    loaded: int = 0
    prepared: int = 0


def prepare(run, i):
    """Load x of tile i and of the prefetched tiles; make diagonals of it and of the next."""
    while run.loaded < min(len(run.tiles), i + run.plan.prefetch + 1):
        load_next_tile(run, run.loaded)
        run.loaded += 1
    while run.prepared < min(run.loaded, i + 2):
        prepare_tile(run, run.prepared)
        run.prepared += 1


def load_next_tile(run, i):
    """Load x and residual of tile i; before them filters, in fp32, and biases of blocks up to its channel tile."""
    plan, tile, held, block = run.plan, run.tiles[i], run.held[i], filter_block(run.geometry)
    for t0 in range(run.tiles[0].t + len(run.filters) * block, tile.t + 1, block):
        count, loads = min(block, run.tiles[-1].t + 1 - t0), (run.tensors.w, run.tensors.bias)
        run.filters.append([load_channels(run, one, nl.float32, t0, count) for one in loads])
    held.x, held.gates = load_tile_x(run, tile, mixed_cuts(tile.qn, plan, i == 0))
    held.residual = load_mixed_residual(run, tile)
    if i == 0 and plan.settings.warmup > 0:
        run.warm = warm_up(warm_zeros(), plan.settings.warmup, WARM_BLOCKS)


def prepare_tile(run, i):
    """Filters, bias and stationaries of tile i; it shares the previous tile's stationaries if it has its channels."""
    tile, before, held, S = run.tiles[i], run.tiles[max(0, i - 1)], run.held[i], run.geometry.S
    block, place = divmod(tile.t - run.tiles[0].t, filter_block(run.geometry))
    w_sbuf, bias_sbuf = run.filters[block]
    held.w = w_sbuf[0 : tile.rows, place * S : (place + 1) * S]
    held.bias = None if bias_sbuf is None else bias_sbuf[0 : tile.rows, place : place + 1]
    taps = run.plan.taps
    if i > 0 and before.t == tile.t and before.rows >= tile.rows:
        held.diagonals = run.held[i - 1].diagonals
    elif taps > 0:
        first = S - taps if run.geometry.flipped else 0
        held.diagonals = make_diagonals(held.w[0 : tile.rows, first : first + taps], run.tensors.w.dtype)


def result(run, piece, step):
    """[rows, qn] in SBUF for the result of a step: fp32, or of the last step y."""
    dtype = nl.float32 if step < piece.last else run.tensors.y.dtype
    return nl.ndarray((run.tiles[piece.tile].rows, piece.qn), dtype=dtype, buffer=nl.sbuf)


def run_step(run, place, step):
    """Issue one step of a piece, which extends its chains [A, B], each a tile or None; the last step stores y."""
    piece, chains = run.pieces[place], run.chains[place]
    on_tensor, in_a, head, in_b = piece.recipe
    # the tap before chain A's first on Vector; the tap of the product that heads chain B
    starts = max(1, on_tensor) - 1, max(1, on_tensor) + in_a
    if step == 0:
        chains[0] = sum_on_tensor(run, piece) if on_tensor > 0 else product(run, piece, 0)
        chains[1] = product(run, piece, starts[1]) if head else None
    elif step <= vector_steps(piece.recipe):
        # first the chain that is ready first: that of Scalar's first product, before the sums of Tensor
        for one in (1, 0) if on_tensor > 0 else (0, 1):
            if step <= (in_a, in_b)[one]:
                chains[one] = extend(run, piece, starts[one] + step, chains[one], step)
    elif head and step == vector_steps(piece.recipe) + 1:
        total = result(run, piece, step)
        # GpSimd cannot read PSUM, and takes longer: after the last sums no other work waits for Vector
        on_vector = (on_tensor > 0 and in_a == 0) or place == len(run.pieces) - 1
        engine = nisa.engine.vector if on_vector else nisa.engine.gpsimd
        nisa.tensor_tensor(dst=total, data1=chains[0], data2=chains[1], op=nl.add, engine=engine)
        chains[0] = total
    else:
        chains[0] = complete(run, piece, step, chains[0])
    if step == piece.last:
        tile = run.tiles[piece.tile]
        firsts = [q0 + piece.q0 for _, q0 in tile.groups]
        move_groups(run, chains[0], run.tensors.y, tile, firsts, (0, piece.qn), tile.end_q, is_store=True)


def sum_on_tensor(run, piece):
    """Tensor's taps of a piece: sums in PSUM, one bank of columns after the other."""
    tile, held, taps = run.tiles[piece.tile], run.held[piece.tile], piece.recipe[0]
    acc_psum, started = accumulator(run.warm, (tile.rows, piece.qn))
    for begin in range(0, piece.qn, BANK_COLUMNS):
        count = min(BANK_COLUMNS, piece.qn - begin)
        for s in range(taps):
            place = place_of_tap(run.geometry, s, run.plan.taps)
            diagonal = held.diagonals[0 : tile.rows, place, 0 : tile.rows]
            x = tap_view(run, piece.tile, s, piece.q0 + begin, count)
            multiply(acc_psum[0 : tile.rows, begin : begin + count], diagonal, x, started or s > 0)
    return acc_psum


def factors(run, piece, s):
    """x_s of a piece, and w_s [rows, 1]."""
    x, place = tap_view(run, piece.tile, s, piece.q0, piece.qn), place_of_tap(run.geometry, s, run.geometry.S)
    return x, run.held[piece.tile].w[0 : x.shape[0], place : place + 1]


def product(run, piece, s):
    """x_s * w_s on Scalar, plus the bias if no epilogue adds it: once, in chain B if there is one."""
    recipe, epilogue, added = piece.recipe, run.options.epilogue, {}
    dst, (x, w) = result(run, piece, 0), factors(run, piece, s)
    if epilogue.bias and not needs_finish(recipe, epilogue) and (recipe[2] == 0 or s > 0):
        added = {"op1": nl.add, "operand1": run.held[piece.tile].bias}
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=w, engine=nisa.engine.scalar, **added)
    return dst


def extend(run, piece, s, chain, step):
    """chain + x_s * w_s on Vector."""
    dst, (x, w) = result(run, piece, step), factors(run, piece, s)
    scaled(dst, x, w, nl.add, chain)
    return dst


def complete(run, piece, step, sums):
    """y from the sums, on Scalar, or on Vector for sums with a residual and for its share of plain copies."""
    held, epilogue = run.held[piece.tile], run.options.epilogue
    y_sbuf, residual = result(run, piece, step), None
    if held.residual is not None:
        residual = held.residual[0 : y_sbuf.shape[0], piece.q0 : piece.q0 + piece.qn]
    on_vector = epilogue.residual != "" or piece.vector_reads
    evacuate(y_sbuf, sums, held.bias, residual, epilogue, nisa.engine.vector if on_vector else nisa.engine.scalar)
    return y_sbuf


def move_groups(run, tile_sbuf, rows, tile, firsts, columns, high=None, is_store=False):
    """DMAs of columns (first, end) of a tile's groups, as far as rows in HBM have them below element `high`. Column 0
    of group g is element firsts[g]."""
    (_, c_step, step), T = rows.steps, run.plan.rows.T
    for one in regions_of(tile, rows.steps, firsts, columns, (rows.low, rows.high if high is None else high)):
        lines = slice(one.group * tile.P, (one.group + one.groups) * tile.P)
        pattern = [[one.apart, one.groups], [T * c_step, tile.P], [step, one.count]]
        here = tile_sbuf[lines, one.first : one.first + one.count]
        rows.move(here, pattern, one.n, tile.t, one.element, is_store)


def load_tile_x(run, tile, cuts):
    """(x [rows, run], its pending products or prologues in order of columns) of a tile; a dilated x is loaded without
    its gaps, and copied to its places among zeros.

    cuts: end columns of the tile's DMAs, the last is the tile's width.
    """
    geometry, tensors, gates, begin = run.geometry, run.tensors, [], 0
    positions, step, numbers = positions_of(geometry, tile), geometry.lhs_dilation, load_numbers(run, tile)
    firsts, shift = [-(-position // step) for position in positions], -positions[-1] % step
    ends = [max(0, div_ceil(run_length(geometry, columns) - shift, step)) for columns in cuts]
    tiles = [nl.ndarray((tile.rows, max(1, ends[-1])), dtype=one.dtype, buffer=nl.sbuf) for one in tensors.sources]
    for source, x_sbuf in zip(tensors.sources, tiles):
        clear_outside(run, x_sbuf, firsts, source)
    for end in ends:
        for source, x_sbuf in zip(tensors.sources, tiles):
            if tensors.state is not None and source is tensors.x:
                move_groups(run, x_sbuf, tensors.state, tile, firsts, (begin, end))
            move_groups(run, x_sbuf, source, tile, firsts, (begin, end))
        gates += tensors.gates([x_sbuf[0 : tile.rows, begin:end] for x_sbuf in tiles])
        gates += arrivals(run, tiles[0], firsts[0], begin, end, numbers)
        begin = end
    if step == 1:
        return tiles[0], gates
    finish_gates(gates, None)
    spread_sbuf = constant((tile.rows, run_length(geometry, tile.qn)), tensors.x.dtype, 0.0, nisa.engine.vector)
    if begin > 0:
        into = spread_sbuf[0 : tile.rows, shift : shift + (begin - 1) * step + 1 : step]
        nisa.tensor_copy(dst=into, src=tiles[0], engine=nisa.engine.gpsimd)
    return spread_sbuf, []


def load_numbers(run, tile):
    """The scale and shift of the prologue for a tile's channels, each [rows, 1] or None."""
    n = tile.groups[0][0]
    found = [load_channels(run, one, nl.float32, tile.t, 1, n) for one in run.tensors.numbers()]
    return [None if one is None else one[0 : tile.rows, 0:1] for one in found]


def arrivals(run, x_sbuf, first, begin, end, numbers):
    """The prologue of the elements of x in columns begin .. end-1, column 0 being element `first`; [] without one."""
    begin, end = max(begin, -first), min(end, run.geometry.W - first)
    if run.tensors.prologue is None or begin >= end:
        return []
    own = x_sbuf[0 : x_sbuf.shape[0], begin:end]
    return [partial(run.tensors.prologue.issue, own, own, *numbers)]


def clear_outside(run, dst_sbuf, firsts, source):
    """Zeros, or a factor's value `outside`, in the columns without an element in some group."""
    rows, size = dst_sbuf.shape
    has_state = run.tensors.state is not None and source is run.tensors.x
    left, right = held_by_all(run.geometry, has_state, firsts, size)
    for first, end in ((0, left), (right, size)):
        if first < end:
            nisa.memset(dst=dst_sbuf[0:rows, first:end], value=source.outside, engine=nisa.engine.vector)


def tap_view(run, i, s, q0, qn):
    """The elements of x that tap s multiplies for columns q0 .. q0+qn-1 of tile i: [rows, qn], strided."""
    geometry, tile, x_sbuf = run.geometry, run.tiles[i], run.held[i].x
    begin = q0 * geometry.stride + s * geometry.dilation
    return x_sbuf[0 : tile.rows, begin : begin + (qn - 1) * geometry.stride + 1 : geometry.stride]


def load_mixed_residual(run, tile):
    """The residual of a tile, or y's factor, [rows, qn] in its dtype, with zeros outside y; None without one."""
    residual, firsts = run.tensors.residual, [q0 for _, q0 in tile.groups]
    if residual is None:
        return None
    residual_sbuf = nl.ndarray((tile.rows, tile.qn), dtype=residual.dtype, buffer=nl.sbuf)
    least = tile.end_q - max(firsts)
    if least < tile.qn:
        nisa.memset(dst=residual_sbuf[0 : tile.rows, least : tile.qn], value=0.0, engine=nisa.engine.vector)
    move_groups(run, residual_sbuf, residual, tile, firsts, (0, tile.qn), tile.end_q)
    return residual_sbuf


def load_channels(run, rows, dtype, t0, tn, n=0):
    """Load the rows of the channels of tiles t0 .. t0+tn-1 of image n: [partitions, tn * elements], the same in every
    group; None for None."""
    if rows is None:
        return None
    groups, T, (_, c_step, step) = run.plan.rows.G, run.plan.rows.T, rows.steps
    P, inner = channels_of(run.geometry.C, T, t0), rows.size
    dst_sbuf = nl.ndarray((groups * P, tn * inner), dtype=dtype, buffer=nl.sbuf)
    for p0, pn, count in row_runs(ChannelBlock(0, run.geometry.C, T), t0, tn):
        pattern = [[T * c_step, pn], [c_step, count], [step, inner]]
        if groups > 1:  # all partitions have as many channels
            pattern = [[0, groups], *pattern]
        dst = dst_sbuf[p0 : p0 + groups * pn, 0 : count * inner]
        rows.load(dst, pattern, n, p0 * T + t0, rows.low)
    return dst_sbuf
