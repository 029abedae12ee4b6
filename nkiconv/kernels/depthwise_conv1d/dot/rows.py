"""Rows of x and w for `dot`: loads into rotating buffers with zeros where there is no element, and transposed slots."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import BANK_BYTES
from ..free_channels import full_rows
from .plan import groups_of, x_first, x_slots


@dataclass
class Buffer(nl.NKIObject):
    """SBUF [128, length] that is loaded again and again; elements first .. end-1 may be other than zeros."""

    tile: object
    first: int
    end: int


def new_buffer(length, dtype):
    """A Buffer of which nothing is known yet."""
    return Buffer(tile=nl.ndarray((nl.tile_size.pmax, length), dtype=dtype, buffer=nl.sbuf), first=0, end=length)


def clear_outside(buffer, first, end):
    """Zeros everywhere but in first .. end-1, where a load follows."""
    rows = nl.tile_size.pmax
    low = min(buffer.end, first)
    if buffer.first < low:
        nisa.memset(dst=buffer.tile[0:rows, buffer.first : low], value=0.0, engine=nisa.engine.gpsimd)
    high = max(buffer.first, end)
    if high < buffer.end:
        nisa.memset(dst=buffer.tile[0:rows, high : buffer.end], value=0.0, engine=nisa.engine.gpsimd)
    buffer.first = first
    buffer.end = end


def load_rows(tile, src_hbm, block, r0, groups, c_step, step, offset, first, end):
    """Elements first .. end-1 of a tile: channel p * length + r0 + g of a block is on partition p * groups + g.

    offset: HBM element that goes to `first` of the block's first channel; c_step, step: HBM elements between channels
    and between elements.
    """
    complete = full_rows(block)
    start = offset + r0 * c_step
    rows = complete[0] * groups
    if rows > 0:
        copy(
            tile[0:rows, first:end],
            src_hbm.ap(
                pattern=[[block.length * c_step, complete[0]], [c_step, groups], [step, end - first]], offset=start
            ),
        )
    more = min(groups, complete[1] - r0)
    if more > 0:
        copy(
            tile[rows : rows + more, first:end],
            src_hbm.ap(
                pattern=[[c_step, more], [step, end - first]], offset=start + complete[0] * block.length * c_step
            ),
        )


def load_unit(operands, geometry, extras, plan, unit, with_filter, x_buffer, w_buffer):
    """Rows of one unit (batch, image, tile, chunk): its filter's taps, then what they meet of x."""
    if plan.parts > 1:
        load_parts(operands, geometry, extras, plan, unit, with_filter, x_buffer, w_buffer)
        return
    block, n = unit[0].block, unit[1]
    r0, groups = unit[2] * plan.taps, groups_of(plan, unit[0].block, unit[2])
    base = unit[3] * plan.slots * plan.depth
    partial = full_rows(block)[0] < plan.channels

    if with_filter:
        taps = min(plan.w_length, geometry.S - base * plan.tap_phases)
        if partial:
            clear_outside(w_buffer, 0, 0)
        clear_outside(w_buffer, 0, taps)
        offset = block.c0 * geometry.w_c + base * plan.tap_phases * geometry.w_s
        load_rows(w_buffer.tile, operands.w, block, r0, groups, geometry.w_c, geometry.w_s, offset, 0, taps)

    start = x_first(geometry, plan, base, unit[0].l0)
    used = (geometry.Q - 1) * geometry.stride + (geometry.S - 1) * geometry.dilation + 1
    length = min(plan.x_length, used - start)
    from_x = min(length, max(0, geometry.pad_left - start))
    end = max(from_x, min(length, geometry.W + geometry.pad_left - start))
    first = 0 if extras.state else from_x
    if partial:
        clear_outside(x_buffer, 0, 0)
    clear_outside(x_buffer, first, end)
    if extras.state and from_x > 0:
        offset = (n * geometry.C + block.c0) * geometry.pad_left + start
        load_rows(x_buffer.tile, operands.state, block, r0, groups, geometry.pad_left, 1, offset, 0, from_x)
    if end > from_x:
        position = start + from_x - geometry.pad_left
        offset = n * geometry.x_n + block.c0 * geometry.x_c + position * geometry.x_w
        load_rows(x_buffer.tile, operands.x, block, r0, groups, geometry.x_c, geometry.x_w, offset, from_x, end)


def load_parts(operands, geometry, extras, plan, unit, with_filter, x_buffer, w_buffer):
    """The same where the parts of the only row stand for channels: part v has taps v * part_taps onwards."""
    base = unit[3] * plan.slots * plan.depth
    rows = groups_of(plan, unit[0].block, unit[2]) * plan.channels
    if with_filter:
        taps = min(plan.w_length, plan.part_taps - base * plan.tap_phases)
        clear_outside(w_buffer, 0, 0)
        first = base * plan.tap_phases
        load_ranges(w_buffer, operands.w, plan, plan.part_taps, first, geometry.S, geometry.w_s, taps)
    start = x_first(geometry, plan, base, unit[0].l0)
    used = (geometry.Q - 1) * geometry.stride + (plan.part_taps - 1) * geometry.dilation + 1
    length = min(plan.x_length, used - start)
    spacing = plan.part_taps * geometry.dilation
    start = start - geometry.pad_left
    inside = start >= 0 and start + (plan.parts - 1) * spacing + length <= geometry.W
    if inside and rows == plan.parts:
        clear_outside(x_buffer, 0, length)
    else:
        clear_outside(x_buffer, 0, 0)
    load_ranges(x_buffer, operands.x, plan, spacing, start, geometry.W, geometry.x_w, length)
    if extras.state and geometry.pad_left > 0:
        first = start + geometry.pad_left
        load_ranges(x_buffer, operands.state, plan, spacing, first, geometry.pad_left, 1, length)


def load_ranges(buffer, src_hbm, plan, spacing, start, limit, step, length):
    """Element e < length of row v from element start + v * spacing + e of the source, if that is in 0 .. limit-1."""
    v = 0
    while v < plan.parts:
        first = start + v * spacing
        low, high = max(0, -first), min(length, limit - first)
        count = 1
        if low == 0 and high == length:
            while v + count < plan.parts and first + count * spacing + length <= limit:
                count += 1
        if low < high:
            pattern = [[spacing * step, count], [step, high - low]]
            copy(buffer.tile[v : v + count, low:high], src_hbm.ap(pattern=pattern, offset=(first + low) * step))
        v += count
    buffer.first = 0
    buffer.end = max(buffer.end, length)


@dataclass
class Rows(nl.NKIObject):
    """Rows of the units on their way: buffers that take turns, and transposed filters by chunk."""

    x_buffers: list
    w_buffers: list
    filters: list


def start_rows(operands, geometry, extras, plan, units):
    """Buffers, and loads of the first units, all but the last buffer's."""
    count = min(plan.buffers, len(units))
    rows = Rows(x_buffers=[], w_buffers=[], filters=[])
    for _ in range(count):
        rows.x_buffers.append(new_buffer(plan.x_length, operands.x.dtype))
        rows.w_buffers.append(new_buffer(plan.w_length, operands.w.dtype))
    for _ in range(plan.chunks):
        rows.filters.append(None)
    for index in range(count - 1):
        load_rows_of(rows, operands, geometry, extras, plan, units, index)
    return rows


def load_ahead(rows, operands, geometry, extras, plan, units, index):
    """Load the rows of the last unit that has a buffer while unit `index` is at work."""
    load_rows_of(rows, operands, geometry, extras, plan, units, index + len(rows.x_buffers) - 1)


def load_rows_of(rows, operands, geometry, extras, plan, units, index):
    """Load the rows of unit `index`, if there is one."""
    if index < len(units):
        b = index % len(rows.x_buffers)
        fresh = needs_filter(plan, units, index)
        load_unit(operands, geometry, extras, plan, units[index], fresh, rows.x_buffers[b], rows.w_buffers[b])


def next_rows(rows, operands, geometry, plan, units, index, moves):
    """Tiles for unit `index`'s transposed slots, (x, w), and the Moves that fill them."""
    unit = units[index]
    count = groups_of(plan, unit[0].block, unit[2]) * plan.channels
    b = index % len(rows.x_buffers)
    if needs_filter(plan, units, index):
        starts = w_starts(plan)
        turned_sbuf = nl.ndarray((plan.depth, len(starts), count), dtype=operands.w.dtype, buffer=nl.sbuf)
        slot_moves(moves, turned_sbuf, rows.w_buffers[b].tile, starts, plan.tap_phases * plan.slots)
        rows.filters[unit[3]] = turned_sbuf
    starts = x_starts(geometry, plan)
    x_sbuf = nl.ndarray((plan.depth, len(starts), count), dtype=operands.x.dtype, buffer=nl.sbuf)
    slot_moves(moves, x_sbuf, rows.x_buffers[b].tile, starts, geometry.stride * plan.spread * plan.slots)
    return x_sbuf, rows.filters[unit[3]]


def needs_filter(plan, units, index):
    """Whether a unit loads and transposes its filter: not if the image before it did, and filters are kept."""
    unit = units[index]
    before = index - plan.chunks
    if not plan.keep or before < 0:
        return True
    same = units[before][0].block.c0 == unit[0].block.c0 and units[before][2] == unit[2]
    return not same


def w_starts(plan):
    """First elements of a filter's slots, in order: slot t of tap phase r is number r * slots + t."""
    starts = ()
    for r in range(plan.tap_phases):
        for t in range(plan.slots):
            starts = starts + (r + plan.tap_phases * t,)
    return starts


def x_starts(geometry, plan):
    """First elements of a row's slots: slot t of column phase m and tap phase r is number (m * R + r) * x_slots + t."""
    starts = ()
    for m in range(plan.column_phases):
        for r in range(plan.tap_phases):
            for t in range(x_slots(plan)):
                starts = starts + (geometry.stride * (plan.spread * t + m) + geometry.dilation * r,)
    return starts


@dataclass
class Move(nl.NKIObject):
    """Slots that go through a PSUM bank: slots first .. of turned_sbuf [depth, slots, rows] from row_sbuf [rows, ...].

    Entry p of a slot is element start + p * step.
    """

    turned_sbuf: object
    row_sbuf: object
    first: int
    starts: tuple
    step: int


def slot_moves(moves, turned_sbuf, row_sbuf, starts, step):
    """Append the Moves of all slots of a row."""
    rows = turned_sbuf.shape[2]
    itemsize = 4 if turned_sbuf.dtype == nl.float32 else 2
    most = BANK_BYTES // (rows * itemsize)
    banks = (len(starts) + most - 1) // most
    for bank in range(banks):
        first = (bank * len(starts)) // banks
        end = ((bank + 1) * len(starts)) // banks
        moves.append(Move(turned_sbuf=turned_sbuf, row_sbuf=row_sbuf, first=first, starts=starts[first:end], step=step))


def move_slots(move, engine):
    """Transpose the slots of a Move on the array, and `engine` copies them to SBUF; 16-bit ones in pairs, as fp32."""
    depth, rows, count = move.turned_sbuf.shape[0], move.turned_sbuf.shape[2], len(move.starts)
    turned_psum = nl.ndarray((depth, count, rows), dtype=move.turned_sbuf.dtype, buffer=nl.psum)
    for index in range(count):
        start = move.starts[index]
        nisa.nc_transpose(
            dst=turned_psum[0:depth, index, 0:rows],
            data=move.row_sbuf[0:rows, start : start + (depth - 1) * move.step + 1 : move.step],
            engine=nisa.engine.tensor,
        )
    nisa.tensor_copy(
        dst=move.turned_sbuf[0:depth, move.first : move.first + count, 0:rows].view(nl.float32),
        src=turned_psum.view(nl.float32),
        engine=engine,
    )
