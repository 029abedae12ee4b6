"""The state of a core's work, and accumulators stored to HBM: evacuated, and added to a given gradient or to the sums
of the other half of units.

If the cores do not share channels, each sums half of all units: they exchange tiles of sums, each adds both and stores
a part. One core keeps the first half's tiles in HBM.
"""

from collections import Counter
from dataclasses import dataclass, field

from ..._nki import nisa, nl
from ...schedules.blocks import banks_of_taps, further_beside
from ...schedules.geometry import Geometry, filter_rows
from ...schedules.tiles import PARTS, share, size_of
from .._dma import copy
from .._engines import Ledger, book_vector, copy_balanced
from .._masks import constant
from ..conv.call import Operands, part_of_core
from ..conv.regions import offset_at
from .loads import as_stored, is_channels_last, sizes_stored, tile_of, with_last


@dataclass
class WeightWork(nl.NKIObject):
    """The state of one core's work. operands: x, gy as w, and the result in HBM as y; plan: an algorithm's plan; added:
    the tensor that the result is added to, or None; bias: the bias's gradient in HBM, or None; half: the current half
    of the units, -1: all; kept: tiles of the first half's sums in HBM, on one core, not yet added to the second half's;
    leavings: `leavings_of` of its passes."""

    operands: Operands
    geometry: Geometry
    plan: object
    added: object
    bias: object
    ledger: Ledger
    kept: list = field(default_factory=list)
    half: int = -1
    ones_sbuf: object = None
    leavings: dict = field(default_factory=dict)


def start_ones(work, dtype):
    """Ones [128, 1, 1, 1] for the sums of the bias's gradient, if it is asked for."""
    if work.bias != None:
        work.ones_sbuf = constant((nl.tile_size.pmax, 1, 1, 1), dtype, 1.0, nisa.engine.vector)


def run_parts(work, own, run):
    """Run passes: this core's own, over all units; with split all passes, over this core's halves of the units, whose
    sums are added."""
    if not work.plan.split:
        run(own)
        return
    for half in part_of_core(range(PARTS)):
        work.half = half
        run(work.plan.passes)


def own_part(work, count):
    """(first, how many) of `count` results that this core stores."""
    return (0, count) if work.half < 0 else share(count, nl.num_programs(), nl.program_id(0))


def with_other_half(work, sums_sbuf):
    """A tile of sums plus the other half's, if units are in halves; None if it waits for the second half."""
    if work.half >= 0:
        other = other_sums(work, sums_sbuf)
        if other == None:
            return None
        nisa.tensor_tensor(dst=sums_sbuf, data1=sums_sbuf, data2=other, op=nl.add)
    return sums_sbuf


def other_sums(work, sums_sbuf):
    """The other half's tile of the same sums. On one core the first half's are kept in HBM for the second half, and
    there is none: None."""
    if nl.num_programs() < PARTS and work.half == 0:
        work.kept.append(nl.ndarray(sums_sbuf.shape, dtype=nl.float32, buffer=nl.private_hbm))
        copy(work.kept[-1], sums_sbuf)
        return None
    other_sbuf = nl.ndarray(sums_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    if nl.num_programs() == PARTS:
        other = 1 - nl.program_id(0)
        nisa.sendrecv(src=sums_sbuf, dst=other_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    else:
        copy(other_sbuf, work.kept.pop(0))
    return other_sbuf


def filters_last(work):
    """Whether channels of filters are neighbours in memory."""
    return work.geometry.w_strides[1] < work.geometry.w_strides[3]


@dataclass
class Leaving(nl.NKIObject):
    """Sums of some channels that are stored together. rows, columns: (first, count) of taps in the filter's order, rows
    of all planes; missing: the number of accumulators to come; sums_sbuf: the sums [k, rows, columns, c], added_sbuf:
    the given gradient that they are added to, each in SBUF or None."""

    rows: tuple
    columns: tuple
    missing: int
    sums_sbuf: object = None
    added_sbuf: object = None


def leavings_of(work, passes):
    """The Leaving of each accumulator of passes: of all taps of its channels, a run of HBM for each output channel, if
    the passes have all of them, otherwise of its own taps."""
    every = [acc for one in passes for acc in one.accumulators]
    count, banks = Counter((acc.k, acc.c) for acc in every if not acc.bias), banks_of_taps(work.geometry)
    whole = (0, filter_rows(work.geometry)), (0, work.geometry.columns.taps)
    together = {channels: Leaving(*whole, banks) for channels, number in count.items() if number == banks}
    own = {acc: Leaving(*taps_stored(work, acc), 1) for acc in every}
    return {acc: one if acc.bias else together.get((acc.k, acc.c), one) for acc, one in own.items()}


def taps_stored(work, accumulator):
    """(first, count) of an accumulator's rows of taps, of all planes, and of its columns, in the filter's order."""
    acc, geometry, (r, s) = accumulator, work.geometry, (accumulator.r, accumulator.s)
    if acc.bias:
        return (0, 1), (0, 1)
    t, row, column = acc.t, r[0], s[0]
    if geometry.flipped:
        t = geometry.planes.taps - 1 - t
        row, column = geometry.rows.taps - sum(r), geometry.columns.taps - sum(s)
    return (t * geometry.rows.taps + row, r[1]), (column, s[1])


def move_filters(work, accumulator, tile_sbuf, k, hbm, stores):
    """Store output channels (first, count) of an accumulator's Leaving to HBM, or load them from there."""
    acc, strides, one, last = accumulator, work.geometry.w_strides, work.leavings[accumulator], filters_last(work)
    # channels of a group are counted from its first one
    first = acc.k[0] + k[0], acc.c[0] % (work.geometry.C // work.geometry.groups), one.rows[0], one.columns[0]
    offset, part = offset_at(strides, first), as_stored(tile_sbuf[k[0] : sum(k)], last)
    if acc.bias:  # one of k and c has a single channel
        strides, offset = (1, 1, 1, 1), acc.k[0] + k[0] + acc.c[0]
    axes = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    place = hbm.ap(pattern=[[strides[axis], count] for axis, count in zip(axes, part.shape)], offset=offset)
    copy(*((place, part) if stores else (part, place)))


def room_for(work, accumulator):
    """[tile in SBUF for an accumulator's sums, the given gradient that they are added to or None]."""
    one, last = work.leavings[accumulator], filters_last(work)
    (k, c), adds = (accumulator.k[1], accumulator.c[1]), work.added != None and not accumulator.bias
    sizes = k, one.rows[1], one.columns[1], c
    if one.added_sbuf == None and adds:
        one.added_sbuf = tile_of(last, sizes, nl.float32)
        move_filters(work, accumulator, one.added_sbuf, (0, k), work.added, False)
    if one.sums_sbuf == None:
        one.sums_sbuf = tile_of(last, sizes, nl.float32 if accumulator.bias else work.operands.y.dtype)
    (r, rn), (s, sn) = taps_stored(work, accumulator)
    rows, columns = slice(r - one.rows[0], r - one.rows[0] + rn), slice(s - one.columns[0], s - one.columns[0] + sn)
    return [None if tile == None else tile[:, rows, columns] for tile in (one.sums_sbuf, one.added_sbuf)]


def store(work, accumulator):
    """Count an accumulator's sums as evacuated; after the last one of its Leaving store all of them."""
    one = work.leavings[accumulator]
    one.missing -= 1
    k = own_part(work, accumulator.k[1])
    if one.missing == 0 and k[1] > 0:
        move_filters(work, accumulator, one.sums_sbuf, k, work.bias if accumulator.bias else work.operands.y, True)


def start_joint(accumulators):
    """Tiles [k, columns] in SBUF, by their rows, for the sums of a pass's accumulators over a half of the units, which
    the cores exchange together."""
    sizes = Counter()
    for acc in accumulators:
        sizes[acc.k[1]] += acc.r[1] * acc.s[1] * acc.c[1]
    return {k: nl.ndarray((k, size), dtype=nl.float32, buffer=nl.sbuf) for k, size in sizes.items()}


def parts_of_joint(work, accumulators, joint):
    """The view [k, rows, columns, c] of each accumulator's sums in its pass's tiles."""
    last, ends, found = filters_last(work), Counter(), []
    for acc in accumulators:
        sizes, first = (acc.k[1], acc.r[1], acc.s[1], acc.c[1]), ends[acc.k[1]]
        ends[acc.k[1]] += size_of(sizes[1:])
        part = joint[acc.k[1]][:, first : ends[acc.k[1]]].reshape(sizes_stored(last, sizes))
        found.append(with_last(part, last))
    return found


def store_sums(work, accumulators, bank, acc_psum, joint):
    """Evacuate a bank's sums, in the filter's order, and store them. joint: None, or the tiles of its pass for a half
    of the units: after the pass's last bank they are added to the other half's, or kept for it."""
    parts, others = sums_beside(work, accumulators[bank], acc_psum), {}
    if joint == None:
        into_sbuf, added = room_for(work, accumulators[bank])
        add_up(work, parts, added, into_sbuf)
        store(work, accumulators[bank])
        return
    add_up(work, parts, None, parts_of_joint(work, accumulators, joint)[bank])
    if bank == len(accumulators) - 1:
        others = {k: other_sums(work, tile) for k, tile in joint.items()}
    if others and None not in others.values():
        halves = (parts_of_joint(work, accumulators, tiles) for tiles in (joint, others))
        for acc, mine, other in zip(accumulators, *halves):
            into_sbuf, added = room_for(work, acc)
            add_up(work, [mine] if added == None else [mine, added], other, into_sbuf)
            store(work, acc)


def add_up(work, parts, added, into_sbuf):
    """Write the total of parts [k, rows, columns, c], plus `added` unless it is None, to into_sbuf, one by one: no
    instruction reads two of PSUM."""
    last = filters_last(work)
    for number, part in enumerate(parts, 1):
        found = into_sbuf if number == len(parts) else tile_of(last, into_sbuf.shape, nl.float32)
        part, into = as_stored(part, last), as_stored(found, last)
        if added == None:
            copy_balanced(into, part, work.ledger)
        else:
            book_vector(work.ledger, size_of(into.shape[1:]))
            nisa.tensor_tensor(dst=into, data1=part, data2=as_stored(added, last), op=nl.add)
        added = found


def further_of(work, accumulator):
    """The distance of the windows of columns of gy that share an accumulator's matmuls, in columns of taps."""
    return 0 if accumulator.t < 0 else further_beside(work.geometry)


def sums_beside(work, accumulator, acc_psum):
    """An accumulator's sums of each column of gy that shares its matmuls, in the filter's order."""
    acc, width, found = accumulator, acc_psum.shape[2], []
    R, S, C = acc.r[1], acc.s[1], acc.c[1]
    # steps of access patterns are signed: APPair of KLR, github.com/leanprover/KLR, KLR/Core/Tensor.lean
    steps = (width * C, C, 1) if is_channels_last(work.geometry.x_strides) else (width, 1, R * width)
    pattern = [[R * width * C, acc.k[1]], [-steps[0], R], [-steps[1], S], [steps[2], C]]
    for index in range(acc.beside):
        k, far = index * acc.pitch, index * further_of(work, acc)
        sums = acc_psum[k : k + acc.k[1], :, far : far + S]
        found.append(sums[:, R - 1 : R, S - 1 : S].ap(pattern=pattern) if work.geometry.flipped else sums)
    return found
