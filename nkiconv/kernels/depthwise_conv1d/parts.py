"""The work cut in two parts, of channels, columns or images: one core does both in turn, two cores one each.

So every output meets the same instructions, and has the same bits, on 1 and on 2 cores. Compile-time code in NKI's
Python subset.
"""

from ..._nki import nl
from .._tiles import INSTRUCTIONS_MAX, PARTS, div_ceil, share

#: What the parts may share out.
SHARDS = ("channels", "columns", "batch")


def part_span(count, is_shared, part):
    """(first, how many) of an axis in one of the PARTS: a share of it, or all."""
    return share(count, PARTS, part) if is_shared else (0, count)


def part_most(count, is_shared):
    """Most of an axis in one of the PARTS."""
    return div_ceil(count, PARTS) if is_shared else count


def parts_of_core():
    """The PARTS that this core does, in order."""
    return (0, 1) if nl.num_programs() == 1 else (nl.program_id(0),)


def count_refusal(geometry, name, count):
    """Why the compiler would not take so many instructions of a core; "" if it does."""
    if count <= INSTRUCTIONS_MAX:
        return ""
    return (
        f"N={geometry.N}, C={geometry.C}, W={geometry.W}, S={geometry.S}: {name} needs up to {count} instructions on a "
        f"core, the compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls"
    )
