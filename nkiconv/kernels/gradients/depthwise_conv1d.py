"""Filter gradient of a depthwise conv1d: the public kernel, by a depthwise convolution of x with gy as its filter.

    dw[c, s] = sum over n and q of  gy[n, c, q] * x[n, c, q * stride + s * dilation - pad_left]

For one image this is a depthwise convolution of x with gy, whose stride is the dilation and whose dilation the stride.
Images become channels, N * C of them, and one of depthwise_conv1d's algorithms computes all; `fold_images` adds the
sums of several images from fp32 scratch in HBM. For filters that are short against rows `skewed` adds all positions by
matmuls.
"""

from ..._nki import nki, nl
from ...schedules import skewed as skewed_schedule
from ...schedules.depthwise import Options
from ...schedules.depthwise_algorithms import ALGORITHMS
from ...schedules.gradient_algorithms import default_of_rows
from ...schedules.tiles import require
from .._arguments import check_choice, check_given
from .._epilogue import read_epilogue
from ..conv.relayout import meet
from ..depthwise_conv1d.dispatch import algorithm_for, run_algorithm
from ..depthwise_conv1d.geometry import read_geometry
from ..depthwise_conv1d.tensors import tensors_of
from .result import filter_like, result_dtype
from .rows import copy_rows, flat_rows, fold_images, gradient_geometry, sum_positions
from .skewed.kernel import skewed

#: The algorithms by their names in arguments.
SKEWED, DOT = "skewed", "dot"
ROWS_ALGORITHMS = (*ALGORITHMS, SKEWED)
#: Bytes of an element of sums.
SUM_BYTES = 4


@nki.jit
def depthwise_conv1d_weight_gradient(
    img_ref,
    grad_ref,
    filter_shape,
    padding=((0, 0), (0, 0)),
    stride=(1, 1),
    rhs_dilation=(1, 1),
    lhs_dilation=(1, 1),
    feature_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    accumulate_into=None,
    bias_gradient=False,
    out_dtype=None,
    algorithm=None,
    config=None,
):
    """Gradient of a depthwise conv1d with respect to its filters. Launch on one or two cores: both give the same bits.

    Args:
        img_ref: x in HBM, [N, C, 1, W] after in_perm; bf16, fp16 or fp32.
        grad_ref: gy in HBM, of y's shape as `depthwise_conv1d_implicit_gemm` stores it with out_perm; fp32 with fp32
            images, bf16 or fp16 with either of them. Layouts without contiguous, equally spaced rows are copied.
        filter_shape: shape of the filter as stored, (C, 1, 1, S) before kern_perm.
        padding, stride, rhs_dilation, lhs_dilation, feature_group_count, in_perm, kern_perm, out_perm, accumulate_into,
            bias_gradient, out_dtype: as in `conv_weight_gradient`.
        algorithm, config: "skewed" and its settings, or as in `depthwise_conv1d_implicit_gemm` for the convolution of
            x with gy; None: the kernel's choice.

    Returns: dw in HBM, of filter_shape; with bias_gradient (dw, db). Sums are fp32, rounded once.

    Raises: an assertion that names argument, value, rule and remedy, before any instruction.
    """
    check_given(locals())
    check_choice(algorithm, config, ROWS_ALGORITHMS)
    like = filter_like(filter_shape, 2, grad_ref, bias_gradient)
    places, perms = (padding, stride, rhs_dilation, lhs_dilation), (in_perm, kern_perm, out_perm)
    forward, y_shape = read_geometry(img_ref, like, places, (feature_group_count, 1), perms)
    dw_dtype = result_dtype(grad_ref, y_shape, filter_shape, accumulate_into, out_dtype)
    x_rows, gy_rows = flat_rows(forward, True), flat_rows(forward, False)
    geometry = gradient_geometry(forward, x_rows, gy_rows)
    options = options_of_rows(forward, accumulate_into, dw_dtype)
    algorithm = algorithm_of_rows(algorithm, forward, geometry, options, config)
    dw_hbm = nl.ndarray(filter_shape, dtype=dw_dtype, buffer=nl.shared_hbm)
    db_hbm = nl.ndarray((forward.C,), dtype=nl.float32, buffer=nl.shared_hbm) if bias_gradient else None
    x_hbm, gy_hbm = copy_rows(img_ref, x_rows), copy_rows(grad_ref, gy_rows)
    in_pass = algorithm == DOT and geometry.C == forward.C
    if algorithm == SKEWED:
        steps = (forward.C * x_rows.row, x_rows.row, x_rows.step), (forward.C * gy_rows.row, gy_rows.row, gy_rows.step)
        plan = skewed_schedule.build(forward, config)[0]
        skewed(x_hbm, gy_hbm, dw_hbm, accumulate_into, steps, forward, plan)
    else:
        tensors = (x_hbm, gy_hbm, dw_hbm, accumulate_into, db_hbm if in_pass else None)
        convolve_rows_with(algorithm, tensors, forward, geometry, options, config)
    if bias_gradient and not in_pass:
        sum_positions(gy_hbm, geometry, forward.N, db_hbm)
    return (dw_hbm, db_hbm) if bias_gradient else dw_hbm


def options_of_rows(forward, added, dw_dtype):
    """Options of the convolution of x with gy: with one image it writes dw, else sums in fp32."""
    several = forward.N > 1
    sum_bytes = SUM_BYTES if several or dw_dtype == nl.float32 else 2
    epilogue = read_epilogue(None, None, None if several else added, "pre_activation", sum_bytes)
    return Options(epilogue=epilogue, state=False, strict_nonfinite=False)


def unsupported_of_rows(algorithm, forward, config):
    """Why `skewed` does not run this gradient; "" if it does, or for other algorithms."""
    return skewed_schedule.build(forward, config)[1] if algorithm == SKEWED else ""


def algorithm_of_rows(algorithm, forward, geometry, options, config):
    """The algorithm by name, or for None that of the least bound; refused if it does not run this gradient."""
    if algorithm == None:
        algorithm = default_of_rows(forward, geometry, options)
    reason = unsupported_of_rows(algorithm, forward, config)
    require(reason == "", reason)
    return SKEWED if algorithm == SKEWED else algorithm_for(algorithm, geometry, options, config)


def convolve_rows_with(algorithm, tensors, forward, geometry, options, config):
    """The gradient by a depthwise convolution. tensors: x, gy, dw, accumulate_into and db in HBM, the last two or
    None."""
    x_hbm, gy_hbm, dw_hbm, added, db_hbm = tensors
    several, sums_hbm = geometry.C != forward.C, dw_hbm
    if several:
        sums_hbm = nl.ndarray((geometry.C, geometry.Q), dtype=nl.float32, buffer=nl.shared_hbm)
    residual = None if several else added
    rows = tensors_of(geometry, x_hbm, gy_hbm, sums_hbm, residual=residual, sums=db_hbm)
    run_algorithm(algorithm, rows, geometry, options, config)
    if several:
        meet(sums_hbm)
        fold_images(sums_hbm, forward.N, (forward.C, forward.S, forward.w_c, forward.w_s), dw_hbm, added)
