"""Accumulators on their way to HBM: evacuated, added to what there is, or to those of the other half of the units."""

from collections import Counter
from dataclasses import dataclass

from ..._nki import nisa, nl
from ...schedules.blocks import banks_of_taps
from ...schedules.geometry import filter_rows
from ...schedules.tiles import size_of
from .._dma import copy
from .._engines import book_vector, pick
from ..conv.regions import offset_at
from .halves import keep_sums, other_sums, own_part, waits
from .loads import is_channels_last, part_of


def multiply(dst, stationary, moving, adds, side, below=(0, 1)):
    """A matmul on a row tile, (which, of how many), and on a column tile, if `dst` fits one."""
    P_MAX = nl.tile_size.pmax
    rows, columns = P_MAX // side[1], P_MAX // below[1]
    columns = columns if dst.shape[0] <= columns else P_MAX
    whole = rows == P_MAX and columns == P_MAX
    nisa.nc_matmul(
        dst=dst,
        stationary=stationary,
        moving=moving,
        accumulate=adds,
        tile_position=() if whole else (side[0] * rows, below[0] * columns),
        tile_size=() if whole else (rows, columns),
    )


def filters_last(work):
    """Whether channels of filters are neighbours in memory."""
    return work.geometry.w_strides[1] < work.geometry.w_strides[3]


@dataclass
class Leaving(nl.NKIObject):
    """Sums of some taps of some channels that leave together. place: (tensor in HBM, pattern, offset); first: their
    first row of taps, of all planes, and column; missing: accumulators still to come; in SBUF, or None: these sums, and
    what they are added to."""

    place: tuple
    first: tuple
    missing: int
    sums_sbuf: object = None
    added_sbuf: object = None


def leavings_of(work, passes):
    """By accumulator of passes its Leaving: of all taps of its channels, a run of HBM for each output channel, where
    they have all of these, else of its own."""
    every = [acc for one in passes for some in one.rounds for acc in some]
    count, banks, together = Counter(map(channels_of, every)), banks_of_taps(work.geometry), {}
    found = {}
    for acc in every:
        key = channels_of(acc)
        rows, columns = taps_stored(work, acc)
        if acc.bias or count[key] < banks:
            found[acc] = Leaving(place_of(work, acc, rows, columns), (rows[0], columns[0]), 1)
            continue
        if key not in together:
            whole = (0, filter_rows(work.geometry)), (0, work.geometry.columns.taps)
            together[key] = Leaving(place_of(work, acc, *whole), (0, 0), banks)
        found[acc] = together[key]
    return found


def channels_of(accumulator):
    """Output and input channels of an accumulator, and whether its sums are the bias's."""
    return accumulator.k, accumulator.c, accumulator.bias


def place_of(work, accumulator, rows, columns):
    """(tensor in HBM, pattern, offset) of an accumulator's channels at taps (first, how many), channels last or first,
    as in the filter."""
    acc, strides = accumulator, work.geometry.w_strides
    if acc.bias:
        (k, kn), (c, cn) = acc.k, acc.c  # of one of both there is one
        return work.bias, [[1, kn], [1, cn], [1, 1], [1, 1]], k + c
    # channels of a group are counted from its first one
    c = acc.c[0] % (work.geometry.C // work.geometry.groups)
    channels, taps = [strides[1], acc.c[1]], [[strides[2], rows[1]], [strides[3], columns[1]]]
    pattern = [[strides[0], acc.k[1]]] + (taps + [channels] if filters_last(work) else [channels] + taps)
    return work.operands.y, pattern, offset_at(strides, (acc.k[0], c, rows[0], columns[0]))


def taps_stored(work, accumulator):
    """(First, how many) rows of taps, of all planes, and columns of an accumulator, as the filter has them."""
    acc, geometry, (r, s) = accumulator, work.geometry, (accumulator.r, accumulator.s)
    if acc.bias:
        return (0, 1), (0, 1)
    t, row, column = acc.t, r[0], s[0]
    if geometry.flipped:
        t = geometry.planes.taps - 1 - t
        row, column = geometry.rows.taps - sum(r), geometry.columns.taps - sum(s)
    return (t * geometry.rows.taps + row, r[1]), (column, s[1])


def room_for(work, accumulator):
    """(Room in SBUF for an accumulator's sums, what they are added to, or None)."""
    one = work.leavings[accumulator]
    into, pattern, offset = one.place
    shape = [count for _, count in pattern]
    if one.added_sbuf == None and work.added != None and not accumulator.bias:
        one.added_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        copy(one.added_sbuf, work.added.ap(pattern=pattern, offset=offset))
    if one.sums_sbuf == None:
        one.sums_sbuf = nl.ndarray(shape, dtype=into.dtype, buffer=nl.sbuf)
    (r, rn), (s, sn) = taps_stored(work, accumulator)
    rows, columns = slice(r - one.first[0], r - one.first[0] + rn), slice(s - one.first[1], s - one.first[1] + sn)
    last = filters_last(work) and not accumulator.bias
    return [
        None if tile == None else tile[:, rows, columns, :] if last else tile[:, :, rows, columns]
        for tile in (one.sums_sbuf, one.added_sbuf)
    ]


def store(work, accumulator):
    """An accumulator's sums to HBM, with those that leave together, when the last of them is there."""
    one = work.leavings[accumulator]
    one.missing -= 1
    k = own_part(work, accumulator.k[1])
    if one.missing == 0 and k[1] > 0:
        into, pattern, offset = one.place
        step, own_sbuf = pattern[0][0], one.sums_sbuf[k[0] : k[0] + k[1]]
        copy(into.ap(pattern=[[step, k[1]], *pattern[1:]], offset=offset + k[0] * step), own_sbuf)


def store_sums(work, accumulator, acc_psum):
    """An accumulator's sums, in the order of the filter, to HBM."""
    add_beside(work, accumulator, acc_psum, *room_for(work, accumulator))
    store(work, accumulator)


def start_joint(accumulators):
    """Room for sums of a round's accumulators over a half of the units, which leave for the other core together: (tiles
    [k, columns] in SBUF, of each accumulator (its tile's number, first column, columns))."""
    sizes, places = {}, []
    for acc in accumulators:
        columns, first = 1 if acc.t < 0 else acc.c[1] * acc.r[1] * acc.s[1], sizes.setdefault(acc.k[1], 0)
        places.append((list(sizes).index(acc.k[1]), first, columns))
        sizes[acc.k[1]] += columns
    return [nl.ndarray(size, dtype=nl.float32, buffer=nl.sbuf) for size in sizes.items()], places


def part_of_joint(work, accumulator, tiles, place):
    """An accumulator's sums among those of a round."""
    tile, first, columns = place
    shape = [count for _, count in place_of(work, accumulator, *taps_stored(work, accumulator))[1]]
    return tiles[tile][0 : shape[0], first : first + columns].reshape(shape)


def store_joint(work, accumulators, joint):
    """Sums of a round over a half of the units, with the other's, to HBM; or to where they wait for it."""
    tiles, places = joint
    others = [keep_sums(work, tile) if waits(work) else other_sums(work, tile) for tile in tiles]
    for accumulator, place in () if waits(work) else zip(accumulators, places):
        mine, other = part_of_joint(work, accumulator, tiles, place), part_of_joint(work, accumulator, others, place)
        found_sbuf, added = room_for(work, accumulator)
        if added != None:
            nisa.tensor_tensor(dst=mine, data1=mine, data2=other, op=nl.add)
            other = added
        nisa.tensor_tensor(dst=found_sbuf, data1=mine, data2=other, op=nl.add)
        store(work, accumulator)


def add_beside(work, accumulator, acc_psum, into_sbuf, added):
    """An accumulator's sums of the columns of gy that share its matmuls, and what is added, or None, added up."""
    for index in range(accumulator.beside):
        sums, end = sums_beside(work, accumulator, acc_psum, index), index + 1 == accumulator.beside
        found_sbuf = into_sbuf if end else nl.ndarray(into_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        if added == None:
            nisa.tensor_copy(dst=found_sbuf, src=sums, engine=pick(work.ledger, size_of(into_sbuf.shape[1:]), False))
        else:
            book_vector(work.ledger, size_of(into_sbuf.shape[1:]))
            nisa.tensor_tensor(dst=found_sbuf, data1=sums, data2=added, op=nl.add)
        added = found_sbuf


def sums_beside(work, accumulator, acc_psum, index):
    """An accumulator's sums of the index-th of the columns of gy that share its matmuls, in the order of the filter."""
    acc, strides = accumulator, work.geometry.x_strides
    k, far = index * acc.pitch, 0 if acc.t < 0 else index * work.plan.further
    last = not acc.bias and filters_last(work)
    R, S, units, channels = acc.r[1], acc.s[1], (k, k + acc.k[1]), (0, acc.c[1])
    if work.geometry.flipped:
        # steps of access patterns are signed: APPair of KLR, github.com/leanprover/KLR, KLR/Core/Tensor.lean
        sums = part_of(acc_psum, strides, units, (R - 1, R), (far + S - 1, far + S), channels)
        sizes = acc_psum.shape[1:]
        steps = [size_of(sizes[axis + 1 :]) for axis in range(len(sizes))]
        counts, signs = (
            ((R, S, acc.c[1]), (-1, -1, 1)) if is_channels_last(strides) else ((acc.c[1], R, S), (1, -1, -1))
        )
        free = [[sign * step, count] for sign, step, count in zip(signs, steps, counts)]
        sums = sums.ap(pattern=[[size_of(sizes), acc.k[1]], *free])
    else:
        sums = part_of(acc_psum, strides, units, (0, R, 1), (far, far + S, 1), channels)
    if last == is_channels_last(strides):
        return sums
    return sums.permute((0, 2, 3, 1) if last else (0, 3, 1, 2))
