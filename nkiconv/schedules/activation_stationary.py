"""The problems and options that `activation_stationary` refuses, and the dataclass of a problem's settings."""

from __future__ import annotations

from .depthwise_blocks import DepthwiseSettings, least_columns, pixels_of, window_width, windows_of
from .geometry import Geometry, images_unsupported, is_evenly_apart, is_transposed, num_phases, writes_rows
from .options import PROLOGUE_ARGUMENTS, Options, adds_last, no_prologue, taken_unsupported
from .patches import PatchSettings, patches_unsupported, takes_patches
from .pixel_tiles import PixelSettings, can_fold, is_padded
from .planes import taps_are_inside
from .relayout import takes_windows
from .settings import Config, Settings
from .tiles import BANK_COLUMNS, P_MAX, QUADRANT
from .volume_rows import RowSettings
from .windows import WindowSettings

NAME = "activation_stationary"


def unsupported_reason(geometry: Geometry, options: Options, config: Config) -> str:
    """Why the algorithm refuses a problem, from settings and sizes alone; "" if it does not."""
    kind = settings_of(geometry, options)
    reason = kind.unsupported_reason(config) or channels_unsupported(geometry, options)
    if reason != "":
        return reason
    if kind is DepthwiseSettings:
        reason = depthwise_unsupported(geometry, options)
        return reason or no_prologue(options, f"{NAME} takes none of depthwise problems")
    if kind is PatchSettings:
        return patches_unsupported(geometry, options)
    if kind is WindowSettings:
        return no_prologue(options, "windows that do not overlap take none")
    reason = one_group_unsupported(geometry)
    if reason == "" and kind is RowSettings:
        return rows_unsupported(geometry, options) or no_prologue(options, f"{NAME} takes none where y is NCDHW")
    if reason == "":
        whole = not (is_padded(geometry.planes) or is_padded(geometry.rows) or is_padded(geometry.columns))
        reason = taken_unsupported(geometry, options, NAME, True, "filters around x and between", whole)
    return reason


def one_group_unsupported(geometry: Geometry) -> str:
    """Why a problem is not one of a single group, no lhs_dilation of planes and 16 or 32 bits; "" if it is."""
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: {NAME} takes 1; use implicit_gemm or weight_stationary"
    if geometry.planes.lhs_dilation > 1:
        return f"lhs_dilation={geometry.planes.lhs_dilation} of planes: {NAME} takes 1; use implicit_gemm"
    if geometry.hbm_itemsize == 1:
        return f"img_ref.dtype=float8: {NAME} takes 16 and 32 bits; use implicit_gemm"
    return ""


def channels_unsupported(geometry: Geometry, options: Options) -> str:
    """Why a bank does not hold all output channels of a pixel, as a norm needs; "" if it does."""
    norm = options.epilogue.norm
    if norm is None:
        return ""
    if geometry.groups > 1:
        why = "has some channels of a pixel at a time where there are groups"
        if geometry.groups == geometry.C == geometry.K:
            why = "would pass over depthwise sums more often than a norm of y does"
        return f"y_norm={norm.kind}, feature_group_count={geometry.groups}: {NAME} {why}; normalize y"
    if geometry.K > BANK_COLUMNS:
        return f"y_norm={norm.kind}, K={geometry.K}: {NAME} takes at most {BANK_COLUMNS} output channels; normalize y"
    return ""


def rows_unsupported(geometry: Geometry, options: Options) -> str:
    """Why no settings of this algorithm compute rows of y; "" if some do."""
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
    if options.residual and adds_last(options.epilogue):
        return f"residual_position=post_activation: {NAME} adds a residual to sums where y is NCDHW; use implicit_gemm"
    if options.residual and geometry.precision == "tf32":
        return f"residual, precision=tf32: {NAME} would round it as a product where y is NCDHW; use implicit_gemm"
    return taken_unsupported(geometry, options, NAME, False, "filters around x")


def depthwise_unsupported(geometry: Geometry, options: Options) -> str:
    """Why no settings of this algorithm compute several groups; "" if some do."""
    rows, columns, most, disjoint = geometry.rows, geometry.columns, P_MAX, not is_transposed(geometry)
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: {NAME} takes 1, or depthwise "
            f"problems with plain filters, groups = C = K; use implicit_gemm or weight_stationary"
        )
    if reason := images_unsupported(geometry.planes, f"{NAME} of depthwise problems", "stacked or weight_stationary"):
        return reason
    apart = "initial_frames" if geometry.frames is not None else f"padding of planes, N={geometry.planes.images}"
    if not is_evenly_apart(geometry) or geometry.frames is not None:
        return f"{apart}: {NAME} takes planes evenly apart in one tensor; use stacked or weight_stationary"
    if geometry.hbm_itemsize == 1:
        return f"img_ref.dtype=float8: {NAME} takes 16 and 32 bits; use implicit_gemm"
    least, phases = least_columns(columns, disjoint), num_phases(rows)
    height = pixels_of(rows, phases) if disjoint else phases * rows.stride // rows.lhs_dilation
    if window_width(columns, least, disjoint) * height > most:
        return (
            f"R={rows.taps}, S={columns.taps}, rhs_dilation={columns.dilation}, stride={rows.stride}: {NAME} takes "
            f"windows of rows that {most} partitions hold; use stacked"
        )
    if disjoint and all(one.q > 0 for one in windows_of(columns, least, True)):
        return (
            f"padding={columns.before} in front of a row, lhs_dilation={columns.lhs_dilation}: {NAME} takes planes of "
            f"NCHW whose first column of y sees x; use stacked"
        )
    reason = taken_unsupported(geometry, options, NAME, True, "pixels outside a window")
    if reason == "" and is_transposed(geometry) == writes_rows(geometry):
        return f"out_perm: {NAME} takes y of depthwise problems in the layout of x; use implicit_gemm"
    return reason


def together_unsupported(geometry: Geometry, options: Options, settings: PixelSettings) -> str:
    """Why a partition cannot hold `side` neighbours, the columns `fold` rows of y, or the rows `shifts` copies of x; ""
    if they can."""
    side, fold, shifts, rest = settings.side, settings.fold, settings.shifts, settings.rest
    given = f"config fold={fold} shifts={shifts} rest={rest}"
    if geometry.columns.out % side > 0:
        return f"config side={side}: must divide Q={geometry.columns.out}; use 1"
    if (fold * shifts > 1 or rest) and options.strict_nonfinite:
        return f"strict_nonfinite=True, {given}: x outside a window is multiplied by zero; use 1"
    if options.prologue.asked and (rest or (fold * shifts > 1 and geometry.C % QUADRANT > 0)):
        return f"{given}, C={geometry.C}: copies of x have no prologue ({PROLOGUE_ARGUMENTS}); use 1 and rest=0"
    if not can_fold(geometry, fold, shifts, rest):
        return (
            f"{given}, C={geometry.C}, K={geometry.K}, P={geometry.rows.out}, S={geometry.columns.taps}: fold must "
            f"divide P, with fold * K <= {BANK_COLUMNS}, shifts * (C - rest) <= {P_MAX}, rest < C, shifts <= S, no "
            f"crop at the top, no lhs_dilation of rows, or of shifted columns, and no cast of NHWC; use 1 and rest=0"
        )
    return ""


def settings_of(geometry: Geometry, options: Options) -> type[Settings]:
    """The dataclass of a problem's settings."""
    if geometry.groups > 1:
        return DepthwiseSettings
    if takes_patches(geometry, options):
        return PatchSettings
    if takes_windows(geometry):
        return WindowSettings
    return RowSettings if writes_rows(geometry) else PixelSettings
