"""The loop of depthwise conv2d by bands: one group of channels after another, rows of x come in, rows of y go out."""

from ...._nki import nisa, nl
from ..._engines import new_ledger
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..boxes import load_bias_as, load_box, residual_of, store_boxes, strides_of_x
from ..call import finish_shared, of_array
from ..geometry import met
from .filters import channels_of, copy_reversed, load_bands, new_buffer, parts_of, stationary, zero_groups
from .shape import BAND_BUFFERS, WARM_UP_BLOCKS


def run_bands(operands, geometry, extras, bands):
    """This core's part of the groups."""
    parts = share(PARTS, nl.num_programs(), nl.program_id(0))
    first = share(bands.groups, PARTS, parts[0])
    last = share(bands.groups, PARTS, parts[0] + parts[1] - 1)
    g0, gn = first[0], last[0] + last[1] - first[0]
    if gn == 0:
        return
    each = bands.fold * bands.A
    c0 = g0 * each
    cn = min(geometry.C, (g0 + gn) * each) - c0
    ring = x_ring(operands, geometry, bands, min(bands.buffers, gn))
    rounds = div_ceil(gn, bands.together)
    zeros_sbuf = warm_zeros()
    buffers = [new_buffer(operands, geometry, bands)]
    zero_groups(buffers[0], 0, bands.early)
    scratch_hbm = copy_reversed(operands, geometry, bands, c0, cn)
    zero_groups(buffers[0], bands.early, bands.together)
    xs = []
    for group in range(len(ring)):
        xs.append(load_group(operands, geometry, bands, c0, cn, group, ring))
    warm_up(zeros_sbuf, bands.warmup, WARM_UP_BLOCKS)
    take_round(buffers, scratch_hbm, geometry, bands, cn, 0)
    for index in range(1, min(BAND_BUFFERS, rounds)):
        buffers.append(new_buffer(operands, geometry, bands))
        zero_groups(buffers[index], 0, bands.together)
        take_round(buffers, scratch_hbm, geometry, bands, cn, index)
    ledger = new_ledger()
    for group in range(gn):
        if group >= len(xs):
            xs.append(load_group(operands, geometry, bands, c0, cn, group, ring))
        index = group // bands.together
        channels = min(each, cn - group * each)
        work_group(
            operands,
            geometry,
            extras.epilogue,
            bands,
            c0 + group * each,
            channels,
            xs[group],
            buffers[index % len(buffers)],
            group % bands.together,
            zeros_sbuf,
            ledger,
        )
        if group + len(ring) < gn and group + len(ring) == len(xs):
            xs.append(load_group(operands, geometry, bands, c0, cn, group + len(ring), ring))
        if group % bands.together == bands.together - 1 and index + len(buffers) < rounds:
            take_round(buffers, scratch_hbm, geometry, bands, cn, index + len(buffers))


def take_round(buffers, scratch_hbm, geometry, bands, cn, index):
    """Bands of the groups of a round, into the buffer whose turn it is."""
    most = bands.together * bands.fold * bands.A
    first = index * most
    count = min(cn - first, most)
    load_bands(buffers[index % len(buffers)], scratch_hbm, geometry, bands, first, count)


def x_ring(operands, geometry, bands, count):
    """Buffers [(tile, a, m), images, i, columns] of x; none where no tap meets any column."""
    ring = []
    for _ in range(count if bands.width > 0 else 0):
        shape = (parts_of(geometry, bands), geometry.N, bands.fold, bands.width)
        ring.append(nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf))
    return ring


def load_group(operands, geometry, bands, c0, cn, group, ring):
    """x of a group of channels: [(tile, a, m), images, i, columns] in the buffer whose turn it is, or None."""
    if len(ring) == 0:
        return None
    fold, height = bands.fold, geometry.rows.size // bands.fold
    x_sbuf = ring[group % len(ring)]
    by_n, by_c, by_h, by_w = strides_of_x(geometry)
    for tile in range(fold):
        first = (group * fold + tile) * bands.A
        channels = channels_of(bands, 0, cn - first)
        if channels > 0:
            pattern = [[by_c, channels], [fold * by_h, height], [by_n, geometry.N], [by_h, fold], [by_w, bands.width]]
            offset = (c0 + first) * by_c + bands.w0 * by_w
            load_box(x_sbuf, operands.x, (tile * bands.tile_rows, 0, 0, 0), pattern, offset)
    return x_sbuf


def work_group(operands, geometry, epilogue, bands, c0, channels, x_sbuf, buffer_sbuf, slot, zeros_sbuf, ledger):
    """Results of a group of channels, from c0 on."""
    N, P, Q = geometry.N, geometry.rows.out, geometry.columns.out
    counts, ys, biases, residuals, places = [], [], [], [], []
    for tile in range(bands.fold):
        count = channels_of(bands, tile, channels)
        if count > 0:
            first, shape = c0 + tile * bands.A, (count * P, N, Q)
            pattern = [[geometry.y_k, count], [geometry.y_p, P], [geometry.y_n, N], [geometry.y_q, Q]]
            counts.append(count)
            places.append([((0, 0, 0), pattern, first * geometry.y_k)])
            ys.append(nl.ndarray(shape, dtype=operands.y.dtype, buffer=nl.sbuf))
            biases.append(load_bias_as(operands.bias, (count * P, 1), [[1, count], [0, P], [1, 1]], first))
            residuals.append(residual_of(operands, shape, places[-1], False))
    at_once = max(1, BANK_COLUMNS // Q)
    for n in range(0, N, at_once):
        nn = min(at_once, N - n)
        sums = []
        for count in counts:
            sums.append(nl.ndarray((count * P, nn, Q), dtype=nl.float32, buffer=nl.psum))
        accumulate(sums, operands, geometry, bands, counts, x_sbuf, buffer_sbuf, slot, n, zeros_sbuf)
        for tile in range(len(counts)):
            outputs = counts[tile] * P
            residual = None
            if residuals[tile] != None:
                residual = residuals[tile][0:outputs, n : n + nn, 0:Q]
            y_sbuf = ys[tile][0:outputs, n : n + nn, 0:Q]
            finish_shared(y_sbuf, sums[tile], biases[tile], residual, epilogue, ledger, nn * Q)
    for tile in range(len(counts)):
        store_boxes(operands.y, ys[tile], places[tile])


def accumulate(sums, operands, geometry, bands, counts, x_sbuf, buffer_sbuf, slot, n, zeros_sbuf):
    """Sums [(a, p), images, columns] of images n, n+1, ... in PSUM, of each tile with its number of channels.

    Columns of taps that meet x at all columns of y come first, so that the others add to what is there, where they meet
    x; where none does, a product of zeros does.
    """
    columns, height = geometry.columns, geometry.rows.size // bands.fold
    nn, Q = sums[0].shape[1], sums[0].shape[2]
    whole, partial = [], []
    for s in range(columns.taps):
        found = met(columns, s, 0, Q)
        if found[2] == Q:
            whole.append((s, found))
        elif found[2] > 0:
            partial.append((s, found))
    if len(whole) == 0:
        for tile in range(len(sums)):
            nisa.nc_matmul(
                dst=sums[tile],
                stationary=zeros_sbuf[0:1, 0 : sums[tile].shape[0]],
                moving=zeros_sbuf.ap(pattern=[[zeros_sbuf.shape[1], 1], [0, nn], [0, Q]], offset=0),
                accumulate=False,
            )
    every = whole + partial
    for index in range(len(every)):
        s, found = every[index]
        q, count, w, step = found[0], found[2], found[3] - bands.w0, found[4]
        for i in range(bands.fold):
            for tile in range(len(sums)):
                first = tile * bands.tile_rows
                inputs = counts[tile] * height
                bands_sbuf = stationary(buffer_sbuf, geometry, bands, slot, tile, counts[tile], i, s)
                moving_sbuf = x_sbuf[first : first + inputs, n : n + nn, i, w : w + (count - 1) * step + 1 : step]
                nisa.nc_matmul(
                    dst=sums[tile][0 : sums[tile].shape[0], 0:nn, q : q + count],
                    stationary=of_array(bands_sbuf, operands),
                    moving=of_array(moving_sbuf, operands),
                    accumulate=index + i > 0 or len(whole) == 0,
                    tile_position=(first, 0),
                    tile_size=(bands.tile_rows, nl.tile_size.pmax),
                )
