"""The Schedule of `blocks`, a filter gradient: sums over positions of gy times the element of x that a tap sees there.

    dw[k, c, t, r, s] = sum over z, p, q of gy[k, z, p, q] * x[c, z', p', q'],  p' = p * stride + r * dilation - before

Positions are contracted, so they must be on the partitions, where a shift by a tap would need a copy of x. A partition
is therefore a block of gy with the window of x around it (`blocks`). One position of all blocks is a stationary
[blocks, k]; the window of that position, its taps and channels, is the moving operand, a view along the free axes:

    dw[k, (r, s, c)] += sum over blocks of  gy[block, p, q, k] * x[block, p + r, q + s, c]    for each (p, q) of a block

K: blocks; M: output channels; N: taps and input channels; evacuation: copies, or sums over cores and packed columns.
If few output channels, or the last of many, leave columns of the Tensor Engine empty, neighbouring columns of gy share
them: the window is wider accordingly, and accumulators are added as they are evacuated (setting `beside`). No im2col
tensor exists. Nothing is transposed if channels are neighbours; if not, the Tensor Engine transposes blocks
(`blocks_transposes`), DMA transposes lines of pixels, or runs are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product

from . import blocks_transposes as transposes
from .blocks import (
    BLOCK_BYTES,
    GY_TRANSPOSED,
    TRANSPOSED,
    Accumulator,
    BlocksSettings,
    Pass,
    Tile,
    banks_of_taps,
    blocks_geometry,
    completed,
    config_unsupported,
    in_places,
    matmuls_beside,
    outputs_beside,
    planes_of,
    runs_of,
    sum_banks,
    taps_of_banks,
    taps_seen,
    tiles_of_units,
    units_of_tile,
    whole_taps,
)
from .cuts import hull, most_of, window_of
from .geometry import Geometry, num_taps
from .long_kernels import too_many
from .settings import Config, once_a_config, setting
from .tiles import (
    BANK_BYTES,
    PARTS,
    PSUM_BANKS,
    SBUF_BYTES,
    STEP_MAX,
    Part,
    cut,
    cut_at,
    cut_into,
    div_ceil,
    fits_sbuf,
    size_of,
    some_of,
)

#: Bytes a partition for evacuated accumulators: four banks of sums, of their addends and of results.
SUMS_BYTES = 4 * 3 * BANK_BYTES
#: About the most matmuls of an accumulator before it is added to others: rounding errors grow with their number.
CHAIN = 4096


@dataclass(frozen=True)
class BlocksSchedule:
    """Passes of all accumulators; the cores share passes, or with split the tiles of each pass.

    geometry: of the blocks, with channels as neighbours if they are transposed; source: of x and gy in memory;
    transposes: the Tensor Engine's Transposes, or None."""

    settings: BlocksSettings
    geometry: Geometry
    source: Geometry
    passes: tuple[Pass, ...]
    transposes: transposes.Transposes | None = None

    @property
    def split(self) -> bool:
        """Whether the cores share the tiles of each pass."""
        return self.settings.split == 1 and len(self.passes[0].tiles) >= PARTS

    @property
    def middle(self) -> int:
        """The number of passes of the first of two cores: half of them, if possible with loads of its own."""
        count = len(self.passes)
        places = [at for at in (count // 2, div_ceil(count, 2)) if 0 < at < count]
        apart = [at for at in places if self.passes[at - 1].loads != self.passes[at].loads]
        return (apart or [count // 2])[0]

    @property
    def gang(self) -> int:
        """The most members of a tile's gang; a unit has a block of each."""
        return 1 if self.transposes is None else self.transposes.gang

    @cached_property
    def x(self) -> tuple[int, int, int]:
        """The most (rows, columns, channels) of x of a tile."""
        every = (
            [one.h for one in self.passes],
            [one.w for one in self.passes],
            [c for one in self.passes for c in one.c],
        )
        rows, columns, channels = (max(1, most_of(parts)) for parts in every)
        return rows, columns, channels

    @cached_property
    def k(self) -> int:
        """The most channels of gy that matmuls read of a tile."""
        return max(1, *map(channels_read, self.passes))

    @cached_property
    def planes(self) -> tuple[int, ...]:
        """Planes of taps of all passes."""
        return tuple(dict.fromkeys(t for one in self.passes for t in one.planes))

    @property
    def cleared(self) -> tuple[int, int]:
        """(first, end) of channels of gy that matmuls of several columns read beyond the loaded ones."""
        ends = [(one.k[1], channels_read(one)) for one in self.passes]
        ends = [(loaded, read) for loaded, read in ends if loaded < read]
        return min((loaded for loaded, _ in ends), default=0), max((read for _, read in ends), default=0)


@once_a_config
def build(geometry: Geometry, config: Config, bias: bool) -> tuple[BlocksSchedule | None, str]:
    """(Schedule, "") or (None, the reason against it), built once. geometry: of x and gy in memory;
    bias: whether to compute its gradient. A config's open settings take the least memory; see
    `gradient_algorithms.plan_of`."""
    if reason := config_unsupported(geometry, config, bias):
        return None, reason
    geometry = in_places(geometry, config)
    blocks, source = blocks_geometry(geometry, setting(config, "pixels", 0))
    settings, together = completed(blocks, config), PSUM_BANKS
    plan = _scheduled(blocks, settings, bias, source, together)
    while together > settings.side and not fits_sbuf(needed_bytes(plan)):
        together = together // 2
        plan = _scheduled(blocks, settings, bias, source, together)
    what, products = f"C={blocks.C}, K={blocks.K}: a filter gradient by blocks", 0
    for one in plan.passes:
        each = (matmuls_beside(blocks, settings.columns, acc.beside) for acc in one.accumulators)
        products += len(one.tiles) * sum(each) * settings.rows * plan.gang
    reason = _room_unsupported(plan) or too_many(what, blocks.times * products / PARTS)
    return (None, reason) if reason else (plan, "")


def _room_unsupported(plan: BlocksSchedule) -> str:
    """Why tiles do not fit; "" if they do."""
    settings, geometry, needed = plan.settings, plan.geometry, needed_bytes(plan)
    if (step := _longest_step(plan)) > STEP_MAX:
        return (
            f"rhs_dilation={(geometry.rows.dilation, geometry.columns.dilation)}, config columns={settings.columns}, "
            f"channels={settings.channels}: taps are {step} elements apart in SBUF, a matmul reads at most {STEP_MAX} "
            f"apart; use fewer channels or smaller blocks"
        )
    if settings.pixels == GY_TRANSPOSED:
        P, Q, every = geometry.rows.out, geometry.columns.out, (tile for one in plan.passes for tile in one.tiles)
        for region in chain.from_iterable(every):
            _, down, across = region.counts
            if region.p + down * settings.rows > P or region.q + across * settings.columns > Q:
                return f"config pixels=3 rows={settings.rows} columns={settings.columns}: must divide gy; use 2"
    if fits_sbuf(needed):
        return ""
    return (
        f"C={geometry.C}, K={geometry.K}, config rows={settings.rows} columns={settings.columns}: a filter "
        f"gradient needs {needed} bytes per partition of SBUF for its blocks, there are {SBUF_BYTES}; use smaller "
        f"blocks, fewer banks or fewer channels"
    )


def _longest_step(plan: BlocksSchedule) -> int:
    """The most elements from one tap or channel of a tile of x to the next."""
    (rows, columns, channels), geometry = plan.x, plan.geometry
    row, column, channel = columns, 1, rows * columns
    if geometry.x_strides[0] == 1:
        row, column, channel = columns * channels, channels, 1
    every = (geometry.rows, row), (geometry.columns, column)
    return max(channel, *(axis.dilation * step for axis, step in every if axis.taps > 1), 0)


def _scheduled(
    geometry: Geometry, config: BlocksSettings, bias: bool, source: Geometry, together: int
) -> BlocksSchedule:
    """The Schedule of settings. together: the most banks of a pass of one chunk of channels."""
    banks, passes = sum_banks(config.pixels), []
    for accumulators in batches_of(geometry, config, bias, min(banks, together)):
        of_taps = [one for one in accumulators if one.t >= 0]
        r, s = hull([one.r for one in of_taps], (0, 1)), hull([one.s for one in of_taps], (0, 1))
        parts = range(config.side)
        c = tuple(hull([one.c for one in of_taps if one.part == part], (geometry.C, 0)) for part in parts)
        planes, k = tuple(dict.fromkeys(one.t for one in of_taps)), hull([one.k for one in accumulators], (0, 0))
        of_loads = k, c, planes, r, s, *_windows(geometry, config, r, s)
        for at, count in cut(div_ceil(len(accumulators), config.side), banks // config.side):
            some = some_of(accumulators, (at * config.side, count * config.side))
            passes.append(Pass(tuple(some), *of_loads))
    plan = BlocksSchedule(config, geometry, source, tuple(passes))
    gang = _gang_of(plan) if config.pixels >= TRANSPOSED else 1
    tiles = {taps: _tiles_of(geometry, config, gang, *taps) for taps in {(one.r, one.s) for one in passes}}
    plan = replace(plan, passes=tuple(replace(one, tiles=tiles[one.r, one.s]) for one in passes))
    return _with_transposes(plan, gang) if config.pixels >= TRANSPOSED else plan


def _windows(geometry: Geometry, config: BlocksSettings, r: Part, s: Part) -> tuple[Part, Part, tuple[int, int]]:
    """h, w and first of a Pass of rows and columns of taps: with row tiles, zeros around whole planes are left out, and
    the position whose products write all sums is one at which all taps see x."""
    whole, clipped, first = [], [], []
    by_axis = (
        (geometry.rows, config.rows, r, max(1, config.rows - 1)),
        (geometry.columns, config.columns, s, config.columns),
    )
    for axis, extent, taps, outputs in by_axis:
        run, *others = runs_of(axis, extent, taps)
        seen = [taps_seen(at * axis.stride, taps[1], axis.dilation, (run.low, run.high)) for at in range(outputs)]
        if not others and axis.lhs_dilation == 1 and (0, taps[1]) in seen:
            first.append(seen.index((0, taps[1])))
        whole.append((0, window_of(axis, extent, taps[1])))
        clipped.append((run.low, run.high - run.low))
    if config.side == 1 or config.beside > 1 or len(first) < len(by_axis):
        return whole[0], whole[1], (0, 0)
    return clipped[0], clipped[1], (first[0], first[1])


def _tiles_of(geometry: Geometry, config: BlocksSettings, gang: int, r: Part, s: Part) -> tuple[Tile, ...]:
    """Tiles of a Pass of rows and columns of taps. gang: members of a tile that is transposed."""
    planes = planes_of(geometry.planes)
    if config.pixels >= TRANSPOSED:
        return transposes.transposed_tiles(geometry, planes, config, gang, (r, s))
    rows, columns = runs_of(geometry.rows, config.rows, r), runs_of(geometry.columns, config.columns, s)
    half = div_ceil(geometry.planes.out * sum(one.count for one in rows) * sum(one.count for one in columns), PARTS)
    most = units_of_tile(geometry, config.pixels) // config.side
    return tiles_of_units(planes, rows, columns, most, half if config.split == 1 else 0)


def channels_read(one: Pass) -> int:
    """Channels of gy that matmuls of a pass read, from its first on; 0 if it has only biases of exchanged x and gy."""
    read = (acc for acc in one.accumulators if not acc.bias or acc.t < 0)
    return max((acc.k[0] - one.k[0] + acc.pitch for acc in read), default=0)


def _gang_of(plan: BlocksSchedule) -> int:
    """Members of a gang of a schedule without tiles."""
    geometry, config = plan.geometry, plan.settings
    room = min(BLOCK_BYTES // (config.buffers * tile_bytes(plan)), CHAIN // (config.rows * config.columns))
    channels = max(1, *(one.c[0][1] if config.pixels == TRANSPOSED else one.k[1] for one in plan.passes))
    member = transposes.member_of(geometry, config.rows, config.columns)
    parts = PARTS if config.split == 1 else 1
    return int(transposes.gang_of(geometry, config.pixels, member, channels, parts, room))


def _with_transposes(plan: BlocksSchedule, gang: int) -> BlocksSchedule:
    """The schedule with its Transposes: with as many loaded pieces as fit."""
    sizes = transposes.piece_sizes(plan.source, plan.settings, plan.passes)
    banks = min(PSUM_BANKS - len(one.accumulators) for one in plan.passes)
    every = [
        replace(plan, transposes=transposes.Transposes(gang, raws, banks, sizes))
        for raws in range(transposes.RAWS, 0, -1)
    ]
    return next((one for one in every if fits_sbuf(needed_bytes(one))), every[-1])


def batches_of(geometry: Geometry, config: BlocksSettings, bias: bool, banks: int) -> list[tuple[Accumulator, ...]]:
    """Accumulators of each pass; biases have their own pass if they exceed the banks of PSUM that others leave."""
    found: list[tuple[Accumulator, ...]] = []
    ks, cs = outputs_beside(geometry, config.beside), cut(geometry.C // geometry.groups, config.channels)
    every = product(range(geometry.groups), cut_at(len(cs), config.inputs), cut_at(len(ks), config.outputs))
    for group, c, k in every:
        accumulators, biases = _accumulators_of(geometry, config, group, some_of(ks, k), some_of(cs, c))
        if not bias or (k if geometry.flipped else c)[0] > 0:
            biases = ()
        if len(accumulators) <= banks < len(accumulators) + len(biases):
            found.append(biases)
        else:
            accumulators += biases
        if len(ks) == len(cs) == 1 and found and len(found[-1]) + len(accumulators) <= banks:
            found[-1] += accumulators
        elif config.outputs * config.inputs > 1:
            found.append(accumulators)
        else:
            found += [tuple(some_of(accumulators, part)) for part in cut(len(accumulators), banks)]
    return found


def _accumulators_of(
    geometry: Geometry, config: BlocksSettings, group: int, ks: Sequence[tuple[Part, int]], cs: Sequence[Part]
) -> tuple[tuple[Accumulator, ...], tuple[Accumulator, ...]]:
    """(accumulators of some channels of a group, accumulators of their biases)."""
    accumulators: list[Accumulator] = []
    biases: dict[Accumulator, None] = {}
    taps = list(product(range(geometry.planes.taps), *taps_of_banks(geometry)))
    home = whole_taps(geometry) if geometry.flipped else []
    parts = cut(len(cs), div_ceil(len(cs), config.side))
    for (first, count), beside in ks:
        k = first + group * (geometry.K // geometry.groups), count
        # row tiles rotate
        for index, (part, (at, chunks)) in product(range(parts[-1][1]), enumerate(parts)):
            if index < chunks:
                c = cs[at + index][0] + group * (geometry.C // geometry.groups), cs[at + index][1]
                accumulators += [Accumulator(k, c, t, r, s, beside, part) for t, r, s in taps]
                if len(home) == len(geometry.axes):
                    biases[Accumulator((0, 1), c, home[0], (home[1], 1), (home[2], 1), 1, part, True)] = None
        if not geometry.flipped:
            biases[Accumulator(k, (0, 1), -1, (0, 1), (0, 1), beside, 0, True)] = None
    return tuple(accumulators), tuple(biases)


def chains_of(plan: BlocksSchedule, one: Pass, count: int) -> list[Part]:
    """(first, count) of the tiles of each chain of a pass's `count` tiles."""
    beside = min(accumulator.beside for accumulator in one.accumulators)
    matmuls = count * plan.gang * plan.settings.rows * matmuls_beside(plan.geometry, plan.settings.columns, beside)
    return cut_into(count, min(count, div_ceil(matmuls, CHAIN)))


def tile_bytes(plan: BlocksSchedule) -> int:
    """Bytes a partition of x and gy of a tile of units, of one member of its gang."""
    size = len(plan.planes) * size_of(plan.x) + plan.settings.rows * plan.settings.columns * plan.k
    return size * plan.geometry.itemsize


def needed_bytes(plan: BlocksSchedule) -> int:
    """An upper bound of bytes a partition."""
    others, halves = 0, PARTS if plan.split else 0
    # sums of earlier chains; sums of both halves of the units
    chains = [int(len(chains_of(plan, one, len(one.tiles))) > 1) for one in plan.passes]
    held = max(len(one.accumulators) * (more + halves) for one, more in zip(plan.passes, chains, strict=True))
    blocks = plan.gang * plan.settings.buffers * tile_bytes(plan)
    if plan.transposes is not None:
        *pieces, slab, zeros = plan.transposes.sizes
        others = plan.transposes.raws * sum(pieces) + transposes.SLABS * slab + zeros
    gathered = gathered_bytes(plan.geometry, plan.settings.channels)
    return blocks + others * plan.source.itemsize + SUMS_BYTES + held * BANK_BYTES + gathered


def gathered_bytes(geometry: Geometry, channels: int) -> int:
    """Bytes a partition for sums of all taps of some channels in several banks: addends and results, twice, as the next
    channels' overlap."""
    return 4 * 4 * channels * num_taps(geometry) if banks_of_taps(geometry) > 1 else 0
