"""Few channels: how many rows, shifts and outputs share the array's partitions and columns, from shapes alone.

With C input channels a plain matmul uses C of 128 partitions, with K output channels K of 128 columns. Here

    X[(d, b, c), m, i]    = x[c, m * G + b - top, i + d * dilation - left]    d < D, b < B: D * B * C partitions
    Y[(u, k), j, v, q]    = y[k, (j * U + u) * V + v, q]                       u < U: U * K columns of the array

and Y[:, j, v] is a sum over tap blocks t and groups g of columns of taps of

    F[g, z, t]^T X[:, j * e + (v * stride) // G + t * B / G, q * stride + g * D * dilation],
    F[g, z, t][(d, b, c), (u, k)] = w[k, c, r, g * D + d],
    r * dilation = t * B + b - z - u * V * stride,    z = (v * stride) mod G,    U * V * stride = e * G,

so that B rows, U outputs and D columns of taps are done by one matmul. B > 1 costs nothing but zeros in F where blocks
of X are B rows apart (G = B), and loads rows B / G times where they overlap; D > 1 loads x D times. V > 1 makes longer
runs of y, as its rows are stored side by side from one partition. `config.py` has the settings.
"""

from ...._nki import nl
from ..._tiles import QUADRANT
from ..call import one_group_refusal, taken_refusal
from ..geometry import instructions_refusal
from .config import stacked_config_refusal, stacked_settings
from .shape import can_shift, make_stack, max_of, met_counts, phases_of, stack_instructions, taps_of_window


def plan_stack(geometry, extras, config, cores):
    """(Stack, "") of this on `cores` cores, or (None, why not)."""
    reason = stacked_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    settings = stacked_settings(geometry, config, extras.residual)
    reason = sizes_refusal(geometry, settings)
    if reason != "":
        return None, reason
    stack = make_stack(geometry, met_counts(geometry.columns), settings, extras.residual)
    if stack == None:
        return None, (
            f"W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: stacked rows and filters "
            f"must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes a partition; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, "stacked", stack_instructions(geometry, stack, cores))
    return (stack, "") if reason == "" else (None, reason)


def stacked_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    reason = stacked_config_refusal(config)
    if reason == "":
        reason = one_group_refusal(geometry, "stacked", True)
    if reason != "":
        return reason
    if geometry.packed > 0:
        return "filter_ref is packed: stacked takes plain filters; use implicit_gemm, or pass [K, C, R, S]"
    if geometry.C > nl.tile_size.pmax:
        return f"C={geometry.C}: stacked takes at most {nl.tile_size.pmax} channels; use implicit_gemm"
    return taken_refusal(geometry, extras, "stacked", False, "rows outside a window")


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
    if B % G != 0 and taps_of_window(rows, B, U, V, max_of(phases_of(rows.stride, V, G))) > 1:
        return f"config rows={B} apart={G}: rows must be a multiple of it, or hold the window of all outputs"
    if config.filters == "straight" and geometry.flipped:
        return "config filters=straight: taps that run backwards are turned on chip; use shifted or apart"
    if config.filters == "shifted" and not can_shift(geometry, U):
        return f"config filters=shifted, outputs={U}, K={geometry.K}: engines address quadrants of {QUADRANT} channels"
    return ""
