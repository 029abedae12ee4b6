"""A decode step of few sequences: each partition has some channels of a sequence, of a norm a whole head.

    for each tile of (sequence, range of channels):
        for each token t:  sums = sum over s of row[.., t + s] * w[.., s],   row = state, then x
        z = act(sums + bias);  y = z, or z / sqrt(sum of z^2 over its head + eps)
        state = the last S - 1 positions of row

Rows, filters and states are loaded in runs of HBM, and nothing is transposed. States of slots by index are gathered by
the index of each partition's range among those of all slots. Channels are never mixed but in a norm: a NaN or Inf stays
in its channel, or head.
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nisa, nl
from ....schedules.split import row_tiles
from ....schedules.tiles import size_of
from ..._dma import copy, load, load_from_rows, store, store_to_rows
from ..._engines import book_vector, pick_sum, scaled
from .kernel import Results, load_tokens, next_states


@dataclass
class Rows:
    """A tile in SBUF, (sequence, range) on the partitions: state [.., channels, S - 1], x [.., channels, tokens], w
    [.., channels, S], bias [.., 1, channels] fp32 or None; places: of `find_places`, or None."""

    state: Any
    x: Any
    w: Any
    bias: Any
    places: Any


def step_rows(operands, geometry, epilogue, eps, tokens):
    """Compute operands.parts and operands.state. geometry: with sequences as its tokens; tokens: (T, x's stride along
    tokens)."""
    out, by_index = Results(operands.parts, epilogue, eps), operands.indices != None
    tiles = row_tiles(geometry, nl.num_programs(), nl.program_id(0), by_index)
    T, held, slots_sbuf = tokens[0], [], None
    if by_index and tiles:
        slots_sbuf = nl.ndarray((1, geometry.N), dtype=operands.indices.dtype, buffer=nl.sbuf)
        load(slots_sbuf, operands.indices, [[geometry.N, 1], [1, geometry.N]], 0)
    for tile in tiles:  # all loads first: with slots by index, one may depend on a store before it
        held.append(load_rows(operands, geometry, tile, tokens, slots_sbuf, held[-1:]))
    for tile, rows in zip(tiles, held, strict=True):
        sums_sbuf = sum_rows(rows, T, out.ledger)
        store_next(operands, geometry, tile, rows, T, out.ledger)
        y_hbm, bias = operands.parts[tile.part], None if rows.bias is None else rows.bias.broadcast(1, T)
        step = y_hbm.shape[2] * y_hbm.shape[3]
        pattern = [[T * step, tile.images], [tile.length, tile.rows], [step, T], [1, tile.length]]
        y_sbuf = nl.ndarray(sums_sbuf.shape, dtype=y_hbm.dtype, buffer=nl.sbuf)
        stores = [(y_sbuf, y_hbm, pattern, tile.image * T * step + tile.first)]
        out.finish(sums_sbuf, bias, None, T * tile.heads, y_sbuf, stores)
    out.end()


def load_rows(operands, geometry, tile, tokens, slots_sbuf, before):
    """Start the loads of a tile. slots_sbuf: of all sequences [1, N], or None; before: [the Rows of the tile before],
    [] for the first."""
    parts, length, S = tile.images * tile.rows, tile.length, geometry.S
    places = None if slots_sbuf is None else find_places(geometry, tile, slots_sbuf)
    state_sbuf = load_states(operands, geometry, tile, places)
    lead = [[geometry.x_n, tile.images], [length * geometry.x_c, tile.rows]]
    place = lead, tile.image * geometry.x_n + tile.c0 * geometry.x_c
    x_sbuf = load_tokens(operands, geometry, place, length, tokens)
    if tile.image > 0:  # the same channels of other sequences, at most as many
        w_sbuf, bias_sbuf = before[0].w[0:parts], None if before[0].bias is None else before[0].bias[0:parts]
        return Rows(state_sbuf, x_sbuf, w_sbuf, bias_sbuf, places)
    w_sbuf, bias_sbuf = nl.ndarray((parts, length, S), dtype=operands.w.dtype, buffer=nl.sbuf), None
    load(w_sbuf, operands.w, [[0, tile.images], [length * S, tile.rows], [1, length * S]], tile.c0 * S)
    if operands.bias != None:
        bias_sbuf = nl.ndarray((parts, 1, length), dtype=nl.float32, buffer=nl.sbuf)
        load(bias_sbuf, operands.bias, [[0, tile.images], [length, tile.rows], [1, length]], tile.c0)
    return Rows(state_sbuf, x_sbuf, w_sbuf, bias_sbuf, places)


def find_places(geometry, tile, slots_sbuf):
    """The index of each range of a tile among the ranges of all slots, [(sequence, range), 1] in SBUF; negative for a
    negative slot. On one partition, whence a DMA takes it to all."""
    shape, each = (1, tile.images, tile.rows), geometry.C // tile.length
    ranges_sbuf, found_sbuf = (nl.ndarray(shape, dtype=slots_sbuf.dtype, buffer=nl.sbuf) for _ in range(2))
    steps = [[0, tile.images], [1, tile.rows]]
    nisa.iota(dst=ranges_sbuf, pattern=steps, offset=tile.c0 // tile.length, channel_multiplier=0)
    slots = slots_sbuf[:, tile.image : tile.image + tile.images].expand_dim(2).broadcast(2, tile.rows)
    scaled(found_sbuf, slots, float(each), nl.add, ranges_sbuf)
    places_sbuf = nl.ndarray((tile.images * tile.rows, 1), dtype=slots_sbuf.dtype, buffer=nl.sbuf)
    copy(places_sbuf, found_sbuf)
    return places_sbuf


def ranges_of(operands, geometry, tile):
    """(states in HBM, access pattern, offset) of a tile's ranges: of all slots' ranges, or of the first sequence on."""
    state, size = operands.state, geometry.S - 1
    run = tile.length * size
    if operands.indices != None:
        ranges = state.reshape((size_of(state.shape) // run, run))
        return ranges, [[run, tile.images * tile.rows], [1, run]], 0
    pattern = [[geometry.C * size, tile.images], [run, tile.rows], [1, run]]
    return state, pattern, (tile.image * geometry.C + tile.c0) * size


def load_states(operands, geometry, tile, places):
    """The states of a tile, [(sequence, range), channels, S - 1] in SBUF, zeros where there is no such slot."""
    shape = tile.images * tile.rows, tile.length, geometry.S - 1
    state_sbuf = nl.ndarray(shape, dtype=operands.state.dtype, buffer=nl.sbuf)
    hbm, pattern, offset = ranges_of(operands, geometry, tile)
    if places is None:
        load(state_sbuf, hbm, pattern, offset)
    else:
        nisa.memset(dst=state_sbuf, value=0.0)
        load_from_rows(state_sbuf.reshape((shape[0], shape[1] * shape[2])), hbm, places)
    return state_sbuf


def sum_rows(rows, T, ledger):
    """Sums of all taps, [(sequence, range), tokens, channels] fp32 in SBUF: products by Vector or GpSimd, sums by
    Vector."""
    (parts, length, S), size = rows.w.shape, rows.state.shape[2]
    sums_sbuf = nl.ndarray((parts, T, length), dtype=nl.float32, buffer=nl.sbuf)
    for t in range(T):
        products_sbuf, kept = nl.ndarray((parts, length, S), dtype=nl.float32, buffer=nl.sbuf), max(0, size - t)
        sources = (rows.state[:, :, size - kept :], 0, kept), (rows.x[:, :, t + 1 - (S - kept) : t + 1], kept, S)
        for data, begin, end in sources:
            if begin < end:
                into, w = (one[:, :, begin:end] for one in (products_sbuf, rows.w))
                engine = pick_sum(ledger, size_of(into.shape[1:]), False)
                nisa.tensor_tensor(dst=into, data1=data, data2=w, op=nl.multiply, engine=engine)
        book_vector(ledger, length * S)
        nisa.tensor_reduce(dst=sums_sbuf[:, t], op=nl.add, data=products_sbuf, axis=2)
    return sums_sbuf


def store_next(operands, geometry, tile, rows, T, ledger):
    """Store the last positions of states and x as the next states."""
    next_sbuf = next_states(rows.state, rows.x, T, ledger)
    hbm, pattern, offset = ranges_of(operands, geometry, tile)
    if rows.places is None:
        store(next_sbuf, hbm, pattern, offset)
    else:
        store_to_rows(next_sbuf.reshape((next_sbuf.shape[0], pattern[-1][1])), hbm, rows.places)
