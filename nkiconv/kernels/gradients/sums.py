"""Accumulators on their way to HBM: evacuated, added to what there is, or to those of the other half of the units."""

from ..._nki import nisa, nl
from ...schedules.tiles import size_of
from .._dma import copy
from .._engines import pick
from .halves import keep_sums, other_sums, own_part, waits
from .loads import is_channels_last


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
    strides = work.geometry.w_strides
    if accumulator.t < 0:
        return work.bias, [[1, accumulator.k[1]], [1, 1], [1, 1], [1, 1]], accumulator.k[0]
    # channels of a group are counted from its first one
    c, row = (
        accumulator.c[0] % (work.geometry.C // work.geometry.groups),
        accumulator.t * work.geometry.rows.taps + accumulator.r[0],
    )
    channels, taps = [strides[1], accumulator.c[1]], [[strides[2], accumulator.r[1]], [strides[3], accumulator.s[1]]]
    pattern = [[strides[0], accumulator.k[1]]] + (taps + [channels] if filters_last(work) else [channels] + taps)
    offset = accumulator.k[0] * strides[0] + c * strides[1] + row * strides[2] + accumulator.s[0] * strides[3]
    return work.operands.y, pattern, offset


def filters_last(work):
    """Whether channels of filters are neighbours in memory."""
    return work.geometry.w_strides[1] < work.geometry.w_strides[3]


def added_sums(work, accumulator, pattern, offset):
    """What an accumulator's sums are added to, None if nothing is."""
    if accumulator.t < 0 or work.added == None:
        return None
    shape = (pattern[0][1], pattern[1][1], pattern[2][1], pattern[3][1])
    added_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    copy(added_sbuf, work.added.ap(pattern=pattern, offset=offset))
    return added_sbuf


def store_sums(work, accumulator, acc_psum):
    """An accumulator's sums, in the order of the filter, to HBM."""
    into, pattern, offset = place_of_sums(work, accumulator)
    shape = (pattern[0][1], pattern[1][1], pattern[2][1], pattern[3][1])
    found_sbuf = nl.ndarray(shape, dtype=into.dtype, buffer=nl.sbuf)
    add_beside(work, accumulator, acc_psum, found_sbuf, added_sums(work, accumulator, pattern, offset))
    copy(into.ap(pattern=pattern, offset=offset), found_sbuf)


def start_joint(work, accumulators):
    """Room for sums of a round's accumulators over a half of the units, which leave for the other core together: (tiles
    [k, columns] in SBUF, of each accumulator (its tile's number, first column, columns))."""
    sizes, places = [], []
    for accumulator in accumulators:
        columns, at = 1 if accumulator.t < 0 else accumulator.c[1] * accumulator.r[1] * accumulator.s[1], 0
        while at < len(sizes) and sizes[at][0] != accumulator.k[1]:
            at += 1
        if at == len(sizes):
            sizes.append((accumulator.k[1], 0))
        places.append((at, sizes[at][1], columns))
        sizes[at] = (accumulator.k[1], sizes[at][1] + columns)
    tiles = []
    for size in sizes:
        tiles.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.sbuf))
    return tiles, places


def part_of_joint(work, accumulator, tiles, place):
    """An accumulator's sums among those of a round."""
    pattern = place_of_sums(work, accumulator)[1]
    part = tiles[place[0]][0 : accumulator.k[1], place[1] : place[1] + place[2]]
    return part.reshape((accumulator.k[1], pattern[1][1], pattern[2][1], pattern[3][1]))


def store_joint(work, accumulators, joint):
    """Sums of a round over a half of the units, with the other's, to HBM; or to where they wait for it."""
    (tiles, places), others = joint, []
    for tile in tiles:
        if waits(work):
            keep_sums(work, tile)
        else:
            others.append(other_sums(work, tile))
    for index in range(0 if waits(work) else len(accumulators)):
        accumulator, place = accumulators[index], places[index]
        into, pattern, offset = place_of_sums(work, accumulator)
        mine, other = part_of_joint(work, accumulator, tiles, place), part_of_joint(work, accumulator, others, place)
        added = added_sums(work, accumulator, pattern, offset)
        if added != None:
            nisa.tensor_tensor(dst=mine, data1=mine, data2=other, op=nl.add)
            other = added
        found_sbuf = nl.ndarray(mine.shape, dtype=into.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=found_sbuf, data1=mine, data2=other, op=nl.add)
        k = own_part(work, accumulator.k[1])
        if k[1] > 0:
            part = found_sbuf[k[0] : k[0] + k[1], 0 : mine.shape[1], 0 : mine.shape[2], 0 : mine.shape[3]]
            copy(into.ap(pattern=[[pattern[0][0], k[1]]] + pattern[1:], offset=offset + k[0] * pattern[0][0]), part)


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
    k, far = index * accumulator.k[1], 0 if accumulator.t < 0 else index * work.plan.further
    last = accumulator.t >= 0 and filters_last(work)
    if is_channels_last(work.geometry.x_strides):
        sums = acc_psum[
            k : k + accumulator.k[1], 0 : accumulator.r[1], far : far + accumulator.s[1], 0 : accumulator.c[1]
        ]
        return sums if last else sums.permute((0, 3, 1, 2))
    sums = acc_psum[k : k + accumulator.k[1], 0 : accumulator.c[1], 0 : accumulator.r[1], far : far + accumulator.s[1]]
    return sums.permute((0, 2, 3, 1)) if last else sums
