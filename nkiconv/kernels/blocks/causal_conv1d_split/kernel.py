"""The loops of `causal_conv1d_split_heads` and its decode step: token-major sums of depthwise filters.

    for each step: 128 tokens of up to 512 channels
        for each channel tile, tap s:
            psum[tokens, channels] += x[channels, tokens shifted by s].T @ diag(w[channels, s])
        z = act(psum + bias);  y = z, or z / sqrt(sum of z^2 over its head + eps);  store

A window of x is the stationary and a diagonal matrix of filters the moving operand: the sums have tokens on the
partitions and channels along the free axis, as y in HBM, and the dim of a head is a free axis to reduce.

Chunks of token-major x are gates: a factor of x arrives transposed beside it, and their product replaces x one step
before its first matmul; a factor of z arrives as it is in HBM, and Vector multiplies by it as sums leave.

Engine plan: Sync issues loads, SPANS_AHEAD spans ahead; GpSimd and Vector make the diagonals of the next span; GpSimd
issues stores; Tensor sums, 128 columns a matmul, S matmuls a channel tile; Scalar evacuates a bank with the activation;
Vector and GpSimd multiply x by its factor, and normalise, in stages of earlier steps. Bound by Tensor with S = 4 (893
ns a step against HBM's 733 in bf16); with fewer taps by HBM; with few tokens by the diagonals.

One `bn_stats` a head reads z once: count, mean and sum of squared deviations, of elements at even and odd places. The
sum of squares adds both halves' deviations + count * mean^2: no term is negative, so nothing cancels. Compared with a
product and a reduction this saves a third of Vector's time for heads of 128. A NaN or Inf makes all of its head NaN.

A decode step has one or a few tokens of each of many sequences, after their states:

    for each group of up to 512 channels, up to 128 sequences:
        rows = state[slot of n, channels, S - 1], x[n, channels, tokens]
        for each position, channel tile:  transpose [sequences, channels] to [channels, sequences], on Tensor
        for each token t:  as a step above, with the windows at positions t .. t + S - 1
        state[slot of n, channels] = the last S - 1 positions

Its rows are loaded with sequences on the partitions, so that HBM sees long runs. A transposed position is a stationary
operand, and the sums have sequences on the partitions again. GpSimd loads and stores states if slots are by index
(descriptors are made as it runs): of a group's channels alone, so that no group waits for another.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches all channels of its tile, at most 128, at the tokens
whose windows hold it; one in a filter too, at all tokens.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...._nki import nisa, nl
from ....schedules.depthwise import chunk_start, gate_of
from ....schedules.split import build, states_after, transposes_states, transposes_tokens
from ....schedules.tiles import BANK_COLUMNS, cut_at, share, size_of, whole_words
from ..._dma import load, load_from_rows, load_transposed, store, store_to_rows
from ..._engines import book_vector, copy_balanced, is_16bit, new_ledger, pick_select, pick_sum
from ..._epilogue import evacuate, load_bias_rows
from ..._masks import make_diagonals, select_ones
from ..._prologue import finish_gates, gates_of
from ..._warm import WARM_BLOCKS, accumulator, warm_up, warm_zeros
from ...conv.filter_feed import transpose_into
from ...conv.sums import multiply
from ...depthwise_conv1d.state import states_of, store_final_state, store_rows
from ...depthwise_conv1d.tensors import Rows, RowTensors

#: The number of spans whose x is loaded ahead of the current one.
SPANS_AHEAD = 3
#: Matmuls on zeros, of WARM_BLOCKS * 128 columns, during the first loads.
WARM_UPS = 8
#: In a decode step, the most groups loaded ahead, with the current one, and bytes a partition of all groups in SBUF.
GROUPS_AHEAD, HELD_BYTES = 4, 106496


def convolve_heads(operands, geometry, epilogue, eps):
    """Compute operands.parts."""
    steps = build(geometry, nl.num_programs(), nl.program_id(0))
    if not steps:
        return
    # spans in order of their first use, and the last step of each; (x, filters) of spans in SBUF; filters of two groups
    last = {step.span: index for index, step in enumerate(steps)}
    spans, numbers = list(last), {span: number for number, span in enumerate(last)}
    out, held, filters, loaded = Results(operands.parts, epilogue, eps, warmed()), {}, {}, 0
    for index, step in enumerate(steps):
        for span in spans[loaded : numbers[step.span] + SPANS_AHEAD + 1]:
            if span.group not in filters:
                found = load_filters(operands, geometry, span.group, loaded == 0, out)
                filters = {**dict(list(filters.items())[-1:]), span.group: found}
            held[span] = load_span(operands, geometry, span), filters[span.group]
            loaded += 1
        for near in steps[index : index + 2]:
            finish_gates(held[near.span][0].pending, out.ledger)
        run_step(out, geometry, step, *held[step.span])
        if last[step.span] == index:
            del held[step.span]
    out.end()


def run_step(out, geometry, step, loaded, filters):
    """Compute y of a step."""
    span = step.span

    def window(rows, tile, s):
        return loaded.x[0:rows, tile, :, step.first + s : step.first + s + step.count]

    token = span.row.image * geometry.T + span.row.first + span.first + step.first
    y = out.rows(span.group, span.images * step.count, token, 1)
    out.add(span.group, span.images * step.count, window, filters, *y, loaded.factors.get(step.first))


@dataclass
class HeldSpan:
    """A span in SBUF. x: [partitions, tiles, images, S - 1 + tokens], whose first S - 1 columns are the halo before it;
    pending: its halo's transpose and x's products; factors: y's, [tokens, channels], by the first tokens of steps."""

    x: Any
    pending: list
    factors: dict


def load_span(operands, geometry, span):
    """Start the loads of a span's x and its factors."""
    group, row, halo, gate = span.group, span.row, geometry.S - 1, gate_of(geometry)
    before = min(halo, span.first)
    first, shape = row.first + span.first - before, (group.runs[0].rows, group.tiles, span.images, halo + span.count)
    sources = {chunk: nl.ndarray(shape, dtype=operands.x.dtype, buffer=nl.sbuf) for chunk in ("x", *gate)}
    held = HeldSpan(sources["x"], [], {})
    has_state = before < halo and operands.state != None
    transposes_state = has_state and transposes_states(geometry, span.images)
    transposes_x = transposes_tokens(geometry, row, span.images)
    if transposes_state:
        state_sbuf = load_state(operands, geometry, group, row.number, span.images)
        held.pending.append(partial(transpose_positions, held.x[:, :, :, 0:halo], group, state_sbuf))
    for chunk, into in sources.items() if transposes_x else ():
        x_sbuf = nl.ndarray((span.images, group.count, row.count), dtype=into.dtype, buffer=nl.sbuf)
        offset = place_of(geometry, chunk, row, first, group.c0)
        load(x_sbuf, operands.x, [[geometry.x_n, span.images], [1, group.count * row.count]], offset)
        held.pending.append(partial(transpose_positions, into[:, :, :, halo:], group, x_sbuf))
    for run in group.runs:
        tiles = slice(run.tile0, run.tile0 + run.tiles)
        if before < halo and not transposes_state:
            load_halo(held.x[0 : run.rows, tiles, :, 0:halo], operands, geometry, run, row)
        arrived = [tile[0 : run.rows, tiles, :, halo - before : halo + span.count] for tile in sources.values()]
        for chunk, into in zip(() if transposes_x else sources, arrived):
            load_columns(into, operands.x, geometry, run, row, place_of(geometry, chunk, row, first, run.c0))
        held.pending += gates_of(arrived, gate == "G")
    if "C" in geometry.chunks:
        for begin, count in cut_at(span.images * span.count, nl.tile_size.pmax):
            held.factors[begin] = nl.ndarray((count, group.count), dtype=operands.x.dtype, buffer=nl.sbuf)
            offset = place_of(geometry, "C", row, row.first + span.first + begin, group.c0)
            load(held.factors[begin], operands.x, [[geometry.x_t, count], [geometry.x_c, group.count]], offset)
    return held


def place_of(geometry, chunk, row, token, channel):
    """The offset in HBM of a token of a row's image, and of a channel of a chunk of x."""
    offset = row.image * geometry.x_n + token * geometry.x_t + (geometry.first + channel) * geometry.x_c
    return offset + chunk_start(geometry, chunk)


def row_step(geometry, row):
    """Elements of x from a row to the next of the same length."""
    return geometry.x_n if row.count == geometry.T else row.count * geometry.x_t


def load_columns(into, x_hbm, geometry, run, row, offset):
    """Load tokens of a run of channel tiles into [partitions, tiles, images, tokens] of SBUF, from a row on."""
    steps = (run.row_step * geometry.x_c, run.tile_step * geometry.x_c, row_step(geometry, row), geometry.x_t)
    if geometry.x_t == 1:
        load(into, x_hbm, list(zip(steps, into.shape, strict=True)), offset)
    else:
        load_transposed(into, x_hbm, steps, offset, None)


def load_halo(dst, operands, geometry, run, row):
    """Fill the halo before a run of channel tiles of a row: zeros, or its state."""
    if operands.state == None:
        nisa.memset(dst=dst, value=0.0, engine=nisa.engine.gpsimd)
        return
    size = geometry.S - 1
    steps = run.row_step * size, run.tile_step * size, geometry.C * size, 1
    load(dst, operands.state, list(zip(steps, dst.shape)), (row.number * geometry.C + run.c0) * size)


def transpose_positions(dst, group, source, ledger):
    """Transpose states or tokens [images, channels of a group, positions] in SBUF, position by position, into
    [channels, tiles, images, positions]: loaded so, HBM sees long runs."""
    for place in range(source.shape[2]):
        transpose_channels(dst[:, :, :, place], group, source[:, :, place], ledger)


def load_state(operands, geometry, group, first, images, slots=None, lead=0):
    """Load the states of a group's channels from row `first` on, or of slots by index: [images, channels, S - 1] in
    SBUF, from partition `lead` on."""
    size, count = geometry.S - 1, group.count
    whole_sbuf = nl.ndarray((lead + images, count, size), dtype=operands.state.dtype, buffer=nl.sbuf)
    state_sbuf = whole_sbuf[lead : lead + images]
    pattern = [[geometry.C * size, images], [1, count * size]]
    into = state_sbuf.reshape((images, count * size))
    if slots is None:
        load(into, operands.state, pattern, (first * geometry.C + group.c0) * size)
    else:
        nisa.memset(dst=into, value=0.0)
        load_from_rows(into, states_of_slots(operands, geometry, group), slots)
    return state_sbuf


def states_of_slots(operands, geometry, group):
    """States of a group's channels in HBM, [slots, elements]."""
    size = geometry.S - 1
    every = operands.state.reshape((operands.state.shape[0], geometry.C * size))
    return every[:, group.c0 * size : (group.c0 + group.count) * size]


def load_filters(operands, geometry, group, first, out):
    """(diagonals, bias) of a group in SBUF: a matrix [partitions, S, partitions] for each tile, with the filters of tap
    s on its diagonal; [128, channels] fp32 on all partitions, or None.

    first: whether it is the core's first group: then tiles are made one by one, so that the first is ready early.
    """
    S, diagonals = geometry.S, []
    for run in group.runs:
        w_sbuf = nl.ndarray((run.rows, run.tiles, S), dtype=operands.w.dtype, buffer=nl.sbuf)
        load(w_sbuf, operands.w, [[run.row_step * S, run.rows], [run.tile_step * S, run.tiles], [1, S]], run.c0 * S)
        each = 1 if first else run.tiles
        for tile in range(0, run.tiles, each):
            taps = w_sbuf[:, tile : tile + each].reshape((run.rows, each * S))
            by_vector = pick_select(out.ledger, each * S * run.rows, is_16bit(taps.dtype)) == nisa.engine.vector
            found = make_diagonals(taps, operands.w.dtype, out.ones_of(taps.dtype) if by_vector else None)
            diagonals += [found[0 : run.rows, one * S : (one + 1) * S, 0 : run.rows] for one in range(each)]
    return diagonals, load_bias_rows(operands.bias, group.c0, group.count)


def warmed():
    """WarmBanks of matmuls on zeros during the first loads."""
    return warm_up(warm_zeros(), WARM_UPS, WARM_BLOCKS)


class Results:
    """A core's evacuation into parts of y in HBM; norms: the unfinished norms of heads, oldest first."""

    def __init__(self, parts, epilogue, eps, warm=()):
        self.parts, self.epilogue, self.eps, self.ledger, self.norms = parts, epilogue, eps, new_ledger(), []
        self.warm, self.ones_sbuf = warm, None

    def ones_of(self, dtype):
        """An identity matrix [128, 128] of a dtype."""
        if self.ones_sbuf is None:
            self.ones_sbuf = select_ones(nl.tile_size.pmax, [[-1, nl.tile_size.pmax]], 0, dtype)
        return self.ones_sbuf

    def rows(self, group, count, token, step):
        """(a tile [tokens, channels] for y of a group, its stores): tokens of y [N * T, heads, dim] from `token` on,
        `step` apart."""
        y_hbm = self.parts[group.part]
        y_sbuf, channels = nl.ndarray((count, group.count), y_hbm.dtype, buffer=nl.sbuf), size_of(y_hbm.shape[2:])
        pattern = [[step * channels, count], [1, group.count]]
        return y_sbuf, [(y_sbuf, y_hbm, pattern, token * channels + group.first)]

    def add(self, group, count, window, filters, y_sbuf, stores, factor=None):
        """Compute y of `count` tokens of a group.

        window: returns the view [partitions, tokens] of x at (partitions, tile, tap). filters: of `load_filters`.
        y_sbuf, stores: as in `finish`. factor: y's, [tokens, channels] in SBUF, or None.
        """
        diagonals, bias = filters
        acc_psum, started = accumulator(self.warm, (count, group.count))
        for run in group.runs:
            for tile in range(run.tile0, run.tile0 + run.tiles):
                for s in range(diagonals[tile].shape[1]):
                    moving, adds = diagonals[tile][0 : run.rows, s, 0 : run.rows], started or s > 0
                    multiply(acc_psum[:, group.channels(run, tile)], window(run.rows, tile, s), moving, adds)
        bias = None if bias == None else bias[0:count, 0 : group.count]
        self.finish(acc_psum, bias, factor, group.heads, y_sbuf, stores)

    def finish(self, sums, bias, factor, heads, y_sbuf, stores):
        """Evacuate sums [tokens, channels] of so many heads, none of them normalised if 0, to y_sbuf; also of [rows,
        tokens, channels], a head of each token. stores: (view, tensor in HBM, pattern, offset) to store then."""
        self.advance()
        z_sbuf = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf) if heads > 0 else y_sbuf
        evacuate(z_sbuf, sums, bias, factor, self.epilogue, self.ledger)
        if heads == 0:
            store_all(stores)
        else:
            shape = (sums.shape[0], heads, size_of(sums.shape[1:]) // heads)
            self.norms.append(self.normalize(z_sbuf.reshape(shape), y_sbuf.reshape(shape), stores))

    def normalize(self, z, y, stores):
        """Compute and store y of z [tokens, heads, dim], in stages that are issued one step apart, so that no engine
        waits for another's latest result: by Vector, and the product by Vector or GpSimd."""
        (tokens, heads, dim), ledger = z.shape, self.ledger
        stats_sbuf = nl.ndarray((tokens, heads, 2, 3), dtype=nl.float32, buffer=nl.sbuf)
        for head in range(heads):
            book_vector(ledger, dim)
            into = stats_sbuf[:, head].reshape((tokens, 6))
            nisa.bn_stats(dst=into, data=z[:, head])
        yield True
        counts, means = (stats_sbuf[:, :, :, which] for which in (0, 1))
        for _ in range(2):
            book_vector(ledger, 2 * heads)
            nisa.tensor_tensor(dst=counts, data1=counts, data2=means, op=nl.multiply)
            yield True
        factor_sbuf = nl.ndarray((tokens, heads, 1), dtype=nl.float32, buffer=nl.sbuf)
        book_vector(ledger, 4 * heads)
        nisa.tensor_reduce(dst=factor_sbuf, op=nl.add, data=stats_sbuf[:, :, :, 0:3:2], axis=(2, 3))
        yield True
        book_vector(ledger, heads)
        nisa.tensor_scalar(
            dst=factor_sbuf, data=factor_sbuf, op0=nl.add, operand0=self.eps, op1=nl.power, operand1=-0.5
        )
        yield True
        engine = pick_sum(ledger, size_of(z.shape[1:]), False)
        nisa.tensor_tensor(dst=y, data1=z, data2=factor_sbuf.broadcast(2, dim), op=nl.multiply, engine=engine)
        store_all(stores)

    def advance(self):
        """Issue one more stage of each norm, oldest first."""
        self.norms = [one for one in self.norms if next(one, False)]

    def end(self):
        """Issue all remaining stages."""
        while self.norms:
            self.advance()


def store_all(stores):
    """Store views of SBUF; stores: (view, tensor in HBM, pattern, offset)."""
    for one in stores:
        store(*one)


def new_states(operands, geometry, *counts):
    """New states in HBM, [rows, or `counts`, C, S - 1]."""
    shape = (*(counts or (len(geometry.rows),)), geometry.C, geometry.S - 1)
    return nl.ndarray(shape, dtype=operands.x.dtype, buffer=nl.shared_hbm)


def store_final_states(operands, geometry, final_hbm, empty):
    """Store the states after the rows, [rows, C, S - 1] in HBM; empty: only of rows without tokens."""
    rows = geometry.rows
    if len({row.count for row in rows}) == 1 and not empty:
        store_state(operands, geometry, rows[0], final_hbm, 0, len(rows))
        return
    for row in rows:
        if row.count == 0 or not empty:
            store_state(operands, geometry, row, final_hbm, row.number)


def store_states(operands, geometry, positions):
    """Store the states after some positions of the images; returns [N, positions, C, S - 1] in HBM."""
    states_hbm = new_states(operands, geometry, geometry.N, len(positions))
    for image, number, row in states_after(geometry.rows, positions):
        store_state(operands, geometry, row, states_hbm, image * len(positions) + number)
    return states_hbm


def store_state(operands, geometry, row, states_hbm, place, images=1):
    """Store the last inputs of a row, or of `images` rows of its length, as states from `place` on of [..., C, S - 1];
    an empty row stores its own state."""
    C, size = geometry.C, geometry.S - 1
    steps, gate = (row_step(geometry, row), geometry.x_c, geometry.x_t), gate_of(geometry)
    state = None if operands.state is None else states_of(operands.state, C, -size, 0, row.number * C)
    x, *factors = (
        Rows(operands.x, steps, 0, row.count, place_of(geometry, chunk, row, row.first, 0)) for chunk in ("x", *gate)
    )
    tensors = RowTensors(x, state, gate=factors[0] if gate else None, is_sigmoid=gate == "G")
    final = states_of(states_hbm, C, 0, size, place * C)
    if row.count > 0:
        store_final_state(tensors, final, images, C)
    else:
        store_rows(tensors, final, 0, *share(C, nl.num_programs(), nl.program_id(0)))


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
    steps, T = build(geometry, nl.num_programs(), nl.program_id(0)), tokens[0]
    out = Results(operands.parts, epilogue, eps, warmed())
    # x, states before and after, and filters
    group_bytes = BANK_COLUMNS * (T + 3 * geometry.S) * geometry.itemsize
    slots, held, count, ahead = {}, [], len(steps), min(GROUPS_AHEAD, max(1, HELD_BYTES // group_bytes))
    for index in range(count + 1):
        for step in steps[len(held) : index + ahead]:
            held.append(load_group(operands, geometry, step, tokens, slots))
            held[-1].filters = load_filters(operands, geometry, held[-1].group, len(held) == 1, out)
        if index < count:
            places = range(geometry.S - 1 + T)
            held[index].positions = [transpose_position(held[index], place, out.ledger) for place in places]
        if index > 0:
            before, held[index - 1] = held[index - 1], None
            for t in range(T):
                sum_token(out, before, t, T)
            before.state = next_states(before.state, before.x, T, out.ledger)
            store_next_states(operands, geometry, before)
    out.end()


def load_group(operands, geometry, step, tokens, rows):
    """Start the loads of a group's states and tokens; rows: loaded slots by their first sequence."""
    group, first, count = step.span.group, step.span.first + step.first, step.count
    if operands.indices != None and first not in rows:
        rows[first] = nl.ndarray((count, 1), dtype=operands.indices.dtype, buffer=nl.sbuf)
        load(rows[first], operands.indices, [[1, count], [1, 1]], first)
    slots = rows.get(first)
    state_sbuf = load_state(operands, geometry, group, first, count, slots)
    place = [[geometry.x_n, count]], first * geometry.x_n + group.c0 * geometry.x_c
    x_sbuf = load_tokens(operands, geometry, place, group.count, tokens)
    return HeldGroup(group, first, count, slots, state_sbuf, x_sbuf, (), [])


def load_tokens(operands, geometry, place, channels, tokens):
    """Load neighbouring channels of each token, in memory order: a view [partitions, channels, tokens] of SBUF. place:
    (pattern of the partitions, offset) in HBM; tokens: (T, x's stride along tokens)."""
    (lead, offset), axes, by_token = place, [[geometry.x_c, channels], [tokens[1], tokens[0]]], geometry.x_c == 1
    axes = axes[::-1] if by_token else axes
    shape = size_of([count for _, count in lead]), *(count for _, count in axes)
    x_sbuf = nl.ndarray(shape, dtype=operands.x.dtype, buffer=nl.sbuf)
    load(x_sbuf, operands.x, [*lead, *axes], offset)
    return x_sbuf.permute((0, 2, 1)) if by_token else x_sbuf


def transpose_position(held, place, ledger):
    """Transpose a position of the state, or of x after it, into [channels, tiles, sequences] in SBUF."""
    size = held.state.shape[2]
    source, place = (held.state, place) if place < size else (held.x, place - size)
    shape = (nl.tile_size.pmax, held.group.tiles, held.count)
    found_sbuf = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    transpose_channels(found_sbuf, held.group, source[:, :, place], ledger)
    return found_sbuf


def transpose_channels(dst, group, source, ledger):
    """Transpose a group's channels [sequences, channels] into [channels, tiles, sequences] in SBUF, on Tensor."""
    count = source.shape[0]
    shape = (nl.tile_size.pmax, group.tiles, whole_words(count, 2))
    found_psum = nl.ndarray(shape, dtype=source.dtype, buffer=nl.psum)
    for run in group.runs:
        tiles = slice(run.tile0, run.tile0 + run.tiles)
        every = [group.channels(run, tile) for tile in range(tiles.start, tiles.stop)]
        transpose_into(found_psum[:, tiles], [source[:, channels] for channels in every])
        copy_balanced(dst[0 : run.rows, tiles], found_psum[0 : run.rows, tiles, 0:count], ledger)


def sum_token(out, held, t, T):
    """Compute y of token t of the T tokens of a group's sequences."""

    def window(rows, tile, s):
        return held.positions[t + s][0:rows, tile, 0 : held.count]

    out.add(held.group, held.count, window, held.filters, *out.rows(held.group, held.count, held.first * T + t, T))


def next_states(state, x, T, ledger):
    """The last positions of a state [.., channels, S - 1] and of x [.., channels, tokens] after it, a new tile."""
    size = state.shape[2]
    kept, next_sbuf = max(0, size - T), nl.ndarray(state.shape, dtype=state.dtype, buffer=nl.sbuf)
    copy_balanced(next_sbuf[:, :, kept:], x[:, :, T - (size - kept) : T], ledger)
    if kept > 0:
        copy_balanced(next_sbuf[:, :, 0:kept], state[:, :, size - kept :], ledger)
    return next_sbuf


def store_next_states(operands, geometry, held):
    """Store states to their slots; padding's are not stored."""
    group, size = held.group, geometry.S - 1
    elements = group.count * size
    source, pattern = held.state.reshape((held.count, elements)), [[geometry.C * size, held.count], [1, elements]]
    if held.slots is None:
        store(source, operands.state, pattern, (held.first * geometry.C + group.c0) * size)
    else:
        store_to_rows(source, states_of_slots(operands, geometry, group), held.slots)
