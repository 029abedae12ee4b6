"""Depthwise conv1d with channels on partitions and no Tensor Engine: products and sums by Scalar, Vector and GpSimd.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

Two chains run side by side: a product by Scalar heads each, Vector adds a tap at a time (x_s * w_s + chain), GpSimd
adds the chains. `chains` in mixed/ has the steps, `tiles` how rows lie; x is loaded once.

Engine plan: Sync issues loads, PREFETCH tiles ahead; GpSimd issues stores. Bound by HBM in fp32 with up to 4 taps, else
by Vector, about 1.04 ns a tap and column of 128 channels. The array's rate does not matter, so short problems run as
fast as long ones. Channels never meet: NaN and Inf go where the definition puts them.
"""

from .mixed.kernel import convolve_rows
from .mixed.plan import rows_refusal


def vector_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    return rows_refusal(geometry, extras, config, cores, False)


def vector(operands, geometry, extras, config):
    """Write operands.y. config: settings of `MixedSettings`, recipes with no tap on Tensor."""
    convolve_rows(operands, geometry, extras, config, False)
