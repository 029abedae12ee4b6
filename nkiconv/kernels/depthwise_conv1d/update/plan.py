"""How `update` cuts a convolution of short rows: images on partitions, groups of channels on the contraction.

Channels come in two halves (blocks); each is cut into `pieces` ranges of `length` channels, so that piece h of image n
is row h * pitch + n of a tile. A group is `channels` channels of every piece; a chunk is some groups, a batch some
chunks whose results leave together. Where pieces or groups do not divide what they are cut from, the last one overlaps
the one before it: all are of one size.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_BYTES, BANK_COLUMNS, div_ceil

#: Partitions at which a read-out of few rows may start are multiples of this.
QUADRANT = 32
#: Most groups of a chunk; the largest batches are 8 chunks, and at most 128 groups' filters are transposed at once.
UPDATE_GROUPS_MAX = 16
#: Bytes a partition of SBUF for transposed filters, and for chunks on their way.
UPDATE_FILTER_BYTES, AHEAD_BYTES = 32_768, 65_536
#: Bytes a partition of SBUF for filters as loaded: those in use and those on their way.
TAPS_BYTES = 98_304
#: Most positions of a row (or of a state): the contraction of one channel.
ROW_MAX = 128


@dataclass
class UpdatePlan(nl.NKIObject):
    """Numbers of one problem; the same on every core."""

    #: positions of an initial state in front of each row, 0 without one
    state: int
    #: ranges of channels that share the partitions, and partitions of each
    pieces: int
    pitch: int
    #: images of a tile and image tiles
    images: int
    image_tiles: int
    #: channels of a group, groups of a chunk, chunks of a batch
    channels: int
    groups: int
    leave: int
    #: groups whose filters are loaded and transposed at once, a multiple of those of a batch; chunks loaded ahead
    filters: int
    ahead: int


@dataclass
class PieceBlock(nl.NKIObject):
    """Channels c0 .. c0+count-1; piece h has `length` of them from piece_start(block, h) on, overlapping at the end."""

    c0: int
    count: int
    length: int


@dataclass
class Batch(nl.NKIObject):
    """Chunks first .. first+number-1 of a block, images n0 .. n0+nn-1."""

    block: object
    first: int
    number: int
    n0: int
    nn: int


@dataclass
class GroupLimits(nl.NKIObject):
    """Most channels of a group, 0 if not even one fits; most groups of a chunk; channels of a piece in a bank."""

    channels: int
    groups: int
    room: int


def images_of(geometry):
    """(pieces, partitions of each, images of a tile, image tiles)."""
    P_MAX = nl.tile_size.pmax
    split = geometry.C == 1 and geometry.N > 1
    image_tiles = div_ceil(geometry.N, P_MAX)
    if split and image_tiles % 2 == 1:
        image_tiles += 1
    images = div_ceil(geometry.N, image_tiles)
    pitch = images
    pieces = 1
    if images <= P_MAX // 2 and geometry.C > 1:
        pitch = QUADRANT
        while pitch < images:
            pitch = 2 * pitch
        pieces = P_MAX // pitch
    return pieces, pitch, images, image_tiles


def group_limits(geometry, with_state):
    """GroupLimits of a geometry."""
    P_MAX = nl.tile_size.pmax
    tiling = images_of(geometry)
    pieces, rows = tiling[0], tiling[0] * tiling[1]
    longest = max(geometry.W, geometry.pad_left if with_state else 0)
    room = BANK_COLUMNS // (pieces * geometry.Q)
    channels = min(P_MAX // longest, room) if longest <= ROW_MAX else 0
    channels = min(channels, div_ceil(max(1, geometry.C // 2), pieces))
    channels = min(channels, TAPS_BYTES // (2 * geometry.S * geometry.itemsize))
    of_slots = BANK_BYTES // ((rows + rows % 2) * geometry.itemsize)
    return GroupLimits(channels=channels, groups=min(min(UPDATE_GROUPS_MAX, of_slots), room), room=room)


def plan_update(geometry, with_state, config):
    """UpdatePlan of a geometry with the settings of an UpdateConfig; channels is 0 if not even one channel fits."""
    P_MAX = nl.tile_size.pmax
    state = geometry.pad_left if with_state else 0
    pieces, pitch, images, image_tiles = images_of(geometry)
    limits = group_limits(geometry, with_state)
    channels = min(config.channels, limits.channels)
    groups = 0
    if channels > 0:
        groups = min(min(config.groups, limits.groups), limits.room // channels)
    leaving = config.leave if image_tiles == 1 else 1
    while groups * leaving * pieces > P_MAX:
        leaving = leaving // 2
    filters, ahead = 0, config.ahead
    if groups > 0:
        per_group = pieces * geometry.Q * (2 if state > 0 else 1) * geometry.itemsize
        batch = groups * leaving
        filters = max(1, min(P_MAX // pieces, UPDATE_FILTER_BYTES // per_group) // batch) * batch
        ahead = max(1, min(ahead, AHEAD_BYTES // (groups * channels * (geometry.W + state) * geometry.itemsize)))
        loads = TAPS_BYTES // (channels * geometry.S * geometry.itemsize) - 1
        ahead = max(1, min(ahead, loads * filters // groups))
    return UpdatePlan(
        state=state,
        pieces=pieces,
        pitch=pitch,
        images=images,
        image_tiles=image_tiles,
        channels=channels,
        groups=groups,
        leave=leaving,
        filters=filters,
        ahead=ahead,
    )


def piece_block(c0, count, plan):
    """A PieceBlock."""
    return PieceBlock(c0=c0, count=count, length=div_ceil(count, plan.pieces))


def piece_start(block, h):
    """First channel of a piece: h * length, or earlier so that it ends with the block."""
    return block.c0 + min(h * block.length, block.count - block.length)


def piece_skip(block, h):
    """Channels at the start of a piece that belong to the one before it; `length` or more if all do."""
    return block.c0 + h * block.length - piece_start(block, h)


def chunks_of(block, plan):
    """Chunks of a block."""
    return div_ceil(block.length, plan.channels * plan.groups)


def group_start(block, plan, group):
    """First channel, within a piece, of a group; the last group overlaps the one before it rather than be smaller."""
    return min(group * plan.channels, block.length - plan.channels)


def chunk_groups(block, plan, chunk):
    """(first group, how many) of a chunk."""
    first = chunk * plan.groups
    return first, min(plan.groups, div_ceil(block.length, plan.channels) - first)


def chunk_channels(block, plan, chunk):
    """(first channel within a piece, how many) of a chunk."""
    groups = chunk_groups(block, plan, chunk)
    first = group_start(block, plan, groups[0])
    return first, group_start(block, plan, groups[0] + groups[1] - 1) + plan.channels - first


def blocks_of(geometry, plan):
    """The channels in halves, for two cores; one channel is a block of its own."""
    if geometry.C == 1:
        return [piece_block(0, 1, plan)]
    half = div_ceil(geometry.C, 2)
    return [piece_block(0, half, plan), piece_block(half, geometry.C - half, plan)]


def batches_of(geometry, plan):
    """All batches, in order; cores take contiguous shares."""
    found = []
    for block in blocks_of(geometry, plan):
        chunks = chunks_of(block, plan)
        for first in range(0, chunks, plan.leave):
            for n0 in range(0, geometry.N, plan.images):
                found.append(
                    Batch(
                        block=block,
                        first=first,
                        number=min(plan.leave, chunks - first),
                        n0=n0,
                        nn=min(plan.images, geometry.N - n0),
                    )
                )
    return found


def count_batches(geometry, plan):
    """How many `batches_of` finds."""
    count = 0
    for block in blocks_of(geometry, plan):
        count += div_ceil(chunks_of(block, plan), plan.leave) * div_ceil(geometry.N, plan.images)
    return count


def taps_met(geometry, width, shift, q):
    """(first tap, how many, position of the first) of column q within positions 0 .. width-1; shift: position 0's
    place in the padded row."""
    first = 0
    at = q * geometry.stride - shift
    if at < 0:
        first = div_ceil(-at, geometry.dilation)
        at += first * geometry.dilation
    if first >= geometry.S or at >= width:
        return 0, 0, 0
    return first, min(geometry.S - first, (width - 1 - at) // geometry.dilation + 1), at
