"""Depthwise conv1d with channels on partitions and the taps shared by the engines.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

A tile holds 128 rows of x with their halo, each element of x loaded once. Tensor multiplies a tap by a diagonal matrix
of 128 channels' filters, a shifted view of the tile as the moving operand, and accumulates its taps in PSUM; Vector
adds a tap while it evacuates PSUM (y = x_s * w_s + psum), so that the evacuation takes no separate pass; Scalar can
head a second chain with a product, and GpSimd add the chains. `schedules.recipes` has the recipes, `schedules.rows` the
tiles of rows. `vector` is the same loop without taps on Tensor.

Engine plan: Sync issues loads, PREFETCH tiles ahead; GpSimd makes diagonals one tile ahead, adds chains, issues stores;
pieces of a tile's columns go through Tensor, Vector, Scalar and GpSimd in phases. The phases of a piece are issued one
step of the pipeline apart, newest piece first, so that neighbours in an engine's queue do not wait for each other. The
first tile of a part is loaded, and the first and last are summed, in narrow pieces, so that sums start and end early.
Bound by HBM while the recipe's engines are faster, up to about 4 taps in bf16 and in fp32; beyond by Tensor, Vector,
Scalar and GpSimd together.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches every channel of its tile at the columns that read it.
`vector` never mixes channels; it is bound by HBM in fp32 with up to 4 taps, else by Vector, about 1.04 ns a tap and
column of 128 channels, and is as fast for short problems as for long ones, as it does not use the Tensor Engine.
"""

from dataclasses import dataclass, field

from ...._nki import nl
from ....schedules.depthwise import Options, RowGeometry
from ....schedules.mixed import (
    GATED_AHEAD,
    MixedSchedule,
    cut_pieces,
    filter_block,
    mixed_cuts,
)
from ....schedules.rows import tile_list
from ..._masks import make_diagonals
from ..._prologue import finish_gates
from ..._warm import WARM_BLOCKS, warm_up, warm_zeros
from ..geometry import parts_of_core
from ..tensors import RowTensors
from .chains import run_step
from .dma import load_channels, load_mixed_residual, load_tile_x


def convolve_rows(tensors, geometry, options, plan):
    """Write y, for `mixed` and `vector`: a new piece begins while earlier ones continue."""
    for part in parts_of_core():
        tiles = tile_list(geometry, plan.rows, part, 0)
        pieces = cut_pieces(plan, options.epilogue, tiles)
        held, chains = [HeldTile() for _ in tiles], [[None, None] for _ in pieces]
        run = MixedRun(tensors, geometry, options, plan, tiles, held, pieces, chains)
        for newest in range(len(pieces) + plan.phases - 1):
            if newest < len(pieces):
                prepare(run, pieces[newest].tile)
                for piece in pieces[newest : newest + GATED_AHEAD + 1]:
                    finish_gates(held[piece.tile].gates, None)
            for step in range(plan.phase_steps):
                for phase in range(min(plan.phases, newest + 1)):
                    place = newest - phase
                    phases = pieces[place].phases if place < len(pieces) else ()
                    if phase < len(phases) and phases[phase][0] + step < phases[phase][1]:
                        run_step(run, place, phases[phase][0] + step)


@dataclass
class HeldTile:
    """The tensors of a tile in SBUF, each None until it is loaded, or without one."""

    #: x; the residual [rows, qn]
    x: object = None
    residual: object = None
    #: filters [rows, S] and bias [rows, 1] in fp32
    w: object = None
    bias: object = None
    #: pending products or prologues of x
    gates: list = field(default_factory=list)
    #: [rows, taps on Tensor, rows] stationaries
    diagonals: object = None
    #: Store of y by its first column
    stores: dict = field(default_factory=dict)


@dataclass
class MixedRun:
    """The state of one part of the work."""

    tensors: RowTensors
    geometry: RowGeometry
    options: Options
    plan: MixedSchedule
    tiles: list
    #: HeldTile of each
    held: list
    pieces: list
    #: current chains [A, B] of each piece, each a tile or None
    chains: list
    #: of each block of channel tiles: filters and biases [partitions, 1, ...]
    filters: list = field(default_factory=list)
    #: WarmBanks
    warm: list = field(default_factory=list)
    #: the part's states, if they are staged, once loaded
    states: object = None
    #: number of tiles with x loaded; with filters and stationaries
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
    """Load x and residual of tile i; filters before the first x that needs them."""
    plan, tile = run.plan, run.tiles[i]
    load_mixed_filters(run, tile.t)
    held = run.held[i]
    held.x, held.gates = load_tile_x(run, tile, mixed_cuts(tile.qn, plan, i == 0))
    held.residual = load_mixed_residual(run, tile)
    if i == 0 and plan.settings.warmup > 0:
        run.warm = warm_up(warm_zeros(), plan.settings.warmup, WARM_BLOCKS)


def load_mixed_filters(run, t):
    """Load filters, in fp32, and biases of the blocks of channel tiles up to that of t."""
    block, first_t, end_t = filter_block(run.geometry), run.tiles[0].t, run.tiles[-1].t + 1
    for t0 in range(first_t + len(run.filters) * block, t + 1, block):
        loads = (run.tensors.w, run.tensors.bias)
        count = min(block, end_t - t0)
        run.filters.append([None if one is None else load_channels(run, one, nl.float32, t0, count) for one in loads])


def prepare_tile(run, i):
    """Filters, bias and stationaries of tile i; it shares the previous tile's stationaries if it has its channels."""
    tile, before, held, S = run.tiles[i], run.tiles[max(0, i - 1)], run.held[i], run.geometry.S
    block, place = divmod(tile.t - run.tiles[0].t, filter_block(run.geometry))
    w_sbuf, bias_sbuf = run.filters[block]
    held.w = w_sbuf[0 : tile.rows, 0, place * S : (place + 1) * S]
    if bias_sbuf is not None:
        held.bias = bias_sbuf[0 : tile.rows, 0, place : place + 1]
    taps = run.plan.taps
    if i > 0 and before.t == tile.t and before.rows >= tile.rows:
        held.diagonals = run.held[i - 1].diagonals
    elif taps > 0:
        first = S - taps if run.geometry.flipped else 0
        held.diagonals = make_diagonals(held.w[0 : tile.rows, first : first + taps], run.tensors.w.dtype)
