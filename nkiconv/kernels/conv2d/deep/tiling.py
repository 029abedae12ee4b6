"""What settings of deep come to: what each core takes, how pieces and taps are cut, and what those need."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_BYTES, BANK_COLUMNS, PARTS, cut, cut_into, div_ceil, share, whole_words
from ..cuts import Bank, tap_blocks
from ..geometry import met, span

#: Partitions between the first of which engines may start (trn2.toml, rules NKI043).
QUADRANT = 32
#: Banks of PSUM that sums may take; the others are for transposes.
SUM_BANKS = 4
#: Elements of an image of a channel with its zeros, at most: an axis has no longer steps (rules NKI053).
IMAGE_MOST = 32_767
#: Steps that are transposed before one is multiplied, while its filters are read out.
AHEAD = 2


@dataclass
class Job(nl.NKIObject):
    """What a core sums: blocks (first, how many) of output channels, chunks (first, how many) of input channels."""

    blocks: list
    chunks: list


@dataclass
class Window(nl.NKIObject):
    """x of a chunk with its zeros: rows and columns of the tile, what lies in it of x from where, and where."""

    height: int
    width: int
    h0: int
    hn: int
    top: int
    w0: int
    wn: int
    left: int


@dataclass
class Piece(nl.NKIObject):
    """Chunks first .. first+count-1 of a job, a block of its output channels, a block of taps: which and what."""

    first: int
    count: int
    block: int
    which: int
    taps: tuple


@dataclass
class Deep(nl.NKIObject):
    """Sizes of one problem: see above."""

    shard: str
    #: one for each core
    jobs: list
    #: columns of taps beside each other, groups of them, and columns of the array from one to the next
    T: int
    groups: int
    slot: int
    #: whether some of those columns are nobody's
    gaps: bool
    #: chunks beside each other, and most input channels of one
    together: int
    depth: int
    window: Window
    #: columns of sums of a row of y; banks of sums
    columns: int
    banks: list
    #: blocks (first row, rows, first column, columns) of taps of a piece, of which some meet x
    taps: list
    #: Steps of each of them
    steps: list
    buffers: int
    warmup: int


def slot_of(outputs):
    """Columns of the array for so many outputs of one of several taps."""
    return QUADRANT if outputs <= QUADRANT else 2 * QUADRANT


def outputs_of(geometry, shard):
    """Most output channels of a core."""
    return geometry.K if shard == "contraction" else div_ceil(geometry.K, PARTS)


def is_legal(geometry, shard, T):
    """Whether there is something to share, and room for T columns of taps."""
    shared = geometry.C if shard == "contraction" else geometry.K
    if geometry.packed > 0 and has_gaps(geometry, shard, T):
        return False
    return shared >= PARTS and T <= most_columns(geometry, shard)


def most_columns(geometry, shard):
    """Columns of taps that there is room for."""
    outputs = outputs_of(geometry, shard)
    if outputs > 2 * QUADRANT:
        return 1
    return min(geometry.columns.taps, nl.tile_size.pmax // slot_of(outputs))


def has_gaps(geometry, shard, T):
    """Whether outputs leave columns between those of one tap and of the next."""
    fewest = geometry.K if shard == "contraction" else geometry.K // PARTS
    return T > 1 and fewest < slot_of(outputs_of(geometry, shard))


def make_deep(geometry, config):
    """The Deep of settings, or None where they share nothing, sums have no room in PSUM or no output sees x."""
    shard, T = config.shard, config.taps
    if not is_legal(geometry, shard, T):
        return None
    outputs = outputs_of(geometry, shard)
    window = window_of(geometry, T)
    columns = (geometry.columns.out - 1) * geometry.columns.stride + (T - 1) * geometry.columns.dilation + 1
    if T == 1:
        columns = geometry.columns.out
    blocks = div_ceil(outputs, nl.tile_size.pmax)
    if window == None or window.height * window.width > IMAGE_MOST or columns > BANK_COLUMNS:
        return None
    banks = banks_of(geometry, columns)
    if len(banks) * blocks > SUM_BANKS:
        return None
    jobs = jobs_of(geometry, shard)
    depth = 0
    for which in range(2):
        chunks = jobs[which].chunks
        for index in range(len(chunks)):
            depth = max(depth, chunks[index][1])
    together = 1
    if geometry.packed == 0 and blocks == 1:
        together = min(len(jobs[1].chunks), nl.tile_size.pmax // outputs)
    whole = tap_blocks(geometry, depth, config.filter_bytes)
    if T > 1 and whole[0][3] < geometry.columns.taps:
        return None
    taps, steps = [], []
    for index in range(len(whole)):
        products = products_of(geometry, T, whole[index])
        if len(products) > 0:
            taps.append(whole[index])
            steps.append(steps_of(geometry, products, together * min(outputs, nl.tile_size.pmax)))
    return Deep(
        shard=shard,
        jobs=jobs,
        T=T,
        groups=div_ceil(geometry.columns.taps, T),
        slot=outputs if T == 1 else slot_of(outputs),
        gaps=has_gaps(geometry, shard, T),
        together=together,
        depth=depth,
        window=window,
        columns=columns,
        banks=banks,
        taps=taps,
        steps=steps,
        buffers=config.buffers,
        warmup=config.warmup,
    )


def jobs_of(geometry, shard):
    """The Job of each core."""
    most, found = nl.tile_size.pmax, []
    for part in range(PARTS):
        if shard == "contraction":
            half = div_ceil(div_ceil(geometry.C, most), PARTS)
            chunks = cut_into(geometry.C, half * PARTS)
            first = min(part * half, len(chunks))
            mine = chunks[first : min(first + half, len(chunks))]
            found.append(Job(blocks=cut(geometry.K, most), chunks=mine))
        else:
            k0, kn = share(geometry.K, PARTS, part)
            blocks = []
            inner = cut(kn, most)
            for index in range(len(inner)):
                blocks.append((k0 + inner[index][0], inner[index][1]))
            found.append(Job(blocks=blocks, chunks=cut(geometry.C, most)))
    return found


def window_of(geometry, T):
    """The Window of every chunk, or None where no tap meets x."""
    rows, columns = geometry.rows, geometry.columns
    h0, hn = span(rows, 0, rows.out)
    w0, wn = span(columns, 0, columns.out)
    if hn == 0 or wn == 0:
        return None
    taps = div_ceil(columns.taps, T) * T
    return Window(
        height=(rows.out - 1) * rows.stride + (rows.taps - 1) * rows.dilation + 1,
        width=(columns.out - 1) * columns.stride + (taps - 1) * columns.dilation + 1,
        h0=h0,
        hn=hn,
        top=h0 + rows.before,
        w0=w0,
        wn=wn,
        left=w0 + columns.before,
    )


def is_copied(window):
    """Whether x in SBUF has zeros around it, so that it is copied there from where it was loaded."""
    return window.height > window.hn or window.width > window.wn


def banks_of(geometry, columns):
    """Banks of sums: whole images, or rows of one."""
    P, Q = geometry.rows.out, geometry.columns.out
    rows, found = BANK_COLUMNS // columns, []
    if P <= rows:
        images = cut(geometry.N, rows // P)
        for index in range(len(images)):
            found.append(Bank(n=images[index][0], nn=images[index][1], p=0, pn=P, q=0, qn=Q))
        return found
    parts = cut(P, rows)
    for n in range(geometry.N):
        for index in range(len(parts)):
            found.append(Bank(n=n, nn=1, p=parts[index][0], pn=parts[index][1], q=0, qn=Q))
    return found


def pieces_of(deep, job):
    """All Pieces of a job in order: chunks outermost, so that x of a chunk is needed for a while only."""
    found = []
    for first in range(0, len(job.chunks), deep.together):
        count = min(deep.together, len(job.chunks) - first)
        for index in range(len(deep.taps)):
            for block in range(len(job.blocks)):
                found.append(Piece(first=first, count=count, block=block, which=index, taps=deep.taps[index]))
    return found


@dataclass
class Product(nl.NKIObject):
    """A row of taps, or some columns of it: taps first .. first+count-1 of those turned, at r and from column s on."""

    r: int
    s: int
    first: int
    count: int


def products_of(geometry, T, taps):
    """The Products of a block of taps that meet x. The first of a row has T taps, so that it can write all sums."""
    r0, rn, s0, sn = taps
    found, first = [], 0
    for r in range(r0, r0 + rn):
        if meets(geometry.rows, r):
            for s in range(s0, s0 + sn, T):
                count = min(T, s0 + sn - s)
                seen = T > 1 and s == 0
                for t in range(count):
                    seen = seen or meets(geometry.columns, s + t)
                if seen:
                    found.append(Product(r=r, s=s, first=first, count=count))
                    first += count
    return found


def meets(axis, tap):
    """Whether a tap meets x at any output."""
    return met(axis, tap, 0, axis.out)[2] > 0


@dataclass
class Step(nl.NKIObject):
    """Products whose taps are turned in one bank of PSUM: products first .. end-1, turned taps tap .. tap+taps-1."""

    first: int
    end: int
    tap: int
    taps: int


def steps_of(geometry, products, rows):
    """The Steps of a block of taps, filters having so many rows."""
    most = max(1, BANK_BYTES // (whole_words(rows, geometry.itemsize) * geometry.itemsize))
    found = []
    for index in range(len(products)):
        last = found[len(found) - 1] if index > 0 else None
        product = products[index]
        if last != None and last.taps + product.count <= most:
            last.end = index + 1
            last.taps = last.taps + product.count
        else:
            found.append(Step(first=index, end=index + 1, tap=product.first, taps=product.count))
    return found


def turned_taps(products):
    """(r, s) of the taps of a block that are turned, in order."""
    found = []
    for index in range(len(products)):
        product = products[index]
        for t in range(product.count):
            found.append((product.r, product.s + t))
    return found


def ring_size(geometry, deep):
    """Stationaries that pieces take in turn: those that are turned before one is multiplied; packed ones are loads."""
    job = deep.jobs[1]
    pieces = div_ceil(len(job.chunks), deep.together) * len(deep.taps) * len(job.blocks)
    return min(pieces, AHEAD + (deep.buffers if geometry.packed > 0 else 1))


def most_taps(deep):
    """Most taps that are turned of a block."""
    most = 1
    for index in range(len(deep.steps)):
        last = deep.steps[index][len(deep.steps[index]) - 1]
        most = max(most, last.tap + last.taps)
    return most


def sbuf_bytes(geometry, deep, extras):
    """Bytes a partition, at most: filters as loaded and turned, x as loaded and with its zeros, sums and results."""
    item, window = geometry.itemsize, deep.window
    taps = deep.taps[0][1] * deep.taps[0][3]
    raw = 0 if geometry.packed > 0 else (deep.buffers + 1) * whole_words(taps * deep.depth, item) * item
    turned = ring_size(geometry, deep) * deep.together * most_taps(deep) * deep.slot * item
    x = window.hn * window.wn + (window.height * window.width if is_copied(window) else 0)
    chunks = deep.together * min(div_ceil(len(deep.jobs[1].chunks), deep.together), deep.buffers + 2)
    pixels = geometry.N * geometry.rows.out * geometry.columns.out
    # sums of both halves, their total, y; a residual as it is and scaled; before an activation
    results = (4 + (2 if extras.residual else 0) + 1) * 4 * len(deep.jobs[1].blocks)
    return raw + turned + chunks * geometry.N * whole_words(x, item) * item + pixels * results + 2048


def deep_fits(geometry, extras, deep):
    """Whether there is a Deep, and room in SBUF for it."""
    if deep == None:
        return False
    return sbuf_bytes(geometry, deep, extras) <= nl.tile_size.total_available_sbuf_size


def count_instructions(geometry, deep, extras, cores):
    """Instructions of a core, at most."""
    job = deep.jobs[1]
    taps = geometry.rows.taps * geometry.columns.taps
    blocks, chunks = len(job.blocks), len(job.chunks)
    groups = div_ceil(chunks, deep.together)
    turned = groups * blocks * (2 * taps + len(deep.taps))
    loads = chunks * (3 + len(deep.taps) * blocks * (1 + taps if geometry.packed > 0 else 1))
    products = chunks * blocks * geometry.rows.taps * deep.groups * len(deep.banks)
    rows = geometry.N + 2
    results = blocks * (len(deep.banks) * (deep.T + 2) + 8 + rows * (2 if extras.residual else 1))
    each = turned + loads + products + results
    return 8 + deep.warmup + ring_size(geometry, deep) + each * (PARTS if cores == 1 else 1)
