"""States in front of rows by way of SBUF: one early DMA of long runs for many tiles, then a small copy for each.

A row's state is a few elements, so a DMA into a tile's own columns has a run of as many bytes for each partition.
Channels p * T + t of neighbouring tiles are neighbours in HBM: partition p's states of tn tiles are one run of
tn * pad_left elements. Long states, and those of stacked groups, go straight to their columns instead (`dma`).
"""

from ...._nki import nisa, nl
from ..._dma import copy
from ..._tiles import div_ceil
from .dma import channels_most, filler_of
from .tiles import half_images

#: Bytes of a row's state up to which it is staged: a DMA element of fewer takes no less time (trn2.toml,
#: dma.small_element_bytes), and the copy on chip is short.
ROW_BYTES_MAX = 64
#: Bytes a partition of the states of all images of a block's channel tiles, and images that one DMA loads: the next
#: ones come while these are summed.
BLOCK_BYTES = 4096
IMAGES = 4
#: Tiles that begin a row, channel tiles of images, from which a half's states are staged.
STATES_TILES_MIN = 4
#: Tiles ahead of the sums that states are copied to their columns, so that sums do not wait for the copy.
FILLED_AHEAD = 2
#: Columns of a half that are summed while the first states of many tiles are on their way: theirs go straight.
DIRECT_COLUMNS = 512


def state_block(geometry, extras, plan):
    """Channel tiles whose states are loaded together; 0 where states go straight to their columns."""
    row_bytes = geometry.pad_left * geometry.itemsize
    images = half_images(geometry, plan.shard)
    if (
        not extras.state
        or not plan.runs
        or plan.G > 1
        or plan.T * images < STATES_TILES_MIN
        or row_bytes > ROW_BYTES_MAX
    ):
        return 0
    return min(plan.T, BLOCK_BYTES // (row_bytes * images))


def state_bytes(geometry, plan):
    """Bytes a partition of the states that are in SBUF at once: two blocks."""
    return 2 * plan.states * half_images(geometry, plan.shard) * geometry.pad_left * geometry.itemsize


def is_staged(plan, i):
    """Whether the state of tile i of a half comes by way of SBUF."""
    return plan.states > 0 and i >= div_ceil(DIRECT_COLUMNS, plan.columns)


def meets_state(geometry, tile):
    """Whether a tile of one group begins before its row."""
    return tile.starts[0] < geometry.pad_left


def place_of(plan, tiles, i):
    """Where the state of tile i of a half is: (block of states, image in it, channel tile in it)."""
    n = tiles[i].images[0] - tiles[0].images[0]
    t = tiles[i].t - tiles[0].t
    return t // plan.states * image_blocks(tiles) + n // IMAGES, n % IMAGES, t % plan.states


def image_blocks(tiles):
    """Blocks that the images of a half make."""
    return div_ceil(tiles[len(tiles) - 1].images[0] + 1 - tiles[0].images[0], IMAGES)


def load_blocks(operands, geometry, plan, states, tiles, i):
    """Append the blocks of states up to that of tile i of a half."""
    if not meets_state(geometry, tiles[i]):
        return
    last = tiles[len(tiles) - 1]
    while len(states) <= place_of(plan, tiles, i)[0]:
        t0 = tiles[0].t + len(states) // image_blocks(tiles) * plan.states
        n0 = tiles[0].images[0] + len(states) % image_blocks(tiles) * IMAGES
        images = min(IMAGES, last.images[0] + 1 - n0)
        states.append(load_states(operands, geometry, plan, n0, images, t0, min(plan.states, last.t + 1 - t0)))


def load_states(operands, geometry, plan, n0, images, t0, tn):
    """States of channel tiles t0 .. t0+tn-1 of images from n0 on: [partitions, images, tn * pad_left]."""
    L = geometry.pad_left
    P = channels_most(geometry.C, plan.T, t0)
    states_sbuf = nl.ndarray((P, images, tn * L), dtype=operands.state.dtype, buffer=nl.sbuf)
    full = (geometry.C - t0 - tn) // plan.T + 1 if geometry.C >= t0 + tn else 0
    image_step = geometry.C * L
    if full > 0:
        copy(
            states_sbuf[0:full, 0:images, 0 : tn * L],
            operands.state.ap(
                pattern=[[plan.T * L, full], [image_step, images], [1, tn * L]], offset=(n0 * geometry.C + t0) * L
            ),
        )
    if full < P:
        c0 = full * plan.T + t0
        rest = (geometry.C - c0) * L
        copy(
            states_sbuf[full : full + 1, 0:images, 0:rest],
            operands.state.ap(
                pattern=[[plan.T * L, 1], [image_step, images], [1, rest]], offset=(n0 * geometry.C + c0) * L
            ),
        )
    return states_sbuf


def fill_state(geometry, plan, states, tiles, i, x_sbuf):
    """Copy what precedes the row of tile i into its first columns, from the blocks that `load_blocks` appended."""
    tile = tiles[i]
    if not meets_state(geometry, tile):
        return
    first = tile.starts[0] - geometry.pad_left
    count = min(-first, x_sbuf.shape[1])
    place = place_of(plan, tiles, i)
    begin = (place[2] + 1) * geometry.pad_left + first
    nisa.tensor_copy(
        dst=x_sbuf[0 : tile.rows, 0:count],
        src=states[place[0]][0 : tile.rows, place[1], begin : begin + count],
        engine=filler_of(plan),
    )
