"""How `skewed` cuts a gradient: rows into units, positions of a unit into passes, taps into chunks, channels into
batches. None of it depends on the number of cores.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._axis import greatest_common_divisor
from ..._settings import setting, settings_refusal
from ..._tiles import BANK_COLUMNS, PARTS, QUADRANT, cut_into, div_ceil, fits_sbuf
from ..._warm import WARM_UP_MAX
from ...depthwise_conv1d.free_channels import channel_block
from ...depthwise_conv1d.geometry import instructions_refusal

#: Channels that may share a matmul, and tiles of batches that are there together.
BESIDE = (1, 2, 4, 8, 16)
SKEWED_BUFFERS_MAX, SKEWED_GROUPS_MAX = 8, 128
#: Without a config: bytes a partition of tiles of x and gy, matmuls on zeros, batches that a core should have.
TILES_BYTES, SKEWED_WARM_UP, CORE_BATCHES = 98_304, 28, 8
#: Taps of several units of a bank: positions that share it with them take at most half of it.
POSITIONS_COLUMNS = BANK_COLUMNS // 2


@dataclass(frozen=True)
class SkewedConfig(nl.NKIObject):
    """All settings."""

    #: channels that share a matmul: 1, 2, 4, 8 or 16
    beside: int
    #: matmuls of channels of a batch, at most, from 1
    groups: int
    #: batches whose x and gy are there together, from 2
    buffers: int
    #: matmuls of 128 columns on zeros before the first others, from 0
    warmup: int


@dataclass
class SkewedPlan(nl.NKIObject):
    """Numbers of one problem. Partition (r * units + u) * images + i of tile t has unit u of image t * images + i of
    the r-th of the channels beside each other."""

    #: channels of a matmul, images of a tile, tiles of images, units of a row
    beside: int
    images: int
    tiles: int
    units: int
    #: positions of gy of a unit; of a pass, and passes
    unit: int
    positions: int
    passes: int
    #: parts of a pass's positions whose products are added before they are put in step, and positions of one
    folds: int
    part: int
    #: taps of a chunk, and chunks; elements of x between columns of a matmul, and its columns; those of a part
    taps: int
    chunks: int
    step: int
    columns: int
    part_columns: int
    #: elements of x of a unit, and of gy with zeros behind them; even
    window: int
    padded: int
    #: ChannelBlocks, and groups of the largest
    batches: list
    groups: int
    buffers: int
    warmup: int


def skewed_config_refusal(config):
    """What is wrong with names and values, "" if nothing is."""
    table = (("beside", (1, 16)), ("groups", (1, SKEWED_GROUPS_MAX)), ("buffers", (2, SKEWED_BUFFERS_MAX)))
    reason = settings_refusal(config, table + (("warmup", (0, WARM_UP_MAX)),), "skewed")
    beside = setting(config, "beside", 1)
    if reason == "" and beside not in BESIDE:
        return f"config beside={beside}: must be one of {BESIDE}, channels that share a matmul"
    return reason


def skewed_settings(geometry, config):
    """The SkewedConfig of (name, value) pairs, and defaults for what they leave open."""
    beside = setting(config, "beside", 4)
    buffers = setting(config, "buffers", 3)
    plan = cut_skewed(geometry, beside)
    groups = min(TILES_BYTES // (buffers * group_bytes(geometry, plan)), SKEWED_GROUPS_MAX)
    groups = min(groups, div_ceil(geometry.C, PARTS * CORE_BATCHES * beside))
    return SkewedConfig(
        beside=beside,
        groups=setting(config, "groups", max(1, groups)),
        buffers=buffers,
        warmup=setting(config, "warmup", SKEWED_WARM_UP),
    )


def cut_skewed(geometry, beside):
    """The SkewedPlan of so many channels beside each other, without batches. geometry: of the convolution."""
    most, stride, dilation = nl.tile_size.pmax // beside, geometry.stride, geometry.dilation
    tiles = div_ceil(geometry.N, most)
    images = div_ceil(geometry.N, tiles)
    unit = div_ceil(geometry.Q, min(most // images, geometry.Q))
    step = greatest_common_divisor(stride, dilation)
    positions = min(unit, most, POSITIONS_COLUMNS * step // stride + 1)
    folds, passes = positions // QUADRANT, div_ceil(unit, positions)
    positions = div_ceil(unit, passes)
    if folds > 1:
        # as engines address partitions
        passes = div_ceil(unit, folds * QUADRANT)
        folds = div_ceil(unit, passes * QUADRANT)
        positions = folds * QUADRANT
    folds = max(1, folds)
    taps = (BANK_COLUMNS - 1 - (positions - 1) * stride // step) * step // dilation + 1
    chunks = div_ceil(geometry.S, taps)
    taps = div_ceil(geometry.S, chunks)
    window = (passes * positions - 1) * stride + (chunks * taps - 1) * dilation + 1
    padded = passes * positions
    return SkewedPlan(
        beside=beside,
        images=images,
        tiles=tiles,
        units=div_ceil(geometry.Q, unit),
        unit=unit,
        positions=positions,
        passes=passes,
        folds=folds,
        part=positions // folds,
        taps=taps,
        chunks=chunks,
        step=step,
        columns=((positions - 1) * stride + (taps - 1) * dilation) // step + 1,
        part_columns=((positions // folds - 1) * stride + (taps - 1) * dilation) // step + 1,
        window=window + window % 2,
        padded=padded + padded % 2,
        batches=[],
        groups=0,
        buffers=0,
        warmup=0,
    )


def skewed_plan_of(geometry, config):
    """The SkewedPlan of (name, value) pairs."""
    settings = skewed_settings(geometry, config)
    plan = cut_skewed(geometry, settings.beside)
    parts = PARTS * div_ceil(geometry.C, PARTS * settings.beside * settings.groups)
    for some in cut_into(geometry.C, min(parts, geometry.C)):
        block = channel_block(some[0], some[1], plan.beside)
        plan.batches.append(block)
        plan.groups = max(plan.groups, block.length)
    plan.buffers = min(settings.buffers, len(plan.batches))
    plan.warmup = settings.warmup
    return plan


def group_bytes(geometry, plan):
    """Bytes a partition of x and gy of a matmul's channels."""
    return plan.tiles * (plan.window + plan.beside * plan.padded) * geometry.itemsize


def skewed_refusal(geometry, config, cores):
    """Why this algorithm does not take a gradient on `cores` cores; "" if it does."""
    reason = skewed_config_refusal(config)
    if reason != "":
        return reason
    plan = skewed_plan_of(geometry, config)
    # products, in step, sums and what they are added to, of two batches
    results = 8 * plan.groups * plan.chunks * (plan.columns + 3 * plan.taps)
    needed = plan.buffers * plan.groups * group_bytes(geometry, plan) + results
    if not fits_sbuf(needed):
        return (
            f"N={geometry.N}, W={geometry.W}, S={geometry.S}: skewed needs {needed} bytes a partition of SBUF for x, "
            f"gy and their products, there are {nl.tile_size.total_available_sbuf_size}; use dot or banded"
        )
    return instructions_refusal(geometry, "skewed", count_skewed_instructions(geometry, plan, cores))


def count_skewed_instructions(geometry, plan, cores):
    """Instructions of the busiest core, at most: loads, matmuls and read-outs of products, sums and stores."""
    jobs = plan.groups * plan.chunks
    loads = plan.beside * plan.tiles * plan.units * 3 * plan.images + 4
    matmuls = jobs * (plan.tiles * plan.passes + 4)
    return div_ceil(len(plan.batches), cores) * (loads + matmuls + 12) + plan.warmup + 32
