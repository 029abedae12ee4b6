"""Filters as stationaries: [c, tap, k] in SBUF for each chunk of input channels of a job, transposed on the array.

A row of w, one output channel, is contiguous in HBM; the array turns [k, c] of one tap into [c, k], several taps to a
PSUM bank. Where a job has several groups, each row is first spread over the groups' channels under a mask, so that what
is turned is block-diagonal and one matmul serves all of them.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, pick
from ..._tiles import BANK_BYTES
from .plan import AHEAD_BYTES, RAW_BYTES


@dataclass
class Block(nl.NKIObject):
    """Taps that are loaded together: of one of a job's chunks (index, first channel, channels), rows and columns."""

    chunk: int
    c0: int
    channels: int
    r0: int
    rn: int
    s0: int
    sn: int


def blocks_of(geometry, job):
    """Blocks of all chunks of a job, in order."""
    per_c = geometry.C // geometry.groups
    found = []
    for index in range(len(job.chunks)):
        first, count = job.chunks[index]
        own = per_c if job.pack > 1 else count
        taps = tap_blocks(geometry, own)
        for which in range(len(taps)):
            r0, rn, s0, sn = taps[which]
            found.append(
                Block(
                    chunk=index,
                    c0=0 if job.pack > 1 else first % per_c,
                    channels=own,
                    r0=r0,
                    rn=rn,
                    s0=s0,
                    sn=sn,
                )
            )
    return found


def ahead_of(geometry, block):
    """Blocks that are on their way together."""
    return max(1, AHEAD_BYTES // (block.channels * block.rn * block.sn * geometry.itemsize))


def load_filters(operands, geometry, job):
    """The first blocks of a job's taps as loaded: [kn, channels, rows, columns] in SBUF each; of a packed filter all
    stationaries."""
    if geometry.packed > 0:
        return load_stationaries(operands, geometry, job)
    if is_depthwise(geometry, job):
        return [load_channels(operands, geometry, job)]
    blocks = blocks_of(geometry, job)
    loaded = []
    for index in range(min(ahead_of(geometry, blocks[0]), len(blocks))):
        loaded.append(load_taps(operands, geometry, job, blocks[index]))
    return loaded


def load_stationaries(operands, geometry, job):
    """[cn, taps, kn] in SBUF for each chunk of a job, from the blocks of a packed filter: runs of a channel's taps."""
    taps, each = geometry.rows.taps * geometry.columns.taps, geometry.packed
    size = taps * each
    found = []
    for index in range(len(job.chunks)):
        c0, count = job.chunks[index]
        filters_sbuf = nl.ndarray((count, taps, job.kn), dtype=operands.w_dtype, buffer=nl.sbuf)
        for block in range(job.kn // each):
            copy(
                filters_sbuf[0:count, 0:taps, block * each : (block + 1) * each],
                operands.w.ap(
                    pattern=[[size, count], [each, taps], [1, each]],
                    offset=((job.k0 // each + block) * geometry.C + c0) * size,
                ),
            )
        found.append(filters_sbuf)
    return found


def turn_filters(operands, loaded, geometry, job, ledger):
    """Stationaries of a job, [cn, taps, kn] for each of its chunks, from what `load_filters` returned and the rest."""
    if geometry.packed > 0:
        return loaded
    if is_depthwise(geometry, job):
        return [make_diagonals(loaded[0], geometry)]
    taps = geometry.rows.taps * geometry.columns.taps
    dtype = loaded[0].dtype
    tiles = []
    mask_sbuf = group_mask(job, geometry, dtype) if job.pack > 1 else None
    for index in range(len(job.chunks)):
        tiles.append(nl.ndarray((job.chunks[index][1], taps, job.kn), dtype=dtype, buffer=nl.sbuf))
    blocks = blocks_of(geometry, job)
    for index in range(len(blocks)):
        turn_taps(tiles[blocks[index].chunk], loaded[index], mask_sbuf, geometry, job, blocks[index], ledger)
        loaded[index] = None
        if len(loaded) < len(blocks):
            loaded.append(load_taps(operands, geometry, job, blocks[len(loaded)]))
    return tiles


def is_depthwise(geometry, job):
    """Whether each channel has its own filters, and the job all of them."""
    return geometry.groups == geometry.C and job.kn == job.chunks[0][1] * (geometry.K // geometry.C)


def load_channels(operands, geometry, job):
    """Filters of a depthwise job by channel of x: [cn, multiplier, taps] in SBUF."""
    each, R, S = geometry.K // geometry.C, geometry.rows.taps, geometry.columns.taps
    c0, count = job.chunks[0]
    raw_sbuf = nl.ndarray((count, each, R, S), dtype=operands.w_dtype, buffer=nl.sbuf)
    pattern = [
        [each * geometry.w_k, count],
        [geometry.w_k, each],
        [geometry.w_r, R],
        [geometry.w_s, S],
    ]
    copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=c0 * each * geometry.w_k))
    return raw_sbuf.reshape((count, each, R * S))


def make_diagonals(raw_sbuf, geometry):
    """[cn, taps, kn] in SBUF: filters of channel c in the columns of its outputs, zero elsewhere, by one select."""
    count, each, taps = raw_sbuf.shape
    filters_sbuf = nl.ndarray((count, taps, count, each), dtype=raw_sbuf.dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=filters_sbuf,
        pattern=[[0, taps], [-1, count], [0, each]],
        channel_multiplier=1,
        on_true_tile=raw_sbuf.permute((0, 2, 1)).expand_dim(2).broadcast(2, count),
        on_false_value=0.0,
        cmp_op=nl.equal,
        offset=0,
    )
    return filters_sbuf.reshape((count, taps, count * each))


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


def load_taps(operands, geometry, job, block):
    """Taps of a block: [kn, channels, rows, columns] in SBUF."""
    raw_sbuf = nl.ndarray((job.kn, block.channels, block.rn, block.sn), dtype=operands.w_dtype, buffer=nl.sbuf)
    offset = job.k0 * geometry.w_k + block.c0 * geometry.w_c + block.r0 * geometry.w_r + block.s0 * geometry.w_s
    pattern = [
        [geometry.w_k, job.kn],
        [geometry.w_c, block.channels],
        [geometry.w_r, block.rn],
        [geometry.w_s, block.sn],
    ]
    copy(raw_sbuf, operands.w.ap(pattern=pattern, offset=offset))
    return raw_sbuf


def group_mask(job, geometry, dtype):
    """[kn, pack] in SBUF: 1 where output channel k belongs to the group."""
    per_k = geometry.K // geometry.groups
    mask_sbuf = nl.ndarray((job.kn, job.pack), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=mask_sbuf, value=1.0, engine=nisa.engine.gpsimd)
    for side in range(2):
        nisa.affine_select(
            dst=mask_sbuf,
            pattern=[[-per_k, job.pack]],
            channel_multiplier=1,
            on_true_tile=mask_sbuf,
            on_false_value=0.0,
            cmp_op=nl.greater_equal if side == 0 else nl.less,
            offset=0 if side == 0 else -per_k,
        )
    return mask_sbuf


def turn_taps(filters_sbuf, raw_sbuf, mask_sbuf, geometry, job, block, ledger):
    """Transposes of a block's taps, as many to a PSUM bank as fit, then one read-out."""
    count, kn = filters_sbuf.shape[0], job.kn
    even = kn + kn % 2
    S = geometry.columns.taps
    most = max(1, BANK_BYTES // (even * geometry.itemsize))
    for r in range(block.rn):
        for s0 in range(0, block.sn, most):
            sn = min(most, block.sn - s0)
            turned_psum = nl.ndarray((count, sn, even), dtype=raw_sbuf.dtype, buffer=nl.psum)
            for s in range(sn):
                taps = raw_sbuf[0:kn, 0 : raw_sbuf.shape[1], r, s0 + s]
                if mask_sbuf != None:
                    taps = spread_groups(taps, mask_sbuf, job)
                nisa.nc_transpose(dst=turned_psum[0:count, s, 0:kn], data=taps, engine=nisa.engine.tensor)
            tap = (block.r0 + r) * S + block.s0 + s0
            nisa.tensor_copy(
                dst=filters_sbuf[0:count, tap : tap + sn, 0:kn],
                src=turned_psum[0:count, 0:sn, 0:kn],
                engine=pick(ledger, sn * kn, is_16bit(raw_sbuf.dtype)),
            )


def spread_groups(taps, mask_sbuf, job):
    """[kn, pack * channels of a group] in SBUF: each row at its group's channels, zeros at the others'."""
    kn, channels = taps.shape[0], taps.shape[1]
    wide_sbuf = nl.ndarray((kn, job.pack, channels), dtype=mask_sbuf.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=wide_sbuf,
        data1=taps.expand_dim(1).broadcast(1, job.pack),
        data2=mask_sbuf.expand_dim(2).broadcast(2, channels),
        op=nl.multiply,
    )
    return wide_sbuf
