"""Work of fp8 convolutions in pairs, cut into tiles from shapes alone; the same on any number of cores.

The array contracts [K, 2, M] with [K, 2, N] in the time of [K, M] with [K, N] where both are fp8 (double_row): two
*steps*, each one tap and 128 input channels, that meet the same window of outputs. Where x lies in SBUF with its zero
padding around it, every tap of every chunk of channels meets a window of the same shape, so that any two steps make a
pair: their windows are one access pattern whose second dimension is a stride, to the next chunk, row or column of taps.

    pairs     chunks 2i and 2i+1 at one tap; of a last chunk alone, two taps
    folded    of channels left over beside whole 128s, copies shifted by a column of taps share a chunk (chunks.py)
    a single  is left of an odd number of steps. It takes a pair's time, or half of it in `halves`: its channels 0..63
              and 64..127 are a pair on the first 64 rows of the array for one bank of sums, and on the last 64 for the
              next bank, side by side; for that x and the tap are there a second time with both halves exchanged

Images too small for a matmul of their own lie below each other, and share the zeros between them: what is computed for
the rows between them is never read. Where rows of x are short, whole images come in one run each and are put between
the zeros on chip (`staged`).
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS, cut, div_ceil, share, whole_words
from ..cuts import in_batches
from .chunks import chunks_of, even_chunks, folded_chunks, num_passes, num_steps
from .extents import extent_of, stored

#: Bytes a partition from one slot of a buffer to the next, at most: twice that is within a stride of an access pattern.
SLOT_BYTES = 16_383


@dataclass
class Job(nl.NKIObject):
    """Output channels k0 .. k0+kn-1."""

    k0: int
    kn: int


@dataclass
class Band(nl.NKIObject):
    """Outputs p0 .. p0+pn-1, q0 .. q0+qn-1 of images n0 .. n0+nn-1."""

    n0: int
    nn: int
    p0: int
    pn: int
    q0: int
    qn: int


@dataclass
class Item(nl.NKIObject):
    """One band for one batch of jobs; last: of a core, of two."""

    batch: int
    band: Band
    last: bool


@dataclass
class Buffer(nl.NKIObject):
    """How x of a band lies in SBUF: [channels, slots, images, rows, columns], fp8."""

    slots: int
    images: int
    #: from one image to the next, and of all
    rows: int
    columns: int
    #: columns before those that the first tap meets
    lead: int
    #: bytes that one element of a copy into it has: rows of x begin at multiples of it
    unit: int


@dataclass
class Pairs(nl.NKIObject):
    """All work of one problem."""

    chunks: list
    batches: list
    items: list
    #: images of a bank of sums
    together: int
    #: (first, how many) rows of the banks of an image
    parts: list
    buffer: Buffer
    buffers: int
    halves: bool
    staged: bool
    warmup: int
    #: banks of sums whose results leave by one DMA
    banks: int
    #: columns of the last bank of all, at least
    last_columns: int


def image_pitch(geometry):
    """Rows from one whole image to the next in a buffer: they share zeros, outputs of both are on one grid, and each
    has rows of sums of its own."""
    rows = geometry.rows
    whole = stored(rows, 0, rows.out)
    shared = min(whole.zeros, whole.extent - whole.zeros - whole.count)
    return max(rows.out, div_ceil(whole.extent - shared, rows.stride)) * rows.stride


def most_together(geometry):
    """Images of which one bank holds the sums, at most."""
    P, Q = geometry.rows.out, geometry.columns.out
    if P * Q > BANK_COLUMNS:
        return 1
    pitch = image_pitch(geometry) // geometry.rows.stride
    return max(1, min(geometry.N, BANK_COLUMNS // (pitch * Q)))


def parts_of_image(geometry):
    """(first, how many) rows of the banks of an image."""
    return cut(geometry.rows.out, max(1, BANK_COLUMNS // min(geometry.columns.out, BANK_COLUMNS)))


def jobs_of(geometry, chunks, settings):
    """Jobs of at most 128 output channels, whole blocks of a packed filter, whose filters fit."""
    most = min(settings.channels, max(1, settings.filter_bytes // (num_steps(geometry, chunks) + 1)))
    each = max(1, geometry.packed)
    parts = cut(geometry.K // each, max(1, most // each))
    found = []
    for index in range(len(parts)):
        found.append(Job(k0=parts[index][0] * each, kn=parts[index][1] * each))
    return found


def job_bytes(geometry, chunks, job, halves):
    """Bytes a partition of a job's stationaries."""
    return (num_steps(geometry, chunks) + (1 if halves else 0)) * whole_words(job.kn, geometry.itemsize)


def batches_of(geometry, chunks, jobs, by_channels, halves, filter_bytes):
    """Jobs in batches whose filters are there together; by_channels: as many for either core."""
    most = len(jobs)
    for index in range(len(jobs)):
        most = min(most, max(1, filter_bytes // job_bytes(geometry, chunks, jobs[index], halves)))
    sides = PARTS if by_channels or most < len(jobs) else 1
    return in_batches(jobs, most, sides)


def bands_of(geometry, together, parts, slots, lead, x_bytes, in_halves):
    """Bands of all images: whole banks, as many as fit. lead: columns beside those that outputs need, at most;
    in_halves: no band belongs to both halves of all work."""
    Q = geometry.columns.out
    columns = cut(Q, BANK_COLUMNS)
    width = extent_of(geometry.columns, columns[len(columns) - 1][1]) + geometry.columns.stride + lead
    most_rows = min(x_bytes // slots, SLOT_BYTES) // width
    images = 1
    if len(columns) == 1:
        pitch = image_pitch(geometry)
        images = max(1, min(geometry.N, most_rows // pitch - 1))
    found = []
    if images >= together and images > 1:
        banks = cut(div_ceil(geometry.N, together), max(1, images // together))
        if in_halves and len(banks) % 2 == 1 and div_ceil(geometry.N, together) > len(banks):
            banks = cut(div_ceil(geometry.N, together), div_ceil(div_ceil(geometry.N, together), len(banks) + 1))
        for index in range(len(banks)):
            n0 = banks[index][0] * together
            nn = min(geometry.N, n0 + banks[index][1] * together) - n0
            found.append(Band(n0=n0, nn=nn, p0=0, pn=geometry.rows.out, q0=0, qn=Q))
        return found
    groups = groups_of_parts(geometry, parts, most_rows, in_halves and geometry.N % 2 == 1)
    for n in range(geometry.N):
        for which in range(len(groups)):
            for side in range(len(columns)):
                p0, pn = groups[which]
                found.append(Band(n0=n, nn=1, p0=p0, pn=pn, q0=columns[side][0], qn=columns[side][1]))
    return found


def groups_of_parts(geometry, parts, most_rows, in_halves):
    """(first, how many) rows of bands of whole banks whose rows of x fit; at least one bank each."""
    sides = 2 if in_halves and len(parts) > 1 else 1
    found = []
    for side in range(sides):
        mine = share(len(parts), sides, side)
        most = 1
        while most < mine[1] and extent_of(geometry.rows, (most + 1) * parts[0][1] + 1) <= most_rows:
            most += 1
        inner = cut(mine[1], most)
        for index in range(len(inner)):
            first = parts[mine[0] + inner[index][0]]
            last = parts[mine[0] + inner[index][0] + inner[index][1] - 1]
            found.append((first[0], last[0] + last[1] - first[0]))
    return found


def parts_of(plan, band):
    """(first, how many) rows of each bank of an image of a band, from the band's first row on."""
    found = []
    for index in range(len(plan.parts)):
        p0, pn = plan.parts[index]
        if p0 >= band.p0 and p0 < band.p0 + band.pn:
            found.append((p0 - band.p0, pn))
    return found


def buffer_of(geometry, chunks, bands, slots, staged, unit):
    """The Buffer that holds each of the bands; staged: whole rows of x."""
    shift = (chunks[len(chunks) - 1].depth - 1) * geometry.columns.dilation
    images, rows, width, lead = 1, 1, 1, 0
    for index in range(len(bands)):
        band = bands[index]
        columns = stored(geometry.columns, band.q0, band.qn)
        images = max(images, band.nn)
        rows = max(rows, extent_of(geometry.rows, band.pn))
        width = max(width, columns.extent)
        if staged:
            width = max(width, columns.zeros + geometry.columns.size)
        lead = shift + (unit - (shift + columns.zeros) % unit) % unit
    if images > 1:
        pitch = image_pitch(geometry)
        images = images + div_ceil(max(0, rows - pitch), pitch)
        rows = pitch
    width = div_ceil(lead + width, unit) * unit
    return Buffer(slots=slots, images=images, rows=rows, columns=width, lead=lead, unit=unit)


def can_halve(geometry, chunks):
    """Whether a single of 128 channels is left over of each bank's steps."""
    last = chunks[len(chunks) - 1]
    return num_steps(geometry, chunks) % 2 == 1 and last.depth == 1 and last.cn == nl.tile_size.pmax


def make_pairs(geometry, settings):
    """The Pairs of accepted settings."""
    chunks = chunks_of(geometry, settings.fold == 1)
    jobs = jobs_of(geometry, chunks, settings)
    together, parts = min(settings.images, most_together(geometry)), parts_of_image(geometry)
    by_channels = len(jobs) > 1 and settings.shard == "channels"
    halves = settings.halves == 1 and can_halve(geometry, chunks)
    staged = settings.staged == 1 and can_stage(geometry)
    unit = copy_unit(geometry) if staged else 1
    slots = len(chunks) + (1 if halves else 0)
    batches = batches_of(geometry, chunks, jobs, by_channels, halves, settings.filter_bytes)
    lead = 2 * unit + (chunks[len(chunks) - 1].depth - 1) * geometry.columns.dilation
    bands = bands_of(geometry, together, parts, slots, lead, settings.x_bytes, len(batches) == 1)
    items = []
    for index in range(len(batches)):
        for which in range(len(bands)):
            items.append(Item(batch=index, band=bands[which], last=False))
    for core in range(PARTS):
        mine = share(len(items), PARTS, core)
        if mine[1] > 0:
            items[mine[0] + mine[1] - 1].last = True
    return Pairs(
        chunks=chunks,
        batches=batches,
        items=items,
        together=together,
        parts=parts,
        buffer=buffer_of(geometry, chunks, bands, slots, staged, unit),
        buffers=min(settings.buffers, max(2, len(items))),
        halves=halves,
        staged=staged,
        warmup=settings.warmup,
        banks=settings.banks,
        last_columns=settings.last_columns,
    )


def can_stage(geometry):
    """Whether rows of an image lie side by side in HBM, all columns of them in one band and none cropped."""
    columns = geometry.columns
    if geometry.x_w != 1 or geometry.x_h != columns.size or columns.out > BANK_COLUMNS:
        return False
    met = stored(columns, 0, columns.out)
    return met.first == 0 and met.count > max(0, columns.size - columns.stride)


def copy_unit(geometry):
    """Bytes that Vector copies as one element from rows of x as loaded to where they lie between zeros."""
    if geometry.columns.size % 4 == 0:
        return 4
    return 2 if geometry.columns.size % 2 == 0 else 1


def folding_pays(geometry):
    """Whether what is left over of the channels takes fewer matmuls where it is folded."""
    folded = folded_chunks(geometry)
    return len(folded) > 0 and num_passes(geometry, folded) < num_passes(geometry, even_chunks(geometry))


def sbuf_bytes(geometry, plan, residual):
    """Bytes a partition, at most: buffers of x and of it as loaded, filters of two batches, blocks of taps, results."""
    buffer = plan.buffer
    x_bytes = buffer.slots * buffer.images * buffer.rows * buffer.columns
    staged_bytes = 3 * x_bytes if plan.staged else 0
    most_filters, kn = 0, 0
    for index in range(len(plan.batches)):
        filters = 0
        for which in range(len(plan.batches[index])):
            filters += job_bytes(geometry, plan.chunks, plan.batches[index][which], plan.halves)
            kn = max(kn, plan.batches[index][which].kn)
        most_filters = max(most_filters, filters)
    if len(plan.batches) > PARTS:
        most_filters = 2 * most_filters
    taps, raw_bytes = geometry.rows.taps * geometry.columns.taps, 2 * nl.tile_size.pmax
    for index in range(len(plan.chunks)):
        raw_bytes += 2 * taps * plan.chunks[index].cn
    results = 6 if residual else 3
    return plan.buffers * x_bytes + staged_bytes + most_filters + raw_bytes + results * 4 * plan.banks * BANK_COLUMNS


def count_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    passes = num_passes(geometry, plan.chunks)
    taps, last = geometry.rows.taps * geometry.columns.taps, plan.chunks[len(plan.chunks) - 1]
    slots = plan.buffer.slots + last.depth
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = 96 + plan.buffers * 8 + plan.warmup
        for index in range(mine[0], mine[0] + mine[1]):
            item, before = plan.items[index], plan.items[max(0, index - 1)]
            banks = div_ceil(item.band.nn, plan.together) * len(plan.parts)
            total += 8 * (slots + 1) * (1 + item.band.nn) + 16
            for _ in range(len(plan.batches[item.batch])):
                total += banks * (passes + 6) + 16
                if index == mine[0] or before.batch != item.batch:
                    total += len(plan.chunks) * (2 * taps + 8) + 16
        most = max(most, total)
    return most
