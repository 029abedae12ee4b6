"""How `update` cuts a convolution of short rows: images on partitions, groups of channels on the contraction.

Channels come in two halves (blocks); each is cut into `pieces` ranges of `length` channels, so that piece h of image n
is row h * pitch + n of a tile. A group is `channels` channels of every piece; a chunk is some groups of some images.
Where pieces or groups do not divide what they are cut from, the last one overlaps the one before it: all are of one
size.

Compile-time code.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.tiles import BANK_BYTES, BANK_COLUMNS, div_ceil, slot_for
from ....schedules.update import GROUPS_MAX
from ..free_channels import channel_halves

#: Bytes a partition of SBUF for transposed filters, and for chunks on their way, and most of these.
UPDATE_FILTER_BYTES, AHEAD_BYTES, CHUNKS_AHEAD = 32_768, 65_536, 8
#: Bytes a partition of SBUF for filters as loaded: those in use and those on their way.
TAPS_BYTES = 98_304
#: Most positions of a row (or of a state): the contraction of one channel.
ROW_MAX = 128


@dataclass
class UpdatePlan(nl.NKIObject):
    """Numbers of one problem; the same on every core."""

    #: positions of an initial state in front of each row, 0 without one
    state: int
    #: ranges of a block's channels side by side on the partitions, and partitions from one to the next
    pieces: int
    pitch: int
    #: images of a tile, and image tiles
    images: int
    image_tiles: int
    #: channels of a group, 0 if not even one fits; groups of a chunk
    channels: int
    groups: int
    #: groups (of one piece) whose filters are loaded together: whole chunks
    filters: int
    #: chunks on their way
    ahead: int


@dataclass
class UpdateChunk(nl.NKIObject):
    """Groups first .. first+count-1 of a block, of images n0 .. n0+nn-1: `width` channels of a piece from `start`."""

    block: object
    first: int
    count: int
    start: int
    width: int
    n0: int
    nn: int


def update_images(geometry):
    """(pieces, partitions of each, images of a tile, image tiles)."""
    P_MAX = nl.tile_size.pmax
    image_tiles = div_ceil(geometry.N, P_MAX)
    if geometry.C == 1 and geometry.N > 1:
        # for two cores
        image_tiles += image_tiles % 2
    images = div_ceil(geometry.N, image_tiles)
    if images > P_MAX // 2 or geometry.C == 1:
        return 1, images, images, image_tiles
    pitch = slot_for(images)
    return P_MAX // pitch, pitch, images, image_tiles


def group_limits(geometry, with_state):
    """(most channels of a group, 0 if not even one fits; most groups of a chunk; channels of a piece in a bank)."""
    P_MAX = nl.tile_size.pmax
    tiling = update_images(geometry)
    pieces, rows = tiling[0], tiling[0] * tiling[1]
    longest = max(geometry.W, geometry.pad_left if with_state else 0)
    room = BANK_COLUMNS // (pieces * geometry.Q)
    channels = min(P_MAX // longest, room)
    channels = min(channels, div_ceil(max(1, geometry.C // 2), pieces))
    channels = min(channels, TAPS_BYTES // (2 * geometry.S * geometry.itemsize))
    of_slots = BANK_BYTES // ((rows + rows % 2) * geometry.itemsize)
    return channels, min(min(GROUPS_MAX, of_slots), room), room


def plan_update(geometry, with_state, config):
    """UpdatePlan of a geometry with the settings of UpdateSettings; channels is 0 if not even one channel fits."""
    state = geometry.pad_left if with_state else 0
    pieces, pitch, images, image_tiles = update_images(geometry)
    most, most_groups, room = group_limits(geometry, with_state)
    channels = min(config.channels, most)
    groups, filters, ahead = 0, 0, CHUNKS_AHEAD
    if channels > 0:
        groups = min(min(config.groups, most_groups), room // channels)
        per_group = pieces * geometry.Q * (2 if state > 0 else 1) * geometry.itemsize
        filters = max(1, min(nl.tile_size.pmax // pieces, UPDATE_FILTER_BYTES // per_group) // groups) * groups
        chunk_bytes = groups * channels * (geometry.W + state) * geometry.itemsize
        loads = TAPS_BYTES // (channels * geometry.S * geometry.itemsize) - 1
        ahead = max(1, min(min(ahead, AHEAD_BYTES // chunk_bytes), loads * filters // groups))
    return UpdatePlan(
        state=state,
        pieces=pieces,
        pitch=pitch,
        images=images,
        image_tiles=image_tiles,
        channels=channels,
        groups=groups,
        filters=filters,
        ahead=ahead,
    )


def group_start(block, plan, group):
    """First channel, within a piece, of a group; the last group overlaps the one before it rather than be smaller."""
    return min(group * plan.channels, block.length - plan.channels)


def group_runs(block, plan, first, count):
    """(first group, how many, first channel within a piece) of groups that follow each other, and of the last one
    where it overlaps."""
    last = first + count - 1
    overlaps = group_start(block, plan, last) < last * plan.channels
    regular = count - 1 if overlaps else count
    runs = []
    if regular > 0:
        runs.append((first, regular, first * plan.channels))
    if overlaps:
        runs.append((last, 1, block.length - plan.channels))
    return runs


def update_chunks(geometry, plan):
    """All chunks, in order; cores take contiguous shares."""
    found = []
    for block in channel_halves(geometry.C, plan.pieces):
        groups = div_ceil(block.length, plan.channels)
        for first in range(0, groups, plan.groups):
            count = min(plan.groups, groups - first)
            start = group_start(block, plan, first)
            end = group_start(block, plan, first + count - 1) + plan.channels
            for n0 in range(0, geometry.N, plan.images):
                nn = min(plan.images, geometry.N - n0)
                found.append(
                    UpdateChunk(block=block, first=first, count=count, start=start, width=end - start, n0=n0, nn=nn)
                )
    return found


def count_chunks(geometry, plan):
    """How many `update_chunks` finds."""
    count = 0
    for block in channel_halves(geometry.C, plan.pieces):
        count += div_ceil(block.length, plan.channels * plan.groups)
    return count * div_ceil(geometry.N, plan.images)


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
