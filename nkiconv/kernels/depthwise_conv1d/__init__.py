"""Depthwise conv1d: the public kernel. One file beside this for each algorithm."""

from ..._nki import nki, nl
from .._tiles import require
from .geometry import read_geometry
from .one_channel import one_channel
from .taps_on_partition import taps_on_partition

#: The algorithms that can be asked for by name; each is a file beside this one.
ALGORITHMS = ("taps_on_partition", "one_channel")


@nki.jit
def depthwise_conv1d_implicit_gemm(
    img_ref,
    filter_ref,
    padding=((0, 0), (0, 0)),
    stride=(1, 1),
    rhs_dilation=(1, 1),
    lhs_dilation=(1, 1),
    feature_group_count=1,
    batch_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    strict_nonfinite=False,
    algorithm=None,
):
    """y[n, c, 0, q] = sum over s of w[c, 0, 0, s] * xp[n, c, 0, q * stride_w + s * rhs_dilation_w].

    xp is x with lhs_dilation_w - 1 zeros between neighbours, then `padding` zeros on both sides (negative: cropped), as
    in XLA's convolution (cross-correlation). Call as ``kernel[2](...)`` on Neuron, ``nkiconv.simulate(kernel[2])(...)``
    anywhere; on 2 cores the channels are shared out, any C included.

    Dimensions: N batch, C channels, W input width, S taps, Q output width
    (pad_left + pad_right + (W - 1) * lhs_dilation_w + 1 - ((S - 1) * rhs_dilation_w + 1)) // stride_w + 1.

    Args:
        img_ref: [N, C, 1, W] in HBM after in_perm; bf16, fp16 or fp32.
        filter_ref: [C, 1, 1, S] in HBM after kern_perm; fp32 with fp32 images, bf16 or fp16 with either of them.
        padding: ((0, 0), (left, right)), ints of any sign.
        stride, rhs_dilation, lhs_dilation: (1, w), w >= 1.
        feature_group_count: C, or 1, which is read as C. batch_group_count: 1.
        in_perm, kern_perm: canonical = transpose(storage, perm); None is the identity.
        out_perm: storage = transpose(canonical, out_perm).
        strict_nonfinite: keep channels apart, so that NaN and Inf reach exactly the outputs that the definition gives
            them. By default they spread to the channels that share a matmul, at the columns they meet. Slower.
        algorithm: one of `ALGORITHMS`; None leaves the choice to the kernel.

    Returns: [N, C, 1, Q] in HBM (transposed by out_perm), dtype of img_ref. Accumulation is fp32 in PSUM, rounded once.

    Raises: an assertion that names argument, value, rule and remedy (KernelAssertionError, a ValueError, in the
    simulator) before any instruction.
    """
    require(
        algorithm == None or algorithm in ALGORITHMS,
        f"algorithm={algorithm}: accepted are None and {ALGORITHMS}; use one of them",
    )
    geometry, y_shape = read_geometry(
        img_ref,
        filter_ref,
        padding,
        stride,
        rhs_dilation,
        lhs_dilation,
        feature_group_count,
        batch_group_count,
        in_perm,
        kern_perm,
        out_perm,
    )
    y_hbm = nl.ndarray(y_shape, dtype=img_ref.dtype, buffer=nl.shared_hbm)
    if algorithm == "one_channel":
        one_channel(img_ref, filter_ref, y_hbm, geometry)
    else:
        taps_on_partition(img_ref, filter_ref, y_hbm, geometry, strict_nonfinite)
    return y_hbm
