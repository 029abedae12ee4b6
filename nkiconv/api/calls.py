"""Calls of kernels with arrays: common checks of arguments, and the record of a launch."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import rules, simulator
from .._nki import CHOICE, nl, simulate
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, refused
from ..launches import on_cores
from ..planner.estimate import completed
from ..planner.operation import Operation
from ..planner.request import Asked, Config, Request, kernel_arguments
from ..problem import DTYPES, ConvProblem, dtype_name
from ..rules import KERNEL_DTYPES
from ..simulator.dtypes import canonical

Pair = tuple[int, int]
#: A number for each axis.
Places = tuple[int, ...]


@dataclass(frozen=True)
class KernelRun:
    """One launch: its result and the simulator's counts (zero and empty where AWS's NKI ran)."""

    y: Any  # array in the layout asked for, or an ArraySpec when only traced
    provider: str
    lnc: int
    seconds: float
    instructions: dict[str, int]  # by engine, all cores
    dma_bytes: int  # moved by all DMAs of all cores
    sbuf_peak_bytes: int  # a partition, the fuller core
    psum_peak_bytes: int  # a partition, the fuller core
    final_state: Any = None  # array [N, C, window - 1], or its ArraySpec; None unless asked for

    @property
    def num_instructions(self) -> int:
        """Instructions of all engines and cores."""
        return sum(self.instructions.values())


def launch(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], lnc: int, trace_only: bool) -> KernelRun:
    """Launch a kernel on `lnc` cores; y is its result.

    Raises UnsupportedError: trace_only where AWS's NKI runs; the kernel refuses its arguments, with its words.
    """
    launched = on_cores(kernel, plain(lnc))
    kwargs = {name: plain(value) for name, value in kwargs.items()}
    began = time.perf_counter()
    if CHOICE.provider == "aws":
        if trace_only:
            raise UnsupportedError("trace_only=True: only nkiconv's simulator traces; set NKICONV_NKI=simulator")
        y = simulate(launched)(*args, **kwargs)
        return KernelRun(y, "aws", lnc, time.perf_counter() - began, {}, 0, 0, 0)
    try:
        execution = simulator.execute(launched, args, kwargs, trace_only=trace_only)
    except simulator.KernelAssertionError as error:
        raise UnsupportedError(str(error).removeprefix("KERNEL: assert: ").splitlines()[0]) from error
    instructions = execution.instructions
    return KernelRun(
        y=execution.outputs,
        provider="simulator",
        lnc=lnc,
        seconds=time.perf_counter() - began,
        instructions=dict(sorted(Counter(i.engine for i in instructions).items())),
        dma_bytes=sum(i.bytes for i in instructions if i.engine == "dma"),
        sbuf_peak_bytes=execution.sbuf_peak_bytes,
        psum_peak_bytes=execution.psum_peak_bytes,
    )


def launch_planned(
    operation: Operation,
    problem: ConvProblem,
    asked: Asked,
    tensors: tuple[Any, ...],
    more: dict[str, Any],
    *,
    lnc: int = 2,
    algorithm: str | None = None,
    config: Config = None,
    trace_only: bool = False,
) -> KernelRun:
    """Launch an operation's kernel with settings that are checked, or those known to be best.

    more: the kernel's arguments beside the problem's.
    """
    request = Request(problem=problem, lnc=lnc, asked=asked, operation=operation.name)
    algorithm, config = completed(request, algorithm, config)
    nonfinite, rows = asked.strict_nonfinite, operation.name == "depthwise_conv1d"
    kwargs = kernel_arguments(problem, strict_nonfinite=nonfinite, algorithm=algorithm, config=config, rows=rows)
    return launch(operation.kernel, tensors, kwargs | more, lnc, trace_only)


def plain(value: Any) -> Any:
    """A kernel's argument with Python's own numbers for NumPy's, which AWS's front-end may read as None."""
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    return value.item() if isinstance(value, np.generic) else value


def nl_dtype(dtype: Any) -> Any:
    """nki.language's data type of one that `dtype_name` knows."""
    name = canonical(dtype_name(dtype))
    assert name is not None
    return getattr(nl, name)


def per_axis(value: int | Places, axes: int) -> Places:
    """A number for all axes, or one for each, as one for each."""
    return (value,) * axes if isinstance(value, int) else value


def is_numpy(value: Any) -> bool:
    """Whether a call takes this as an array."""
    return isinstance(value, np.ndarray | simulator.ArraySpec)


def no_array(name: str, value: Any) -> str:
    """Why this is no array; "" if it is one."""
    if is_numpy(value):
        return ""
    return f"{name}: must be a NumPy array, not {type(value).__name__}; convert it with numpy.asarray or .numpy()"


def shape_of(value: Any) -> tuple[int, ...]:
    """An array's shape, () of anything else: to ask before `one_array` refuses it."""
    return value.shape if is_numpy(value) else ()


def one_array(
    name: str, array: Any, axes: str, dtypes: tuple[str, ...] = KERNEL_DTYPES, empty: str = "N"
) -> Iterator[NkiconvError]:
    """Errors of an array's kind, rank, extents and dtype; axes: their names, as in "N, C, W"; empty: which may be 0."""
    if not is_numpy(array):
        yield from refused(DtypeError, no_array(name, array))
        return
    names, malformed = axes.split(", "), rules.rank(name, array.shape, axes)
    yield from refused(LayoutError, malformed)
    if not malformed and any(size == 0 and one[0] not in empty for size, one in zip(array.shape, names, strict=True)):
        may = " and ".join(one[0] for one in names if one[0] in empty)
        but = f" but {may}" if may else ""
        yield GeometryError(f"{name}.shape={array.shape}: every extent{but} of [{axes}] must be at least 1; pass data")
    yield from refused(DtypeError, rules.array_dtype(name, array.dtype, dtypes))


def one_image(name: str, array: Any) -> Any:
    """In place of an array without images, [0, ...], one without data that has one: to check the call without them.

    Raises GeometryError: it has images, where x has none.
    """
    if array.shape[0] != 0:
        raise GeometryError(f"{name}.shape={array.shape}: must have no images, as x; pass [0, ...]")
    return with_extents(array, {0: 1})


def with_extents(array: Any, extents: dict[int, int]) -> Any:
    """In place of an array, one without data of other extents along these axes; of no dtype of NKI's, zeros that the
    checks of the call refuse by that dtype."""
    shape = tuple(extents.get(axis, size) for axis, size in enumerate(array.shape))
    if canonical(array.dtype) is None:
        return np.broadcast_to(np.zeros((), array.dtype), shape)
    return simulator.ArraySpec(shape, array.dtype)


def has_no_images(array: Any) -> bool:
    """Whether this is an array of N = 0 images or rows."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and array.shape[0] == 0


def no_data(shape: tuple[int, ...], letters: str, empty: str, dtype: str) -> Any:
    """y of an empty call: of the shape that it has of one image and channel, but 0 along the axes of these letters."""
    return np.empty([0 if one in empty else size for size, one in zip(shape, letters, strict=True)], DTYPES[dtype])


def out_dtype_unsupported(out_dtype: Any, others: tuple[Any, ...] = (None,)) -> str:
    """Why this is no dtype of a result; "" if it is one, by any name; others: further accepted values."""
    named = out_dtype
    with contextlib.suppress(DtypeError):
        named = dtype_name(out_dtype)
    return "" if named in KERNEL_DTYPES else rules.accepted("out_dtype", out_dtype, (*others, *KERNEL_DTYPES))
