"""Schedules of `activation_stationary`: what it does not take, what settings come to, and defaults of a bare kernel."""

from __future__ import annotations

from dataclasses import replace

from .activation_stationary import DepthwiseSettings, PixelSettings, RowSettings, read_pixels
from .block_windows import pixels_among
from .cuts import window_of
from .depthwise_blocks import (
    BLOCK_CHANNELS,
    BlockSchedule,
    block_bytes,
    block_instructions,
    blocks_misfit,
    depthwise_settings,
)
from .frames import is_transposed
from .geometry import Geometry, images_unsupported, instructions_unsupported, writes_rows
from .options import Options, one_group_unsupported, taken_unsupported
from .pixel_tiles import (
    STEP_MAX,
    PixelSchedule,
    can_fold,
    is_padded,
    make_pixels,
    outputs_apart,
    pixel_instructions,
    pixels_fit,
)
from .planes import taps_are_inside
from .settings import Config, Settings, declarations
from .tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, P_MAX, SBUF_BYTES, fits_sbuf
from .volume_rows import TILE_BANKS, RowSchedule, make_rows, row_instructions, steps_alike

NAME = "activation_stationary"
#: (a schedule, "") or (None, why there is none)
Planned = tuple[PixelSchedule | RowSchedule | BlockSchedule | None, str]


def plan_activation_stationary(geometry: Geometry, options: Options, config: Config, cores: int) -> Planned:
    """(PixelSchedule or RowSchedule, "") of this on `cores` cores, or (None, why not)."""
    reason = unsupported_reason(geometry, options, config)
    if reason != "":
        return None, reason
    if geometry.groups > 1:
        return plan_depthwise(geometry, options, config, cores)
    return (plan_rows if writes_rows(geometry) else plan_pixels)(geometry, options, config, cores)


def plan_pixels(geometry: Geometry, options: Options, config: Config, cores: int) -> Planned:
    """The same of y as NHWC."""
    settings = pixel_settings(geometry, options, config)
    reason = together_unsupported(geometry, options, settings.side, settings.fold)
    if reason != "":
        return None, reason
    plan = make_pixels(geometry, settings)
    if plan is None or not pixels_fit(geometry, options, plan):
        return None, (
            f"C={geometry.C}, H={geometry.rows.size}, W={geometry.columns.size}, R={geometry.rows.taps}, "
            f"S={geometry.columns.taps}, x_bytes={settings.x_bytes}: {NAME} keeps padded windows of rows of y and "
            f"filters of all input channels in SBUF, {SBUF_BYTES} bytes per partition, in "
            f"steps of at most {STEP_MAX} elements; use implicit_gemm"
        )
    reason = instructions_unsupported(geometry, NAME, pixel_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def plan_rows(geometry: Geometry, options: Options, config: Config, cores: int) -> Planned:
    """The same of volumes whose y is NCDHW; a loop on the device where the compiler would refuse the kernel without."""
    plan = make_rows(geometry, options, row_settings(geometry, options, config))
    if plan is None:
        return None, (
            f"C={geometry.C}, K={geometry.K}, W={geometry.columns.size}: {NAME} keeps rows of x of all planes that are "
            f"seen together and all filters in SBUF, {SBUF_BYTES} bytes per partition; use "
            f"implicit_gemm"
        )
    count = row_instructions(geometry, plan, cores)
    if count * geometry.times > INSTRUCTIONS_MAX and "loop" not in dict(config or ()):
        plan = replace(plan, loop=1)
        plan = replace(plan, steps=steps_alike(geometry, plan))
        count = row_instructions(geometry, plan, cores)
    reason = instructions_unsupported(geometry, NAME, count, plan.steps is not None)
    return (plan, "") if reason == "" else (None, reason)


def plan_depthwise(geometry: Geometry, options: Options, config: Config, cores: int) -> Planned:
    """The same of depthwise problems."""
    settings = depthwise_settings(geometry, config)
    reason = blocks_misfit(geometry, settings)
    if reason != "":
        return None, reason
    plan = BlockSchedule(geometry, settings)
    while not fits_sbuf(block_bytes(geometry, plan, options)) and settings.channels > BLOCK_CHANNELS:
        if "channels" in dict(config or ()):
            break
        settings = replace(settings, channels=settings.channels // 2)
        plan = BlockSchedule(geometry, settings)
    if not fits_sbuf(block_bytes(geometry, plan, options)):
        return None, (
            f"config images={settings.images}, channels={settings.channels}, C={geometry.C}: blocks, matrices and "
            f"results must fit SBUF, {SBUF_BYTES} bytes per partition; use fewer"
        )
    reason = instructions_unsupported(geometry, NAME, block_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def unsupported_reason(geometry: Geometry, options: Options, config: Config) -> str:
    """Why not, from settings and letters alone; "" for nothing."""
    reason = settings_of(geometry).unsupported_reason(config)
    if reason == "" and geometry.groups > 1:
        return depthwise_unsupported(geometry, options)
    if reason == "":
        reason = one_group_unsupported(geometry, NAME, False)
    if reason == "" and writes_rows(geometry):
        return rows_unsupported(geometry, options)
    if reason == "":
        whole = not (is_padded(geometry.planes) or is_padded(geometry.rows) or is_padded(geometry.columns))
        reason = taken_unsupported(geometry, options, NAME, True, "filters around x and between", whole)
    return reason


def rows_unsupported(geometry: Geometry, options: Options) -> str:
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
    if options.residual:
        return f"residual: {NAME} takes none where y is NCDHW; use implicit_gemm"
    return taken_unsupported(geometry, options, NAME, False, "filters around x")


def depthwise_unsupported(geometry: Geometry, options: Options) -> str:
    """Why several groups are not for this algorithm, whatever its settings; "" if they may be."""
    rows, columns, most = geometry.rows, geometry.columns, P_MAX
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: {NAME} takes 1, or depthwise "
            f"problems with plain filters, groups = C = K; use implicit_gemm or weight_stationary"
        )
    reason = images_unsupported(geometry.planes, f"{NAME} of depthwise problems", "stacked or weight_stationary")
    if reason != "":
        return reason
    if len(geometry.x_strides) > 4 or geometry.frames is not None:
        return f"initial_frames, N: {NAME} takes planes evenly apart in one tensor; use stacked or weight_stationary"
    if geometry.hbm_itemsize == 1:
        return f"img_ref.dtype=float8: {NAME} takes 16 and 32 bits; use implicit_gemm"
    least = pixels_among(columns, window_of(columns, outputs_apart(columns)))
    if least * outputs_apart(rows) * rows.stride // rows.lhs_dilation > most:
        return (
            f"S={columns.taps}, rhs_dilation={columns.dilation}, stride={rows.stride}: {NAME} takes windows of a row "
            f"that {most} partitions hold, times the stride of rows; use stacked"
        )
    reason = taken_unsupported(geometry, options, NAME, True, "pixels outside a window")
    if reason == "" and is_transposed(geometry) == writes_rows(geometry):
        return f"out_perm: {NAME} takes y of depthwise problems in the layout of x; use implicit_gemm"
    return reason


def together_unsupported(geometry: Geometry, options: Options, side: int, fold: int) -> str:
    """Why so many neighbours do not go on a partition, or so many rows of y into columns, or ""."""
    if geometry.columns.out % side > 0:
        return f"config side={side}: must divide Q={geometry.columns.out}; use 1"
    if fold > 1 and options.strict_nonfinite:
        return f"strict_nonfinite=True, config fold={fold}: rows outside a window are multiplied by zero; use fold 1"
    if not can_fold(geometry, fold):
        return (
            f"config fold={fold}, C={geometry.C}, K={geometry.K}, P={geometry.rows.out}: must divide P, with fold * "
            f"stride * C <= {P_MAX}, fold * K <= {BANK_COLUMNS}, no crop at the top, one plane of "
            f"taps, no lhs_dilation of rows and no cast of NHWC; use 1"
        )
    return ""


#: Of `pixel_settings`: pixels up to which cores share channels, and below which they do where there are more channels
#: than so many, which results of neighbours have at most; columns and pixels of neighbouring rows, and pixels of
#: neighbours.
FEW_PIXELS, MANY_PIXELS = 128, 4096
MANY_CHANNELS, MANY_COLUMNS = 256, 384
PIXELS_A_ROW, PIXELS_A_SIDE = 256, 1440


def settings_of(geometry: Geometry) -> type[Settings]:
    """The dataclass of the settings that a problem has."""
    if geometry.groups > 1:
        return DepthwiseSettings
    return RowSettings if writes_rows(geometry) else PixelSettings


def pixel_settings(geometry: Geometry, options: Options, config: Config) -> PixelSettings:
    """All settings of a config that is not refused. What that leaves open: images for many pixels; some rows
    together, and neighbours whose results leave in one run, for few channels; fewer of them where they do not fit."""
    if config is not None and len(config) == len(declarations(PixelSettings)):
        return PixelSettings.read(config)
    Q, K = geometry.columns.out, geometry.K
    pixels = geometry.planes.out * geometry.rows.out * Q
    shard, other, side, fold = "images", "channels", 1, 1
    if pixels <= FEW_PIXELS or (K > MANY_CHANNELS and pixels < MANY_PIXELS):
        shard, other = "channels", "images"
    elif not options.strict_nonfinite:
        for rows in (2, 4):
            if rows * K <= MANY_COLUMNS and pixels >= PIXELS_A_ROW * rows and can_fold(geometry, rows):
                fold = rows
    for pixels_together in (2, 3, 4, 6, 8):
        long = pixels >= PIXELS_A_SIDE * pixels_together and Q % pixels_together == 0
        if long and pixels_together * fold * K <= MANY_CHANNELS:
            side = pixels_together
    for tried in ((shard, side, fold), (shard, 1, fold), (shard, 1, 1), (other, 1, 1)):
        if pixels_fit(geometry, options, make_pixels(geometry, read_pixels(None, *tried))):
            break
    return read_pixels(config, *tried)


def row_settings(geometry: Geometry, options: Options, config: Config) -> RowSettings:
    """All settings; what a config leaves open: the planes that a few banks hold, or fewer where x does not fit."""
    planes = geometry.planes
    most = min(planes.out // planes.images, max(1, BANK_COLUMNS // geometry.K) * TILE_BANKS)
    for depth in range(most, 0, -1):
        found = RowSettings.read(config, depth=depth)
        if make_rows(geometry, options, found) is not None:
            break
    return found
