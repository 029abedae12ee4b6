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
from ..._dma import copy
from ..._engines import Ledger, new_ledger, pick
from ..._tiles import BANK_COLUMNS, div_ceil
from ..free_channels import finish_free, load_free, store_free
from .plan import groups_of, x_slots
from .rows import load_ahead, move_slots, next_rows, start_rows
from .sums import row_block

#: Banks of a step's products, which are read out together.
STEP_BANKS = 2
#: Steps of a piece, which goes through HBM in one DMA each way.
PIECE_STEPS = 2
#: Pieces on their way before the oldest is summed, and pieces of HBM that take turns.
LATE = 8
SCRATCH = 12


@dataclass
class Piece(nl.NKIObject):
    """Groups g0 .. g0+gn-1 of a unit: [(c, t), phase, gn, lags] fp32 in SBUF, in step."""

    unit: tuple
    g0: int
    gn: int
    sums_sbuf: object


@dataclass
class Run(nl.NKIObject):
    """What does not change from unit to unit."""

    operands: object
    geometry: object
    extras: object
    plan: object
    ones_sbuf: object
    all_sbuf: object
    scratch: list
    ledger: Ledger


def window_of(plan):
    """Slots of x that a block of slots of w meets."""
    return plan.taps + plan.lags - 1


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


def all_ones():
    """fp32 [128, 1] of ones."""
    ones_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0)
    return ones_sbuf


def run_wide(operands, geometry, extras, plan, units):
    """Units one after the other: transposes of one between the products of the one before."""
    size = nl.tile_size.pmax * piece_groups(plan) * window_of(plan)
    scratch = []
    for _ in range(SCRATCH):
        scratch.append(nl.ndarray((size,), dtype=nl.float32, buffer=nl.private_hbm))
    run = Run(
        operands=operands,
        geometry=geometry,
        extras=extras,
        plan=plan,
        ones_sbuf=channel_ones(plan),
        all_sbuf=all_ones(),
        scratch=scratch,
        ledger=new_ledger(),
    )
    rows = start_rows(operands, geometry, extras, plan, units)
    pending, turns, sums = [], 0, []
    x_before, w_before = None, None
    for index in range(len(units) + 1):
        moves, x_next, w_next = [], None, None
        if index < len(units):
            x_next, w_next = next_rows(rows, operands, geometry, plan, units, index, moves)
        pieces = []
        if index == 0:
            load_ahead(rows, operands, geometry, extras, plan, units, index)
        else:
            groups = groups_of(plan, units[index - 1][0].block, units[index - 1][2])
            for g0 in range(0, groups, piece_groups(plan)):
                pieces.append((g0, min(piece_groups(plan), groups - g0)))
        done = 0
        for at in range(len(pieces)):
            if at == len(pieces) // 2:
                load_ahead(rows, operands, geometry, extras, plan, units, index)
            wanted = ((at + 1) * len(moves)) // len(pieces)
            while done < wanted:
                turn(run, moves[done])
                done += 1
            pending.append(make_piece(run, units[index - 1], pieces[at], x_before, w_before, turns))
            turns += 1
            if len(pending) > LATE:
                sums = finish_piece(run, pending[len(pending) - 1 - LATE], sums)
        while done < len(moves):
            turn(run, moves[done])
            done += 1
        x_before, w_before = x_next, w_next
    for at in range(max(0, len(pending) - LATE), len(pending)):
        sums = finish_piece(run, pending[at], sums)


def turn(run, move):
    """Transpose the slots of a Move, read out by whom the ledger says."""
    elements = len(move.starts) * move.turned_sbuf.shape[2]
    if move.turned_sbuf.dtype != nl.float32:
        elements = elements // 2
    move_slots(move, pick(run.ledger, elements, False))


def make_piece(run, unit, found, x_turned, w_turned, turns):
    """Products of a piece's groups, read out, sent through HBM and back."""
    P_MAX, plan = nl.tile_size.pmax, run.plan
    g0, gn = found
    window, phases = window_of(plan), plan.column_phases
    groups = groups_of(plan, unit[0].block, unit[2])
    sums_sbuf = nl.ndarray((P_MAX, phases, gn, plan.lags), dtype=nl.float32, buffer=nl.sbuf)
    step = STEP_BANKS * groups_a_bank(plan)
    for phase in range(phases):
        products_sbuf = nl.ndarray((P_MAX, gn * window), dtype=nl.float32, buffer=nl.sbuf)
        for a in range(0, gn, step):
            multiply(run, products_sbuf, a, min(step, gn - a), phase, g0, groups, x_turned, w_turned)
        scratch_hbm = run.scratch[(turns * phases + phase) % SCRATCH]
        row = gn * window
        copy(scratch_hbm.ap(pattern=[[row, P_MAX], [1, row]], offset=0), products_sbuf)
        copy(
            sums_sbuf[0:P_MAX, phase, 0:gn, 0 : plan.lags],
            scratch_hbm.ap(
                pattern=[[plan.taps * row, plan.channels], [row + 1, plan.taps], [window, gn], [1, plan.lags]],
                offset=0,
            ),
        )
    return Piece(unit=unit, g0=g0, gn=gn, sums_sbuf=sums_sbuf)


def multiply(run, products_sbuf, a, an, phase, g0, groups, x_turned, w_turned):
    """Groups a .. a+an-1 of a piece: matmuls over all slots, and a channel's products with itself to SBUF."""
    P_MAX, plan = nl.tile_size.pmax, run.plan
    taps, channels, window, per_bank = plan.taps, plan.channels, window_of(plan), groups_a_bank(plan)
    columns = window * channels
    products_psum = nl.ndarray((P_MAX, div_ceil(an, per_bank), BANK_COLUMNS), dtype=nl.float32, buffer=nl.psum)
    for index in range(an):
        g = g0 + a + index
        first = index % per_bank * columns
        matmuls = 0
        for r in range(plan.tap_phases):
            x0 = (phase * plan.tap_phases + r) * x_slots(plan)
            for t0 in range(0, plan.slots, taps):
                w0 = r * plan.slots + t0
                nisa.nc_matmul(
                    dst=products_psum[0:P_MAX, index // per_bank, first : first + columns],
                    stationary=w_turned[0 : plan.depth, w0 : w0 + taps, g : channels * groups : groups].permute(
                        (0, 2, 1)
                    ),
                    moving=x_turned[0 : plan.depth, x0 + t0 : x0 + t0 + window, g : channels * groups : groups],
                    accumulate=matmuls > 0,
                )
                matmuls += 1
    full = an // per_bank
    for part in range(2):
        bank0, banks, count = (
            0 if part == 0 else full,
            full if part == 0 else 1,
            per_bank if part == 0 else an % per_bank,
        )
        if banks > 0 and count > 0:
            for c in range(channels):
                low, at = c * taps, (a + bank0 * per_bank) * window
                nisa.tensor_copy(
                    dst=products_sbuf[low : low + taps, at : at + banks * count * window],
                    src=products_psum[low : low + taps, bank0 : bank0 + banks, c : count * columns : channels],
                    engine=pick(run.ledger, banks * count * window, False),
                )


def finish_piece(run, piece, sums):
    """Sum a piece over slots and store it if it is the last chunk's; returns the sums of what is not complete yet.

    sums: pieces of the chunks before, in order, which later chunks are added to; or the sums of one row's parts.
    """
    plan, batch, chunk = run.plan, piece.unit[0], piece.unit[3]
    if plan.parts > 1:
        return add_parts(run, piece, sums)
    if chunk > 0:
        before = sums[0]
        nisa.tensor_tensor(
            dst=piece.sums_sbuf, data1=piece.sums_sbuf, data2=before.sums_sbuf, op=nl.add, engine=nisa.engine.gpsimd
        )
        sums = sums[1 : len(sums)]
    if chunk < plan.chunks - 1:
        return sums + [piece]
    leave(run, batch, batch.block, batch.k0 * plan.taps + piece.g0, plan.channels, piece.gn, piece.sums_sbuf)
    return sums


def add_parts(run, piece, sums):
    """Sum a piece of parts of one row over slots, c and g, and add it to those before, [row_sbuf [1, phase, lags]]."""
    plan, batch = run.plan, piece.unit[0]
    lags, phases = plan.lags, plan.column_phases
    first = piece.unit[3] == 0 and piece.g0 == 0
    row_sbuf = nl.ndarray((1, phases, lags), dtype=nl.float32, buffer=nl.sbuf) if first else sums[0]
    for phase in range(phases):
        acc_psum = nl.ndarray((1, lags), dtype=nl.float32, buffer=nl.psum)
        for g in range(piece.gn):
            nisa.nc_matmul(
                dst=acc_psum,
                stationary=run.all_sbuf,
                moving=piece.sums_sbuf[0 : nl.tile_size.pmax, phase, g, 0:lags],
                is_stationary_onezero=True,
                accumulate=g > 0,
            )
        into = row_sbuf[0:1, phase, 0:lags]
        if first:
            nisa.tensor_copy(dst=into, src=acc_psum)
        else:
            nisa.tensor_tensor(dst=into, data1=acc_psum, data2=into, op=nl.add)
    if piece.unit[3] == plan.chunks - 1 and piece.g0 + piece.gn == groups_of(plan, batch.block, batch.k0):
        leave(run, batch, row_block(), 0, 1, 1, row_sbuf)
    return [row_sbuf]


def leave(run, batch, block, r0, channels, gn, sums_sbuf):
    """Results of channels r0 .. r0+gn-1 of each row of a block, from [(c, t), phase, gn, lags] or sums of one row."""
    plan, geometry, extras, operands = run.plan, run.geometry, run.extras, run.operands
    phases = plan.column_phases
    q0 = batch.l0 * plan.spread
    qn = min(plan.lags * phases, geometry.Q - q0)
    offset = batch.n0 * geometry.y_n + q0 * geometry.y_q
    bias_sbuf = None
    if extras.epilogue.bias:
        bias_sbuf = nl.ndarray((channels, gn, 1), dtype=nl.float32, buffer=nl.sbuf)
        load_free(bias_sbuf, operands.bias, block, r0, 1, 0, 0)
    residual_sbuf = None
    if extras.epilogue.residual != "":
        residual_sbuf = nl.ndarray((channels, gn, qn), dtype=operands.residual.dtype, buffer=nl.sbuf)
        load_free(residual_sbuf, operands.residual, block, r0, geometry.y_c, geometry.y_q, offset)
    y_sbuf = nl.ndarray((channels, gn, qn), dtype=operands.y.dtype, buffer=nl.sbuf)
    most = BANK_COLUMNS // plan.lags
    for phase in range(phases):
        # the last columns may leave no lag to a phase
        lags = (qn - phase + phases - 1) // phases
        for a in range(0, gn if lags > 0 else 0, most):
            an = min(most, gn - a)
            if plan.parts > 1:
                acc = sums_sbuf[0:1, phase : phase + 1, 0 : plan.lags]
            else:
                acc = nl.ndarray((channels, an, plan.lags), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(
                    dst=acc,
                    stationary=run.ones_sbuf,
                    moving=sums_sbuf[0 : nl.tile_size.pmax, phase, a : a + an, 0 : plan.lags],
                    is_stationary_onezero=True,
                    accumulate=False,
                )
            bias_view = None
            if bias_sbuf != None:
                bias_view = bias_sbuf[0:channels, a : a + an, 0:1].broadcast(2, lags)
            finish_free(
                y_sbuf[0:channels, a : a + an, phase:qn:phases],
                acc[0:channels, 0:an, 0:lags],
                bias_view,
                None if residual_sbuf == None else residual_sbuf[0:channels, a : a + an, phase:qn:phases],
                extras.epilogue,
                pick(run.ledger, an * lags, False),
                0,
            )
    store_free(operands.y, y_sbuf, block, r0, geometry.y_c, geometry.y_q, offset)
