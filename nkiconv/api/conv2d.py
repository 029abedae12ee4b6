"""conv2d on arrays: check the call, describe it as a ConvProblem, launch the kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all
from ..kernels.conv import conv2d_implicit_gemm
from ..planner.conv2d import LEAST_BLOCK, X_PERMS, block_of, kernel_arguments
from ..planner.estimate import settled
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations
from ..planner.request import CONV2D_DTYPES, Config, Request
from ..problem import LAYOUTS, ConvProblem, dtype_name
from ..reference import AnyArray
from .calls import (
    KernelRun,
    Pair,
    dtype_pair,
    has_no_images,
    is_pair,
    launch,
    lnc_violations,
    no_data,
    one_array,
    one_image,
    pair_of,
    pair_violations,
    same_padding,
    with_extents,
)
from .epilogue import Epilogue

#: Orders of the axes of w in memory: their letters, and the permutation that makes them [K, C / groups, R, S].
FILTER_LAYOUTS = {"KCRS": (0, 1, 2, 3), "RSCK": (3, 2, 0, 1), "KRSC": (0, 3, 1, 2)}
#: Axes of a packed filter.
PACKED_AXES = "K / kn, C, R, S, kn"
_PADDING_NAMES = ("same", "valid")
_OPERATION = OPERATIONS["conv2d"]
_CANNOT = "conv2d cannot run this call"


def conv2d(
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray | None = None,
    *,
    stride: int | Pair = 1,
    padding: Any = 0,
    dilation: int | Pair = 1,
    lhs_dilation: int | Pair = 1,
    groups: int = 1,
    batch_group_count: int = 1,
    layout: str = "NCHW",
    filter_layout: str = "KCRS",
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    beta: float = 1.0,
    pool: int | Pair = 1,
    out_dtype: Any = None,
    precision: str | None = None,
    lnc: int = 2,
    strict_nonfinite: bool = False,
    algorithm: str | None = None,
    config: Config = None,
) -> Any:
    """Convolve images with filters.

        y[n, k, p, q] = act(sum over c, r, s of w[k, c, r, s] * x_pad[n, g*C/groups + c, p*stride + r*dilation, ...]
                            + bias[k] + beta * residual[n, k, p, q]),    g = k // (K / groups)

    Equals ``torch.nn.functional.conv2d(x, w, bias, ...)``, the residual, the activation and ``max_pool2d(y, pool)``.

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
        batch_group_count: b, divides N and K, as in XLA: N / b images y, whose k-th of b shares of the K channels comes
            of the k-th of b shares of the images; not together with groups. x is copied, [N, C] as [N / b, b C].
        layout: of x, residual and y.
        activation: None, "relu", "silu", "gelu", "gelu_tanh", "tanh" or "sigmoid", as torch defines them.
        residual: shape of y before pooling; bf16, fp16 or fp32. residual_position: "pre_activation" as above, or
            "post_activation", act(sum + bias) + beta * residual.
        pool: windows, next to each other, whose maximum is the result: one extent or (height, width), which divide P
            and Q.
        out_dtype: of y, bf16, fp16 or fp32; None: x's, but bf16 for fp8, as sums hardly fit its 2 or 3 bits.
        precision: of fp32 arrays: None; "bf16" or "tf32", x and w rounded to that (relative error of a product up to
            2**-7 or 2**-9), at about four times the speed; sums stay in fp32. Or "fp16x3", each factor as two fp16
            numbers: relative error of a product up to 3 * 2**-22, at 4/3 of the speed where there are some 100 input
            channels or more (with few, None is faster). Below 2**-14 a factor keeps an absolute error of up to 2**-36;
            those of 65520 and more, Inf among them, make NaN. `nkiconv.bounds.products_bound` has the derivation.
        lnc: cores that share the work, 1 or 2.
        strict_nonfinite: keep groups and windows apart (see the kernel), so that NaN and Inf reach no output that the
            definition keeps them from.
        algorithm, config: as in a `Plan`; None: the estimate.

    Returns: [N, K, P, Q], or [N, P, Q, K] with layout="NHWC", P and Q divided by pool; sums in fp32, rounded once.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    epilogue = Epilogue(
        bias=bias,
        activation=activation,
        residual=residual,
        residual_position=residual_position,
        beta=beta,
        pool=pool,
        out_dtype=out_dtype,
        precision=precision,
        strict_nonfinite=strict_nonfinite,
    )
    if batch_group_count != 1:
        x, groups = _batch_groups(x, w, batch_group_count, groups, layout, filter_layout), batch_group_count
    bare = _has_no_channels(x, w, layout, filter_layout)
    problem = checked_conv2d(
        *_with_data(x, w, epilogue, bare, layout, filter_layout, groups),
        stride=stride,
        padding=padding,
        dilation=dilation,
        lhs_dilation=lhs_dilation,
        groups=groups,
        layout=layout,
        filter_layout=filter_layout,
        lnc=lnc,
        algorithm=algorithm,
        config=config,
    )
    if bare or has_no_images(x):
        axes = "N" * has_no_images(x) + "C" * bare
        return no_data(_pooled(problem, pool), problem.layout, axes, dtype_name(out_dtype or problem.out_dtype))
    return run_conv2d(
        x, w, problem, filter_layout=filter_layout, lnc=lnc, epilogue=epilogue, algorithm=algorithm, config=config
    ).y


def _batch_groups(x: Any, w: Any, count: Any, groups: Any, layout: str, filter_layout: str) -> Any:
    """x [N, C, ...] as [N / count, count C, ...], of which a convolution in so many groups is the one asked for."""
    raise_all(_CANNOT, list(_array_violations(x, w, layout, filter_layout, 1)))
    if type(count) is not int or count < 1:
        raise GeometryError(f"batch_group_count={count!r}: must be an int of at least 1; pass one")
    if groups != 1:
        raise UnsupportedError(
            f"batch_group_count={count}, groups={groups}: only one of them may be above 1, as in XLA; drop the other"
        )
    if _is_packed(w):
        raise UnsupportedError(f"batch_group_count={count}: filters of groups are not packed; pass w as it was")
    N, C, H, W = (x.shape[axis] for axis in X_PERMS[layout])
    K, inputs, _, _ = (w.shape[axis] for axis in FILTER_LAYOUTS[filter_layout])
    if N % count or K % count:
        raise GeometryError(f"batch_group_count={count}: must divide N={N} of x and K={K} of w; pass a common divisor")
    if inputs != C:
        raise GeometryError(f"w.shape={w.shape}: must have x's C={C} input channels, whatever batch_group_count is")
    if layout == "NHWC":
        shares = x.reshape(count, N // count, H, W, C).transpose(1, 2, 3, 0, 4)
        return shares.reshape(N // count, H, W, count * C)
    return x.reshape(count, N // count, C, H, W).swapaxes(0, 1).reshape(N // count, count * C, H, W)


def _with_data(
    x: Any, w: Any, epilogue: Epilogue, bare: bool, layout: str, filter_layout: str, groups: Any
) -> tuple[Any, Any, Epilogue]:
    """The same, to be checked: one image instead of none and, where arrays are bare, one channel a group."""
    extents = {}
    if has_no_images(x):
        extents[0] = 1
        if isinstance(epilogue.residual, np.ndarray) and epilogue.residual.ndim:
            epilogue = dataclasses.replace(epilogue, residual=one_image("residual", epilogue.residual))
    if bare:
        extents[X_PERMS[layout][1]] = groups if type(groups) is int and groups > 0 else 1
        w = with_extents(w, {FILTER_LAYOUTS[filter_layout][1]: 1})
    return with_extents(x, extents) if extents else x, w, epilogue


def _has_no_channels(x: Any, w: Any, layout: Any, filter_layout: Any) -> bool:
    """Whether these are arrays of C = 0 input channels, both of them."""
    if layout not in LAYOUTS or filter_layout not in tuple(FILTER_LAYOUTS):
        return False
    if not all(isinstance(array, np.ndarray) and array.ndim == 4 for array in (x, w)):
        return False
    return bool(x.shape[X_PERMS[layout][1]] == w.shape[FILTER_LAYOUTS[filter_layout][1]] == 0)


def _pooled(problem: ConvProblem, pool: int | Pair) -> tuple[int, ...]:
    """Shape of y, in the problem's layout."""
    windows = dict(zip("PQ", pair_of(pool), strict=True))
    letters = "NKPQ" if problem.layout == "NCHW" else "NPQK"
    return tuple(size // windows.get(letter, 1) for size, letter in zip(problem.output_shape, letters, strict=True))


def checked_conv2d(
    x: Any,
    w: Any,
    epilogue: Epilogue,
    *,
    layout: str = "NCHW",
    filter_layout: str = "KCRS",
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    **geometry: Any,
) -> ConvProblem:
    """The problem of a `conv2d` call of which everything is checked; arguments and errors are its.

    geometry: stride, padding, dilation, lhs_dilation and groups.
    """
    arrays = list(_array_violations(x, w, layout, filter_layout, lnc))
    choice = choice_violations(_OPERATION, algorithm, config)
    axes = {"bias": "K", "residual": "N, P, Q, K" if layout == "NHWC" else "N, K, P, Q"}
    raise_all(_CANNOT, [*arrays, *epilogue.violations(axes), *choice])
    problem = conv2d_problem(x, w, layout=layout, filter_layout=filter_layout, lnc=lnc, **geometry)
    raise_all(_CANNOT, [*_epilogue_shape_violations(epilogue, problem), *problem.memory_violations()])
    if epilogue.precision is not None and problem.dtype != "fp32":
        raise UnsupportedError(
            f"precision={epilogue.precision!r}: x and w are {problem.dtype}, whose products are exact; drop it"
        )
    asked = epilogue.asked(_is_packed(w))
    raise_all(_CANNOT, list(choice_refusals(_OPERATION, problem, asked, algorithm, config, lnc)))
    return problem


def pack_filter(w: AnyArray, *, filter_layout: str = "KCRS") -> AnyArray:
    """The filter in the kernel's own order, [K / kn, C, R, S, kn], for `conv2d(x, packed)`.

    The kernel then loads it straight to its place, where a plain one passes the Tensor Engine first, at R S C K / 2^14
    transposes of 56 ns (modelled) a call: worth it where a filter serves many calls. Convolutions with groups take
    plain filters only; few channels, which are stacked where the filter is plain, are not where it is packed.

    Args:
        w: [K, C, R, S], or in the order of filter_layout; bf16, fp16, fp32 or fp8.

    Returns: a new array of w's dtype; kn divides K and is at most 128.

    Raises: DtypeError, GeometryError, LayoutError; UnsupportedError where K has no divisor that is worth a block.
    """
    if filter_layout not in tuple(FILTER_LAYOUTS):
        accepted = ", ".join(FILTER_LAYOUTS)
        raise LayoutError(f"filter_layout={filter_layout!r}: accepted are {accepted}; transpose to one of these")
    raise_all("pack_filter cannot pack this", list(one_array("w", w, _filter_axes(filter_layout), CONV2D_DTYPES)))
    canonical = w.transpose(FILTER_LAYOUTS[filter_layout])
    K, C, R, S = canonical.shape
    kn = block_of(K, C, R * S, w.dtype.itemsize)
    if kn < min(K, LEAST_BLOCK):
        raise UnsupportedError(
            f"w.shape={w.shape}: the largest blocks that K={K} can be packed in have {kn} channels, at least "
            f"{LEAST_BLOCK} are worth it; pass w as it is, or pad K"
        )
    blocks: AnyArray = canonical.reshape(K // kn, kn, C, R, S).transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(blocks)


def conv2d_problem(
    x: Any,
    w: Any,
    *,
    stride: int | Pair = 1,
    padding: Any = 0,
    dilation: int | Pair = 1,
    lhs_dilation: int | Pair = 1,
    groups: int = 1,
    layout: str = "NCHW",
    filter_layout: str = "KCRS",
    lnc: int = 2,
) -> ConvProblem:
    """The checked ConvProblem of a `conv2d` call; arguments and errors are its."""
    raise_all(_CANNOT, list(_array_violations(x, w, layout, filter_layout, lnc)))
    pairs = {"stride": stride, "dilation": dilation, "lhs_dilation": lhs_dilation}
    raise_all(_CANNOT, [*pair_violations(pairs), *_group_violations(groups)])
    N, C, H, W = (x.shape[axis] for axis in X_PERMS[layout])
    if _is_packed(w):
        blocks, inputs, R, S, each = w.shape
        K = blocks * each
    else:
        K, inputs, R, S = (w.shape[axis] for axis in FILTER_LAYOUTS[filter_layout])
    if inputs * groups != C:
        raise GeometryError(
            f"w.shape={w.shape}: has {inputs} input channels a group, x has C={C} in groups={groups}; pass [K, C / "
            f"groups, R, S] in the order of filter_layout={filter_layout!r}, or other groups"
        )
    (stride_h, stride_w), (dilation_h, dilation_w) = pair_of(stride), pair_of(dilation)
    return ConvProblem(
        N=N,
        C=C,
        H=H,
        W=W,
        K=K,
        R=R,
        S=S,
        groups=groups,
        stride=(stride_h, stride_w),
        padding=_padding_pairs(
            padding, ((H, R, stride_h, dilation_h), (W, S, stride_w, dilation_w)), pair_of(lhs_dilation)
        ),
        rhs_dilation=(dilation_h, dilation_w),
        lhs_dilation=pair_of(lhs_dilation),
        dtype=dtype_name(x.dtype),
        layout=layout,
    )


def run_conv2d(
    x: Any,
    w: Any,
    problem: ConvProblem,
    *,
    filter_layout: str = "KCRS",
    lnc: int = 2,
    epilogue: Epilogue | None = None,
    algorithm: str | None = None,
    config: Config = None,
    trace_only: bool = False,
) -> KernelRun:
    """Launch the kernel on arrays (or specs, with trace_only) that fit `problem`, x and y in its layout.

    epilogue, algorithm, config: checked, as `conv2d` does.
    """
    extra = epilogue or Epilogue()
    request = Request(problem=problem, lnc=lnc, asked=extra.asked(_is_packed(w)), operation="conv2d")
    algorithm, config = settled(request, algorithm, config)
    kwargs = kernel_arguments(problem, strict_nonfinite=extra.strict_nonfinite, algorithm=algorithm, config=config)
    if filter_layout != "KCRS":
        kwargs |= {"kern_perm": FILTER_LAYOUTS[filter_layout]}
    return launch(conv2d_implicit_gemm, (x, w), kwargs | extra.arguments(), lnc, trace_only)


def _array_violations(x: Any, w: Any, layout: Any, filter_layout: Any, lnc: Any) -> Iterator[NkiconvError]:
    """Errors of the arrays and their layouts: kind, rank, extents, dtypes."""
    for name, value, accepted in (("layout", layout, LAYOUTS), ("filter_layout", filter_layout, tuple(FILTER_LAYOUTS))):
        if value not in accepted:
            yield LayoutError(f"{name}={value!r}: accepted are {', '.join(accepted)}; transpose to one of these")
    found = [
        *one_array("x", x, "N, H, W, C" if layout == "NHWC" else "N, C, H, W", CONV2D_DTYPES),
        *one_array("w", w, PACKED_AXES if _is_packed(w) else _filter_axes(filter_layout), CONV2D_DTYPES),
    ]
    yield from found
    if _is_packed(w) and filter_layout != "KCRS":
        yield LayoutError(f"filter_layout={filter_layout!r}: w is packed, which has one order; drop it")
    if not found:
        yield from dtype_pair(x, w)
    yield from lnc_violations(lnc)


def _is_packed(w: Any) -> bool:
    return len(getattr(w, "shape", ())) == 5


def _filter_axes(filter_layout: Any) -> str:
    """Letters of w's axes; canonical ones where the layout is none."""
    letters = filter_layout if filter_layout in tuple(FILTER_LAYOUTS) else "KCRS"
    return ", ".join("C / groups" if letter == "C" else letter for letter in letters)


def _epilogue_shape_violations(epilogue: Epilogue, problem: ConvProblem) -> Iterator[NkiconvError]:
    """Errors of the epilogue's arrays and pool against the problem."""
    residual = f"y's, in layout {problem.layout},", problem.output_shape
    yield from epilogue.shape_violations({"bias": ("[K]", (problem.K,)), "residual": residual})
    height, width = pair_of(epilogue.pool)
    if problem.P % height or problem.Q % width:
        yield GeometryError(
            f"pool={epilogue.pool!r}: must divide P={problem.P} and Q={problem.Q}; crop by padding, or pool the result"
        )


def _group_violations(groups: Any) -> Iterator[NkiconvError]:
    if type(groups) is not int or groups < 1:
        yield GeometryError(f"groups={groups!r}: must be an int of at least 1 that divides C and K; pass one")


def _padding_pairs(padding: Any, axes: tuple[tuple[int, int, int, int], ...], lhs_dilation: Pair) -> tuple[Pair, Pair]:
    """((top, bottom), (left, right)) of a padding argument; axes: (size, taps, stride, dilation) of rows, columns."""
    if type(padding) is int:
        return (padding, padding), (padding, padding)
    if isinstance(padding, tuple) and len(padding) == 2 and all(map(is_pair, padding)):
        return padding
    if padding not in _PADDING_NAMES:
        listed = isinstance(padding, list) or (isinstance(padding, tuple) and any(isinstance(p, list) for p in padding))
        remedy = "write tuples, NKI kernels cannot take lists" if listed else "use one of these"
        raise GeometryError(
            f"padding={padding!r}: must be an int, ((top, bottom), (left, right)) of ints, or one of "
            f"{', '.join(_PADDING_NAMES)}; {remedy}"
        )
    if padding == "valid":
        return (0, 0), (0, 0)
    if lhs_dilation != (1, 1):
        raise GeometryError(
            f"padding={padding!r}: is not defined with lhs_dilation={lhs_dilation}; give ((top, bottom), (left, right))"
        )
    rows, columns = axes
    return same_padding(*rows), same_padding(*columns)
