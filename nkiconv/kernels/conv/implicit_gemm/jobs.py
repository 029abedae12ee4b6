"""Jobs of one matmul a tap: output channels whose filters are in SBUF together, and batches of jobs."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import in_batches
from ....schedules.geometry import num_taps
from ....schedules.tiles import PARTS, cut, cut_at, div_ceil, share, whole_words
from .fold import depth_of, job_axis, left_over, rows_of, tap_groups
from .pairs_fp8 import ALONE, FP8_PRODUCTS, paired_chunks, slots_of

#: Bytes a partition of SBUF for the filters of a batch of jobs.
TAPS_FILTER_BYTES = 90_112


@dataclass
class Job(nl.NKIObject):
    """Output channels k0 .. k0+kn-1, all of one group or of `pack` whole groups, and the input channels that they need.

    chunks: (first, how many, depth, how they pair, again) of at most 128 channels each, or two of them: pairs_fp8.py.
    depth and rows are 1 where `fold` folds nothing.
    """

    k0: int
    kn: int
    pack: int
    chunks: list
    rows: int


def jobs_of(geometry, filter_bytes, channels, apart, fold, product):
    """Jobs of at most `channels` output channels whose filters fit. apart: whether groups must not share a job; fold,
    product: as in ImplicitGemmSettings."""
    P_MAX = nl.tile_size.pmax
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    taps = num_taps(geometry)
    pack = 1
    if geometry.groups > 1 and not apart and per_c <= P_MAX and per_k <= P_MAX:
        pack = max(1, min(geometry.groups, min(P_MAX // per_c, P_MAX // per_k)))
    most_k = min(channels, most_channels(per_c, taps, geometry.itemsize, filter_bytes))
    while pack > 1 and pack * per_k > most_k:
        pack = pack // 2
    found = []
    for g0 in range(0, geometry.groups, pack):
        gn = min(pack, geometry.groups - g0)
        chunks = []
        if gn > 1:
            chunks.append((g0 * per_c, gn * per_c, 1, ALONE, 0))
        else:
            chunks = chunks_of_group(geometry, g0, fold, product)
        outputs = [(0, gn * per_k)]
        if gn == 1:
            outputs = cut(gn * per_k, most_k) if geometry.packed == 0 else jobs_of_packed(geometry, most_k)
        rows = rows_of(geometry) if fold in ("outputs", "both") and most_k == P_MAX else 1
        if rows > 1:
            outputs = cut_at(per_k, P_MAX)
        for index in range(len(outputs)):
            k0, kn = outputs[index]
            own = rows if index + 1 == len(outputs) else 1
            found.append(Job(k0=g0 * per_k + k0, kn=kn, pack=gn, chunks=chunks, rows=own))
    return found


def chunks_of_group(geometry, group, fold, product):
    """Chunks of the input channels of a group that has a job of its own."""
    P_MAX, per_c, found = nl.tile_size.pmax, geometry.C // geometry.groups, []
    depth = depth_of(geometry) if fold in ("inputs", "both") else 1
    if product in FP8_PRODUCTS:
        return paired_chunks(geometry, product, left_over(geometry.C) if depth > 1 else 0, depth)
    parts = cut(per_c, P_MAX) if depth == 1 else cut_at(per_c, P_MAX)
    for index in range(len(parts)):
        last = index + 1 == len(parts)
        found.append((group * per_c + parts[index][0], parts[index][1], depth if last else 1, ALONE, 0))
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
    for block in blocks:
        found.append((block[0] * geometry.packed, block[1] * geometry.packed))
    return found


def counted(chunks):
    """(chunk, how many are alike) of the chunks of x: only the last two may differ from the first."""
    found = [(chunks[0], max(1, len(chunks) - 2))]
    for chunk in chunks[max(1, len(chunks) - 2) :]:
        found.append((chunk, 1))
    return found


def job_bytes(geometry, job):
    """Bytes a partition of a job's stationaries."""
    taps = 0
    for one in counted(job.chunks):
        taps += one[1] * slots_of(one[0]) * tap_groups(geometry, one[0])
    rows = geometry.planes.taps * job_axis(geometry, job).taps * job.rows
    return rows * taps * stationary_columns(geometry, job) * geometry.itemsize


def stationary_columns(geometry, job):
    """Columns of a stationary, and a few more of fp8, so that what is transposed is copied by whole words."""
    plain = geometry.itemsize == 1 and job.pack == 1 and geometry.packed == 0 and geometry.C > 1
    return whole_words(job.kn, geometry.itemsize) if plain else job.kn


def is_depthwise_job(geometry, job):
    """Whether each channel has its own filters, and the job all of them; a packed filter is in its place as it is."""
    own = geometry.groups == geometry.C and geometry.packed == 0 and geometry.direct == None
    return own and job.kn == job.chunks[0][1] * (geometry.K // geometry.C)


def batches_of(geometry, jobs, by_channels, filter_bytes):
    """Jobs in batches whose filters fit together; where there are several, as many for one half of the jobs as for the
    other, so that two cores can share them. by_channels: several even if one would do."""
    most = len(jobs)
    for job in jobs:
        most = min(most, max(1, filter_bytes // job_bytes(geometry, job)))
    halves = PARTS if len(jobs) > 1 and (by_channels or most < len(jobs)) else 1
    return in_batches(jobs, most, halves)


def moved_from(batches, count):
    """By batch, the first of its jobs whose filters DMA transposes: of the last `count` of all, or of each half."""
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


def can_move(geometry):
    """Whether DMA can transpose filters: plain ones of 16 bits and one group."""
    plain = geometry.groups == 1 and geometry.packed == 0 and geometry.direct == None and not geometry.flipped
    return geometry.itemsize == 2 and plain


def by_input(geometry):
    """Whether filters come in by input channels, taps backwards: of transposed convolutions of one group."""
    return geometry.flipped and geometry.groups == 1


def lies_ready(geometry, job, chunk):
    """Whether the filters of a transposed convolution are stationaries as they come: [c, k, taps backwards]."""
    return by_input(geometry) and job.rows == 1 and chunk[2] == 1
