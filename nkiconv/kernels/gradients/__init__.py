"""Gradients of convolutions with respect to their filters and biases."""

from ..._nki import nki, nl
from ...schedules.gradient_algorithms import default_of, plan_of
from ...schedules.tiles import require
from .._arguments import check_choice, check_given, filter_like, result_dtype
from .._engines import new_ledger
from ..conv.arguments import check_axes, read_geometry
from ..conv.call import Operands
from .diagonals import run_diagonals
from .loop import run_weight
from .sums import WeightWork

#: The loops of the algorithms by their names in a Plan.
RUN = {"blocks": run_weight, "diagonals": run_diagonals}
WEIGHT_ALGORITHMS = tuple(RUN)


@nki.jit
def conv_weight_gradient(
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
    precision=None,
    out_dtype=None,
    algorithm=None,
    config=None,
):
    """Gradient of a convolution of images or volumes with respect to its filters. Launch on one or two cores.

    Args:
        img_ref: x in HBM, [N, C, H, W] or [N, C, D, H, W] after in_perm; bf16, fp16 or fp32.
        grad_ref: gy in HBM, of y's shape as `conv2d_implicit_gemm` or `conv3d_implicit_gemm` stores it with out_perm;
            of the dtypes that a filter may have with img_ref's.
        filter_shape: shape of the filter as stored, (K, C / groups, R, S) or (K, C / groups, T, R, S) before kern_perm.
        padding, stride, rhs_dilation, lhs_dilation, feature_group_count, in_perm, kern_perm, out_perm: as in the
            convolution. With lhs_dilation zeros are multiplied; at stride 1, exchanging x and gy takes less work.
        accumulate_into: fp32 tensor of filter_shape in HBM that the gradient is added to; or None.
        bias_gradient: also return db, the gradient of the bias, [K], fp32.
        precision: of fp32 tensors: None, "bf16" or "tf32", as in the convolution.
        out_dtype: nl.float32, also for None, nl.bfloat16 or nl.float16.
        algorithm, config: "blocks" or "diagonals" and its settings (docs/settings.md); None: the least bound's.

    Returns: dw in HBM, of filter_shape; with bias_gradient (dw, db). Sums are fp32, rounded once.

    Raises: an assertion that names argument, value, rule and remedy, before any instruction.
    """
    check_given(locals())
    axes = len(stride) if isinstance(stride, tuple) else 0
    places = (padding, stride, rhs_dilation, lhs_dilation)
    must = f"img_ref.shape={img_ref.shape} of 4 or 5 axes: must have one for each axis after N and C"
    require(axes in (2, 3) and axes == len(img_ref.shape) - 2, f"stride={stride}, {must}; pass as many everywhere")
    check_axes(img_ref, places, axes)
    check_choice(algorithm, config, WEIGHT_ALGORITHMS)
    like = filter_like(filter_shape, axes, grad_ref, bias_gradient)
    geometry, y_shape = read_geometry(
        img_ref, like, places, (feature_group_count, 1), (in_perm, kern_perm, out_perm), precision
    )
    dw_dtype = result_dtype(grad_ref, y_shape, filter_shape, accumulate_into, out_dtype)
    if algorithm == None:
        algorithm = default_of(geometry, bias_gradient)
    plan, reason = plan_of(algorithm, geometry, config, bias_gradient)
    assert plan is not None, reason
    dw_hbm = nl.ndarray(filter_shape, dtype=dw_dtype, buffer=nl.shared_hbm)
    db_hbm = nl.ndarray((geometry.K,), dtype=nl.float32, buffer=nl.shared_hbm) if bias_gradient else None
    operands = Operands(img_ref, grad_ref, dw_hbm, precision=precision)
    RUN[algorithm](WeightWork(operands, plan.geometry, plan, accumulate_into, db_hbm, ledger=new_ledger()))
    return (dw_hbm, db_hbm) if bias_gradient else dw_hbm
