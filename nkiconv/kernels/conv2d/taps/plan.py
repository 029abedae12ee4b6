"""Work of one matmul a tap, cut into tiles from shapes alone; the same on any number of cores, which share the list.

Settings: `shard`, what the two cores share, "channels" of the output or "images" (and rows of them); `x_bytes` and
`filter_bytes`, a partition, of x of one band and of the filters that are there together; `channels`, output channels of
a job; `warmup`, matmuls on zeros before the first filters.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import MATMUL_COLUMNS_MIN, MATMUL_NS, TENSOR_COLUMN_FP32_NS, TENSOR_COLUMN_NS
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, PARTS, cut, div_ceil, share
from ..geometry import span

SETTINGS = ("shard", "x_bytes", "filter_bytes", "channels", "warmup")
SHARDS = ("channels", "images")
#: Bytes a partition of SBUF for the filters of a batch of jobs, and for x of one band; two bands are there at once.
FILTER_BYTES = 90_112
X_BYTES = 32_768
#: Bytes a partition of a block of taps as loaded, and of blocks that are on their way together, if more than one.
RAW_BYTES = 24_576
AHEAD_BYTES = 24_576
#: Bytes a partition of the first load of a band's rows.
PART_BYTES = 4096
#: Bytes a partition of results of one band and job.
Y_BYTES = 16_384
#: Matmuls of 128 columns on zeros while the first filters are on their way: a load of 128 rows of w takes some 2.1 us
#: from its trigger to the array (trn2.toml, dma.static_first_packet_ns, engine_skew_load_ns, done_to_consumer_ns), a
#: matmul 107 ns at half rate.
WARM_UP = 20
#: The same where a filter is packed: what waits for the first stationaries and rows needs no transposes before.
WARM_UP_PACKED = 28
WARM_UP_MAX = 256


@dataclass
class Job(nl.NKIObject):
    """Output channels k0 .. k0+kn-1, all of one group or of `pack` whole groups, and the input channels that they need.

    chunks: (first, how many) of at most 128 channels each.
    """

    k0: int
    kn: int
    pack: int
    chunks: list


@dataclass
class Band(nl.NKIObject):
    """Outputs p0 .. p0+pn-1, q0 .. q0+qn-1 of images n0 .. n0+nn-1, and the elements of x that they need."""

    n0: int
    nn: int
    p0: int
    pn: int
    q0: int
    qn: int
    h0: int
    hn: int
    w0: int
    wn: int


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


def jobs_of(geometry, config, apart):
    """Jobs of at most 128 output channels whose filters fit. apart: whether groups must not share a job."""
    P_MAX = nl.tile_size.pmax
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    taps = geometry.rows.taps * geometry.columns.taps
    pack = 1
    if geometry.groups > 1 and not apart and per_c <= P_MAX and per_k <= P_MAX:
        pack = max(1, min(geometry.groups, min(P_MAX // per_c, P_MAX // per_k)))
    filter_bytes = setting(config, "filter_bytes", FILTER_BYTES)
    most_k = most_channels(per_c, taps, geometry.itemsize, filter_bytes)
    most_k = min(most_k, setting(config, "channels", P_MAX))
    while pack > 1 and pack * per_k > most_k:
        pack = pack // 2
    found = []
    for g0 in range(0, geometry.groups, pack):
        gn = min(pack, geometry.groups - g0)
        chunks = []
        if gn > 1:
            chunks.append((g0 * per_c, gn * per_c))
        else:
            parts = cut(per_c, P_MAX)
            for index in range(len(parts)):
                chunks.append((g0 * per_c + parts[index][0], parts[index][1]))
        outputs = [(0, gn * per_k)]
        if gn == 1:
            outputs = cut(gn * per_k, most_k) if geometry.packed == 0 else jobs_of_packed(geometry, most_k)
        for index in range(len(outputs)):
            found.append(Job(k0=g0 * per_k + outputs[index][0], kn=outputs[index][1], pack=gn, chunks=chunks))
    return found


def packed_channels(K, C, taps, itemsize):
    """Output channels of a block of a packed filter: the largest divisor of K whose blocks make fewest jobs."""
    most = most_channels(C, taps, itemsize, FILTER_BYTES)
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
    return len(job.chunks) * geometry.rows.taps * geometry.columns.taps * job.kn * geometry.itemsize


def is_depthwise(geometry, job):
    """Whether each channel has its own filters, and the job all of them."""
    return geometry.groups == geometry.C and job.kn == job.chunks[0][1] * (geometry.K // geometry.C)


def tap_blocks(geometry, channels):
    """(first row, rows, first column, columns) of taps that are loaded together: all, some rows, or part of a row."""
    R, S = geometry.rows.taps, geometry.columns.taps
    most = max(1, RAW_BYTES // (channels * geometry.itemsize))
    height, width = min(R, max(1, most // S)), min(S, most)
    found = []
    for r0 in range(0, R, height):
        for s0 in range(0, S, width):
            found.append((r0, min(height, R - r0), s0, min(width, S - s0)))
    return found


def tap_order(taps):
    """Rows of taps in the order of the work: the middle one, which meets most outputs, first."""
    middle = taps // 2
    found = [middle]
    for tap in range(taps):
        if tap != middle:
            found.append(tap)
    return found


def batches_of(geometry, jobs, by_channels, filter_bytes):
    """Jobs in batches whose filters fit together; where there are several, as many for one half of the jobs as for the
    other, so that two cores can share them. by_channels: several even if one would do."""
    most = len(jobs)
    for index in range(len(jobs)):
        most = min(most, max(1, filter_bytes // job_bytes(geometry, jobs[index])))
    halves = PARTS if len(jobs) > 1 and (by_channels or most < len(jobs)) else 1
    found = []
    count = div_ceil(div_ceil(len(jobs), halves), most)
    for half in range(halves):
        mine = share(len(jobs), halves, half)
        for index in range(min(count, mine[1])):
            part = share(mine[1], min(count, mine[1]), index)
            batch = []
            for which in range(part[1]):
                batch.append(jobs[mine[0] + part[0] + which])
            found.append(batch)
    return found


def chunks_of(batch):
    """Chunks that a batch's jobs need, each once, in order."""
    found = []
    for index in range(len(batch)):
        for part in range(len(batch[index].chunks)):
            if len(found) == 0 or batch[index].chunks[part] not in found:
                found.append(batch[index].chunks[part])
    return found


def band_elements(geometry, pn, qn):
    """Most elements of one image that outputs pn x qn need."""
    rows, columns = geometry.rows, geometry.columns
    height = min(rows.size, ((pn - 1) * rows.stride + (rows.taps - 1) * rows.dilation) // rows.lhs_dilation + 1)
    width = min(
        columns.size, ((qn - 1) * columns.stride + (columns.taps - 1) * columns.dilation) // columns.lhs_dilation + 1
    )
    return height * width


def bands_of(geometry, num_tiles, pool, halves, x_bytes):
    """Bands of all images; at least `halves` bands.

    num_tiles: of x for one band. pool: (height, width) of pooling windows, which are not cut.
    """
    P, Q = geometry.rows.out, geometry.columns.out
    most = x_bytes // (num_tiles * geometry.itemsize)
    most_y = Y_BYTES // 4
    pn, qn = pool[0], Q
    while qn > pool[1] and (band_elements(geometry, pn, qn) > most or pn * qn > most_y):
        qn = div_ceil(div_ceil(qn, 2), pool[1]) * pool[1]
    while pn < P and band_elements(geometry, pn + pool[0], qn) <= most and (pn + pool[0]) * qn <= most_y:
        pn += pool[0]
    images = 1
    if pn >= P and qn >= Q:
        images = max(1, min(geometry.N, BANK_COLUMNS // (P * Q)))
        images = max(1, min(images, most // max(1, band_elements(geometry, P, Q))))
    num_parts = div_ceil(geometry.N, images)
    if halves > 1 and num_parts % 2 == 1 and num_parts < geometry.N:
        num_parts += 1
    in_halves = halves > 1 and (num_parts * div_ceil(Q, qn)) % 2 == 1
    rows_of_bands = cut_rows(P, pn, bank_unit(div_ceil(geometry.N, num_parts), pn, qn, pool), in_halves)
    found = []
    for index in range(num_parts):
        part = share(geometry.N, num_parts, index)
        for which in range(len(rows_of_bands)):
            p0, count = rows_of_bands[which]
            for q0 in range(0, Q, qn):
                rows = span(geometry.rows, p0, count)
                columns = span(geometry.columns, q0, min(qn, Q - q0))
                found.append(
                    Band(
                        n0=part[0],
                        nn=part[1],
                        p0=p0,
                        pn=count,
                        q0=q0,
                        qn=min(qn, Q - q0),
                        h0=rows[0],
                        hn=rows[1],
                        w0=columns[0],
                        wn=columns[1],
                    )
                )
    return found


def bank_unit(images, pn, qn, pool):
    """Rows of outputs that fill a bank of PSUM, and whole windows of pooling."""
    rows = min(pn, max(1, BANK_COLUMNS // (images * min(qn, BANK_COLUMNS))))
    return max(pool[0], rows // pool[0] * pool[0])


def bank_rows(band):
    """Rows of outputs that one bank of sums holds."""
    return max(1, min(band.pn, BANK_COLUMNS // (band.nn * min(band.qn, BANK_COLUMNS))))


def banks_of(band, last):
    """(p, pn, q, qn) within a band of banks of sums; last: the last one is small, as nothing hides what follows it."""
    qt, pt = min(band.qn, BANK_COLUMNS), bank_rows(band)
    found = []
    for p in range(0, band.pn, pt):
        for q in range(0, band.qn, qt):
            found.append((p, min(pt, band.pn - p), q, min(qt, band.qn - q)))
    p, pn, q, qn = found[-1]
    rows = div_ceil(MATMUL_COLUMNS_MIN, qn)
    if last and band.nn == 1 and (pn - rows) * qn >= MATMUL_COLUMNS_MIN:
        found[-1] = (p, pn - rows, q, qn)
        found.append((p + pn - rows, rows, q, qn))
    elif last and band.nn * pn == 1 and qn >= 2 * MATMUL_COLUMNS_MIN:
        found[-1] = (p, pn, q, qn - MATMUL_COLUMNS_MIN)
        found.append((p, pn, q + qn - MATMUL_COLUMNS_MIN, MATMUL_COLUMNS_MIN))
    return found


def row_parts(geometry, band, start):
    """(first row, rows) of the loads of a band's rows, none where it meets none; start: rows of the first bank first,
    then in growing parts, as nothing goes on meanwhile."""
    if band.hn == 0 or band.wn == 0:
        return []
    rows = geometry.rows
    row_bytes = band.nn * band.wn * geometry.itemsize
    found, first, banks = [], 0, 1 if start else max(1, PART_BYTES // (bank_rows(band) * rows.stride * row_bytes))
    outputs = 0
    while first < band.hn:
        outputs = min(band.pn, outputs + banks * bank_rows(band))
        end = band.hn
        if outputs < band.pn:
            needed = span(rows, band.p0, outputs)
            end = min(band.hn, max(first + 1, needed[0] + needed[1] - band.h0))
        found.append((first, end - first))
        first, banks = end, 2 * banks
    return found


def cut_rows(P, most, unit, in_halves):
    """(first, how many) of bands of at most `most` rows, in whole units, as even as can be; in_halves: the two cores'
    halves first."""
    units = div_ceil(P, unit)
    most_units = max(1, most // unit)
    parts = []
    for half in range(2 if in_halves and units > 1 else 1):
        mine = share(units, 2, half) if in_halves and units > 1 else (0, units)
        inner = cut(mine[1], most_units)
        for index in range(len(inner)):
            first = (mine[0] + inner[index][0]) * unit
            parts.append((first, min(P, first + inner[index][1] * unit) - first))
    return parts


def shares_channels(geometry, config):
    """Whether the cores share output channels: where x is the smaller tensor, unless a config says."""
    taps = geometry.rows.taps * geometry.columns.taps
    x_elements = geometry.N * geometry.C * geometry.rows.size * geometry.columns.size
    w_elements = geometry.K * (geometry.C // geometry.groups) * taps
    return setting(config, "shard", "channels" if x_elements <= w_elements else "images") == "channels"


def make_plan(geometry, extras, config):
    """The Plan of accepted settings."""
    jobs = jobs_of(geometry, config, extras.strict_nonfinite)
    by_channels = len(jobs) > 1 and shares_channels(geometry, config)
    batches = batches_of(geometry, jobs, by_channels, setting(config, "filter_bytes", FILTER_BYTES))
    x_bytes = setting(config, "x_bytes", X_BYTES)
    items = []
    for index in range(len(batches)):
        halves = 1 if len(batches) > 1 else PARTS
        bands = bands_of(geometry, len(chunks_of(batches[index])), extras.pool, halves, x_bytes)
        for which in range(len(bands)):
            items.append(Item(batch=index, band=bands[which], last=False))
    for half in range(PARTS):
        mine = share(len(items), PARTS, half)
        items[mine[0] + mine[1] - 1].last = True
    own_warmup = WARM_UP if geometry.packed == 0 else WARM_UP_PACKED
    return Plan(batches=batches, items=items, warmup=setting(config, "warmup", own_warmup))


def plan_taps(geometry, extras, config, cores):
    """(Plan, "") of this on `cores` cores, or (None, why not)."""
    reason = config_refusal(config, SETTINGS, "taps")
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
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: taps needs "
            f"{needed} bytes a partition of SBUF for the window of one output and its filters, there are {whole}; "
            f"split C over several calls and add, or use a smaller filter"
        )
    count = count_instructions(geometry, plan, cores)
    if count > INSTRUCTIONS_MAX:
        return None, (
            f"N={geometry.N}, C={geometry.C}, K={geometry.K}: taps needs up to {count} instructions on a core, the "
            f"compiler takes {INSTRUCTIONS_MAX}; split N or K over several calls"
        )
    return plan, ""


def taps_ns(geometry):
    """ns of both cores for the matmuls, at the array's full rate."""
    jobs = jobs_of(geometry, None, False)
    taps = geometry.rows.taps * geometry.columns.taps
    column_ns = (TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS) + MATMUL_NS / BANK_COLUMNS
    columns = geometry.N * geometry.rows.out * geometry.columns.out
    matmuls = 0
    for index in range(len(jobs)):
        matmuls += taps * len(jobs[index].chunks)
    return columns * matmuls * column_ns / PARTS


def sbuf_bytes(geometry, plan, extras):
    """Bytes a partition, at most: x of two bands, filters, blocks of taps, results."""
    x_bytes, y_bytes, most_filters, raw_bytes = 0, 0, 0, 0
    for index in range(len(plan.items)):
        band = plan.items[index].band
        tiles = len(chunks_of(plan.batches[plan.items[index].batch]))
        x_bytes = max(x_bytes, tiles * band.nn * band.hn * band.wn * geometry.itemsize)
        y_bytes = max(y_bytes, 4 * band.nn * band.pn * band.qn)
    taps = geometry.rows.taps * geometry.columns.taps
    for index in range(len(plan.batches)):
        batch, filters = plan.batches[index], 0
        for job in range(len(batch)):
            filters += job_bytes(geometry, batch[job])
            per_c = batch[job].chunks[0][1] // batch[job].pack
            block = max(per_c * geometry.itemsize, min(RAW_BYTES, per_c * taps * geometry.itemsize))
            raw_bytes = max(raw_bytes, max(AHEAD_BYTES, block) + block + nl.tile_size.pmax * geometry.itemsize)
        most_filters = max(most_filters, filters)
    results = 2 + (2 if extras.residual else 0) + (2 if extras.pool != (1, 1) else 0)
    return 2 * x_bytes + most_filters + 2 * raw_bytes + results * y_bytes


def count_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most."""
    taps = geometry.rows.taps * geometry.columns.taps
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = 64
        for index in range(mine[0], mine[0] + mine[1]):
            item = plan.items[index]
            batch = plan.batches[item.batch]
            banks = item.band.nn * item.band.pn * item.band.qn // 256 + 2 + item.band.pn
            for job in range(len(batch)):
                total += banks * (taps * len(batch[job].chunks) + 3) + 12
                if index == mine[0] or plan.items[index - 1].batch != item.batch:
                    total += len(batch[job].chunks) * taps * 4 + 8
        most = max(most, total)
    return most
