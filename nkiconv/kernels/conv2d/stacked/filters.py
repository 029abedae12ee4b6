"""Filters of a stack as stationaries [(d, b, c), (g, z, t), (u, k)], zero-padded and transposed on the array.

Output row u of a block meets tap r at row u * V * stride + r * dilation of the block's window, so the filters of u are
a copy of w shifted down by u * V * stride rows, with (u, k) on the partitions. They come from HBM straight to their
places where that makes long runs; else w comes once, as it is, and is shifted on chip, if engines may address the
partitions of each u, or the rows of each u are transposed apart (`shape.WAYS`). A view of B rows and D columns of taps
of that takes one transpose; where the last group has fewer than D columns of taps, the partitions of the others are
left out.
"""

from ...._nki import nisa, nl
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES, cut_into, div_ceil, whole_words
from ..boxes import clear_window, corner, load_box, strides_of_w
from ..call import of_array
from .shape import FILTER_PARTS, LONG_RUN_BYTES, columns_of, fits, lead_of, order_of_groups, padded_elements


def load_padded(operands, geometry, stack, job, parts):
    """(w as loaded [k, c, r, s] or None, Z [(u, k), c, rows of the window, columns of taps]) of a job; Z is of one u if
    each is transposed apart.

    job: (first channel, channels). Z lacks what is to be shifted on chip. parts: DMAs that share the channels of each
    u: one of fewer partitions begins earlier.
    """
    k0, kn = job
    rows, taps = geometry.rows, geometry.columns.taps
    height = lead_of(geometry, stack) + stack.num_taps * stack.B
    copies = 1 if stack.filters == "apart" else stack.U
    pattern = [[geometry.w_k, kn], [geometry.w_c, geometry.C], [geometry.w_r, rows.taps], [geometry.w_s, taps]]
    size = padded_elements(geometry, stack)
    flat_sbuf = nl.ndarray((copies * kn, size), dtype=operands.w_dtype, buffer=nl.sbuf)
    z_sbuf = flat_sbuf[0 : copies * kn, 0 : geometry.C * height * taps].reshape((copies * kn, geometry.C, height, taps))
    common = common_rows(geometry, stack)
    raw_sbuf = None
    if common[1] > 0:
        # only around the rows that all u have: what comes there need not wait
        clear_window(z_sbuf, 0, common[0], 0, taps, nisa.engine.vector)
        clear_window(z_sbuf, common[0] + common[1], height, 0, taps, nisa.engine.gpsimd)
    elif not fits(geometry, stack):
        # a word of four bytes at a time
        words = flat_sbuf if operands.w_dtype == nl.float32 else flat_sbuf.view(nl.float32)
        nisa.memset(dst=words, value=0.0, engine=nisa.engine.vector)
    if stack.filters != "straight":
        raw_sbuf = nl.ndarray((kn, geometry.C, rows.taps, taps), dtype=operands.w_dtype, buffer=nl.sbuf)
        copy_parts(raw_sbuf, operands.w, pattern, k0 * geometry.w_k, parts)
    elif common[1] > 0:
        lead, apart = lead_of(geometry, stack), stack.V * rows.stride
        first, end = common[0], common[0] + common[1]
        for u in range(stack.U):
            load_taps(operands.w, z_sbuf, geometry, job, u, lead + u * apart, first, end)
        for u in range(stack.U):
            load_taps(operands.w, z_sbuf, geometry, job, u, lead + u * apart, lead + u * apart, first)
            load_taps(operands.w, z_sbuf, geometry, job, u, lead + u * apart, end, lead + u * apart + rows.taps)
    elif rows.dilation == 1:
        for u in range(stack.U):
            copy_parts(place_of(z_sbuf, geometry, stack, kn, u), operands.w, pattern, k0 * geometry.w_k, parts)
    else:
        # rows of taps that are no neighbours take a DMA for each: an access pattern has few dims
        for u in range(stack.U):
            for r in range(rows.taps):
                at = lead_of(geometry, stack) + u * stack.V * rows.stride + r * rows.dilation
                load_taps(operands.w, z_sbuf, geometry, job, u, at - r, at, at + 1)
    return raw_sbuf, z_sbuf


def common_rows(geometry, stack):
    """(first, how many) rows of Z that hold taps of all u and come to their places in long runs; how many is 0 else."""
    rows = geometry.rows
    span = (stack.U - 1) * stack.V * rows.stride
    count = rows.taps - span
    run = count * geometry.columns.taps * geometry.itemsize
    if stack.filters != "straight" or fits(geometry, stack) or rows.dilation > 1 or run < LONG_RUN_BYTES:
        return 0, 0
    return lead_of(geometry, stack) + span, count


def load_taps(w_hbm, z_sbuf, geometry, job, u, lead, first, end):
    """Rows first .. end-1 of Z of output row u, whose first tap is in row `lead`."""
    k0, kn = job
    if first < end:
        by = strides_of_w(geometry)
        pattern = [[by[0], kn], [by[1], geometry.C], [by[2], end - first], [by[3], geometry.columns.taps]]
        load_box(z_sbuf, w_hbm, (u * kn, 0, first, 0), pattern, corner(by, k0, 0, first - lead, 0))


def copy_parts(dst, src_hbm, pattern, offset, parts):
    """Load a view of HBM by so many DMAs, each for a part of the partitions."""
    step = pattern[0][0]
    for part in cut_into(dst.shape[0], min(parts, dst.shape[0])):
        load_box(dst, src_hbm, (part[0], 0, 0, 0), [[step, part[1]]] + pattern[1:], offset + part[0] * step)


def place_of(z_sbuf, geometry, stack, kn, u):
    """Where the filters of output row u are in Z."""
    rows = geometry.rows
    first = lead_of(geometry, stack) + u * stack.V * rows.stride
    return z_sbuf[
        u * kn : (u + 1) * kn,
        0 : geometry.C,
        first : first + (rows.taps - 1) * rows.dilation + 1 : rows.dilation,
        0 : geometry.columns.taps,
    ]


def shift_rows(padded, geometry, stack, kn):
    """(None, Z complete) from what `load_padded` returned."""
    raw_sbuf, z_sbuf = padded
    if raw_sbuf != None:
        for u in range(1 if stack.filters == "apart" else stack.U):
            nisa.tensor_copy(
                dst=place_of(z_sbuf, geometry, stack, kn, u),
                src=raw_sbuf,
                engine=nisa.engine.vector,
            )
    return None, z_sbuf


def transpose_padded(operands, padded, geometry, stack, job, ledger):
    """Stationaries [(d, b, c), (g, z, t), (u, k)] of a job, from what `shift_rows` returned; g in order of work.

    They are read out in a few parts at least, so that the first sums need not wait for the last.
    """
    kn = job[1]
    z_sbuf = padded[1]
    B, C = stack.B, geometry.C
    phases = len(stack.phases)
    # what one transpose takes: all (u, k), or those of one u
    slots = stack.U if stack.filters == "apart" else 1
    width = stack.U * kn // slots
    each = phases * stack.num_taps
    pitch = whole_words(width, geometry.itemsize)
    shape = (stack.parts, stack.groups * each, slots, width)
    filters_sbuf = nl.ndarray(shape, dtype=z_sbuf.dtype, buffer=nl.sbuf)
    first, count = 0, stack.groups * each
    most = min(max(1, BANK_BYTES // (slots * pitch * geometry.itemsize)), div_ceil(count, FILTER_PARTS))
    order = order_of_groups(stack)
    while first < count:
        dn = columns_of(geometry, stack, order[first // each])
        # stationaries of as many partitions, as many as fit a bank
        num = 1
        while num < most and first + num < count and columns_of(geometry, stack, order[(first + num) // each]) == dn:
            num += 1
        filters_psum = nl.ndarray((dn * B * C, num, slots, pitch), dtype=z_sbuf.dtype, buffer=nl.psum)
        for index in range(num):
            g = order[(first + index) // each]
            phase = stack.phases[(first + index) % each // stack.num_taps]
            row = (first + index) % stack.num_taps * B + lead_of(geometry, stack) - phase
            for slot in range(slots):
                up = row - slot * stack.V * geometry.rows.stride
                nisa.nc_transpose(
                    dst=filters_psum[0 : dn * B * C, index, slot, 0:width],
                    data=z_sbuf[0:width, 0:C, up : up + B, g * stack.D : g * stack.D + dn].permute((0, 3, 2, 1)),
                    engine=nisa.engine.tensor,
                )
        nisa.tensor_copy(
            dst=filters_sbuf[0 : dn * B * C, first : first + num, 0:slots, 0:width],
            src=filters_psum[0 : dn * B * C, 0:num, 0:slots, 0:width],
            engine=pick(ledger, num * slots * width, is_16bit(z_sbuf.dtype)),
        )
        first += num
    return of_array(filters_sbuf.reshape((stack.parts, stack.groups * each, slots * width)), operands)
