"""Depthwise conv2d by Toeplitz matrices: sizes from shapes.

A channels of H rows lie on the partitions, X[(a, h), n, w] = x[n, a, h, w]; for a column of taps s one matmul with

    F[s][(a, h), (a, p)] = w[a, r, s]   where   h = p * stride + r * dilation - top,   zero elsewhere

does all R taps of it for A channels and all rows: S matmuls of N Q columns for A channels, where diagonals take R S of
P Q columns for 128. Padding above and below is zeros of F. What it pays is short runs: a DMA element is one row of x.
"""

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS
from ..call import taken_refusal
from ..geometry import instructions_refusal
from .config import toeplitz_config_refusal, toeplitz_settings
from .shape import most_channels_of_group, sizes_of_toeplitz, toeplitz_instructions


def plan_toeplitz(geometry, extras, config, cores):
    """(Toeplitz, "") of this on `cores` cores, or (None, why not)."""
    reason = toeplitz_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    settings = toeplitz_settings(geometry, config)
    A, size = most_channels_of_group(geometry), geometry.rows.size
    if settings.channels > A:
        return None, f"config channels={settings.channels}: at most {A} of {size} rows; use fewer"
    toeplitz = sizes_of_toeplitz(geometry, settings, extras.residual)
    if toeplitz == None:
        return None, (
            f"N={geometry.planes.out}, W={geometry.columns.size}, S={geometry.columns.taps}: rows of all images and "
            f"the matrices of a group must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes a partition; use "
            f"implicit_gemm"
        )
    reason = instructions_refusal(geometry, "toeplitz_rows", toeplitz_instructions(geometry, toeplitz, cores))
    return (toeplitz, "") if reason == "" else (None, reason)


def toeplitz_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason = toeplitz_config_refusal(config)
    if reason != "":
        return reason
    rows, columns, most = geometry.rows, geometry.columns, nl.tile_size.pmax
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: toeplitz_rows takes depthwise "
            f"problems, groups = C = K; use implicit_gemm"
        )
    if geometry.C < PARTS:
        return f"C={geometry.C}: toeplitz_rows takes at least {PARTS} channels; use implicit_gemm"
    if max(rows.size, rows.out) > most or columns.out > BANK_COLUMNS:
        return (
            f"H={rows.size}, P={rows.out}, Q={columns.out}: toeplitz_rows takes at most {most} rows and {BANK_COLUMNS} "
            f"columns of y; use implicit_gemm"
        )
    return taken_refusal(geometry, extras, "toeplitz_rows", False, "rows outside a window")
