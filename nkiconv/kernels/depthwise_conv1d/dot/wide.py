"""Many lags, for `dot`: products of slots put in step by a way through HBM, then summed over slots.

A block of lags l0 .. l0+L-1 of one chunk is a unit. One matmul takes 32 slots of 4 channels of w as the stationary and
the 32 + L - 1 slots of these channels of x that meet them, and accumulates over all blocks of 32 slots:

    products  [(4 c, 32 t), (31 + L t', 4 c')]         PSUM, c = c' and 0 <= t' - t < L are wanted
    same c    [(4 c, 32 t), (g, 31 + L t')]            SBUF, four copies of 32 partitions each
    same lag  [(4 c, 32 t), (g, L)]                    to HBM and back, t elements further on for slot t
    sum over t  [4 c, (g, L)]                          a matmul with ones

for g groups of 4 channels. In HBM a partition's row is R long; it is read back R + 1 apart within a channel, so that
column l of slot t is t' = t + l, in runs of L elements.

Engine plan: DMA loads rows, 128 channels a unit, stores products and loads them back; Tensor transposes unit i + 1
between the products of unit i and the sums of pieces that are back; Vector and Scalar share the read-outs by a ledger;
GpSimd adds later chunks. Bound by Tensor, which for bf16 and full tiles takes a column of transposes, 1.3 of products
and half a one of sums for each lag and channel, 1.2 ns; the read-outs of Vector and Scalar take nearly as long. With
few channels the transposes are as many but narrow, and leave the array at half rate.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.dot import window_of
from ....schedules.tiles import BANK_COLUMNS, cut_at, div_ceil
from ..._dma import copy
from ..._engines import Ledger, new_ledger, pick
from .rows import load_ahead, move_slots, multiply_slots, next_rows, start_dot
from .sums import leave, load_epilogue

#: Banks of a step's products, which are read out together; steps of a piece, which goes through HBM in one DMA each
#: way.
STEP_BANKS, PIECE_STEPS = 2, 2
#: Pieces on their way before the oldest is summed, and pieces of HBM used in rotation.
LATE, SCRATCH = 8, 12


@dataclass
class DotPiece:
    """Groups g0 .. g0+gn-1 of a unit: [(c, t), phase, gn, lags] fp32 in SBUF, in step."""

    unit: object
    g0: int
    gn: int
    sums_sbuf: object


@dataclass
class WideRun:
    """What does not change from unit to unit."""

    run: object
    ones_sbuf: object
    scratch: list
    ledger: Ledger


def groups_a_bank(plan):
    """Groups whose products share a bank of PSUM."""
    return BANK_COLUMNS // (window_of(plan) * plan.channels)


def piece_groups(plan):
    """Groups of a piece at most."""
    return max(groups_a_bank(plan), PIECE_STEPS * STEP_BANKS * groups_a_bank(plan) // plan.column_phases)


def channel_ones(plan):
    """fp32 [(c, t), c'], 1 where c' = c."""
    ones_sbuf = nl.ndarray((nl.tile_size.pmax, plan.channels), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=0.0)
    for c in range(plan.channels):
        nisa.memset(dst=ones_sbuf[c * plan.taps : (c + 1) * plan.taps, c : c + 1], value=1.0)
    return ones_sbuf


def run_wide(operands, geometry, options, plan, units):
    """Units one after the other: transposes of one between the products of the one before."""
    size = nl.tile_size.pmax * piece_groups(plan) * window_of(plan)
    scratch = [nl.ndarray((size,), dtype=nl.float32, buffer=nl.private_hbm) for _ in range(SCRATCH)]
    ones_sbuf = channel_ones(plan)
    run = start_dot(operands, geometry, options, plan, units)
    wide = WideRun(run=run, ones_sbuf=ones_sbuf, scratch=scratch, ledger=new_ledger())
    pending, sums = [], []
    x_before, w_before = None, None
    for index in range(len(units) + 1):
        moves, x_next, w_next = [], None, None
        if index == 0:
            load_ahead(run)
        if index < len(units):
            x_next, w_next = next_rows(run, index, moves)
        unit, done = units[max(0, index - 1)], 0
        pieces = cut_at(unit.groups if index > 0 else 0, piece_groups(plan))
        for at, piece in enumerate(pieces):
            if at == len(pieces) // 2:
                load_ahead(run)
            done = move_until(wide, moves, done, ((at + 1) * len(moves)) // len(pieces))
            pending.append(make_piece(wide, unit, piece, x_before, w_before, len(pending)))
            if len(pending) > LATE:
                sums = finish_piece(wide, pending[len(pending) - 1 - LATE], sums)
        move_until(wide, moves, done, len(moves))
        x_before, w_before = x_next, w_next
    for piece in pending[-LATE:]:
        sums = finish_piece(wide, piece, sums)


def move_until(wide, moves, done, wanted):
    """Transpose slots of more Moves until so many are done, read out by whom the ledger says; returns their number."""
    for index in range(done, wanted):
        move = moves[index]
        elements = len(move.starts) * move.slots_sbuf.shape[2]
        if move.slots_sbuf.dtype != nl.float32:
            elements = elements // 2
        move_slots(move, pick(wide.ledger, elements, False))
    return max(done, wanted)


def make_piece(wide, unit, piece, x_sbuf, w_sbuf, turns):
    """Products of a piece's groups over all slots, [(c, t), banks, (g, t', c')], read out, through HBM and back."""
    P_MAX, plan, (g0, gn) = nl.tile_size.pmax, wide.run.plan, piece
    window, phases, per_bank = window_of(plan), plan.column_phases, groups_a_bank(plan)
    sums_sbuf = nl.ndarray((P_MAX, phases, gn, plan.lags), dtype=nl.float32, buffer=nl.sbuf)
    for phase in range(phases):
        products_sbuf = nl.ndarray((P_MAX, gn * window), dtype=nl.float32, buffer=nl.sbuf)
        for a, an in cut_at(gn, STEP_BANKS * per_bank):
            products_psum = nl.ndarray((P_MAX, div_ceil(an, per_bank), BANK_COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for index in range(an):
                first = index % per_bank * window * plan.channels
                of_group = products_psum[0:P_MAX, index // per_bank, first : first + window * plan.channels]
                of_group = of_group.reshape_dim(1, (window, plan.channels))
                multiply_slots(of_group, x_sbuf, w_sbuf, plan, unit, g0 + a + index, phase, 0)
            keep_same_channel(wide, products_sbuf, a * window, products_psum, an)
        scratch_hbm = wide.scratch[(turns * phases + phase) % SCRATCH]
        row = gn * window
        copy(scratch_hbm.ap(pattern=[[row, P_MAX], [1, row]], offset=0), products_sbuf)
        in_step = [[plan.taps * row, plan.channels], [row + 1, plan.taps], [window, gn], [1, plan.lags]]
        copy(sums_sbuf[0:P_MAX, phase, 0:gn, 0 : plan.lags], scratch_hbm.ap(pattern=in_step, offset=0))
    return DotPiece(unit=unit, g0=g0, gn=gn, sums_sbuf=sums_sbuf)


def keep_same_channel(wide, products_sbuf, first, products_psum, gn):
    """Of gn groups a channel's products with itself to SBUF: full banks together, then the rest."""
    plan = wide.run.plan
    taps, channels, per_bank = plan.taps, plan.channels, groups_a_bank(plan)
    full, rest, of_group = gn // per_bank, gn % per_bank, window_of(plan) * channels
    for bank, banks, groups in ((0, full, per_bank), (full, 1, rest)):
        size = banks * groups * window_of(plan)
        at = first + bank * per_bank * window_of(plan)
        for c in range(channels if size > 0 else 0):
            nisa.tensor_copy(
                dst=products_sbuf[c * taps : (c + 1) * taps, at : at + size],
                src=products_psum[c * taps : (c + 1) * taps, bank : bank + banks, c : groups * of_group : channels],
                engine=pick(wide.ledger, size, False),
            )


def finish_piece(wide, piece, sums):
    """Sum a piece over slots and store it if it is the last chunk's; returns the sums of what is not complete yet.

    sums: pieces of the chunks before, in order, which later chunks are added to.
    """
    plan, unit = wide.run.plan, piece.unit
    if unit.chunk > 0:
        before = sums[0]
        nisa.tensor_tensor(
            dst=piece.sums_sbuf, data1=piece.sums_sbuf, data2=before.sums_sbuf, op=nl.add, engine=nisa.engine.gpsimd
        )
        sums = sums[1 : len(sums)]
    if unit.chunk < plan.chunks - 1:
        return sums + [piece]
    rows, phases = nl.tile_size.pmax, range(plan.column_phases)
    by_phase = [piece.sums_sbuf[0:rows, phase, 0 : piece.gn, 0 : plan.lags] for phase in phases]
    r0 = unit.r0 + piece.g0
    extra = load_epilogue(wide.run, unit.batch, unit.n, r0, piece.gn)
    leave(wide.run, unit.batch, unit.n, r0, by_phase, wide.ones_sbuf, extra, wide.ledger)
    return sums
