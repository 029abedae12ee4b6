"""`update`: a few positions of many images. Settings, schedule, what it does not run.

Images are on partitions, groups of channels on the contraction. Channels come in two halves (blocks); each is cut into
`pieces` ranges of `length` channels, so that piece h of image n is row h * pitch + n of a tile. A group is `channels`
channels of every piece; a chunk is some groups of some images. Where pieces or groups do not divide what they are cut
from, the last one overlaps the one before it: all are of one size. For few images Vector multiplies, with channels on
partitions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .channels import ChannelBlock, channel_halves
from .depthwise import Extras, RowGeometry, instructions_refusal
from .settings import Config, Settings, choice, count, warm_up
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, div_ceil, slot_for

#: Most groups of a chunk: at most 128 groups' filters are transposed at once.
GROUPS_MAX = 16
#: Bytes a partition of SBUF for transposed filters, and for chunks on their way, and most of these.
UPDATE_FILTER_BYTES, AHEAD_BYTES, CHUNKS_AHEAD = 32_768, 65_536, 8
#: Bytes a partition of SBUF for filters as loaded: those in use and those on their way.
TAPS_BYTES = 98_304
#: Most positions of a row (or of a state): the contraction of one channel.
ROW_MAX = 128
#: Without a config the array multiplies for so many images for each channel on a partition of Vector's, or in all where
#: taps meet so many elements for each byte of one; or for few where Vector's runs would be of so few bytes that DMA
#: engines take long for each. Not if filters have more taps an image, or rows more columns a tap.
TENSOR_IMAGES, MET_ELEMENTS, TENSOR_IMAGES_TINY, TINY_RUN = 16, 64, 3, 4
TAPS_AN_IMAGE, COLUMNS_A_TAP = 4000, 16
#: Matmuls on zeros without a config, and rows from which they pay: few are done before the array is at full rate.
WARMUP, MANY_ROWS = 16, 65_536
#: Bytes a partition of a part's rows, products and results, of which two are there at once, and of filters, as well.
PART_BYTES = 32_768
UPDATE_VECTOR_FILTER_BYTES = 49_152


@dataclass(frozen=True)
class UpdateSettings(Settings):
    """All settings; all but the first are of the Tensor Engine."""

    algorithm = "update"
    tried = ("vector_reads", "warmup")

    engine: str = choice("engine that multiplies", ("tensor", "vector"))
    channels: int = count("channels of a group; fewer where they do not fit", 1, 128)
    groups: int = count("groups of a chunk; fewer where they do not fit", 1, GROUPS_MAX)
    vector_reads: int = count(
        "of this many pieces of results Vector evacuates one and Scalar the others; 0: Scalar all",
        0,
        64,
        default=2,
        near=(0, 1, 2, 3),
    )
    warmup: int = warm_up("by shape", near=(0, 16, 24))


@dataclass(frozen=True)
class UpdateSchedule:
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


@dataclass(frozen=True)
class UpdateChunk:
    """Groups first .. first+count-1 of a block, of images n0 .. n0+nn-1: `width` channels of a piece from `start`."""

    block: ChannelBlock
    first: int
    count: int
    start: int
    width: int
    n0: int
    nn: int


@dataclass(frozen=True)
class UpdatePart:
    """Images n0 .. n0+nn-1 of a block of channels."""

    block: ChannelBlock
    n0: int
    nn: int


def update_settings(geometry: RowGeometry, extras: Extras, config: Config) -> UpdateSettings:
    """All settings of a config; without one, chunks of as many channels as a bank holds."""
    channels, most, room = group_limits(geometry, extras.state)
    on_vector = extras.strict_nonfinite or channels == 0 or not is_for_tensor(geometry, extras.state)
    return UpdateSettings.read(
        config,
        engine="vector" if on_vector else "tensor",
        channels=max(1, channels),
        groups=max(1, min(most, room // max(1, channels))),
        warmup=WARMUP if geometry.N * geometry.C >= MANY_ROWS else 0,
    )


def is_for_tensor(geometry: RowGeometry, with_state: bool) -> bool:
    """Whether there are enough images, and not too many columns or taps, for the array."""
    length = div_ceil(geometry.C, PARTS * P_MAX)
    positions = geometry.W + (geometry.pad_left if with_state else 0)
    images = TENSOR_IMAGES * length
    if length * geometry.Q * geometry.itemsize <= TINY_RUN:
        images = TENSOR_IMAGES_TINY
    elif geometry.N * min(geometry.S, positions) >= MET_ELEMENTS * geometry.itemsize:
        images = TENSOR_IMAGES
    few_taps = geometry.S * geometry.C <= TAPS_AN_IMAGE * geometry.N
    return geometry.N >= images and few_taps and geometry.Q <= COLUMNS_A_TAP * geometry.S


def unsupported(geometry: RowGeometry, extras: Extras, config: Config, cores: int) -> str:
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = UpdateSettings.refusal(config)
    if reason != "":
        return reason
    settings = update_settings(geometry, extras, config)
    on_tensor = settings.engine == "tensor"
    if extras.strict_nonfinite and on_tensor:
        return 'strict_nonfinite=True: the array adds zeros times other channels; leave out engine="tensor"'
    if geometry.lhs_dilation > 1:
        return f"lhs_dilation={geometry.lhs_dilation}: update takes 1; use mixed or vector"
    longest = max(geometry.W, geometry.pad_left if extras.state else 0)
    if longest > ROW_MAX:
        return f"W={geometry.W}: update takes rows (and states) of at most {ROW_MAX} elements; use mixed or vector"
    plan = build(geometry, extras.state, settings)
    if on_tensor and plan.channels == 0:
        return (
            f"Q={geometry.Q}, S={geometry.S}: the columns of one channel must fit a PSUM bank, its taps SBUF; use "
            f"mixed or vector"
        )
    if on_tensor:
        count = count_update_instructions(geometry, plan, settings.warmup, cores)
        return instructions_refusal(geometry, "update", count)
    parts = len(parts_of(geometry, extras))
    if parts == 0:
        return (
            f"C={geometry.C}, W={geometry.W}, S={geometry.S}, Q={geometry.Q}: rows, filters and products of one "
            f"image must fit SBUF on 256 partitions; split C over several calls, or use vector"
        )
    return instructions_refusal(geometry, "update", count_vector(geometry, parts, cores))


def count_update_instructions(geometry: RowGeometry, plan: UpdateSchedule, warmup: int, cores: int) -> int:
    """Instructions of the busiest core, at most: loads, transposes, bands, matmuls, read-outs, stores."""
    kinds = 2 if plan.state > 0 else 1
    chunk = 15 * plan.pieces + kinds * (3 * plan.groups + 4 + geometry.Q)
    filters = 2 + 2 * plan.pieces + 4 * geometry.Q * kinds
    chunks = div_ceil(count_chunks(geometry, plan), cores)
    loads = div_ceil(chunks, plan.filters // plan.groups * plan.image_tiles) + 2
    return chunks * chunk + loads * filters + 5 + warmup


def update_images(geometry: RowGeometry) -> tuple[int, int, int, int]:
    """(pieces, partitions of each, images of a tile, image tiles)."""
    image_tiles = div_ceil(geometry.N, P_MAX)
    if geometry.C == 1 and geometry.N > 1:
        # for two cores
        image_tiles += image_tiles % 2
    images = div_ceil(geometry.N, image_tiles)
    if images > P_MAX // 2 or geometry.C == 1:
        return 1, images, images, image_tiles
    pitch = slot_for(images)
    return P_MAX // pitch, pitch, images, image_tiles


def group_limits(geometry: RowGeometry, with_state: bool) -> tuple[int, int, int]:
    """(most channels of a group, 0 if not even one fits; most groups of a chunk; channels of a piece in a bank)."""
    tiling = update_images(geometry)
    pieces, rows = tiling[0], tiling[0] * tiling[1]
    longest = max(geometry.W, geometry.pad_left if with_state else 0)
    room = BANK_COLUMNS // (pieces * geometry.Q)
    channels = min(P_MAX // longest, room)
    channels = min(channels, div_ceil(max(1, geometry.C // 2), pieces))
    channels = min(channels, TAPS_BYTES // (2 * geometry.S * geometry.itemsize))
    of_slots = BANK_BYTES // ((rows + rows % 2) * geometry.itemsize)
    return channels, min(min(GROUPS_MAX, of_slots), room), room


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, with_state: bool, settings: UpdateSettings) -> UpdateSchedule:
    """The schedule of all settings; channels is 0 if not even one channel fits."""
    state = geometry.pad_left if with_state else 0
    pieces, pitch, images, image_tiles = update_images(geometry)
    most, most_groups, room = group_limits(geometry, with_state)
    channels = min(settings.channels, most)
    groups, filters, ahead = 0, 0, CHUNKS_AHEAD
    if channels > 0:
        groups = min(min(settings.groups, most_groups), room // channels)
        per_group = pieces * geometry.Q * (2 if state > 0 else 1) * geometry.itemsize
        filters = max(1, min(P_MAX // pieces, UPDATE_FILTER_BYTES // per_group) // groups) * groups
        chunk_bytes = groups * channels * (geometry.W + state) * geometry.itemsize
        loads = TAPS_BYTES // (channels * geometry.S * geometry.itemsize) - 1
        ahead = max(1, min(min(ahead, AHEAD_BYTES // chunk_bytes), loads * filters // groups))
    return UpdateSchedule(
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


def group_start(block: ChannelBlock, plan: UpdateSchedule, group: int) -> int:
    """First channel, within a piece, of a group; the last group overlaps the one before it rather than be smaller."""
    return min(group * plan.channels, block.length - plan.channels)


def group_runs(block: ChannelBlock, plan: UpdateSchedule, first: int, count: int) -> list[tuple[int, int, int]]:
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


def update_chunks(geometry: RowGeometry, plan: UpdateSchedule) -> list[UpdateChunk]:
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


def count_chunks(geometry: RowGeometry, plan: UpdateSchedule) -> int:
    """How many `update_chunks` finds."""
    count = 0
    for block in channel_halves(geometry.C, plan.pieces):
        count += div_ceil(block.length, plan.channels * plan.groups)
    return count * div_ceil(geometry.N, plan.images)


def taps_met(geometry: RowGeometry, width: int, shift: int, q: int) -> tuple[int, int, int]:
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


def parts_of(geometry: RowGeometry, extras: Extras) -> list[UpdatePart]:
    """All parts of the work, in order; none if one image does not fit."""
    state = geometry.pad_left if extras.state else 0
    products = geometry.S if extras.strict_nonfinite else min(geometry.S, geometry.W + state)
    # of a channel and image at once: row, state, products of two columns, results
    elements = geometry.W + state + 2 * products + 2 * geometry.Q
    found = []
    for block in channel_halves(geometry.C, P_MAX):
        images = min(geometry.N, PART_BYTES // (4 * block.length * elements))
        if block.length * geometry.S * geometry.itemsize > UPDATE_VECTOR_FILTER_BYTES:
            images = 0
        if geometry.C == 1:
            images = min(images, div_ceil(geometry.N, 2))
        for n0 in range(0, geometry.N if images > 0 else 0, max(1, images)):
            found.append(UpdatePart(block=block, n0=n0, nn=min(images, geometry.N - n0)))
    return found


def count_vector(geometry: RowGeometry, parts: int, cores: int) -> int:
    """Instructions of the busiest core, at most."""
    return div_ceil(parts, cores) * (17 + 6 * geometry.Q) + 5
