"""Results whose channels lie side by side in HBM (NHWC): they wait until the array has some matmuls behind their
read-out, and then pass it in tiles of 128 pixels, to leave as rows of channels."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.tiles import BANK_COLUMNS, div_ceil
from ..boxes import offset_at
from ..transposes import is_transposed, store_transposed

#: Matmuls between a bank's sums and the transposes of its results, at least: they hide the read-out.
WAIT_MATMULS = 6
#: Banks that wait, at most.
WAITING_MAX = 4
#: Transposed results that are on their way together.
ON_THE_WAY = 3


@dataclass
class Late(nl.NKIObject):
    """Results that wait: y_sbuf [k, images, rows, columns], and the first one's offset in y."""

    y_sbuf: object
    offset: int
    #: matmuls of the array until they are transposed
    wait: int


def is_last(geometry):
    """Whether results are transposed: neighbours in y are channels."""
    return geometry.y_strides[0] == 1 and geometry.K > 1


def put_off(work, y_sbuf, job, band, bank):
    """Have results from the first of a bank on, [k, images, rows, columns] in SBUF, wait in work.late."""
    while len(work.late) >= WAITING_MAX:
        transpose_late(work)
    first = (job.k0, band.z0 + bank.z, band.p0 + bank.p, band.q0 + bank.q)
    offset = offset_at(work.geometry.y_strides, first)
    work.late.append(Late(y_sbuf=y_sbuf, offset=offset, wait=WAIT_MATMULS))


def pass_late(work):
    """After a matmul: transpose results that have waited long enough."""
    for one in work.late:
        one.wait = one.wait - 1
    if len(work.late) > 0:
        first = work.late[0]
        if first.wait <= 0:
            transpose_late(work)


def transpose_late(work):
    """Transpose and store the results that have waited longest."""
    geometry, late = work.geometry, work.late[0]
    store_transposed(work.operands.y, geometry.y_strides, late.y_sbuf, late.offset, work.ledger)
    work.late = work.late[1:]


def last_bytes(geometry, extras, band_elements, x_elements):
    """Bytes a partition beside those of rows: results that wait and are transposed, x and a residual before their
    casts.

    Two tiles of results are counted for rows, of four bytes an element: of two bytes, there is room for one that waits.
    """
    found = 0
    if is_last(geometry):
        item = extras.epilogue.y_itemsize
        waiting = WAITING_MAX * min(band_elements, BANK_COLUMNS) + (band_elements if item == 4 else 0)
        found += item * (waiting + ON_THE_WAY * BANK_COLUMNS)
    if is_transposed(geometry) and geometry.hbm_itemsize != geometry.itemsize:
        found += 2 * geometry.hbm_itemsize * x_elements
    return found


def last_instructions(geometry, band, banks):
    """Instructions for the results of a job and a band, and casts of x, at most."""
    if not is_last(geometry):
        return banks if is_transposed(geometry) else 0
    Q, by_row, by_column = geometry.columns.out, geometry.y_strides[2], geometry.y_strides[3]
    rows_together = by_row == Q * by_column and band.qn == Q
    runs = banks * band.zn if rows_together else band.zn * band.pn + banks
    tiles = div_ceil(band.zn * band.pn * band.qn, nl.tile_size.pmax) + runs
    return banks + tiles + 4 * (runs + div_ceil(band.zn * band.pn * band.qn, BANK_COLUMNS))
