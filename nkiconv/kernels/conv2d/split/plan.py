"""Work of products by fp16 pairs, cut into tiles from shapes alone; the same on any number of cores, which share it.

Jobs, batches of them and bands of x are those of `taps`: a pair of fp16 takes the bytes of an fp32 element.

Settings: `shard`, what the two cores share, "channels" of the output or "images" (and rows of them); `x_bytes` and
`filter_bytes`, a partition, of the pairs of one band of x and of the filters that are there together; `channels`,
output channels of a job; `warmup`, matmuls on zeros before the first filters.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import TENSOR_COLUMN_NS
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_BYTES, BANK_COLUMNS, INSTRUCTIONS_MAX, PARTS, share
from ..geometry import met
from ..taps.plan import FILTER_BYTES, X_BYTES, bands_of, batches_of, chunks_of, job_bytes, jobs_of, shares_channels
from .x import STAGE_BYTES, parts_of

SETTINGS = ("shard", "x_bytes", "filter_bytes", "channels", "warmup")
SHARDS = ("channels", "images")
#: Products that stand for one of two fp32 factors.
PRODUCTS = 3
#: Pieces of filters that are turned before the one that the array works on.
LEAD = 3
#: Bytes a partition of a block of taps as loaded, and of blocks that are on their way together, if more than one.
RAW_BYTES = 24_576
AHEAD_BYTES = 24_576
#: Matmuls of 128 columns on zeros while the first filters and rows are on their way, and become pairs.
WARM_UP = 24
WARM_UP_MAX = 256
#: Bytes a partition of zeros, biases and masks, at most.
SMALL_BYTES = 2048


@dataclass
class Item(nl.NKIObject):
    """One band for one batch of jobs. same: whether the item before works on the same elements of x."""

    batch: int
    band: object
    same: bool


@dataclass
class Plan(nl.NKIObject):
    """All work: batches are lists of Jobs whose filters are in SBUF together; items in the order of the work.

    ahead: pieces of the next batch's filters that are turned before this one is done.
    """

    batches: list
    items: list
    ahead: int
    warmup: int


def items_of(geometry, extras, batches, x_bytes):
    """Every band for every batch."""
    items = []
    for index in range(len(batches)):
        halves = 1 if len(batches) > 1 else PARTS
        chunks = chunks_of(batches[index])
        bands = bands_of(geometry, len(chunks), extras.pool, halves, x_bytes)
        for which in range(len(bands)):
            same = index > 0 and len(bands) == 1 and chunks_of(batches[index - 1]) == chunks
            items.append(Item(batch=index, band=bands[which], same=same))
    return items


def banks_of(band):
    """(p, pn, q, qn) within a band of its banks of sums."""
    qt = min(band.qn, BANK_COLUMNS)
    pt = max(1, min(band.pn, BANK_COLUMNS // (band.nn * qt)))
    found = []
    for p in range(0, band.pn, pt):
        for q in range(0, band.qn, qt):
            found.append((p, min(pt, band.pn - p), q, min(qt, band.qn - q)))
    return found


def tap_blocks(geometry, elements):
    """(first row, rows, first column, columns) of taps that are loaded together: all, some rows, or part of a row.

    elements: of a tap, a partition.
    """
    R, S = geometry.rows.taps, geometry.columns.taps
    most = max(1, RAW_BYTES // (elements * geometry.itemsize))
    height, width = min(R, max(1, most // S)), min(S, most)
    found = []
    for r0 in range(0, R, height):
        for s0 in range(0, S, width):
            found.append((r0, min(height, R - r0), s0, min(width, S - s0)))
    return found


def tap_elements(geometry, job, chunk):
    """Elements of a tap of a chunk (first, how many) as loaded, a partition."""
    if geometry.packed > 0:
        return job.kn
    return geometry.C // geometry.groups if job.pack > 1 else chunk[1]


def piece_taps(job):
    """Taps of a row of a filter that are turned together: what a bank of PSUM holds of them."""
    return max(1, BANK_BYTES // (4 * job.kn))


def make_plan(geometry, extras, config):
    """The Plan of accepted settings; the next batch's filters are turned ahead where there is room."""
    jobs = jobs_of(geometry, config, extras.strict_nonfinite)
    by_channels = len(jobs) > 1 and shares_channels(geometry, config)
    batches = batches_of(geometry, jobs, by_channels, setting(config, "filter_bytes", FILTER_BYTES))
    items = items_of(geometry, extras, batches, setting(config, "x_bytes", X_BYTES))
    plan = Plan(batches=batches, items=items, ahead=LEAD, warmup=setting(config, "warmup", WARM_UP))
    if sbuf_bytes(geometry, plan, extras) > nl.tile_size.total_available_sbuf_size:
        plan.ahead = 0
    return plan


def plan_split(geometry, extras, config, cores):
    """(Plan, "") of this on `cores` cores, or (None, why not)."""
    if geometry.precision != "fp16x3":
        return None, (
            f"precision={geometry.precision}: split takes fp16x3, of fp32 tensors; ask for that, or use another "
            f"algorithm"
        )
    reason = config_refusal(config, SETTINGS, "split")
    if reason != "":
        return None, reason
    whole = nl.tile_size.total_available_sbuf_size
    limits = (("x_bytes", 256, whole), ("filter_bytes", 256, whole), ("channels", 1, nl.tile_size.pmax))
    reason = numbers_refusal(config, limits)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", 0, WARM_UP_MAX),))
    if reason == "" and setting(config, "shard", SHARDS[0]) not in SHARDS:
        reason = f"config shard={setting(config, 'shard', SHARDS[0])}: accepted are {SHARDS}"
    if reason != "":
        return None, reason
    plan = make_plan(geometry, extras, config)
    needed = sbuf_bytes(geometry, plan, extras)
    if needed > whole:
        return None, (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: split "
            f"needs {needed} bytes a partition of SBUF for the window of one output and its filters, there are "
            f"{whole}; split C over several calls and add, or use a smaller filter"
        )
    count = count_instructions(geometry, plan, extras, cores)
    if count > INSTRUCTIONS_MAX:
        return None, (
            f"N={geometry.N}, C={geometry.C}, K={geometry.K}: split needs up to {count} instructions on a core, the "
            f"compiler takes {INSTRUCTIONS_MAX}; split N or K over several calls"
        )
    return plan, ""


def split_ns(geometry, config):
    """ns of both cores for the columns of the products, at the array's full rate: less than any timeline."""
    jobs = jobs_of(geometry, config, False)
    chunks, rows, columns = 0, 0, 0
    for index in range(len(jobs)):
        chunks += len(jobs[index].chunks)
    for r in range(geometry.rows.taps):
        rows += met(geometry.rows, r, 0, geometry.rows.out)[2]
    for s in range(geometry.columns.taps):
        columns += met(geometry.columns, s, 0, geometry.columns.out)[2]
    return PRODUCTS * geometry.N * rows * columns * chunks * TENSOR_COLUMN_NS / PARTS


def sbuf_bytes(geometry, plan, extras):
    """Bytes a partition, at most: pairs of two bands, fp32 elements that become pairs, filters, results."""
    pairs, staged, y_bytes, bank_bytes = 0, 0, 0, 0
    for index in range(len(plan.items)):
        item = plan.items[index]
        band, chunks = item.band, chunks_of(plan.batches[item.batch])
        pairs = max(pairs, len(chunks) * band.nn * band.hn * band.wn * geometry.itemsize)
        y_bytes = max(y_bytes, 4 * band.nn * band.pn * band.qn)
        bank = banks_of(band)[0]
        bank_bytes = max(bank_bytes, 4 * band.nn * bank[1] * bank[3])
        parts = parts_of(geometry, band, chunks, 0)
        for which in range(len(parts)):
            staged = max(staged, 4 * band.nn * parts[which].hn * band.wn)
    staged = max(staged, min(pairs, STAGE_BYTES))
    filters, raw = 0, 0
    for index in range(len(plan.batches)):
        own = batch_bytes(geometry, plan.batches[index])
        if plan.ahead > 0 and index + 1 < len(plan.batches):
            own += ahead_bytes(geometry, plan.batches[index + 1], plan.ahead)
        filters = max(filters, own)
        for job in range(len(plan.batches[index])):
            raw = max(raw, block_bytes(geometry, plan.batches[index][job]))
    turning = BANK_BYTES + nl.tile_size.pmax * geometry.itemsize
    bands = (2 if extras.residual else 0) + (3 if extras.pool != (1, 1) else 0)
    return 2 * pairs + staged + filters + max(AHEAD_BYTES, raw) + turning + bands * y_bytes + 4 * bank_bytes + SMALL_BYTES


def batch_bytes(geometry, batch):
    """Bytes a partition of the pairs of a batch's filters."""
    total = 0
    for index in range(len(batch)):
        total += job_bytes(geometry, batch[index])
    return total


def ahead_bytes(geometry, batch, pieces):
    """Bytes a partition of the pairs that the first pieces of a batch belong to, at most."""
    job = batch[0]
    return min(pieces, len(job.chunks)) * (job_bytes(geometry, job) // len(job.chunks))


def block_bytes(geometry, job):
    """Bytes a partition of the largest block of a job's filters as loaded."""
    most = 0
    for index in range(len(job.chunks)):
        elements = tap_elements(geometry, job, job.chunks[index])
        blocks = tap_blocks(geometry, elements)
        most = max(most, blocks[0][1] * blocks[0][3] * elements * geometry.itemsize)
    return most


def count_instructions(geometry, plan, extras, cores):
    """Instructions of the busiest core, at most."""
    taps = geometry.rows.taps * geometry.columns.taps
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = plan.warmup + 8
        for index in range(mine[0], mine[0] + mine[1]):
            item = plan.items[index]
            batch, chunks = plan.batches[item.batch], chunks_of(plan.batches[item.batch])
            if index == mine[0] or not item.same:
                total += 4 * (len(parts_of(geometry, item.band, chunks, 0)) + len(chunks))
            banks = len(banks_of(item.band))
            for job in range(len(batch)):
                total += banks * (PRODUCTS * taps * len(batch[job].chunks) + 7) + 4 + extras.pool[0] + extras.pool[1]
                if index == mine[0] or plan.items[index - 1].batch != item.batch:
                    total += filter_instructions(geometry, batch[job])
        most = max(most, total)
    return most


def filter_instructions(geometry, job):
    """Instructions for the filters of a job, at most: loads, mask, products with it, transposes, read-outs."""
    total = 4
    R, S = geometry.rows.taps, geometry.columns.taps
    for index in range(len(job.chunks)):
        blocks = tap_blocks(geometry, tap_elements(geometry, job, job.chunks[index]))
        loads = 1 if geometry.packed == 0 else job.kn // geometry.packed
        total += len(blocks) * loads + 2 * R * S
        for which in range(len(blocks)):
            total += 3 * blocks[which][1] * ((blocks[which][3] - 1) // piece_taps(job) + 1)
    return total
