"""Channels that lie side by side in HBM (NHWC): x and a residual are turned by DMA as they come, results on the array.

Results [k, pixels] wait until the array has some matmuls behind their read-out; then each 128 pixels pass it as a
transpose, into [pixels, k]. Of a run of m * 128 pixels, partition p gets the neighbours p * m .. p * m + m - 1, which
leave as runs of k, or as one run where a job has all channels of y.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_COLUMNS, cut_into, div_ceil

#: Matmuls between a bank's sums and the transposes of its results, at least: they hide the read-out.
WAIT_MATMULS = 6
#: Banks, or pooled bands, that wait, at most.
WAITING_MAX = 4
#: Turned results that are on their way together.
ON_THE_WAY = 3


@dataclass
class Late(nl.NKIObject):
    """Results that wait: y_sbuf [k, images, rows, columns], and where they go in y, as it is stored."""

    y_sbuf: object
    k0: int
    n0: int
    p0: int
    q0: int
    #: matmuls of the array until they are turned
    wait: int


def is_turned(geometry):
    """Whether DMA turns x: neighbours in HBM are channels, of more than a byte each."""
    return geometry.x_c == 1 and geometry.C > 1 and geometry.hbm_itemsize > 1


def is_last(geometry):
    """Whether results are turned: neighbours in y are channels."""
    return geometry.y_k == 1 and geometry.K > 1


def load_turned(dst, hbm, strides, offset, halves):
    """dst [c, n, h, w] in SBUF from an HBM tensor whose channels lie side by side; strides along n, h, w there.

    halves: 2, by rows, where there is no other load with it: the two engines that trigger such DMAs take turns, and
    what comes later shall not share the way.
    """
    cn, nn, hn, wn = dst.shape
    turned_sbuf = dst
    if hbm.dtype != dst.dtype:
        turned_sbuf = nl.ndarray((cn, nn, hn, wn), dtype=hbm.dtype, buffer=nl.sbuf)
    parts = cut_into(hn, min(hn, halves))
    for index in range(len(parts)):
        h0, count = parts[index]
        pattern = [[strides[2], wn], [strides[0], nn], [strides[1], count], [1, cn]]
        nisa.dma_transpose(
            dst=turned_sbuf[0:cn, 0:nn, h0 : h0 + count, 0:wn],
            src=hbm.ap(pattern=pattern, offset=offset + h0 * strides[1]),
            axes=(3, 1, 2, 0),
        )
    if hbm.dtype != dst.dtype:
        nisa.tensor_copy(dst=dst, src=turned_sbuf, engine=nisa.engine.vector)


def put_off(work, y_sbuf, job, band, bank, pool):
    """Have results from the first of a bank on, [k, images, rows, columns] in SBUF, wait in work.late to be turned."""
    while len(work.late) >= WAITING_MAX:
        turn_first(work)
    work.late.append(
        Late(
            y_sbuf=y_sbuf,
            k0=job.k0,
            n0=band.n0 + bank.n,
            p0=(band.p0 + bank.p) // pool[0],
            q0=(band.q0 + bank.q) // pool[1],
            wait=WAIT_MATMULS,
        )
    )


def pass_late(work):
    """After a matmul: turn results that have waited long enough."""
    for index in range(len(work.late)):
        work.late[index].wait = work.late[index].wait - 1
    if len(work.late) > 0:
        first = work.late[0]
        if first.wait <= 0:
            turn_first(work)


def turn_first(work):
    """Turn and store the results that have waited longest."""
    turn_out(work.operands.y, work.geometry, work.late[0], work.ledger)
    work.late = work.late[1:]


def turn_out(y_hbm, geometry, late, ledger):
    """Turn results that have waited, and store them."""
    kn, nn, pn, qn = late.y_sbuf.shape
    step, outer = spacing(geometry, (nn, pn, qn))
    if outer == 0:
        turn_run(y_hbm, geometry, late, late.y_sbuf.reshape((kn, nn * pn * qn)), (0, 0), step, ledger)
        return
    for n in range(nn):
        image_sbuf = late.y_sbuf[0:kn, n, 0:pn, 0:qn]
        if outer == 1:
            turn_run(y_hbm, geometry, late, image_sbuf.reshape((kn, pn * qn)), (n, 0), step, ledger)
        for p in range(pn if outer == 2 else 0):
            turn_run(y_hbm, geometry, late, image_sbuf[0:kn, p, 0:qn], (n, p), step, ledger)


def spacing(geometry, counts):
    """(elements of y between neighbours of (images, rows, columns) of pixels that are evenly spaced, how many of the
    outer of these axes are not)."""
    strides = (geometry.y_n, geometry.y_p, geometry.y_q)
    step, together, outer = 1, 1, 3
    while outer > 0 and (counts[outer - 1] == 1 or together == 1 or strides[outer - 1] == step * together):
        outer -= 1
        if together == 1:
            step = strides[outer]
        together = together * counts[outer]
    return step, outer


def turn_run(y_hbm, geometry, late, data_sbuf, place, step, ledger):
    """Turn and store pixels that are `step` apart in y: [k, pixels] in SBUF, from (image, row) of what waited."""
    kn, pixels = data_sbuf.shape
    offset = (late.n0 + place[0]) * geometry.y_n + (late.p0 + place[1]) * geometry.y_p + late.q0 * geometry.y_q
    for first in range(0, pixels, BANK_COLUMNS):
        count = min(BANK_COLUMNS, pixels - first)
        side = div_ceil(count, nl.tile_size.pmax)
        full, more = count // side, count % side
        partitions = full + (1 if more > 0 else 0)
        turned_psum = nl.ndarray((partitions, side, kn + kn % 2), dtype=data_sbuf.dtype, buffer=nl.psum)
        for tile in range(side):
            nisa.nc_transpose(
                dst=turned_psum[0 : full + (1 if tile < more else 0), tile, 0:kn],
                data=data_sbuf[0:kn, first + tile : first + count : side],
                engine=nisa.engine.tensor,
            )
        y_sbuf = nl.ndarray((partitions, side, kn), dtype=data_sbuf.dtype, buffer=nl.sbuf)
        read_out(y_sbuf, turned_psum, partitions, 0, more, ledger)
        read_out(y_sbuf, turned_psum, full, more, side, ledger)
        start = offset + first * step + late.k0
        pattern = [[side * step, full], [step, side], [1, kn]]
        copy(y_hbm.ap(pattern=pattern, offset=start), y_sbuf[0:full, 0:side, 0:kn])
        if more > 0:
            pattern = [[step, more], [1, kn]]
            copy(
                y_hbm.ap(pattern=pattern, offset=start + full * side * step),
                y_sbuf[full : full + 1, 0:more, 0:kn],
            )


def read_out(y_sbuf, turned_psum, partitions, first, end, ledger):
    """Tiles first .. end-1 of turned results, if there are any."""
    kn = y_sbuf.shape[2]
    if end > first:
        nisa.tensor_copy(
            dst=y_sbuf[0:partitions, first:end, 0:kn],
            src=turned_psum[0:partitions, first:end, 0:kn],
            engine=pick(ledger, (end - first) * kn, is_16bit(y_sbuf.dtype)),
        )


def last_bytes(geometry, extras, band_elements, x_elements):
    """Bytes a partition beside those of rows: results that wait and are turned, x and a residual before their casts.

    Two tiles of results are counted for rows, of four bytes an element: of two bytes, there is room for one that waits.
    """
    found = 0
    if is_last(geometry):
        item = extras.epilogue.y_itemsize
        waiting = WAITING_MAX * min(band_elements, BANK_COLUMNS) + (band_elements if item == 4 else 0)
        if extras.pool != (1, 1):
            waiting = WAITING_MAX * div_ceil(band_elements, extras.pool[0] * extras.pool[1])
        found += item * (waiting + ON_THE_WAY * BANK_COLUMNS)
    if is_turned(geometry) and geometry.hbm_itemsize != geometry.itemsize:
        found += 2 * geometry.hbm_itemsize * x_elements
    return found


def last_instructions(geometry, band, banks):
    """Instructions for the results of a job and a band, and casts of x, at most."""
    if not is_last(geometry):
        return banks if is_turned(geometry) else 0
    rows_together = geometry.y_p == geometry.columns.out * geometry.y_q and band.qn == geometry.columns.out
    runs = banks * band.nn if rows_together else band.nn * band.pn + banks
    tiles = div_ceil(band.nn * band.pn * band.qn, nl.tile_size.pmax) + runs
    return banks + tiles + 4 * (runs + div_ceil(band.nn * band.pn * band.qn, BANK_COLUMNS))
