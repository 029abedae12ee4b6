"""Which steps are a bank's matmuls: pairs and singles, and the window of sums that each adds to.

Where a window of one step of a pair meets zeros only, the product adds nothing, so that a pair's window need only hold
both of its steps'.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import div_ceil
from ..cuts import Bank
from ..geometry import met
from .chunks import first_step, num_paired, num_steps, partitions, steps_of, tap_columns
from .work import parts_of


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
        found[len(found) - 1] = group[: len(group) - 1] + shortened(group[len(group) - 1], plan.last_columns)
    return found


def shortened(bank, columns):
    """A bank, or two of its rows or columns, the last as short as `columns` and whole rows allow."""
    rows = div_ceil(columns, bank.qn)
    if bank.nn > 1 or bank.pn * bank.qn < 2 * columns:
        return [bank]
    if bank.pn > 1:
        if rows >= bank.pn:
            return [bank]
        first, second = bank.pn - rows, rows
        return [
            Bank(n=bank.n, nn=1, p=bank.p, pn=first, q=bank.q, qn=bank.qn),
            Bank(n=bank.n, nn=1, p=bank.p + first, pn=second, q=bank.q, qn=bank.qn),
        ]
    first, second = bank.qn - columns, columns
    return [
        Bank(n=bank.n, nn=1, p=bank.p, pn=1, q=bank.q, qn=first),
        Bank(n=bank.n, nn=1, p=bank.p, pn=1, q=bank.q + first, qn=second),
    ]


def windows(geometry, steps, band, bank):
    """(row, rows, column, columns) of a bank's sums that each step meets, of one image; (0, 0, 0, 0): none."""
    found = []
    for index in range(len(steps)):
        step = steps[index]
        on_rows = met(geometry.rows, step.r, band.p0 + bank.p, bank.pn)
        low, high = bank.qn, 0
        for s in range(step.s, step.s + step.taps):
            on_columns = met(geometry.columns, s, band.q0 + bank.q, bank.qn)
            if on_columns[2] > 0:
                first = on_columns[0] - band.q0 - bank.q
                low, high = min(low, first), max(high, first + on_columns[2])
        if on_rows[2] == 0 or high <= low:
            found.append((0, 0, 0, 0))
        else:
            found.append((on_rows[0] - band.p0 - bank.p, on_rows[2], low, high - low))
    return found


def live_steps(geometry, chunks, each, index):
    """Steps of a chunk that meet anything, columns of taps one after the other."""
    R, wide = geometry.rows.taps, div_ceil(geometry.columns.taps, chunks[index].depth)
    first, columns = first_step(geometry, chunks, index), tap_columns(wide)
    found = []
    for at in range(len(columns)):
        for r in range(R):
            if each[first + r * wide + columns[at]][1] > 0:
                found.append(first + r * wide + columns[at])
    return found


def pairs_of(geometry, chunks, each):
    """(first step, second step or -1) of a bank's matmuls."""
    taps, paired = geometry.rows.taps * geometry.columns.taps, num_paired(chunks)
    found = []
    for chunk in range(0, paired, 2):
        live = live_steps(geometry, chunks, each, chunk)
        for index in range(len(live)):
            found.append((live[index], live[index] + taps))
    rest = []
    for chunk in range(paired, len(chunks)):
        if len(rest) > 0 and partitions(chunks[chunk]) != partitions(chunks[chunk - 1]):
            found = found + in_pairs(rest)
            rest = []
        rest = rest + live_steps(geometry, chunks, each, chunk)
    found = found + in_pairs(rest)
    return found if len(found) > 0 else [(0, -1)]


def in_pairs(steps):
    """Neighbours of a list of steps as pairs, the earlier one first; the last one alone if they are odd."""
    found = []
    for index in range(0, len(steps) - 1, 2):
        found.append((min(steps[index], steps[index + 1]), max(steps[index], steps[index + 1])))
    if len(steps) % 2 == 1:
        found.append((steps[len(steps) - 1], -1))
    return found


def products_of(geometry, plan, band, bank):
    """All matmuls of a bank, one that meets all of its sums first; a single, if there is one, last."""
    steps = steps_of(geometry, plan.chunks)
    each = windows(geometry, steps, band, bank)
    pitch = plan.buffer.rows // geometry.rows.stride
    height = bank.pn if bank.nn == 1 else (bank.nn - 1) * pitch + bank.pn
    pairs = pairs_of(geometry, plan.chunks, each)
    found, whole = [], -1
    for index in range(len(pairs)):
        product = product_of(geometry, plan, bank, steps, each, pairs[index], height)
        if whole < 0 and product.rows == height and product.columns == bank.qn:
            whole = index
        found.append(product)
    if whole < 0:
        whole = 0
        first = found[0]
        first.row = 0
        first.rows = height
        first.column = 0
        first.columns = bank.qn
    return [found[whole]] + found[:whole] + found[whole + 1 :]


def product_of(geometry, plan, bank, steps, each, pair, height):
    """The Product of (first step, second step or -1) with the least window that holds both steps'."""
    first, second = pair
    row, rows, column, columns = each[first]
    place = place_of(geometry, plan.buffer, steps[first])
    step = 0
    if second >= 0:
        other = each[second]
        bottom, right = max(row + rows, other[0] + other[1]), max(column + columns, other[2] + other[3])
        row, column = min(row, other[0]), min(column, other[2])
        rows, columns = bottom - row, right - column
        step = place_of(geometry, plan.buffer, steps[second]) - place
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
        chunk=steps[first].chunk,
    )


def place_of(geometry, buffer, step):
    """Where x of a step lies in a buffer against the first tap of the first chunk."""
    inside = step.r * geometry.rows.dilation * buffer.columns + step.s * geometry.columns.dilation
    return step.chunk * buffer.images * buffer.rows * buffer.columns + inside


def halved(geometry, plan, products):
    """Whether a bank's last product is the single for which x and the tap are there a second time."""
    last = products[len(products) - 1]
    single = len(products) > 1 and last.second < 0
    return plan.halves and single and last.first == num_steps(geometry, plan.chunks) - 1
