"""The work cut in two parts, of channels, columns or images: one core does both in turn, two cores one each.

So every output meets the same instructions, and has the same bits, on 1 and on 2 cores. Compile-time code.
"""

from ..._nki import nl
from ...schedules.settings import SHARDS as SHARDS
from ...schedules.tiles import PARTS, div_ceil, share


def part_span(count, is_shared, part):
    """(first, how many) of an axis in one of the PARTS: a share of it, or all."""
    return share(count, PARTS, part) if is_shared else (0, count)


def part_most(count, is_shared):
    """Most of an axis in one of the PARTS."""
    return div_ceil(count, PARTS) if is_shared else count


def parts_of_core():
    """The PARTS that this core does, in order."""
    return (0, 1) if nl.num_programs() == 1 else (nl.program_id(0),)
