"""Which block, shard and groups `banded` takes where it is not told: those of least estimated time."""

from ...._nki import nl
from ..._tiles import PARTS, div_ceil
from ..call import setting
from .blocks import make_blocks, sbuf_bytes
from .estimate import pipeline_ns


def choose_blocks(geometry, extras, config):
    """Blocks from shapes and settings."""
    return best_blocks(geometry, extras, config)[0]


def best_blocks(geometry, extras, config):
    """(Blocks, their estimated ns; 0.0 where there was nothing to choose). What does not fit SBUF comes last."""
    sizes = block_sizes(geometry, setting(config, "block", 0))
    asked = setting(config, "groups", 0)
    best, best_ns, best_fits = None, 0.0, False
    for index in range(len(sizes)):
        shards = shards_of(geometry, sizes[index], setting(config, "shard", ""))
        for which in range(len(shards)):
            blocks = make_blocks(geometry, config, extras.state, sizes[index], shards[which])
            if asked > 0 and len(sizes) == 1 and len(shards) == 1:
                return blocks, 0.0
            groups = other_groups(blocks) if asked == 0 else ()
            for more in range(len(groups) + 1):
                if more > 0:
                    changed = (("groups", groups[more - 1]),) + (() if config == None else config)
                    blocks = make_blocks(geometry, changed, extras.state, sizes[index], shards[which])
                fits = sbuf_bytes(geometry, extras, blocks) <= nl.tile_size.total_available_sbuf_size
                if best == None or fits or not best_fits:
                    blocks_ns = pipeline_ns(geometry, blocks)
                    if best == None or (fits and not best_fits) or blocks_ns < best_ns:
                        best, best_ns, best_fits = blocks, blocks_ns, fits
    return best, best_ns


def other_groups(blocks):
    """Groups of a tile to try beside those that make it as large as runs need: fewer, or more for fewer tiles."""
    found = ()
    if blocks.groups > 1:
        found = found + (blocks.groups // 2,)
    for times in (2, 4):
        more = times * blocks.groups
        if more < 2 * blocks.num_groups and more * blocks.images <= nl.tile_size.pmax:
            found = found + (more,)
    share_groups = div_ceil(blocks.num_groups, PARTS) if blocks.shard == "channels" else blocks.num_groups
    for tiles in range(3, 5):
        even = div_ceil(share_groups, tiles)
        if even * blocks.images <= nl.tile_size.pmax and even != blocks.groups:
            found = found + (even,)
    return found


def block_sizes(geometry, asked):
    """Powers of two, and near them multiples of the stride; the stride itself where that is larger than all."""
    if asked > 0:
        return (asked,)
    sizes = ()
    for power in range(1, 8):
        block = 1
        for _ in range(power):
            block = block * 2
        block = max(1, block // geometry.stride) * geometry.stride
        if block <= nl.tile_size.pmax and (len(sizes) == 0 or block != sizes[len(sizes) - 1]):
            sizes = sizes + (block,)
    return (geometry.stride,) if len(sizes) == 0 else sizes


def shards_of(geometry, block, asked):
    """Axes that can be shared out, channels first, whose filters are loaded once; columns where there is no other."""
    if asked != "":
        return (asked,)
    shards = ()
    if div_ceil(geometry.C, max(1, nl.tile_size.pmax // block)) >= PARTS:
        shards = shards + ("channels",)
    if geometry.N >= PARTS:
        shards = shards + ("batch",)
    if len(shards) == 0 or div_ceil(geometry.Q, max(1, block // geometry.stride)) >= PARTS:
        shards = shards + ("columns",)
    return shards
