"""Work of conv2d cut into tiles, from shapes alone; the same on any number of cores, which take parts of the list."""

from dataclasses import dataclass

from ..._nki import nl
from .._tiles import BANK_COLUMNS, PARTS, div_ceil, share
from .geometry import span

#: Bytes a partition of SBUF for the filters of a batch of jobs, and for x of one band; two bands are there at once.
FILTER_BYTES = 90_112
X_BYTES = 32_768
#: Bytes a partition of a block of taps as loaded, and of blocks that are on their way together, if more than one.
RAW_BYTES = 24_576
AHEAD_BYTES = 24_576
#: Bytes a partition of results of one band and job.
Y_BYTES = 16_384


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


@dataclass
class Plan(nl.NKIObject):
    """All work: batches are lists of Jobs whose filters are in SBUF together; items in the order of the work."""

    batches: list
    items: list


def cut(count, most):
    """(first, how many) of parts of at most `most`, as even as can be."""
    parts = div_ceil(count, most)
    found = []
    for index in range(parts):
        found.append(share(count, parts, index))
    return found


def jobs_of(geometry):
    """Jobs of at most 128 output channels whose filters fit."""
    P_MAX = nl.tile_size.pmax
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    taps = geometry.rows.taps * geometry.columns.taps
    pack = 1
    if geometry.groups > 1 and per_c <= P_MAX and per_k <= P_MAX:
        pack = max(1, min(geometry.groups, min(P_MAX // per_c, P_MAX // per_k)))
    most_k = most_channels(per_c, taps, geometry.itemsize)
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
    most = most_channels(C, taps, itemsize)
    found, least = 1, K
    for count in range(1, min(K, most) + 1):
        jobs = div_ceil(K // count, most // count)
        if K % count == 0 and jobs <= least:
            found, least = count, jobs
    return found


def most_channels(C, taps, itemsize):
    """Output channels whose filters fit and that the array takes at once."""
    chunks = div_ceil(C, nl.tile_size.pmax)
    return max(1, min(nl.tile_size.pmax, FILTER_BYTES // (chunks * taps * itemsize)))


def jobs_of_packed(geometry, most):
    """(first, how many) output channels of jobs of whole blocks of a packed filter."""
    each = max(1, most // geometry.packed)
    blocks = cut(geometry.K // geometry.packed, each)
    found = []
    for index in range(len(blocks)):
        found.append((blocks[index][0] * geometry.packed, blocks[index][1] * geometry.packed))
    return found


def filter_bytes(geometry, job):
    """Bytes a partition of a job's stationaries."""
    return len(job.chunks) * geometry.rows.taps * geometry.columns.taps * job.kn * geometry.itemsize


def batches_of(geometry, jobs, by_channels):
    """Jobs in batches whose filters fit together; where there are several, as many for one half of the jobs as for the
    other, so that two cores can share them. by_channels: several even if one would do."""
    most = len(jobs)
    for index in range(len(jobs)):
        most = min(most, max(1, FILTER_BYTES // filter_bytes(geometry, jobs[index])))
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


def bands_of(geometry, num_tiles, pool, halves):
    """Bands of all images; at least `halves` bands.

    num_tiles: of x for one band. pool: (height, width) of pooling windows, which are not cut.
    """
    P, Q = geometry.rows.out, geometry.columns.out
    most = X_BYTES // (num_tiles * geometry.itemsize)
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


def make_plan(geometry, pool):
    """The Plan: output channels are shared between cores where x is the smaller tensor, else images or rows."""
    jobs = jobs_of(geometry)
    taps = geometry.rows.taps * geometry.columns.taps
    x_elements = geometry.N * geometry.C * geometry.rows.size * geometry.columns.size
    w_elements = geometry.K * (geometry.C // geometry.groups) * taps
    by_channels = len(jobs) > 1 and x_elements <= w_elements
    batches = batches_of(geometry, jobs, by_channels)
    items = []
    for index in range(len(batches)):
        halves = 1 if len(batches) > 1 else PARTS
        bands = bands_of(geometry, len(chunks_of(batches[index])), pool, halves)
        for which in range(len(bands)):
            items.append(Item(batch=index, band=bands[which]))
    return Plan(batches=batches, items=items)


def sbuf_bytes(geometry, plan, has_residual, pooled):
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
            filters += filter_bytes(geometry, batch[job])
            per_c = batch[job].chunks[0][1] // batch[job].pack
            block = max(per_c * geometry.itemsize, min(RAW_BYTES, per_c * taps * geometry.itemsize))
            raw_bytes = max(raw_bytes, max(AHEAD_BYTES, block) + block + nl.tile_size.pmax * geometry.itemsize)
        most_filters = max(most_filters, filters)
    results = 2 + (2 if has_residual else 0) + (2 if pooled else 0)
    return 2 * x_bytes + most_filters + 2 * raw_bytes + results * y_bytes
