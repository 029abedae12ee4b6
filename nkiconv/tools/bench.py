"""The simulator's speed, and the share of its time that NumPy needs for the same arithmetic.

Every recorded instruction is repeated by the plain NumPy operations that its arithmetic is made of (matmul on fp32
operands and the conversion to fp32 before it, copies, casts) on preallocated arrays with the same shapes and strides.
The rest of the simulator's time, per instruction, is its overhead. The planner and the profiler only trace: kernels
run, and are checked and recorded, without data.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import cases, simulator
from .._nki import CHOICE
from ..errors import UnsupportedError
from ..kernels.depthwise_conv1d import depthwise_conv1d_implicit_gemm
from ..planner.request import kernel_arguments
from ..reference import AnyArray
from ..simulator import Instruction, isa, language
from ..simulator.dtypes import DTYPES
from ..simulator.memory import Region
from ..simulator.profiling import Advance, ignore
from .verify import case_arrays

#: The timed cases, and an algorithm with mostly large instructions of few kinds.
ALGORITHM = "banded"
CASES = ("nkl_fs_asr", "nkl_n1_c256_w512_s64")
#: Overhead an instruction that the simulator aims at, in microseconds; and all of it where it only traces.
AIM_US = 20.0
AIM_TRACED_US = 10.0
RUNS = 7
#: Instructions of one kernel that is timed for a single instruction.
REPEATS = 500
ROWS, COLUMNS = 128, 512
Step = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Medians over the runs of one case, or of one instruction repeated."""

    name: str
    num_instructions: int
    num_not_replayed: int  # instructions that have no NumPy twin here; all their time counts as overhead
    simulated_us: float  # an instruction
    numpy_us: float  # an instruction
    traced_us: float  # an instruction, without data

    @property
    def overhead_us(self) -> float:
        """Beyond NumPy's own work, an instruction."""
        return self.simulated_us - self.numpy_us

    @property
    def seconds(self) -> float:
        """Simulation of all instructions."""
        return self.simulated_us * self.num_instructions * 1e-6

    @property
    def instructions_per_second(self) -> float:
        """Simulated instructions a second of wall time."""
        return 1e6 / self.simulated_us

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        derived = ("overhead_us", "seconds", "instructions_per_second")
        return {**dataclasses.asdict(self), **{field: getattr(self, field) for field in derived}}


def run(runs: int, advance: Advance = ignore) -> tuple[list[Timing], list[Timing]]:
    """Time the cases and the single instructions; each number is the median of `runs` runs.

    Raises UnsupportedError where AWS's NKI runs the kernels.
    """
    if CHOICE.provider != "simulator":
        raise UnsupportedError(
            f"NKICONV_NKI: bench-simulator times nkiconv's simulator, but {CHOICE.reason}; set NKICONV_NKI=simulator"
        )
    found = []
    for i, name in enumerate((*CASES, *_SINGLES)):
        advance(f"timing {name}", i / (len(CASES) + len(_SINGLES)))
        found.append((time_case if name in CASES else time_instruction)(name, runs))
    return found[: len(CASES)], found[len(CASES) :]


def time_case(name: str, runs: int) -> Timing:
    """A named depthwise conv1d case on LNC2, random data."""
    case = cases.get(name)
    problem = case.problem
    x, w = case_arrays(case, seed=0)
    args = x[:, :, np.newaxis], w[:, np.newaxis, np.newaxis]
    kwargs = kernel_arguments(problem, algorithm=ALGORITHM, rows=True)
    kernel = depthwise_conv1d_implicit_gemm[2]
    return _timed(name, lambda traced: simulator.execute(kernel, args, kwargs, trace_only=traced), runs)


def time_instruction(name: str, runs: int) -> Timing:
    """One instruction on [128, 512] tiles, `REPEATS` times in a kernel that allocates its tiles once."""
    operands = [np.ones((ROWS, COLUMNS), DTYPES[_SINGLES[name][1]].numpy)]

    def execute(count: int, traced: bool) -> Any:
        return simulator.execute(_repeat, (*operands, name, count), trace_only=traced)

    repeated = _timed(name, lambda traced: execute(REPEATS, traced), runs, last=REPEATS)
    setup, traced_setup = (
        statistics.median(_seconds(functools.partial(execute, 0, traced)) for _ in range(runs)) / REPEATS * 1e6
        for traced in (False, True)
    )
    return dataclasses.replace(
        repeated, simulated_us=repeated.simulated_us - setup, traced_us=repeated.traced_us - traced_setup
    )


def _timed(name: str, execute: Callable[[bool], Any], runs: int, last: int = 0) -> Timing:
    """Medians of simulating, of NumPy's replay and of tracing, run in turn; the first of each warms up.

    The replay is of the `last` instructions, or of all if that is 0.
    """
    counted = execute(False).instructions[-last:]
    steps, not_replayed = numpy_steps(counted)
    simulated, replayed, traced = [], [], []
    for _ in range(runs + 1):
        simulated.append(_seconds(lambda: execute(False)))
        replayed.append(_seconds(lambda: [step() for step in steps]))
        traced.append(_seconds(lambda: execute(True)))
    scale = 1e6 / len(counted)
    medians = (statistics.median(one[1:]) * scale for one in (simulated, replayed, traced))
    return Timing(name, len(counted), not_replayed, *medians)


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def numpy_steps(instructions: Iterable[Instruction]) -> tuple[list[Step], int]:
    """One NumPy step an instruction, on arrays of its own, and how many instructions have none."""
    buffers: dict[Any, AnyArray] = {}
    steps, not_replayed = [], 0
    for instruction in instructions:
        make = _STEPS.get(instruction.op)
        if make is None:
            not_replayed += 1
            continue
        writes = [_view(region, buffers, "write") for region in instruction.writes]
        reads = [_view(region, buffers, f"read {i}") for i, region in enumerate(instruction.reads)]
        steps.append(make(instruction, writes[0], reads))
    return steps, not_replayed


def _view(region: Region, buffers: dict[Any, AnyArray], role: str) -> AnyArray:
    """The region's view of an array that stands for all storages of that shape and role, so that no two overlap."""
    info = region.info
    key = info.shape, info.dtype, role
    if key not in buffers:
        size = -(-info.num_bytes // 4)
        values = np.random.default_rng(0).standard_normal(size, np.float32)
        buffers[key] = values.astype(DTYPES[info.dtype].numpy) if info.dtype != "float32" else values
        buffers[key] = np.resize(buffers[key], info.num_bytes // DTYPES[info.dtype].itemsize)
    dtype = DTYPES[region.dtype].numpy
    flat = buffers[key].view(dtype)
    strides = [stride * dtype.itemsize for stride in region.strides]
    return np.lib.stride_tricks.as_strided(flat[region.offset :], region.shape, strides)


def _copy_step(_instruction: Instruction, dst: AnyArray, reads: list[AnyArray]) -> Step:
    src = reads[0]
    return lambda: np.copyto(dst, src.reshape(dst.shape), casting="unsafe")


def _transpose_step(_instruction: Instruction, dst: AnyArray, reads: list[AnyArray]) -> Step:
    data = reads[0]
    return lambda: np.copyto(dst, data.reshape(len(data), -1).T.reshape(dst.shape), casting="unsafe")


def _matmul_step(instruction: Instruction, dst: AnyArray, reads: list[AnyArray]) -> Step:
    operands = [data.reshape(len(data), -1) for data in reads[:2]]
    wide = [data if data.dtype == np.float32 else np.empty(data.shape, np.float32) for data in operands]
    product = np.empty((wide[0].shape[1], wide[1].shape[1]), np.float32)
    adds = instruction.params["accumulate"]

    def step() -> None:
        for narrow, to in zip(operands, wide, strict=True):
            if to is not narrow:
                np.copyto(to, narrow)
        np.matmul(wide[0].T, wide[1], out=product)
        if adds:
            np.add(dst, product.reshape(dst.shape), out=dst)
        else:
            np.copyto(dst, product.reshape(dst.shape))

    return step


def _select_step(_instruction: Instruction, dst: AnyArray, reads: list[AnyArray]) -> Step:
    values = np.arange(dst.size, dtype=np.int32).reshape(dst.shape) - dst.size // 2
    keep, false = np.empty(dst.shape, np.bool_), np.zeros((), dst.dtype)

    def step() -> None:
        np.greater_equal(values, 0, out=keep)
        np.copyto(dst, np.where(keep, reads[0].reshape(dst.shape), false), casting="unsafe")

    return step


_STEPS: dict[str, Callable[[Instruction, AnyArray, list[AnyArray]], Step]] = {
    "dma_copy": _copy_step,
    "tensor_copy": _copy_step,
    "memset": lambda _instruction, dst, _reads: lambda: dst.fill(0),
    "nc_transpose": _transpose_step,
    "nc_matmul": _matmul_step,
    "affine_select": _select_step,
    "tensor_tensor": lambda _instruction, dst, reads: lambda: np.add(reads[0], reads[1], out=dst),
    "activation": lambda _instruction, dst, reads: lambda: np.maximum(reads[0], np.float32(0), out=dst),
}


@simulator.jit
def _repeat(x_hbm: Any, name: str, count: int) -> None:
    """Load x into a tile, set up the operands of one instruction, and issue it `count` times."""
    issue = _SINGLES[name][0]
    x_sbuf = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.sbuf)
    y_sbuf = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.sbuf)
    y_psum = language.ndarray(x_hbm.shape, dtype=language.float32, buffer=language.psum)
    isa.dma_copy(dst=x_sbuf, src=x_hbm)
    isa.tensor_copy(dst=y_sbuf, src=x_sbuf)
    for _ in range(count):
        issue(x_hbm, x_sbuf, y_sbuf, y_psum)


#: How each single instruction is issued, on which dtype: (x_hbm, x_sbuf, y_sbuf, y_psum), each [128, 512].
_SINGLES: dict[str, tuple[Callable[[Any, Any, Any, Any], Any], str]] = {
    "tensor_copy": (lambda _h, x, y, _p: isa.tensor_copy(dst=y, src=x), "float32"),
    "tensor_tensor": (lambda _h, x, y, _p: isa.tensor_tensor(dst=y, data1=x, data2=x, op=language.add), "float32"),
    "dma_copy": (lambda h, x, _y, _p: isa.dma_copy(dst=x, src=h), "float32"),
    "nc_matmul": (
        lambda _h, x, _y, p: isa.nc_matmul(dst=p, stationary=x[0:ROWS, 0:ROWS], moving=x, accumulate=False),
        "bfloat16",
    ),
    "activation": (lambda _h, x, y, _p: isa.activation(dst=y, op=language.relu, data=x), "float32"),
}
