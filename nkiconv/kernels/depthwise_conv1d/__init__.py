"""Depthwise conv1d: the public kernel. Each algorithm has a package beside this file."""

from ..._nki import nki, nl
from ...schedules.depthwise import Options
from ...schedules.depthwise_algorithms import ALGORITHMS, default_of, unsupported_reason
from .._arguments import check_bias, check_choice, check_given, check_residual, read_out_dtype, refuse
from .._engines import itemsize_of
from .._epilogue import read_epilogue
from .banded.kernel import banded
from .dot import dot
from .geometry import copy_back, read_geometry, with_copies, with_prologue
from .mixed import convolve_rows
from .state import check_state, final_state
from .tensors import tensors_of
from .update import update

__all__ = ["ALGORITHMS", "depthwise_conv1d_implicit_gemm", "run_algorithm"]

LOOPS = {"banded": banded, "mixed": convolve_rows, "vector": convolve_rows, "dot": dot, "update": update}


def run_algorithm(algorithm, tensors, geometry, options, config):
    """Write y by the algorithm; refused if it does not run the problem."""
    refuse(unsupported_reason(algorithm, geometry, options, config))
    LOOPS[algorithm](tensors, geometry, options, ALGORITHMS[algorithm].plan(geometry, options, config))


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
    config=None,
    bias=None,
    activation=None,
    residual=None,
    residual_position="pre_activation",
    out_dtype=None,
    initial_state=None,
    return_final_state=False,
    flipped=False,
    chunks=None,
    x_scale=None,
    x_shift=None,
    x_activation=None,
):
    """y[n, c, 0, q] = sum over s of w[c, 0, 0, s] * xp[n, c, 0, q * stride_w + s * rhs_dilation_w], and an epilogue.

    xp is x with lhs_dilation_w - 1 zeros between neighbours, then `padding` zeros on both sides (negative: cropped), as
    in XLA's convolution (cross-correlation). Call as ``kernel[2](...)`` on Neuron, ``nkiconv.simulate(kernel[2])(...)``
    anywhere; 2 cores share the work, any C included, and give the bits that one core gives.

    Dimensions: N batch, C channels, W input width, S taps, Q output width
    (pad_left + pad_right + (W - 1) * lhs_dilation_w + 1 - ((S - 1) * rhs_dilation_w + 1)) // stride_w + 1.

    Args:
        img_ref: [N, C, 1, W] in HBM after in_perm; bf16, fp16 or fp32.
        filter_ref: [C, 1, 1, S] in HBM after kern_perm; fp32 with fp32 images, bf16 or fp16 with either of them.
        padding: ((0, 0), (left, right)), ints of any sign. stride, rhs_dilation, lhs_dilation: (1, w), w >= 1.
        feature_group_count: C, or 1, which is read as C. batch_group_count: 1.
        in_perm, kern_perm: canonical = transpose(storage, perm); out_perm: storage = transpose(canonical, out_perm).
        strict_nonfinite: True: NaN and Inf reach exactly the outputs that the definition gives them; can be slower. By
            default a NaN or Inf in x, w (or bias, with banded) may also reach other outputs of its tile, at most 128
            rows or channels (docs/algorithms.md). None is lost, except perhaps that of a tap that reads only padding.
        algorithm: one of `ALGORITHMS`; None: the kernel's choice. config: its settings as in `Plan.config`, or None.
        bias: [C] in HBM, fp32, bf16 or fp16, added to sums. activation: None or a name of `nkiconv.rules.ACTIVATIONS`.
        residual: in HBM, shape of y as stored; fp32, bf16 or fp16. residual_position: "pre_activation",
            y = act(conv + bias + residual), or "post_activation", y = act(conv + bias) + residual.
        out_dtype: nl.bfloat16, nl.float16 or nl.float32; None: img_ref's.
        initial_state: [N, C, (S - 1) * dilation] in HBM, img_ref's dtype, in place of a left padding of that width.
        return_final_state: also return the next initial_state. flipped: taps in reverse order, for gradients of x.
        chunks, x_scale, x_shift, x_activation: as in `nkiconv.depthwise_conv1d`; img_ref is [N, chunks * C, 1, W].

    Returns: y [N, C, 1, Q] in HBM (transposed by out_perm), of out_dtype; with return_final_state (y, final state
        [N, C, (S - 1) * dilation] of img_ref's dtype). Sums, bias, activation and residual are fp32.

    Raises: an assertion of argument, value, rule and remedy, before any instruction; simulated KernelAssertionError.
    """
    check_given(locals(), ("strict_nonfinite", "return_final_state", "flipped"))
    check_choice(algorithm, config, ALGORITHMS)
    places, groups = (padding, stride, rhs_dilation, lhs_dilation), (feature_group_count, batch_group_count)
    perms, y_dtype = (in_perm, kern_perm, out_perm), read_out_dtype(out_dtype, img_ref)
    geometry, y_shape = read_geometry(img_ref, filter_ref, places, groups, perms, flipped, chunks)
    check_bias(bias, "C", geometry.C)
    check_residual(residual, y_shape)
    epilogue = read_epilogue(activation, bias, residual, residual_position, itemsize_of(y_dtype), geometry.chunks)
    if initial_state is not None or return_final_state:
        check_state(initial_state, img_ref, geometry.axis, geometry.N, geometry.C)
    options = Options(epilogue=epilogue, state=initial_state is not None, strict_nonfinite=strict_nonfinite)
    geometry, prologue = with_prologue(geometry, img_ref, x_scale, x_shift, x_activation)
    y_hbm = nl.ndarray(y_shape, dtype=y_dtype, buffer=nl.shared_hbm)
    algorithm = default_of(geometry, options) if algorithm is None else algorithm
    geometry, copies, x, y, added = with_copies(algorithm, geometry, options, img_ref, y_hbm, residual)
    tensors = tensors_of(geometry, x, filter_ref, y, bias, added, initial_state, prologue=prologue)
    final = (final_state(tensors, geometry),) if return_final_state else ()
    run_algorithm(algorithm, tensors, geometry, options, config)
    copy_back(y_hbm, y, copies.y)
    return (y_hbm, *final) if final else y_hbm
