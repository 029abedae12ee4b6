"""What calls of all kernels with arrays share: checks of arguments, and the record of a launch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import simulator
from .._nki import CHOICE, nl, simulate
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError
from ..planner.request import DTYPES as KERNEL_DTYPES
from ..planner.request import LNC_DEGREES
from ..problem import DTYPES, E4M3FN_REMEDY, dtype_name
from ..simulator.dtypes import canonical

Pair = tuple[int, int]
#: A number for each axis.
Places = tuple[int, ...]


@dataclass(frozen=True)
class KernelRun:
    """One launch: result and what the simulator counted (zeros and empty where AWS's NKI ran)."""

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
    """Launch a kernel on `lnc` cores; y is whatever it returned.

    Raises UnsupportedError: trace_only where AWS's NKI runs; the kernel refuses its arguments, with its words.
    """
    launched = kernel[plain(lnc)]
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


def is_pair(value: Any) -> bool:
    """Whether this is a tuple of two ints."""
    return isinstance(value, tuple) and len(value) == 2 and all(type(item) is int for item in value)


def pair_of(value: int | Pair) -> Pair:
    """(height, width) of a number for both or a pair."""
    return (value, value) if isinstance(value, int) else value


def per_axis(value: int | Places, axes: int) -> Places:
    """A number for all axes, or one for each, as one for each."""
    return (value,) * axes if isinstance(value, int) else value


def places_violations(places: dict[str, Any], axes: int = 2) -> Iterator[NkiconvError]:
    """Errors of numbers, or tuples of one per axis, that must be at least 1."""
    letters = "(height, width)" if axes == 2 else "(depth, height, width)"
    for name, value in places.items():
        each = value if isinstance(value, tuple) and len(value) == axes else (value,)
        if not all(type(one) is int and one >= 1 for one in each):
            remedy = "write a tuple, NKI kernels cannot take lists" if isinstance(value, list) else "pass one of these"
            yield GeometryError(f"{name}={value!r}: must be an int of at least 1, or {letters} of such ints; {remedy}")


def one_array(
    name: str, array: Any, axes: str, dtypes: tuple[str, ...] = KERNEL_DTYPES, empty: str = "N"
) -> Iterator[NkiconvError]:
    """Errors of an array's kind, rank, extents and dtype; axes: their names, as in "N, C, W"; empty: which may be 0."""
    if not isinstance(array, (np.ndarray, simulator.ArraySpec)):
        kind = type(array).__name__
        yield DtypeError(f"{name}: must be a NumPy array, not {kind}; convert it with numpy.asarray or .numpy()")
        return
    names = axes.split(", ")
    if len(array.shape) != len(names):
        yield LayoutError(f"{name}.shape={array.shape}: must have {len(names)} axes, [{axes}]; reshape it")
    elif any(size == 0 and one[0] not in empty for size, one in zip(array.shape, names, strict=True)):
        may = " and ".join(one[0] for one in names if one[0] in empty)
        but = f" but {may}" if may else ""
        yield GeometryError(f"{name}.shape={array.shape}: every extent{but} of [{axes}] must be at least 1; pass data")
    if not is_supported(array.dtype, dtypes) or not np.dtype(DTYPES.get(str(array.dtype), array.dtype)).isnative:
        accepted = ", ".join(str(DTYPES[d]) for d in dtypes)
        remedy = f"cast {name}"
        if str(array.dtype) == "float8_e4m3fn" and "fp8_e4m3" in dtypes:
            remedy = f"NKI's float8_e4m3 is another format: {E4M3FN_REMEDY}"
        yield DtypeError(f"{name}.dtype={array.dtype}: accepted are {accepted}, in native byte order; {remedy}")


def one_image(name: str, array: Any) -> Any:
    """In place of an array without images, [0, ...], one without data that has one: to check the call without them.

    Raises GeometryError: it has images, where x has none.
    """
    if array.shape[0] != 0:
        raise GeometryError(f"{name}.shape={array.shape}: must have no images, as x; pass [0, ...]")
    return with_extents(array, {0: 1})


def with_extents(array: Any, extents: dict[int, int]) -> Any:
    """In place of an array, one without data of other extents along these axes."""
    shape = tuple(extents.get(axis, size) for axis, size in enumerate(array.shape))
    return simulator.ArraySpec(shape, array.dtype)


def has_no_images(array: Any) -> bool:
    """Whether this is an array of N = 0 images or rows."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and array.shape[0] == 0


def no_data(shape: tuple[int, ...], letters: str, empty: str, dtype: str) -> Any:
    """y of an empty call: of the shape that it has of one image and channel, but 0 along the axes of these letters."""
    return np.empty([0 if one in empty else size for size, one in zip(shape, letters, strict=True)], DTYPES[dtype])


def is_supported(dtype: Any, dtypes: tuple[str, ...] = KERNEL_DTYPES) -> bool:
    """Whether a data type is one of these."""
    try:
        return dtype_name(dtype) in dtypes
    except DtypeError:
        return False


def dtype_pair(x: Any, w: Any) -> Iterator[NkiconvError]:
    """Errors of the dtypes of x and w together."""
    of_x, of_w = dtype_name(x.dtype), dtype_name(w.dtype)
    if (of_x == "fp32") != (of_w == "fp32"):
        yield DtypeError(
            f"w.dtype={w.dtype}: must be float32 exactly when x is (x is {x.dtype}; the Tensor Engine does not mix "
            f"float32 with others); cast w"
        )
    elif of_x.startswith("fp8") != of_w.startswith("fp8"):
        yield DtypeError(
            f"w.dtype={w.dtype}: must be float8_e4m3 or float8_e5m2 exactly when x is one of them (x is {x.dtype}; "
            f"the Tensor Engine doubles its rate only where both are fp8); cast w"
        )


def out_dtype_violations(out_dtype: Any) -> Iterator[NkiconvError]:
    """Errors of y's dtype."""
    if out_dtype is not None and not is_supported(out_dtype):
        accepted = ", ".join(KERNEL_DTYPES)
        yield DtypeError(f"out_dtype={out_dtype!r}: accepted are None, {accepted}; use one of them")


def lnc_violations(lnc: Any) -> Iterator[NkiconvError]:
    """Errors of the number of cores."""
    if lnc not in LNC_DEGREES or isinstance(lnc, bool):
        yield UnsupportedError(f"lnc={lnc!r}: must be 1 or 2 (LNC degrees of trn2); use lnc=2")
