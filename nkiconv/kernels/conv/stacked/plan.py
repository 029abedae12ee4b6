"""K packing: few channels share the partitions with rows and shifted columns of x, and the columns with rows of y.

With C input channels a plain matmul uses C of 128 partitions, with K output channels K of 128 columns. Here

    X[(d, b, c), m, i]    = x[c, m * G + b - top, i + d * dilation - left]    d < D, b < B: D * B * C partitions
    Y[(u, k), j, v, q]    = y[k, (j * U + u) * V + v, q]                       u < U: U * K columns of the array

and Y[:, j, v] is a sum over tap blocks t and groups g of columns of taps of

    F[g, z, t]^T X[:, j * e + (v * stride) // G + t * B / G, q * stride + g * D * dilation],
    F[g, z, t][(d, b, c), (u, k)] = w[k, c, r, g * D + d],
    r * dilation = t * B + b - z - u * V * stride,    z = (v * stride) mod G,    U * V * stride = e * G,

so that B rows, U outputs and D columns of taps are done by one matmul. B > 1 costs nothing but zeros in F where blocks
of X are B rows apart (G = B), and loads rows B / G times where they overlap; D > 1 loads x D times. V > 1 makes longer
runs of y, as its rows are stored side by side from one partition.

Depthwise problems (groups = C = K) have M tiles of A channels, each with x of its own, and block-diagonal F. Whole
columns of x lie on the partitions (B = H, top = 0, one block) and whole columns of y in the array's columns (U = P):

    F[s][(a, h), (a, p)] = w[a, r, s]    where    h = p * stride + r * dilation - before,    zero elsewhere

One matmul for a column of taps does all R taps of it for A channels and all rows: S matmuls of N Q columns for A
channels, where diagonals take R S of P Q columns for 128. Padding above and below is zeros of F. What it pays is short
runs: a DMA element is one row of x.

    | stationary | K (partitions)                | M (columns)          | N            | evacuation |
    |------------|-------------------------------|----------------------|--------------|------------|
    | w placed   | D shifts of taps, B rows, C   | U rows of y, K       | z, blocks, q | plain      |
    | depthwise  | A channels, all H rows        | A channels, all P    | z, q         | plain      |

Pseudocode, of one core:

    load filters of the first M tile, then x of the first output tile
    for (M tile, output tile):                    # all M tiles of an output tile; depthwise: each has x of its own
        load x of the next output tiles
        place filters of the next M tile          # `filters`: transposed on the array; `runs`: DMAs of Toeplitz rows
        for v, bank of (planes, blocks, columns):
            for plane of taps, group g of columns of taps, block t of rows:
                PSUM[(u, k), z, j, q] += F[g, z, t]^T X[:, z, j * e + .., q * stride + ..]
            y = epilogue(PSUM)                    # Vector or Scalar, whichever has had less to do
        store y

`config.py` has the settings, those of depthwise problems apart.
"""

from ...._nki import nl
from ....schedules.geometry import instructions_refusal
from ....schedules.options import one_group_refusal, taken_refusal
from ....schedules.tiles import QUADRANT
from .config import depthwise_config_refusal, depthwise_settings, stacked_config_refusal, stacked_settings
from .diagonal import channels_most, diagonal_instructions, make_diagonal
from .shape import can_shift, make_stack, met_counts, phases_of, stack_instructions, taps_of_window


def plan_stack(geometry, extras, config, cores):
    """(Stack, "") of this on `cores` cores, or (None, why not)."""
    reason = stacked_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    if geometry.groups > 1:
        return plan_depthwise(geometry, extras, config, cores)
    settings = stacked_settings(geometry, config, extras.residual)
    reason = sizes_refusal(geometry, settings)
    if reason != "":
        return None, reason
    stack = make_stack(geometry, met_counts(geometry.columns), settings, extras.residual)
    if stack == None:
        return None, (
            f"W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: stacked rows and filters "
            f"must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, "stacked", stack_instructions(geometry, stack, cores))
    return (stack, "") if reason == "" else (None, reason)


def plan_depthwise(geometry, extras, config, cores):
    """The same of a depthwise problem that `stacked_refusal` lets pass."""
    settings = depthwise_settings(geometry, config)
    A, height = channels_most(geometry), geometry.rows.size
    if settings.channels > A:
        return None, f"config channels={settings.channels}: at most {A} of {height} rows; use fewer"
    stack = make_diagonal(geometry, settings, extras.residual)
    if stack == None:
        return None, (
            f"N={geometry.planes.out}, W={geometry.columns.size}, S={geometry.columns.taps}: rows of all images and "
            f"the stationaries of {settings.channels} channels must fit SBUF, "
            f"{nl.tile_size.total_available_sbuf_size} bytes per partition; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, "stacked", diagonal_instructions(geometry, stack, cores))
    return (stack, "") if reason == "" else (None, reason)


def stacked_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    depthwise = geometry.groups > 1 and geometry.groups == geometry.C and geometry.groups == geometry.K
    if geometry.groups > 1 and not depthwise:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: stacked takes one group, or "
            f"depthwise problems, groups = C = K; use implicit_gemm or weight_stationary"
        )
    reason = depthwise_config_refusal(config) if depthwise else stacked_config_refusal(config)
    if reason == "":
        reason = depthwise_refusal(geometry) if depthwise else one_group_refusal(geometry, "stacked", True)
    if reason != "":
        return reason
    if geometry.packed > 0:
        return "filter_ref is packed: stacked takes plain filters; use implicit_gemm, or pass [K, C, R, S]"
    if geometry.C > nl.tile_size.pmax and not depthwise:
        return f"C={geometry.C}: stacked takes at most {nl.tile_size.pmax} channels; use implicit_gemm"
    return taken_refusal(geometry, extras, "stacked", False, "rows outside a window")


def depthwise_refusal(geometry):
    """Why a depthwise problem has no block-diagonal stationaries; "" if it has."""
    rows, most = geometry.rows, nl.tile_size.pmax
    if max(rows.size, rows.out) > most:
        return (
            f"H={rows.size}, P={rows.out}: stacked takes at most {most} rows of a depthwise problem; use "
            f"weight_stationary"
        )
    return ""


def sizes_refusal(geometry, config):
    """Why the sizes of a StackedConfig do not fit each other; "" if they do."""
    rows, columns, most = geometry.rows, geometry.columns, nl.tile_size.pmax
    B, D, U, V, G = config.rows, config.shifts, config.outputs, config.beside, config.apart
    if U * V * rows.stride % G != 0 or B * D * geometry.C > most:
        return (
            f"config rows={B} shifts={D} outputs={U}, C={geometry.C}: rows * shifts * C must be at most {most}, and "
            f"rows (or apart={G}, where it is given) divide outputs * beside * stride"
        )
    if U > most or D > columns.taps:
        return f"config shifts={D} outputs={U}: at most {columns.taps} shifts (columns of taps) and {most} outputs"
    if B % G != 0 and taps_of_window(rows, B, U, V, max(phases_of(rows.stride, V, G))) > 1:
        return f"config rows={B} apart={G}: rows must be a multiple of it, or hold the window of all outputs"
    if config.filters == "straight" and geometry.flipped:
        return "config filters=straight: a rotated filter is reversed on chip; use shifted or apart"
    if config.filters == "shifted" and not can_shift(geometry, U):
        return f"config filters=shifted, outputs={U}, K={geometry.K}: engines address quadrants of {QUADRANT} channels"
    return ""
