"""How `dot` cuts a convolution: phases of taps and columns, chunks of taps, blocks of lags, tiles and batches.

Many lags (`wide`) come in blocks that are batches of their own. None of it depends on the number of cores.

With g = gcd(stride, dilation), R = stride / g and D = dilation / g, tap s = R s' + r and column q = D q' + m meet at
position stride * (D (s' + q') + m) + dilation * r of the padded row. For each of the R tap phases and D column phases
that is a convolution without stride or dilation, so a lag q' is a shift of s'. Position s' = base + n p + t lies at
partition p, slot t; lag q' of slot t is slot t + q'.

Compile-time code.
"""

import math
from dataclasses import dataclass

from ...._nki import nl
from ....schedules.tiles import BANK_COLUMNS, div_ceil
from ..free_channels import channel_block, channel_halves

#: Bytes a partition of SBUF for rows as loaded, transposed slots and kept filters; sums and products take the rest.
DOT_SBUF_BYTES = 180_000
#: Bytes a partition of transposed filters that are kept for all images of a batch.
KEPT_BYTES = 65_536
#: Channel tiles, or images, that leave together.
LEAVE_TOGETHER = 4
#: With wide, slots and channels of a stationary: channels start at partitions 0, 32, 64 and 96, as engines address
#: them; and bytes per partition that products on their way through HBM take, and results.
WIDE_TAPS = 32
WIDE_BYTES = 44_000


@dataclass
class DotPlan(nl.NKIObject):
    """Numbers of one problem; the same on every core."""

    #: tap phases R and D; column phases, min(D, Q)
    tap_phases: int
    spread: int
    column_phases: int
    #: taps (slots) and channels of a stationary
    taps: int
    channels: int
    #: rows in flight
    buffers: int
    #: whether a batch has one block of lags, and wide.py takes it from products to results
    wide: bool
    #: slots (0 if not even the fewest fit SBUF) and chunks, and partitions that taps are spread over: a chunk has
    #: depth * slots taps of each phase
    slots: int = 0
    depth: int = 0
    chunks: int = 1
    #: lags of a block and blocks: lags >= ceil(Q / D)
    lags: int = 1
    lag_blocks: int = 1
    #: positions of x and taps of w in one chunk, as loaded
    x_length: int = 0
    w_length: int = 0
    #: of images that are summed how many a chunk has, and chunks of the taps of each
    members: int = 1
    tap_chunks: int = 1
    #: channel tiles, or images, of one batch
    tiles: int = 1
    images: int = 1
    #: whether transposed filters stay in SBUF from image to image
    keep: bool = False


@dataclass
class DotBatch(nl.NKIObject):
    """Tiles k0 .. k0+kn-1 of a channel block and images n0 .. n0+nn-1; kn or nn is 1. They leave in one store each.

    l0: first lag; a wide plan's batch has plan.lags from there on, any other all lags. width: channels that a row of
    results has in one image.
    """

    block: object
    k0: int
    kn: int
    n0: int
    nn: int
    l0: int
    width: int


@dataclass
class DotUnit(nl.NKIObject):
    """A chunk of taps of tile k of a batch, of image n: `groups` groups of `channels` channels, from r0 of each row."""

    batch: object
    n: int
    k: int
    chunk: int
    r0: int
    groups: int


def images_of(geometry, plan, unit):
    """(first, how many) of the images that a unit sums over."""
    first = unit.chunk // plan.tap_chunks * plan.members
    return first, min(plan.members, geometry.summed - first)


def padded_columns(plan):
    """Columns that are computed, Q or a few more: of block b, lag l and phase m is (b * lags + l) * phases + m."""
    return plan.lag_blocks * plan.lags * plan.column_phases


def x_slots(plan):
    """Slots of x of one tap and column phase."""
    return plan.slots + plan.lag_blocks * plan.lags - 1


def window_of(plan):
    """Slots of x that a block of slots of w meets."""
    return plan.taps + plan.lags - 1


def new_dot_plan(geometry, wide):
    """DotPlan without sizes: phases, and what goes with masks and with the way through HBM."""
    common = math.gcd(geometry.stride, geometry.dilation)
    spread = geometry.dilation // common
    return DotPlan(
        tap_phases=geometry.stride // common,
        spread=spread,
        column_phases=min(spread, geometry.Q),
        taps=WIDE_TAPS,
        channels=nl.tile_size.pmax // WIDE_TAPS,
        buffers=2 if wide else 4,
        wide=wide,
        depth=nl.tile_size.pmax,
    )


def lengths_of(geometry, plan, slots, lags):
    """(positions of x, taps of w) that the slots of a chunk reach."""
    reach = geometry.stride * plan.spread * (plan.depth * slots + lags - 2)
    reach += geometry.stride * (plan.column_phases - 1) + geometry.dilation * (plan.tap_phases - 1)
    return reach + 1, plan.tap_phases * plan.depth * slots


def held_bytes(geometry, plan, slots, lags, rows, filters):
    """Bytes a partition of rows as loaded, transposed slots of x and as many transposed filters."""
    lengths = lengths_of(geometry, plan, slots, lags)
    of_slot = plan.members * plan.tap_phases * rows * geometry.itemsize
    copies = 2 if plan.wide else 3
    moved = (slots + lags) * plan.column_phases * of_slot
    loaded = plan.buffers * plan.members * (lengths[0] + lengths[1]) * geometry.itemsize
    return loaded + copies * moved + filters * slots * of_slot


def plan_of(geometry, config):
    """DotPlan with the settings of DotSettings."""
    plan = new_dot_plan(geometry, config.wide)
    phase_taps, phase_lags = div_ceil(geometry.S, plan.tap_phases), div_ceil(geometry.Q, plan.spread)
    if config.wide:
        size_wide(plan, geometry, config, phase_taps, phase_lags)
    else:
        size_masked(plan, geometry, config, phase_taps, phase_lags)
    lengths = lengths_of(geometry, plan, max(1, plan.slots), plan.lag_blocks * plan.lags)
    plan.x_length = lengths[0]
    plan.w_length = lengths[1]
    return plan


def size_masked(plan, geometry, config, phase_taps, phase_lags):
    """Slots with masks, as many a chunk as asked for that fit; lags, all of them; tiles and images that leave."""
    P_MAX = nl.tile_size.pmax
    most = div_ceil(phase_taps, P_MAX)
    set_block(plan, min(config.block, most), phase_lags)
    lags = plan.lag_blocks * plan.lags
    slots = min(most, config.slots)
    for kept in range(2 if geometry.N > 1 else 1):
        # either three filters are under way, or others are kept
        filters, room = 3, DOT_SBUF_BYTES
        if kept == 1:
            filters, room = 0, DOT_SBUF_BYTES - KEPT_BYTES
        fixed = held_bytes(geometry, plan, 0, lags, P_MAX, filters)
        slots = min(slots, (room - fixed) // (held_bytes(geometry, plan, 1, lags, P_MAX, filters) - fixed))
    if slots > 0:
        plan.chunks = div_ceil(most, slots)
        plan.slots = div_ceil(most, plan.chunks)
        set_block(plan, min(plan.taps, plan.slots), phase_lags)
        plan.keep = plan.chunks * plan.slots * P_MAX * plan.tap_phases * geometry.itemsize <= KEPT_BYTES
        plan.tap_chunks = plan.chunks
        plan.members = max(1, min(geometry.summed, config.slots // plan.slots)) if plan.chunks == 1 else 1
        while plan.members > 1 and held_bytes(geometry, plan, plan.slots, lags, P_MAX, 3) > DOT_SBUF_BYTES:
            plan.members = plan.members - 1
        plan.chunks = plan.chunks * div_ceil(geometry.summed, plan.members)
    if geometry.N == 1:
        plan.tiles = max(1, min(LEAVE_TOGETHER, BANK_COLUMNS // (plan.taps * padded_columns(plan))))
    plan.images = min(LEAVE_TOGETHER, div_ceil(geometry.N, 2))


def set_block(plan, most, phase_lags):
    """Taps and channels of a stationary, a power of two up to `most` taps, and the blocks of lags that a bank holds."""
    taps = 1
    while 2 * taps <= most:
        taps = 2 * taps
    plan.taps = taps
    plan.channels = nl.tile_size.pmax // taps
    plan.lag_blocks = div_ceil(phase_lags, BANK_COLUMNS // plan.channels + 1 - taps)
    plan.lags = div_ceil(phase_lags, plan.lag_blocks)


def size_wide(plan, geometry, config, phase_taps, phase_lags):
    """Slots for wide.py, in blocks, and as many lags as asked for that fit; if not even one does, fewer slots."""
    blocks = div_ceil(div_ceil(phase_taps, nl.tile_size.pmax), plan.taps)
    half = geometry.C if one_block(geometry) else div_ceil(geometry.C, 2)
    rows = plan.channels * min(plan.taps, div_ceil(half, plan.channels))
    # of one row at least two blocks of lags, for two cores
    least = 2 if geometry.N * geometry.C == 1 else 1
    asked = min(blocks, div_ceil(config.slots, plan.taps))
    while asked > 0 and plan.slots == 0:
        plan.chunks = div_ceil(blocks, asked)
        plan.tap_chunks = plan.chunks
        slots = plan.taps * div_ceil(blocks, plan.chunks)
        plan.depth = min(nl.tile_size.pmax, div_ceil(phase_taps, slots))
        summed = plan.column_phases * div_ceil(rows, plan.channels) * 4 if plan.chunks > 1 else 0
        room = nl.tile_size.total_available_sbuf_size - WIDE_BYTES - held_bytes(geometry, plan, slots, 0, rows, 2)
        each = held_bytes(geometry, plan, 0, 1, rows, 2) - held_bytes(geometry, plan, 0, 0, rows, 2) + summed
        most = min(config.lags, room // each)
        if most > 0:
            plan.slots = slots
            plan.lags = div_ceil(phase_lags, max(least, div_ceil(phase_lags, most)))
            filters = slots * rows * plan.tap_phases * geometry.itemsize
            spare = room - plan.lags * each
            plan.keep = plan.chunks * filters <= KEPT_BYTES and 2 * filters * (plan.chunks - 1) <= spare
        asked = asked - 1


def one_block(geometry):
    """Whether the channels are one block, and images are shared out instead."""
    return geometry.C == 1 or (geometry.N > 1 and geometry.C <= nl.tile_size.pmax)


def channel_blocks(geometry, plan):
    """The channels in two halves, or in one block."""
    if one_block(geometry):
        return [channel_block(0, geometry.C, plan.channels)]
    return channel_halves(geometry.C, plan.channels)


def batches(geometry, plan):
    """All batches, in order; cores take contiguous shares."""
    found = []
    lags = div_ceil(geometry.Q, plan.spread)
    for block in channel_blocks(geometry, plan):
        num_tiles = div_ceil(block.length, plan.taps)
        for k0 in range(0, num_tiles, plan.tiles):
            kn = min(plan.tiles, num_tiles - k0)
            width = min(kn * plan.taps, block.length - k0 * plan.taps)
            for n0 in range(0, geometry.N, plan.images):
                nn = min(plan.images, geometry.N - n0)
                for l0 in range(0, lags, plan.lags if plan.wide else lags):
                    found.append(DotBatch(block=block, k0=k0, kn=kn, n0=n0, nn=nn, l0=l0, width=width))
    return found


def count_batches(geometry, plan):
    """How many `batches` finds."""
    lags = div_ceil(geometry.Q, plan.spread)
    count = 0
    for block in channel_blocks(geometry, plan):
        count += div_ceil(div_ceil(block.length, plan.taps), plan.tiles)
    return count * div_ceil(geometry.N, plan.images) * (div_ceil(lags, plan.lags) if plan.wide else 1)


def dot_units(geometry, plan, first, count):
    """The units of batches first .. first+count-1, in order."""
    found = []
    every = batches(geometry, plan)
    for index in range(first, first + count):
        batch = every[index]
        for n in range(batch.n0, batch.n0 + batch.nn):
            for k in range(batch.k0, batch.k0 + batch.kn):
                r0 = k * plan.taps
                groups = min(plan.taps, batch.block.length - r0)
                for chunk in range(plan.chunks):
                    found.append(DotUnit(batch=batch, n=n, k=k, chunk=chunk, r0=r0, groups=groups))
    return found
