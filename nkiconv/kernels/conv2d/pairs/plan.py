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

Settings: `shard`, what the two cores share, "channels" of the output or "images" (and rows of them); `x_bytes` and
`filter_bytes`, a partition, of x of one band and of the filters that are there together; `channels`, output channels of
a job; `buffers` of x; `fold`, `halves` and `staged`, 0 or 1; `warmup`, matmuls on zeros before the first filters;
`banks` of PSUM whose results leave by one DMA.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, cut, div_ceil, share, whole_words
from ..cuts import in_batches
from ..geometry import instructions_refusal
from .chunks import chunks_of, num_passes, num_steps
from .extents import extent_of, stored
from .price import PAIRS_END_NS, PAIRS_START_NS, Workload, array_ns, bank_ns, loads_ns, stores_ns

PAIRS_SETTINGS = (
    "shard",
    "x_bytes",
    "filter_bytes",
    "channels",
    "buffers",
    "fold",
    "halves",
    "staged",
    "warmup",
    "banks",
)
PAIRS_SHARDS = ("channels", "images")
#: Bytes a partition of x of one band, and of the filters of a batch of jobs.
PAIRS_X_BYTES = 28_672
PAIRS_FILTER_BYTES = 40_960
#: Bytes a partition from one slot of a buffer to the next, at most: twice that is within a stride of an access pattern.
SLOT_BYTES = 16_383
#: Buffers that bands of x take in turn.
BUFFERS = 3
#: Banks of sums whose results leave by one DMA, if there are more to come.
STORE_BANKS = 4
#: Matmuls of 128 columns on zeros until the first filters are there: a load of 128 rows of w takes some 1.9 us from its
#: trigger to the array (trn2.toml, dma.static_first_packet_ns, engine_skew_load_ns, done_to_consumer_ns), a matmul 107
#: ns at half rate.
PAIRS_WARM_UP = 16
PAIRS_WARM_UP_MAX = 256
#: Share of the array's time that DMAs may take by prices before they are what counts.
PAIRS_DMA_SHARE = 0.8
#: The same for rows of x that are put in place on chip if their own DMAs would take more: the first sums wait for them.
STAGED_SHARE = 0.28


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


def image_pitch(geometry):
    """Rows from one whole image to the next in a buffer: they share zeros, outputs of both are on one grid, and each
    has rows of sums of its own."""
    rows = geometry.rows
    whole = stored(rows, 0, rows.out)
    shared = min(whole.zeros, whole.extent - whole.zeros - whole.count)
    return max(rows.out, div_ceil(whole.extent - shared, rows.stride)) * rows.stride


def images_together(geometry):
    """Images of one bank of sums, where a matmul for each would be too short."""
    P, Q = geometry.rows.out, geometry.columns.out
    pitch = image_pitch(geometry) // geometry.rows.stride
    found = 1
    if P * Q <= BANK_COLUMNS:
        least = geometry.N * bank_ns(P * Q)
        for count in range(2, min(geometry.N, BANK_COLUMNS // (pitch * Q)) + 1):
            ns = geometry.N // count * bank_ns(((count - 1) * pitch + P) * Q)
            if geometry.N % count > 0:
                ns += bank_ns(((geometry.N % count - 1) * pitch + P) * Q)
            if ns < least:
                found, least = count, ns
    return found


def jobs_of(geometry, chunks, config):
    """Jobs of at most 128 output channels, whole blocks of a packed filter, whose filters fit."""
    P_MAX = nl.tile_size.pmax
    most = min(P_MAX, max(1, setting(config, "filter_bytes", PAIRS_FILTER_BYTES) // (num_steps(geometry, chunks) + 1)))
    most = min(most, setting(config, "channels", P_MAX))
    each = max(1, geometry.packed)
    parts = cut(geometry.K // each, max(1, most // each))
    found = []
    for index in range(len(parts)):
        found.append(Job(k0=parts[index][0] * each, kn=parts[index][1] * each))
    return found


def job_bytes(geometry, chunks, job, halves):
    """Bytes a partition of a job's stationaries."""
    return (num_steps(geometry, chunks) + (1 if halves else 0)) * whole_words(job.kn, geometry.itemsize)


def batches_of(geometry, chunks, jobs, by_channels, halves, config):
    """Jobs in batches whose filters are there together; by_channels: as many for either core."""
    filter_bytes = setting(config, "filter_bytes", PAIRS_FILTER_BYTES)
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


def make_pairs(geometry, config):
    """The Pairs of accepted settings."""
    chunks = chunks_of(geometry, setting(config, "fold", 1 if folding_pays(geometry) else 0) == 1)
    passes = num_passes(geometry, chunks)
    jobs = jobs_of(geometry, chunks, config)
    together = images_together(geometry)
    P, Q = geometry.rows.out, geometry.columns.out
    parts = cut(P, max(1, BANK_COLUMNS // min(Q, BANK_COLUMNS)))
    work = Workload(passes=passes, jobs=len(jobs), together=together, parts=parts, by_channels=False)
    by_channels = len(jobs) > 1 and setting(config, "shard", best_shard(geometry, work)) == "channels"
    work.by_channels = by_channels
    last = chunks[len(chunks) - 1]
    fits_halves = num_steps(geometry, chunks) % 2 == 1 and last.depth == 1 and last.cn == nl.tile_size.pmax
    halves = fits_halves and setting(config, "halves", 1 if halves_pay(geometry, work) else 0) == 1
    staged = can_stage(geometry) and setting(config, "staged", 1 if staging_pays(geometry, work) else 0) == 1
    unit = copy_unit(geometry) if staged else 1
    slots = len(chunks) + (1 if halves else 0)
    x_bytes = setting(config, "x_bytes", PAIRS_X_BYTES)
    batches = batches_of(geometry, chunks, jobs, by_channels, halves, config)
    lead = 2 * unit + (last.depth - 1) * geometry.columns.dilation
    bands = bands_of(geometry, together, parts, slots, lead, x_bytes, len(batches) == 1)
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
        buffers=min(setting(config, "buffers", BUFFERS), max(2, len(items))),
        halves=halves,
        staged=staged,
        warmup=setting(config, "warmup", PAIRS_WARM_UP),
        banks=setting(config, "banks", STORE_BANKS),
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
    return num_passes(geometry, chunks_of(geometry, True)) < num_passes(geometry, chunks_of(geometry, False))


def best_shard(geometry, work):
    """What two cores share: output channels, so that each turns half of the filters, unless x comes too slowly then."""
    if work.jobs % 2 == 1:
        return "images"
    dma_ns = min(loads_ns(geometry, 1, False), loads_ns(geometry, 1, can_stage(geometry)))
    dma_ns += stores_ns(geometry)
    return "channels" if dma_ns <= PAIRS_DMA_SHARE * array_ns(geometry, work, False) else "images"


def halves_pay(geometry, work):
    """Whether the longer one of array and DMA takes less, though x comes twice."""
    cores = 1 if work.by_channels else PARTS
    once, twice = loads_ns(geometry, 1, False) / cores, loads_ns(geometry, 2, False) / cores
    stores = stores_ns(geometry)
    slow = max(array_ns(geometry, work, False), (once + stores) / PAIRS_DMA_SHARE)
    return max(array_ns(geometry, work, True), (twice + stores) / PAIRS_DMA_SHARE) < slow


def staging_pays(geometry, work):
    """Whether rows of x are so short that DMAs of them would keep the array waiting."""
    cores = 1 if work.by_channels else PARTS
    slow, fast = loads_ns(geometry, 1, False) / cores, loads_ns(geometry, 1, can_stage(geometry)) / cores
    return 2 * fast < slow and slow + stores_ns(geometry) > STAGED_SHARE * array_ns(geometry, work, False)


def plan_pairs(geometry, extras, config, cores):
    """(Pairs, "") of this on `cores` cores, or (None, why not)."""
    reason = config_refusal(config, PAIRS_SETTINGS, "pairs")
    whole = nl.tile_size.total_available_sbuf_size
    if reason == "":
        limits = (("x_bytes", 256, whole), ("filter_bytes", 256, whole), ("channels", 1, nl.tile_size.pmax))
        reason = numbers_refusal(config, limits)
    if reason == "":
        limits = (
            ("buffers", 2, 8),
            ("fold", 0, 1),
            ("halves", 0, 1),
            ("staged", 0, 1),
            ("warmup", 0, PAIRS_WARM_UP_MAX),
        )
        reason = numbers_refusal(config, limits)
    if reason == "":
        reason = numbers_refusal(config, (("banks", 1, PSUM_BANKS),))
    if reason == "" and setting(config, "shard", PAIRS_SHARDS[0]) not in PAIRS_SHARDS:
        reason = f"config shard={setting(config, 'shard', PAIRS_SHARDS[0])}: accepted are {PAIRS_SHARDS}"
    if reason == "":
        reason = pairs_refusal(geometry, extras)
    if reason != "":
        return None, reason
    plan = make_pairs(geometry, config)
    needed = sbuf_bytes(geometry, plan, extras.residual)
    if needed > whole or plan.buffer.images * plan.buffer.rows * plan.buffer.columns > SLOT_BYTES:
        return None, (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: pairs "
            f"needs {needed} bytes a partition of SBUF for x of one row of outputs and the filters, there are {whole}, "
            f"and at most {SLOT_BYTES} of one chunk of x; use taps"
        )
    count = count_instructions(geometry, plan, cores)
    reason = instructions_refusal(geometry, "pairs", count)
    return (plan, "") if reason == "" else (None, reason)


def pairs_refusal(geometry, extras):
    """What pairs does not do, whatever its settings; "" if nothing."""
    rows, columns = geometry.rows, geometry.columns
    if geometry.itemsize != 1:
        return "img_ref.dtype, filter_ref.dtype: pairs takes float8_e4m3 and float8_e5m2; use taps"
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: pairs takes 1; use taps"
    if rows.lhs_dilation > 1 or columns.lhs_dilation > 1:
        return f"lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: pairs takes (1, 1); use taps"
    if extras.pool != (1, 1):
        return f"pool={extras.pool}: pairs takes (1, 1); use taps, or pool the result"
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: pairs multiplies stored zeros; use taps"
    return ""


def pairs_ns(geometry, plan):
    """ns of the busier of two cores: for the matmuls and the filters that it turns, or for DMAs if they take longer."""
    jobs = 0
    for index in range(len(plan.batches)):
        jobs += len(plan.batches[index])
    passes = num_passes(geometry, plan.chunks)
    work = Workload(passes=passes, jobs=jobs, together=plan.together, parts=plan.parts, by_channels=False)
    sharers = PARTS if len(plan.batches) == 1 else 1
    loads = loads_ns(geometry, 2 if plan.halves else 1, plan.staged) / sharers
    array = array_ns(geometry, work, plan.halves)
    if geometry.packed == 0:
        array += jobs * sharers / PARTS * num_steps(geometry, plan.chunks) * bank_ns(nl.tile_size.pmax)
    return PAIRS_START_NS + max(array, loads + stores_ns(geometry)) + PAIRS_END_NS


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
        total = 96 + plan.buffers * 8 + PAIRS_WARM_UP_MAX
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
