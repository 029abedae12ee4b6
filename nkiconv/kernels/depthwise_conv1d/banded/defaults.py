"""Settings of a `banded` that is called with none, or with some: a rule of shapes; the host's choice is by walks."""

from ...._nki import nl
from ....schedules.banded import BandedSettings
from ....schedules.settings import setting
from ....schedules.tiles import BANK_COLUMNS, PARTS, div_ceil
from .blocks import block_counts, fits, make_blocks

#: Positions of a block at least; bytes of a group's bands up to which blocks need not be longer.
BLOCK_MIN, GROUP_BYTES = 16, 32768
#: Bytes of a run, one chunk of one row, from which a DMA is fast; groups up to which one tile is better than more.
RUN_BYTES, GROUPS = 128, 8
#: Band buffers, and columns of the array's work that each lasts at least.
BAND_BUFFERS, BUFFER_COLUMNS = 5, 1500
#: Columns of the array's work on one core from which it is to be at full rate at once.
WARM_COLUMNS = 1000
#: Columns of a group's work up to which a DMA for each channel of it is too many, for each channel.
SCRATCH_COLUMNS = 160


def banded_settings(geometry, extras, config):
    """All settings of a config: what it leaves open is as the rule has it, smaller until it fits SBUF."""
    block = setting(config, "block", 0)
    if block == 0:
        block = default_block(geometry)
    buffers, groups, images = BAND_BUFFERS, nl.tile_size.pmax, nl.tile_size.pmax
    found = by_rule(geometry, None, block, buffers, groups, images)
    while not fits(geometry, extras, make_blocks(geometry, found, extras.state)) and buffers + groups + images > 3:
        groups, images = found.groups, found.images
        if buffers > 2:
            buffers -= 1
        elif groups > 1:
            groups = groups // 2
        elif images > 1:
            images = images // 2
        else:
            buffers = 1
        found = by_rule(geometry, None, block, buffers, groups, images)
    return by_rule(geometry, config, block, buffers, groups, images)


def default_block(geometry):
    """Positions of a block: more for long rows, few channels and many taps."""
    most, S = nl.tile_size.pmax, geometry.S
    block = geometry.stride * max(1, BLOCK_MIN // geometry.stride)
    taps = min(3100, 200 + 4 * S)
    while 2 * block <= most and (
        block * (block * block * geometry.C // taps) < geometry.N * geometry.W
        or most // block * (S + block) * geometry.itemsize > GROUP_BYTES
    ):
        block = 2 * block
    return block


def by_rule(geometry, config, block, buffers, groups_most, images_most):
    """All settings of a config with a block; what it leaves open has so many buffers, groups and images at most."""
    per_group, num_taps, num_groups, num_columns = block_counts(geometry, block)
    shard, core_groups, images = "channels", div_ceil(num_groups, PARTS), geometry.N
    if num_groups < PARTS:
        shard = "batch" if geometry.N >= PARTS else "columns"
        images = div_ceil(geometry.N, PARTS) if shard == "batch" else geometry.N
    images = max(1, min(min(images, images_most), BANK_COLUMNS // num_columns))
    rows = nl.tile_size.pmax // images
    runs = max(1, num_columns * block * geometry.itemsize // RUN_BYTES)
    groups = min(min(max(rows // runs, GROUPS), groups_most), min(core_groups, rows))
    group_columns = num_taps * max(nl.tile_size.pmax, images * num_columns) * (4 if geometry.itemsize == 4 else 1)
    warm = core_groups * div_ceil(geometry.N, images) * group_columns > WARM_COLUMNS
    return BandedSettings.read(
        config,
        block=block,
        shard=shard,
        groups=groups,
        images=images,
        buffer_groups=min(groups, 1 + BUFFER_COLUMNS // group_columns),
        buffers=buffers,
        scratch=group_columns < SCRATCH_COLUMNS * per_group,
        warmup=6 if warm else 0,
        rewarm=4 if warm else 0,
    )
