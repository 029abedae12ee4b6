"""product="fp8_pairs": x with the zeros that pairs need, and their matmuls; `implicit_gemm_channels` says what pairs.

x of a K tile is [channels, slots, images, rows, columns]. Zeros above and below are stored where a bank has several
images, one below the other, or where taps pair; zeros beside x only where taps pair.
"""

from ...._nki import nisa, nl
from ....schedules.implicit_gemm_channels import CHUNKS, stationary_columns, tap_groups, word_of
from ....schedules.implicit_gemm_outputs import comes_staged, paired_place
from ....schedules.tiles import WORD_BYTES, size_of
from ..._prologue import load_x


def load_paired(operands, geometry, k_tile, x_sbuf, out_tile, part):
    """A part (first row, rows) of an output tile of a K tile that pairs, into a tile of `new_rows`."""
    place = paired_place(geometry, k_tile, out_tile)
    if comes_staged(geometry, k_tile, out_tile):
        load_staged(operands, geometry, k_tile, x_sbuf, out_tile, place, part)
        return
    top = out_tile.h0 - place.row + part[0]
    for slot in range(k_tile.slots):
        for at, c0, count in k_tile.slot_channels(slot):
            for copy_index in range(k_tile.depth):
                p = at + copy_index * k_tile.cn
                dst = x_sbuf[p : p + count, slot, 0 : out_tile.zn, top : top + part[1], 0 : place.columns]
                first = place.column + copy_index * geometry.columns.dilation
                load_x(dst, operands, geometry, (k_tile.c0 + c0, out_tile.d0, out_tile.h0 + part[0], first))


def load_staged(operands, geometry, k_tile, x_sbuf, out_tile, place, part):
    """The same of a K tile whose rows come as one run, copies a few elements further: GpSimd, for which no read-out
    waits, puts them in place by whole words, and then what of a copy's row lies at the end of the row before."""
    count, width, dilation = k_tile.cn, geometry.columns.size, geometry.columns.dilation
    parts, top, left = count * k_tile.depth, out_tile.h0 - place.row + part[0], -place.column
    bottom, size = top + part[1], part[1] * width
    raw_sbuf = nl.ndarray((parts, out_tile.zn, size + width), dtype=operands.x_dtype, buffer=nl.sbuf)
    for copy_index in range(k_tile.depth):
        p, first = copy_index * count, width - copy_index * dilation
        zero(raw_sbuf[p : p + count, 0 : out_tile.zn, first + size : width + size])
        dst = raw_sbuf[p : p + count, 0 : out_tile.zn, first : first + size]
        start = (k_tile.c0, out_tile.d0, out_tile.h0 + part[0], 0)
        load_x(dst, operands, geometry, start, (count, out_tile.zn, 1, size), "cnw")
    rows_sbuf = raw_sbuf.reshape((parts, out_tile.zn, part[1] + 1, width))
    nisa.tensor_copy(
        dst=in_words(geometry, x_sbuf[0:parts, 0, 0 : out_tile.zn, top:bottom, left : left + width]),
        src=in_words(geometry, rows_sbuf[0:parts, 0 : out_tile.zn, 1 : part[1] + 1, 0:width]),
        engine=nisa.engine.gpsimd,
    )
    for copy_index in range(1, k_tile.depth):
        p, shift = copy_index * count, copy_index * dilation
        edge = min(shift, left)
        if edge > 0:
            nisa.tensor_copy(
                dst=x_sbuf[p : p + count, 0, 0 : out_tile.zn, top:bottom, left - edge : left],
                src=rows_sbuf[p : p + count, 0 : out_tile.zn, 0 : part[1], width - edge : width],
                engine=nisa.engine.gpsimd,
            )
        zero(x_sbuf[p : p + count, 0, 0 : out_tile.zn, top:bottom, left + width - shift : left + width])


def new_rows(operands, geometry, k_tile, out_tile):
    """Room for x of a K tile that pairs, and zeros around it."""
    place = paired_place(geometry, k_tile, out_tile)
    parts, slots = k_tile.cn * k_tile.depth, k_tile.slots
    shape = (parts, slots, place.images, place.pitch, place.columns)
    x_sbuf = nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf)
    top = out_tile.h0 - place.row
    if out_tile.zn > 1 or k_tile.stores_zeros:
        zero(x_sbuf[0:parts, 0:slots, 0 : place.images, 0:top, 0 : place.columns])
        zero(x_sbuf[0:parts, 0:slots, 0 : out_tile.zn, top + out_tile.hn : place.pitch, 0 : place.columns])
    if k_tile.stores_zeros:
        word, shift = 1, (k_tile.depth - 1) * geometry.columns.dilation
        rows_sbuf = x_sbuf.reshape((parts, slots * place.images * place.pitch, place.columns))
        if comes_staged(geometry, k_tile, out_tile):
            word, shift, rows_sbuf = word_of(geometry), 0, in_words(geometry, rows_sbuf)
        left = min(place.columns, max(0, -place.column))
        right = max(left, min(place.columns, geometry.columns.size - place.column - shift))
        zero(rows_sbuf[0:parts, 0 : rows_sbuf.shape[1], 0 : left // word])
        zero(rows_sbuf[0:parts, 0 : rows_sbuf.shape[1], right // word : place.columns // word])
    return x_sbuf


def in_words(geometry, x_sbuf):
    """A tile, or rows of it, as words that are copied as one."""
    word = word_of(geometry)
    return x_sbuf if word == 1 else x_sbuf.view(nl.float32 if word == WORD_BYTES else nl.bfloat16)


def zero(x_sbuf):
    """Zeros, where there is anything."""
    if size_of(x_sbuf.shape) > 0:
        nisa.memset(dst=x_sbuf, value=0.0, engine=nisa.engine.gpsimd)


def multiply_pair(geometry, one, k_tile, factor, pair, accumulate):
    """One matmul of a K tile that pairs: its access patterns walk from one slot to the next, or from one tap to the
    other."""
    out_tile, bank, m_tile, x_sbuf, w_sbuf = (
        one.results.out_tile,
        one.bank,
        one.results.m_tile,
        factor.x_sbuf,
        factor.stationaries,
    )
    place, kn, (rows, columns) = (
        paired_place(geometry, k_tile, out_tile),
        stationary_columns(geometry, m_tile),
        (pair.rows, pair.columns),
    )
    apart = one.banks[0].shape[2]
    count = (bank.zn - 1) * apart + rows[2]
    row = bank.z * place.pitch + rows[0] * geometry.rows.stride - geometry.rows.before - place.row
    column = columns[0] * geometry.columns.stride - geometry.columns.before - place.column

    def tap_place(tap):
        """(elements of x, of stationaries) from the first tap to this one."""
        x = tap[0] * geometry.rows.dilation * place.columns + tap[1] * k_tile.depth * geometry.columns.dilation
        return x, (tap[0] * tap_groups(geometry, k_tile) + tap[1]) * kn

    at, w_at = tap_place(pair.first)
    slot, w_slot = place.images * place.pitch * place.columns, w_sbuf.shape[1] // k_tile.slots * w_sbuf.shape[2] * kn
    step, w_step = slot, w_slot
    if pair.second is not None:
        step, w_step = tap_place(pair.second)
        step, w_step = step - at, w_step - w_at
    halved, double = pair.half >= 0, pair.half >= 0 or pair.second is not None or k_tile.pairing == CHUNKS
    parts = x_sbuf.shape[0] // 2 if halved else x_sbuf.shape[0]
    first = max(0, pair.half) * parts
    window = [[place.columns * geometry.rows.stride, count], [geometry.columns.stride, columns[2]]]
    p, q = rows[0] - out_tile.p0 - bank.p, columns[0] - out_tile.q0 - bank.q
    sums = one.banks[0].reshape((m_tile.kn, bank.zn * apart, bank.qn))
    nisa.nc_matmul(
        dst=sums[0 : m_tile.kn, p : p + count, q : q + columns[2]],
        stationary=w_sbuf.ap(
            pattern=[[k_tile.slots * w_slot, parts]] + ([[w_step, 2]] if double else []) + [[1, m_tile.kn]],
            offset=first * k_tile.slots * w_slot + w_at,
        ),
        moving=x_sbuf.ap(
            pattern=[[k_tile.slots * slot, parts]] + ([[step, 2]] if double else []) + window,
            offset=first * k_tile.slots * slot + row * place.columns + column + at,
        ),
        accumulate=accumulate,
        tile_position=(first, 0) if halved else (),
        tile_size=(parts, nl.tile_size.pmax) if halved else (),
        perf_mode=nisa.matmul_perf_mode.double_row if double else nisa.matmul_perf_mode.none,
    )
