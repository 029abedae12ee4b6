"""The loop of Toeplitz rows: one group of channels after another, rows of x come in, rows of y go out."""

from ...._nki import nisa, nl
from ..._engines import new_ledger
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from ..._warm import warm_up, warm_zeros
from ..boxes import load_bias_as, offset_at, pattern_of, residual_of, store_boxes
from ..call import finish_shared, of_array
from ..cuts import cut_planes, num_plane_parts
from ..filter_feed import tiles_in_turn
from ..frames import plane_pieces
from ..ring import load_until, start_ring, tile_of_load
from ..sums import Product, elements_met, planes_in_order, sums_met, taps_by_cover, zero_sums
from .filters import copy_reversed, load_toeplitz_runs, toeplitz_stationary, zero_groups
from .shape import TOEPLITZ_BUFFERS, WARM_UP_BLOCKS


def run_toeplitz(operands, geometry, extras, toeplitz):
    """This core's part of the groups."""
    parts = share(PARTS, nl.num_programs(), nl.program_id(0))
    first, last = share(toeplitz.groups, PARTS, parts[0]), share(toeplitz.groups, PARTS, parts[0] + parts[1] - 1)
    gn = last[0] + last[1] - first[0]
    if gn == 0:
        return
    A = toeplitz.A
    c0 = first[0] * A
    cn = min(geometry.C, c0 + gn * A) - c0
    x_shape = (A * geometry.rows.size, geometry.planes.size, 1, toeplitz.width)
    ring = start_ring(toeplitz.buffers, x_shape, operands.x_dtype, loads_of_groups(geometry, toeplitz, c0, cn))
    rounds = div_ceil(gn, toeplitz.together)
    zeros_sbuf = warm_zeros()
    shape = (A * geometry.rows.size, toeplitz.together, A, geometry.planes.taps, toeplitz.size)
    buffers = tiles_in_turn(1, shape, operands.w_dtype)
    zero_groups(buffers[0], 0, toeplitz.early)
    scratch_hbm = copy_reversed(operands, geometry, toeplitz, c0, cn)
    zero_groups(buffers[0], toeplitz.early, toeplitz.together)
    load_until(ring, operands, len(ring.tiles))
    warm_up(zeros_sbuf, toeplitz.warmup, WARM_UP_BLOCKS)
    take_round(buffers, scratch_hbm, geometry, toeplitz, cn, 0)
    for index in range(1, min(TOEPLITZ_BUFFERS, rounds)):
        buffers = buffers + tiles_in_turn(1, shape, operands.w_dtype)
        zero_groups(buffers[index], 0, toeplitz.together)
        take_round(buffers, scratch_hbm, geometry, toeplitz, cn, index)
    ledger = new_ledger()
    for group in range(gn):
        index, slot = group // toeplitz.together, group % toeplitz.together
        some = (c0 + group * A, min(A, cn - group * A))
        filters = (buffers[index % len(buffers)], slot)
        x_sbuf = tile_of_load(ring, group) if toeplitz.width > 0 else None
        work_on_group(operands, geometry, extras.epilogue, toeplitz, some, x_sbuf, filters, zeros_sbuf, ledger)
        load_until(ring, operands, group + 1 + len(ring.tiles))
        if slot == toeplitz.together - 1 and index + len(buffers) < rounds:
            take_round(buffers, scratch_hbm, geometry, toeplitz, cn, index + len(buffers))


def take_round(buffers, scratch_hbm, geometry, toeplitz, cn, index):
    """Matrices of the groups of a round, into the buffer whose turn it is."""
    first = index * toeplitz.together * toeplitz.A
    count = min(cn - first, toeplitz.together * toeplitz.A)
    load_toeplitz_runs(buffers[index % len(buffers)], scratch_hbm, geometry, toeplitz, first, count)


def loads_of_groups(geometry, toeplitz, c0, cn):
    """Loads of x of groups of channels, [(a, h), planes, 1, columns]; none where no tap meets x."""
    planes, found = geometry.planes, []
    each = planes.size // planes.images
    for first in range(0, cn if toeplitz.width > 0 else 0, toeplitz.A):
        boxes = []
        for d in range(0, planes.size, each):
            for piece in plane_pieces(geometry, d, each):
                extents = (min(toeplitz.A, cn - first), piece.count, geometry.rows.size, toeplitz.width)
                channels, inner, rows, columns = pattern_of(piece.strides, extents)
                pattern = [channels, rows, inner, [0, 1], columns]
                offset = offset_at(piece.strides, (c0 + first, piece.plane, 0, toeplitz.w0))
                boxes.append(((0, d + piece.first, 0, 0), pattern, offset, piece.framed))
        found.append(boxes)
    return found


def work_on_group(operands, geometry, epilogue, toeplitz, some, x_sbuf, filters, zeros_sbuf, ledger):
    """Results of a group. some: (first channel, how many); filters: (buffer of matrices, the group's place there)."""
    N, P, Q = geometry.planes.out, geometry.rows.out, geometry.columns.out
    first, count = some
    outputs = count * P
    boxes, volumes = [], geometry.planes.images
    for z in range(0, N, N // volumes):
        channels, inner, rows, columns = pattern_of(geometry.y_strides, (count, N // volumes, P, Q))
        offset = offset_at(geometry.y_strides, (first, z, 0, 0))
        boxes.append(((0, z, 0, 0), [channels, rows, inner, [0, 1], columns], offset))
    y_sbuf = nl.ndarray((outputs, N, 1, Q), dtype=operands.y.dtype, buffer=nl.sbuf)
    bias_sbuf = load_bias_as(operands.bias, (outputs, 1), [[1, count], [0, P], [1, 1]], first)
    residual_sbuf = residual_of(operands, y_sbuf.shape, boxes, False)
    for part in cut_planes(geometry.planes, num_plane_parts(geometry.planes, max(1, BANK_COLUMNS // Q))):
        z, zn = part
        acc_psum = nl.ndarray((outputs, zn, 1, Q), dtype=nl.float32, buffer=nl.psum)
        accumulate_rows(acc_psum, operands, geometry, toeplitz, count, x_sbuf, filters, z, zeros_sbuf)
        residual = None if residual_sbuf == None else residual_sbuf[0:outputs, z : z + zn, 0:1, 0:Q]
        y = y_sbuf[0:outputs, z : z + zn, 0:1, 0:Q]
        finish_shared(y, acc_psum, bias_sbuf, residual, epilogue, ledger, zn * Q)
    store_boxes(operands.y, y_sbuf, boxes)


def accumulate_rows(acc_psum, operands, geometry, toeplitz, count, x_sbuf, filters, z, zeros_sbuf):
    """Sums [(a, p), planes, 1, columns] of `count` channels and planes z, z+1, ... in PSUM: a matmul a plane and column
    of taps."""
    _, zn, _, Q = acc_psum.shape
    planes, columns = planes_in_order(geometry.planes, z, zn), taps_by_cover(geometry.columns, 0, Q)
    parts = count * geometry.rows.size
    started = len(planes) == 0 or len(columns) == 0
    if not started:
        started = planes[0][1][2] < zn or columns[0][1][2] < Q
    if started:
        zero_sums(acc_psum, zeros_sbuf)
    for plane in planes:
        for column in columns:
            t, s = plane[0], column[0]
            product = Product(planes=plane[1], rows=(0, 1, 1, 0, 1), columns=column[1])
            nisa.nc_matmul(
                dst=sums_met(acc_psum, product, (z, 0, 0)),
                stationary=of_array(toeplitz_stationary(filters[0], geometry, filters[1], count, t, s), operands),
                moving=of_array(elements_met(x_sbuf, (0, parts), product, (0, 0, toeplitz.w0)), operands),
                accumulate=started,
            )
            started = True
