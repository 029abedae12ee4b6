"""Filters of a stack as stationaries [(d, b, c), (plane, g, z, t), (u, k)], zero-padded and transposed on the array.

Output row u of a block meets tap r at row u * V * stride + r * dilation of the block's window, so the filters of u are
a copy of w shifted down by u * V * stride rows, with (u, k) on the partitions. They come from HBM straight to their
places where that makes long runs; else w comes once, as it is, and is shifted on chip, if engines may address the
partitions of each u, or the rows of each u are transposed apart (`shape.WAYS`). So it does where taps run backwards,
which are turned on that way. A view of B rows and D columns of taps
of that takes one transpose; where the last group has fewer than D columns of taps, the partitions of the others are
left out.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.geometry import Geometry
from ....schedules.tiles import cut_into, div_ceil
from ..._engines import Ledger
from ..boxes import clear_window, load_box, offset_at
from ..call import Operands, of_array
from ..filter_feed import clear_words, transpose_together, transposes_of_bank, turn_into
from .shape import (
    FILTER_PARTS,
    LONG_RUN_BYTES,
    Stack,
    columns_of,
    fits_window,
    jobs_ahead,
    lead_of,
    order_of_groups,
    padded_elements,
)

#: DMAs that bring the first filters, where they are of many channels.
FIRST_DMAS = 2


@dataclass
class TransposedFilters(nl.NKIObject):
    """Stationaries of all jobs that are there, and padded filters of those that are on their way."""

    operands: Operands
    geometry: Geometry
    stack: Stack
    jobs: list
    ledger: Ledger
    padded: list
    ready: list

    def start(self):
        """Load the first."""
        self._load(1)

    def load(self, job):
        """Load those before `job`, and what there is room for behind them."""
        self._load(job + jobs_ahead(self.geometry, self.stack))

    def place(self, job):
        """Stationaries of this job and the next one, which is transposed before this one's sums and read out during
        them; the second and third job's come after the first rows. Rows of the job behind them are shifted, so that
        they do not wait for read-outs of sums."""
        jobs = self.jobs
        while len(self.ready) < min(len(jobs), 1 if job == 0 else job + 2):
            index = len(self.ready)
            self._shift(index)
            own = self.padded[index], self.geometry, self.stack, jobs[index], self.ledger
            self.ready.append(transpose_padded(self.operands, *own))
            self.padded[index] = None
            if index + 1 < len(jobs):
                self._shift(index + 1)

    def of_job(self, job):
        """Stationaries [(d, b, c), (u, k)] of a job, by plane, group of columns of taps, phase and block of rows."""
        return self.ready[job]

    def _load(self, count):
        """Load the filters of jobs until there are `count`, or all."""
        while len(self.padded) < min(count, len(self.jobs)):
            job = self.jobs[len(self.padded)]
            parts = FIRST_DMAS if len(self.padded) == 0 and job[1] > nl.tile_size.pmax // FIRST_DMAS else 1
            self.padded.append(load_padded(self.operands, self.geometry, self.stack, job, parts))

    def _shift(self, job):
        self.padded[job] = shift_rows(self.padded[job], self.geometry, self.stack, self.jobs[job][1])


def load_padded(operands, geometry, stack, job, parts):
    """(w as loaded [k, (c, plane), r, s] or None, Z [(u, k), (c, plane), rows of the window, columns of taps]) of a
    job; Z is of one u if each is transposed apart.

    job: (first channel, channels). Z lacks what is to be shifted on chip. parts: DMAs that share the channels of each
    u: one of fewer partitions begins earlier.
    """
    kn = job[1]
    C, rows, taps = geometry.planes.taps * geometry.C, geometry.rows, geometry.columns.taps
    height = lead_of(geometry, stack) + stack.num_taps * stack.B
    copies = 1 if stack.filters == "apart" else stack.U
    flat_sbuf = nl.ndarray((copies * kn, padded_elements(geometry, stack)), dtype=operands.w_dtype, buffer=nl.sbuf)
    z_sbuf = flat_sbuf[0 : copies * kn, 0 : C * height * taps].reshape((copies * kn, C, height, taps))
    common = common_rows(geometry, stack)
    if common[1] > 0:
        # only around the rows that all u have: what comes there need not wait
        clear_window(z_sbuf, 0, common[0], 0, taps, nisa.engine.vector)
        clear_window(z_sbuf, common[0] + common[1], height, 0, taps, nisa.engine.gpsimd)
    elif not fits_window(geometry, stack):
        clear_words(flat_sbuf, nisa.engine.vector)
    raw_sbuf = None
    if stack.filters != "straight":
        raw_sbuf = nl.ndarray((kn, C, rows.taps, taps), dtype=operands.w_dtype, buffer=nl.sbuf)
        load_rows_of_taps(raw_sbuf, operands.w, geometry, job, 0, 0, (0, rows.taps), parts)
    else:
        for piece in pieces_of_taps(geometry, stack, common[1]):
            u, r0, rn = piece
            row = lead_of(geometry, stack) + u * stack.V * rows.stride + r0 * rows.dilation
            load_rows_of_taps(z_sbuf, operands.w, geometry, job, u * kn, row, (r0, rn), parts)
    return raw_sbuf, z_sbuf


def common_rows(geometry, stack):
    """(first, how many) rows of Z that hold taps of all u and come to their places in long runs; how many is 0 else."""
    rows = geometry.rows
    span = (stack.U - 1) * stack.V * rows.stride
    count = rows.taps - span
    run = count * geometry.columns.taps * geometry.itemsize
    if stack.filters != "straight" or fits_window(geometry, stack) or rows.dilation > 1 or run < LONG_RUN_BYTES:
        return 0, 0
    return lead_of(geometry, stack) + span, count


def pieces_of_taps(geometry, stack, common):
    """(u, first row of taps, how many) of loads straight to Z: what comes to rows that all u have first. Rows of taps
    that are no neighbours take a DMA for each: an access pattern has few dims."""
    first, rest, R = [], [], geometry.rows.taps
    for u in range(stack.U):
        behind = (stack.U - 1 - u) * stack.V * geometry.rows.stride
        if common > 0:
            first.append((u, behind, common))
            rest.append((u, 0, behind))
            rest.append((u, behind + common, R - behind - common))
        elif geometry.rows.dilation == 1:
            first.append((u, 0, R))
        else:
            for r in range(R):
                first.append((u, r, 1))
    return first + rest


def load_rows_of_taps(tile, w_hbm, geometry, job, partition, row, taps, parts):
    """Rows of taps (first, how many) of a job to a partition and row of a tile, by so many DMAs."""
    shape = (tile.shape[0], geometry.C, geometry.planes.taps, tile.shape[2], tile.shape[3])
    planes_sbuf = tile.reshape(shape)
    for part in cut_into(job[1], min(parts, job[1]) if taps[1] > 0 else 0):
        strides = geometry.w_strides
        channels, rows, columns = [strides[1], geometry.C], [strides[2], taps[1]], [strides[3], geometry.columns.taps]
        planes = [strides[2] * geometry.rows.taps, geometry.planes.taps]
        pattern = [[strides[0], part[1]], channels, planes, rows, columns]
        offset = offset_at(strides, (job[0] + part[0], 0, taps[0], 0))
        load_box(planes_sbuf, w_hbm, (partition + part[0], 0, 0, row, 0), pattern, offset)


def stacked_place(z_sbuf, geometry, stack, kn, u):
    """Where the filters of output row u are in Z."""
    rows = geometry.rows
    first = lead_of(geometry, stack) + u * stack.V * rows.stride
    return z_sbuf[
        u * kn : (u + 1) * kn,
        0 : z_sbuf.shape[1],
        first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation,
        0 : geometry.columns.taps,
    ]


def shift_rows(padded, geometry, stack, kn):
    """(None, Z complete) from what `load_padded` returned."""
    raw_sbuf, z_sbuf = padded
    if raw_sbuf != None:
        for u in range(1 if stack.filters == "apart" else stack.U):
            place = stacked_place(z_sbuf, geometry, stack, kn, u)
            if geometry.flipped and u == 0:
                turn_into(place, raw_sbuf)
                raw_sbuf = place
            else:
                nisa.tensor_copy(dst=place, src=raw_sbuf, engine=nisa.engine.vector)
    return None, z_sbuf


def transpose_padded(operands, padded, geometry, stack, job, ledger):
    """Stationaries [(d, b, c), (u, k)] of a job, (plane, g, z, t), from what `shift_rows` returned; g in order of work.

    They are read out in a few parts at least, so that the first sums need not wait for the last.
    """
    kn, T = job[1], geometry.planes.taps
    z_sbuf = padded[1]
    B, item = stack.B, geometry.itemsize
    phases = len(stack.phases)
    # what one transpose takes: all (u, k), or those of one u
    slots = stack.U if stack.filters == "apart" else 1
    width = stack.U * kn // slots
    each = phases * stack.num_taps
    first, count = 0, geometry.planes.taps * stack.groups * each
    filters_sbuf = nl.ndarray((stack.parts, count * slots, width), dtype=z_sbuf.dtype, buffer=nl.sbuf)
    most = min(max(1, transposes_of_bank(width, item) // slots), div_ceil(count, FILTER_PARTS))
    order = order_of_groups(stack)
    while first < count:
        dn = columns_of(geometry, stack, order[first // each % stack.groups])
        # stationaries of as many partitions, as many as fit a bank
        num = 1
        while num < most and first + num < count:
            if columns_of(geometry, stack, order[(first + num) // each % stack.groups]) != dn:
                break
            num += 1
        sources = []
        for index in range(first, first + num):
            g, t = order[index // each % stack.groups], index // each // stack.groups
            row = index % stack.num_taps * B + lead_of(geometry, stack) - stack.phases[index % each // stack.num_taps]
            for slot in range(slots):
                up = row - slot * stack.V * geometry.rows.stride
                channels = z_sbuf[0:width, t : (geometry.C - 1) * T + t + 1 : T]
                source = channels[0:width, 0 : geometry.C, up : up + B, g * stack.D : g * stack.D + dn]
                sources.append(source.permute((0, 3, 2, 1)))
        own_sbuf = filters_sbuf[0 : dn * B * geometry.C, first * slots : (first + num) * slots, 0:width]
        transpose_together(own_sbuf, sources, item, ledger)
        first += num
    filters_sbuf = of_array(filters_sbuf.reshape((stack.parts, count, slots * width)), operands)
    groups = [order[index // each % stack.groups] for index in range(count)]
    parts = [columns_of(geometry, stack, g) * B * geometry.C for g in groups]
    return [filters_sbuf[0 : parts[index], index, 0 : slots * width] for index in range(count)]
