"""What becomes of the sums of deep: read out, exchanged where the contraction is shared, finished, stored."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import pick
from ..call import finish_shared, load_bias, scale_residual
from ..cuts import box, strides_of_residual, strides_of_y


def read_out(geometry, deep, job, sums, ledger):
    """For each block of output channels all its sums, fp32 [k, (image, row), column] in SBUF."""
    found = []
    P, Q = geometry.rows.out, geometry.columns.out
    for block in range(len(job.blocks)):
        kn = job.blocks[block][1]
        part_sbuf = nl.ndarray((kn, geometry.N * P, Q), dtype=nl.float32, buffer=nl.sbuf)
        for index in range(len(deep.banks)):
            bank = deep.banks[index]
            first = bank.n * P + bank.p
            place = part_sbuf[0:kn, first : first + bank.nn * bank.pn, 0:Q]
            add_taps(place, geometry, deep, sums[block][index], bank, ledger)
        found.append(part_sbuf)
    return found


def add_taps(place, geometry, deep, acc_psum, bank, ledger):
    """Sums of the columns of taps, each shifted to its outputs, into place [k, rows, Q]."""
    kn, rows, Q = place.shape
    columns = geometry.columns
    by_row = place.reshape_dim(1, (bank.nn, bank.pn))
    for t in range(deep.T):
        first, w = t * deep.slot, t * columns.dilation
        step = columns.stride if deep.T > 1 else 1
        at = acc_psum[first : first + kn, 0 : bank.nn, 0 : bank.pn, w : w + (Q - 1) * step + 1 : step]
        if t == 0:
            nisa.tensor_copy(dst=by_row, src=at, engine=pick(ledger, rows * Q, False))
        else:
            nisa.tensor_tensor(dst=by_row, data1=at, data2=by_row, op=nl.add)


def finish_channels(operands, geometry, extras, deep, job, sums, ledger):
    """y of a core's own output channels."""
    P, Q = geometry.rows.out, geometry.columns.out
    parts = read_out(geometry, deep, job, sums, ledger) if deep.T > 1 else None
    for block in range(len(job.blocks)):
        k0, kn = job.blocks[block]
        rows = Rows(first=0, count=geometry.N * P, stored=0, stores=geometry.N * P)
        bias_sbuf = load_bias(operands.bias, k0, kn, 1)
        residual_sbuf = load_residual(operands, geometry, k0, kn, rows)
        y_sbuf = nl.ndarray((kn, rows.count, Q), dtype=operands.y.dtype, buffer=nl.sbuf)
        for index in range(len(deep.banks)):
            bank = deep.banks[index]
            first, count = bank.n * P + bank.p, bank.nn * bank.pn
            if parts != None:
                acc = parts[block][0:kn, first : first + count, 0:Q]
            else:
                acc = sums[block][index].reshape((kn, count, Q))
            residual = None
            if residual_sbuf != None:
                residual = residual_sbuf[0:kn, first : first + count, 0:Q]
            finish_shared(
                y_sbuf[0:kn, first : first + count, 0:Q],
                acc,
                bias_sbuf,
                residual,
                extras.epilogue,
                ledger,
                count * Q,
                extras.strict_nonfinite,
            )
        store_rows(operands.y, y_sbuf, geometry, k0, kn, rows)


def finish_contraction(operands, geometry, extras, deep, found, ledger):
    """y from the partial sums: those of both halves are here, or one half is and the other core has the other.

    Each core finishes half of the rows; of an odd number both have the middle one, which the first stores.
    """
    blocks = deep.jobs[0].blocks
    whole, Q = geometry.N * geometry.rows.out, geometry.columns.out
    half = (whole + 1) // 2
    for block in range(len(blocks)):
        k0, kn = blocks[block]
        own_sbuf = found[0][block]
        if len(found) > 1:
            rows = Rows(first=0, count=whole, stored=0, stores=whole)
            other_sbuf = found[1][block]
        else:
            core = nl.program_id(0)
            rows = Rows(first=0, count=half, stored=0, stores=half)
            theirs = whole - half
            if core == 1:
                rows = Rows(first=whole - half, count=half, stored=half, stores=whole - half)
                theirs = 0
            other_sbuf = nl.ndarray((kn, half, Q), dtype=nl.float32, buffer=nl.sbuf)
            nisa.sendrecv(
                src=own_sbuf[0:kn, theirs : theirs + half, 0:Q],
                dst=other_sbuf,
                send_to_rank=1 - core,
                recv_from_rank=1 - core,
                pipe_id=block,
            )
            own_sbuf = own_sbuf[0:kn, rows.first : rows.first + half, 0:Q]
        if rows.stores > 0:
            total_sbuf = nl.ndarray((kn, rows.count, Q), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total_sbuf, data1=own_sbuf, data2=other_sbuf, op=nl.add)
            y_sbuf = nl.ndarray((kn, rows.count, Q), dtype=operands.y.dtype, buffer=nl.sbuf)
            bias_sbuf = load_bias(operands.bias, k0, kn, 1)
            residual_sbuf = load_residual(operands, geometry, k0, kn, rows)
            finish_shared(
                y_sbuf,
                total_sbuf,
                bias_sbuf,
                residual_sbuf,
                extras.epilogue,
                ledger,
                rows.count * Q,
                extras.strict_nonfinite,
            )
            store_rows(operands.y, y_sbuf, geometry, k0, kn, rows)


@dataclass
class Rows(nl.NKIObject):
    """Rows of y, counted over all images, that a core finishes: first .. first+count-1; it stores those from `stored`
    on, `stores` of them."""

    first: int
    count: int
    stored: int
    stores: int


@dataclass
class Part(nl.NKIObject):
    """Rows that lie in a box: p .. p+pn-1 of images n .. n+nn-1, and where they begin among all."""

    n: int
    nn: int
    p: int
    pn: int
    first: int


def parts_of(first, count, P):
    """Rows first .. first+count-1 of all images as Parts: whole images together, and what is left of others."""
    found, row, end = [], first, first + count
    while row < end:
        n, p = row // P, row % P
        nn, pn = 1, min(P - p, end - row)
        if pn == P:
            nn = (end - row) // P
        found.append(Part(n=n, nn=nn, p=p, pn=pn, first=row))
        row += nn * pn
    return found


def store_rows(y_hbm, y_sbuf, geometry, k0, kn, rows):
    """Finished rows to where they belong in y."""
    Q = geometry.columns.out
    parts = parts_of(rows.stored, rows.stores, geometry.rows.out)
    for index in range(len(parts)):
        part = parts[index]
        shape = (kn, part.nn, part.pn, Q)
        pattern, offset = box(strides_of_y(geometry), k0, part.n, part.p, 0, shape)
        first = part.first - rows.first
        copy(y_hbm.ap(pattern=pattern, offset=offset), y_sbuf[0:kn, first : first + part.nn * part.pn, 0:Q])


def load_residual(operands, geometry, k0, kn, rows):
    """The residual of these rows times beta, fp32 if it was multiplied, or None."""
    if operands.residual == None:
        return None
    Q = geometry.columns.out
    residual_sbuf = nl.ndarray((kn, rows.count, Q), dtype=operands.residual.dtype, buffer=nl.sbuf)
    parts = parts_of(rows.first, rows.count, geometry.rows.out)
    for index in range(len(parts)):
        part = parts[index]
        pattern, offset = box(strides_of_residual(geometry), k0, part.n, part.p, 0, (kn, part.nn, part.pn, Q))
        first = part.first - rows.first
        copy(
            residual_sbuf[0:kn, first : first + part.nn * part.pn, 0:Q],
            operands.residual.ap(pattern=pattern, offset=offset),
        )
    return scale_residual(residual_sbuf, operands.beta)
