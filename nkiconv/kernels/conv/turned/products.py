"""Which channels lie on the partitions together, and which products the taps of a plane come to.

Whole 128s of channels take one product a tap. What is left over is folded: where it fits twice or more, copies of it
lie behind each other, each a column of taps further; else, where it is a multiple of the free partitions, those take a
part of it at another tap, a rider: as many products as that makes parts take all of that tap, which needs none of its
own then. Each distance from a product's tap to its rider's takes a copy of the channels.
"""

from dataclasses import dataclass

from ...._nki import nl


@dataclass
class Rider(nl.NKIObject):
    """Channels c0 .. c0+count-1 on partitions from `part` on, r rows and s columns of taps from those before them."""

    part: int
    c0: int
    count: int
    r: int
    s: int


@dataclass
class Chunk(nl.NKIObject):
    """Channels c0 .. c0+count-1 on the partitions from 0 on, and riders behind them."""

    c0: int
    count: int
    riders: list


@dataclass
class TurnedProduct(nl.NKIObject):
    """A tap of a chunk (its index), with its first so many riders."""

    chunk: int
    r: int
    s: int
    riders: int


def parts_of(chunk, riders):
    """Partitions of a chunk with its first so many riders."""
    if riders == 0:
        return chunk.count
    last = chunk.riders[riders - 1]
    return last.part + last.count


def products_of(geometry, copies):
    """(Chunks, TurnedProducts) of all channels of x; copies: of the channels left over, at most."""
    P_MAX, chunks, products = nl.tile_size.pmax, [], []
    R, S = geometry.rows.taps, geometry.columns.taps
    whole = geometry.C // P_MAX * P_MAX
    for c0 in range(0, whole, P_MAX):
        chunks.append(Chunk(c0=c0, count=P_MAX, riders=[]))
    rest = geometry.C - whole
    for index in range(len(chunks)):
        for tap in range(R * S):
            products.append(TurnedProduct(chunk=index, r=tap // S, s=tap % S, riders=0))
    if rest == 0:
        return chunks, products
    depth = min(P_MAX // rest, S) if copies > 1 else 1
    first, riders = len(chunks), []
    for behind in range(1, depth):
        riders.append(Rider(part=behind * rest, c0=whole, count=rest, r=0, s=behind))
    chunks.append(Chunk(c0=whole, count=rest, riders=riders))
    if depth == 1 and copies > 1 and rest % (P_MAX - rest) == 0:
        return chunks, products + ridden(chunks, R, S, copies)
    for r in range(R):
        for s in range(0, S, depth):
            products.append(TurnedProduct(chunk=first, r=r, s=s, riders=min(depth, S - s) - 1))
    return chunks, products


def ridden(chunks, R, S, copies):
    """Products of the last chunk, which gets at most so many copies, with riders."""
    room, count = nl.tile_size.pmax - chunks[-1].count, chunks[-1].count
    first, c0, shares = len(chunks) - 1, chunks[-1].c0, chunks[-1].count // room
    apart, found, used = R * S // (shares + 1), [], []
    for tap in range(apart):
        hosts = hosts_of(chunks[first:], tap, shares, apart, (R, S, room), copies, used)
        for host in hosts:
            place, rider = host
            r, s = tap // S - rider.r, tap % S - rider.s
            own = chunks[first + place] if first + place < len(chunks) else None
            if own == None:
                chunks.append(Chunk(c0=c0, count=count, riders=[rider]))
            elif len(own.riders) == 0:
                own.riders = [rider]
            used.append(r * S + s)
            found.append(TurnedProduct(chunk=first + place, r=r, s=s, riders=1))
        if len(hosts) == 0:
            found.append(TurnedProduct(chunk=first, r=tap // S, s=tap % S, riders=0))
    for tap in range(apart, R * S):
        if tap not in used:
            found.append(TurnedProduct(chunk=first, r=tap // S, s=tap % S, riders=0))
    return found


def hosts_of(own, tap, shares, apart, sizes, copies, used):
    """(copy, Rider) of a product for each share of a tap's channels, by copies that there are if possible; none where
    `copies` are too few. own: the copies; apart: taps from the first on that have no product."""
    R, S, room = sizes
    base, found, taken = own[0], [], used[:]
    kinds = []
    for copy in own:
        kinds = kinds + copy.riders
    for share in range(shares):
        c0, chosen = base.c0 + share * room, None
        for index in range(len(kinds)):
            kind = kinds[index]
            r, s = tap // S - kind.r, tap % S - kind.s
            inside = 0 <= r and r < R and 0 <= s and s < S
            if chosen == None and kind.c0 == c0 and inside and r * S + s >= apart and r * S + s not in taken:
                chosen = (index, kind)
                taken.append(r * S + s)
        for place in hosts_in_order(tap, R, S):
            if chosen == None and len(kinds) < copies and place >= apart and place not in taken:
                rider = Rider(part=base.count, c0=c0, count=room, r=tap // S - place // S, s=tap % S - place % S)
                chosen = (len(kinds), rider)
                kinds.append(rider)
                taken.append(place)
        if chosen == None:
            return []
        found.append(chosen)
    return found


def hosts_in_order(tap, R, S):
    """Taps of the same column, then those of the last column and before."""
    found = []
    for r in range(R):
        found.append(r * S + tap % S)
    for s in range(S):
        for r in range(R):
            found.append(r * S + S - 1 - s)
    return found
