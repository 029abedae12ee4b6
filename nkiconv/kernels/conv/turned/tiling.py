"""What settings of turned come to: items of y, tiles of the array, banks of sums, and what those need."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import Outputs, axis_elements, cut_volumes, most_of, window_of
from ....schedules.geometry import met, num_taps, span
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_into, div_ceil, filled, fits_sbuf
from .products import products_of
from .repeat import steps_alike


@dataclass
class Move(nl.NKIObject):
    """A matmul of a tile: a product of a plane of x, counted from the item's first, for planes z .. z+count-1 of a bank
    of sums, whose first tap is the `tau`-th from behind; whether sums are there already."""

    plane: int
    product: int
    bank: int
    z: int
    count: int
    tau: int
    adds: bool


@dataclass
class Turned(nl.NKIObject):
    """Sizes. width: columns of a tile; items: Outputs that are worked on together; banks: (first plane, how many) of
    the sums of a tile, from an item's first; rows: of x that are there together; blocks: of 128 columns of sums that
    the array turns; loop: how often tiles of x take turns in a body of a loop on the device, 0: no loop; steps: Steps
    that it does, or None."""

    segments: int
    width: int
    chunks: list
    products: list
    items: list
    banks: list
    blocks: int
    rows: int
    warmup: int
    loop: int
    steps: object


def make_turned(geometry, config):
    """The Turned of a TurnedConfig."""
    planes, K, P, Q = geometry.planes, geometry.K, geometry.rows.out, geometry.columns.out
    width, volume = min(Q, nl.tile_size.pmax // config.segments), planes.out // planes.images
    chunks, products = products_of(geometry, config.copies)
    groups = cut_volumes(planes.out, planes.images, planes.images * div_ceil(volume, min(config.depth, volume)))
    tiles, items = div_ceil(Q, width), []
    for rows in cut_into(P, min(P, PARTS)):
        for group in groups:
            for part in cut_into(tiles, min(tiles, config.parts)):
                q0 = part[0] * width
                qn = min(Q - q0, part[1] * width)
                items.append(Outputs(z0=group[0], zn=group[1], p0=rows[0], pn=rows[1], q0=q0, qn=qn))
    zn = most_of(groups)
    plan = Turned(
        segments=config.segments,
        width=width,
        chunks=chunks,
        products=products,
        items=items,
        banks=cut(zn, max(1, BANK_COLUMNS // K)),
        blocks=div_ceil(zn * K, nl.tile_size.pmax),
        rows=window_of(geometry.rows, 2),
        warmup=config.warmup,
        loop=config.loop,
        steps=None,
    )
    plan.steps = steps_alike(geometry, plan)
    return plan


def moves_of(geometry, plan, item):
    """Moves of a tile of an item, planes of x from the last to the first, so that an output's taps come in one order
    wherever items are cut. Sums that no plane of x is for begin, and end, with the product of zeros: -1."""
    planes, found, started, seen_by = geometry.planes, [], filled(item.zn, False), []
    d0, dn = span(planes, item.z0, item.zn)
    for _ in range(dn):
        seen_by.append([])
    for z in range(item.zn):
        sees = False
        for tau in range(planes.taps):
            one = met(planes, planes.taps - 1 - tau, item.z0 + z, 1)
            if one[2] > 0:
                own, sees = seen_by[one[3] - d0], True
                own.append((z, tau))
        if not sees:
            add_moves(found, plan, [(z, 0)], started, 0, -1)
    for plane in range(dn - 1, -1, -1):
        for product in range(len(plan.products)):
            add_moves(found, plan, seen_by[plane], started, plane, product)
            for one in seen_by[plane]:
                started[one[0]] = True
    return found


def add_moves(found, plan, pairs, started, plane, product):
    """Append the Moves of a product for (plane of y, tap from behind): one for neighbours in a bank at ascending taps
    whose sums are there, or are not."""
    begin = len(found)
    for pair in pairs:
        z, tau = pair
        for bank in range(len(plan.banks)):
            first, count = plan.banks[bank]
            if z < first or z >= first + count:
                continue
            at, adds, joins = z - first, started[z], False
            if len(found) > begin:
                last = found[-1]
                beside = at == last.z + last.count and tau == last.tau + last.count
                joins = beside and last.bank == bank and last.adds == adds
            if joins:
                last = found[-1]
                last.count = last.count + 1
            else:
                found.append(Move(plane=plane, product=product, bank=bank, z=at, count=1, tau=tau, adds=adds))


def segment_rows(plan, item):
    """Rows of a segment of an item; the last ones may have fewer."""
    return div_ceil(item.pn, plan.segments)


def stored_together(plane_count, K):
    """(first, how many) of the sums [(z, k)] of so many planes that one DMA stores: of one plane and one block."""
    found, at, size = [], 0, plane_count * K
    while at < size:
        count = min(K - at % K, nl.tile_size.pmax - at % nl.tile_size.pmax)
        found.append((at, count))
        at += count
    return found


def turned_window(geometry, plan):
    """(planes, columns with padding) of x that an item sees, at most."""
    planes, width = 0, 0
    for item in plan.items:
        planes = max(planes, axis_elements(geometry.planes, item.zn))
        width = max(width, window_of(geometry.columns, item.qn))
    return planes, width


def turned_bytes(geometry, plan, extras):
    """Bytes a partition, at most: rows of x, filters as they come and as they are taken, results."""
    item, y_item, K, columns = geometry.itemsize, extras.epilogue.y_itemsize, geometry.K, 0
    for one in plan.items:
        columns = max(columns, one.qn)
    planes, width = turned_window(geometry, plan)
    x_bytes = plan.rows * len(plan.chunks) * planes * plan.segments * (width + 1) * item
    filters = len(plan.products) * geometry.planes.taps * K * item
    raw = geometry.C * num_taps(geometry) * geometry.hbm_itemsize + 4 * nl.tile_size.pmax * geometry.planes.taps * item
    results = 2 * plan.blocks * plan.segments * columns * y_item
    sums = len(plan.banks) * BANK_COLUMNS * (3 * y_item + (8 if extras.epilogue.bias else 0)) + 4 * K
    return x_bytes + filters + raw + results + sums + 2048


def turned_fits(geometry, extras, plan):
    """Whether there is room in SBUF."""
    return fits_sbuf(turned_bytes(geometry, plan, extras))


def turned_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most, as the compiler sees them: the body of a loop once."""
    planes, K, loads, total, moves, of = geometry.planes, geometry.K, 0, 0, 0, (-1, 0)
    for chunk in plan.chunks:
        loads += 5 * len(chunk)
    for item in plan.items:
        if of != (item.z0, item.zn):
            moves, of = len(moves_of(geometry, plan, item)), (item.z0, item.zn)
        tile = moves + 2 * (len(plan.banks) + plan.blocks)
        steps = segment_rows(plan, item)
        if plan.steps != None:
            steps -= (plan.steps.count - 1) * plan.steps.each
        stores = len(stored_together(item.zn, K))
        rows = steps * geometry.rows.stride + plan.rows
        total += steps * (tile * div_ceil(item.qn, plan.width) + stores) + rows * loads
    filters = len(plan.products) * div_ceil(K, nl.tile_size.pmax) * (4 + 2 * planes.taps)
    return div_ceil(total, min(cores, len(plan.items))) + filters + plan.warmup + 16
