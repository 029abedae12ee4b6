"""Operand swap: windows of x are the stationary operands, filters the moving ones; the same on any number of cores.

    y[pixels, k] = sum over taps, chunks of c of  x[c, pixels at a tap]^T w[c, tap, k]

128 pixels of y come out on the partitions with their output channels side by side, which is how NHWC is stored: results
leave in runs of K elements, or of several pixels' K. Padding is stored as zeros, so that each tap sees all pixels. Of a
dilated x a block's rows are lhs_dilation apart, and so are the pixels of a tile where that divides `side`: all of them
see elements of x at the same taps, zeros between these at others, which are neither stored nor multiplied.

    | stationary               | K (partitions)  | M (columns) | N             | evacuation   |
    |--------------------------|-----------------|-------------|---------------|--------------|
    | x, the window of one tap | c; folded: h, c | 128 pixels  | k; folded p, k| plain (NHWC) |

Pseudocode, of one core:

    for (weight-resident group, output tile):
        load x of the next output tile
        for bank of (tiles of 128 pixels, k):
            for K tile, tap, tile of pixels:
                PSUM[pixel, tile, k] += x[c, pixels at the tap]^T w[c, tap, k]
                transpose filters that later matmuls need              # background work
            y[pixel, k] = epilogue(PSUM)
        store y
"""

from ...._nki import nl
from ....schedules.geometry import instructions_refusal
from ....schedules.options import one_group_refusal, taken_refusal
from ....schedules.swapped import SwappedSettings
from ....schedules.tiles import BANK_COLUMNS
from .defaults import swapped_settings
from .shape import STEP_MAX, can_fold, is_padded
from .tiling import count_swapped_instructions, make_swapped, swapped_fits


def plan_swapped(geometry, extras, config, cores):
    """(Swapped, "") of this on `cores` cores, or (None, why not)."""
    reason = swapped_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    settings = swapped_settings(geometry, extras, config)
    reason = together_refusal(geometry, extras, settings.side, settings.fold)
    if reason != "":
        return None, reason
    plan = make_swapped(geometry, settings)
    if not swapped_fits(geometry, extras, plan):
        return None, (
            f"C={geometry.C}, H={geometry.rows.size}, W={geometry.columns.size}, R={geometry.rows.taps}, "
            f"S={geometry.columns.taps}, x_bytes={settings.x_bytes}: swapped keeps padded windows of rows of y and "
            f"filters of all input channels in SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition, in "
            f"steps of at most {STEP_MAX} elements; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, "swapped", count_swapped_instructions(geometry, plan, cores))
    return (plan, "") if reason == "" else (None, reason)


def swapped_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason, apart = SwappedSettings.refusal(config), geometry.y_strides[0]
    if reason == "":
        reason = one_group_refusal(geometry, "swapped", False)
    if reason == "":
        whole = not (is_padded(geometry.planes) or is_padded(geometry.rows) or is_padded(geometry.columns))
        reason = taken_refusal(geometry, extras, "swapped", True, "filters around x and between", whole)
    if reason == "" and apart != 1 and geometry.K > 1:
        return (
            f"out_perm: neighbouring output channels are {apart} elements apart in y, swapped stores runs of "
            f"them and takes 1; use out_perm=(0, 2, 3, 1) or implicit_gemm"
        )
    return reason


def together_refusal(geometry, extras, side, fold):
    """Why so many neighbours do not go on a partition, or so many rows of y beside each other, or ""."""
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
