"""What settings of y as NHWC come to: weight-resident groups, output tiles and their order, and what those need."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import Outputs, most_of
from ....schedules.geometry import num_taps
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_into, div_ceil, fits_sbuf, share
from .filters import comes_raw, num_transposes, raw_bytes, way_of
from .pixel_blocks import STEP_MAX, Cut, Source, blocks_of, casts_x, cut_of, pixel_bands, source_of, window_shape
from .products import all_places, own_piece

#: Banks of sums that go through filters of one tap together as these come: there are others for transposes.
FIRST_BANKS = 5


@dataclass
class PixelItem(nl.NKIObject):
    """One output tile for the output channels of one group."""

    batch: int
    band: Outputs


@dataclass
class PixelSchedule(nl.NKIObject):
    """All work: batches (first, how many) of output channels whose filters are in SBUF together; items in order."""

    by_rows: bool
    source: Source
    sizes: Cut
    #: K tiles, of one ChunkPiece each
    chunks: list
    places: list
    batches: list
    #: most output channels of a matmul
    k_tile: int
    items: list
    way: str
    warmup: int
    #: of sums that go through a group's filters together as these come
    banks: int


def make_pixels(geometry, config):
    """The PixelSchedule of settings, or None where a window is too wide, or the filters of one output channel, or where
    cores share channels, or filters are not there at once, and rows of y are folded."""
    fold, item = config.fold, geometry.itemsize
    source = source_of(geometry, fold, config.side)
    chunks = [[own_piece(first, count)] for first, count in cut(geometry.C, nl.tile_size.pmax)]
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
    bands = pixel_bands(source, geometry, sizes, most_elements, PARTS if count == 1 else 1)
    if max(widest_step(source, sizes, band, len(chunks)) for band in bands) > STEP_MAX:
        return None
    return PixelSchedule(
        by_rows=False,
        source=source,
        sizes=sizes,
        chunks=chunks,
        places=[all_places(geometry)] * len(chunks),
        batches=batches,
        k_tile=most_of(cut(fold * most_of(batches), BANK_COLUMNS)),
        items=[PixelItem(batch, band) for batch in range(count) for band in bands],
        way=way_of(geometry, False),
        warmup=config.warmup,
        banks=FIRST_BANKS if num_taps(geometry) == 1 else 1,
    )


def widest_step(source, sizes, band, num_chunks):
    """Elements between neighbours of an axis, at most, in what the engines see of a window."""
    dn, hn, wn = window_shape(source, band)
    row = sizes.apart * source.rows.stride * wn if hn > 1 else 1
    image = source.planes.stride * hn * wn if dn * num_chunks > 1 else 1
    return max(max(row, image), sizes.side * source.columns.stride if band.qn > sizes.side else 1)


def pixel_bytes(geometry, plan, extras):
    """Bytes a partition, at most: x of two output tiles, filters, blocks of taps, results, bias."""
    item, y_item = geometry.itemsize, extras.epilogue.y_itemsize
    x_bytes = 0
    for one in plan.items:
        dn, hn, wn = window_shape(plan.source, one.band)
        elements = dn * hn * wn
        staged = 2 * elements * geometry.hbm_itemsize if casts_x(geometry) else 0
        x_bytes = max(x_bytes, 2 * len(plan.chunks) * elements * item + staged)
    kn = most_of(plan.batches)
    filters = len(plan.chunks) * num_taps(geometry) * kn * item
    if comes_raw(plan.way):
        filters += raw_bytes(geometry, plan)
    fold = plan.source.fold
    if fold > 1:
        filters += num_taps(plan.source) * fold * kn * item
    results = plan.sizes.side * fold * kn * (2 * y_item + (2 * 8 if extras.residual else 0))
    sums = 3 * 4 * BANK_COLUMNS
    bias = 2 * 4 * fold * kn if extras.epilogue.bias else 0
    zeros = nl.tile_size.pmax * 2
    return x_bytes + filters + results + sums + bias + zeros


def pixels_fit(geometry, extras, plan):
    """Whether there is a schedule, and room in SBUF for it."""
    return plan != None and fits_sbuf(pixel_bytes(geometry, plan, extras))


def pixel_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    chunks, source, windows, most = len(plan.chunks), plan.source, num_taps(plan.source), 0
    parts_of = {kn: div_ceil(source.fold * kn, plan.k_tile) for _, kn in plan.batches}
    groups = div_ceil(plan.sizes.side, max(1, BANK_COLUMNS // plan.k_tile))
    for core in range(cores):
        first, count = share(len(plan.items), cores, core)
        total, before = 8 + plan.warmup, -1
        for item in plan.items[first : first + count]:
            kn = plan.batches[item.batch][1]
            if item.batch != before:
                before = item.batch
                total += 3 * num_transposes(kn, plan) + chunks * num_taps(geometry) + 4
                total += source.fold * geometry.rows.taps
            blocks = len(blocks_of(plan.sizes, item.band))
            total += 4 + chunks * (2 * source.slots * (blocks + 1) + 2)
            banks = parts_of[kn] * (plan.sizes.side * chunks * windows + 5 * groups)
            total += blocks * (banks + 4 * source.fold + 2)
        most = max(most, total)
    return most
