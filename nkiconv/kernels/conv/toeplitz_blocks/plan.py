"""Depthwise conv2d by blocks: sizes from shapes.

Blocks of `rows` rows and `width` columns of x lie on the partitions, X[(j, w), block] = x[b * rows + j, w0 + w] of a
channel; a block of y has rows / stride rows, and the columns whose taps are among those of x. It is the sum over few
blocks k below each other, mostly two, of one matmul each, with pixels as the stationary operand and, moving, here where
windows overlap and there are no zeros between pixels,

    F[k][(j, w), (p, q)] = w[r, s]   where   k * rows + j = p * stride + r * dilation,  w = q * stride + s * dilation,

zero elsewhere: with rows as far apart as a block is wide, one Toeplitz matrix of all taps. It has a column for each
pixel of a block, as if the stride were 1: others than those of y cost nothing below 128, and keep the array at its full
rate. 128 blocks of a channel, of several images, take `depth` matmuls, where `stacked` takes S for a row of each.
Results have blocks on the partitions. Where channels lie side by side (NHWC) DMA loads blocks as they are, each pixel a
run; planes (NCHW) come as they lie, zeros are put around them, and the array transposes windows of them.

Where windows are disjoint (`windows`), a block has all rows that its rows of y see, and several windows add to a column
of y. Zeros between pixels (lhs_dilation) are left out of blocks, which then have rows / lhs_dilation rows from one to
the next: matrices have the outputs between.

    | stationary  | K (partitions)           | M (columns) | N                       | evacuation |
    |-------------|--------------------------|-------------|-------------------------|------------|
    | blocks of x | pixels (j, w) of a block | 128 blocks  | pixels (p, q) of blocks | plain      |

Pseudocode, of one core:

    for (channels, 128 blocks):
        load blocks of x of the next ones                              # NCHW: planes, whose windows are transposed
        place F of the next channels
        for bank of channels:
            for channel, window, k of the blocks below each other:
                PSUM[block, channel, (p, q)] += X[(j, w), block + k]^T F[k][(j, w), (p, q)]
            y[block, (p, q)] = epilogue(PSUM)
        store y
"""

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.geometry import images_refusal, instructions_refusal
from ....schedules.options import taken_refusal
from ....schedules.tiles import BANK_COLUMNS
from ....schedules.toeplitz_blocks import ToeplitzBlocksSettings
from ..transposes import is_transposed
from .defaults import blocks_settings
from .shape import blocks_fit, blocks_instructions, sizes_of_blocks
from .windows import bank_columns, disjoint_misfit, outputs_alike, pixels_among, window_width


def plan_blocks(geometry, extras, config, cores):
    """(ToeplitzBlocks, "") of this on `cores` cores, or (None, why not)."""
    reason = blocks_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    settings = blocks_settings(geometry, config)
    reason = settings_misfit(geometry, settings)
    if reason != "":
        return None, reason
    blocks = sizes_of_blocks(geometry, settings)
    if not blocks_fit(geometry, blocks, extras):
        return None, (
            f"config images={settings.images}, channels={settings.channels}, C={geometry.C}: blocks, matrices and "
            f"results must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition; use fewer"
        )
    reason = instructions_refusal(geometry, "toeplitz_blocks", blocks_instructions(geometry, blocks, cores))
    return (blocks, "") if reason == "" else (None, reason)


def settings_misfit(geometry, settings):
    """Why sizes of blocks do not go together, or ""."""
    most, stride, columns, disjoint = nl.tile_size.pmax, geometry.rows.stride, geometry.columns, settings.disjoint == 1
    if settings.disjoint == 1 and is_transposed(geometry):
        return "config disjoint=1: must be 0 where channels lie side by side"
    if settings.rows % stride > 0:
        return f"config rows={settings.rows}: must be a multiple of the stride of rows, {stride}"
    if settings.rows % geometry.rows.lhs_dilation > 0 or settings.columns % outputs_alike(columns) > 0:
        return (
            f"config rows={settings.rows}, columns={settings.columns}: rows must be a multiple of lhs_dilation, "
            f"{geometry.rows.lhs_dilation}, columns of {outputs_alike(columns)}, so that all blocks see x alike"
        )
    seen = pixels_among(geometry.rows, window_of(geometry.rows, settings.rows // stride))
    rows = seen if disjoint else settings.rows // geometry.rows.lhs_dilation
    width = window_width(columns, settings.columns if disjoint else min(settings.columns, columns.out), disjoint)
    if seen == 0 or width == 0:
        return (
            f"config rows={settings.rows}, columns={settings.columns}, lhs_dilation="
            f"{(geometry.rows.lhs_dilation, columns.lhs_dilation)}: a block sees no pixel; use more, or implicit_gemm"
        )
    if rows * width > most:
        return (
            f"config rows={settings.rows}, columns={settings.columns}, S={columns.taps}: {width} columns of x times "
            f"{rows} rows must be at most {most}; use fewer"
        )
    sums = settings.rows * bank_columns(columns, settings.columns, settings.rows)
    if not disjoint and sums > BANK_COLUMNS:
        return (
            f"config rows={settings.rows}, columns={settings.columns}: {sums} sums of a block must fit a bank, "
            f"{BANK_COLUMNS}; use fewer"
        )
    if settings.beside * settings.below * settings.images > most:
        return (
            f"config beside={settings.beside}, below={settings.below}, images={settings.images}: their product must be "
            f"at most {most}; use fewer"
        )
    if is_transposed(geometry):
        return ""
    if settings.disjoint == 1:
        reason = disjoint_misfit(geometry.columns, settings, settings.rows // stride)
        if reason != "":
            return reason
    if settings.beside > 1:
        return f"config beside={settings.beside}: must be 1 unless channels are contiguous (NHWC)"
    if settings.channels > most:
        return f"config channels={settings.channels}: must be at most {most} unless channels are contiguous (NHWC)"
    return ""


def blocks_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason = ToeplitzBlocksSettings.refusal(config)
    if reason != "":
        return reason
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0 or geometry.groups == 1:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: toeplitz_blocks takes depthwise "
            f"problems, groups = C = K > 1; use implicit_gemm"
        )
    reason = images_refusal(geometry.planes, "toeplitz_blocks", "stacked or grouped")
    if reason != "":
        return reason
    if len(geometry.x_strides) > 4 or geometry.frames != None:
        return "initial_frames, N: toeplitz_blocks takes planes evenly apart in one tensor; use stacked or grouped"
    if geometry.hbm_itemsize == 1:
        return "img_ref.dtype=float8: toeplitz_blocks takes 16 and 32 bits; use implicit_gemm"
    rows, columns = geometry.rows, geometry.columns
    least = pixels_among(columns, window_of(columns, outputs_alike(columns)))
    if least * outputs_alike(rows) * rows.stride // rows.lhs_dilation > nl.tile_size.pmax:
        return (
            f"S={columns.taps}, rhs_dilation={columns.dilation}, stride={rows.stride}: toeplitz_blocks takes windows "
            f"of a row that {nl.tile_size.pmax} partitions hold, times the stride of rows; use stacked"
        )
    reason = taken_refusal(geometry, extras, "toeplitz_blocks", True, "pixels outside a window")
    if reason == "" and is_transposed(geometry) != (geometry.y_strides[0] == 1):
        return "out_perm: toeplitz_blocks takes y in the layout of x; use implicit_gemm"
    return reason
