"""Depthwise conv1d with long filters and few columns: dot products of whole rows on the Tensor Engine.

    y[c, q] = sum over s of w[c, s] * x[c, s + q]              (stride and dilation: plan.py)

The taps of a row are spread over partitions and slots, s = n p + t: slot t is x[:, t::n], transposed on the array from
[channels, 128] to [128, channels], and the same for w. A lag q then is the shift of t by q along the free dim. One
matmul takes 8 slots of 16 channels of w as the stationary and the 8 + Q - 1 slots of these channels of x that meet them
as the moving operand: the contraction over p makes [(8 t, 16 c), (8 + Q - 1 t', 16 c')], of which c = c' and t' - t = q
are wanted. It accumulates over all blocks of 8 slots; then

    keep c = c' (mask) and sum over c'      [(t, c), t']       Vector, read-out of PSUM
    keep t' - t = q (mask) and sum over t'  [(t, c), q]        GpSimd, Vector
    sum over t                              [c, q]             one small fp32 matmul for several tiles

Engine plan: DMA loads rows of x and w, each once from HBM, 128 channels a tile; Tensor transposes tile i + 1 between
the matmuls of tile i; Scalar (and Vector, every `vector_share`-th) moves transposed slots to SBUF, pairs of 16-bit
elements as one fp32 element, which copies bits; the tails of tiles i - 1 and i - 2 come later, where no engine waits
for another. Channel c0 + p * L + r is row p of the results, so that those of several tiles leave in one DMA of long
runs. Bound by Tensor, then DMA: per 128 channels and tap of bf16 with Q = 4, the transposes take 0.91 ns and the
matmuls 0.59, HBM 1.43. Vector's masks grow with Q; from a dozen lags or two on, wide.py puts lags in step by a way
through HBM instead. One row, N * C = 1, is cut into parts that stand for channels, summed at the end; cores share its
blocks of lags, where there are several.

Zeros are multiplied: a NaN or Inf reaches every column of the channels that share a matmul with it.
"""

from ...._nki import nisa, nl
from ..._settings import setting
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, div_ceil, share
from ..._warm import warm_up, warm_zeros
from .config import dot_config_refusal, dot_defaults, read_dot
from .plan import (
    BANDED_TAPS,
    COLUMNS_MIN,
    COLUMNS_PER_TAP,
    batch_width,
    batches,
    count_batches,
    groups_of,
    padded_columns,
    plan_of,
    runs_wide,
    x_slots,
)
from .rows import load_ahead, move_slots, next_rows, start_rows
from .sums import (
    finish_batch,
    make_masks,
    mask_lags,
    multiply_step,
    new_partials,
    steps_of,
    sum_channels,
    sum_lags,
)
from .wide import run_wide

#: Banks of transposed slots that are on their way before the first matmul of the tile before.
LEAD = 2


def settle_dot(geometry, config):
    """The DotConfig of (name, value) pairs, with defaults for what they leave open."""
    return read_dot(config, dot_defaults(setting(config, "wide", runs_wide(geometry))))


def dot_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = dot_config_refusal(config)
    if reason != "":
        return reason
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: dot sums channels together under a mask; use vector or taps_on_partition"
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: dot takes 1; use mixed, vector or taps_on_partition"
    columns_max = max(COLUMNS_MIN, int(geometry.S * COLUMNS_PER_TAP))
    if geometry.dilation == 1 and geometry.S <= BANDED_TAPS and geometry.Q > columns_max:
        return (
            f"Q={geometry.Q}: dot computes at most {columns_max} columns a row for S={geometry.S}; use banded or "
            f"taps_on_partition"
        )
    settings = settle_dot(geometry, config)
    if not settings.wide and geometry.Q > COLUMNS_MIN:
        return f"config wide=False, Q={geometry.Q}: at most {COLUMNS_MIN} columns; leave it out"
    plan = plan_of(geometry, settings)
    if plan.slots == 0:
        return (
            f"stride={geometry.stride}, dilation={geometry.dilation}: rows of 128 taps and their columns must fit "
            f"SBUF, {nl.tile_size.total_available_sbuf_size} bytes a partition; use taps_on_partition"
        )
    count = count_instructions(geometry, plan, settings.warmup, cores)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, C={geometry.C}, S={geometry.S}: dot needs {count} instructions on a core, the compiler "
            f"takes {INSTRUCTIONS_MAX}; split N or C over several calls"
        )
    return ""


def count_instructions(geometry, plan, warmup, cores):
    """Instructions of the busiest core, at most: loads, transposes and read-outs, matmuls, tails."""
    slots = plan.tap_phases * (plan.slots + plan.column_phases * x_slots(plan))
    loads = 14 + (3 * plan.parts if plan.parts > 1 else 0)
    if plan.wide:
        groups = plan.column_phases * plan.taps
        matmuls = groups * (plan.tap_phases * (plan.slots // plan.taps) + 2 * plan.channels)
        unit = 2 * slots + matmuls + 15 * groups + loads
        return div_ceil(count_batches(geometry, plan), cores) * plan.chunks * unit + 6 * plan.buffers + 26 + warmup
    blocks = plan.lag_blocks * plan.column_phases
    matmuls = plan.taps * blocks * plan.tap_phases * div_ceil(plan.slots, plan.taps)
    tails = blocks * (4 * plan.taps + 3)
    unit = 2 * slots + matmuls + tails + loads
    columns = plan.taps * padded_columns(plan)
    leave = 3 * div_ceil(plan.tiles * columns, BANK_COLUMNS) + 10
    per_batch = plan.tiles * plan.images * plan.chunks * unit + plan.images * leave
    return div_ceil(count_batches(geometry, plan), cores) * per_batch + 6 * plan.buffers + 26 + warmup


def dot(operands, geometry, extras, config):
    """Write operands.y. config: (name, value) pairs of a DotConfig."""
    settings = settle_dot(geometry, config)
    plan = plan_of(geometry, settings)
    every = batches(geometry, plan)
    mine = share(len(every), nl.num_programs(), nl.program_id(0))
    units = []
    for index in range(mine[0], mine[0] + mine[1]):
        batch = every[index]
        for n in range(batch.n0, batch.n0 + batch.nn):
            for k in range(batch.k0, batch.k0 + batch.kn):
                for chunk in range(plan.chunks):
                    units.append((batch, n, k, chunk))
    if len(units) > 0:
        warm_up(warm_zeros(), settings.warmup, 1)
        if plan.wide:
            run_wide(operands, geometry, extras, plan, units)
        else:
            run_units(operands, geometry, extras, plan, units, settings.vector_share)


def run_units(operands, geometry, extras, plan, units, vector_share):
    """Four units in flight: transposes of one between the matmuls of the one before and the tails of two others."""
    masks = make_masks(plan)
    rows = start_rows(operands, geometry, extras, plan, units)
    x_before, w_before, partials, ready, kept, sums = None, None, [], [], [], None
    for index in range(len(units) + 3):
        moves, x_next, w_next = [], None, None
        if index < len(units):
            load_ahead(rows, operands, geometry, extras, plan, units, index)
            x_next, w_next = next_rows(rows, operands, geometry, plan, units, index, moves)
        steps, groups = [], 0
        if 0 < index and index <= len(units):
            groups = groups_of(plan, units[index - 1][0].block, units[index - 1][2])
            steps = steps_of(plan, groups)
            partials = new_partials(plan, groups)
        done, last = 0, None
        # while the second unit's rows are still on their way, the first one's matmuls go before its transposes
        for move in range(-1 if index == 1 else 0, max(len(moves), LEAD)):
            if 0 <= move and move < len(moves):
                on_vector = 0 < vector_share and move % vector_share == vector_share - 1
                move_slots(moves[move], nisa.engine.vector if on_vector else nisa.engine.scalar)
            if move == LEAD - 1 and 2 <= index and index <= len(units) + 1:
                kept = mask_lags(groups_of(plan, units[index - 2][0].block, units[index - 2][2]), ready, plan, masks)
            wanted = len(steps)
            if move + 1 < len(moves) and index != 1:
                wanted = (len(steps) * max(0, move + 1 - LEAD)) // max(1, len(moves) - LEAD)
            while done < wanted:
                products = multiply_step(x_before, w_before, plan, masks, groups, steps[done])
                if done > 0:
                    sum_channels(partials, plan, steps[done - 1], last)
                last = products
                done += 1
        if done > 0:
            sum_channels(partials, plan, steps[done - 1], last)
        if index >= 3 and ends_batch(plan, units[index - 3]):
            finish_batch(operands, geometry, extras, plan, masks, units[index - 3][0], sums)
        if 2 <= index and index <= len(units) + 1:
            sums = add_unit(plan, units, index - 2, kept, sums)
        ready = partials
        x_before, w_before = x_next, w_next


def ends_batch(plan, unit):
    """Whether a unit is the last of its batch."""
    batch = unit[0]
    return unit[1] == batch.n0 + batch.nn - 1 and unit[2] == batch.k0 + batch.kn - 1 and unit[3] == plan.chunks - 1


def add_unit(plan, units, index, kept, sums):
    """Put a unit's results into its batch's [(t, c), (image, r), q]; returns them, new for the first of a batch."""
    unit = units[index]
    batch = unit[0]
    width = batch_width(plan, batch)
    if unit[1] == batch.n0 and unit[2] == batch.k0 and unit[3] == 0:
        sums = nl.ndarray((nl.tile_size.pmax, width * batch.nn, padded_columns(plan)), dtype=nl.float32, buffer=nl.sbuf)
    column = (unit[1] - batch.n0) * width + (unit[2] - batch.k0) * plan.taps
    sum_lags(sums, column, groups_of(plan, batch.block, unit[2]), kept, plan, unit[3] > 0)
    return sums
