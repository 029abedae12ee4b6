"""How `dot` cuts a convolution: phases of taps and columns, chunks of taps, blocks of lags, tiles and batches.

With g = gcd(stride, dilation), R = stride / g and D = dilation / g, tap s = R s' + r and column q = D q' + m meet at
position stride * (D (s' + q') + m) + dilation * r of the padded row. For each of the R tap phases and D column phases
that is a convolution without stride or dilation, so a lag q' is a shift of s'. Position s' = base + n p + t lies at
partition p, slot t; lag q' of slot t is slot t + q'.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, div_ceil
from ..free_channels import ChannelBlock
from ..positions import greatest_common_divisor

#: Bytes a partition of SBUF for rows as loaded, transposed slots and kept filters; sums and products take the rest.
SBUF_BYTES = 180_000
#: Bytes a partition of transposed filters that are kept for all images of a batch.
KEPT_BYTES = 65_536
#: Most lags: beyond, bands of taps (`banded`) do less work.
LAGS_MAX = 64
#: Most slots of a chunk: 4096 taps, whose rows in bf16 are 8 KiB a partition.
SLOTS_MAX = 32


@dataclass
class DotPlan(nl.NKIObject):
    """Numbers of one problem; the same on every core."""

    #: tap phases R and D; column phases, min(D, Q)
    tap_phases: int
    spread: int
    column_phases: int
    #: slots and chunks: a chunk has 128 * slots taps of each phase
    slots: int
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


@dataclass
class Batch(nl.NKIObject):
    """Tiles k0 .. k0+kn-1 of a channel block and images n0 .. n0+nn-1; kn or nn is 1. They leave in one store each."""

    block: object
    k0: int
    kn: int
    n0: int
    nn: int


def padded_columns(plan):
    """Columns that are computed, Q or a few more: of block b, lag l and phase m is (b * lags + l) * phases + m."""
    return plan.lag_blocks * plan.lags * plan.column_phases


def x_slots(plan):
    """Slots of x of one tap and column phase."""
    return plan.slots + plan.lag_blocks * plan.lags - 1


def x_first(geometry, plan, base):
    """Position in the padded row (0 is its first element) where a chunk's row of x starts."""
    return geometry.stride * plan.spread * base


def widths(geometry, spread, tap_phases, column_phases, lags, slots):
    """(positions of x, taps of w) that the slots of a chunk reach."""
    reach = geometry.stride * spread * (nl.tile_size.pmax * slots + lags - 2)
    reach += geometry.stride * (column_phases - 1) + geometry.dilation * (tap_phases - 1)
    return reach + 1, tap_phases * nl.tile_size.pmax * slots


def plan_dot(geometry, taps_asked, slots_asked, buffers, batch):
    """DotPlan of a geometry; slots is 0 if not even one slot fits SBUF."""
    P_MAX = nl.tile_size.pmax
    common = greatest_common_divisor(geometry.stride, geometry.dilation)
    tap_phases = geometry.stride // common
    spread = geometry.dilation // common
    column_phases = min(spread, geometry.Q)
    phase_taps = div_ceil(geometry.S, tap_phases)
    phase_lags = div_ceil(geometry.Q, spread)

    most = div_ceil(phase_taps, P_MAX)
    taps = 1
    while 2 * taps <= min(taps_asked, most):
        taps = 2 * taps
    channels = P_MAX // taps
    lag_blocks = div_ceil(phase_lags, BANK_COLUMNS // channels + 1 - taps)
    lags = div_ceil(phase_lags, lag_blocks)
    per_tap_phase = tap_phases * geometry.itemsize

    slots = min(most, slots_asked)
    fits = False
    while slots > 0 and not fits:
        chunks = div_ceil(most, slots)
        slots = div_ceil(most, chunks)
        size = widths(geometry, spread, tap_phases, column_phases, lag_blocks * lags, slots)
        loaded = (size[0] + size[1]) * geometry.itemsize
        filters = slots * P_MAX * per_tap_phase
        turned = (slots + lag_blocks * lags) * column_phases * P_MAX * per_tap_phase
        fits = buffers * loaded + 3 * turned + max(3 * filters, KEPT_BYTES if geometry.N > 1 else 0) <= SBUF_BYTES
        if not fits:
            slots = slots - 1
    if slots == 0:
        return DotPlan(tap_phases, spread, column_phases, 0, 0, lags, lag_blocks, taps, channels, 0, 0, 0, 0, 0, False)
    while taps > slots:
        taps = taps // 2
    channels = P_MAX // taps
    lag_blocks = div_ceil(phase_lags, BANK_COLUMNS // channels + 1 - taps)
    lags = div_ceil(phase_lags, lag_blocks)
    size = widths(geometry, spread, tap_phases, column_phases, lag_blocks * lags, slots)
    chunks = div_ceil(most, slots)
    columns = lag_blocks * lags * column_phases
    return DotPlan(
        tap_phases=tap_phases,
        spread=spread,
        column_phases=column_phases,
        slots=slots,
        chunks=chunks,
        lags=lags,
        lag_blocks=lag_blocks,
        taps=taps,
        channels=channels,
        x_length=size[0],
        w_length=size[1],
        buffers=buffers,
        tiles=max(1, min(batch, BANK_COLUMNS // (taps * columns))) if geometry.N == 1 else 1,
        images=max(1, min(batch, div_ceil(geometry.N, 2))),
        keep=chunks * slots * P_MAX * per_tap_phase <= KEPT_BYTES,
    )


def channel_blocks(geometry, plan):
    """The channels in two halves, or in one where images are shared out instead."""
    blocks = []
    if geometry.C == 1 or (geometry.N > 1 and geometry.C <= nl.tile_size.pmax):
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
    for index in range(len(blocks)):
        block = blocks[index]
        num_tiles = div_ceil(block.length, plan.taps)
        for k0 in range(0, num_tiles, plan.tiles):
            for n0 in range(0, geometry.N, plan.images):
                found.append(
                    Batch(
                        block=block,
                        k0=k0,
                        kn=min(plan.tiles, num_tiles - k0),
                        n0=n0,
                        nn=min(plan.images, geometry.N - n0),
                    )
                )
    return found


def groups_of(plan, block, k):
    """Groups of `channels` channels in tile k of a block: group g has r = k * taps + g."""
    return min(plan.taps, block.length - k * plan.taps)


def batch_width(plan, batch):
    """Channels that a row of results has in one image of a batch."""
    return min(batch.kn * plan.taps, batch.block.length - batch.k0 * plan.taps)
