"""Activation-stationary: windows of x are the stationary operands, filters the moving ones.

    y[pixels, k] = sum over taps, K tiles of  x[c, pixels at a tap]^T w[c, tap, k]

128 pixels of y come out on the partitions with their output channels as neighbours, which is how NHWC is stored: they
leave in runs of K elements, or of several pixels' K. Rows of y of volumes (NCDHW) have several planes of y in the
columns of the Tensor Engine, which transposes the results. Padding is stored as zeros, so that each tap sees all
pixels. Of a dilated x a block's rows are lhs_dilation apart, and so are the pixels of a tile where that divides `side`:
all of them see elements of x at the same taps, zeros between these at others, which are neither stored nor multiplied.

    | y      | stationary               | K (partitions)         | M (columns)   | N             | evacuation   |
    |--------|--------------------------|------------------------|---------------|---------------|--------------|
    | NHWC   | x, the window of one tap | c; folded: h, c        | 128 pixels    | k; folded p, k| plain        |
    | NCDHW  | x, the window of one tap | c; left over: copies,  | 128 positions | z, k          | transpose    |
    |        |                          | each a tap further     | of rows       |               |              |
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
        store y                                  # of volumes: transposed while the next tile's sums are made

Of depthwise problems, whose filters become Toeplitz matrices F of all taps (see `depthwise_blocks`):

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
from ....schedules.options import one_group_refusal, taken_refusal
from ....schedules.planes import taps_are_inside
from ....schedules.tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, fits_sbuf
from ..flip import writes_rows
from ..transposes import is_transposed
from .defaults import pixel_settings, row_settings, settings_of
from .depthwise_blocks import BlockSchedule, block_bytes, block_instructions, blocks_misfit, depthwise_settings
from .pixel_blocks import STEP_MAX, can_fold, is_padded, outputs_apart
from .pixel_tiles import make_pixels, pixel_instructions, pixels_fit
from .row_tiles import make_rows, row_instructions, steps_alike
from .windows import pixels_among

NAME = "activation_stationary"


def plan_activation_stationary(geometry, extras, config, cores):
    """(PixelSchedule or RowSchedule, "") of this on `cores` cores, or (None, why not)."""
    reason = unsupported_reason(geometry, extras, config)
    if reason != "":
        return None, reason
    if geometry.groups > 1:
        return plan_depthwise(geometry, extras, config, cores)
    return (plan_rows if writes_rows(geometry) else plan_pixels)(geometry, extras, config, cores)


def plan_pixels(geometry, extras, config, cores):
    """The same of y as NHWC."""
    settings = pixel_settings(geometry, extras, config)
    reason = together_refusal(geometry, extras, settings.side, settings.fold)
    if reason != "":
        return None, reason
    plan = make_pixels(geometry, settings)
    if not pixels_fit(geometry, extras, plan):
        return None, (
            f"C={geometry.C}, H={geometry.rows.size}, W={geometry.columns.size}, R={geometry.rows.taps}, "
            f"S={geometry.columns.taps}, x_bytes={settings.x_bytes}: {NAME} keeps padded windows of rows of y and "
            f"filters of all input channels in SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition, in "
            f"steps of at most {STEP_MAX} elements; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, NAME, pixel_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def plan_rows(geometry, extras, config, cores):
    """The same of volumes whose y is NCDHW; a loop on the device where the compiler would refuse the kernel without."""
    plan = make_rows(geometry, extras, row_settings(geometry, extras, config))
    if plan == None:
        return None, (
            f"C={geometry.C}, K={geometry.K}, W={geometry.columns.size}: {NAME} keeps rows of x of all planes that are "
            f"seen together and all filters in SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition; use "
            f"implicit_gemm"
        )
    count = row_instructions(geometry, plan, cores)
    if count * geometry.times > INSTRUCTIONS_MAX and "loop" not in dict(config or ()):
        plan.loop = 1
        plan.steps = steps_alike(geometry, plan)
        count = row_instructions(geometry, plan, cores)
    reason = instructions_refusal(geometry, NAME, count, plan.steps != None)
    return (plan, "") if reason == "" else (None, reason)


def plan_depthwise(geometry, extras, config, cores):
    """The same of depthwise problems."""
    settings = depthwise_settings(geometry, config)
    reason = blocks_misfit(geometry, settings)
    if reason != "":
        return None, reason
    plan = BlockSchedule(geometry, settings)
    if not fits_sbuf(block_bytes(geometry, plan, extras)):
        return None, (
            f"config images={settings.images}, channels={settings.channels}, C={geometry.C}: blocks, matrices and "
            f"results must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition; use fewer"
        )
    reason = instructions_refusal(geometry, NAME, block_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def unsupported_reason(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason = settings_of(geometry).refusal(config)
    if reason == "" and geometry.groups > 1:
        return depthwise_refusal(geometry, extras)
    if reason == "":
        reason = one_group_refusal(geometry, NAME, False)
    if reason == "" and writes_rows(geometry):
        return rows_refusal(geometry, extras)
    if reason == "":
        whole = not (is_padded(geometry.planes) or is_padded(geometry.rows) or is_padded(geometry.columns))
        reason = taken_refusal(geometry, extras, NAME, True, "filters around x and between", whole)
    return reason


def rows_refusal(geometry, extras):
    """Why rows of y are not for this algorithm, whatever its settings; "" if they may be."""
    if geometry.planes.taps == 1:
        return (
            f"T=1, out_perm: neighbouring output channels are {geometry.y_strides[0]} elements apart in y, {NAME} "
            f"stores runs of them, or rows of volumes with several planes of taps; use out_perm=(0, 2, 3, 1) or "
            f"implicit_gemm"
        )
    if geometry.K > BANK_COLUMNS:
        return f"K={geometry.K}: {NAME} takes at most {BANK_COLUMNS} output channels of NCDHW; use implicit_gemm"
    if geometry.packed > 0 or not taps_are_inside(geometry):
        return f"filter_ref: {NAME} takes plain filters that lie as KCTRS where y is NCDHW; use implicit_gemm"
    if extras.residual:
        return f"residual: {NAME} takes none where y is NCDHW; use implicit_gemm"
    return taken_refusal(geometry, extras, NAME, False, "filters around x")


def depthwise_refusal(geometry, extras):
    """Why several groups are not for this algorithm, whatever its settings; "" if they may be."""
    rows, columns, most = geometry.rows, geometry.columns, nl.tile_size.pmax
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: {NAME} takes 1, or depthwise "
            f"problems with plain filters, groups = C = K; use implicit_gemm or weight_stationary"
        )
    reason = images_refusal(geometry.planes, f"{NAME} of depthwise problems", "stacked or weight_stationary")
    if reason != "":
        return reason
    if len(geometry.x_strides) > 4 or geometry.frames != None:
        return f"initial_frames, N: {NAME} takes planes evenly apart in one tensor; use stacked or weight_stationary"
    if geometry.hbm_itemsize == 1:
        return f"img_ref.dtype=float8: {NAME} takes 16 and 32 bits; use implicit_gemm"
    least = pixels_among(columns, window_of(columns, outputs_apart(columns)))
    if least * outputs_apart(rows) * rows.stride // rows.lhs_dilation > most:
        return (
            f"S={columns.taps}, rhs_dilation={columns.dilation}, stride={rows.stride}: {NAME} takes windows of a row "
            f"that {most} partitions hold, times the stride of rows; use stacked"
        )
    reason = taken_refusal(geometry, extras, NAME, True, "pixels outside a window")
    if reason == "" and is_transposed(geometry) == writes_rows(geometry):
        return f"out_perm: {NAME} takes y of depthwise problems in the layout of x; use implicit_gemm"
    return reason


def together_refusal(geometry, extras, side, fold):
    """Why so many neighbours do not go on a partition, or so many rows of y into columns, or ""."""
    if geometry.columns.out % side > 0:
        return f"config side={side}: must divide Q={geometry.columns.out}; use 1"
    if fold > 1 and extras.strict_nonfinite:
        return f"strict_nonfinite=True, config fold={fold}: rows outside a window are multiplied by zero; use fold 1"
    if not can_fold(geometry, fold):
        return (
            f"config fold={fold}, C={geometry.C}, K={geometry.K}, P={geometry.rows.out}: must divide P, with fold * "
            f"stride * C <= {nl.tile_size.pmax}, fold * K <= {BANK_COLUMNS}, no crop at the top, one plane of "
            f"taps, no lhs_dilation of rows and no cast of NHWC; use 1"
        )
    return ""
