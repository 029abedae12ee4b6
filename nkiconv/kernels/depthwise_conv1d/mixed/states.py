"""States in front of rows by way of SBUF: one early DMA of long runs for many tiles, then a small copy for each.

A row's state is a few elements, so a DMA into a tile's own columns has a run of as many bytes for each partition.
Channels p * T + t of neighbouring tiles are neighbours in HBM: partition p's states of tn tiles are one run of
tn * pad_left elements. Long states, and those of stacked groups, go straight to their columns instead (`dma`).
"""

from ...._nki import nisa
from ....schedules.tiles import div_ceil
from .dma import filler, load_channels
from .tiles import part_images

#: Bytes of a row's state up to which it is staged: a DMA element of fewer takes no less time (trn2.toml,
#: dma.small_element_bytes), and the copy on chip is short.
STAGED_BYTES_MAX = 64
#: Bytes a partition of the states of all images of a block's channel tiles, and images that one DMA loads: the next
#: ones come while these are summed.
BLOCK_BYTES = 4096
IMAGES = 4
#: Tiles that begin a row, channel tiles of images, from which a part's states are staged.
STAGED_TILES_MIN = 4
#: Tiles ahead of the sums that states are copied to their columns, so that sums do not wait for the copy.
FILLED_AHEAD = 2
#: Columns of a part that are summed while the first states of many tiles are on their way: theirs go straight.
DIRECT_COLUMNS = 512


def state_block(geometry, extras, rows):
    """Channel tiles whose states are loaded together; 0 where states go straight to their columns."""
    row_bytes, images = geometry.pad_left * geometry.itemsize, part_images(geometry, rows.shard)
    if not extras.state or not rows.runs or rows.G > 1:
        return 0
    if row_bytes > STAGED_BYTES_MAX or rows.T * images < STAGED_TILES_MIN:
        return 0
    return min(rows.T, BLOCK_BYTES // (row_bytes * images))


def is_staged(plan, i):
    """Whether the state of tile i of a part comes by way of SBUF."""
    return plan.states > 0 and i >= div_ceil(DIRECT_COLUMNS, plan.rows.columns)


def meets_state(geometry, tile):
    """Whether a tile of one group begins before its row."""
    return tile.groups[0][1] < geometry.pad_left


def state_images(run):
    """(first image of a part, how many), as its first and last tiles have them."""
    first, last = run.tiles[0], run.tiles[len(run.tiles) - 1]
    return first.groups[0][0], last.groups[0][0] + 1 - first.groups[0][0]


def block_of(run, tile):
    """The block of states of a tile."""
    first, images = run.tiles[0], state_images(run)
    n = tile.groups[0][0] - images[0]
    return (tile.t - first.t) // run.plan.states * div_ceil(images[1], IMAGES) + n // IMAGES


def load_states(run, tile):
    """Blocks of states [partitions, images, tn * pad_left] up to that of a tile."""
    geometry, plan, L = run.geometry, run.plan, run.geometry.pad_left
    first, last = run.tiles[0], run.tiles[len(run.tiles) - 1]
    first_n, num_images = state_images(run)
    blocks = div_ceil(num_images, IMAGES)
    while meets_state(geometry, tile) and len(run.states) <= block_of(run, tile):
        t0, n = first.t + len(run.states) // blocks * plan.states, len(run.states) % blocks * IMAGES
        tn, images, n0 = min(plan.states, last.t + 1 - t0), min(IMAGES, num_images - n), first_n + n
        steps = (geometry.C * L, L, 1)
        run.states.append(
            load_channels(run, run.operands.state, run.operands.state.dtype, n0, images, t0, tn, steps, L)
        )


def fill_state(run, tile):
    """Copy what precedes the row of a tile into its first columns, from its block."""
    geometry, first = run.geometry, run.tiles[0]
    if meets_state(geometry, tile):
        missing = geometry.pad_left - tile.groups[0][1]
        count = min(missing, tile.x.shape[1])
        n, t = (tile.groups[0][0] - first.groups[0][0]) % IMAGES, (tile.t - first.t) % run.plan.states
        begin = (t + 1) * geometry.pad_left - missing
        nisa.tensor_copy(
            dst=tile.x[0 : tile.rows, 0:count],
            src=run.states[block_of(run, tile)][0 : tile.rows, n, begin : begin + count],
            engine=filler(run.plan),
        )
