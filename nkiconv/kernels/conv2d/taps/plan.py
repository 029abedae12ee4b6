"""Work of one matmul a tap, cut into tiles from shapes alone; the same on any number of cores, which share the list.

Settings: `shard`, what the two cores share, "channels" of the output or "images" (and rows of them); `x_bytes` and
`filter_bytes`, a partition, of x of one band and of the filters that are there together; `channels`, output channels of
a job; `warmup`, matmuls on zeros before the first filters; `moved`, jobs of each half of the work whose filters DMA
turns, not the array; `fold`, which channels are folded that are left over beside whole 128s, as `fold.py` says;
`order`, of the loop over a band: its "banks" of sums one after the other, or all of them for each of its "chunks" of x;
`banks` of PSUM whose results leave by one DMA.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, cut, div_ceil, share
from ..cuts import Band, chunks_of, in_batches
from ..geometry import instructions_refusal
from .cuts import TAPS_RAW_BYTES, bands_of, banks_of, waits_for_rows
from .fold import TAPS_FOLDS, chunk_window, depth_of, job_axis, rows_of, tap_groups
from .last import is_last, is_turned, last_bytes, last_instructions
from .work import array_ns, can_move, dma_ns, moved_jobs, turn_ns, warm_count

TAPS_SETTINGS = ("shard", "x_bytes", "filter_bytes", "channels", "warmup", "moved", "fold", "order", "banks")
TAPS_SHARDS = ("channels", "images")
ORDERS = ("banks", "chunks")
#: Bytes a partition of SBUF for the filters of a batch of jobs, and for x of one band; two bands are there at once.
TAPS_FILTER_BYTES = 90_112
TAPS_X_BYTES = 32_768
#: Bytes a partition of blocks of taps that are on their way together, if more than one.
TAPS_AHEAD_BYTES = 24_576
#: Matmuls of 128 columns on zeros while the first filters are on their way, where they are few: a load of 128 rows of w
#: takes some 2.1 us from its trigger to the array, a matmul 107 ns at half rate. Fewer would leave the first window of
#: the throttle without enough work.
TAPS_WARM_UP = 20
#: The same where a filter is packed: the first sums come sooner, as nothing is turned before them.
WARM_UP_PACKED = 18
TAPS_WARM_UP_MAX = 256
MOVED_MAX = 4096
#: Banks of sums of jobs that are made together, at most: the next ones' begin in others, and filters are turned in one.
TOGETHER_BANKS = 5
#: Banks whose results leave by one DMA, if there are more to come.
STORE_BANKS = 4
#: How much less folded channels must take, by prices.
WORTHWHILE = 0.98


@dataclass
class Job(nl.NKIObject):
    """Output channels k0 .. k0+kn-1, all of one group or of `pack` whole groups, and the input channels that they need.

    chunks: (first, how many, depth) of at most 128 channels each. depth and rows are 1 where `fold` folds nothing.
    """

    k0: int
    kn: int
    pack: int
    chunks: list
    rows: int


@dataclass
class Item(nl.NKIObject):
    """One band for one batch of jobs."""

    batch: int
    band: Band
    #: of a core, of two: whether it is the first and its first bank waits for rows of x; whether it is the last
    halved: bool
    last: bool


@dataclass
class Plan(nl.NKIObject):
    """All work: batches are lists of Jobs whose filters are in SBUF together; items in the order of the work."""

    batches: list
    items: list
    warmup: int
    #: by batch: the first of the jobs whose filters DMA turns
    moved: list
    #: by batch: whether the sums of all its jobs for a band are made together, chunk by chunk of x
    together: list
    #: banks whose results leave by one DMA
    banks: int
    #: chunks of the next batch's first job whose filters may be there while a batch is worked on
    ahead: int
    #: whether rows of a band that is not a core's first come in one load a chunk, not in parts: where the array waits
    #: for room, not for DMA
    whole: bool


def jobs_of(geometry, config, apart, fold):
    """Jobs of at most 128 output channels whose filters fit. apart: whether groups must not share a job; fold: one of
    TAPS_FOLDS."""
    P_MAX = nl.tile_size.pmax
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    taps = geometry.rows.taps * geometry.columns.taps
    pack = 1
    if geometry.groups > 1 and not apart and per_c <= P_MAX and per_k <= P_MAX:
        pack = max(1, min(geometry.groups, min(P_MAX // per_c, P_MAX // per_k)))
    filter_bytes = setting(config, "filter_bytes", TAPS_FILTER_BYTES)
    most_k = most_channels(per_c, taps, geometry.itemsize, filter_bytes)
    most_k = min(most_k, setting(config, "channels", P_MAX))
    while pack > 1 and pack * per_k > most_k:
        pack = pack // 2
    found = []
    for g0 in range(0, geometry.groups, pack):
        gn = min(pack, geometry.groups - g0)
        chunks = []
        if gn > 1:
            chunks.append((g0 * per_c, gn * per_c, 1))
        else:
            depth = depth_of(geometry) if fold in ("inputs", "both") else 1
            parts = cut(per_c, P_MAX) if depth == 1 else cut_whole(per_c, P_MAX)
            for index in range(len(parts)):
                last = index + 1 == len(parts)
                chunks.append((g0 * per_c + parts[index][0], parts[index][1], depth if last else 1))
        outputs = [(0, gn * per_k)]
        if gn == 1:
            outputs = cut(gn * per_k, most_k) if geometry.packed == 0 else jobs_of_packed(geometry, most_k)
        rows = rows_of(geometry) if fold in ("outputs", "both") and most_k == P_MAX else 1
        if rows > 1:
            outputs = cut_whole(per_k, P_MAX)
        for index in range(len(outputs)):
            k0, kn = outputs[index]
            own = rows if index + 1 == len(outputs) else 1
            found.append(Job(k0=g0 * per_k + k0, kn=kn, pack=gn, chunks=chunks, rows=own))
    return found


def cut_whole(count, most):
    """(first, how many) of parts of `most`, and of the rest."""
    found = []
    for first in range(0, count, most):
        found.append((first, min(most, count - first)))
    return found


def packed_channels(K, C, taps, itemsize):
    """Output channels of a block of a packed filter: the largest divisor of K whose blocks make fewest jobs."""
    most = most_channels(C, taps, itemsize, TAPS_FILTER_BYTES)
    found, least = 1, K
    for count in range(1, min(K, most) + 1):
        jobs = div_ceil(K // count, most // count)
        if K % count == 0 and jobs <= least:
            found, least = count, jobs
    return found


def most_channels(C, taps, itemsize, filter_bytes):
    """Output channels whose filters fit and that the array takes at once."""
    chunks = div_ceil(C, nl.tile_size.pmax)
    return max(1, min(nl.tile_size.pmax, filter_bytes // (chunks * taps * itemsize)))


def jobs_of_packed(geometry, most):
    """(first, how many) output channels of jobs of whole blocks of a packed filter."""
    each = max(1, most // geometry.packed)
    blocks = cut(geometry.K // geometry.packed, each)
    found = []
    for index in range(len(blocks)):
        found.append((blocks[index][0] * geometry.packed, blocks[index][1] * geometry.packed))
    return found


def job_bytes(geometry, job):
    """Bytes a partition of a job's stationaries."""
    taps = 0
    for index in range(len(job.chunks)):
        taps += job_axis(geometry, job).taps * tap_groups(geometry, job.chunks[index])
    return taps * job.rows * job.kn * geometry.itemsize


def is_depthwise(geometry, job):
    """Whether each channel has its own filters, and the job all of them; a packed filter is in its place as it is."""
    own = geometry.groups == geometry.C and geometry.packed == 0
    return own and job.kn == job.chunks[0][1] * (geometry.K // geometry.C)


def batches_of(geometry, jobs, by_channels, filter_bytes):
    """Jobs in batches whose filters fit together; where there are several, as many for one half of the jobs as for the
    other, so that two cores can share them. by_channels: several even if one would do."""
    most = len(jobs)
    for index in range(len(jobs)):
        most = min(most, max(1, filter_bytes // job_bytes(geometry, jobs[index])))
    halves = PARTS if len(jobs) > 1 and (by_channels or most < len(jobs)) else 1
    return in_batches(jobs, most, halves)


def shares_channels(geometry, jobs, config):
    """Whether the cores share output channels, and each takes all of x, or images and rows of them."""
    wanted = setting(config, "shard", "")
    if wanted != "" or len(jobs) == 1:
        return wanted == "channels" and len(jobs) > 1
    return core_ns(geometry, jobs, True) <= core_ns(geometry, jobs, False)


def own_fold(geometry, config, strict, unpooled):
    """What is best folded, one of TAPS_FOLDS. strict: whether nothing may be multiplied by zero that is not its own."""
    found, found_ns = "none", 0.0
    for index in range(len(TAPS_FOLDS)):
        fold = TAPS_FOLDS[index]
        inputs, outputs = fold in ("inputs", "both"), fold in ("outputs", "both")
        if index > 0 and strict:
            continue
        if (inputs and depth_of(geometry) == 1) or (outputs and (rows_of(geometry) == 1 or not unpooled)):
            continue
        jobs = jobs_of(geometry, config, strict, fold)
        ns = core_ns(geometry, jobs, shares_channels(geometry, jobs, config))
        if index == 0 or ns < WORTHWHILE * found_ns:
            found, found_ns = fold, ns
    return found


def core_ns(geometry, jobs, by_channels):
    """ns of the busier of two cores that share output channels, or images and rows, from the first filters on."""
    return max(work_ns(geometry, jobs, by_channels), dma_ns(geometry, jobs, by_channels))


def work_ns(geometry, jobs, by_channels):
    """ns of the array of the busier of two cores for all matmuls."""
    all_ns = array_ns(geometry, jobs)
    if by_channels:
        part_ns = array_ns(geometry, jobs[: share(len(jobs), PARTS, 0)[1]])
        return max(part_ns, all_ns - part_ns)
    banks = div_ceil(geometry.N * geometry.rows.out * geometry.columns.out, BANK_COLUMNS)
    return all_ns / min(banks, PARTS)


def make_plan(geometry, extras, config):
    """The Plan of accepted settings."""
    fold = setting(config, "fold", own_fold(geometry, config, extras.strict_nonfinite, extras.pool == (1, 1)))
    jobs = jobs_of(geometry, config, extras.strict_nonfinite, fold)
    by_channels = shares_channels(geometry, jobs, config)
    batches = batches_of(geometry, jobs, by_channels, setting(config, "filter_bytes", TAPS_FILTER_BYTES))
    x_bytes = setting(config, "x_bytes", TAPS_X_BYTES)
    unit = (max(extras.pool[0], jobs[-1].rows), extras.pool[1])
    items = []
    for index in range(len(batches)):
        halves = 1 if len(batches) > 1 else PARTS
        bands = bands_of(geometry, len(chunks_of(batches[index])), unit, halves, x_bytes)
        for which in range(len(bands)):
            items.append(Item(batch=index, band=bands[which], halved=False, last=False))
    for half in range(PARTS):
        mine = share(len(items), PARTS, half)
        tiles = len(chunks_of(batches[items[mine[0]].batch]))
        items[mine[0]].halved = waits_for_rows(geometry, tiles, items[mine[0]].band)
        items[mine[0] + mine[1] - 1].last = True
    own_warmup = max(TAPS_WARM_UP, warm_count(geometry, jobs[0])) if geometry.packed == 0 else WARM_UP_PACKED
    moved = setting(config, "moved", moved_jobs(geometry, jobs, items[0].band, by_channels))
    plan = Plan(
        batches=batches,
        items=items,
        warmup=setting(config, "warmup", own_warmup),
        moved=moved_from(batches, moved),
        together=made_together(geometry, jobs, batches, items, by_channels, setting(config, "order", "")),
        banks=setting(config, "banks", STORE_BANKS),
        ahead=1,
        whole=False,
    )
    plan.whole = waits_for_room(geometry, plan, extras) and not waits_for_dma(geometry, jobs, by_channels)
    if len(batches) > 1:
        spare = nl.tile_size.total_available_sbuf_size - sbuf_bytes(geometry, plan, extras)
        plan.ahead = min(len(jobs[0].chunks), 1 + max(0, spare) // ahead_bytes(geometry, batches))
    return plan


def waits_for_room(geometry, plan, extras):
    """Whether SBUF has no room for all of a core's rows of x, so that loads of bands wait until others are done with.

    Only the first load of a band does: parts of later bands that come after it would be ahead of it in DMA's queue,
    and the array would wait for all of them. Not so where a folded chunk comes with others: its loads wait for zeros
    beside x, and long loads of the others would be ahead of them.
    """
    chunks = plan.batches[0][0].chunks
    if len(chunks) > 1 and chunks[-1][2] > 1:
        return False
    most, largest = 0, 0
    for half in range(PARTS):
        mine = share(len(plan.items), PARTS, half)
        total = 0
        for index in range(mine[0], mine[0] + mine[1]):
            total += item_bytes(geometry, plan, plan.items[index])
            largest = max(largest, item_bytes(geometry, plan, plan.items[index]))
        most = max(most, total)
    others = sbuf_bytes(geometry, plan, extras) - 2 * largest
    return most > nl.tile_size.total_available_sbuf_size - others


def ahead_bytes(geometry, batches):
    """Bytes a partition of the stationaries of a chunk of a batch's first job, at most."""
    most = 1
    for index in range(len(batches)):
        job = batches[index][0]
        most = max(most, div_ceil(job_bytes(geometry, job), len(job.chunks)))
    return most


def waits_for_dma(geometry, jobs, by_channels):
    """Whether the array has less to do than DMA, and waits for it all the time."""
    array = work_ns(geometry, jobs, by_channels) + turn_ns(geometry, jobs, by_channels)
    return dma_ns(geometry, jobs, by_channels) > array


def made_together(geometry, jobs, batches, items, by_channels, order):
    """By batch, whether the sums of all its jobs for a band are made together, chunk by chunk of x as it comes: what
    order (one of ORDERS) says, or "": where the array waits for DMA all the time, and several jobs need few banks."""
    waits = waits_for_dma(geometry, jobs, by_channels)
    found = []
    for index in range(len(batches)):
        few = waits and len(batches[index]) > 1 and sums_together(batches[index], index, items) <= TOGETHER_BANKS
        found.append(order == "chunks" or (order == "" and few and can_together(geometry, batches[index])))
    return found


def can_together(geometry, batch):
    """Whether a batch's jobs need the same of x, several chunks of it; not where x or results are turned, which takes
    banks of its own."""
    first = batch[0]
    alike = len(first.chunks) > 1 and not is_turned(geometry) and not is_last(geometry)
    for index in range(len(batch)):
        job = batch[index]
        alike = alike and job.chunks == first.chunks and job.rows == 1
    return alike


def sums_together(batch, index, items):
    """Banks of the sums of a batch's jobs for a band, whole ones, and one for filters that are turned, at most."""
    most = 0
    for which in range(len(items)):
        item = items[which]
        if item.batch == index:
            most = max(most, len(banks_of(item.band, item.halved, False)))
    return len(batch) * most + 1


def order_refusal(geometry, plan):
    """Why the sums of a plan's batches cannot be made chunk by chunk of x, where they are; "" if they can."""
    for index in range(len(plan.batches)):
        batch = plan.batches[index]
        if plan.together[index] and not can_together(geometry, batch):
            return (
                f"config order=chunks, C={geometry.C}, K={geometry.K}: needs jobs that take the same several chunks of "
                f"128 channels, no folded outputs, and rows of x and y in HBM, not channels side by side; use 'banks'"
            )
        needed = sums_together(batch, index, plan.items) + 1  # the last bank of all may be cut in two
        if plan.together[index] and needed > PSUM_BANKS:
            return (
                f"config order=chunks: the sums of a band and filters take {needed} banks of PSUM, there are "
                f"{PSUM_BANKS}; use 'banks', or a smaller x_bytes"
            )
    return ""


def moved_from(batches, count):
    """By batch, the first of its jobs whose filters DMA turns: of the last `count` jobs of all, or of each half."""
    halves = PARTS if len(batches) > 1 else 1
    found = []
    for half in range(halves):
        mine = share(len(batches), halves, half)
        left, own = count, []
        for index in range(mine[1]):
            jobs = len(batches[mine[0] + mine[1] - 1 - index])
            own.append(max(0, jobs - left))
            left = max(0, left - jobs)
        for index in range(mine[1]):
            found.append(own[mine[1] - 1 - index])
    return found


def plan_taps(geometry, extras, config, cores):
    """(Plan, "") of this on `cores` cores, or (None, why not)."""
    reason = config_refusal(config, TAPS_SETTINGS, "taps")
    if reason != "":
        return None, reason
    whole = nl.tile_size.total_available_sbuf_size
    limits = (("x_bytes", 256, whole), ("filter_bytes", 256, whole), ("channels", 1, nl.tile_size.pmax))
    reason = numbers_refusal(config, limits)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", 0, TAPS_WARM_UP_MAX), ("moved", 0, MOVED_MAX)))
    if reason == "" and setting(config, "shard", TAPS_SHARDS[0]) not in TAPS_SHARDS:
        reason = f"config shard={setting(config, 'shard', TAPS_SHARDS[0])}: accepted are {TAPS_SHARDS}"
    if reason == "" and setting(config, "fold", TAPS_FOLDS[0]) not in TAPS_FOLDS:
        reason = f"config fold={setting(config, 'fold', TAPS_FOLDS[0])}: accepted are {TAPS_FOLDS}"
    if reason == "" and setting(config, "order", ORDERS[0]) not in ORDERS:
        reason = f"config order={setting(config, 'order', ORDERS[0])}: accepted are {ORDERS}"
    if reason == "":
        reason = numbers_refusal(config, (("banks", 1, PSUM_BANKS),))
    if reason == "":
        reason = fold_refusal(geometry, extras, config)
    if reason == "" and setting(config, "moved", 0) > 0 and not can_move(geometry):
        reason = (
            f"config moved={setting(config, 'moved', 0)}: DMA turns plain filters of 16 bits and one group only; use 0"
        )
    if reason != "":
        return None, reason
    plan = make_plan(geometry, extras, config)
    needed = sbuf_bytes(geometry, plan, extras)
    if needed > whole and setting(config, "filter_bytes", 0) == 0:
        given = () if config == None else config
        for shorter in (2, 4, 8):
            if needed > whole:
                plan = make_plan(geometry, extras, given + (("filter_bytes", TAPS_FILTER_BYTES // shorter),))
                needed = sbuf_bytes(geometry, plan, extras)
    if needed > whole:
        return None, (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: taps needs "
            f"{needed} bytes a partition of SBUF for the window of one output and its filters, there are {whole}; "
            f"split C over several calls and add, or use a smaller filter"
        )
    reason = order_refusal(geometry, plan)
    if reason == "":
        reason = instructions_refusal(geometry, "taps", count_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def fold_refusal(geometry, extras, config):
    """Why what a config folds cannot be; "" if it can."""
    fold = setting(config, "fold", TAPS_FOLDS[0])
    if fold != "none" and extras.strict_nonfinite:
        return f"config fold={fold}: multiplies by zeros, which strict_nonfinite=True forbids; use 'none'"
    if fold in ("inputs", "both") and depth_of(geometry) == 1:
        return (
            f"config fold={fold}: needs C={geometry.C} with 1 to 64 channels beside whole 128s, several columns of "
            f"taps, one group, no lhs_dilation of columns, and rows of x in HBM, not channels side by side; use "
            f"'none' or 'outputs'"
        )
    if fold in ("outputs", "both") and (rows_of(geometry) == 1 or extras.pool != (1, 1)):
        return (
            f"config fold={fold}: needs K={geometry.K} with 1 to 64 channels beside whole 128s, two rows of outputs "
            f"that share rows of x, one group, blocks of a packed filter that divide 128, no lhs_dilation of rows, no "
            f"pooling, and rows of y in HBM, not channels side by side; use 'none' or 'inputs'"
        )
    return ""


def sbuf_bytes(geometry, plan, extras):
    """Bytes a partition, at most: x of two bands, filters, blocks of taps, results."""
    x_bytes, y_bytes, most_filters, raw_bytes, at_once, x_elements = 0, 0, 0, 0, 1, 0
    for index in range(len(plan.items)):
        band = plan.items[index].band
        x_bytes = max(x_bytes, item_bytes(geometry, plan, plan.items[index]))
        x_elements = max(x_elements, band.nn * band.hn * band.wn)
        y_bytes = max(y_bytes, 4 * band.nn * band.pn * band.qn)
    taps = geometry.rows.taps * geometry.columns.taps
    for index in range(len(plan.batches)):
        batch, filters = plan.batches[index], 0
        at_once = max(at_once, len(batch) if plan.together[index] else 1)
        for job in range(len(batch)):
            filters += job_bytes(geometry, batch[job])
            per_c = batch[job].chunks[0][1] // batch[job].pack
            block = max(per_c * geometry.itemsize, min(TAPS_RAW_BYTES, per_c * taps * geometry.itemsize))
            raw_bytes = max(raw_bytes, max(TAPS_AHEAD_BYTES, block) + block + nl.tile_size.pmax * geometry.itemsize)
        most_filters = max(most_filters, filters)
    results = 2 + (2 if extras.residual else 0) + (2 if extras.pool != (1, 1) else 0)
    beside = last_bytes(geometry, extras, y_bytes // 4, x_elements)
    if len(plan.batches) > 1:
        most_filters += plan.ahead * ahead_bytes(geometry, plan.batches)
    return 2 * x_bytes + most_filters + 2 * raw_bytes + results * at_once * y_bytes + beside


def item_bytes(geometry, plan, item):
    """Bytes a partition of x of an item's band."""
    chunks, width = chunks_of(plan.batches[item.batch]), 0
    for chunk in range(len(chunks)):
        width += chunk_window(geometry, chunks[chunk], item.band)[1]
    return item.band.nn * item.band.hn * width * geometry.itemsize


def count_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    taps = geometry.rows.taps * geometry.columns.taps
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = 64
        for index in range(mine[0], mine[0] + mine[1]):
            item, before = plan.items[index], plan.items[max(0, index - 1)]
            batch = plan.batches[item.batch]
            banks = item.band.nn * item.band.pn * item.band.qn // 256 + 2 + item.band.pn
            for job in range(len(batch)):
                total += banks * (taps * len(batch[job].chunks) + 3) + 12
                total += last_instructions(geometry, item.band, banks)
                if index == mine[0] or before.batch != item.batch:
                    total += len(batch[job].chunks) * (taps * 5 + 8) + 8
        most = max(most, total)
    return most
