"""x that is prepared between matmuls: loads of its parts, and their order."""

from dataclasses import dataclass
from typing import Any

from ...._nki import nl
from ....schedules.tiles import cut_at
from ..filter_feed import tiles_in_turn
from .rows import Pace, Rows, XTile


@dataclass
class RowPart(nl.NKIObject):
    """Rows of an XTile that are prepared together, their bytes a partition as loaded, and the loaded x, or None."""

    x: XTile
    h0: int
    hn: int
    num_bytes: int
    raw_sbuf: object = None


class Preparing(Rows):
    """RowParts in the order of the work; come, started, ended: how many are loaded, begun and complete. most_bytes: a
    partition, of loaded parts that are not complete; part_bytes: of one part, if more than a row.

    A part is some rows of an output tile. Parts are loaded as room allows, during the output tile before theirs. fp32
    is split into pairs of fp16, frames are added in twos.
    """

    #: tiles of an XTile
    num_tiles = 1
    #: of a precision: the planes of an output tile that are loaded, the load of a part, and its first step
    planes: Any
    load: Any
    begin: Any

    def __init__(self, core, part_bytes, most_bytes):
        super().__init__(core)
        self.part_bytes, self.most_bytes, self.parts, self.pace = part_bytes, most_bytes, [], Pace()
        self.come = self.started = self.ended = 0

    def new_tiles(self, x):
        """Tiles of an XTile: high and low parts, or sums."""
        return tiles_in_turn(self.num_tiles, x.shape, nl.float16)

    def add(self, x, h0, hn):
        """Add RowParts for rows of an XTile, and load as room allows."""
        each = self.planes(x.out_tile) * x.place.columns * self.geometry.itemsize
        for row, count in cut_at(hn, max(1, self.part_bytes // each)):
            x.parts.append((h0 + row, len(self.parts)))
            self.parts.append(RowPart(x, h0 + row, count, count * each))
        self.bring()

    def bring(self):
        """Load parts while incomplete ones are few enough; at least one."""
        waiting_bytes = sum(part.num_bytes for part in self.parts[self.ended : self.come])
        for number in range(self.come, len(self.parts)):
            part = self.parts[number]
            waiting_bytes += part.num_bytes
            if waiting_bytes > self.most_bytes and number > self.ended:
                return
            part.raw_sbuf, self.come = self.load(part), number + 1

    def prepare(self, x, products):
        """Begin all RowParts of an XTile that products read; returns their number among all."""
        last = max(product.rows[3] + (product.rows[2] - 1) * product.rows[4] for product in products)
        count = max((number + 1 for h0, number in x.parts if x.out_tile.h0 + h0 <= last), default=0)
        self.prepare_to(count)
        return count

    def prepare_to(self, count):
        """Begin the first `count` RowParts."""
        while self.started < count:
            while self.come <= self.started:
                self.advance()
            part = self.parts[self.started]
            self.started += 1
            self.begin(part, [tile_sbuf[:, :, part.h0 : part.h0 + part.hn] for tile_sbuf in part.x.tiles])
            part.x = part.raw_sbuf = None
            self.bring()

    def advance(self):
        """Load parts as room allows."""
        self.bring()

    def set_pace(self, matmuls):
        """Spread the start of the remaining RowParts evenly over so many matmuls."""
        self.pace = Pace(len(self.parts) - self.started, matmuls)

    def after_matmul(self):
        """Begin the RowParts that the pace allows."""
        self.prepare_to(min(len(self.parts), self.started + self.pace.due()))
