"""Depthwise conv1d with channels on partitions and the taps shared out over the engines.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

A tile holds 128 rows of x with their halo, each element of x loaded once. Tensor multiplies a tap by a diagonal matrix
of 128 channels' filters, a shifted view of the tile as the moving operand, and accumulates its taps in PSUM; Vector
adds a tap while it reads PSUM out (y = x_s * w_s + psum), so that the read-out costs no pass of its own; Scalar can
head a second chain with a product, and GpSimd add the chains. `chains` has the recipes, `tiles` how rows lie, both in
rows/.

Engine plan: Sync issues loads, prefetch tiles ahead; GpSimd makes diagonals one tile ahead, adds chains, issues stores.
Bound by HBM while the recipe's engines are faster, up to about 4 taps in bf16 and in fp32; beyond by Tensor, Vector,
Scalar and GpSimd together.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches every channel of its tile at the columns it meets.
"""

from .rows.loop import convolve_rows
from .rows.plan import rows_refusal


def mixed_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    if extras.strict_nonfinite:
        return (
            "strict_nonfinite=True: mixed multiplies channels by the zeros of a diagonal matrix; use vector or "
            "taps_on_partition"
        )
    return rows_refusal(geometry, extras, config, cores, True)


def mixed(operands, geometry, extras, config):
    """Write operands.y. config: settings of `RowsConfig`; recipes without Tensor are accepted beside ones with it."""
    convolve_rows(operands, geometry, extras, config, True)
