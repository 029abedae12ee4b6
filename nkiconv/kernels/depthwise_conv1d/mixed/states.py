"""States in front of rows by way of SBUF: one early DMA of long runs for many tiles, then a small copy for each.

A row's state is a few elements, so a DMA into a tile's own columns has a run of as many bytes for each partition.
Channels p * T + t of neighbouring tiles are neighbours in HBM: partition p's states of tn tiles are one run of
tn * pad_left elements. Long states, and those of stacked groups, go straight to their columns instead (`dma`).
"""

from ...._nki import nisa
from ....schedules.mixed import IMAGES, block_of, meets_state, state_images
from ....schedules.tiles import div_ceil
from .dma import filler, load_channels


def load_states(run, tile):
    """Blocks of states [partitions, images, tn * pad_left] up to that of a tile."""
    geometry, plan, L = run.geometry, run.plan, run.geometry.pad_left
    first, last = run.tiles[0], run.tiles[len(run.tiles) - 1]
    first_n, num_images = state_images(run.tiles)
    blocks = div_ceil(num_images, IMAGES)
    while meets_state(geometry, tile) and len(run.states) <= block_of(run.plan, run.tiles, tile):
        t0, n = first.t + len(run.states) // blocks * plan.states, len(run.states) % blocks * IMAGES
        tn, images, n0 = min(plan.states, last.t + 1 - t0), min(IMAGES, num_images - n), first_n + n
        steps = (geometry.C * L, L, 1)
        run.states.append(
            load_channels(run, run.operands.state, run.operands.state.dtype, n0, images, t0, tn, steps, L)
        )


def fill_state(run, i):
    """Copy what precedes the row of tile i into its first columns, from its block."""
    geometry, first, tile, x_sbuf = run.geometry, run.tiles[0], run.tiles[i], run.held[i].x
    if meets_state(geometry, tile):
        missing = geometry.pad_left - tile.groups[0][1]
        count = min(missing, x_sbuf.shape[1])
        n, t = (tile.groups[0][0] - first.groups[0][0]) % IMAGES, (tile.t - first.t) % run.plan.states
        begin = (t + 1) * geometry.pad_left - missing
        nisa.tensor_copy(
            dst=x_sbuf[0 : tile.rows, 0:count],
            src=run.states[block_of(run.plan, run.tiles, tile)][0 : tile.rows, n, begin : begin + count],
            engine=filler(run.plan),
        )
