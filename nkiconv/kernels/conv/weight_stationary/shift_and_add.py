"""Evacuation of M packing: the sums of several columns of taps, each shifted to its outputs, added in fp32.

Vector adds one tap's sums while it reads them; the first tap's are copied, by Scalar if it has less to do. Where Vector
has more to do than Scalar and GpSimd, Scalar copies the last tap's sums too and GpSimd adds them: the order of the
additions is the same, and so are the bits.
"""

import itertools
from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.block_schedule import banks_of, blocks_in
from ....schedules.tiles import div_ceil
from ..._engines import (
    GPSIMD_START_WORK,
    GPSIMD_WORK,
    SCALAR_START_WORK_PSUM,
    SCALAR_WORK,
    VECTOR_START_WORK_PSUM,
    VECTOR_WORK,
    pick,
)
from ..._epilogue import evacuate
from ..regions import clear_window
from ..sums import places_of_elements, places_of_outputs, spaced, taps_by_cover

#: Sums of several taps that are made ahead: GpSimd has additions between their zeros.
PARTS_AHEAD = 4


def add_shifted(y_sbuf, acc_psum, schedule, tile, bias_sbuf, residual_sbuf, epilogue, ledger, parts_ahead):
    """The sums of all taps, each shifted to its outputs, and the epilogue, into y_sbuf [(u, k), images, blocks, qn].

    tile: the part of a row. Taps that meet only some outputs come first, one that meets
    all last.
    """
    parts, nn, jn, _ = y_sbuf.shape
    for one in outputs_of_tile(schedule.shift.sums, tile):
        every = (one.first, one.count, one.step)
        y = spaced(y_sbuf, (0, parts), (0, nn, 1), (0, jn, 1), every)
        residual = None if residual_sbuf == None else spaced(residual_sbuf, (0, parts), (0, nn, 1), (0, jn, 1), every)
        part_sbuf = None if is_direct(one) else parts_ahead.take()
        add_outputs(y, acc_psum, schedule, tile, one, part_sbuf, bias_sbuf, residual, epilogue, ledger)


def add_outputs(y_sbuf, acc_psum, schedule, tile, one, part_sbuf, bias_sbuf, residual_sbuf, epilogue, ledger):
    """The same of OutputsMet; part_sbuf: fp32, of their sums, if they are of several taps."""
    outputs, nn, jn, qn = y_sbuf.shape
    elements = nn * jn * qn
    for which in range(len(one.taps)):
        tap = one.taps[which]
        sums = sums_of_tap(acc_psum, schedule, tile, tap, (outputs, nn, jn))
        whole = tap[1][1] == one.step and tap[1][2] == qn
        if is_direct(one):
            evacuate(y_sbuf, sums, bias_sbuf, residual_sbuf, epilogue, ledger)
            return
        place = spaced(part_sbuf, (0, outputs), (0, nn, 1), (0, jn, 1), place_among(one, tile, tap[1]))
        fused = which + 1 == len(one.taps) and whole and epilogue.residual == ""
        if which == 0 and tap[1][1] == one.step:
            nisa.tensor_copy(dst=place, src=sums, engine=pick(ledger, elements, False))
        elif not fused:
            nisa.tensor_tensor(dst=place, data1=sums, data2=place, op=nl.add)
            ledger.vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
        elif with_gpsimd(ledger, elements, epilogue):
            # Scalar reads PSUM, which GpSimd cannot
            scalar, gpsimd = nisa.engine.scalar, nisa.engine.gpsimd
            evacuate(y_sbuf, sums, bias_sbuf, None, epilogue, scalar, rest=part_sbuf, adder=gpsimd)
            return
        else:
            evacuate(y_sbuf, sums, bias_sbuf, None, epilogue, nisa.engine.vector, rest=part_sbuf)
            ledger.vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
            return
    evacuate(y_sbuf, part_sbuf, bias_sbuf, residual_sbuf, epilogue, ledger)


def sums_of_tap(acc_psum, schedule, tile, tap, extents):
    """The sums of a tap, [(u, k), images, blocks, columns], of these extents."""
    parts, nn, jn = extents
    columns = places_of_elements(tap[1], tile[2])
    return spaced(acc_psum, (tap[0] * schedule.slot, parts), (0, nn, 1), (0, jn, 1), columns)


def sums_alone(acc_psum, schedule, tile, extents):
    """The sums of a part of a row where no others are added to them, else None."""
    every = outputs_of_tile(schedule.shift.sums, tile)
    if len(every) > 1 or not is_direct(every[0]):
        return None
    return sums_of_tap(acc_psum, schedule, tile, every[0].taps[0], extents)


def place_among(one, tile, found):
    """(first, how many, step) of what a tap meets, among OutputsMet."""
    first, count, step = places_of_outputs(found, tile[0])
    return (first - one.first) // one.step, count, step // one.step


def is_direct(one):
    """Whether these outputs are of one tap that meets all of them."""
    valid_range = one.taps[0][1]
    return len(one.taps) == 1 and valid_range[1] == one.step and valid_range[2] == one.count


class PartsAhead(nl.NKIObject):
    """fp32 sums of several taps of a core, in the order of the work: some are made, and their zeros written, ahead."""

    def __init__(self, schedule, steps):
        self.wanted, self.made = parts_wanted(schedule, steps), []

    def take(self):
        """The next."""
        self.made += [part_of(*one) for one in itertools.islice(self.wanted, PARTS_AHEAD - len(self.made))]
        return self.made.pop(0)


def parts_wanted(schedule, steps):
    """(part of a row, OutputsMet, shape) of all of them."""
    for row_tiles, lanes in schedule.m_tiles_of(steps):
        for bank, row_tile in itertools.product(banks_of(schedule, lanes), row_tiles):
            tile = next(one for one in schedule.shift.tiles if one[2] == bank.blocks[2][0])
            (_, zn), (_, mn), _ = blocks_in(schedule.sweeps[bank.sweep], lanes[row_tile.lane], bank.blocks)
            for one in outputs_of_tile(schedule.shift.sums, tile) if zn * mn > 0 else []:
                if not is_direct(one):
                    yield tile, one, (row_tile.kn, zn, mn, one.count)


def part_of(tile, one, shape):
    """fp32 sums of OutputsMet of a part of a row in SBUF, zero at outputs that their first tap misses."""
    _, _, blocks, count = shape
    part_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    first, num, step = place_among(one, tile, one.taps[0][1])
    # where it meets every other output, it is added too
    clear_window(part_sbuf, 0, blocks, 0, first if step == 1 else 0, nisa.engine.gpsimd)
    clear_window(part_sbuf, 0, blocks, first + num if step == 1 else 0, count, nisa.engine.gpsimd)
    return part_sbuf


def with_gpsimd(ledger, elements, epilogue):
    """Whether Scalar and GpSimd would be done with the last tap before Vector is; if so, it is booked there."""
    scalar = ledger.scalar + SCALAR_START_WORK_PSUM + elements * SCALAR_WORK
    gpsimd = ledger.gpsimd + GPSIMD_START_WORK + elements * GPSIMD_WORK
    vector = ledger.vector + VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
    if epilogue.activation != "" or max(scalar, gpsimd) >= vector:
        return False
    ledger.scalar = scalar
    ledger.gpsimd = gpsimd
    return True


@dataclass
class OutputsMet(nl.NKIObject):
    """Every step-th output of a part of a row from the first on, that the same taps meet: (tap, where it meets x, as
    `geometry.valid_range` says), one that meets all of them last, and another first if there is one."""

    first: int
    step: int
    count: int
    taps: list


def outputs_of_tile(sums, tile):
    """All OutputsMet of a part of a row: where x is dilated those between its elements are apart, as far as any tap
    meets each."""
    every, found = taps_by_cover(sums, tile[0], tile[1]), []
    step = every[0][1][1]
    for tap in every:
        step = 1 if tap[1][1] != step else step
    for first in range(min(step, tile[1])):
        count, whole, partial = div_ceil(tile[1] - first, step), [], []
        for tap in every:
            if (tap[1][0] - tile[0]) % step == first:
                if tap[1][1] * tap[1][2] == step * count:
                    whole.append(tap)
                else:
                    partial.append(tap)
        order = whole[1:] + partial + whole[0:1]
        if len(order) == 0:
            return [OutputsMet(first=0, step=1, count=tile[1], taps=every)]
        found.append(OutputsMet(first=first, step=step, count=count, taps=order))
    return found
