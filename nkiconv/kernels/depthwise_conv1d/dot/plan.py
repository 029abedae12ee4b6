"""How `dot` cuts a convolution: phases of taps and columns, chunks of taps, blocks of lags, tiles and batches.

Many lags (`is_wide`) come in blocks that are batches of their own. The only row of a convolution is cut into parts,
which stand for channels: part v has taps v * part_taps onwards and what they meet of x. Neither depends on the number
of cores.

With g = gcd(stride, dilation), R = stride / g and D = dilation / g, tap s = R s' + r and column q = D q' + m meet at
position stride * (D (s' + q') + m) + dilation * r of the padded row. For each of the R tap phases and D column phases
that is a convolution without stride or dilation, so a lag q' is a shift of s'. Position s' = base + n p + t lies at
partition p, slot t; lag q' of slot t is slot t + q'.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._axis import greatest_common_divisor
from ..._tiles import BANK_COLUMNS, div_ceil
from ..free_channels import ChannelBlock
from ..geometry import Geometry
from .config import dot_defaults

#: Bytes a partition of SBUF for rows as loaded, transposed slots and kept filters; sums and products take the rest.
DOT_SBUF_BYTES = 180_000
#: Bytes a partition of transposed filters that are kept for all images of a batch.
KEPT_BYTES = 65_536
#: Lags beyond which they come in blocks of their own and are summed over slots by way of HBM (wide.py): as many, and
#: more for few slots, as wide.py takes no fewer than a block of them; the same where a core has less than a tile, and
#: waits for HBM.
WIDE_FROM = 10
WIDE_FROM_SLOTS = 32
WIDE_FROM_FEW = 12
WIDE_FROM_FEW_SLOTS = 320
#: Slots and channels of a stationary there: channels start at partitions 0, 32, 64 and 96, as engines address them.
WIDE_TAPS = 32
#: Lags fewer that a block there has where it does not fit.
WIDE_STEP = 8
#: Bytes a partition that products on their way through HBM take there, and results.
WIDE_BYTES = 44_000
#: Columns for each tap from which `banded` is at least as fast, for the taps that it always takes; and columns that are
#: taken in any case, and at most without wide.py.
COLUMNS_PER_TAP = 0.5
BANDED_TAPS = 8192
COLUMNS_MIN = 64


@dataclass
class DotPlan(nl.NKIObject):
    """Numbers of one problem; the same on every core."""

    #: tap phases R and D; column phases, min(D, Q)
    tap_phases: int
    spread: int
    column_phases: int
    #: slots and chunks, and partitions that taps are spread over: a chunk has depth * slots taps of each phase
    slots: int
    depth: int
    chunks: int
    #: lags of a block and blocks: lags >= ceil(Q / D)
    lags: int
    lag_blocks: int
    #: taps (slots) and channels of a stationary
    taps: int
    channels: int
    #: positions of x and taps of w in one chunk, as loaded
    x_length: int
    w_length: int
    buffers: int
    #: channel tiles, or images, of one batch
    tiles: int
    images: int
    #: whether transposed filters stay in SBUF from image to image
    keep: bool
    #: parts that the only row is cut into, which take the place of channels, and taps of each; parts is 1 for all else
    parts: int
    part_taps: int
    #: whether a batch has one block of lags, and wide.py takes it from products to results
    wide: bool


@dataclass
class Batch(nl.NKIObject):
    """Tiles k0 .. k0+kn-1 of a channel block and images n0 .. n0+nn-1; kn or nn is 1. They leave in one store each.

    l0: first lag; a wide plan's batch has plan.lags from there on, any other all lags.
    """

    block: object
    k0: int
    kn: int
    n0: int
    nn: int
    l0: int


def padded_columns(plan):
    """Columns that are computed, Q or a few more: of block b, lag l and phase m is (b * lags + l) * phases + m."""
    return plan.lag_blocks * plan.lags * plan.column_phases


def x_slots(plan):
    """Slots of x of one tap and column phase."""
    return plan.slots + plan.lag_blocks * plan.lags - 1


def x_first(geometry, plan, base, l0):
    """Position in the padded row (0 is its first element) where a chunk's row of x starts for lags from l0 on."""
    return geometry.stride * plan.spread * (base + l0)


def widths(geometry, spread, tap_phases, column_phases, lags, slots, depth):
    """(positions of x, taps of w) that the slots of a chunk reach."""
    reach = geometry.stride * spread * (depth * slots + lags - 2)
    reach += geometry.stride * (column_phases - 1) + geometry.dilation * (tap_phases - 1)
    return reach + 1, tap_phases * depth * slots


def plan_of(geometry, config):
    """DotPlan with the settings of a DotConfig; slots is 0 if not even the smallest fits SBUF."""
    part_taps = cut_row(geometry, config.wide)
    cut = part_taps < geometry.S
    rows = parts_as_channels(geometry, part_taps) if cut else geometry
    plan = plan_wide(rows, config, cut) if config.wide else plan_masked(rows, config)
    if cut:
        plan.parts = rows.C
        plan.part_taps = part_taps
    return plan


def phases_of(geometry):
    """(tap phases R, spread D, column phases, taps and lags of a phase at most)."""
    common = greatest_common_divisor(geometry.stride, geometry.dilation)
    tap_phases = geometry.stride // common
    spread = geometry.dilation // common
    return tap_phases, spread, min(spread, geometry.Q), div_ceil(geometry.S, tap_phases), div_ceil(geometry.Q, spread)


def blocks_of_lags(phase_lags, taps):
    """(blocks, lags of each) where one matmul takes `taps` slots."""
    blocks = div_ceil(phase_lags, BANK_COLUMNS // (nl.tile_size.pmax // taps) + 1 - taps)
    return blocks, div_ceil(phase_lags, blocks)


def plan_masked(geometry, config):
    """DotPlan with masks, with as many slots a chunk as asked for that fit."""
    P_MAX = nl.tile_size.pmax
    tap_phases, spread, column_phases, phase_taps, phase_lags = phases_of(geometry)
    most = div_ceil(phase_taps, P_MAX)
    taps = 1
    while 2 * taps <= min(config.block, most):
        taps = 2 * taps
    per_tap_phase = tap_phases * geometry.itemsize
    lag_blocks, lags = blocks_of_lags(phase_lags, taps)

    slots = min(most, config.slots)
    fits = False
    while slots > 0 and not fits:
        chunks = div_ceil(most, slots)
        slots = div_ceil(most, chunks)
        size = widths(geometry, spread, tap_phases, column_phases, lag_blocks * lags, slots, P_MAX)
        loaded = (size[0] + size[1]) * geometry.itemsize
        filters = slots * P_MAX * per_tap_phase
        moved = (slots + lag_blocks * lags) * column_phases * P_MAX * per_tap_phase
        kept = max(3 * filters, KEPT_BYTES if geometry.N > 1 else 0)
        fits = config.buffers * loaded + 3 * moved + kept <= DOT_SBUF_BYTES
        if not fits:
            slots = slots - 1
    held = max(1, slots)
    while taps > held:
        taps = taps // 2
    lag_blocks, lags = blocks_of_lags(phase_lags, taps)
    size = widths(geometry, spread, tap_phases, column_phases, lag_blocks * lags, held, P_MAX)
    chunks = div_ceil(most, held)
    columns = lag_blocks * lags * column_phases
    return DotPlan(
        tap_phases=tap_phases,
        spread=spread,
        column_phases=column_phases,
        slots=slots,
        depth=P_MAX,
        chunks=chunks,
        lags=lags,
        lag_blocks=lag_blocks,
        taps=taps,
        channels=P_MAX // taps,
        x_length=size[0],
        w_length=size[1],
        buffers=config.buffers,
        tiles=max(1, min(config.batch, BANK_COLUMNS // (taps * columns))) if geometry.N == 1 else 1,
        images=max(1, min(config.batch, div_ceil(geometry.N, 2))),
        keep=config.keep and chunks * held * P_MAX * per_tap_phase <= KEPT_BYTES,
        parts=1,
        part_taps=geometry.S,
        wide=False,
    )


def plan_wide(geometry, config, parts):
    """DotPlan for wide.py, with as many slots and then lags as asked for that fit.

    parts: whether channels are parts of one row.
    """
    P_MAX, taps = nl.tile_size.pmax, WIDE_TAPS
    tap_phases, spread, column_phases, phase_taps, phase_lags = phases_of(geometry)
    blocks = div_ceil(div_ceil(phase_taps, P_MAX), taps)
    channels = P_MAX // taps
    half = geometry.C if parts or one_block(geometry) else div_ceil(geometry.C, 2)
    rows = channels * min(taps, div_ceil(half, channels))
    # one row: at least two blocks of lags, for two cores
    least = 2 if parts or geometry.N * geometry.C == 1 else 1

    asked, most, fits = min(blocks, div_ceil(config.slots, taps)), config.lags, False
    while asked > 0 and not fits:
        chunks = div_ceil(blocks, asked)
        slots = taps * div_ceil(blocks, chunks)
        depth = min(P_MAX, div_ceil(phase_taps, slots))
        filters = slots * rows * tap_phases * geometry.itemsize
        lags = div_ceil(phase_lags, max(least, div_ceil(phase_lags, most)))
        size = widths(geometry, spread, tap_phases, column_phases, lags, slots, depth)
        loaded = config.buffers * (size[0] + size[1]) * geometry.itemsize
        moved = (slots + lags) * column_phases * rows * tap_phases * geometry.itemsize
        summed = column_phases * div_ceil(rows, channels) * lags * 4 if chunks > 1 else 0
        needed = loaded + 2 * moved + 2 * filters + summed + WIDE_BYTES
        spare = nl.tile_size.total_available_sbuf_size - needed
        fits = spare >= 0
        keep = config.keep and chunks * filters <= KEPT_BYTES and 2 * filters * (chunks - 1) <= spare
        most = most - WIDE_STEP
        if most <= 0:
            asked, most = asked - 1, config.lags
    return DotPlan(
        tap_phases=tap_phases,
        spread=spread,
        column_phases=column_phases,
        slots=slots if fits else 0,
        depth=depth,
        chunks=chunks,
        lags=lags,
        lag_blocks=1,
        taps=taps,
        channels=channels,
        x_length=size[0],
        w_length=size[1],
        buffers=config.buffers,
        tiles=1,
        images=1,
        keep=keep,
        parts=1,
        part_taps=geometry.S,
        wide=True,
    )


def runs_wide(geometry):
    """Whether lags go through HBM without a config: where there are many, and they fit or may not go under masks."""
    if not is_wide(geometry):
        return False
    plan = plan_of(geometry, dot_defaults(True))
    return plan.slots > 0 or geometry.Q > COLUMNS_MIN


def is_wide(geometry):
    """Whether there are so many lags that wide.py is faster, or more columns than there may be without it."""
    common = greatest_common_divisor(geometry.stride, geometry.dilation)
    slots = div_ceil(div_ceil(geometry.S, geometry.stride // common), nl.tile_size.pmax)
    fewest = WIDE_FROM + WIDE_FROM_SLOTS // slots
    if geometry.N * geometry.C < 2 * nl.tile_size.pmax:
        fewest = WIDE_FROM_FEW + WIDE_FROM_FEW_SLOTS // slots
    return geometry.Q > COLUMNS_MIN or div_ceil(geometry.Q, geometry.dilation // common) > fewest


def cut_row(geometry, wide):
    """Taps of a part of the only row, S where rows are not cut: a part for every 128 taps, or every chunk (wide)."""
    if geometry.N * geometry.C > 1 or geometry.S <= 2 * nl.tile_size.pmax:
        return geometry.S
    parts = div_ceil(geometry.S, nl.tile_size.pmax)
    if wide:
        channels = nl.tile_size.pmax // WIDE_TAPS
        parts = channels * div_ceil(geometry.S, channels * WIDE_TAPS * nl.tile_size.pmax)
    return div_ceil(geometry.S, min(parts, nl.tile_size.pmax))


def parts_as_channels(geometry, part_taps):
    """Geometry of a convolution that has a channel for each part of the only row."""
    return Geometry(
        N=1,
        C=div_ceil(geometry.S, part_taps),
        W=geometry.W,
        S=part_taps,
        Q=geometry.Q,
        stride=geometry.stride,
        dilation=geometry.dilation,
        lhs_dilation=geometry.lhs_dilation,
        pad_left=geometry.pad_left,
        pad_right=geometry.pad_right,
        x_n=geometry.x_n,
        x_c=geometry.x_c,
        x_w=geometry.x_w,
        w_c=geometry.w_c,
        w_s=geometry.w_s,
        y_n=geometry.y_n,
        y_c=geometry.y_c,
        y_q=geometry.y_q,
        itemsize=geometry.itemsize,
    )


def one_block(geometry):
    """Whether the channels are one block."""
    return geometry.C == 1 or (geometry.N > 1 and geometry.C <= nl.tile_size.pmax)


def channel_blocks(geometry, plan):
    """The channels in two halves, or in one where images are shared out instead."""
    blocks = []
    if plan.parts > 1:
        blocks.append(ChannelBlock(c0=0, count=plan.parts, length=div_ceil(plan.parts, plan.channels)))
    elif one_block(geometry):
        blocks.append(ChannelBlock(c0=0, count=geometry.C, length=div_ceil(geometry.C, plan.channels)))
    else:
        half = div_ceil(geometry.C, 2)
        blocks.append(ChannelBlock(c0=0, count=half, length=div_ceil(half, plan.channels)))
        rest = geometry.C - half
        blocks.append(ChannelBlock(c0=half, count=rest, length=div_ceil(rest, plan.channels)))
    return blocks


def batches(geometry, plan):
    """All batches, in order; cores take contiguous shares."""
    found = []
    blocks = channel_blocks(geometry, plan)
    lags = div_ceil(geometry.Q, plan.spread)
    for index in range(len(blocks)):
        block = blocks[index]
        num_tiles = div_ceil(block.length, plan.taps)
        for k0 in range(0, num_tiles, plan.tiles):
            for n0 in range(0, geometry.N, plan.images):
                for l0 in range(0, lags, plan.lags if plan.wide else lags):
                    found.append(
                        Batch(
                            block=block,
                            k0=k0,
                            kn=min(plan.tiles, num_tiles - k0),
                            n0=n0,
                            nn=min(plan.images, geometry.N - n0),
                            l0=l0,
                        )
                    )
    return found


def count_batches(geometry, plan):
    """How many `batches` finds."""
    lags = div_ceil(geometry.Q, plan.spread)
    count = 0
    for block in channel_blocks(geometry, plan):
        count += div_ceil(div_ceil(block.length, plan.taps), plan.tiles)
    return count * div_ceil(geometry.N, plan.images) * (div_ceil(lags, plan.lags) if plan.wide else 1)


def groups_of(plan, block, k):
    """Groups of `channels` channels in tile k of a block: group g has r = k * taps + g."""
    return min(plan.taps, block.length - k * plan.taps)


def batch_width(plan, batch):
    """Channels that a row of results has in one image of a batch."""
    return min(batch.kn * plan.taps, batch.block.length - batch.k0 * plan.taps)
