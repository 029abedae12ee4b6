"""Evacuation of M packing: the sums of several columns of taps, each shifted to its outputs, added in fp32.

Vector adds a tap's sums while it reads them; the first tap's are copied, by Scalar if it has less work.
"""

import itertools
from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.block_schedule import banks_of, blocks_in
from ....schedules.geometry import valid_range
from ....schedules.tiles import div_ceil
from ..._engines import VECTOR_START_WORK_PSUM, VECTOR_WORK, pick
from ..._epilogue import evacuate
from ..regions import clear_window
from ..sums import along, places_of_elements, places_of_outputs, spaced

#: Tiles for sums of several taps that are made ahead: GpSimd has additions between their zeros.
PARTS_AHEAD = 4


class ShiftAndAdd(nl.NKIObject):
    """Evacuations of a core, in the order of the work. Tiles for fp32 sums of several taps are allocated and zeroed
    ahead."""

    def __init__(self, schedule, steps, epilogue, ledger):
        self.schedule, self.epilogue, self.ledger = schedule, epilogue, ledger
        self.wanted, self.made = self._parts(steps), []

    def add(self, y_sbuf, acc_psum, tile, bias_sbuf, residual_sbuf):
        """Add the sums of all taps, each shifted to its outputs, with the epilogue, into y_sbuf [(u, k), planes,
        blocks, columns] of a part of a row. Taps with only some outputs come first, one with all of them last."""
        parts, nn, jn, _ = y_sbuf.shape
        for one in self.outputs_of(tile):
            own = (0, parts), (0, nn), (0, jn), (one.first, one.count, one.step)
            y, residual = spaced(y_sbuf, *own), None if residual_sbuf == None else spaced(residual_sbuf, *own)
            taps = [(self._sums(acc_psum, tile, tap, (parts, nn, jn)), tap[1]) for tap in one.taps]
            if is_direct(one):
                evacuate(y, taps[0][0], bias_sbuf, residual, self.epilogue, self.ledger)
            else:
                self._add_taps(y, taps, tile, one, bias_sbuf, residual)

    def alone(self, acc_psum, tile, extents):
        """The sums of a part of a row if they come from one tap alone, else None."""
        first, *others = self.outputs_of(tile)
        return self._sums(acc_psum, tile, first.taps[0], extents) if not others and is_direct(first) else None

    def outputs_of(self, tile):
        """The OutputsMet of a part of a row."""
        return outputs_of_tile(self.schedule.shift.sums, tile)

    def _sums(self, acc_psum, tile, tap, extents):
        """The sums of a tap, [(u, k), planes, blocks, columns], of these extents."""
        (parts, nn, jn), columns = extents, along(*places_of_elements(tap[1], tile[2]))
        return acc_psum[along(tap[0] * self.schedule.slot, parts), 0:nn, 0:jn, columns]

    def _add_taps(self, y_sbuf, taps, tile, one, bias_sbuf, residual_sbuf):
        """Add several taps, (sums, valid range) each, with the epilogue, into their outputs."""
        self.made += [part_of(*part) for part in itertools.islice(self.wanted, PARTS_AHEAD - len(self.made))]
        (_, nn, jn, qn), part_sbuf = y_sbuf.shape, self.made.pop(0)
        elements = nn * jn * qn
        for which, (sums, met) in enumerate(taps):
            place = part_sbuf[:, :, :, along(*place_among(one, tile, met))]
            whole, vector = met[1:3] == (one.step, qn), VECTOR_START_WORK_PSUM + elements * VECTOR_WORK
            if which == 0 and met[1] == one.step:
                nisa.tensor_copy(dst=place, src=sums, engine=pick(self.ledger, elements, False))
            elif which + 1 < len(taps) or not whole or self.epilogue.residual != "":
                nisa.tensor_tensor(dst=place, data1=sums, data2=place, op=nl.add)
                self.ledger.vector += vector
            else:
                evacuate(y_sbuf, sums, bias_sbuf, None, self.epilogue, nisa.engine.vector, rest=part_sbuf)
                self.ledger.vector += vector
                return
        evacuate(y_sbuf, part_sbuf, bias_sbuf, residual_sbuf, self.epilogue, self.ledger)

    def _parts(self, steps):
        """(part of a row, OutputsMet, shape) of all fp32 sums of several taps, in order."""
        for row_tiles, lanes in self.schedule.m_tiles_of(steps):
            for bank, row_tile in itertools.product(banks_of(self.schedule, lanes), row_tiles):
                tile = next(one for one in self.schedule.shift.tiles if one[2] == bank.blocks[2][0])
                sweep, lane = self.schedule.sweeps[bank.sweep], lanes[row_tile.lane]
                (_, zn), (_, mn), _ = blocks_in(sweep, lane, bank.blocks)
                for one in self.outputs_of(tile) if zn * mn > 0 else []:
                    if not is_direct(one):
                        yield tile, one, (row_tile.kn, zn, mn, one.count)


def part_of(tile, one, shape):
    """A tile for fp32 sums of OutputsMet of a part of a row in SBUF, zero outside the first tap's valid range."""
    _, _, blocks, count = shape
    part_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    first, num, step = place_among(one, tile, one.taps[0][1])
    # if that is every other output, the first tap is added too
    clear_window(part_sbuf, 0, blocks, 0, first if step == 1 else 0, nisa.engine.gpsimd)
    clear_window(part_sbuf, 0, blocks, first + num if step == 1 else 0, count, nisa.engine.gpsimd)
    return part_sbuf


def place_among(one, tile, found):
    """(first, count, step) of a tap's valid range, counted in OutputsMet."""
    first, count, step = places_of_outputs(found, tile[0])
    return (first - one.first) // one.step, count, step // one.step


def is_direct(one):
    """Whether these outputs have one tap, valid at all of them."""
    return len(one.taps) == 1 and one.taps[0][1][1:3] == (one.step, one.count)


@dataclass
class OutputsMet(nl.NKIObject):
    """Every step-th output of a part of a row from the first on, with the same taps: (tap, its `geometry.valid_range`);
    one that is valid at all of them is last, and another such tap first if there is one."""

    first: int
    step: int
    count: int
    taps: list


def outputs_of_tile(sums, tile):
    """All OutputsMet of a part of a row; if x is dilated, one for each residue of outputs by its step, as far as each
    has a tap."""
    (q0, qn, *_), found = tile, []
    met = ((tap, valid_range(sums, tap, q0, qn)) for tap in range(sums.taps))
    # taps with all outputs come first, so that the others add to existing sums
    every = sorted((one for one in met if one[1][2] > 0), key=lambda one: one[1][2] < qn)
    steps = {met[1] for _, met in every}
    step = steps.pop() if len(steps) == 1 else 1
    for first in range(min(step, qn)):
        count = div_ceil(qn - first, step)
        own = [tap for tap in every if (tap[1][0] - q0) % step == first]
        whole = [tap for tap in own if tap[1][1] * tap[1][2] == step * count]
        order = whole[1:] + [tap for tap in own if tap not in whole] + whole[:1]
        if len(order) == 0:
            return [OutputsMet(first=0, step=1, count=qn, taps=every)]
        found.append(OutputsMet(first=first, step=step, count=count, taps=order))
    return found
