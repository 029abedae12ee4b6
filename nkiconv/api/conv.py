"""conv2d and conv3d on arrays: check the call, describe it as a ConvProblem, launch the kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .. import norms, rules, simulator
from ..errors import GeometryError, UnsupportedError, raise_all, refuse
from ..integers import takes_ints
from ..pixel_norms import NORM_EPS
from ..planner.operations import OPERATIONS
from ..planner.request import Config
from ..problem import ConvProblem, dtype_name
from ..reference import AnyArray
from ..rules import FILTER_PERMS
from .calls import (
    KernelRun,
    Places,
    has_no_images,
    launch_planned,
    no_data,
    one_image,
    shape_of,
    with_extents,
)
from .conv_problem import (
    IMAGES,
    VOLUMES,
    Kind,
    array_violations,
    as_images,
    as_rows,
    check_numbers,
    checked_conv,
    is_packed,
    other_layout,
)
from .epilogue import Epilogue
from .frames import Frames


@takes_ints
def conv2d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    lhs_dilation: int | Places = 1,
    groups: int = 1,
    batch_group_count: int = 1,
    layout: str = "NCHW",
    filter_layout: str = "KCRS",
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    beta: float = 1.0,
    out_dtype: Any = None,
    precision: str | None = None,
    lnc: int = 2,
    strict_nonfinite: bool = False,
    return_stats: str | None = None,
    algorithm: str | None = None,
    config: Config = None,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
    y_norm: str | None = None,
    y_norm_weight: AnyArray | None = None,
    y_norm_bias: AnyArray | None = None,
    y_norm_eps: float = NORM_EPS,
    x_upsample: int = 1,
    return_before_norm: bool = False,
) -> Any:
    """Convolve images with filters.

        y[n, k, p, q] = act(sum over c, r, s of w[k, c, r, s] * x_pad[n, g*C/groups + c, p*stride + r*dilation, ...]
                            + bias[k] + beta * residual[n, k, p, q]),    g = k // (K / groups)

    Equals ``torch.nn.functional.conv2d(x, w, bias, ...)``, the residual and the activation.

    Args:
        x: [N, C, H, W], or [N, H, W, C] with layout="NHWC"; bf16 (ml_dtypes), fp16 or fp32, or fp8, ml_dtypes'
            float8_e4m3 (NKI's, with infinities, up to 240) or float8_e5m2; any strides. N may be 0; so may C, and then
            y has no channels, as torch's.
        w: [K, C / groups, R, S], or [R, S, C / groups, K] with filter_layout="RSCK", [K, R, S, C / groups] with "KRSC";
            fp32 with fp32 x, bf16 or fp16 with either of them, either fp8 with either. Or what `pack_filter` returned,
            with filter_layout "KCRS" and without groups.
        bias: [K]; bf16, fp16 or fp32.
        stride, dilation, lhs_dilation: at least 1, for both axes or (height, width); lhs_dilation puts zeros between
            inputs, before padding.
        padding: zeros on all sides; ((top, bottom), (left, right)), negative crops; "valid": none; "same":
            P = ceil(H / stride) and Q = ceil(W / stride), odd zeros at the bottom and on the right.
        groups: divides C and K.
        batch_group_count: b, divides N and K, as in XLA: y has N / b images, and its k-th block of K / b channels is
            computed from the k-th block of N / b images; not with groups. x is copied, [N, C] as [N / b, b C].
        layout: of x, residual and y. filter_layout: of w.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`, such as "silu"; as torch defines it.
        residual: y's shape; bf16, fp16 or fp32. residual_position: "pre_activation" as above, or
            "post_activation", act(sum + bias) + beta * residual. beta: its factor.
        out_dtype: of y, bf16, fp16 or fp32; None: x's, but bf16 for fp8, whose 2 or 3 bits are too few for sums.
        precision: of fp32 arrays: None; "bf16" or "tf32": x and w are rounded to it (relative error of a product up to
            2**-7 or 2**-9), at about four times the speed; sums stay in fp32. Or "fp16x3": each factor is two fp16
            numbers: relative error of a product up to 3 * 2**-22, at 4/3 of the speed for about 100 input channels or
            more (with fewer, None is faster). A factor below 2**-14 has an absolute error of up to 2**-36; factors of
            65520 and more, also Inf, give NaN. `nkiconv.bounds.products_bound` has the derivation.
        lnc: cores that share the work, 1 or 2.
        strict_nonfinite: keep groups and windows apart (see the kernel), so that NaN and Inf reach exactly the outputs
            that the definition gives them.
        return_stats: None, or "channel": also return statistics of y, with bias, residual and activation, before it is
            rounded, [P, N, K, 3] fp32 as in `channel_stats`, for `norm_scale_shift`. By algorithm "implicit_gemm".
        algorithm, config: as in a `Plan`; None: the estimate.
        x_scale, x_shift: [C] or [N, C], fp32: convolve x * x_scale + x_shift, with 1 and 0 for None; zeros of padding
            and lhs_dilation stay zeros. x_activation: an activation after it, like `activation`. Computed in fp32 as x
            arrives, with fp32's NaN and Inf, and rounded once to x's dtype, or to bf16 with precision="bf16"; not for
            fp8. A GroupNorm is x_scale = weight * rstd and x_shift = bias - mean * x_scale.
        y_norm: None, or a norm over the output channels of each pixel, y = act(norm(u)), u = sum + bias + a residual
            before the activation: "rms", u * (mean(u^2) + y_norm_eps)^-0.5, or "layer",
            (u - mean(u)) * (variance(u) + y_norm_eps)^-0.5, times y_norm_weight, plus y_norm_bias. In fp32; NaN or Inf
            in one channel makes all channels of its pixel NaN or 0. Only with groups=1 and where a tile has all
            channels of a pixel: K up to 512 for NHWC, NDHWC, and NCDHW with T > 1 (activation_stationary); NCHW or
            NCDHW if all filters fit in SBUF (implicit_gemm).
        y_norm_weight, y_norm_bias: [K]; bf16, fp16 or fp32; None: 1 and 0. y_norm_eps: at least 2^-126.
            return_before_norm: also return u, rounded like y: a residual block's second convolution gives the next
            block its residual u and its input y. Not for NCDHW by activation_stationary.
        x_upsample: 1, or 2: repeat each row and column once, like torch's "nearest"; H and W here are those after it.
            The kernel loads each element of x once.

    Returns: y, [N, K, P, Q], or [N, P, Q, K] with layout="NHWC", summed in fp32 and rounded once; with return_stats
        (y, statistics), with return_before_norm (y, u).

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return convolved(IMAGES, **locals())


@takes_ints
def conv3d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int | Places = 1,
    padding: Any = 0,
    dilation: int | Places = 1,
    lhs_dilation: int | Places = 1,
    groups: int = 1,
    batch_group_count: int = 1,
    layout: str = "NCDHW",
    filter_layout: str = "KCTRS",
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    beta: float = 1.0,
    out_dtype: Any = None,
    precision: str | None = None,
    lnc: int = 2,
    strict_nonfinite: bool = False,
    return_stats: str | None = None,
    algorithm: str | None = None,
    config: Config = None,
    initial_frames: AnyArray | None = None,
    return_final_frames: bool | int = False,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
    y_norm: str | None = None,
    y_norm_weight: AnyArray | None = None,
    y_norm_bias: AnyArray | None = None,
    y_norm_eps: float = NORM_EPS,
    return_before_norm: bool = False,
) -> Any:
    """Convolve volumes with filters: `conv2d` with an axis of planes (depth, or frames of a video) before the rows.

    Equals ``torch.nn.functional.conv3d(x, w, bias, ...)``, the residual and the activation.

    Args:
        x: [N, C, D, H, W], or [N, D, H, W, C] with layout="NDHWC".
        w: [K, C / groups, T, R, S], or [T, R, S, C / groups, K] with filter_layout="TRSCK", [K, T, R, S, C / groups]
            with "KTRSC"; or what `pack_filter` returned, with filter_layout "KCTRS" and without groups.
        stride, dilation, lhs_dilation: at least 1, for all axes or (depth, height, width).
        padding: zeros on all sides; ((front, back), (top, bottom), (left, right)), negative crops; "valid"; "same". A
            causal convolution has ((T - 1) * dilation, 0) for front and back.
        initial_frames: F >= 0 planes in front of x's, with x's other sizes, layout and dtype. y is the convolution of
            both, with the padding around both; x_scale, x_shift and x_activation apply to both.
        return_final_frames: True: also return the last (T - 1) * dilation planes of both, or all if there are fewer:
            the initial_frames of the next call. An int: that many planes. If the stride divides the planes of each
            chunk of a video, the chunks give the y of the whole: bit-equal with T > 1 and no padding after; with T = 1
            up to rounding, as planes are then images and their number decides the order of the sums.
        precision: as in `conv2d`; for bf16 and fp16 None or, with T = 3 and stride, dilation and lhs_dilation of planes
            1, "winograd": two planes of y from four instead of six products of sums of frames, rounded to fp16: errors
            of about 2e-4 (bf16) or 4e-4 (fp16) of y's standard deviation before y is rounded; sums of two frames or of
            three planes of w of 65520 or more give Inf and NaN. Not with groups, packed filters, strict_nonfinite.
            Chunks with an even number of planes of y give the y of the whole.
        The rest, dtypes and empty arrays: as in `conv2d`.

    Returns: y, [N, K, Z, P, Q], or [N, Z, P, Q, K] with layout="NDHWC"; with return_final_frames also the planes, in
        x's layout and dtype, with return_stats the statistics, with return_before_norm u.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    return convolved(VOLUMES, **locals())


def convolved(
    kind: Kind,
    x: Any,
    w: Any,
    *,
    batch_group_count: int = 1,
    groups: int,
    layout: str,
    filter_layout: Any = None,
    initial_frames: Any = None,
    return_final_frames: bool | int = False,
    **more: Any,
) -> Any:
    """y of a call, of arrays without images or channels too; more: places, the epilogue's arguments, and choices."""
    epilogue, more = Epilogue.taken_from(more)
    frames = Frames(initial_frames, return_final_frames)
    refuse(GeometryError, rules.number("batch_group_count", batch_group_count))
    if frames.asked:
        raise_all(kind.cannot, array_violations(kind, x, w, layout, filter_layout, more["lnc"]))
        frames.check(x, layout, batch_group_count)
        epilogue = dataclasses.replace(epilogue, num_frames=frames.count(layout))
    if batch_group_count != 1:
        whole, x = x, _batch_groups(kind, x, w, batch_group_count, groups, layout, filter_layout)
        check_numbers(kind, whole, layout, epilogue)
        epilogue, groups = epilogue.of_groups(batch_group_count), batch_group_count
    bare = _has_no_channels(kind, x, w, layout, filter_layout)
    checked, w_checked, with_residual = _with_data(kind, x, w, epilogue, bare, layout, filter_layout, groups)
    checked = _upsampled(kind, checked, epilogue.x_upsample, layout)
    problem = checked_conv(
        kind,
        frames.whole(checked, layout),
        w_checked,
        with_residual,
        layout=layout,
        filter_layout=filter_layout,
        groups=groups,
        **more,
    )
    final = frames.returned(problem)
    if bare or has_no_images(x):
        axes = "N" * has_no_images(x) + "C" * bare
        dtype = dtype_name(epilogue.out_dtype or problem.out_dtype)
        y = no_data(kind.shape_of_y(problem, layout), layout, axes, dtype)
        found = (y,) if frames.wanted is False else (y, frames.last(x, layout, final))
        if epilogue.return_stats is not None:
            found += (np.zeros((more["lnc"], y.shape[0], y.shape[layout.index("C")], norms.STATS), np.float32),)
        found += (y.copy(),) if epilogue.return_before_norm else ()
        return found if len(found) > 1 else y
    if epilogue.num_frames:
        epilogue = dataclasses.replace(epilogue, initial_frames=frames.initial)
    epilogue = dataclasses.replace(epilogue, return_final_frames=final)
    choice = {name: more[name] for name in ("lnc", "algorithm", "config")}
    x, w, epilogue = as_images(kind, x, w, epilogue, layout, filter_layout)
    y = run_conv(x, w, problem, filter_layout=other_layout(kind, filter_layout), epilogue=epilogue, **choice).y
    y = as_rows(kind, tuple(y) if isinstance(y, (list, tuple)) else y, layout)
    if frames.wanted is False or final:
        return y
    no_planes = frames.last(x, layout, 0)
    return (y[0], no_planes, *y[1:]) if isinstance(y, tuple) else (y, no_planes)


def _batch_groups(kind: Kind, x: Any, w: Any, count: Any, groups: Any, layout: str, filter_layout: str) -> Any:
    """x [N, C, ...] as [N / count, count C, ...], whose convolution in `count` groups is the result."""
    raise_all(kind.cannot, array_violations(kind, x, w, layout, filter_layout))
    if groups != 1:
        raise UnsupportedError(
            f"batch_group_count={count}, groups={groups}: only one of them may be above 1, as in XLA; drop the other"
        )
    if is_packed(kind, w):
        raise UnsupportedError(f"batch_group_count={count}: filters of groups are not packed; pass w as it was")
    N, C, *extents = (x.shape[axis] for axis in kind.places(layout))
    K, inputs = (w.shape[axis] for axis in kind.filter_places(filter_layout)[:2])
    refuse(GeometryError, rules.divides("batch_group_count", count, N=N, K=K))
    if inputs != C:
        raise GeometryError(f"w.shape={w.shape}: must have x's C={C} input channels, whatever batch_group_count is")
    if layout == kind.layouts[1]:
        shares = np.moveaxis(x.reshape(count, N // count, *extents, C), 0, -2)
        return shares.reshape(N // count, *extents, count * C)
    return x.reshape(count, N // count, C, *extents).swapaxes(0, 1).reshape(N // count, count * C, *extents)


def _with_data(
    kind: Kind, x: Any, w: Any, epilogue: Epilogue, bare: bool, layout: str, filter_layout: str, groups: Any
) -> tuple[Any, Any, Epilogue]:
    """The same, to be checked: one image instead of none and, where arrays are bare, one channel a group."""
    extents = {}
    if has_no_images(x):
        extents[0] = 1
        if isinstance(epilogue.residual, np.ndarray) and epilogue.residual.ndim:
            epilogue = dataclasses.replace(epilogue, residual=one_image("residual", epilogue.residual))
    if bare or extents:
        check_numbers(kind, x, layout, epilogue)
        epilogue = dataclasses.replace(epilogue, x_scale=None, x_shift=None)
    if bare:
        extents[kind.places(layout)[1]] = groups if type(groups) is int and groups > 0 else 1
        w = with_extents(w, {kind.filter_places(filter_layout)[1]: 1})
    return with_extents(x, extents) if extents else x, w, epilogue


def _upsampled(kind: Kind, x: Any, upsample: Any, layout: str) -> Any:
    """An array without data with the rows and columns after upsampling, in place of x; errors are raised later."""
    is_image = layout in kind.layouts and len(shape_of(x)) == kind.axes + 2
    if not is_image or type(upsample) is not int or upsample not in rules.UPSAMPLES[1:]:
        return x
    return with_extents(x, {axis: upsample * x.shape[axis] for axis in kind.places(layout)[2:]})


def _has_no_channels(kind: Kind, x: Any, w: Any, layout: Any, filter_layout: Any) -> bool:
    """Whether these are arrays of C = 0 input channels, both of them."""
    if layout not in kind.layouts or filter_layout not in kind.filter_layouts:
        return False
    if not all(isinstance(array, np.ndarray) and array.ndim == kind.axes + 2 for array in (x, w)):
        return False
    return bool(x.shape[kind.places(layout)[1]] == w.shape[kind.filter_places(filter_layout)[1]] == 0)


def run_conv(
    x: Any,
    w: Any,
    problem: ConvProblem,
    *,
    filter_layout: str | None = None,
    epilogue: Epilogue | None = None,
    **choice: Any,
) -> KernelRun:
    """Launch the kernel on arrays (or specs, with trace_only) that fit `problem`, x and y in its layout.

    filter_layout: None, "KCRS" or "KCTRS". epilogue, choice: checked, as `conv2d` does; choice: as `launch_planned`.
    """
    extra, kind = epilogue or Epilogue(), VOLUMES if problem.is_volume else IMAGES
    other = other_layout(kind, filter_layout)
    asked = extra.asked(is_packed(kind, w), other)
    name = f"conv_transpose{kind.axes}d" if problem.transposed else kind.name
    more = extra.arguments()
    if other is not None:
        more["kern_perm"] = FILTER_PERMS[other]
    if problem.is_volume and asked.packed:
        w, more["packed"] = _merged(w), True  # NKI's tensors have five axes at most
    return launch_planned(OPERATIONS[name], problem, asked, (x, w), more, **choice)


def _merged(w: Any) -> Any:
    """A packed filter of volumes with its blocks and input channels as one axis."""
    shape = (w.shape[0] * w.shape[1], *w.shape[2:])
    return w.reshape(shape) if isinstance(w, np.ndarray) else simulator.ArraySpec(shape, w.dtype)
