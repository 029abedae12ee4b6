"""x that is multiplied otherwise than it comes: it comes in parts, which are prepared between the matmuls of others.

A part is some rows of an output tile: they come in as far as there is room, those of an output tile in the course of
the one before it. fp32 becomes pairs of fp16 (fp16x3.py), frames become sums of two (winograd.py).
"""

from dataclasses import dataclass
from typing import Any

from ...._nki import nl
from ....schedules.cuts import OutTile
from ....schedules.implicit_gemm_outputs import k_tile_window
from ..filter_feed import tiles_in_turn
from .rows import rows_in, rows_shape


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
class Factor(nl.NKIObject):
    """What is multiplied for a K tile, and where sums go. adds: to what is there; low, parts: whether low parts must be
    there, and how many parts of x."""

    acc_psum: object
    stationaries: object
    x_sbuf: object
    adds: bool = False
    low: bool = False
    parts: int = 0


@dataclass
class RowPart(nl.NKIObject):
    """Rows of an output tile, from its first, of a K tile (its index, of so many): what they are prepared for, and x as
    it came, or None."""

    k_tile: tuple
    index: int
    k_tiles: int
    out_tile: OutTile
    h0: int
    hn: int
    tile: object
    raw_sbuf: object = None


@dataclass
class PreparedTile(nl.NKIObject):
    """x of a K tile in an output tile as it is multiplied: high and low parts, or sums; (first row, number) of its
    RowParts."""

    tiles: list
    parts: list

    def parts_to(self, hn):
        """How many of all RowParts hold its first hn rows."""
        return max((number + 1 for h0, number in self.parts if h0 < hn), default=0)


class Preparing:
    """RowParts in the order of the work: how many have come, are begun and done. most_bytes: a partition of those that
    have come and are not done; part_bytes: of one, if more than a row. pairs: Pairs on their way, of filters too."""

    #: tiles of a PreparedTile
    num_tiles = 1
    #: what a precision says: planes of an output tile that come, parts that come whatever room there is, loads, how a
    #: part that is there begins, and what goes on
    planes: Any
    least: Any
    load: Any
    begin: Any
    advance: Any

    def __init__(self, core, part_bytes, most_bytes):
        self.operands, self.geometry, self.ledger = core.operands, core.geometry, core.ledger
        self.part_bytes, self.most_bytes = part_bytes, most_bytes
        self.parts, self.pairs, self.pace = [], [], Pace()
        self.come = self.started = self.ended = 0

    def new_tile(self, k_tile, out_tile):
        """A PreparedTile of a K tile in an output tile, of which no part is there."""
        return PreparedTile(tiles_in_turn(self.num_tiles, rows_shape(self.geometry, k_tile, out_tile), nl.float16), [])

    def row_bytes(self, k_tile, out_tile):
        """Bytes a partition of a row of an output tile as it comes."""
        return self.planes(out_tile) * k_tile_window(self.geometry, k_tile, out_tile)[1] * self.geometry.itemsize

    def add(self, k_tiles, index, tile, out_tile, part):
        """RowParts of rows (first, how many) of an output tile, for a PreparedTile; they come in as far as there is
        room."""
        most = max(1, self.part_bytes // self.row_bytes(k_tiles[index], out_tile))
        for h0 in range(part[0], part[0] + part[1], most):
            tile.parts.append((h0, len(self.parts)))
            hn = min(most, part[0] + part[1] - h0)
            self.parts.append(RowPart(k_tiles[index], index, len(k_tiles), out_tile, h0, hn, tile))
        self.bring()

    def bring(self):
        """Load parts while those that are not done yet are few enough."""
        waiting_bytes = 0
        for number in range(self.ended, len(self.parts)):
            part = self.parts[number]
            waiting_bytes += part.hn * self.row_bytes(part.k_tile, part.out_tile)
            if number >= self.come:
                if waiting_bytes > self.most_bytes and number >= self.ended + self.least(part):
                    return
                part.raw_sbuf = self.load(part)
                self.come = number + 1

    def prepare_to(self, count):
        """Begin with RowParts until so many are."""
        while self.started < count:
            while self.come <= self.started:
                self.advance()
            part = self.parts[self.started]
            self.started += 1
            self.begin(part, [rows_in(tile_sbuf, part.h0, part.hn) for tile_sbuf in part.tile.tiles])

    def prepare_due(self):
        """Begin with what is due."""
        for _ in range(self.pace.due()):
            if self.started < len(self.parts):
                self.prepare_to(self.started + 1)
