"""precision="winograd": frames on their way in, which become sums of two between matmuls (see `pairs_of_planes`).

Rows of frames take tiles in turn; sums of those of the next band are made in the course of one.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import GPSIMD_START_WORK, GPSIMD_WORK, START_WORK, VECTOR_WORK_16BIT
from ..._tiles import BANK_BYTES
from ..call import Operands
from ..cuts import Band, chunks_of, with_rows
from ..geometry import Geometry
from ..pairs_of_planes import PRODUCTS_OF_PAIR, frames_of_x, frames_seen, row_pieces
from ..transposes import is_transposed
from .fold import chunk_window
from .rows import clear, load_columns, load_rows

#: Bytes a partition of frames that are added together, if more than a row.
FRAMES_PART_BYTES = 8192
#: Tiles that frames of a chunk take in turn, at least and at most.
TURNS_MIN, TURNS_MAX = 2, 4
#: Banks of PSUM whose sums are on their way out together, in parts.
SUMS_BANKS = 6
#: Share of a band's first job before the frames of the next are added, as they are on their way, and until they are.
ADD_FROM, ADD_UNTIL = 0.35, 0.95


@dataclass
class FramePart(nl.NKIObject):
    """Rows of a band, from its first, of a chunk (index) of channels: their tile, and frames as they came, or None."""

    chunks: list
    index: int
    band: Band
    h0: int
    hn: int
    tile: object
    frames_sbuf: object


@dataclass
class FrameTile(nl.NKIObject):
    """Sums of frames of a chunk in a band, and (first row, number) of its FrameParts."""

    x_sbuf: object
    parts: list


@dataclass
class FrameTurns(nl.NKIObject):
    """Tiles of a shape, and first column, that frames of a chunk take in turn, and how many have."""

    key: tuple
    tiles: list
    taken: int


@dataclass
class Adding(nl.NKIObject):
    """FrameParts in the order of the work; how many have come, and are added. rate: parts a matmul; credit: due;
    most_bytes: a partition of those that have come and are not added."""

    parts: list
    come: int
    added: int
    rate: float
    credit: float
    most_bytes: int
    #: by chunk
    turns: list


@dataclass
class FrameLoad(nl.NKIObject):
    """What `load_rows` is to know: the Geometry that x has."""

    operands: Operands
    geometry: Geometry
    ledger: object


def start_adding(geometry, most_bytes):
    """An Adding of nothing, or None where x is multiplied as it is."""
    if geometry.direct == None:
        return None
    return Adding(parts=[], come=0, added=0, rate=0.0, credit=0.0, most_bytes=most_bytes, turns=[])


def adding_bytes(geometry, plan, row_bytes, x_bytes):
    """Bytes a partition beside those of other precisions: frames that are not added yet, and sums on their way out.
    row_bytes, x_bytes: of all sums of frames in a row of a band, and in a band."""
    if geometry.direct == None:
        return 0
    chunks, pairs = 1, geometry.planes.out
    for index in range(len(plan.items)):
        item = plan.items[index]
        chunks = max(chunks, len(chunks_of(plan.batches[item.batch])))
        pairs = min(pairs, item.band.zn)
    frames_bytes = min(x_bytes, max(row_bytes, chunks * FRAMES_PART_BYTES))
    if row_bytes >= chunks * FRAMES_PART_BYTES:
        frames_bytes = frames_bytes * frames_seen(pairs) // (PRODUCTS_OF_PAIR * pairs)
    return TURNS_MIN * frames_bytes + SUMS_BANKS * BANK_BYTES


def adding_instructions(geometry, band, chunks, rows):
    """Instructions for the frames of a band that so many chunks of a job see, and its filters, at most."""
    if geometry.direct == None:
        return 0
    return chunks * ((band.hn + 4) * (PRODUCTS_OF_PAIR + 4) + 5)


def add_frames(work, chunks, tiles, index, band, part):
    """As `load_rows`, for rows of frames that are added: they come in as far as there is room."""
    adding, chunk = work.adding, chunks[index]
    width = chunk_window(work.geometry, chunk, band)[1]
    if tiles[index] == None:
        shape = (chunk[2] * chunk[1], band.dn, band.hn, width)
        tiles[index] = FrameTile(x_sbuf=nl.ndarray(shape, dtype=nl.float16, buffer=nl.sbuf), parts=[])
    tile = tiles[index]
    most = max(1, FRAMES_PART_BYTES // (frames_seen(band.zn) * width * work.geometry.itemsize))
    for h0 in range(part[0], part[0] + part[1], most):
        hn = min(most, part[0] + part[1] - h0)
        tile.parts.append((h0, len(adding.parts)))
        adding.parts.append(FramePart(chunks=chunks, index=index, band=band, h0=h0, hn=hn, tile=tile, frames_sbuf=None))
    bring_frames(work)


def bring_frames(work):
    """Load FrameParts while those that are not added yet are few enough."""
    adding = work.adding
    waiting_bytes = 0
    for number in range(adding.added, adding.come):
        waiting_bytes += part_bytes(work.geometry, adding.parts[number])
    while adding.come < len(adding.parts):
        part = adding.parts[adding.come]
        waiting_bytes += part_bytes(work.geometry, part)
        if waiting_bytes > adding.most_bytes and adding.come >= adding.added + len(part.chunks):
            return
        load_frames(work, part)
        adding.come = adding.come + 1


def part_bytes(geometry, part):
    """Bytes a partition of a FramePart as it comes."""
    width = chunk_window(geometry, part.chunks[part.index], part.band)[1]
    return frames_seen(part.band.zn) * part.hn * width * geometry.itemsize


def load_frames(work, part):
    """A FramePart's frames; zeros where there are none."""
    band, chunk = part.band, part.chunks[part.index]
    first, count, before = frames_of_x(work.geometry, band)
    shape = (chunk[2] * chunk[1], frames_seen(band.zn), part.hn, chunk_window(work.geometry, chunk, band)[1])
    frames_sbuf = next_tile(work, part, shape)
    for run in ((0, before), (before + count, shape[1])):
        if run[0] < run[1]:
            nisa.memset(
                dst=frames_sbuf[0 : shape[0], run[0] : run[1], 0 : part.hn, 0 : shape[3]],
                value=0.0,
                engine=nisa.engine.gpsimd,
            )
    part.frames_sbuf = frames_sbuf
    if count == 0:
        return
    load = FrameLoad(operands=work.operands, geometry=work.geometry.direct, ledger=work.ledger)
    rows = Band(
        z0=band.z0,
        zn=band.zn,
        p0=band.p0,
        pn=band.pn,
        q0=band.q0,
        qn=band.qn,
        d0=first,
        dn=count,
        h0=band.h0 + part.h0,
        hn=part.hn,
        w0=band.w0,
        wn=band.wn,
    )
    found_sbuf = frames_sbuf[0 : shape[0], before : before + count, 0 : part.hn, 0 : shape[3]]
    if is_transposed(work.geometry):
        load_rows(load, [chunk], [found_sbuf], 0, rows, (0, part.hn))
    else:
        load_copies(found_sbuf, load, work.geometry, chunk, rows)


def load_copies(frames_sbuf, load, geometry, chunk, band):
    """Rows of a band of a chunk: copies a column of taps further each, of x or, where rows of taps are channels, of
    rows of x for each; zeros outside, in columns of several copies those that are there."""
    first, cn, depth = chunk[:3]
    rows = geometry.depth
    _, dn, hn, wn = frames_sbuf.shape
    w0 = chunk_window(geometry, chunk, band)[0]
    if rows != None:
        reach = (rows.taps - 1) * rows.dilation
        if band.h0 < rows.before or band.h0 + hn - 1 + reach - rows.before >= rows.size:
            clear(frames_sbuf, 0, hn, 0, wn)
    for copy_index in range(depth):
        shifted = w0 + copy_index * geometry.columns.dilation
        for piece in row_pieces(geometry, first, cn):
            at, row, c, count = piece
            h, size = band.h0, geometry.direct.rows.size
            if rows != None:
                h += row * rows.dilation - rows.before
            h0, h1 = max(0, h), min(size, h + hn)
            if h0 < h1:
                at += copy_index * cn
                dst = frames_sbuf[at : at + count, 0:dn, h0 - h : h1 - h, 0:wn]
                own = with_rows(band, (band.p0, band.pn), (h0, h1 - h0))
                load_columns(load.operands, load.geometry, dst, c, own, (0, h1 - h0), shifted)


def next_tile(work, part, shape):
    """The next of the tiles that frames of a chunk take in turn, so that loads do not run further ahead; zeros are in
    the columns beside x that copies of channels lack, once for all loads."""
    adding, chunk = work.adding, part.chunks[part.index]
    w0, wn = chunk_window(work.geometry, chunk, part.band)
    while len(adding.turns) <= part.index:
        adding.turns.append(FrameTurns(key=(), tiles=[], taken=0))
    turns = adding.turns[part.index]
    if turns.key != shape + (w0,):
        turns.key = shape + (w0,)
        turns.tiles = []
        turns.taken = 0
    most = adding.most_bytes // (len(part.chunks) * part_bytes(work.geometry, part))
    turn = turns.taken % min(TURNS_MAX, max(TURNS_MIN, most))
    turns.taken = turns.taken + 1
    if turn == len(turns.tiles):
        tile_sbuf = nl.ndarray(shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
        if chunk[2] > 1:
            columns = work.geometry.columns
            left = min(wn, max(0, -w0))
            end = columns.size - w0 - (chunk[2] - 1) * columns.dilation
            clear(tile_sbuf, 0, shape[2], 0, left)
            clear(tile_sbuf, 0, shape[2], max(left, min(wn, end)), wn)
        turns.tiles.append(tile_sbuf)
    return turns.tiles[turn]


def add_part_of_frames(work):
    """The sums of the next FramePart: d0 - d2, d1 + d2, d2 - d1 and d3 - d1 of the four frames of each pair."""
    adding = work.adding
    part = adding.parts[adding.added]
    frames_sbuf, x_sbuf = part.frames_sbuf, part.tile.x_sbuf
    p, dn, hn, wn = frames_sbuf.shape
    for sums in ((0, 0, 2, nl.subtract), (1, 1, 2, nl.add), (2, 2, 1, nl.subtract), (3, 3, 1, nl.subtract)):
        product, one, other, op = sums
        end = dn - PRODUCTS_OF_PAIR + 1
        nisa.tensor_tensor(
            dst=x_sbuf[0:p, product : x_sbuf.shape[1] : PRODUCTS_OF_PAIR, part.h0 : part.h0 + hn, 0:wn],
            data1=frames_sbuf[0:p, one : one + end : 2, 0:hn, 0:wn],
            data2=frames_sbuf[0:p, other : other + end : 2, 0:hn, 0:wn],
            op=op,
            engine=engine_of_sums(work.ledger, end // 2 * hn * wn + hn * wn),
        )
    part.frames_sbuf = None
    part.tile = None
    adding.added = adding.added + 1
    bring_frames(work)


def engine_of_sums(ledger, elements):
    """Vector, or GpSimd where that would be done first, booked."""
    vector_work = START_WORK + elements * VECTOR_WORK_16BIT
    gpsimd_work = GPSIMD_START_WORK + elements * GPSIMD_WORK
    if ledger.gpsimd + gpsimd_work < ledger.vector + vector_work:
        ledger.gpsimd = ledger.gpsimd + gpsimd_work
        return nisa.engine.gpsimd
    ledger.vector = ledger.vector + vector_work
    return nisa.engine.vector


def set_adding_rate(work, matmuls):
    """Frames that are not added yet are, evenly, in the course of so many matmuls."""
    adding = work.adding
    adding.rate = (len(adding.parts) - adding.added) / ((ADD_UNTIL - ADD_FROM) * matmuls)
    adding.credit = -ADD_FROM * matmuls * adding.rate


def add_frames_due(work):
    """After a matmul: what is due of them."""
    adding = work.adding
    adding.credit = adding.credit + adding.rate
    while adding.credit >= 1.0:
        adding.credit = adding.credit - 1.0
        if adding.added < len(adding.parts):
            add_part_of_frames(work)


def add_frames_to(work, tile, hn):
    """Have the first hn rows of a FrameTile."""
    count = 0
    for index in range(len(tile.parts)):
        h0, number = tile.parts[index]
        if h0 < hn:
            count = number + 1
    while work.adding.added < count:
        add_part_of_frames(work)
