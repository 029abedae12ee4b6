"""Convolution as an implicit GEMM on the Tensor Engine, on three axes: rows and columns of images, which are planes.

    y[n, k, p, q] = sum over r, s, c of  w[k, c, r, s] * x[n, c, p * stride + r * dilation - pad, ...]

`RUNS` has the algorithms; docs/algorithms.md compares them, and each package's docstring has its loop. All share one
pipeline: x is loaded by `regions` of HBM, filters by `filter_feed`, `sums` gives the windows of x and the outputs of a
PSUM bank that a product reads and adds to, `_epilogue` evacuates, and regions are stored. All take planes of taps
(volumes); the images of a 2-d problem are planes with one tap.

No im2col tensor exists anywhere; filters are the Tensor Engine's stationaries (except in activation_stationary), x is
read by strided views. If channels are neighbours in HBM (NHWC), DMA transposes x for all but stacked (depthwise images
of activation_stationary load blocks as stored), and the Tensor Engine transposes results of implicit_gemm and of groups
in weight_stationary; `relayout` copies what else there is. The host chooses algorithm and settings (`nkiconv.plan`); a
bare kernel follows `schedules.conv_algorithms`.
"""

from types import SimpleNamespace

from ... import norms, rules
from ..._nki import nki, nl
from ...pixel_norms import NORM_EPS
from ...schedules.conv_algorithms import default_of, plan_of, seen_by
from ...schedules.options import Options, keeps_sums
from ...schedules.pairs_of_planes import pairs_unsupported, with_pairs
from ...schedules.tiles import require, size_of
from .._arguments import check_bias, check_choice, check_given, check_residual, read_out_dtype, refuse
from .._engines import itemsize_of
from .._epilogue import read_epilogue
from .._pixel_norms import read_norm
from .._prologue import PrologueOperands, read_prologue
from .activation_stationary import run_activation_stationary
from .arguments import check_axes, final_shape_of, places_of_transposed, read_geometry, store_final_frames
from .call import Operands
from .implicit_gemm.loop import run_implicit_gemm
from .relayout import copy_in, copy_out
from .weight_stationary.loop import run_weight_stationary

#: The function that issues the plan of each algorithm.
RUNS = {
    "implicit_gemm": run_implicit_gemm,
    "stacked": run_weight_stationary,
    "activation_stationary": run_activation_stationary,
    "weight_stationary": run_weight_stationary,
}
#: Arguments that only some kernels take, with the values of the others.
OTHERS: dict[str, object] = {"packed": False, "initial_frames": None, "return_final_frames": False, "x_upsample": 1}
OTHERS |= {"y_norm": None, "y_norm_weight": None, "y_norm_bias": None, "y_norm_eps": NORM_EPS}
OTHERS |= {"return_before_norm": False, "batch_group_count": 1}


@nki.jit
def conv2d_implicit_gemm(
    img_ref,
    filter_ref,
    bias=None,
    residual=None,
    padding=((0, 0), (0, 0)),
    stride=(1, 1),
    rhs_dilation=(1, 1),
    lhs_dilation=(1, 1),
    feature_group_count=1,
    batch_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    activation=None,
    beta=1.0,
    residual_position="pre_activation",
    precision=None,
    out_dtype=None,
    algorithm=None,
    config=None,
    strict_nonfinite=False,
    return_stats=None,
    x_scale=None,
    x_shift=None,
    x_activation=None,
    y_norm=None,
    y_norm_weight=None,
    y_norm_bias=None,
    y_norm_eps=NORM_EPS,
    x_upsample=1,
    return_before_norm=False,
):
    """Convolve images [N, C, H, W] with filters [K, C / groups, R, S]. Launch on one or two cores: kernel[lnc](...).

    Args:
        img_ref: 4-d in HBM, canonical [N, C, H, W] after in_perm; bf16, fp16, fp32, float8_e4m3 or float8_e5m2.
        filter_ref: 4-d in HBM, canonical [K, C / groups, R, S] after kern_perm; fp32 with an fp32 image, bf16 or fp16
            with a bf16 or fp16 image, either fp8 with either fp8. Or packed, [K / kn, C, R, S, kn] with
            kn = plan.packed_channels: the kernel transposes no filters then; without groups.
        bias: [K] in HBM, fp32, bf16 or fp16, added to all outputs of its channel.
        residual: in HBM, of y's shape as stored; times beta, added before or after the activation:
            residual_position "pre_activation", y = act(conv + bias + beta * residual), or "post_activation", y =
            act(conv + bias) + beta * residual.
        padding: ((top, bottom), (left, right)) in elements of the dilated image; negative crops. stride, rhs_dilation
            (between taps), lhs_dilation (zeros between inputs): (height, width).
        feature_group_count: groups; divides C and K. batch_group_count: only 1.
        in_perm, kern_perm: canonical = transpose(storage, perm). out_perm: storage = transpose(canonical, perm).
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`, as torch defines it.
        precision: of fp32 tensors: None, fp32 products; "bf16", x and w rounded to bf16 on load, or "tf32", rounded to
            10 bits of mantissa by the Tensor Engine; both four times as fast. "fp16x3", each product from fp16 pairs
            (of taps), at 4/3 of the speed with many channels: error 3 * 2^-22 |w x| a product if |x| and |w| are 0 or
            between 2^-14 and 65504; below, an absolute 2^-36 of the factor; NaN from 65520 on, as for Inf.
        out_dtype: nl.bfloat16, nl.float16 or nl.float32; None: img_ref's, but bf16 for fp8, whose 2 or 3 bits of
            mantissa are too few for sums.
        algorithm: a name in `conv.RUNS`; None: the algorithm of the least bound. config: settings of that algorithm, a
            tuple of (name, value) pairs as in `Plan.config`; None, or a missing name: the default.
        strict_nonfinite: keep NaN and Inf in their group and windows, by algorithms that multiply no zeros.
        return_stats: None, or "channel": also return statistics of y by image and channel, one part for each core,
            before y is rounded; by the algorithms of `options.TAKE_STATISTICS`.
        x_scale, x_shift: [N, C] or [C] in HBM, fp32, or None; x_activation: as activation. The convolution reads
            act(x * x_scale + x_shift), computed in fp32 and rounded once to x's dtype, bf16 with precision="bf16";
            not for fp8. Zeros of padding and lhs_dilation stay zeros. x_upsample: 1, or 2: each row and column twice.
        y_norm: None, or a norm over the channels of a pixel (`pixel_norms`), before the activation, in fp32; only for
            one group. y_norm_weight, y_norm_bias: [K] in HBM, fp32, bf16 or fp16, or None; y_norm_eps: a number.

    Returns: [N, K, P, Q] in HBM (transposed by out_perm), of out_dtype. Sums, bias, activation and residual are fp32.
        With return_stats also [cores, N, K, 3] in HBM, fp32, as in `channel_statistics`; with return_before_norm
        also the norm's input, rounded as y.

    Raises: an assertion (KernelAssertionError, a ValueError, in the simulator) with argument, value, rule and remedy.
    """
    return convolved(locals(), 2)


@nki.jit
def conv3d_implicit_gemm(
    img_ref,
    filter_ref,
    bias=None,
    residual=None,
    padding=((0, 0), (0, 0), (0, 0)),
    stride=(1, 1, 1),
    rhs_dilation=(1, 1, 1),
    lhs_dilation=(1, 1, 1),
    feature_group_count=1,
    batch_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    activation=None,
    beta=1.0,
    residual_position="pre_activation",
    precision=None,
    out_dtype=None,
    algorithm=None,
    config=None,
    strict_nonfinite=False,
    packed=False,
    initial_frames=None,
    return_final_frames=False,
    return_stats=None,
    x_scale=None,
    x_shift=None,
    x_activation=None,
    y_norm=None,
    y_norm_weight=None,
    y_norm_bias=None,
    y_norm_eps=NORM_EPS,
    return_before_norm=False,
):
    """Convolve volumes [N, C, D, H, W] with filters [K, C / groups, T, R, S]. Launch as `conv2d_implicit_gemm`.

    Args:
        img_ref: 5-d in HBM, canonical [N, C, D, H, W] after in_perm; dtypes as for conv2d_implicit_gemm.
        filter_ref: 5-d in HBM, canonical [K, C / groups, T, R, S] after kern_perm, with T outside R in memory; dtypes
            as there. packed: True for a filter of pack_filter, [K / kn, C, T, R, S, kn], passed as
            [K / kn * C, T, R, S, kn]; without groups.
        bias, residual, activation, beta, residual_position, out_dtype, algorithm, config, strict_nonfinite,
            return_stats, x_scale, x_shift, x_activation, y_norm, y_norm_weight, y_norm_bias, y_norm_eps,
            return_before_norm: as there; residual of y's shape.
        precision: as there; or of bf16 and fp16 "winograd": T = 3, stride, rhs_dilation and lhs_dilation of planes 1,
            one group, plain filters, no strict_nonfinite. Two planes of y take four products of sums of frames and of
            planes of taps (see pairs_of_planes), rounded to fp16, instead of six; Inf and NaN if such a sum is
            65520 or more.
        padding: ((front, back), (top, bottom), (left, right)), negative crops; causal: (T - 1, 0) first. stride,
            rhs_dilation, lhs_dilation: (depth, height, width).
        feature_group_count: groups; divides C and K. batch_group_count: only 1.
        in_perm, kern_perm: canonical = transpose(storage, perm), of five axes. out_perm: the inverse.
        initial_frames: in HBM, stored as img_ref and of its dtype, with F >= 1 planes that precede img_ref's: y,
            x_scale and the like cover both, and `front` counts zeros before them. D outside H and W in memory.
        return_final_frames: True: also return the last planes of both for the next call, (T - 1) * rhs_dilation or as
            many as there are; an int: that many.

    Returns: [N, K, Z, P, Q] in HBM (transposed by out_perm), of out_dtype; after it, on request, the final frames,
        stored as img_ref and of its dtype, and the statistics or the norm's input.

    Raises: as conv2d_implicit_gemm.
    """
    return convolved(locals(), 3)


@nki.jit
def conv_transpose2d_implicit_gemm(
    img_ref,
    filter_ref,
    bias=None,
    residual=None,
    stride=(1, 1),
    padding=((0, 0), (0, 0)),
    output_padding=(0, 0),
    dilation=(1, 1),
    feature_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    activation=None,
    beta=1.0,
    residual_position="pre_activation",
    precision=None,
    out_dtype=None,
    algorithm=None,
    config=None,
    strict_nonfinite=False,
    return_stats=None,
    x_scale=None,
    x_shift=None,
    x_activation=None,
):
    """Transposed convolution of images [N, C, H, W] with filters [C, K / groups, R, S], as torch stores them.

    Args:
        img_ref, bias, residual, in_perm, out_perm, activation, beta, residual_position, precision, out_dtype,
            algorithm, config, strict_nonfinite, return_stats, x_scale, x_shift, x_activation: as in
            `conv2d_implicit_gemm`.
        filter_ref: 4-d in HBM, canonical [C, K / groups, R, S] after kern_perm; dtypes as there.
        stride, dilation: (height, width). padding: ((top, bottom), (left, right)), rows and columns that are removed
            from the result; negative ones add zeros around it. output_padding: (bottom, right), extra rows and columns.
        feature_group_count: groups; divides C.

    Returns: [N, K, P, Q] in HBM (transposed by out_perm), of out_dtype,
        P = (H - 1) * stride + (R - 1) * dilation + 1 - top - bottom + output_padding.

    Raises: as conv2d_implicit_gemm.
    """
    return convolved(locals(), 2, transposed=True)


@nki.jit
def conv_transpose3d_implicit_gemm(
    img_ref,
    filter_ref,
    bias=None,
    residual=None,
    stride=(1, 1, 1),
    padding=((0, 0), (0, 0), (0, 0)),
    output_padding=(0, 0, 0),
    dilation=(1, 1, 1),
    feature_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    activation=None,
    beta=1.0,
    residual_position="pre_activation",
    precision=None,
    out_dtype=None,
    algorithm=None,
    config=None,
    strict_nonfinite=False,
    return_stats=None,
    x_scale=None,
    x_shift=None,
    x_activation=None,
):
    """Transposed convolution of volumes [N, C, D, H, W] with filters [C, K / groups, T, R, S], as torch stores them.

    Args: as in `conv_transpose2d_implicit_gemm`, with (depth, height, width) for (height, width), and padding
        ((front, back), (top, bottom), (left, right)).

    Returns: [N, K, Z, P, Q] in HBM (transposed by out_perm), of out_dtype.

    Raises: as conv2d_implicit_gemm.
    """
    return convolved(locals(), 3, transposed=True)


def convolved(arguments, axes, transposed=False):
    """The results of a public kernel's arguments, by name, on two or three axes: y, then on request the final frames,
    the statistics of y and the norm's input."""
    check_given(OTHERS | arguments, ("strict_nonfinite", "packed", "return_before_norm"))
    asked = SimpleNamespace(**(OTHERS | arguments))
    img_ref, filter_ref, residual = asked.img_ref, asked.filter_ref, asked.residual
    if transposed:
        places = places_of_transposed(asked, axes)
    else:
        places = asked.padding, asked.stride, asked.rhs_dilation, asked.lhs_dilation
        check_axes(img_ref, places, axes)
    check_choice(asked.algorithm, asked.config, tuple(RUNS))
    refuse(rules.accepted("x_upsample", asked.x_upsample, rules.UPSAMPLES))
    groups = asked.feature_group_count, asked.batch_group_count
    perms = asked.in_perm, asked.kern_perm, asked.out_perm
    flags = asked.packed, transposed, asked.initial_frames, asked.x_upsample
    geometry, y_shape = read_geometry(img_ref, filter_ref, places, groups, perms, asked.precision, *flags)
    images = geometry.planes.size // geometry.image_planes
    on_x = asked.x_scale, asked.x_shift, asked.x_activation
    prologue = read_prologue(on_x, asked.x_upsample, img_ref, images, geometry.C)
    refuse(pairs_unsupported(geometry, axes) if asked.precision == "winograd" else "")
    depth = 2 if asked.in_perm == None else asked.in_perm[2]
    final_shape = final_shape_of(geometry, img_ref, depth, asked.return_final_frames)
    geometry, y_dtype = with_pairs(geometry), read_out_dtype(asked.out_dtype, img_ref)
    check_bias(asked.bias, "K", geometry.K)
    check_residual(residual, y_shape)
    refuse(rules.beta(asked.beta), norms.return_stats(asked.return_stats))
    norm = asked.y_norm, asked.y_norm_weight, asked.y_norm_bias, asked.y_norm_eps, asked.return_before_norm
    asked_norm, norm_operands = read_norm(norm, geometry.K)
    y_itemsize, position = itemsize_of(y_dtype), asked.residual_position
    options = Options(
        epilogue=read_epilogue(asked.activation, asked.bias, residual, position, y_itemsize, norm=asked_norm),
        residual=residual != None,
        strict_nonfinite=asked.strict_nonfinite,
        prologue=prologue,
        statistics=asked.return_stats != None,
    )
    operands = Operands(
        x=img_ref,
        w=filter_ref,
        y=nl.ndarray(y_shape, dtype=y_dtype, buffer=nl.shared_hbm),
        bias=asked.bias,
        residual=residual,
        beta=asked.beta,
        precision=asked.precision,
        frames=asked.initial_frames,
        norm=norm_operands,
    )
    if prologue.asked:
        operands.prologue = PrologueOperands(prologue, *on_x[:2], geometry.image_planes)
    if options.statistics:
        N = y_shape[0 if asked.out_perm == None else asked.out_perm.index(0)]
        operands.image_planes = size_of(y_shape) // (N * geometry.K * geometry.rows.out * geometry.columns.out)
        operands.stats = nl.ndarray((nl.num_programs(), N, geometry.K, 3), dtype=nl.float32, buffer=nl.shared_hbm)
    if keeps_sums(options.epilogue):
        operands.kept = nl.ndarray(y_shape, dtype=y_dtype, buffer=nl.shared_hbm)
    y_hbm, final_hbm = operands.y, None
    if len(final_shape) > 0:
        final_hbm = nl.ndarray(final_shape, dtype=img_ref.dtype, buffer=nl.shared_hbm)
        store_final_frames(img_ref, asked.initial_frames, final_hbm, depth)
    algorithm, run, seen, schedule = chosen(asked.algorithm, geometry, options, asked.config)
    copy_in(algorithm, operands, geometry)
    run(operands, seen, options, schedule)
    copy_out(algorithm, y_hbm, operands, geometry, options)
    found = [one for one in (y_hbm, final_hbm, operands.stats, operands.kept) if one is not None]
    return found[0] if len(found) == 1 else tuple(found)


def chosen(algorithm, geometry, options, config):
    """(algorithm, function that issues it, its Geometry, its Schedule); algorithm None: the one of the least bound."""
    if algorithm == None:
        algorithm = default_of(geometry, options)
    plan, reason = plan_of(algorithm, geometry, options, config)
    require(reason == "", reason)
    return algorithm, RUNS[algorithm], seen_by(algorithm, geometry, config), plan
