"""x on its way in: loads that take tiles in SBUF in turn, and run ahead no further than there are tiles."""

from dataclasses import dataclass

from ..._nki import nl
from .boxes import load_x
from .filter_feed import tiles_in_turn


@dataclass
class Ring(nl.NKIObject):
    """Tiles that loads take in turn, each a list of boxes, and how many of the loads are issued."""

    tiles: list
    loads: list
    issued: int


def start_ring(count, shape, dtype, loads):
    """A Ring of at most `count` tiles of a shape, nothing loaded yet; no tile where there is no load."""
    return Ring(tiles=tiles_in_turn(min(count, len(loads)), shape, dtype), loads=loads, issued=0)


def tile_of_load(ring, index):
    """The tile that a load takes."""
    return ring.tiles[index % len(ring.tiles)]


def load_until(ring, operands, count):
    """Issue loads until `count` of them are, or all."""
    while ring.issued < min(count, len(ring.loads)):
        load_x(tile_of_load(ring, ring.issued), operands, ring.loads[ring.issued])
        ring.issued = ring.issued + 1
