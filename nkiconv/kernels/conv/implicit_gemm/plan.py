"""Work of one matmul per tap, cut into tiles from shapes and settings; any number of cores share the same list.

    | stationary | K (partitions)           | M (columns)     | N       | evacuation                     |
    |------------|--------------------------|-----------------|---------|--------------------------------|
    | w of a tap | c; folded: c and columns | k; folded: k, p | z, p, q | plain (NCHW), transpose (NHWC) |

Pseudocode, of one core:

    for (weight-resident group of M tiles, output tile):
        load x of the next output tile
        for M tile, bank of the output tile:
            for K tile, tap:
                PSUM[k, (z, p, q)] += w[c, tap, k]^T x[c, window of the tap]
                transpose filters that later matmuls need              # background work
            y = epilogue(PSUM)
        store y
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import Band, chunks_of
from ....schedules.geometry import num_taps
from ....schedules.pairs_of_planes import planes_at_once
from ....schedules.planes import is_by_plane, window_channels
from ....schedules.tiles import PARTS, div_ceil, filled, share
from ..transposes import is_transposed
from .alike import repeats_of
from .cuts import TAPS_RAW_BYTES, bands_of, banks_of
from .fp8 import x_elements
from .fp16x3 import kinds_of, pairing_bytes, pairing_raw_bytes, sums_of
from .jobs import batches_of, by_input, counted, job_bytes, jobs_of, moved_from
from .last import is_last, last_bytes, last_instructions
from .winograd import adding_bytes, adding_instructions, adding_raw_bytes, taps_in_hbm

#: Bytes a partition of blocks of taps that are on their way together, if more than one; of a core's first job, at
#: least.
TAPS_AHEAD_BYTES, TAPS_FIRST_BYTES = 24_576, 49_152


@dataclass
class Item(nl.NKIObject):
    """One band for one batch of jobs."""

    batch: int
    band: Band
    #: whether it is the last of a core, of two
    last: bool


@dataclass
class Plan(nl.NKIObject):
    """All work: batches are lists of Jobs whose filters are in SBUF together; items in the order of the work."""

    batches: list
    items: list
    warmup: int
    #: by batch: the first of the jobs whose filters DMA transposes
    moved: list
    #: by batch: whether the sums of all its jobs for a band are made together, chunk by chunk of x
    together: list
    #: whether rows of a band that is not a core's first come in one load a chunk, not in parts
    whole: bool
    #: bytes per partition that blocks of taps of a core's first job may take together
    first_bytes: int
    #: pairs of bands that the body of a loop on the device holds; 0: all are unrolled
    loop: int
    #: bytes per partition of frames that have come and are not added yet, of pairs of planes
    frames_bytes: int = 0


def make_plan(geometry, extras, config):
    """The Plan of ImplicitGemmSettings."""
    jobs = jobs_of(geometry, config.filter_bytes, config.channels, extras.strict_nonfinite, config.fold, config.product)
    by_channels = config.shard == "channels" and len(jobs) > 1
    batches = batches_of(geometry, jobs, by_channels, config.filter_bytes)
    items, halves, alike, rows = [], 1 if len(batches) > 1 else PARTS, config.loop > 0, jobs[-1].rows
    for index in range(len(batches)):
        chunks = chunks_of(batches[index])
        for band in bands_of(geometry, chunks, rows, halves, config.x_bytes, config.wide, alike):
            items.append(Item(batch=index, band=band, last=False))
    for half in range(PARTS):
        mine = share(len(items), PARTS, half)
        items[mine[0] + mine[1] - 1].last = True
    return Plan(
        batches=batches,
        items=items,
        warmup=config.warmup,
        moved=moved_from(batches, config.moved),
        together=filled(len(batches), config.order == "chunks"),
        whole=config.whole,
        first_bytes=TAPS_FIRST_BYTES if geometry.direct == None else TAPS_AHEAD_BYTES,
        loop=config.loop,
    )


def can_together(geometry, batch):
    """Whether a batch's jobs need the same of x, several chunks of it; not where x or results are transposed, which
    takes banks of its own."""
    first = batch[0]
    alike = len(first.chunks) > 1 and not is_transposed(geometry) and not is_last(geometry)
    for job in batch:
        alike = alike and job.chunks == first.chunks and job.rows == 1
    return alike


def sums_together(geometry, batch, index, items):
    """Banks of the sums of a batch's jobs for a band, whole ones, and one for filters that are transposed, at most."""
    most = 0
    for item in items:
        if item.batch == index:
            most = max(most, len(banks_of(item.band, False)))
    return len(batch) * most * sums_of(geometry) + 1


def taps_sbuf_bytes(geometry, plan, extras):
    """Bytes a partition, at most: x of two bands, filters, blocks of taps, results."""
    x_bytes, y_bytes, most_filters, raw_bytes, at_once, x_elements, row_bytes, raws = 0, 0, 0, 0, 1, 0, 0, 0
    block_bytes, y_item = 0, 4 if geometry.direct == None or extras.residual else extras.epilogue.y_itemsize
    for item in plan.items:
        band, own_bytes = item.band, item_bytes(geometry, plan, item)
        x_bytes = max(x_bytes, own_bytes)
        x_elements = max(x_elements, band.dn * band.hn * band.wn)
        row_bytes = max(row_bytes, own_bytes // max(1, band.hn))
        y_bytes = max(y_bytes, planes_at_once(geometry) * y_item * band.zn * band.pn * band.qn)
    taps = num_taps(geometry)
    for index in range(len(plan.batches)):
        batch, filters = plan.batches[index], 0
        at_once = max(at_once, len(batch) if plan.together[index] else 1)
        for job in batch:
            filters += job_bytes(geometry, job)
            per_c = job.chunks[0][1] // job.pack
            raws += len(job.chunks) * per_c * taps * geometry.itemsize
            block = max(per_c * geometry.itemsize, min(TAPS_RAW_BYTES, per_c * taps * geometry.itemsize))
            if by_input(geometry):
                block = job.kn * taps * geometry.itemsize
            block_bytes = max(block_bytes, per_c * max(taps, taps_in_hbm(geometry)) * geometry.itemsize)
            # a block in the order of x on the partitions too
            own = 2 * block if is_by_plane(geometry) and geometry.packed == 0 else block
            raw_bytes = max(raw_bytes, max(TAPS_AHEAD_BYTES, block) + own + nl.tile_size.pmax * geometry.itemsize)
        most_filters = max(most_filters, filters)
    results = 4 if extras.residual else 2
    beside = last_bytes(geometry, extras, y_bytes // 4, x_elements)
    if len(plan.batches) > 1:
        most_filters += ahead_bytes(geometry, plan.batches)
    beside += pairing_bytes(geometry, x_bytes, row_bytes) + adding_bytes(geometry, plan, row_bytes, x_bytes)
    raw_bytes = pairing_raw_bytes(geometry, 2 * raw_bytes, raws + 2 * most_filters)
    raw_bytes = adding_raw_bytes(geometry, TAPS_AHEAD_BYTES, block_bytes, raw_bytes)
    return 2 * x_bytes + most_filters + raw_bytes + results * at_once * y_bytes + beside


def item_bytes(geometry, plan, item):
    """Bytes a partition of x of an item's band."""
    elements = 0
    for one in counted(chunks_of(plan.batches[item.batch])):
        elements += one[1] * x_elements(geometry, one[0], item.band)
    return elements * geometry.itemsize


def ahead_bytes(geometry, batches):
    """Bytes a partition of the stationaries of a chunk of a batch's first job, at most."""
    most = 1
    for batch in batches:
        job = batch[0]
        most = max(most, div_ceil(job_bytes(geometry, job), len(job.chunks)))
    return most


def unrolled(geometry, plan, first, count):
    """Indices of the items of a core that the compiler sees: all but those that bodies of loops stand for."""
    found, index = [], first
    for repeat in repeats_of(geometry, plan, first, count):
        while index < repeat.first + repeat.bands:
            found.append(index)
            index += 1
        index = repeat.first + repeat.count * repeat.bands
    while index < first + count:
        found.append(index)
        index += 1
    return found


def count_taps_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most, as the compiler sees them: the body of a loop once."""
    taps = num_taps(geometry)
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = 64
        for index in unrolled(geometry, plan, mine[0], mine[1]):
            item, before = plan.items[index], plan.items[max(0, index - 1)]
            batch = plan.batches[item.batch]
            banks = item.band.zn * item.band.pn * item.band.qn // 256 + 2 + item.band.pn
            for job in batch:
                chunks = len(job.chunks)
                total += banks * (kinds_of(geometry) * taps * chunks + 3 * sums_of(geometry)) + 12
                total += adding_instructions(geometry, item.band, chunks)
                total += last_instructions(geometry, item.band, banks)
                if index == mine[0] or before.batch != item.batch:
                    total += chunks * (taps * 5 + 8) + 8
                    if is_by_plane(geometry):
                        # copies of runs of channels, or DMAs of those of each block of a packed filter
                        each = window_channels(geometry) * (1 if geometry.packed == 0 else job.kn)
                        total += chunks * each
        most = max(most, total)
    return most
