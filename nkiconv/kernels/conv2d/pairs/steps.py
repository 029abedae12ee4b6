"""Which steps are a bank's matmuls: pairs and singles, and the window of sums that each adds to.

Where a window of one step of a pair meets zeros only, the product adds nothing, so that a pair's window need only hold
both of its steps'.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import MATMUL_COLUMNS_MIN
from ..._tiles import div_ceil
from ..geometry import met
from .plan import parts_of, tap_columns


@dataclass
class Bank(nl.NKIObject):
    """Sums of images n .. n+nn-1, rows p .. p+pn-1, columns q .. q+qn-1 of a band."""

    n: int
    nn: int
    p: int
    pn: int
    q: int
    qn: int


@dataclass
class Product(nl.NKIObject):
    """One matmul: its steps (second -1: a single), where x of the first lies against the first tap of the first chunk,
    how far that of the second is from there, the window of the bank's sums, and the chunk of its first step."""

    first: int
    second: int
    place: int
    step: int
    row: int
    rows: int
    column: int
    columns: int
    chunk: int


def banks_of(plan, band, most, last):
    """Lists of at most `most` banks of a band: neighbours, of one image or of whole ones. last: nothing follows, so
    that the last one is short."""
    parts = parts_of(plan, band)
    found, group = [], []
    for n in range(0, band.nn, plan.together):
        nn = min(plan.together, band.nn - n)
        for index in range(len(parts)):
            group.append(Bank(n=n, nn=nn, p=parts[index][0], pn=parts[index][1], q=0, qn=band.qn))
            ends = len(parts) > 1 and index + 1 == len(parts)
            if len(group) == most or ends or (n + nn == band.nn and index + 1 == len(parts)):
                found.append(group)
                group = []
    if last:
        group = found[len(found) - 1]
        found[len(found) - 1] = group[: len(group) - 1] + shortened(group[len(group) - 1])
    return found


def shortened(bank):
    """A bank, or two of its rows or columns, the last as short as the array's pace allows."""
    rows = div_ceil(MATMUL_COLUMNS_MIN, bank.qn)
    if bank.nn > 1 or bank.pn * bank.qn < 2 * MATMUL_COLUMNS_MIN:
        return [bank]
    if bank.pn > 1:
        if rows >= bank.pn:
            return [bank]
        first, second = bank.pn - rows, rows
        return [
            Bank(n=bank.n, nn=1, p=bank.p, pn=first, q=bank.q, qn=bank.qn),
            Bank(n=bank.n, nn=1, p=bank.p + first, pn=second, q=bank.q, qn=bank.qn),
        ]
    first, second = bank.qn - MATMUL_COLUMNS_MIN, MATMUL_COLUMNS_MIN
    return [
        Bank(n=bank.n, nn=1, p=bank.p, pn=1, q=bank.q, qn=first),
        Bank(n=bank.n, nn=1, p=bank.p, pn=1, q=bank.q + first, qn=second),
    ]


def windows(geometry, band, bank):
    """(row, rows, column, columns) of a bank's sums that each tap meets, of one image; (0, 0, 0, 0): none."""
    found = []
    for r in range(geometry.rows.taps):
        on_rows = met(geometry.rows, r, band.p0 + bank.p, bank.pn)
        for s in range(geometry.columns.taps):
            on_columns = met(geometry.columns, s, band.q0 + bank.q, bank.qn)
            if on_rows[2] == 0 or on_columns[2] == 0:
                found.append((0, 0, 0, 0))
            else:
                row = on_rows[0] - band.p0 - bank.p
                found.append((row, on_rows[2], on_columns[0] - band.q0 - bank.q, on_columns[2]))
    return found


def products_of(geometry, plan, band, bank):
    """All matmuls of a bank, one that meets all of its sums first; a single, if there is one, last."""
    R, S, buffer = geometry.rows.taps, geometry.columns.taps, plan.buffer
    each = windows(geometry, band, bank)
    pitch = buffer.rows // geometry.rows.stride
    height = bank.pn if bank.nn == 1 else (bank.nn - 1) * pitch + bank.pn
    live = []
    columns = tap_columns(S)
    for s in range(S):
        for r in range(R):
            if each[r * S + columns[s]][1] > 0:
                live.append(r * S + columns[s])
    if len(live) == 0:
        live.append(0)
    chunks, taps = len(plan.chunks), R * S
    pairs = []
    for chunk in range(0, chunks - 1, 2):
        for index in range(len(live)):
            pairs.append((chunk * taps + live[index], (chunk + 1) * taps + live[index]))
    if chunks % 2 == 1:
        base = (chunks - 1) * taps
        for index in range(0, len(live) - 1, 2):
            a, b = live[index], live[index + 1]
            pairs.append((base + min(a, b), base + max(a, b)))
        if len(live) % 2 == 1:
            pairs.append((base + live[len(live) - 1], -1))
    found, whole = [], -1
    for index in range(len(pairs)):
        product = product_of(geometry, plan, bank, each, pairs[index], height)
        if whole < 0 and product.rows == height and product.columns == bank.qn:
            whole = index
        found.append(product)
    if whole < 0:
        whole = 0
        found[0].row, found[0].rows, found[0].column, found[0].columns = 0, height, 0, bank.qn
    return [found[whole]] + found[:whole] + found[whole + 1 :]


def product_of(geometry, plan, bank, each, pair, height):
    """The Product of (first step, second step or -1) with the least window that holds both steps'."""
    S, buffer = geometry.columns.taps, plan.buffer
    taps = geometry.rows.taps * S
    first, second = pair
    row, rows, column, columns = each[first % taps]
    place = place_of(geometry, buffer, first, taps)
    step = 0
    if second >= 0:
        other = each[second % taps]
        bottom, right = max(row + rows, other[0] + other[1]), max(column + columns, other[2] + other[3])
        row, column = min(row, other[0]), min(column, other[2])
        rows, columns = bottom - row, right - column
        step = place_of(geometry, buffer, second, taps) - place
    if bank.nn > 1:
        row, rows = 0, height
    return Product(
        first=first,
        second=second,
        place=place,
        step=step,
        row=row,
        rows=rows,
        column=column,
        columns=columns,
        chunk=first // taps,
    )


def place_of(geometry, buffer, step, taps):
    """Where x of a step lies in a buffer against the first tap of the first chunk."""
    S = geometry.columns.taps
    tap = step % taps
    inside = tap // S * geometry.rows.dilation * buffer.columns + tap % S * geometry.columns.dilation
    return step // taps * buffer.images * buffer.rows * buffer.columns + inside


def halved(geometry, plan, products):
    """Whether a bank's last product is the single for which x and the tap are there a second time."""
    last = products[len(products) - 1]
    steps = len(plan.chunks) * geometry.rows.taps * geometry.columns.taps
    return plan.halves and len(products) > 1 and last.second < 0 and last.first == steps - 1
