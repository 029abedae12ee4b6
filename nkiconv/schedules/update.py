"""`update`: a few positions of many images. Settings, schedule, unsupported problems.

Images are on partitions, groups of channels on the contraction. Channels come in two halves (blocks); each is cut into
`pieces` ranges of `length` channels: piece h of image n is row h * pitch + n of a tile. A group is `channels` channels
of every piece; a tile is some groups of some images. All pieces and all groups have one size: the last one overlaps the
one before it if they do not divide evenly. For few images Vector multiplies, with channels on partitions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from ..simulator.timing import Rates
from ..simulator.timing.target import Target
from .channels import ChannelBlock, channel_halves
from .cuts import places_inside
from .depthwise import Options, RowGeometry, gate_ns, input_unsupported, inputs_of
from .prices import Prices, rows_ns
from .settings import Config, Settings, choice, count, setting, warm_up
from .tiles import BANK_BYTES, BANK_COLUMNS, P_MAX, PARTS, cut_at, div_ceil, slot_for

#: Engines that can multiply.
ENGINES = ("tensor", "vector")
#: Most groups of a tile: at most 128 groups' filters are transposed at once.
GROUPS_MAX = 16
#: Bytes a partition of SBUF for transposed filters and for tiles in flight, and most tiles in flight.
UPDATE_FILTER_BYTES, AHEAD_BYTES, TILES_AHEAD = 32_768, 65_536, 8
#: Bytes a partition of SBUF for filters as loaded, in use and in flight.
TAPS_BYTES = 98_304
#: Most positions of a row (or of a state): the contraction of one channel.
ROW_MAX = 128
#: Matmuls on zeros without a config, and least rows with which they pay: fewer end before the array is at full rate.
WARMUP, MANY_ROWS = 16, 65_536
#: Bytes a partition of a tile's rows, products and results on Vector, two tiles at once; and of filters, also two.
PART_BYTES, VECTOR_FILTER_BYTES = 32_768, 49_152
#: ns from the first load to the first sums and from the last sums to the end of the last store, without the stages' own
#: times of the first and the last tile.
TENSOR_ENDS_NS, VECTOR_ENDS_NS = 2550.0, 2150.0
#: Instructions of Vector for a tile besides products and sums, with its waits; on the Tensor Engine, besides one a
#: column for the tile's bands.
VECTOR_INSTRUCTIONS, TENSOR_INSTRUCTIONS = 4, 3


@dataclass(frozen=True)
class UpdateSettings(Settings):
    """All settings; all but the first are of the Tensor Engine."""

    algorithm = "update"
    tried = ("vector_reads", "warmup")

    engine: str = choice("engine that multiplies", ENGINES)
    vector_reads: int = count(
        "Vector evacuates one of this many pieces of results, Scalar the others; 0: Scalar all",
        0,
        64,
        default=2,
        near=(0, 1, 2, 3),
    )
    warmup: int = warm_up("by shape", near=(0, 16, 24))


@dataclass(frozen=True)
class UpdateTile:
    """Images n0 .. n0+nn-1 of a block of channels: groups first .. first+count-1 of it on Tensor, all on Vector."""

    block: ChannelBlock
    n0: int
    nn: int
    first: int = 0
    count: int = 0


@dataclass(frozen=True)
class UpdateSchedule:
    """Numbers of one problem; the same on every core. Numbers of groups are 0 on Vector."""

    engine: str
    vector_reads: int
    warmup: int
    state: int  # positions of an initial state in front of each row, 0 without one
    pieces: int  # ranges of a block's channels on neighbouring partitions
    pitch: int  # partitions from one to the next
    images: int  # of a tile
    image_tiles: int
    channels: int = 0  # of a group
    groups: int = 0  # of a tile
    filters: int = 0  # groups (of one piece) whose filters are loaded together: of whole tiles
    ahead: int = 0  # tiles in flight
    tiles: tuple[UpdateTile, ...] = ()  # in order, cores take contiguous shares; empty if the smallest does not fit


def complete(geometry: RowGeometry, options: Options, config: Config, target: Target) -> UpdateSettings:
    """All settings of a config; an open engine is that of the least bound."""
    warmup = WARMUP if geometry.N * geometry.C >= MANY_ROWS else 0
    found = UpdateSettings.read(config, engine="tensor", warmup=warmup)
    if "engine" in dict(config or ()):
        return found
    on_array_ns, on_vector_ns = (
        bound_ns(geometry, options, build(geometry, options, one), target)
        for one in (found, replace(found, engine="vector"))
    )
    is_vector = options.strict_nonfinite or on_array_ns == 0.0 or 0.0 < on_vector_ns < on_array_ns
    return replace(found, engine="vector") if is_vector else found


def first(geometry: RowGeometry, options: Options, target: Target) -> list[UpdateSettings]:
    """Settings of each engine that can multiply."""
    engines = ("vector",) if options.strict_nonfinite else ENGINES
    return [complete(geometry, options, (("engine", engine),), target) for engine in engines]


def config_unsupported(geometry: RowGeometry, options: Options, config: Config) -> str:
    """The error of a config, or why update never runs the problem; "" if neither."""
    if reason := UpdateSettings.unsupported_reason(config) or input_unsupported(geometry, "update"):
        return reason
    if options.strict_nonfinite and setting(config, "engine", "") == "tensor":
        return 'strict_nonfinite=True: the array adds zeros times other channels; leave out engine="tensor"'
    if max(geometry.W, _state(geometry, options.state)) > ROW_MAX:
        return f"W={geometry.W}: update takes rows (and states) of at most {ROW_MAX} elements; use mixed or vector"
    return ""


def plan_unsupported(geometry: RowGeometry, options: Options, plan: UpdateSchedule) -> str:
    """Why memory does not take a schedule; "" if it does."""
    if not plan.tiles and plan.engine == "tensor":
        return (
            f"Q={geometry.Q}, S={geometry.S}: the columns of one channel must fit a PSUM bank, its taps SBUF; use "
            f"mixed or vector"
        )
    if not plan.tiles:
        return (
            f"C={geometry.C}, W={geometry.W}, S={geometry.S}, Q={geometry.Q}: rows, filters and products of one "
            f"image must fit SBUF on 256 partitions; split C over several calls, or use vector"
        )
    return ""


def _state(geometry: RowGeometry, with_state: bool) -> int:
    """Positions of an initial state in front of each row."""
    return geometry.pad_left if with_state else 0


def update_images(geometry: RowGeometry) -> tuple[int, int, int, int]:
    """(pieces, partitions of each, images of a tile, image tiles)."""
    image_tiles = div_ceil(geometry.N, P_MAX)
    if geometry.C == 1 and geometry.N > 1:
        # an even number, for two cores
        image_tiles += image_tiles % 2
    images = div_ceil(geometry.N, image_tiles)
    if images > P_MAX // 2 or geometry.C == 1:
        return 1, images, images, image_tiles
    pitch = slot_for(images)
    return P_MAX // pitch, pitch, images, image_tiles


def fill_bank(geometry: RowGeometry, with_state: bool) -> tuple[int, int]:
    """(channels of a group, groups) of the tile of the least ns a channel; no channels if one does not fit."""
    (pieces, pitch, _, _), target = update_images(geometry), Target.of(Rates())
    room, of_rows = BANK_COLUMNS // (pieces * geometry.Q), P_MAX // max(geometry.W, _state(geometry, with_state))
    of_taps = TAPS_BYTES // (2 * geometry.S * geometry.itemsize)
    most = min(of_rows, room, of_taps, div_ceil(max(1, geometry.C // 2), pieces))
    most_groups = min(GROUPS_MAX, BANK_BYTES // ((pieces * pitch + pitch % 2) * geometry.itemsize), room)
    tile_ns = (geometry.Q + TENSOR_INSTRUCTIONS) * target.vector_fixed_ns
    group_ns = 2 * (P_MAX * target.tensor_column_ns + target.matmul_ns)  # a transpose and a matmul
    ways = [(min(most, room // groups), groups) for groups in range(1, most_groups + 1)]
    fitting = [one for one in ways if one[0] > 0]
    return min(fitting, key=lambda one: (tile_ns + one[1] * group_ns) / (one[0] * one[1]), default=(0, 0))


@functools.lru_cache(maxsize=4096)
def build(geometry: RowGeometry, options: Options, settings: UpdateSettings) -> UpdateSchedule:
    """The schedule of all settings."""
    state, tiling = _state(geometry, options.state), update_images(geometry)
    if settings.engine == "vector":
        return UpdateSchedule("vector", 0, 0, state, *tiling, tiles=_on_vector(geometry, options))
    (channels, groups), pieces = fill_bank(geometry, options.state), tiling[0]
    plan = UpdateSchedule("tensor", settings.vector_reads, settings.warmup, state, *tiling, channels, groups)
    if channels == 0:
        return plan
    per_group = pieces * geometry.Q * (2 if state > 0 else 1) * geometry.itemsize
    filters = max(1, min(P_MAX // pieces, UPDATE_FILTER_BYTES // per_group) // groups) * groups
    tile_bytes = groups * channels * (geometry.W * inputs_of(geometry) + state) * geometry.itemsize
    loads = TAPS_BYTES // (channels * geometry.S * geometry.itemsize) - 1
    ahead = max(1, min(TILES_AHEAD, AHEAD_BYTES // tile_bytes, loads * filters // groups))
    tiles = (
        UpdateTile(block, *images, *some)
        for block in channel_halves(geometry.C, pieces)
        for some in cut_at(div_ceil(block.length, channels), groups)
        for images in cut_at(geometry.N, plan.images)
    )
    return replace(plan, filters=filters, ahead=ahead, tiles=tuple(tiles))


def channels_of(plan: UpdateSchedule, tile: UpdateTile) -> tuple[int, int]:
    """(first, how many) of the channels of a tile's groups within a piece."""
    start = min(tile.first * plan.channels, tile.block.length - plan.channels)
    return start, min(tile.block.length, (tile.first + tile.count) * plan.channels) - start


def group_runs(plan: UpdateSchedule, tile: UpdateTile) -> list[tuple[int, int, int]]:
    """(group, how many, first channel) of runs of neighbouring groups, counted from the first of a tile; a block's last
    group is a separate run if it overlaps the one before it."""
    channels = channels_of(plan, tile)[1]
    overlaps = int(tile.count * plan.channels > channels)
    runs = (0, tile.count - overlaps, 0), (tile.count - 1, overlaps, channels - plan.channels)
    return [one for one in runs if one[1] > 0]


def taps_met(geometry: RowGeometry, low: int, high: int, q: int) -> tuple[int, int, int]:
    """(first tap, how many, its place) of column q's taps inside elements low .. high-1 of x."""
    at = q * geometry.stride - geometry.pad_left - low
    first, end = places_inside(at, geometry.dilation, geometry.S, high - low)
    return first, end - first, at + first * geometry.dilation


def _on_vector(geometry: RowGeometry, options: Options) -> tuple[UpdateTile, ...]:
    """Tiles on Vector; none if one image does not fit."""
    state = _state(geometry, options.state)
    products = geometry.S if options.strict_nonfinite else min(geometry.S, geometry.W + state)
    # elements of a channel and image at once: row, state, products of two columns, results
    elements = geometry.W * inputs_of(geometry) + state + 2 * products + 2 * geometry.Q
    found: list[UpdateTile] = []
    for block in channel_halves(geometry.C, P_MAX):
        images = min(geometry.N, PART_BYTES // (4 * block.length * elements))
        if block.length * geometry.S * geometry.itemsize > VECTOR_FILTER_BYTES:
            images = 0
        if geometry.C == 1:
            images = min(images, div_ceil(geometry.N, 2))
        found += [UpdateTile(block, *some) for some in cut_at(geometry.N if images > 0 else 0, max(1, images))]
    return tuple(found)


def bound_ns(geometry: RowGeometry, options: Options, plan: UpdateSchedule, target: Target) -> float:
    """ns of a core, about; 0 if no tile fits."""
    if plan.engine == "vector":
        return vector_ns(geometry, options, plan, target)
    return tensor_ns(geometry, plan, target) if plan.tiles else 0.0


def tensor_ns(geometry: RowGeometry, plan: UpdateSchedule, target: Target) -> float:
    """ns on the Tensor Engine: the first filters and loads, the busiest engine of all tiles, the ends."""
    kinds, columns, item = 1 + (plan.state > 0), geometry.Q, geometry.itemsize
    every = div_ceil(div_ceil(div_ceil(geometry.C, PARTS), plan.pieces), plan.channels)
    groups, filters = min(plan.groups, every), plan.pieces * min(plan.filters, every)
    rows, width = plan.pieces * plan.pitch, plan.channels * groups
    element_ns, prices = target.copy_ns(item), Prices(target, geometry)
    # of each column: taps in place, unless all positions have one, beside transposes of others
    placed = sum(count < geometry.W for count in met_by_columns(geometry, plan.state))
    taps_ns = placed * 2 * (target.vector_fixed_ns + plan.channels * geometry.W * target.vector_16bit_ns)
    taps_ns = max(taps_ns, kinds * columns * prices.transpose_ns())
    taps_ns += kinds * columns * (target.vector_fixed_ns + filters * element_ns)
    taps_ns += min(target.rows_an_engine, filters) * target.row_ns(plan.channels * geometry.S, geometry.w_s, item)

    array_ns = groups * kinds * (prices.transpose_ns() + prices.matmul_ns(plan.pieces * plan.channels * columns))
    bands_ns = kinds * columns * (target.vector_fixed_ns + plan.pieces * width * element_ns)
    on_vector = div_ceil(plan.pieces, plan.vector_reads) if plan.vector_reads else 0
    vector_ns = bands_ns / plan.image_tiles
    vector_ns += on_vector * (target.vector_fixed_psum_ns + width * columns * target.vector_ns)
    scalar_ns = kinds * (target.scalar_fixed_psum_ns + groups * rows * item * target.scalar_ns / 4)
    scalar_ns += (plan.pieces - on_vector) * (target.scalar_fixed_psum_ns + width * columns * target.scalar_ns)
    num_bytes = rows * width * (inputs_of(geometry) * geometry.W + columns) * item
    dma_ns = rows_ns(target, rows, traffic_ns(geometry, width, target), num_bytes)
    tile_ns = max(array_ns, vector_ns, scalar_ns, dma_ns)
    return float(TENSOR_ENDS_NS + taps_ns + dma_ns + plan.image_tiles * div_ceil(every, groups) * tile_ns)


def vector_ns(geometry: RowGeometry, options: Options, plan: UpdateSchedule, target: Target) -> float:
    """ns on Vector and GpSimd: for each column a product and a sum over the taps inside the row, of all images of a
    part; 0 if one image does not fit."""
    if not plan.tiles:
        return 0.0
    met = sum(met_by_columns(geometry, plan.state))
    # GpSimd, half as fast, takes two thirds of the products, and Vector the others and all sums
    products = 4 / 3 * (geometry.S * geometry.Q if options.strict_nonfinite else met)
    length = plan.tiles[0].block.length
    tiles = div_ceil(len(plan.tiles), PARTS)
    work_ns = (2 * geometry.Q + VECTOR_INSTRUCTIONS) * tiles * target.vector_fixed_ns
    work_ns += geometry.N * length * (products * target.vector_ns + geometry.W * gate_ns(geometry, target))
    # loads of all tiles but the first overlap the work
    dma_ns = target.rows_an_engine * geometry.N * traffic_ns(geometry, length, target)
    return float(VECTOR_ENDS_NS + max(work_ns, dma_ns) + min(work_ns, dma_ns) / tiles)


def met_by_columns(geometry: RowGeometry, state: int) -> list[int]:
    """How many taps are inside the row, and inside the state if there is one, for each column."""
    sources = [(0, geometry.W), (-state, 0)][: 1 + (state > 0)]
    return [taps_met(geometry, *source, q)[1] for source in sources for q in range(geometry.Q)]


def traffic_ns(geometry: RowGeometry, channels: int, target: Target) -> float:
    """ns of a DMA engine for the x, with its factor, and the y of so many channels of an image."""
    rows = (geometry.W, geometry.x_c, geometry.x_w), (geometry.Q, geometry.y_c, geometry.y_q)
    x_ns, y_ns = (
        size * target.run_ns(channels * geometry.itemsize)
        if c_step == 1 < step
        else target.row_ns(channels * size, step, geometry.itemsize)
        for size, c_step, step in rows
    )
    return inputs_of(geometry) * x_ns + y_ns
