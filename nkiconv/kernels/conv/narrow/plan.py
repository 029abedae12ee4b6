"""Few output channels: how many rows of y and columns of taps share the array's columns, and who is refused.

With K output channels one matmul a tap uses K of the array's 128 columns. Here the columns are U rows of y, times T
neighbouring columns of taps, so that a row of x passes the array (U + R - 1) / U times ceil(S / T) times, not R S
times. With x[.., w] in columns w of a bank of sums,

    Z[(t, u, k), w] = sum over r, g, c of  w[k, c, r, g * T + t] * x[c, h, w + g * G],   h of output row u and tap r,
    y[(u, k), q]    = sum over t of  Z[(t, u, k), w of output q and tap t],

G columns of x being T taps: the sums of the T taps lie on different partitions and are added, shifted, as they are read
out, in fp32. Engines address partitions from a multiple of 32, so a tap has a slot of 32 partitions, or 64 or 128.

A row of x at i = h * lhs_dilation - p0 * stride + top of the window of a block (output rows p0 .. p0+U-1) meets tap r
of row u where i = u * stride + r * dilation: a line is such a row with its own stationary, zero for the other u.

    | stationary | K (partitions)               | M (columns)                    | N    | evacuation    |
    |------------|------------------------------|--------------------------------|------|---------------|
    | w placed   | c, of one image or of L      | T taps, U rows and V planes, k | j, w | shift-and-add |

Pseudocode, of one core:

    for (planes, blocks of U rows of y):
        load rows of x of the next ones
        for part of the columns of a row:
            for row h of x that the blocks read, group g of columns of taps, K tile:
                PSUM[(t, u, k), j, w] += F[h, g]^T x[c, row h of each block, w + g * G]
            y[(u, k), j, q] = epilogue(sum over t of PSUM[t], shifted by t)
        store y
"""

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.geometry import filter_rows, instructions_refusal, num_taps
from ....schedules.options import taken_refusal
from ....schedules.planes import dmas_of_piece, windows_in_pieces, with_windows
from ....schedules.settings import setting
from ....schedules.tiles import div_ceil
from .cuts import lanes_of, make_narrow, narrow_fits, num_blocks, steps_of
from .defaults import narrow_config_refusal, narrow_settings


def plan_narrow(geometry, extras, config, cores):
    """(Narrow, "") of this on `cores` cores, or (None, why not)."""
    reason = narrow_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    narrow = make_narrow(geometry, narrow_settings(geometry, config, extras.residual), extras.residual)
    seen = with_windows(geometry, narrow.V if narrow != None else 1)
    if not narrow_fits(seen, narrow):
        rows, columns = geometry.rows, geometry.columns
        return None, (
            f"C={geometry.C}, H={rows.size}, W={columns.size}, R={rows.taps}, S={columns.taps}, padding from "
            f"{(rows.before, columns.before)}, lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: narrow keeps "
            f"rows of x and all filters in SBUF, {nl.tile_size.total_available_sbuf_size} bytes per partition, for "
            f"blocks of rows of y whose windows see x and start at a multiple of lhs_dilation; use implicit_gemm"
        )
    reason = instructions_refusal(geometry, "narrow", narrow_instructions(seen, narrow, extras, cores))
    return (narrow, "") if reason == "" else (None, reason)


def narrow_refusal(geometry, extras, config):
    """Why not, from settings and letters alone; "" for nothing."""
    if geometry.K > nl.tile_size.pmax:
        return f"K={geometry.K}: narrow takes at most {nl.tile_size.pmax} output channels; use implicit_gemm"
    reason = narrow_config_refusal(geometry, config)
    if reason != "":
        return reason
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: narrow takes 1; use implicit_gemm"
    planes, depth = geometry.planes, setting(config, "depth", 1)
    most = nl.tile_size.pmax if planes.taps > 1 else planes.out // planes.images
    if depth > 1 and (geometry.packed > 0 or planes.lhs_dilation > 1 or depth > most):
        return (
            f"config depth={depth}: narrow needs a plain filter, no lhs_dilation={planes.lhs_dilation} of planes and, "
            f"with one plane of taps, at most Z={planes.out // planes.images}; use 1"
        )
    lanes = setting(config, "lanes", 1)
    if lanes > 1 and (depth > 1 or lanes_of(geometry, lanes) == None):
        return (
            f"config lanes={lanes}, N={planes.out}, C={geometry.C}: narrow puts at most N images on row "
            f"tiles, each of at most {nl.tile_size.pmax // lanes} channels, in quadrants, and of one plane; use 1"
        )
    return taken_refusal(geometry, extras, "narrow", True, "rows outside a window")


def narrow_instructions(geometry, narrow, extras, cores):
    """Instructions of a core, at most."""
    chunks, steps = len(narrow.chunks), div_ceil(len(steps_of(geometry, narrow)), cores)
    rows = narrow.blocks * narrow.step + narrow.window
    # a line is cut where a load ends, and where a block has no such row
    cuts = min(narrow.blocks, div_ceil(rows, narrow.height) + 2)
    matmuls = geometry.planes.taps * len(narrow.lines) * cuts * narrow.groups * chunks * narrow.L
    each, loads = (div_ceil(rows, narrow.height) + 1) * narrow.images, steps * chunks
    parts = div_ceil(num_blocks(geometry, narrow), narrow.blocks)
    if geometry.frames != None:
        # windows that see frames and x
        loads += min(steps, narrow.depth.images * window_of(narrow.depth, 1) * parts) * chunks
    if narrow.V > 1:
        # the first and last channel of a chunk may be in two of them
        loads = 3 * loads
        loads += min(steps, windows_in_pieces(geometry) * parts) * (dmas_of_piece(geometry) + 1)
    results = (3 if extras.residual else 1) * (1 if narrow.V == 1 else narrow.U + 1)
    laid_out = narrow.U * narrow.groups * filter_rows(geometry)
    filters = chunks * (narrow.V + 2 * num_taps(geometry) + laid_out + geometry.K + 2)
    first = 8 + narrow.warmup + filters + 2 * narrow.buffers * chunks
    return first + steps * (len(narrow.tiles) * (matmuls + narrow.T + 6) + 2 * results + 2) + each * loads
