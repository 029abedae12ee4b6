"""Input channels in chunks that fill the array's rows, and the steps, taps of a chunk, that the array takes in pairs.

Channels that are left over beside whole 128s, at most 64 of them, lie `depth` times on the partitions, each copy a
column of taps further: one step then takes the products of `depth` taps.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import div_ceil

#: Channels of a folded chunk, so that each copy begins at a partition that engines can address.
FOLDED = (32, 64)


@dataclass
class Chunk(nl.NKIObject):
    """Input channels c0 .. c0+cn-1, `depth` copies of them on the partitions; the first `again` of them are in the
    chunk before too, and count there."""

    c0: int
    cn: int
    again: int
    depth: int


@dataclass
class Step(nl.NKIObject):
    """Taps (r, s) .. (r, s + taps - 1) of a chunk."""

    chunk: int
    r: int
    s: int
    taps: int


def even_chunks(geometry):
    """Chunks of input channels, equally many in each."""
    count = div_ceil(geometry.C, nl.tile_size.pmax)
    each = div_ceil(geometry.C, count)
    found = []
    for index in range(count):
        c0 = min(index * each, geometry.C - each)
        found.append(Chunk(c0=c0, cn=each, again=index * each - c0, depth=1))
    return found


def folded_chunks(geometry):
    """Whole chunks of 128 channels and what is left over folded; none where that cannot be."""
    most = nl.tile_size.pmax
    rest = geometry.C % most
    cn = FOLDED[0] if rest <= FOLDED[0] else FOLDED[1]
    depth = min(most // cn, geometry.columns.taps)
    found = []
    if rest > 0 and rest <= cn and geometry.C >= cn and depth > 1:
        for index in range(geometry.C // most):
            found.append(Chunk(c0=index * most, cn=most, again=0, depth=1))
        found.append(Chunk(c0=geometry.C - cn, cn=cn, again=cn - rest, depth=depth))
    return found


def chunks_of(geometry, fold):
    """Chunks in order; fold: whether what is left over is folded where it can be."""
    found = folded_chunks(geometry) if fold else []
    return found if len(found) > 0 else even_chunks(geometry)


def partitions(chunk):
    """Partitions that a chunk takes."""
    return chunk.cn * chunk.depth


def all_partitions(chunks):
    """Partitions of the largest chunk, which is the first one but where that is the only one."""
    found = 0
    for index in range(len(chunks)):
        found = max(found, partitions(chunks[index]))
    return found


def steps_of(geometry, chunks):
    """All Steps, chunk by chunk, row by row of taps."""
    found = []
    S = geometry.columns.taps
    for index in range(len(chunks)):
        depth = chunks[index].depth
        for r in range(geometry.rows.taps):
            for s in range(0, S, depth):
                found.append(Step(chunk=index, r=r, s=s, taps=min(depth, S - s)))
    return found


def first_step(geometry, chunks, index):
    """How many steps the chunks before one have."""
    total = 0
    for which in range(index):
        total += geometry.rows.taps * div_ceil(geometry.columns.taps, chunks[which].depth)
    return total


def num_steps(geometry, chunks):
    """How many steps there are."""
    return first_step(geometry, chunks, len(chunks))


def num_paired(chunks):
    """Chunks that are paired with each other at every tap: the others' steps make pairs among themselves."""
    whole = len(chunks) - (1 if chunks[len(chunks) - 1].depth > 1 else 0)
    return whole // 2 * 2


def num_passes(geometry, chunks):
    """Matmuls of a bank of sums: pairs, and a single of each kind that is left over."""
    taps, paired = geometry.rows.taps * geometry.columns.taps, num_paired(chunks)
    total, rest = paired // 2 * taps, 0
    for index in range(paired, len(chunks)):
        more = geometry.rows.taps * div_ceil(geometry.columns.taps, chunks[index].depth)
        if index > paired and partitions(chunks[index]) != partitions(chunks[index - 1]):
            total += div_ceil(rest, 2)
            rest = 0
        rest += more
    return total + div_ceil(rest, 2)


def tap_columns(S):
    """Columns of taps in the order in which they are turned and multiplied: the middle one, which meets most, first."""
    found = [S // 2]
    for s in range(S):
        if s != S // 2:
            found.append(s)
    return found
