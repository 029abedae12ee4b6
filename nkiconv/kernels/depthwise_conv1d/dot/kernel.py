"""Depthwise conv1d with long filters and few columns: dot products of whole rows on the Tensor Engine.

    y[c, q] = sum over s of w[c, s] * x[c, s + q]              (stride and dilation: schedules/dot.py)

The taps of a row are spread over partitions and slots, s = n p + t: slot t is x[:, t::n], which the Tensor Engine
transposes from [channels, 128] to [128, channels], and the same for w. A lag q is then a shift of t by q along the free
dim. One matmul has 8 slots of 16 channels of w as the stationary operand and the 8 + Q - 1 slots of these channels of x
in their window as the moving one: the contraction over p gives [(8 t, 16 c), (8 + Q - 1 t', 16 c')], whose elements
with c = c' and t' - t = q are products of y. It accumulates over all blocks of 8 slots; then

    keep c = c' (mask) and sum over c'      [(t, c), t']       Vector, evacuation of PSUM
    keep t' - t = q (mask) and sum over t'  [(t, c), q]        GpSimd, Vector
    sum over t                              [c, q]             one small fp32 matmul

Engine plan: DMA loads rows of x and w, each once from HBM, 128 channels a tile; Tensor transposes tile i + 1 between
the matmuls of tile i; Scalar copies transposed slots to SBUF, pairs of 16-bit elements as one fp32 element, which
copies bits; the masks and sums of tiles i - 1 and i - 2 follow later, so that no engine waits for another. Channel
c0 + p * L + r is row p of the results, which are stored in long runs. Bound by Tensor, then DMA: per 128 channels and
tap of bf16 with Q = 4, the transposes take 0.91 ns and the matmuls 0.59, HBM 1.43. The time of Vector's masks grows
with Q.

Zeros are multiplied: a NaN or Inf reaches every column of the channels that share a matmul with it.
"""

from ...._nki import nl
from ....schedules.dot import dot_units, padded_columns, steps_of, tiles
from ....schedules.tiles import share, some_of
from ..._warm import warm_up, warm_zeros
from .rows import load_ahead, move_slots, next_rows, start_dot, sum_taps
from .sums import (
    leave,
    load_epilogue,
    make_masks,
    mask_lags,
    multiply_step,
    new_partials,
    sum_channels,
    sum_lags,
)

#: Banks of a tile's transposed slots in flight before the first matmul of the previous tile.
LEAD = 2


def dot(tensors, geometry, options, plan):
    """Write y."""
    every = tiles(geometry, plan)
    units = dot_units(plan, some_of(every, share(len(every), nl.num_programs(), nl.program_id(0))))
    if units:
        warm_up(warm_zeros(), plan.warmup, 1)
        run_units(tensors, geometry, options, plan, units)


def run_units(tensors, geometry, options, plan, units):
    """Four units in flight: transposes of one alternate with matmuls of the previous one and masks and sums of two
    earlier ones."""
    masks = make_masks(plan)
    run = start_dot(tensors, geometry, options, plan, units)
    x_before, w_before, partials, ready, kept, sums, tap_sums = None, None, [], [], [], None, None
    for index in range(len(units) + 3):
        moves, x_next, w_next, w_rows = [], None, None, None
        if index < len(units):
            load_ahead(run)
            w_rows = run.loaded[index][1]
            x_next, w_next = next_rows(run, index, moves)
        steps, unit = [], units[min(max(0, index - 1), len(units) - 1)]
        if 0 < index and index <= len(units):
            steps = steps_of(plan, unit)
            partials = new_partials(plan, unit)
        done, last = 0, None
        # the first unit's matmuls precede the second unit's transposes, whose rows are still in flight
        for move in range(-1 if index == 1 else 0, max(len(moves), LEAD)):
            if 0 <= move and move < len(moves):
                move_slots(moves[move])
            if move == LEAD - 1 and 2 <= index and index <= len(units) + 1:
                kept = mask_lags(units[index - 2].groups, ready, plan, masks)
            wanted = len(steps)
            if move + 1 < len(moves) and index != 1:
                wanted = (len(steps) * max(0, move + 1 - LEAD)) // max(1, len(moves) - LEAD)
            while done < wanted:
                products = multiply_step(x_before, w_before, plan, masks, unit, steps[done])
                if done > 0:
                    sum_channels(partials, plan, steps[done - 1], last)
                last = products
                done += 1
        if done > 0:
            sum_channels(partials, plan, steps[done - 1], last)
        if index >= 3:
            finish_unit(run, masks, units[index - 3], sums)
        if 2 <= index and index <= len(units) + 1:
            sums = add_unit(plan, units[index - 2], kept, sums)
        if index < len(units) and tensors.sums is not None:
            tap_sums = sum_taps(run, units[index], w_rows, tap_sums)
        ready = partials
        x_before, w_before = x_next, w_next


def add_unit(plan, unit, kept, sums):
    """Add a unit's results to its tile's sums [(t, c), r, q]; returns the sums, newly allocated for the first chunk."""
    if unit.chunk == 0:
        sums = nl.ndarray((nl.tile_size.pmax, unit.groups, padded_columns(plan)), dtype=nl.float32, buffer=nl.sbuf)
    sum_lags(sums, unit.groups, kept, plan, unit.chunk > 0)
    return sums


def finish_unit(run, masks, unit, sums):
    """Store a tile's results after its last chunk."""
    if unit.chunk == run.plan.chunks - 1:
        leave(run, unit, sums, masks.same_channel, load_epilogue(run, unit))
