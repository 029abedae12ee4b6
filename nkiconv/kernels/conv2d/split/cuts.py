"""How products by fp16 pairs are cut: jobs of output channels, batches of them, bands of outputs, banks, taps.

A pair of fp16 takes the bytes of the fp32 element that it stands for, geometry.itemsize.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_BYTES, BANK_COLUMNS, PARTS, cut, div_ceil, share
from ..cuts import Band, axis_elements, bank_unit, in_batches
from ..geometry import span

#: Bytes a partition of a block of taps as loaded, of several taps.
SPLIT_RAW_BYTES = 24_576
#: Bytes a partition of results of one band and job.
SPLIT_Y_BYTES = 16_384


@dataclass
class Job(nl.NKIObject):
    """Output channels k0 .. k0+kn-1, all of one group or of `pack` whole groups, and the input channels that they need.

    chunks: (first, how many) of at most 128 channels each.
    """

    k0: int
    kn: int
    pack: int
    chunks: list


def jobs_of(geometry, settings, apart):
    """Jobs of at most 128 output channels whose filters fit. apart: whether groups must not share a job."""
    P_MAX = nl.tile_size.pmax
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    tap_bytes = geometry.rows.taps * geometry.columns.taps * geometry.itemsize
    fitting = settings.filter_bytes // (div_ceil(per_c, P_MAX) * tap_bytes)
    most = max(1, min(fitting, settings.channels))
    pack = 1
    if geometry.groups > 1 and not apart and per_c <= P_MAX and per_k <= most:
        pack = min(geometry.groups, min(P_MAX // per_c, most // per_k))
    found = []
    for g0 in range(0, geometry.groups, pack):
        count = min(pack, geometry.groups - g0)
        if count > 1:
            found.append(Job(k0=g0 * per_k, kn=count * per_k, pack=count, chunks=[(g0 * per_c, count * per_c)]))
        else:
            parts, chunks = cut(per_c, P_MAX), []
            for index in range(len(parts)):
                chunks.append((g0 * per_c + parts[index][0], parts[index][1]))
            outputs = outputs_of(geometry, per_k, most)
            for index in range(len(outputs)):
                found.append(Job(k0=g0 * per_k + outputs[index][0], kn=outputs[index][1], pack=1, chunks=chunks))
    return found


def outputs_of(geometry, count, most):
    """(first, how many) output channels of a group's jobs; whole blocks of a packed filter."""
    unit = max(1, geometry.packed)
    parts = cut(count // unit, max(1, most // unit))
    found = []
    for index in range(len(parts)):
        found.append((parts[index][0] * unit, parts[index][1] * unit))
    return found


def chunk_bytes(geometry, job):
    """Bytes a partition of the pairs of a job's filters, of one chunk."""
    return geometry.rows.taps * geometry.columns.taps * job.kn * geometry.itemsize


def job_bytes(geometry, job):
    """Bytes a partition of the pairs of a job's filters."""
    return len(job.chunks) * chunk_bytes(geometry, job)


def batches_of(geometry, jobs, settings):
    """Jobs in batches whose filters fit together; where there are several, as many for one half of the jobs as for the
    other, so that two cores can share them."""
    most = len(jobs)
    for index in range(len(jobs)):
        most = min(most, max(1, settings.filter_bytes // job_bytes(geometry, jobs[index])))
    by_channels = len(jobs) > 1 and settings.shard == "channels"
    halves = PARTS if by_channels or most < len(jobs) else 1
    return in_batches(jobs, most, halves)


def fits(geometry, pn, qn, most):
    """Whether outputs pn x qn of an image need at most so many elements, and their results have their place."""
    elements = axis_elements(geometry.rows, pn) * axis_elements(geometry.columns, qn)
    return elements <= most and 4 * pn * qn <= SPLIT_Y_BYTES


def bands_of(geometry, num_chunks, pool, halves, x_bytes):
    """Bands of all images, in whole windows of pooling: several images, or one or some rows of it, or part of a row.

    halves: parts that as many bands should go into.
    """
    P, Q = geometry.rows.out, geometry.columns.out
    most = x_bytes // (num_chunks * geometry.itemsize)
    pn, qn = pool[0], Q
    while qn > pool[1] and not fits(geometry, pn, qn, most):
        qn = div_ceil(div_ceil(qn, 2), pool[1]) * pool[1]
    while pn < P and fits(geometry, pn + pool[0], qn, most):
        pn += pool[0]
    images = 1
    if pn >= P and qn >= Q:
        elements = axis_elements(geometry.rows, P) * axis_elements(geometry.columns, Q)
        images = max(1, min(min(geometry.N, BANK_COLUMNS // (P * Q)), most // elements))
    parts = div_ceil(geometry.N, images)
    if parts % halves > 0 and parts < geometry.N:
        parts += 1
    columns = cut_units(Q, pool[1], qn, halves if parts % halves > 0 and P <= pool[0] else 1)
    unit = bank_unit(div_ceil(geometry.N, parts), min(pn, P), qn, pool)
    rows = cut_units(P, unit, pn, halves if parts * len(columns) % halves > 0 else 1)
    on_rows, on_columns = [], []
    for p in range(len(rows)):
        on_rows.append(span(geometry.rows, rows[p][0], rows[p][1]))
    for q in range(len(columns)):
        on_columns.append(span(geometry.columns, columns[q][0], columns[q][1]))
    found = []
    for index in range(parts):
        n0, nn = share(geometry.N, parts, index)
        for p in range(len(rows)):
            p0, pn = rows[p]
            h0, hn = on_rows[p]
            for q in range(len(columns)):
                q0, qn = columns[q]
                w0, wn = on_columns[q]
                found.append(Band(n0=n0, nn=nn, p0=p0, pn=pn, q0=q0, qn=qn, h0=h0, hn=hn, w0=w0, wn=wn))
    return found


def cut_units(count, unit, most, halves):
    """(first, how many) of parts of at most `most`, in whole units, as even as can be; the halves of all first."""
    units = div_ceil(count, unit)
    found = []
    for half in range(min(halves, units)):
        mine = share(units, min(halves, units), half)
        inner = cut(mine[1], max(1, most // unit))
        for index in range(len(inner)):
            first = (mine[0] + inner[index][0]) * unit
            found.append((first, min(count, first + inner[index][1] * unit) - first))
    return found


def banks_of(band):
    """(p, pn, q, qn) within a band of its banks of sums."""
    qt = min(band.qn, BANK_COLUMNS)
    pt = max(1, min(band.pn, BANK_COLUMNS // (band.nn * qt)))
    found = []
    for p in range(0, band.pn, pt):
        for q in range(0, band.qn, qt):
            found.append((p, min(pt, band.pn - p), q, min(qt, band.qn - q)))
    return found


def tap_elements(geometry, job, chunk):
    """Elements of a tap of a chunk (first, how many) as loaded, a partition."""
    if geometry.packed > 0:
        return job.kn
    return geometry.C // geometry.groups if job.pack > 1 else chunk[1]


def piece_taps(job):
    """Taps of a row of a filter that are turned together: what a bank of PSUM holds of them."""
    return max(1, BANK_BYTES // (4 * job.kn))
