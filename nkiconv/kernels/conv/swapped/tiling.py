"""What settings of swapped come to: batches of output channels, bands of x, their order, and what those need."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import Outputs, most_of
from ....schedules.geometry import num_taps
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_into, div_ceil, fits_sbuf, share
from .filters import comes_raw, raw_bytes, transposes_of, way_of
from .shape import STEP_MAX, Cut, Source, blocks_of, casts_x, cut_of, source_of, swapped_bands, window_shape

#: Banks of sums that go through filters of one tap together as these come: there are others for transposes.
FIRST_BANKS = 5


@dataclass
class SwappedItem(nl.NKIObject):
    """One band for the output channels of one batch."""

    batch: int
    band: Outputs


@dataclass
class Swapped(nl.NKIObject):
    """All work: batches (first, how many) of output channels whose filters are in SBUF together; items in order."""

    source: Source
    sizes: Cut
    #: (first, how many) of at most 128 input channels
    chunks: list
    batches: list
    #: most output channels of a matmul
    k_tile: int
    items: list
    way: str
    warmup: int
    #: of sums that go through a batch's filters together as these come
    banks: int


def make_swapped(geometry, config):
    """The Swapped of settings, or None where a window is too wide, or the filters of one output channel, or where cores
    share channels, or filters are not there at once, and rows of y are beside each other."""
    fold, item = config.fold, geometry.itemsize
    source = source_of(geometry, fold, config.side)
    chunks = cut(geometry.C, nl.tile_size.pmax)
    k_bytes = len(chunks) * num_taps(geometry) * item
    if not fits_sbuf(k_bytes):
        return None
    most_k = min(geometry.K, max(1, config.filter_bytes // k_bytes))
    count = div_ceil(geometry.K, most_k)
    if fold > 1 and (count > 1 or config.shard == "channels"):
        return None
    if count > 1 or config.shard == "channels":
        count = min(geometry.K, div_ceil(count, PARTS) * PARTS)
    batches = cut_into(geometry.K, count)
    most_elements = config.x_bytes // (len(chunks) * item)
    sizes = cut_of(source, geometry, config.side, most_elements)
    q0, qn = sizes.parts[0]
    if widest_step(source, sizes, Outputs(z0=0, zn=1, p0=0, pn=1, q0=q0, qn=qn), len(chunks)) > STEP_MAX:
        return None
    bands = swapped_bands(source, geometry, sizes, most_elements, PARTS if count == 1 else 1)
    for band in bands:
        if widest_step(source, sizes, band, len(chunks)) > STEP_MAX:
            return None
    items = []
    for batch in range(count):
        for band in bands:
            items.append(SwappedItem(batch=batch, band=band))
    return Swapped(
        source=source,
        sizes=sizes,
        chunks=chunks,
        batches=batches,
        k_tile=most_of(cut(fold * most_of(batches), BANK_COLUMNS)),
        items=items,
        way=way_of(geometry),
        warmup=config.warmup,
        banks=FIRST_BANKS if num_taps(geometry) == 1 else 1,
    )


def widest_step(source, sizes, band, num_chunks):
    """Elements between neighbours of an axis, at most, in what the engines see of a window."""
    dn, hn, wn = window_shape(source, band)
    row = sizes.apart * source.rows.stride * wn if hn > 1 else 1
    image = source.planes.stride * hn * wn if dn * num_chunks > 1 else 1
    return max(max(row, image), sizes.side * source.columns.stride if band.qn > sizes.side else 1)


def swapped_sbuf_bytes(geometry, plan, extras):
    """Bytes a partition, at most: x of two bands, filters, blocks of taps, results, bias."""
    item, y_item = geometry.itemsize, extras.epilogue.y_itemsize
    taps = num_taps(geometry)
    x_bytes = 0
    for one in plan.items:
        dn, hn, wn = window_shape(plan.source, one.band)
        elements = dn * hn * wn
        staged = 2 * elements * geometry.hbm_itemsize if casts_x(geometry) else 0
        x_bytes = max(x_bytes, 2 * len(plan.chunks) * elements * item + staged)
    kn = most_of(plan.batches)
    filters = len(plan.chunks) * taps * kn * item
    if comes_raw(plan.way):
        filters += raw_bytes(geometry, plan.chunks)
    fold = plan.source.fold
    if fold > 1:
        filters += num_taps(plan.source) * fold * kn * item
    results = plan.sizes.side * fold * kn * (2 * y_item + (2 * 8 if extras.residual else 0))
    sums = 3 * 4 * BANK_COLUMNS
    bias = 2 * 4 * fold * kn if extras.epilogue.bias else 0
    zeros = nl.tile_size.pmax * 2
    return x_bytes + filters + results + sums + bias + zeros


def swapped_fits(geometry, extras, plan):
    """Whether there is a plan, and room in SBUF for it."""
    return plan != None and fits_sbuf(swapped_sbuf_bytes(geometry, plan, extras))


def count_swapped_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    taps = num_taps(geometry)
    chunks, source, windows = len(plan.chunks), plan.source, num_taps(plan.source)
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = 8 + plan.warmup
        for index in range(mine[0], mine[0] + mine[1]):
            item, before = plan.items[index], plan.items[max(0, index - 1)]
            kn = plan.batches[item.batch][1]
            if index == mine[0] or before.batch != item.batch:
                total += 3 * transposes_of(kn, taps, plan.chunks) + chunks * taps + 4
                total += source.fold * geometry.rows.taps
            blocks = blocks_of(plan.sizes, item.band)
            total += 4 + chunks * (2 * source.slots * (len(blocks) + 1) + 2)
            parts = div_ceil(source.fold * kn, plan.k_tile)
            groups = div_ceil(plan.sizes.side, max(1, BANK_COLUMNS // plan.k_tile))
            banks = parts * (plan.sizes.side * chunks * windows + 5 * groups)
            total += len(blocks) * (banks + 4 * source.fold + 2)
        most = max(most, total)
    return most
