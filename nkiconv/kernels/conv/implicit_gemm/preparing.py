"""x that is multiplied otherwise than it comes: it comes in parts, which are prepared between the matmuls of others.

A part is some rows of an output tile: they come in as far as there is room, those of an output tile in the course of
the one before it. fp32 becomes pairs of fp16 (fp16x3.py), frames become sums of two (winograd.py).
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nl
from ..filter_feed import tiles_in_turn
from .rows import Rows, XTile, rows_in


class Pace:
    """Spreads `count` pieces of background work over the next matmuls, from share `first` of them until share
    `until`."""

    def __init__(self, count=0, matmuls=1, first=0.0, until=1.0):
        self.rate = count / ((until - first) * matmuls)
        self.credit = -first * matmuls * self.rate

    def due(self):
        """After a matmul: how many pieces of work are due."""
        self.credit, count = self.credit + self.rate, 0
        while self.credit >= 1.0:
            self.credit, count = self.credit - 1.0, count + 1
        return count


class Deferred:
    """Work of the array on what has been evacuated, in its order: `matmuls` others come between, at least, which hide
    the evacuation."""

    def __init__(self, matmuls, work):
        self.matmuls, self.work, self.waiting, self.now = matmuls, work, [], 0

    def add(self, *what):
        """Have something wait, which `work` takes."""
        self.waiting.append((self.now + self.matmuls, what))

    def after_matmul(self):
        """Do what has waited long enough."""
        self.now += 1
        if self.waiting and self.waiting[0][0] <= self.now:
            self.work(*self.waiting.pop(0)[1])

    def finish(self, most=0):
        """Do what has waited longest, until so many wait."""
        while len(self.waiting) > most:
            self.work(*self.waiting.pop(0)[1])


@dataclass
class RowPart(nl.NKIObject):
    """Rows of an XTile that are prepared together, its bytes a partition as it comes, and x as it came, or None."""

    x: XTile
    h0: int
    hn: int
    num_bytes: int
    raw_sbuf: object = None


class Preparing(Rows):
    """RowParts in the order of the work: how many have come, are begun and done. most_bytes: a partition of those that
    have come and are not done; part_bytes: of one, if more than a row."""

    #: tiles of an XTile
    num_tiles = 1
    #: what a precision says: planes of an output tile that come, loads, and how a part that is there begins
    planes: Any
    load: Any
    begin: Any

    def __init__(self, core, part_bytes, most_bytes):
        super().__init__(core)
        self.part_bytes, self.most_bytes, self.parts, self.pace = part_bytes, most_bytes, [], Pace()
        self.come = self.started = self.ended = 0

    def new_tiles(self, x):
        """High and low parts of an XTile, or sums."""
        return tiles_in_turn(self.num_tiles, x.shape, nl.float16)

    def row_bytes(self, x):
        """Bytes a partition of a row of an XTile as it comes."""
        return self.planes(x.out_tile) * x.place.columns * self.geometry.itemsize

    def add(self, x, h0, hn):
        """RowParts of rows of an XTile; they come in as far as there is room."""
        each, end = self.row_bytes(x), h0 + hn
        most = max(1, self.part_bytes // each)
        for row in range(h0, end, most):
            count = min(most, end - row)
            x.parts.append((row, len(self.parts)))
            self.parts.append(RowPart(x, row, count, count * each))
        self.bring()

    def bring(self):
        """Load parts while those that are not done yet are few enough, one at least."""
        waiting_bytes = sum(part.num_bytes for part in self.parts[self.ended : self.come])
        for number in range(self.come, len(self.parts)):
            part = self.parts[number]
            waiting_bytes += part.num_bytes
            if waiting_bytes > self.most_bytes and number > self.ended:
                return
            part.raw_sbuf, self.come = self.load(part), number + 1

    def prepare(self, x, products):
        """Begin with RowParts until those of an XTile that products meet are; how many that is of all."""
        last = max(product.rows[3] + (product.rows[2] - 1) * product.rows[4] for product in products)
        count = max((number + 1 for h0, number in x.parts if x.out_tile.h0 + h0 <= last), default=0)
        self.prepare_to(count)
        return count

    def prepare_to(self, count):
        """Begin with RowParts until so many are."""
        while self.started < count:
            while self.come <= self.started:
                self.advance()
            part = self.parts[self.started]
            self.started += 1
            self.begin(part, [rows_in(tile_sbuf, part.h0, part.hn) for tile_sbuf in part.x.tiles])
            part.x = part.raw_sbuf = None
            self.bring()

    def advance(self):
        """Load what there is room for."""
        self.bring()

    def set_pace(self, matmuls):
        """RowParts that are not begun yet are, evenly, in the course of so many matmuls."""
        self.pace = Pace(len(self.parts) - self.started, matmuls)

    def after_matmul(self):
        """Begin with what is due."""
        self.prepare_to(min(len(self.parts), self.started + self.pace.due()))
