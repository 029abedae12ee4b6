"""Two 1x1 convolutions with an activation between; hidden channels stay on chip: the public kernel."""

from .... import rules
from ...._nki import nki, nl
from ....pixel_norms import NORM_EPS
from ....schedules.pointwise_mlp import MlpGeometry, unsupported_reason
from ....schedules.tiles import size_of
from ..._arguments import check_bias, check_given, check_residual, refuse
from ..._engines import itemsize_of
from ..._epilogue import read_epilogue
from ..._pixel_norms import read_numbers
from .kernel import Operands, run_mlp


@nki.jit
def pointwise_mlp_fused(
    x_ref,
    w1_ref,
    w2_ref,
    bias1=None,
    bias2=None,
    residual=None,
    activation="gelu",
    x_norm=None,
    x_norm_weight=None,
    x_norm_bias=None,
    x_norm_eps=NORM_EPS,
):
    """Two 1x1 convolutions, y = w2 act(w1 norm(x) + bias1) + bias2 + residual, of each pixel of x.

        h[n, m, p] = act(sum over c of w1[m, c] norm(x)[n, c, p] + bias1[m]), rounded to x's dtype
        y[n, k, p] = sum over m of w2[k, m] h[n, m, p] + bias2[k] + residual[n, k, p]

    Args:
        x_ref: [N, C, ...] in HBM, bf16, fp16 or fp32. w1_ref: [M, C], w2_ref: [K, M] in HBM, x's dtype.
        bias1: [M], bias2: [K] in HBM, fp32, bf16 or fp16; None: zeros. residual: [N, K, ...] in HBM; None: zeros.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`.
        x_norm: None, or the norm over the channels of each pixel of x, a name of `nkiconv.pixel_norms.NORMS`.
            x_norm_weight, x_norm_bias: [C] in HBM, dtypes of bias1, or None; x_norm_eps: a number.

    Returns: y [N, K, ...] in HBM, x's dtype. Sums are fp32, rounded once.

    Raises: an assertion with argument, value, rule and remedy, before any instruction; simulated, KernelAssertionError.
    """
    check_given(locals())
    few = f"x_ref.shape={x_ref.shape}: must have two axes or more, [N, C, ...]; reshape it"
    refuse("" if len(x_ref.shape) >= 2 else few)
    (N, C), M, K = x_ref.shape[0:2], w1_ref.shape[0], w2_ref.shape[0]
    refuse(rules.shape("w1_ref", w1_ref.shape, (M, C), "[M, C]"), rules.shape("w2_ref", w2_ref.shape, (K, M), "[K, M]"))
    refuse(rules.array_dtype("x_ref", x_ref.dtype))
    for name, one in (("w1_ref", w1_ref), ("w2_ref", w2_ref)):
        refuse(rules.same(name, "dtype", one.dtype, "x_ref", x_ref.dtype))
    check_bias(bias1, "M", M, "bias1")
    check_bias(bias2, "K", K, "bias2")
    refuse(rules.activation(activation))
    norm = read_numbers((x_norm, x_norm_weight, x_norm_bias, x_norm_eps), "x_norm", "C", C)
    y_shape = (N, K, *x_ref.shape[2:])
    check_residual(residual, y_shape)
    itemsize, added = (0 if one == None else itemsize_of(one.dtype) for one in (x_ref, residual))
    geometry = MlpGeometry(N, C, M, K, size_of(x_ref.shape[2:]), itemsize, added, x_norm)
    refuse(unsupported_reason(geometry))
    epilogue = read_epilogue(None, bias2, residual, "pre_activation", itemsize)
    y_hbm = nl.ndarray(y_shape, dtype=x_ref.dtype, buffer=nl.shared_hbm)
    operands = Operands(x_ref, w1_ref, w2_ref, y_hbm, bias1, bias2, residual, norm)
    run_mlp(operands, geometry, epilogue, "" if activation == None else activation)
    return y_hbm
