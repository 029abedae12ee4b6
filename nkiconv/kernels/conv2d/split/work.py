"""Work of products by fp16 pairs, cut into tiles from shapes alone; the same on any number of cores, which share it."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_BYTES, PARTS, div_ceil, share
from ..cuts import Band, chunks_of, tap_blocks
from .cuts import (
    SPLIT_RAW_BYTES,
    bands_of,
    banks_of,
    batches_of,
    chunk_bytes,
    job_bytes,
    jobs_of,
    piece_taps,
    tap_elements,
)
from .x import STAGE_BYTES, part_rows

#: Products that stand for one of two fp32 factors.
PRODUCTS = 3
#: Pieces of filters that are transposed before the one that the array works on.
LEAD = 3
#: Bytes a partition of blocks of taps that are on their way together, if more than one.
SPLIT_AHEAD_BYTES = 24_576
#: Bytes a partition of zeros, biases and masks, at most.
SMALL_BYTES = 2048


@dataclass
class Item(nl.NKIObject):
    """One band for one batch of jobs. same: whether the item before works on the same elements of x."""

    batch: int
    band: Band
    same: bool


@dataclass
class Plan(nl.NKIObject):
    """All work: batches are lists of Jobs whose filters are in SBUF together; items in the order of the work.

    ahead: pieces of the next batch's filters that are transposed before this one is done.
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


def make_plan(geometry, extras, settings):
    """The Plan of accepted settings."""
    batches = batches_of(geometry, jobs_of(geometry, settings, extras.strict_nonfinite), settings)
    items = items_of(geometry, extras, batches, settings.x_bytes)
    return Plan(batches=batches, items=items, ahead=settings.ahead, warmup=settings.warmup)


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
        staged = max(staged, 4 * band.nn * min(band.hn, part_rows(band)) * band.wn)
    staged = max(staged, min(pairs, STAGE_BYTES))
    filters, raw = 0, 0
    for index in range(len(plan.batches)):
        own = batch_bytes(geometry, plan.batches[index])
        if plan.ahead > 0 and index + 1 < len(plan.batches):
            own += ahead_bytes(geometry, plan.batches[index + 1], plan.ahead)
        filters = max(filters, own)
        for job in range(len(plan.batches[index])):
            raw = max(raw, block_bytes(geometry, plan.batches[index][job]))
    turning = (LEAD + 2) * BANK_BYTES + nl.tile_size.pmax * geometry.itemsize
    bands = (2 if extras.residual else 0) + (3 if extras.pool != (1, 1) else 0)
    results = bands * y_bytes + 4 * bank_bytes
    return 2 * pairs + staged + filters + max(SPLIT_AHEAD_BYTES, raw) + turning + results + SMALL_BYTES


def batch_bytes(geometry, batch):
    """Bytes a partition of the pairs of a batch's filters."""
    total = 0
    for index in range(len(batch)):
        total += job_bytes(geometry, batch[index])
    return total


def ahead_bytes(geometry, batch, pieces):
    """Bytes a partition of the pairs that the first pieces of a batch belong to, at most."""
    return min(pieces, len(batch[0].chunks)) * chunk_bytes(geometry, batch[0])


def block_bytes(geometry, job):
    """Bytes a partition of the largest block of a job's filters as loaded."""
    most = 0
    for index in range(len(job.chunks)):
        elements = tap_elements(geometry, job, job.chunks[index])
        blocks = tap_blocks(geometry, elements, SPLIT_RAW_BYTES)
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
            item, before = plan.items[index], plan.items[max(0, index - 1)]
            batch, chunks = plan.batches[item.batch], chunks_of(plan.batches[item.batch])
            if index == mine[0] or not item.same:
                total += 4 * len(chunks) * (div_ceil(item.band.hn, part_rows(item.band)) + 1)
            banks = len(banks_of(item.band))
            for job in range(len(batch)):
                total += banks * (PRODUCTS * taps * len(batch[job].chunks) + 7) + 4 + extras.pool[0] + extras.pool[1]
                if index == mine[0] or before.batch != item.batch:
                    total += filter_instructions(geometry, batch[job])
        most = max(most, total)
    return most


def filter_instructions(geometry, job):
    """Instructions for the filters of a job, at most: loads, mask, products with it, transposes, read-outs."""
    total = 4
    R, S = geometry.rows.taps, geometry.columns.taps
    for index in range(len(job.chunks)):
        blocks = tap_blocks(geometry, tap_elements(geometry, job, job.chunks[index]), SPLIT_RAW_BYTES)
        loads = 1 if geometry.packed == 0 else job.kn // geometry.packed
        total += len(blocks) * loads + 2 * R * S
        for which in range(len(blocks)):
            total += 3 * blocks[which][1] * ((blocks[which][3] - 1) // piece_taps(job) + 1)
    return total
