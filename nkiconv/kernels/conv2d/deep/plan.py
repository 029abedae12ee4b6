"""Few outputs, deep contraction: what each core takes of it, and how its pieces are cut, from shapes alone.

With few pixels and few output channels, but many input channels and taps, filters are what moves: each is used for a
few pixels only. Then rows of y, or images, are the wrong thing to share: both cores would load all filters. Here every
filter is loaded once, by one core, passes through SBUF once and meets all pixels while it is there:

    y = sum over pieces of  w_piece * x,   sums of all outputs stay in PSUM from the first piece to the last.

Shared between the cores is the contraction (`shard` "contraction": each sums its half of the input channels, then they
exchange partial sums by one sendrecv, each what the other is to finish), or the output channels ("channels"), which
needs no exchange, but all of x on both. On one core the halves follow each other, so that bits agree.

A piece: as many chunks of input channels as have room beside each other on the partitions, rows (chunk, k) of w, so
that few output channels keep all DMA engines busy and one transpose turns them all. Zeros lie around x in SBUF, so each
tap is one matmul on a strided window; with K <= 64 the T columns of taps of a stationary lie beside each other in the
array's columns and pass it together,

    Z[(t, k), w] = sum over r, g, c of  w[k, c, r, g * T + t] * x[c, p * stride + r, w + g * T],
    y[k, q]      = sum over t of  Z[(t, k), q * stride + t]          (rows and columns of taps by rhs_dilation),

added, shifted, as they are read out. What bounds it: DMA of the filters, or their transposes and matmuls of at least
128 columns, about as long for K = 64.
"""

from ...._nki import nl
from ..geometry import instructions_refusal
from .config import deep_config, deep_config_refusal
from .tiling import IMAGE_MOST, SUM_BANKS, count_instructions, deep_fits, is_copied, make_deep


def plan_deep(geometry, extras, config, cores):
    """(Deep, "") of this on `cores` cores, or (None, why not)."""
    whole = nl.tile_size.total_available_sbuf_size
    reason = deep_config_refusal(config)
    if reason == "":
        reason = deep_refusal(geometry, extras)
    if reason != "":
        return None, reason
    deep = make_deep(geometry, deep_config(geometry, extras, config))
    if deep != None and extras.strict_nonfinite:
        if is_copied(deep.window):
            return None, "strict_nonfinite=True: deep multiplies filters by the zeros around x; use taps"
    if not deep_fits(geometry, extras, deep):
        return None, (
            f"N={geometry.N}, C={geometry.C}, K={geometry.K}, P={geometry.rows.out}, Q={geometry.columns.out}, "
            f"S={geometry.columns.taps}, config={config}: deep keeps all sums in {SUM_BANKS} banks of PSUM and x with "
            f"its zeros, at most {IMAGE_MOST} elements an image, in SBUF, {whole} bytes a partition, for outputs that "
            f"see x; it shares two input channels at least, or output channels, and takes columns of taps together "
            f"where outputs have room for them; use taps"
        )
    reason = instructions_refusal(geometry, "deep", count_instructions(geometry, deep, extras, cores))
    return (deep, "") if reason == "" else (None, reason)


def deep_refusal(geometry, extras):
    """Why this is not for deep whatever its settings, or ""."""
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: deep takes 1; use taps"
    if extras.pool != (1, 1):
        return f"pool={extras.pool}: deep takes (1, 1); use taps"
    if geometry.rows.lhs_dilation > 1 or geometry.columns.lhs_dilation > 1:
        dilation = (geometry.rows.lhs_dilation, geometry.columns.lhs_dilation)
        return f"lhs_dilation={dilation}: deep takes (1, 1); use taps"
    return ""
