"""depthwise_conv1d on arrays: check the call, describe it as a ConvProblem, launch the kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import rules, simulator
from ..axis import padding_pairs
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all, refuse, refused
from ..integers import takes_ints
from ..planner.depthwise_conv1d import chunk_violations, chunked_shape
from ..planner.operations import OPERATIONS, choice_refusals, choice_violations
from ..planner.request import Config
from ..problem import DTYPES, ConvProblem, dtype_name
from ..reference import AnyArray
from ..rules import KERNEL_DTYPES, PADDINGS
from .calls import KernelRun as KernelRun
from .calls import (
    has_no_images,
    launch_planned,
    no_data,
    one_image,
)
from .conv_problem import Kind, array_violations, number_violations
from .epilogue import Epilogue
from .token_rows import convolved_tokens

#: Axes of a call's optional arrays.
_AXES = {"bias": "C", "residual": "N, C, Q", "initial_state": "N, C, window - 1"}
_OPERATION = OPERATIONS["depthwise_conv1d"]
KIND = Kind("depthwise_conv1d", 1, ("NCW",), (), PADDINGS, filter_letters="C, S", dtypes=KERNEL_DTYPES)


@takes_ints
def depthwise_conv1d(
    x: AnyArray,
    w: AnyArray,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    layout: str = "NCW",
    bias: AnyArray | None = None,
    activation: str | None = None,
    residual: AnyArray | None = None,
    residual_position: str = "pre_activation",
    out_dtype: Any = None,
    initial_state: AnyArray | None = None,
    return_final_state: bool = False,
    chunks: str | None = None,
    lnc: int = 2,
    strict_nonfinite: bool = False,
    flipped: bool = False,
    algorithm: str | None = None,
    config: Config = None,
    x_scale: AnyArray | None = None,
    x_shift: AnyArray | None = None,
    x_activation: str | None = None,
) -> Any:
    """Convolve each channel of x with its own filter.

        y[n, c, q] = act(sum over s of w[c, s] * x_pad[n, c, q*stride + s*dilation] + bias[c] + residual[n, c, q])

    Equals ``torch.nn.functional.conv1d(x, w[:, None], bias, groups=C, ...)`` followed by the activation.

    Args:
        x: [N, C, W]; bf16 (ml_dtypes), fp16 or fp32; any strides. N may be 0.
        w: [C, S]; fp32 with fp32 x, bf16 or fp16 with either of them.
        stride, dilation, lhs_dilation: at least 1; lhs_dilation puts zeros between inputs, before padding.
        padding: zeros on both sides; (left, right), negative crops; "valid": none; "causal": window - 1 on the left;
            "same": Q = ceil(W / stride), the odd zero on the right.
        layout: "NCW", or "NWC": x and y are token-major, [N, W, C] and [N, Q, C], as `causal_conv1d_split` has them:
            padding "causal", at most 16 taps, bias, activation, chunks and states, which are [N, C, window - 1] as
            ever.
        bias: [C]; bf16, fp16 or fp32.
        activation: None or a name of `nkiconv.rules.ACTIVATIONS`, as in "silu"; as torch defines it.
        residual: [N, C, Q]; bf16, fp16 or fp32. residual_position: "pre_activation" as above, or "post_activation",
            act(sum + bias) + residual.
        out_dtype: of y; None: x's.
        initial_state: [N, C, window - 1], x's dtype: the inputs before the rows, in place of the zeros of the left
            padding, which must have that width (padding="causal"); stride and lhs_dilation 1.
        return_final_state: also return the initial_state of the rows' next piece.
        chunks: None, or the kinds of the chunks of C channels in x's chunks * C channels, in order: x the input, B a
            factor of it, G a factor through a sigmoid, C a factor of y. "BCx": y = C * act(conv(B * x) + bias), as in
            `gated_short_conv`; "xG": conv(x * sigmoid(G)), as in `glu_conv1d`. The product is rounded to x's dtype, the
            padding stays zero, and states hold products; with C, Q must be W, and there is no residual.
        lnc: cores that share the work, 1 or 2.
        strict_nonfinite: keep channels apart (see the kernel), so that NaN and Inf stay in their channel.
        flipped: whether w has its taps in reverse order, as `depthwise_conv1d_input` takes them; of stride 1.
        algorithm, config: as in a `Plan`; None: the estimate.
        x_scale, x_shift, x_activation: as in `conv2d`, without chunks. States hold x_activation(x * x_scale + x_shift),
            rounded to x's dtype; the padding stays zero.

    Returns: y, [N, C, Q], accumulated in fp32 and rounded once; with return_final_state (y, state [N, C, window - 1] of
        x's dtype).

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    if layout != KIND.layouts[0]:
        return convolved_tokens(**locals())
    epilogue, call = Epilogue.taken_from({name: value for name, value in locals().items() if name != "layout"})
    given = _with_one_row(x, epilogue) if has_no_images(x) else (x, epilogue)
    problem = checked_depthwise_conv1d(**call | {"x": given[0], "epilogue": given[1]})
    if has_no_images(x):
        y = no_data((1, problem.C, problem.Q), "NCQ", "N", dtype_name(out_dtype or problem.dtype))
        state = no_data((1, problem.C, problem.width.window - 1), "NCW", "N", problem.dtype)
        return (y, state) if return_final_state else y
    run = run_depthwise_conv1d(x, w, problem, lnc=lnc, epilogue=epilogue, algorithm=algorithm, config=config)
    return (run.y, run.final_state) if return_final_state else run.y


def _with_one_row(x: Any, epilogue: Epilogue) -> tuple[Any, Epilogue]:
    """The same without data for one row instead of none, to be checked."""
    found = {name: getattr(epilogue, name) for name in ("residual", "initial_state")}
    found |= {name: numbers for name, numbers in epilogue.numbers.items() if np.ndim(numbers) == 2}
    ones = {name: one_image(name, one) for name, one in found.items() if isinstance(one, np.ndarray) and one.ndim}
    return one_image("x", x), dataclasses.replace(epilogue, **ones)


def checked_depthwise_conv1d(
    x: Any,
    w: Any,
    epilogue: Epilogue,
    *,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    **geometry: Any,
) -> ConvProblem:
    """The problem of a `depthwise_conv1d` call, all checked; arguments and errors are the call's.

    geometry: stride, padding, dilation, lhs_dilation and flipped.
    """
    choice = choice_violations(_OPERATION.algorithms, algorithm, config)
    raise_all(KIND.cannot, [*_violations(KIND, x, w, lnc, **geometry), *epilogue.violations(_AXES), *choice])
    problem = depthwise_problem(x, w, lnc=lnc, chunks=epilogue.chunks, **geometry)
    raise_all(KIND.cannot, chunk_violations(problem, epilogue.asked()))
    raise_all(KIND.cannot, [*_epilogue_shape_violations(epilogue, problem), *problem.launch_violations()])
    raise_all(KIND.cannot, choice_refusals(_OPERATION, problem, epilogue.asked(), algorithm, config, lnc))
    return problem


def depthwise_problem(
    x: Any,
    w: Any,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    flipped: bool = False,
    lnc: int = 2,
    kind: Kind = KIND,
    chunks: str | None = None,
) -> ConvProblem:
    """The checked ConvProblem of a call of `depthwise_conv1d`, or of another kind; arguments and errors are the call's.
    C is a chunk's."""
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "lhs_dilation": lhs_dilation}
    raise_all(kind.cannot, _violations(kind, x, w, lnc, **numbers, flipped=flipped))
    N, C, W = x.shape
    refuse(LayoutError, rules.chunks(chunks, C))
    C, S = C // len(chunks or "x"), w.shape[1]
    refuse(GeometryError, rules.shape("w", w.shape, (C, S), "[C, S]"))
    (pair,) = padding_pairs(padding, ((W, S, stride, dilation),))
    return ConvProblem(
        N=N,
        C=C,
        W=W,
        S=S,
        groups=C,
        stride=(1, stride),
        padding=((0, 0), pair),
        rhs_dilation=(1, dilation),
        lhs_dilation=(1, lhs_dilation),
        dtype=dtype_name(x.dtype),
        transposed=flipped,
    )


def run_depthwise_conv1d(
    x: Any,
    w: Any,
    problem: ConvProblem,
    *,
    epilogue: Epilogue | None = None,
    **choice: Any,
) -> KernelRun:
    """Launch the kernel on [N, C, W] and [C, S] arrays (or specs, with trace_only) that fit `problem`.

    epilogue, choice: checked, as `depthwise_conv1d` does; choice: as `launch_planned` takes it.
    """
    asked = epilogue or Epilogue()
    wanted = asked.asked()
    x4 = _reshaped(x, chunked_shape(problem, wanted.chunks))
    w4 = _reshaped(w, (problem.C, 1, 1, problem.S))
    if asked.residual is not None:
        asked = dataclasses.replace(asked, residual=_reshaped(asked.residual, (problem.N, problem.C, 1, problem.Q)))
    run = launch_planned(_OPERATION, problem, wanted, (x4, w4), asked.arguments(), **choice)
    y4, state = tuple(run.y) if asked.return_final_state else (run.y, None)
    y = _reshaped(y4, (problem.N, problem.C, problem.Q))
    return dataclasses.replace(run, y=y, final_state=state)


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(array, simulator.ArraySpec):
        return simulator.ArraySpec(shape, array.dtype)
    return array.reshape(shape)


def _violations(kind: Kind, x: Any, w: Any, lnc: Any, flipped: Any = False, **numbers: Any) -> Iterator[NkiconvError]:
    """Errors of the arrays and of the numbers, each by itself."""
    yield from array_violations(kind, x, w, "NCW", lnc=lnc)
    yield from number_violations(kind, **numbers)
    yield from refused(UnsupportedError, rules.flag("flipped", flipped))


def _epilogue_shape_violations(epilogue: Epilogue, problem: ConvProblem) -> Iterator[NkiconvError]:
    """Errors of the epilogue's arrays against the problem."""
    state, states = epilogue.initial_state, (problem.N, problem.C, problem.width.window - 1)
    yield from epilogue.shape_violations(
        {
            "bias": ("[C]", (problem.C,)),
            "residual": ("y's, [N, C, Q]", (problem.N, problem.C, problem.Q)),
            "initial_state": ("[N, C, window - 1]", states),
        }
    )
    yield from epilogue.number_violations(problem.N, problem.C)
    if state is not None:
        yield from refused(
            DtypeError, rules.same("initial_state", "dtype", str(state.dtype), "x", DTYPES[problem.dtype].name)
        )
    if state is not None or epilogue.return_final_state:
        yield from refused(GeometryError, *rules.state(problem.width))
