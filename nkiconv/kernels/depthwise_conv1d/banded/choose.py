"""Which block, shard and other settings `banded` takes where it is not told: those that take least by walks."""

from ...._nki import nl
from ..._settings import setting
from ..._tiles import PARTS, div_ceil
from .blocks import make_blocks, sbuf_bytes
from .walk import walk_ns, walked_groups

#: How much less a try must take than the best so far, and a whole round for another one.
BETTER = 0.997
WORTHWHILE = 0.99
ROUNDS = 2
#: Groups that the tries of one of them may walk together.
BANDED_GROUPS_MAX = 2000
#: Sizes and shards whose other settings are tried, and how far from the best of them the others may be.
REFINED = 4
BANDED_NEAR = 1.25


def choose_blocks(geometry, extras, config):
    """Blocks from shapes and settings: the size and shard that are not named, or all settings where there is none."""
    if config == None:
        config = best_settings(geometry, extras)[0]
    return first_blocks(geometry, extras, config, 1)[0][1]


def best_settings(geometry, extras):
    """(config that names all settings, ns by a walk); what does not fit SBUF comes last."""
    return refine_all(geometry, extras, first_blocks(geometry, extras, None, REFINED))


def refine_all(geometry, extras, found):
    """(config, ns) of the best of some (ns, Blocks) after refining each."""
    best, best_ns = None, 0.0
    for index in range(len(found)):
        if found[index][0] <= BANDED_NEAR * found[0][0]:
            refined, refined_ns = refine(geometry, extras, found[index][1], found[index][0])
            if best == None or refined_ns < best_ns:
                best, best_ns = refined, refined_ns
    return best, best_ns


def first_blocks(geometry, extras, config, most):
    """Up to `most` of (ns, Blocks) of the sizes and shards that a config leaves open, the fastest first.

    Of what does not fit SBUF there is one, if nothing fits.
    """
    sizes = block_sizes(geometry, setting(config, "block", 0))
    found = []
    for index in range(len(sizes)):
        shards = shards_of(geometry, sizes[index], setting(config, "shard", ""))
        for which in range(len(shards)):
            blocks = make_blocks(geometry, config, extras.state, sizes[index], shards[which])
            if len(sizes) == 1 and len(shards) == 1:
                return [(walk_ns(geometry, extras, blocks) if config == None else 0.0, blocks)]
            if fits(geometry, extras, blocks):
                found = placed(found, most, walk_ns(geometry, extras, blocks), blocks)
    if len(found) == 0:
        smallest = make_blocks(geometry, config, extras.state, sizes[0], shards_of(geometry, sizes[0], "")[0])
        found = [(walk_ns(geometry, extras, smallest), smallest)]
    return found


def fits(geometry, extras, blocks):
    """Whether SBUF holds it."""
    return sbuf_bytes(geometry, extras, blocks) <= nl.tile_size.total_available_sbuf_size


def placed(found, most, blocks_ns, blocks):
    """The `most` least of (ns, Blocks), in order, with one more."""
    kept = []
    taken = False
    for index in range(len(found)):
        if not taken and blocks_ns < found[index][0]:
            kept.append((blocks_ns, blocks))
            taken = True
        kept.append(found[index])
    if not taken:
        kept.append((blocks_ns, blocks))
    return kept[0 : min(most, len(kept))]


def settings_of(blocks):
    """A config that says all that blocks have by default, in the order of the tries."""
    return (
        ("block", blocks.block),
        ("shard", blocks.shard),
        ("groups", blocks.groups),
        ("images", blocks.images),
        ("buffer_groups", blocks.buffer_groups),
        ("buffers", blocks.buffers),
        ("scratch", blocks.scratch),
        ("edge", blocks.edge),
        ("streamed", blocks.streamed),
        ("warmup", blocks.warmup),
        ("rewarm", blocks.rewarm),
    )


def refine(geometry, extras, blocks, blocks_ns):
    """(config, ns) after changing one setting after the other for what takes less."""
    best, best_ns = settings_of(blocks), blocks_ns
    again = fits(geometry, extras, blocks)
    left = BANDED_GROUPS_MAX
    for _ in range(ROUNDS):
        before_ns = best_ns
        for index in range(len(best)):
            name = best[index][0]
            values = tries(name, geometry, blocks) if again else ()
            for place in range(len(values)):
                if left > 0 and values[place] != best[index][1]:
                    tried = best[0:index] + ((name, values[place]),) + best[index + 1 :]
                    other = make_blocks(geometry, tried, extras.state, blocks.block, blocks.shard)
                    if fits(geometry, extras, other):
                        left -= walked_groups(other)
                        other_ns = walk_ns(geometry, extras, other)
                        if other_ns < BETTER * best_ns:
                            best, best_ns, blocks = tried, other_ns, other
        again = again and best_ns < WORTHWHILE * before_ns
    return best, best_ns


def tries(name, geometry, blocks):
    """Other values of a setting."""
    found = ()
    if name == "groups":
        found = other_groups(blocks)
    elif name == "images" and geometry.N > 1:
        half = max(1, blocks.images // 2)
        found = (half,) if 2 * blocks.images * blocks.groups > nl.tile_size.pmax else (half, 2 * blocks.images)
    elif name == "buffer_groups":
        found = (max(1, blocks.buffer_groups // 2), 2 * blocks.buffer_groups)
    elif name == "buffers":
        found = (max(1, blocks.buffers - 1), blocks.buffers + 1, blocks.buffers + 2)
    elif name == "scratch":
        found = (not blocks.scratch,)
    elif name == "edge":
        found = (0, 2, 4, blocks.groups // 2)
    elif name == "streamed":
        found = (8, 32, 64, 96)
    elif name == "warmup":
        found = (0, 6, 12)
    elif name == "rewarm":
        found = (0, 4, 12)
    return found


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
    for tiles in range(1, 5):
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
