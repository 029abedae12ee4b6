"""Settings of turned."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.implicit_gemm import LOOP_MAX
from ....schedules.tiles import BANK_COLUMNS, PARTS, div_ceil
from ..._settings import setting, settings_refusal
from .tiling import make_turned, turned_fits

TURNED_WARM_UP, TURNED_WARM_UP_MAX = 28, 256
#: Copies of the channels left over, and banks of sums of a tile, at most.
COPIES, COPIES_MAX = 4, 16
TILE_BANKS = 2


@dataclass(frozen=True)
class TurnedConfig(nl.NKIObject):
    """All settings."""

    #: planes of y beside each other, from 1; at most those of a volume
    depth: int
    #: segments of the rows of y whose rows are worked on together, from 1 to 128; of each, 128 / segments columns
    segments: int
    #: parts that the columns of y are worked on in, from 1; tiles of the array are not cut
    parts: int
    #: of the channels left over beside whole 128s, from 1 to COPIES_MAX: see products.py
    copies: int
    #: matmuls of 128 columns on zeros before the first filters, from 0 to TURNED_WARM_UP_MAX
    warmup: int
    #: of the turns that tiles of x take, those in a body of a loop on the device, 0 to LOOP_MAX; 0: all are unrolled
    loop: int


def turned_config_refusal(config):
    """What is wrong with names and values, "" if nothing is."""
    most = nl.tile_size.pmax
    table = (("depth", (1, most)), ("segments", (1, most)), ("parts", (1, BANK_COLUMNS)), ("copies", (1, COPIES_MAX)))
    table = table + (("warmup", (0, TURNED_WARM_UP_MAX)), ("loop", (0, LOOP_MAX)))
    return settings_refusal(config, table, "turned")


def turned_settings(geometry, extras, config):
    """All settings; what a config leaves open so that tiles are few and x fits: the planes that a few banks hold, or
    fewer, and columns in no more parts than they must be."""
    planes = geometry.planes
    most = min(planes.out // planes.images, max(1, BANK_COLUMNS // geometry.K) * TILE_BANKS)
    found = None
    for less in range(most):
        for parts in (1, 2, 3, 4, 6, 8, 12, 16):
            found = sized_turned(geometry, config, most - less, parts)
            if turned_fits(geometry, extras, make_turned(geometry, found)):
                return found
    return found


def sized_turned(geometry, config, depth, parts, copies=COPIES, loop=0):
    """All settings; as given here where a config has none."""
    return TurnedConfig(
        depth=setting(config, "depth", depth),
        segments=setting(config, "segments", fewest_tiles(geometry)),
        parts=setting(config, "parts", parts),
        copies=setting(config, "copies", copies),
        warmup=setting(config, "warmup", TURNED_WARM_UP),
        loop=setting(config, "loop", loop),
    )


def fewest_tiles(geometry):
    """Segments of the rows of a core with which an image takes fewest tiles of the array."""
    rows, columns = geometry.rows.out, geometry.columns.out
    mine, found, least = div_ceil(rows, PARTS), 1, 0
    for segments in range(1, min(mine, nl.tile_size.pmax) + 1):
        tiles = div_ceil(mine, segments) * div_ceil(columns, nl.tile_size.pmax // segments)
        if least == 0 or tiles < least:
            found, least = segments, tiles
    return found
