"""`banded` on the host: its settings are those that take least by walks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....schedules.banded import (
    BANDED_TILE_BYTES,
    BandedSchedule,
    BandedSettings,
    block_counts,
    build,
    fits,
    tile_columns,
)
from ....schedules.banded_tiles import shape_refusal, size_refusal
from ....schedules.depthwise import part_most
from ....schedules.tiles import BANK_COLUMNS, PARTS
from ....simulator.hardware import PARTITIONS
from ...request import Config
from ..algorithm import Algorithm, Guess, Shape, config_of, ints, pairs_of, with_settings
from .banded_walk import walk_ns, walked_groups
from .common import block_sizes, row_elements_us, shards_of, share_met

#: How much less a try must take than the best so far, and a whole round for another one.
BETTER, WORTHWHILE, ROUNDS = 0.997, 0.99, 2
#: Groups that the tries of one size and shard may walk together.
GROUPS_MAX = 2000
#: Sizes and shards whose other settings are tried, and how far from the best of them the others may be.
REFINED, NEAR = 4, 1.25

#: Bytes of a run, one chunk of one row, from which a DMA is as fast as it gets; from which it is fast enough to let a
#: tile have fewer groups than that needs, so that a core has TILES of them, whose stages overlap.
RUN_BYTES, RUN_BYTES_MIN, TILES = 1024, 256, 4
#: Columns of a matmul at least. Fewer take as long (pe.min_interval_rows), but leave the array idle, and it falls to
#: half rate below 3/8 of what it could do (throttle.threshold): 64 of 128 keep it at full rate, 96 also bring it back
#: there, which counts where a core's bands take longer than STREAMED_NS.
STREAMED, STREAMED_LONG, STREAMED_NS = 64, 96, 15000.0
#: Matmuls of 512 columns of zeros while the array waits for the first rows: it runs at half rate until it has been busy
#: for 3/8 of its full capacity in a window of 3.4 us (trn2.toml, throttle.*), and 6 of them are 1.3 us of it. Then, at
#: full rate, some while the first blocks are read out. A core whose bands take less than WARM_UP_NS is done before that
#: pays.
WARM_UP, REWARM, WARM_UP_NS = 6, 4, 2500.0
#: Groups of the first and the last tile.
EDGE = 4
#: Band buffers in turn, groups of a buffer at most, and ns that all of them together should last: a DMA's way from the
#: last use of a buffer to its next (dma.static_first_packet_ns, dma.receipt_ns and the transfer).
BUFFERS, BUFFER_GROUPS, BUFFERED_NS = 4, 8, 2500.0
#: Bytes a partition of all band buffers together, twice as many where the bands of one group are large.
BAND_BYTES = 65536
#: A group's bands are loaded by one DMA a channel, cheaper for the DMA engines than a copy in HBM, until issuing them
#: takes a good part of what the array needs for the group.
SCRATCH_BELOW = 1.5
#: ns of a group's matmuls from which the first does not wait for the second tile's rows, which come after its bands.
LONG_NS = 2500.0


@dataclass(frozen=True)
class Candidate:
    """Settings, the sizes that they come to, and ns by a walk."""

    config: BandedSettings
    blocks: BandedSchedule
    ns: float


class Banded(Algorithm):
    """Band matrices over blocks of positions."""

    #: how many times the best block, up and down, a quick search starts from
    FACTORS = 2

    def guesses(self, shape: Shape) -> list[Guess]:
        if not runs_banded(shape):
            return []
        found = first(shape, {}, REFINED)
        return [] if _is_too_large(shape, found[0]) else [Guess(pairs_of(found[0].config), found[0].ns, found)]

    def refined(self, shape: Shape, guess: Guess) -> Guess:
        best = best_of(shape, guess.start)
        return guess if _is_too_large(shape, best) else Guess(pairs_of(best.config), best.ns)

    def settle(self, shape: Shape, config: Config) -> Config:
        if shape_refusal(shape.geometry, shape.extras, config):
            return config
        if config is None:
            return self._own(shape)
        return pairs_of(first(shape, dict(config), 1)[0].config)

    def configs(self, shape: Shape, wide: bool) -> list[Config]:
        if not runs_banded(shape):
            return [None]  # the kernel says why
        own = self._own(shape)
        block = dict(own or ())["block"]
        sizes = block_sizes(shape.geometry.stride, block)
        if not wide:
            sizes = [size for size in sizes if block <= size * self.FACTORS and size <= block * self.FACTORS]
        found = [own, *[self.settle(shape, config_of(block=size)) for size in sizes]]
        if wide:  # small tiles at the ends have short runs, which constants may punish
            found += [with_settings(one, edge=0) for one in found if dict(one or ())["edge"] > 0]
        return list(dict.fromkeys(found))

    def near(self, shape: Shape, config: Config) -> list[Config]:
        blocks = self.settled(shape, config)
        now = blocks.settings
        sizes = block_sizes(shape.geometry.stride, now.block)
        place = sizes.index(now.block)
        sized = {name: getattr(blocks, name) for name in ("groups", "buffer_groups", "images")}
        by_shape: dict[str, Any] = {
            "edge": [one for one in (0, 2, blocks.groups // 4, blocks.groups // 2) if one != now.edge],
            "block": [one for one in sizes[max(0, place - 1) : place + 2] if one != now.block],
            "shard": [one for one in shards_of(shape.geometry) if one != now.shard],
            **({} if shape.geometry.N > 1 else {"images": []}),
        }
        return list(BandedSettings.near(config, {**dict(now.pairs), **sized}, **by_shape))

    def unit(self, shape: Shape, config: Config) -> int:
        blocks = self.settled(shape, config)
        return int(blocks.per_group * blocks.groups)

    def least_us(self, shape: Shape, config: Config) -> float:
        return max(least_ns(shape, self.settled(shape, config)) / 1e3, row_elements_us(shape))

    def symbols(self, shape: Shape, config: Config) -> Mapping[str, int]:
        blocks = self.settled(shape, config)
        return {**ints(blocks), **ints(blocks.settings)}

    def settled(self, shape: Shape, config: Config) -> Any:
        settings = BandedSettings(**dict(self.settle(shape, config) or ()))
        return build(shape.geometry, settings, shape.extras.state)

    def _own(self, shape: Shape) -> Config:
        """The best settings by walks, all of them."""
        return shape.once(("banded, own", None), lambda: pairs_of(best_of(shape, first(shape, {}, REFINED)).config))


def runs_banded(shape: Shape) -> bool:
    """Whether banded runs this, if it is not too large."""
    return str(shape_refusal(shape.geometry, shape.extras, None)) == ""


def _is_too_large(shape: Shape, candidate: Candidate) -> bool:
    return str(size_refusal(shape.geometry, shape.extras, candidate.blocks, shape.cores)) != ""


def least_ns(shape: Shape, blocks: BandedSchedule) -> float:
    """ns of the array that no timeline can beat: the bands' columns and the transposes, at full rate."""
    geometry, target = shape.geometry, shape.target
    fp32 = geometry.itemsize == 4
    column_ns = target.tensor_column_ns + target.matmul_ns / BANK_COLUMNS
    if fp32:
        column_ns = target.tensor_column_fp32_ns + target.matmul_passes_fp32 * target.matmul_fp32_ns / BANK_COLUMNS
    images = max(1, min(geometry.N, blocks.images))
    least_columns = target.matmul_columns_min * target.tensor_column_ns / column_ns
    columns = max(blocks.num_columns, least_columns / images) * geometry.N * blocks.num_groups * blocks.num_taps
    transposed = 0.95 * geometry.N * geometry.C * (geometry.W + geometry.Q) / PARTITIONS
    transposed_ns = transposed * target.tensor_column_ns * (target.transpose_passes_fp32 if fp32 else 1)
    return float(columns * share_met(geometry) * column_ns + transposed_ns) / shape.cores


def first(shape: Shape, given: Mapping[str, Any], most: int) -> list[Candidate]:
    """Up to `most` of the sizes and shards that settings leave open, the fastest first; none is walked where one is
    all there is and settings are given, nor what the array alone makes slower than NEAR. Of what does not fit SBUF
    there is one, if nothing fits."""
    geometry, extras = shape.geometry, shape.extras
    sizes = [given["block"]] if "block" in given else blocks_of(geometry.stride)
    shards = {size: [given["shard"]] if "shard" in given else shards_for(geometry, size) for size in sizes}
    found = [_sized(shape, filled(shape, given, size, shard)) for size in sizes for shard in shards[size]]
    if given and len(found) == 1:
        return found
    fitting = [one for one in found if fits(geometry, extras, one.blocks)] or found[:1]
    walked: list[Candidate] = []
    for bound_ns, one in sorted(((least_ns(shape, one.blocks), one) for one in fitting), key=lambda each: each[0]):
        if bound_ns <= NEAR * min((other.ns for other in walked), default=math.inf):
            walked.append(_walked(shape, one))
    return sorted(walked, key=lambda one: one.ns)[:most]


def best_of(shape: Shape, found: Sequence[Candidate]) -> Candidate:
    """The best of some after refining each that is near the first."""
    near = [one for one in found if one.ns <= NEAR * found[0].ns]
    return min((refine(shape, one) for one in near), key=lambda one: one.ns)


def refine(shape: Shape, best: Candidate) -> Candidate:
    """The best after changing one setting after the other for what takes less."""
    if not fits(shape.geometry, shape.extras, best.blocks):
        return best
    left = GROUPS_MAX
    for _ in range(ROUNDS):
        before_ns = best.ns
        for name in ("groups", "images", "buffer_groups", "buffers", "scratch", "edge", "streamed", "warmup", "rewarm"):
            for value in tries(name, shape, best.blocks):
                if left <= 0 or value == getattr(best.config, name):
                    continue
                given = {**dict(pairs_of(best.config) or ()), name: value}
                del given["bands_first"]
                other = _sized(shape, filled(shape, given, best.config.block, best.config.shard))
                if fits(shape.geometry, shape.extras, other.blocks):
                    left -= walked_groups(other.blocks)
                    if least_ns(shape, other.blocks) < best.ns:
                        other = _walked(shape, other)
                        best = other if other.ns < BETTER * best.ns else best
        if best.ns >= WORTHWHILE * before_ns:
            break
    return best


def tries(name: str, shape: Shape, blocks: BandedSchedule) -> Sequence[Any]:
    """Other values of a setting."""
    now = blocks.settings
    if name == "groups":
        return other_groups(blocks)
    half, double = max(1, blocks.images // 2), 2 * blocks.images
    more_images = [half, double] if double * blocks.groups <= PARTITIONS else [half]
    values: dict[str, Sequence[Any]] = {
        "images": more_images if shape.geometry.N > 1 else (),
        "buffer_groups": (max(1, blocks.buffer_groups // 2), 2 * blocks.buffer_groups),
        "buffers": (max(1, now.buffers - 1), now.buffers + 1, now.buffers + 2),
        "scratch": (not now.scratch,),
        "edge": (0, 2, 4, blocks.groups // 2),
        "streamed": (8, 32, 64, 96),
        "warmup": (0, 6, 12),
        "rewarm": (0, 4, 12),
    }
    return values[name]


def other_groups(blocks: BandedSchedule) -> list[int]:
    """Groups of a tile to try beside those that make it as large as runs need: fewer, or more for fewer tiles."""
    most = PARTITIONS // blocks.images
    share_groups = part_most(blocks.num_groups, blocks.settings.shard == "channels")
    more = [times * blocks.groups for times in (2, 4)]
    even = [-(-share_groups // tiles) for tiles in range(1, 5)]
    return [
        *([blocks.groups // 2] if blocks.groups > 1 else []),
        *[one for one in more if one < 2 * blocks.num_groups and one <= most],
        *[one for one in even if one != blocks.groups and one <= most],
    ]


def blocks_of(stride: int) -> list[int]:
    """Powers of two, and near them multiples of the stride; the stride itself where that is larger than all."""
    sizes = [max(1, 2**power // stride) * stride for power in range(1, 8)]
    return list(dict.fromkeys(size for size in sizes if size <= PARTITIONS)) or [stride]


def shards_for(geometry: Any, block: int) -> list[str]:
    """Axes that can be shared out, channels first, whose filters are loaded once; columns where there is no other."""
    _, _, num_groups, num_columns = block_counts(geometry, block)
    found = ["channels"] if num_groups >= PARTS else []
    found += ["batch"] if geometry.N >= PARTS else []
    return [*found, "columns"] if not found or num_columns >= PARTS else found


def filled(shape: Shape, given: Mapping[str, Any], block: int, shard: str) -> BandedSettings:
    """All settings of a block and a shard: those given, and what goes with them."""
    geometry, target, item = shape.geometry, shape.target, shape.geometry.itemsize
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    images = max(1, min(geometry.N, BANK_COLUMNS // num_columns, PARTITIONS // given.get("groups", 1)))
    images = min(given.get("images", images), geometry.N)
    group_ns = num_taps * max(target.matmul_columns_min, num_columns * images)
    group_ns *= target.tensor_column_fp32_ns if item == 4 else target.tensor_column_ns
    images = min(images, part_most(geometry.N, shard == "batch"))

    columns = tile_columns(geometry, shard, images, num_taps, num_columns)
    rows, row_bytes, core_groups = PARTITIONS // images, columns * block * item, -(-num_groups // PARTS)
    groups = max(-(-core_groups // TILES), rows // max(1, row_bytes // RUN_BYTES_MIN))
    tile_groups = BANDED_TILE_BYTES // (images * (columns + num_taps) * item)
    groups = max(1, min(groups, rows // max(1, row_bytes // RUN_BYTES), tile_groups, rows))
    groups = min(given.get("groups", groups), core_groups if shard == "channels" else num_groups)

    bands_ns = core_groups * -(-geometry.N // images) * group_ns
    warmup = WARM_UP if bands_ns > WARM_UP_NS else 0
    scratch = given.get("scratch", group_ns < SCRATCH_BELOW * per_group * target.static_issue_ns)
    band_bytes = per_group * num_taps * block * item
    buffers = BUFFERS + (bands_ns > STREAMED_NS or not scratch)
    lasting = min(BUFFER_GROUPS, int(BUFFERED_NS / (BUFFERS * group_ns)) + 1)
    found = BandedSettings(
        block=block,
        shard=shard,
        groups=groups,
        images=images,
        buffer_groups=min(groups, max(1, min(lasting, BAND_BYTES // (band_bytes * BUFFERS)))),
        buffers=max(1, min(buffers, 2 * BAND_BYTES // band_bytes)),
        scratch=scratch,
        edge=EDGE if -(-core_groups // groups) > 2 else 0,
        streamed=STREAMED_LONG if bands_ns > STREAMED_NS else STREAMED,
        warmup=warmup,
        rewarm=min(warmup, REWARM),
        bands_first=group_ns > LONG_NS,
    )
    return dataclasses.replace(found, **given)


def _sized(shape: Shape, config: BandedSettings) -> Candidate:
    """Settings with their sizes, not walked."""
    return Candidate(config, build(shape.geometry, config, shape.extras.state), 0.0)


def _walked(shape: Shape, one: Candidate) -> Candidate:
    ns = shape.once(("banded, walked", pairs_of(one.config)), lambda: walk_ns(shape, one.blocks))
    return Candidate(one.config, one.blocks, ns)


ALGORITHM = Banded()
