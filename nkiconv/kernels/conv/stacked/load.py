"""Bands of x on their way in: X [(d, b, c), planes, blocks, columns], zeros where a window meets no x."""

import math

from ...._nki import nisa, nl
from ....schedules.cuts import largest_band
from ....schedules.planes import misses_planes
from ....schedules.regions import regions_of_x
from ..._prologue import load_region_of_x
from ..filter_feed import tiles_in_turn
from ..regions import clear_window


class Inputs(nl.NKIObject):
    """X of loads, ((first channel, how many), band) each, in tiles that they take in turn, planes below each other."""

    def __init__(self, operands, geometry, schedule, loads):
        self.operands, self.geometry, self.schedule, self.loads = operands, geometry, schedule, loads
        self.height = schedule.block_rows(largest_band([band for _, band in loads])[1])
        planes = max(1, *[schedule.planes_of(band)[1] for _, band in loads])
        shape = (schedule.parts, planes * self.height, schedule.width)
        self.tiles = tiles_in_turn(min(schedule.ring, len(loads)), shape, operands.x_dtype)
        self.issued = 0

    def load(self, count):
        """Issue loads until `count` of them are, or all; of the first, `clear` comes before.

        Each of a band waits for columns that are cleared although x comes there, as loads that have no other reason to
        wait would overtake what is wanted before them: the second band for the triggers of the filters, others for the
        band before.
        """
        schedule = self.schedule
        while self.issued < min(count, len(self.loads)):
            index, (channels, band) = self.issued, self.loads[self.issued]
            if index > 0:
                hold = schedule.hold // (band.zn * schedule.block_rows(band.jn)) if index == 1 else 0
                self.clear(index, 0 if schedule.diagonal else 1 + hold)
            for region in schedule.x_regions(band, index == 0):
                self._load_region(self._tile(index), channels, band, region)
            self.issued += 1

    def take(self, index):
        """X of a load."""
        band, schedule = self.loads[index][1], self.schedule
        tile, planes = self._tile(index), max(1, schedule.planes_of(band)[1])
        whole = tile.reshape((schedule.parts, tile.shape[1] // self.height, self.height, schedule.width))
        return whole[0 : schedule.parts, 0:planes, 0 : schedule.block_rows(band.jn), 0 : schedule.width]

    def clear(self, index, hold):
        """Zeros where not all partitions of a load hold x, and in `hold` columns beside them, unless they are there
        already; those of the first come first."""
        schedule, geometry, count = self.schedule, self.geometry, len(self.tiles)
        band = self.loads[index][1]
        missing = misses_planes(geometry, band.z0, band.zn)
        same = index >= count and schedule.zeros_of(self.loads[index - count][1]) == schedule.zeros_of(band)
        if same and not missing:
            return
        engine = nisa.engine.vector if index == 0 else nisa.engine.gpsimd
        if missing:
            nisa.memset(dst=self._tile(index), value=0.0, engine=engine)
            return
        x_sbuf, m0, width = self.take(index), band.j0 * schedule.step, schedule.width
        left, right = max(one[0] for one in schedule.spans), min(one[1] for one in schedule.spans)
        mn = x_sbuf.shape[2]
        first, last = (m - m0 for m in schedule.whole_blocks(m0, mn))
        clear_window(x_sbuf, 0, first, 0, width, engine)
        clear_window(x_sbuf, last, mn, 0, width, engine)
        clear_window(x_sbuf, first, last, max(left, right), width, engine)
        clear_window(x_sbuf, first, last, 0, min(width, left + hold), engine)

    def _tile(self, index):
        return self.tiles[index % len(self.tiles)]

    def _load_region(self, tile, channels, band, region):
        """An XBox of some channels, plane by plane; of depthwise problems one block of all planes together."""
        geometry, schedule, by_h = self.geometry, self.schedule, self.geometry.x_strides[2]
        d0, dn = schedule.planes_of(band)
        each = max(1, dn) if schedule.diagonal else 1
        first = (region.m * schedule.G + region.b - schedule.top, region.low + region.moved)
        columns = [geometry.x_strides[3], region.high - region.low]
        for plane in range(0, dn, each):
            for place, pattern, offset, framed in regions_of_x(
                geometry, channels, (d0 + plane, each), first, (region.mn, columns[1])
            ):
                # all channels of planes that see x alike: all rows together; else a row at a time
                ahead = pattern[:-3]
                together = math.prod(count for _, count in ahead) == channels[1]
                rows = [[by_h, region.bn]] if together else []
                blocks = [schedule.G * by_h, region.mn]
                own = [*ahead, *rows, pattern[-3]] if schedule.diagonal else [*rows, *ahead, blocks]
                for b in range(1 if together else region.bn):
                    part = (region.d * schedule.B + region.b + b) * channels[1] + place[0]
                    row = (plane + place[1]) * self.height + region.m - band.j0 * schedule.step
                    load_region_of_x(
                        tile, self.operands, (part, row, region.low), [*own, columns], offset + b * by_h, framed
                    )
