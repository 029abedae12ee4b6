"""Arrays in, arrays out: check the call, describe it as a ConvProblem, launch the kernel. Nothing else launches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import simulator
from ._nki import CHOICE, simulate
from .errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, raise_all
from .kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from .problem import DTYPES, ConvProblem, dtype_name
from .reference import AnyArray

#: LNC degrees of a trn2 launch
_LNC_DEGREES = (1, 2)
_PADDING_NAMES = ("same", "valid", "causal")
#: dtypes that depthwise_conv1d takes
DEPTHWISE_DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class KernelRun:
    """One launch: result and what the simulator counted (zeros and empty where AWS's NKI ran)."""

    y: Any  # array [N, C, Q], or an ArraySpec when only traced
    provider: str
    lnc: int
    seconds: float
    instructions: dict[str, int]  # by engine, all cores
    dma_bytes: int  # moved by all DMAs of all cores
    sbuf_peak_bytes: int  # a partition, the fuller core
    psum_peak_bytes: int  # a partition, the fuller core

    @property
    def num_instructions(self) -> int:
        """Instructions of all engines and cores."""
        return sum(self.instructions.values())


def depthwise_conv1d(
    x: AnyArray,
    w: AnyArray,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    lnc: int = 2,
    strict_nonfinite: bool = False,
) -> AnyArray:
    """Convolve each channel of x with its own filter.

        y[n, c, q] = sum over s of w[c, s] * x_pad[n, c, q*stride + s*dilation]

    Equals ``torch.nn.functional.conv1d(x, w[:, None], groups=C, ...)``.

    Args:
        x: [N, C, W]; bf16 (ml_dtypes), fp16 or fp32; any strides.
        w: [C, S]; fp32 with fp32 x, bf16 or fp16 with either of them.
        stride, dilation, lhs_dilation: at least 1; lhs_dilation puts zeros between inputs, before padding.
        padding: zeros on both sides; (left, right), negative crops; "valid": none; "causal": window - 1 on the left;
            "same": Q = ceil(W / stride), the odd zero on the right.
        lnc: cores that share the channels, 1 or 2.
        strict_nonfinite: keep channels apart (see the kernel), so that NaN and Inf stay in their channel.

    Returns: [N, C, Q], dtype of x, accumulated in fp32 and rounded once.

    Raises: GeometryError, DtypeError, LayoutError, UnsupportedError, before any work, naming every violated rule.
    """
    problem = depthwise_problem(
        x, w, stride=stride, padding=padding, dilation=dilation, lhs_dilation=lhs_dilation, lnc=lnc
    )
    return run_depthwise_conv1d(x, w, problem, lnc=lnc, strict_nonfinite=strict_nonfinite).y  # type: ignore[no-any-return]


def depthwise_problem(
    x: Any,
    w: Any,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    lhs_dilation: int = 1,
    lnc: int = 2,
) -> ConvProblem:
    """The checked ConvProblem of a `depthwise_conv1d` call; arguments and errors are its."""
    raise_all("depthwise_conv1d cannot run this call", list(_array_violations(x, w, lnc)))
    scalars = {"stride": stride, "dilation": dilation, "lhs_dilation": lhs_dilation}
    raise_all("depthwise_conv1d cannot run this call", list(_scalar_violations(scalars)))
    N, C, W = x.shape
    S = w.shape[1]
    left, right = _padding_pair(padding, W, S, stride, dilation, lhs_dilation)
    return ConvProblem(
        N=N,
        C=C,
        W=W,
        S=S,
        groups=C,
        stride=(1, stride),
        padding=((0, 0), (left, right)),
        rhs_dilation=(1, dilation),
        lhs_dilation=(1, lhs_dilation),
        dtype=dtype_name(x.dtype),
    )


def run_depthwise_conv1d(
    x: Any, w: Any, problem: ConvProblem, *, lnc: int = 2, strict_nonfinite: bool = False, trace_only: bool = False
) -> KernelRun:
    """Launch the kernel on [N, C, W] and [C, S] arrays (or specs, with trace_only) that fit `problem`."""
    x4 = _reshaped(x, (problem.N, problem.C, 1, problem.W))
    w4 = _reshaped(w, (problem.C, 1, 1, problem.S))
    kwargs = kernel_arguments(problem, strict_nonfinite=strict_nonfinite)
    launched = depthwise_conv1d_implicit_gemm[lnc]
    began = time.perf_counter()
    if CHOICE.provider == "aws":
        if trace_only:
            raise UnsupportedError("trace_only=True: only nkiconv's simulator traces; set NKICONV_NKI=simulator")
        y4 = simulate(launched)(x4, w4, **kwargs)
        return KernelRun(_reshaped(y4, (problem.N, problem.C, problem.Q)), "aws", lnc, _since(began), {}, 0, 0, 0)
    execution = simulator.execute(launched, (x4, w4), kwargs, trace_only=trace_only)
    return _counted(execution, problem, lnc, _since(began))


def kernel_arguments(
    problem: ConvProblem, *, strict_nonfinite: bool = False, algorithm: str | None = None
) -> dict[str, Any]:
    """The kernel's arguments for a depthwise conv1d problem, beside the arrays."""
    return {
        "padding": problem.padding,
        "stride": problem.stride,
        "rhs_dilation": problem.rhs_dilation,
        "lhs_dilation": problem.lhs_dilation,
        "feature_group_count": problem.C,
        "strict_nonfinite": strict_nonfinite,
        "algorithm": algorithm,
    }


def _counted(execution: simulator.Execution, problem: ConvProblem, lnc: int, seconds: float) -> KernelRun:
    instructions = execution.instructions
    return KernelRun(
        y=_reshaped(execution.outputs, (problem.N, problem.C, problem.Q)),
        provider="simulator",
        lnc=lnc,
        seconds=seconds,
        instructions=dict(sorted(Counter(i.engine for i in instructions).items())),
        dma_bytes=sum(i.bytes for i in instructions if i.engine == "dma"),
        sbuf_peak_bytes=execution.sbuf_peak_bytes,
        psum_peak_bytes=execution.psum_peak_bytes,
    )


def _since(began: float) -> float:
    return time.perf_counter() - began


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(array, simulator.ArraySpec):
        return simulator.ArraySpec(shape, array.dtype)
    return array.reshape(shape)


def _array_violations(x: Any, w: Any, lnc: Any) -> Iterator[NkiconvError]:
    """Errors of the arrays themselves: kind, rank, extents, dtypes."""
    sound = True
    for name, array, axes in (("x", x, "N, C, W"), ("w", w, "C, S")):
        for error in _one_array(name, array, axes):
            sound = False
            yield error
    if sound:
        if x.shape[1] != w.shape[0]:
            yield GeometryError(
                f"w.shape={w.shape}: w must have one filter for each of x's C={x.shape[1]} channels; pass [C, S]"
            )
        yield from _dtype_pair(x, w)
    if lnc not in _LNC_DEGREES or isinstance(lnc, bool):
        yield UnsupportedError(f"lnc={lnc!r}: must be 1 or 2 (LNC degrees of trn2); use lnc=2")


def _one_array(name: str, array: Any, axes: str) -> Iterator[NkiconvError]:
    if not isinstance(array, (np.ndarray, simulator.ArraySpec)):
        kind = type(array).__name__
        yield DtypeError(f"{name}: must be a NumPy array, not {kind}; convert it with numpy.asarray or .numpy()")
        return
    rank = len(axes.split(","))
    if len(array.shape) != rank:
        yield LayoutError(f"{name}.shape={array.shape}: must have {rank} axes, [{axes}]; reshape it")
    elif 0 in array.shape:
        yield GeometryError(f"{name}.shape={array.shape}: every extent of [{axes}] must be at least 1; pass data")
    try:
        supported = dtype_name(array.dtype) in DEPTHWISE_DTYPES
    except DtypeError:
        supported = False
    if not supported or not np.dtype(DTYPES.get(str(array.dtype), array.dtype)).isnative:
        accepted = ", ".join(str(DTYPES[d]) for d in DEPTHWISE_DTYPES)
        yield DtypeError(f"{name}.dtype={array.dtype}: accepted are {accepted}, in native byte order; cast {name}")


def _dtype_pair(x: Any, w: Any) -> Iterator[NkiconvError]:
    wide = {dtype_name(x.dtype) == "fp32", dtype_name(w.dtype) == "fp32"}
    if len(wide) > 1:
        yield DtypeError(
            f"w.dtype={w.dtype}: must be float32 exactly when x is (x is {x.dtype}; the Tensor Engine does not mix "
            f"float32 with 16-bit operands); cast w"
        )


def _scalar_violations(scalars: dict[str, Any]) -> Iterator[NkiconvError]:
    for name, value in scalars.items():
        if type(value) is not int or value < 1:
            yield GeometryError(f"{name}={value!r}: must be an int of at least 1; pass a positive int")


def _padding_pair(padding: Any, W: int, S: int, stride: int, dilation: int, lhs_dilation: int) -> tuple[int, int]:
    """(left, right) of a padding argument."""
    if type(padding) is int:
        return padding, padding
    if isinstance(padding, tuple) and len(padding) == 2 and all(type(p) is int for p in padding):
        return padding
    if padding not in _PADDING_NAMES:
        remedy = "write a tuple, NKI kernels cannot take lists" if isinstance(padding, list) else "use one of these"
        raise GeometryError(
            f"padding={padding!r}: must be an int, (left, right) of ints, or one of {', '.join(_PADDING_NAMES)}; "
            f"{remedy}"
        )
    if padding == "valid":
        return 0, 0
    if lhs_dilation != 1:
        raise GeometryError(f"padding={padding!r}: is not defined with lhs_dilation={lhs_dilation}; give (left, right)")
    window = (S - 1) * dilation + 1
    if padding == "causal":
        return window - 1, 0
    total = max(0, (-(-W // stride) - 1) * stride + window - W)
    return total // 2, total - total // 2
