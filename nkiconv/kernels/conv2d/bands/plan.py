"""Depthwise conv2d by bands: sizes from shapes.

A channels of H rows lie on the partitions, X[(a, h), n, w] = x[n, a, h, w]; for a column of taps s one matmul with

    F[s][(a, h), (a, p)] = w[a, r, s]   where   h = p * stride + r * dilation - top,   zero elsewhere

does all R taps of it for A channels and all rows: S matmuls of N Q columns for A channels, where diagonals take R S of
P Q columns for 128. Padding above and below is zeros of F. What it pays is short runs: a DMA element is one row of x.
"""

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS
from ..call import taken_refusal
from ..geometry import instructions_refusal
from .config import bands_config_refusal, bands_settings
from .shape import bands_instructions, most_channels_of_group, sizes_of_bands


def plan_bands(geometry, extras, config, cores):
    """(Bands, "") of this on `cores` cores, or (None, why not)."""
    reason = bands_config_refusal(config)
    if reason == "":
        reason = bands_refusal(geometry, extras)
    if reason != "":
        return None, reason
    settings = bands_settings(geometry, config)
    A, size = most_channels_of_group(geometry), geometry.rows.size
    if settings.channels > A:
        return None, f"config channels={settings.channels}: at most {A} of {size} rows; use fewer"
    bands = sizes_of_bands(geometry, settings, extras.residual)
    if bands == None:
        return None, (
            f"N={geometry.planes.out}, W={geometry.columns.size}, S={geometry.columns.taps}: rows of all images and "
            f"the bands of a group must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes a partition; use taps"
        )
    reason = instructions_refusal(geometry, "bands", bands_instructions(geometry, bands, cores))
    return (bands, "") if reason == "" else (None, reason)


def bands_refusal(geometry, extras):
    """Why no bands do this, whatever their settings; "" if some may."""
    rows, columns, most = geometry.rows, geometry.columns, nl.tile_size.pmax
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: bands takes depthwise problems, "
            f"groups = C = K; use taps"
        )
    if geometry.C < PARTS:
        return f"C={geometry.C}: bands takes at least {PARTS} channels; use taps"
    if max(rows.size, rows.out) > most or columns.out > BANK_COLUMNS:
        return (
            f"H={rows.size}, P={rows.out}, Q={columns.out}: bands takes at most {most} rows and {BANK_COLUMNS} columns "
            f"of y; use taps"
        )
    return taken_refusal(geometry, extras, "bands", False, "rows outside a window", True)
