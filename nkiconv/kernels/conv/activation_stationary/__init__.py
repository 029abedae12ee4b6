"""Activation-stationary: windows of x are the stationary operands, filters the moving ones.

    y[pixels, k] = sum over taps, K tiles of  x[c, pixels at a tap]^T w[c, tap, k]

The results have 128 pixels of y on the partitions with their output channels as neighbours, as NHWC is stored: they are
stored in runs of K elements, or of several pixels' K. Rows of y of volumes (NCDHW) have several planes of y in the
columns of the Tensor Engine, which transposes the results. Padding is stored as zeros, so that each tap sees all
pixels. With lhs_dilation a block's rows are lhs_dilation apart, and so are the pixels of a tile if that divides `side`:
all of them see elements of x at the same taps, and zeros at the others, which are neither stored nor multiplied.
The Tensor Engine adds the bias of NHWC where products are few, in parts of bf16, so that an infinite one makes NaN.

    | y      | stationary               | K (partitions)         | M (columns)   | N             | evacuation   |
    |--------|--------------------------|------------------------|---------------|---------------|--------------|
    | NHWC   | x, the window of one tap | c; few: shifts, h, c   | 128 pixels    | k; folded p, k| plain        |
    | windows| x, rows of a channel's   | r, s                   | 128 pixels    | k             | plain        |
    |        | taps                     |                        |               |               |              |
    | NCDHW  | x, the window of one tap | c; left over: copies,  | 128 positions | z, k          | transpose    |
    |        |                          | each at the next tap   | of rows       |               |              |
    | patches| x                        | c                      | 128 pixels    | k, taps       | plain        |
    | depth- | blocks of x              | pixels of a block      | 128 blocks    | pixels of     | plain        |
    | wise   |                          |                        |               | blocks of y   |              |

Pseudocode, of one core:

    for (weight-resident group, output tile):
        load x of the next output tile, or the next rows of x
        for bank of (tiles of 128 pixels, planes, k):
            for K tile, tap, tile of pixels or plane of x:
                PSUM[pixel, tile or planes, k] += x[c, pixels at the tap]^T w[c, tap, k]
                transpose filters that later matmuls need              # background work
            y[pixel, k] = epilogue(PSUM)
        store y                                  # volumes: transposed while the next tile's sums are computed

For depthwise problems, whose filters become Toeplitz matrices F of all taps (see `schedules.depthwise_blocks`):

    for (channels, 128 blocks):
        load x of the next blocks                                      # NCHW: planes, whose windows are transposed
        place F of the next channels
        for bank of channels:
            for channel, window, k of the blocks below each other:
                PSUM[block, channel, (p, q)] += X[(j, w), block + k]^T F[k][(j, w), (p, q)]
            y[block, (p, q)] = epilogue(PSUM)
        store y
"""

from ....schedules.depthwise_blocks import BlockSchedule
from ....schedules.patches import PatchSchedule
from ....schedules.pixel_tiles import PixelSchedule
from ....schedules.volume_rows import RowSchedule
from ....schedules.windows import WindowSchedule
from ..call import part_of_core
from .depthwise import BlockCore
from .patches import PatchCore
from .pixels import PixelCore
from .rows import RowCore
from .windows import WindowCore

#: The loop of each kind of schedule.
CORES = {
    PixelSchedule: PixelCore,
    RowSchedule: RowCore,
    BlockSchedule: BlockCore,
    PatchSchedule: PatchCore,
    WindowSchedule: WindowCore,
}


def run_activation_stationary(operands, geometry, options, plan):
    """Compute this core's part of the items: pixels, rows of volumes, blocks of depthwise problems, or patches."""
    items = part_of_core(plan.items)
    if len(items) > 0:
        core = CORES[type(plan)](operands, geometry, options, plan)
        core.run(core.tiles(items))
