"""Accumulators on their way to HBM: evacuated, added to what there is, or to those of the other half of the units."""

from ..._nki import nisa, nl
from ...schedules.blocks import banks_of_taps
from ...schedules.regions import pattern_of
from ...schedules.tiles import size_of
from .._dma import copy
from .._engines import pick
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


def place_of_sums(work, accumulator):
    """(tensor in HBM, pattern, offset) of an accumulator's sums there, channels last or first, as in the filter."""
    acc, strides, (planes, rows, columns) = accumulator, work.geometry.w_strides, taps_stored(work, accumulator)
    if acc.bias:
        (k, kn), (c, cn) = acc.k, acc.c  # of one of both there is one
        return work.bias, [[1, kn], [1, cn], [1, 1], [1, 1]], k + c
    # channels of a group are counted from its first one
    c, row = acc.c[0] % (work.geometry.C // work.geometry.groups), planes * work.geometry.rows.taps + rows
    channels, taps = [strides[1], acc.c[1]], [[strides[2], acc.r[1]], [strides[3], acc.s[1]]]
    pattern = [[strides[0], acc.k[1]]] + (taps + [channels] if filters_last(work) else [channels] + taps)
    return work.operands.y, pattern, offset_at(strides, (acc.k[0], c, row, columns))


def taps_stored(work, accumulator):
    """The first plane, row and column of an accumulator's taps as the filter has them."""
    acc, geometry = accumulator, work.geometry
    if not geometry.flipped:
        return acc.t, acc.r[0], acc.s[0]
    row, column = geometry.rows.taps - sum(acc.r), geometry.columns.taps - sum(acc.s)
    return geometry.planes.taps - 1 - acc.t, row, column


def filters_last(work):
    """Whether channels of filters are neighbours in memory."""
    return work.geometry.w_strides[1] < work.geometry.w_strides[3]


def added_to(work, accumulator, pattern, offset):
    """What an accumulator's own sums are added to, None if nothing is."""
    alone = not accumulator.bias and (accumulator.k, accumulator.c) not in work.gathered
    return added_sums(work, pattern, offset) if alone and work.added != None else None


def added_sums(work, pattern, offset):
    """A region of what sums are added to."""
    added_sbuf = nl.ndarray([count for _, count in pattern], dtype=nl.float32, buffer=nl.sbuf)
    copy(added_sbuf, work.added.ap(pattern=pattern, offset=offset))
    return added_sbuf


def gathered_of(geometry, passes):
    """Accumulators of passes whose channels have several, for all taps: by channels [a tile in SBUF for all of them, or
    None, how many are missing]."""
    every = [(acc.k, acc.c) for one in passes for some in one.rounds for acc in some if not acc.bias]
    count = banks_of_taps(geometry)
    return {key: [None, count] for key in dict.fromkeys(every) if count > 1 and every.count(key) == count}


def room_for(work, accumulator, into, pattern):
    """Room in SBUF for an accumulator's sums: a tile, or its taps in one for all taps of its channels."""
    acc, gathered = accumulator, work.gathered.get((accumulator.k, accumulator.c))
    shape = [count for _, count in pattern]
    if acc.bias or gathered == None:
        return nl.ndarray(shape, dtype=into.dtype, buffer=nl.sbuf)
    R, S, last = work.geometry.rows.taps, work.geometry.columns.taps, filters_last(work)
    if gathered[0] == None:
        rows = work.geometry.planes.taps * R
        whole = (acc.k[1], rows, S, acc.c[1]) if last else (acc.k[1], acc.c[1], rows, S)
        gathered[0] = nl.ndarray(whole, dtype=into.dtype if work.added == None else nl.float32, buffer=nl.sbuf)
    t, r, s = taps_stored(work, acc)
    rows, columns = slice(t * R + r, t * R + r + acc.r[1]), slice(s, s + acc.s[1])
    return gathered[0][:, rows, columns, :] if last else gathered[0][:, :, rows, columns]


def store(work, accumulator, found_sbuf, place):
    """Sums in SBUF to their place in HBM; of channels that have several accumulators all taps at once, when the last of
    them is there: a run of each output channel."""
    into, pattern, offset = place
    gathered = None if accumulator.bias else work.gathered.get((accumulator.k, accumulator.c))
    if gathered != None:
        gathered[1] -= 1
        if gathered[1] > 0:
            return
        found_sbuf, strides = gathered[0], work.geometry.w_strides
        c = accumulator.c[0] % (work.geometry.C // work.geometry.groups)
        pattern, offset = pattern_of(strides, found_sbuf.shape), offset_at(strides, (accumulator.k[0], c, 0, 0))
        if filters_last(work):
            pattern = pattern_of(tuple(strides[axis] for axis in (0, 2, 3, 1)), found_sbuf.shape)
        if work.added != None:
            sums_sbuf, found_sbuf = found_sbuf, nl.ndarray(found_sbuf.shape, dtype=into.dtype, buffer=nl.sbuf)
            added = added_sums(work, pattern, offset)
            nisa.tensor_tensor(dst=found_sbuf, data1=sums_sbuf, data2=added, op=nl.add)
    k = own_part(work, accumulator.k[1])
    if k[1] > 0:
        rows, step = [pattern[0][0], k[1]], pattern[0][0]
        copy(into.ap(pattern=[rows, *pattern[1:]], offset=offset + k[0] * step), found_sbuf[k[0] : k[0] + k[1]])


def store_sums(work, accumulator, acc_psum):
    """An accumulator's sums, in the order of the filter, to HBM."""
    into, pattern, offset = place_of_sums(work, accumulator)
    found_sbuf, added = room_for(work, accumulator, into, pattern), added_to(work, accumulator, pattern, offset)
    add_beside(work, accumulator, acc_psum, found_sbuf, added)
    store(work, accumulator, found_sbuf, (into, pattern, offset))


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
    shape = [count for _, count in place_of_sums(work, accumulator)[1]]
    return tiles[tile][0 : shape[0], first : first + columns].reshape(shape)


def store_joint(work, accumulators, joint):
    """Sums of a round over a half of the units, with the other's, to HBM; or to where they wait for it."""
    tiles, places = joint
    others = [keep_sums(work, tile) if waits(work) else other_sums(work, tile) for tile in tiles]
    for accumulator, place in () if waits(work) else zip(accumulators, places):
        into, pattern, offset = place_of_sums(work, accumulator)
        mine, other = part_of_joint(work, accumulator, tiles, place), part_of_joint(work, accumulator, others, place)
        added = added_to(work, accumulator, pattern, offset)
        if added != None:
            nisa.tensor_tensor(dst=mine, data1=mine, data2=other, op=nl.add)
            other = added
        found_sbuf = room_for(work, accumulator, into, pattern)
        nisa.tensor_tensor(dst=found_sbuf, data1=mine, data2=other, op=nl.add)
        store(work, accumulator, found_sbuf, (into, pattern, offset))


def add_beside(work, accumulator, acc_psum, into_sbuf, added):
    """An accumulator's sums of the columns of gy that share its matmuls, and what is added, or None, added up."""
    for index in range(accumulator.beside):
        sums, end = sums_beside(work, accumulator, acc_psum, index), index + 1 == accumulator.beside
        found_sbuf = into_sbuf if end else nl.ndarray(into_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        if added == None:
            nisa.tensor_copy(dst=found_sbuf, src=sums, engine=pick(work.ledger, size_of(into_sbuf.shape[1:]), False))
        else:
            nisa.tensor_tensor(dst=found_sbuf, data1=sums, data2=added, op=nl.add)
        added = found_sbuf


def sums_beside(work, accumulator, acc_psum, index):
    """An accumulator's sums of the index-th of the columns of gy that share its matmuls, in the order of the filter."""
    acc, strides = accumulator, work.geometry.x_strides
    k, far = index * acc.k[1], 0 if acc.t < 0 else index * work.plan.further
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
