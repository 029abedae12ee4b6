"""The loop of `causal_conv1d_split_step`: one token, or a few, of each of many sequences, after their states.

    for each group of up to 512 channels, up to 128 sequences:
        rows = state[slot of n, channels, S - 1], x[n, channels, tokens]
        for each position, channel tile:  transpose [sequences, channels] to [channels, sequences], on the array
        for each token t:  as a step of kernel.py, of the windows at positions t .. t + S - 1
        state[slot of n, channels] = the last S - 1 positions

Sequences are on the partitions as rows arrive, so that HBM sees long runs; once a position is transposed, it is the
stationary that prefill has, and the sums have sequences on the partitions again.

Engine plan: as kernel.py; states come and go by GpSimd where slots are by index (descriptors are made as it runs).
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.split import build
from ....schedules.tiles import BANK_COLUMNS, whole_words
from ..._dma import load, store, store_to_rows
from ..._engines import is_16bit, new_ledger, pick
from ..._prologue import gather_rows, load_rows
from ..._warm import warm_up, warm_zeros
from .loads import load_diagonals, load_head_bias
from .results import Results, advance_all, finish, sum_taps

#: Groups that are loaded by the time that one is at work, at most, and bytes a partition of all that are held.
GROUPS_AHEAD, HELD_BYTES = 3, 106496
#: Matmuls on zeros, of WARM_BLOCKS times 128 columns, while the first loads are on their way.
WARM_UPS, WARM_BLOCKS = 8, 4


@dataclass
class StepOperands:
    """Tensors in HBM: x [N, C, T], or [N, T, C]; w [C, S]; parts [N, T, heads, dim]; bias [C] or None; state [slots, C,
    S - 1]; indices [N] or None."""

    x: object
    w: object
    parts: tuple
    bias: object
    state: object
    indices: object


def step_heads(operands, geometry, epilogue, eps, tokens):
    """Write operands.parts and operands.state. geometry: of sequences in the place of tokens; tokens: (T, elements of x
    from one to the next)."""
    plan = build(geometry, nl.num_programs(), nl.program_id(0))
    out = Results(parts=operands.parts, epilogue=epilogue, eps=eps, ledger=new_ledger(), jobs=[])
    rows, held, windows, count = {}, [], [], len(plan.steps)
    warm, ahead = warm_up(warm_zeros(), WARM_UPS, WARM_BLOCKS), groups_held(geometry, tokens[0])
    # where slots are by index, no one knows that a load does not wait for a store: all loads of a batch go first
    batch = 1 if operands.indices == None else ahead
    for index in range(count + 1):
        loaded = index + min(ahead, GROUPS_AHEAD) if operands.indices == None else (index // batch + 1) * batch
        while len(held) < min(count, loaded):
            step = plan.steps[len(held)]
            span = plan.spans[step.span]
            sequences = (span.first + step.first, step.count)
            held.append(load_group(operands, geometry, span.group, sequences, tokens, rows))
            load_filters(operands, geometry, held[-1], len(held) == 1, out.ledger)
        earlier, windows = windows, []
        if index < count:
            now, places = held[index], range(geometry.S - 1 + tokens[0])
            windows = [transpose_position(now, now.group, place, out.ledger) for place in places]
        if index > 0:
            sum_group(geometry, out, held[index - 1], earlier, tokens[0], warm)
            join_next_states(held[index - 1], geometry.S - 1, tokens[0], out.ledger)
        if index % batch == 0 or index == count:
            for one in range(max(0, index - batch), index):
                if held[one] is not None:
                    store_next_states(operands, geometry, held[one])
                    held[one] = None
    while out.jobs:
        advance_all(out)


def groups_held(geometry, T):
    """Groups whose x, states before and after, and filters are in SBUF at once."""
    return max(1, HELD_BYTES // (BANK_COLUMNS * (T + 3 * geometry.S) * geometry.itemsize))


@dataclass
class HeldGroup:
    """Sequences (first, how many) of a group in SBUF: state [sequences, channels, S - 1], x [sequences, channels,
    tokens], slots [sequences, 1] or None, diagonals and bias."""

    group: object
    sequences: tuple
    state: object
    x: object
    slots: object
    diagonals: object = None
    bias: object = None


def load_group(operands, geometry, group, sequences, tokens, rows):
    """Load states and tokens of a group; rows: slots by their first sequence."""
    (first, count), size, T = sequences, geometry.S - 1, tokens[0]
    if operands.indices != None and first not in rows:
        rows[first] = nl.ndarray((count, 1), dtype=operands.indices.dtype, buffer=nl.sbuf)
        load(rows[first], operands.indices, [[1, count], [1, 1]], first)
    slots, pattern = rows.get(first), [[geometry.C * size, count], [1, group.count * size]]
    state_sbuf = nl.ndarray((count, group.count, size), dtype=operands.state.dtype, buffer=nl.sbuf)
    into = state_sbuf.reshape((count, group.count * size))
    if slots is None:
        load_rows(into, operands.state, pattern, first * geometry.C * size + group.c0 * size)
    else:
        nisa.memset(dst=into, value=0.0)
        gather_rows(into, operands.state, pattern, group.c0 * size, slots)
    offset = first * geometry.x_n + group.c0 * geometry.x_c
    by_token = geometry.x_c == 1
    shape = (count, T, group.count) if by_token else (count, group.count, T)
    x_sbuf = nl.ndarray(shape, dtype=operands.x.dtype, buffer=nl.sbuf)
    inner = [[tokens[1], T], [geometry.x_c, group.count]]
    load_rows(x_sbuf, operands.x, [[geometry.x_n, count], *(inner if by_token else inner[::-1])], offset)
    return HeldGroup(
        group=group,
        sequences=sequences,
        state=state_sbuf,
        x=x_sbuf.permute((0, 2, 1)) if by_token else x_sbuf,
        slots=slots,
    )


def load_filters(operands, geometry, held, first, ledger):
    """Filters and bias of a group; first: as of `load_diagonals`."""
    held.diagonals = load_diagonals(operands, geometry, held.group, first, ledger)
    held.bias = load_head_bias(operands, held.group)


def sum_group(geometry, out, held, windows, T, warm):
    """Results of a group."""
    (first, count), group = held.sequences, held.group
    for t in range(T):

        def window(rows, tile, s, t=t):
            return windows[t + s][0:rows, tile, 0:count]

        sums_psum = sum_taps(warm, group, count, geometry.S, window, held.diagonals)
        advance_all(out)
        finish(out, group, count, sums_psum, held.bias, T, first * T + t)


def transpose_position(held, group, place, ledger):
    """[channels, tiles, sequences] in SBUF of a position, of the state or of x after it."""
    count, size = held.sequences[1], held.state.shape[2]
    source, place = (held.state, place) if place < size else (held.x, place - size)
    even = whole_words(count, 2)
    windows_sbuf = nl.ndarray((nl.tile_size.pmax, group.tiles, count), dtype=source.dtype, buffer=nl.sbuf)
    windows_psum = nl.ndarray((nl.tile_size.pmax, group.tiles, even), dtype=source.dtype, buffer=nl.psum)
    for run in group.runs:
        for tile in range(run.tile0, run.tile0 + run.tiles):
            begin = run.c0 - group.c0 + (tile - run.tile0) * run.tile_step
            end = begin + (run.rows - 1) * run.row_step + 1
            channels = source[0:count, begin : end : run.row_step, place]
            into = windows_psum[0 : run.rows, tile, 0:count]
            nisa.nc_transpose(dst=into, data=channels, engine=nisa.engine.tensor)
        tiles = slice(run.tile0, run.tile0 + run.tiles)
        nisa.tensor_copy(
            dst=windows_sbuf[0 : run.rows, tiles, 0:count],
            src=windows_psum[0 : run.rows, tiles, 0:count],
            engine=pick(ledger, run.tiles * count, is_16bit(source.dtype)),
        )
    return windows_sbuf


def join_next_states(held, size, T, ledger):
    """The last positions of state and x, in the place of the state."""
    count, group, kept = held.sequences[1], held.group, max(0, size - T)
    next_sbuf = nl.ndarray((count, group.count, size), dtype=held.state.dtype, buffer=nl.sbuf)
    parts = [(kept, size, held.x, T - (size - kept))]
    if kept > 0:
        parts.append((0, kept, held.state, size - kept))
    for begin, end, source, place in parts:
        nisa.tensor_copy(
            dst=next_sbuf[0:count, 0 : group.count, begin:end],
            src=source[0:count, 0 : group.count, place : place + end - begin],
            engine=pick(ledger, group.count * (end - begin), is_16bit(source.dtype)),
        )
    held.state = next_sbuf


def store_next_states(operands, geometry, held):
    """States to their slots; of padding nowhere."""
    (first, count), group, size = held.sequences, held.group, geometry.S - 1
    elements = group.count * size
    source, pattern = held.state.reshape((count, elements)), [[geometry.C * size, count], [1, elements]]
    if held.slots is None:
        store(source, operands.state, pattern, (first * geometry.C + group.c0) * size)
    else:
        store_to_rows(source, operands.state, pattern, group.c0 * size, held.slots)
