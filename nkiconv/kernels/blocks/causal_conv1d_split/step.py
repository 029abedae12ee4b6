"""The loop of `causal_conv1d_split_step`: one or a few tokens of each of many sequences, after their states.

    for each group of up to 512 channels, up to 128 sequences:
        rows = state[slot of n, channels, S - 1], x[n, channels, tokens]
        for each position, channel tile:  transpose [sequences, channels] to [channels, sequences], on Tensor
        for each token t:  as a step of kernel.py, with the windows at positions t .. t + S - 1
        state[slot of n, channels] = the last S - 1 positions

Rows are loaded with sequences on the partitions, so that HBM sees long runs. A transposed position is a stationary
operand, as in prefill, and the sums have sequences on the partitions again.

Engine plan: as in kernel.py; GpSimd loads and stores states if slots are by index (descriptors are made as it runs).
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.split import build
from ....schedules.tiles import BANK_COLUMNS, whole_words
from ..._dma import load, load_from_rows, store, store_to_rows
from ..._engines import copy_balanced
from ..._prologue import load_rows
from ...conv.filter_feed import transpose_into
from .results import Results, load_filters

#: The most groups loaded ahead, the current one included, and bytes a partition of all groups in SBUF.
GROUPS_AHEAD, HELD_BYTES = 3, 106496


@dataclass
class HeldGroup:
    """Sequences first .. first + count - 1 of a group in SBUF: slots [sequences, 1] or None, state [sequences,
    channels, S - 1], x [sequences, channels, tokens]; filters; transposed positions."""

    group: object
    first: int
    count: int
    slots: object
    state: object
    x: object
    filters: tuple
    positions: list


def step_heads(operands, geometry, epilogue, eps, tokens):
    """Compute operands.parts and operands.state. geometry: with sequences as its tokens; tokens: (T, x's stride along
    tokens)."""
    plan, T = build(geometry, nl.num_programs(), nl.program_id(0)), tokens[0]
    out = Results(operands.parts, epilogue, eps)
    slots, held, count, ahead = {}, [], len(plan.steps), groups_held(geometry, T)
    # with slots by index, a load may depend on a store before it: all loads of a batch go first
    batch = 1 if operands.indices == None else ahead
    for index in range(count + 1):
        loaded = index + min(ahead, GROUPS_AHEAD) if operands.indices == None else (index // batch + 1) * batch
        for step in plan.steps[len(held) : loaded]:
            held.append(load_group(operands, geometry, plan.spans[step.span], step, tokens, slots))
            held[-1].filters = load_filters(operands, geometry, held[-1].group, len(held) == 1, out.ledger)
        if index < count:
            places = range(geometry.S - 1 + T)
            held[index].positions = [transpose_position(held[index], place, out.ledger) for place in places]
        if index > 0:
            for t in range(T):
                sum_token(out, held[index - 1], t, T)
            join_next_states(held[index - 1], geometry.S - 1, T, out.ledger)
        if index % batch == 0 or index == count:
            for one in range(max(0, index - batch), index):
                if held[one] is not None:
                    store_next_states(operands, geometry, held[one])
                    held[one] = None
    out.end()


def groups_held(geometry, T):
    """The number of groups whose x, states before and after, and filters SBUF holds at once."""
    return max(1, HELD_BYTES // (BANK_COLUMNS * (T + 3 * geometry.S) * geometry.itemsize))


def load_group(operands, geometry, span, step, tokens, rows):
    """Start the loads of a group's states and tokens; rows: loaded slots by their first sequence."""
    group, first, count, size, T = span.group, span.first + step.first, step.count, geometry.S - 1, tokens[0]
    if operands.indices != None and first not in rows:
        rows[first] = nl.ndarray((count, 1), dtype=operands.indices.dtype, buffer=nl.sbuf)
        load(rows[first], operands.indices, [[1, count], [1, 1]], first)
    slots, pattern = rows.get(first), [[geometry.C * size, count], [1, group.count * size]]
    state_sbuf = nl.ndarray((count, group.count, size), dtype=operands.state.dtype, buffer=nl.sbuf)
    into = state_sbuf.reshape((count, group.count * size))
    if slots is None:
        load_rows(into, operands.state, pattern, (first * geometry.C + group.c0) * size)
    else:
        nisa.memset(dst=into, value=0.0)
        load_from_rows(into, operands.state, pattern, group.c0 * size, slots)
    # in memory order
    axes = [[geometry.x_c, group.count], [tokens[1], T]]
    by_token = geometry.x_c == 1
    pattern = [[geometry.x_n, count], *(axes[::-1] if by_token else axes)]
    x_sbuf = nl.ndarray(tuple(extent for _, extent in pattern), dtype=operands.x.dtype, buffer=nl.sbuf)
    load_rows(x_sbuf, operands.x, pattern, first * geometry.x_n + group.c0 * geometry.x_c)
    return HeldGroup(group, first, count, slots, state_sbuf, x_sbuf.permute((0, 2, 1)) if by_token else x_sbuf, (), [])


def transpose_position(held, place, ledger):
    """Transpose a position of the state, or of x after it, into [channels, tiles, sequences] in SBUF."""
    group, count, size = held.group, held.count, held.state.shape[2]
    source, place = (held.state, place) if place < size else (held.x, place - size)
    shape = (nl.tile_size.pmax, group.tiles, count)
    found_sbuf = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    found_psum = nl.ndarray((*shape[:2], whole_words(count, 2)), dtype=source.dtype, buffer=nl.psum)
    for run in group.runs:
        tiles = slice(run.tile0, run.tile0 + run.tiles)
        every = [group.channels(run, tile) for tile in range(tiles.start, tiles.stop)]
        transpose_into(found_psum[:, tiles], [source[:, channels, place] for channels in every])
        copy_balanced(found_sbuf[0 : run.rows, tiles, 0:count], found_psum[0 : run.rows, tiles, 0:count], ledger)
    return found_sbuf


def sum_token(out, held, t, T):
    """Compute y of token t of the T tokens of a group's sequences."""

    def window(rows, tile, s):
        return held.positions[t + s][0:rows, tile, 0 : held.count]

    out.add(held.group, held.count, window, held.filters, T, held.first * T + t)


def join_next_states(held, size, T, ledger):
    """Replace a group's state by the last positions of state and x."""
    count, channels, kept = held.count, held.group.count, max(0, size - T)
    next_sbuf = nl.ndarray((count, channels, size), dtype=held.state.dtype, buffer=nl.sbuf)
    parts = [(kept, size, held.x, T - (size - kept))]
    if kept > 0:
        parts.append((0, kept, held.state, size - kept))
    for begin, end, source, place in parts:
        src = source[0:count, 0:channels, place : place + end - begin]
        copy_balanced(next_sbuf[:, :, begin:end], src, ledger)
    held.state, held.positions = next_sbuf, []


def store_next_states(operands, geometry, held):
    """Store states to their slots; padding's are not stored."""
    group, size = held.group, geometry.S - 1
    elements = group.count * size
    source, pattern = held.state.reshape((held.count, elements)), [[geometry.C * size, held.count], [1, elements]]
    if held.slots is None:
        store(source, operands.state, pattern, (held.first * geometry.C + group.c0) * size)
    else:
        store_to_rows(source, operands.state, pattern, group.c0 * size, held.slots)
