"""x of a band in SBUF, [channels, slots, images, rows, columns], with its zero padding around it.

Buffers take bands in turn. What is padded is written once, and again only where the next band in a buffer has its
padding elsewhere: DMAs write what lies inside.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import pick
from ..geometry import Geometry
from .chunks import all_partitions
from .extents import stored
from .work import Pairs, parts_of

#: Elements a partition that one copy of rows from where they were loaded moves, at most: read-outs wait for it.
MOVE_ELEMENTS = 1024
#: How many times the banks before it each load of the first band reaches, whose first load is of one bank's rows.
EARLY_GROWTH = 3


@dataclass
class Move(nl.NKIObject):
    """Rows as loaded, and their place in a buffer: both [cn, images, rows, columns]; unit: bytes that are copied as
    one; band: which of this core's, bank: its first that needs them."""

    raw_sbuf: object
    place_sbuf: object
    unit: int
    band: int
    bank: int


@dataclass
class Ring(nl.NKIObject):
    """Buffers, what lies in each (None: nothing yet), and the rows and images that still have to go there."""

    geometry: Geometry
    plan: Pairs
    x_hbm: object
    buffers: list
    #: by buffer: (columns of zeros in front, columns of x, rows whose sides are zeros, key of rows of zeros)
    states: list
    moves: list
    #: bands of this core that are loaded so far
    loaded: int


def make_ring(operands, geometry, plan, count):
    """Buffers for so many bands, at most."""
    buffer = plan.buffer
    shape = (all_partitions(plan.chunks), buffer.slots, buffer.images, buffer.rows, buffer.columns)
    buffers, states = [], []
    for _ in range(min(count, plan.buffers)):
        buffers.append(nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf))
        nothing = None
        states.append(nothing)
    return Ring(geometry=geometry, plan=plan, x_hbm=operands.x, buffers=buffers, states=states, moves=[], loaded=0)


def zero_around(ring, which, band):
    """Zeros wherever a buffer has no x of a band, unless they are there."""
    geometry, buffer, x_sbuf = ring.geometry, ring.plan.buffer, ring.buffers[which]
    rows = stored(geometry.rows, band.p0, band.pn)
    columns = stored(geometry.columns, band.q0, band.qn)
    used = (band.nn - 1) * buffer.rows + rows.extent
    left = buffer.lead + columns.zeros
    before = ring.states[which]
    key = (band.nn, rows.zeros, rows.count, rows.extent)
    sides = used
    if rows.count == 0 or columns.count == 0:
        zero(x_sbuf, buffer, 0, 1, used, 0, buffer.columns)
        sides = 0
    else:
        same_sides = before != None and before[0] == left and before[1] == columns.count
        if same_sides and before[2] >= used:
            sides = before[2]
        else:
            # loads of copies that are shifted come after, and lie further left
            shift = (ring.plan.chunks[len(ring.plan.chunks) - 1].depth - 1) * geometry.columns.dilation
            zero(x_sbuf, buffer, 0, 1, used, 0, left)
            zero(x_sbuf, buffer, 0, 1, used, left + columns.count, buffer.columns)
            if shift > 0:
                zero_slot(x_sbuf, buffer, used, left + columns.count - shift, left + columns.count)
        if not same_sides or before[3] != key:
            low, high = rows.zeros, rows.zeros + rows.count
            zero(x_sbuf, buffer, 0, 1, low, 0, buffer.columns)
            if band.nn > 1:
                zero(x_sbuf, buffer, high, band.nn - 1, buffer.rows + low - high, 0, buffer.columns)
            last = (band.nn - 1) * buffer.rows
            zero(x_sbuf, buffer, last + high, 1, rows.extent - high, 0, buffer.columns)
    ring.states[which] = (left, columns.count, sides, key)


def zero(x_sbuf, buffer, first, images, count, left, right):
    """Zeros in columns left .. right-1 of `count` rows from row `first` on, in so many images; in every slot."""
    if count <= 0 or right <= left:
        return
    size = buffer.images * buffer.rows * buffer.columns
    inner = [[buffer.columns, count], [1, right - left]]
    if right - left == buffer.columns:
        inner = [[buffer.rows * buffer.columns, images], [1, count * buffer.columns]]
    nisa.memset(
        dst=x_sbuf.ap(
            pattern=[[buffer.slots * size, x_sbuf.shape[0]], [size, buffer.slots]] + inner,
            offset=first * buffer.columns + left,
        ),
        value=0.0,
        engine=nisa.engine.gpsimd,
    )


@dataclass
class Part(nl.NKIObject):
    """Rows of x of a band that are loaded together: of images, from `image` on, and the band's first bank that needs
    them."""

    image: int
    images: int
    row: int
    rows: int
    bank: int


def zero_slot(x_sbuf, buffer, count, left, right):
    """The same in the last slot only, from its first row on."""
    size = buffer.images * buffer.rows * buffer.columns
    nisa.memset(
        dst=x_sbuf.ap(
            pattern=[[buffer.slots * size, x_sbuf.shape[0]], [buffer.columns, count], [1, right - left]],
            offset=(buffer.slots - 1) * size + left,
        ),
        value=0.0,
        engine=nisa.engine.gpsimd,
    )


def load_parts(ring, band, first_band):
    """Parts of x of a band in the order of their loads; of the first band what the first bank needs comes first."""
    geometry, plan = ring.geometry, ring.plan
    rows = stored(geometry.rows, band.p0, band.pn)
    columns = stored(geometry.columns, band.q0, band.qn)
    if rows.count == 0 or columns.count == 0:
        return []
    if not first_band:
        return [Part(image=0, images=band.nn, row=0, rows=rows.count, bank=0)]
    found, banks, begun, bank = [], 1, 0, 0
    own = parts_of(plan, band)
    whole = band.nn if band.nn > 1 else rows.count
    while begun < whole:
        if band.nn > 1:
            end = min(band.nn, banks * plan.together)
            if end > begun:
                found.append(Part(image=begun, images=end - begun, row=0, rows=rows.count, bank=bank))
            bank = banks * len(plan.parts)
        else:
            last = own[min(banks, len(own)) - 1]
            end = stored(geometry.rows, band.p0, last[0] + last[1]).count
            if end > begun:
                found.append(Part(image=0, images=1, row=begun, rows=end - begun, bank=bank))
            bank = banks
        begun = end
        banks = banks * EARLY_GROWTH
    return found


def load_slots(ring, which, band, part, first, last):
    """Load a part of a band into slots first .. last-1 of a buffer, or beside it where it is to be moved there."""
    plan = ring.plan
    for slot in range(first, last):
        chunk = plan.chunks[min(slot, len(plan.chunks) - 1)]
        if slot < len(plan.chunks):
            for copy_of in range(chunk.depth):
                shift = copy_of * ring.geometry.columns.dilation
                load_rows(ring, which, band, part, slot, copy_of * chunk.cn, chunk.cn, chunk.c0, shift)
        else:
            middle = chunk.cn // 2
            load_rows(ring, which, band, part, slot, 0, middle, chunk.c0 + middle, 0)
            load_rows(ring, which, band, part, slot, middle, middle, chunk.c0, 0)


def load_rows(ring, which, band, part, slot, partition, count, c0, shift):
    """Load a part of a band, channels c0 .. c0+count-1, to a slot's partitions from `partition` on, so many columns
    further left."""
    geometry, buffer, x_sbuf = ring.geometry, ring.plan.buffer, ring.buffers[which]
    image, images, row, num = part.image, part.images, part.row, part.rows
    rows = stored(geometry.rows, band.p0, band.pn)
    columns = stored(geometry.columns, band.q0, band.qn)
    staged = ring.plan.staged
    width = geometry.columns.size if staged else columns.count
    left = buffer.lead + columns.zeros - shift
    place_sbuf = x_sbuf[
        partition : partition + count,
        slot,
        image : image + images,
        rows.zeros + row : rows.zeros + row + num,
        left : left + width,
    ]
    into_sbuf = place_sbuf
    if staged:
        raw_sbuf = nl.ndarray((partition + count, images, num, width), dtype=x_sbuf.dtype, buffer=nl.sbuf)
        into_sbuf = raw_sbuf[partition : partition + count, 0:images, 0:num, 0:width]
        add_moves(ring, part, into_sbuf, place_sbuf, buffer.unit if shift % buffer.unit == 0 else 1)
    pattern = [[geometry.x_c, count], [geometry.x_n, images], [geometry.x_h, num], [geometry.x_w, width]]
    offset = (band.n0 + image) * geometry.x_n + c0 * geometry.x_c
    offset += (rows.first + row) * geometry.x_h + columns.first * geometry.x_w
    copy(into_sbuf, ring.x_hbm.ap(pattern=pattern, offset=offset))


def add_moves(ring, part, raw_sbuf, place_sbuf, unit):
    """Book the copies of rows as loaded to their place, not too much of them at once."""
    count, images, num, width = raw_sbuf.shape
    at_once = max(1, MOVE_ELEMENTS * unit // width)
    some = max(1, at_once // num)
    step = num if at_once >= num else at_once
    for n in range(0, images, some):
        for h in range(0, num, step):
            end, bottom = min(images, n + some), min(num, h + step)
            ring.moves.append(
                Move(
                    raw_sbuf=raw_sbuf[0:count, n:end, h:bottom, 0:width],
                    place_sbuf=place_sbuf[0:count, n:end, h:bottom, 0:width],
                    unit=unit,
                    band=ring.loaded,
                    bank=part.bank,
                )
            )


def move_to(ring, band, bank, ledger):
    """Emit the copies of what this core's band and one of its banks need."""
    while is_due(ring, band, bank):
        move_next(ring, ledger)


def is_due(ring, band, bank):
    """Whether the first copy that is booked belongs to this band and a bank up to this one."""
    if len(ring.moves) == 0:
        return False
    move = ring.moves[0]
    return move.band == band and move.bank <= bank


def move_next(ring, ledger):
    """Emit the first copy that is booked: by Vector in whole words, where rows have such."""
    move = ring.moves[0]
    ring.moves = ring.moves[1:]
    if move.unit == 1:
        _, images, num, width = move.raw_sbuf.shape
        engine = pick(ledger, images * num * width, False)
        nisa.tensor_copy(dst=move.place_sbuf, src=move.raw_sbuf, engine=engine)
    else:
        word = nl.float32 if move.unit == 4 else nl.bfloat16
        nisa.tensor_copy(dst=move.place_sbuf.view(word), src=move.raw_sbuf.view(word), engine=nisa.engine.vector)
