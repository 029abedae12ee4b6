"""What settings of turned come to: items of y, tiles of the array, banks of sums, and what those need."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS, cut, cut_into, div_ceil
from ..cuts import axis_elements, cut_volumes, most_of, window_of
from ..geometry import met, num_taps, span
from .products import products_of


@dataclass
class TurnedItem(nl.NKIObject):
    """Planes z0 .. z0+zn-1 of y, rows p0 .. p0+pn-1, columns q0 .. q0+qn-1."""

    z0: int
    zn: int
    p0: int
    pn: int
    q0: int
    qn: int


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
    """Sizes. width: columns of a tile; banks: (first plane, how many) of the sums of a tile, from an item's first;
    rows: of x that are there together; blocks: of 128 columns of sums that the array turns."""

    segments: int
    width: int
    chunks: list
    products: list
    items: list
    banks: list
    blocks: int
    rows: int
    warmup: int


def make_turned(geometry, config):
    """The Turned of a TurnedConfig."""
    planes, K = geometry.planes, geometry.K
    depth = min(config.depth, planes.out // planes.images)
    width = min(geometry.columns.out, nl.tile_size.pmax // config.segments)
    chunks, products = products_of(geometry, config.copies)
    tiles, volume = div_ceil(geometry.columns.out, width), planes.out // planes.images
    groups = cut_volumes(planes.out, planes.images, planes.images * div_ceil(volume, depth))
    items = []
    for rows in cut_into(geometry.rows.out, min(geometry.rows.out, PARTS)):
        for group in groups:
            for part in cut_into(tiles, min(tiles, config.parts)):
                q0 = part[0] * width
                qn = min(geometry.columns.out, q0 + part[1] * width) - q0
                items.append(TurnedItem(z0=group[0], zn=group[1], p0=rows[0], pn=rows[1], q0=q0, qn=qn))
    zn = most_of(groups)
    return Turned(
        segments=config.segments,
        width=width,
        chunks=chunks,
        products=products,
        items=items,
        banks=cut(zn, max(1, BANK_COLUMNS // K)),
        blocks=div_ceil(zn * K, nl.tile_size.pmax),
        rows=(geometry.rows.taps - 1) * geometry.rows.dilation + 1 + geometry.rows.stride,
        warmup=config.warmup,
    )


def moves_of(geometry, plan, item):
    """Moves of a tile of an item, planes of x from the last to the first, so that an output's taps come in one order
    wherever items are cut. Sums of a plane of y that meets no x have none: -1 is the product of zeros instead."""
    planes, found, started = geometry.planes, [], []
    d0, dn = span(planes, item.z0, item.zn)
    taps = []
    for _ in range(dn):
        taps.append([])
    for z in range(item.zn):
        started.append(False)
        bank, nothing = 0, True
        while plan.banks[bank][0] + plan.banks[bank][1] <= z:
            bank += 1
        for t in range(planes.taps):
            one = met(planes, t, item.z0 + z, 1)
            if one[2] > 0:
                own = taps[one[3] - d0]
                own.append((z, t))
                nothing = False
        if nothing:
            z0 = plan.banks[bank][0]
            found.append(Move(plane=0, product=-1, bank=bank, z=z - z0, count=1, tau=0, adds=False))
    for plane in range(dn - 1, -1, -1):
        for product in range(len(plan.products)):
            for run in runs_of(plan, taps[plane], started):
                bank, z, count, t, adds = run
                tau = planes.taps - 1 - t
                found.append(Move(plane=plane, product=product, bank=bank, z=z, count=count, tau=tau, adds=adds))
            for one in taps[plane]:
                started[one[0]] = True
    return found


def runs_of(plan, taps, started):
    """(bank, first plane, how many, tap of the first, whether sums are there) of (plane of y, tap) of a plane of x:
    neighbours of one bank whose taps descend."""
    found = []
    for bank in range(len(plan.banks)):
        first, count = plan.banks[bank]
        last = None
        for one in taps:
            z, t = one
            if z < first or z >= first + count:
                continue
            if last != None and z == first + last[1] + last[2] and t == last[3] - last[2] and last[4] == started[z]:
                last = (bank, last[1], last[2] + 1, last[3], last[4])
                found[-1] = last
            else:
                last = (bank, z - first, 1, t, started[z])
                found.append(last)
    return found


def segment_rows(plan, item):
    """Rows of a segment of an item; the last ones may have fewer."""
    return div_ceil(item.pn, plan.segments)


def window_width(geometry, item):
    """Columns of x, padding with them, that an item sees."""
    return window_of(geometry.columns, 1) + (item.qn - 1) * geometry.columns.stride


def turned_bytes(geometry, plan, extras):
    """Bytes a partition, at most: rows of x, filters as they come and as they are taken, results."""
    item, y_item = geometry.itemsize, extras.epilogue.y_itemsize
    planes, width, columns, K = 0, 0, 0, geometry.K
    for one in plan.items:
        planes = max(planes, axis_elements(geometry.planes, one.zn))
        width, columns = max(width, window_width(geometry, one) + 1), max(columns, one.qn)
    x_bytes = plan.rows * len(plan.chunks) * planes * plan.segments * width * item
    filters = len(plan.products) * geometry.planes.taps * K * item
    raw = geometry.C * num_taps(geometry) * geometry.hbm_itemsize + 4 * nl.tile_size.pmax * geometry.planes.taps * item
    results = 2 * plan.blocks * plan.segments * columns * y_item
    sums = len(plan.banks) * BANK_COLUMNS * (3 * y_item + (8 if extras.epilogue.bias else 0)) + 4 * K
    return x_bytes + filters + raw + results + sums + 2048


def turned_fits(geometry, extras, plan):
    """Whether there is room in SBUF."""
    return turned_bytes(geometry, plan, extras) <= nl.tile_size.total_available_sbuf_size


def turned_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    planes, K, total = geometry.planes, geometry.K, 0
    loads = 0
    for chunk in plan.chunks:
        loads += 5 * (1 + len(chunk.riders))
    for item in plan.items:
        runs = item.zn * planes.taps + 2 * axis_elements(planes, item.zn)
        tile = len(plan.products) * runs + item.zn + 5 * (len(plan.banks) + plan.blocks)
        steps = div_ceil(item.pn, plan.segments)
        stores = plan.blocks * (div_ceil(nl.tile_size.pmax, K) + 2)
        rows = steps * geometry.rows.stride + plan.rows
        total += steps * (tile * div_ceil(item.qn, plan.width) + stores) + rows * loads
    filters = len(plan.products) * div_ceil(K, nl.tile_size.pmax) * (4 + 2 * planes.taps)
    return div_ceil(total, min(cores, len(plan.items))) + filters + plan.warmup + 16
