"""nki.jit and nki.simulate: kernels, launch grids, arguments in, results out, one or two cores.

Kernels run as plain Python in this process, so breakpoints and prints work. On LNC2 core 0 runs first; core 1 runs
after it, in the same thread, unless the cores meet at a barrier: then core 1 gets a thread of its own and exactly one
of the two runs at any time, which keeps every run deterministic.
"""

from __future__ import annotations

import functools
import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import hardware as hw
from .allowed import Allowed, default
from .arguments import Binder, comparable
from .capacity import check_capacity
from .compiler import NO_CONFIGS, CompileConfig, Configs, SpecializationConfig
from .errors import KernelAssertionError, NkiError, TraceLimitError
from .iterations import trip_counts
from .program import Instruction, Launch, Program
from .rendezvous import Rendezvous
from .rules import fail, refuse_launch
from .running import running, set_running
from .schedule import Edges, apply, checked

_PACKAGE_PATH = Path(__file__).parent


@dataclass(frozen=True)
class Execution:
    """The results of a simulated launch: outputs in the arguments' kind and one `Program` a core."""

    outputs: Any
    programs: tuple[Program, ...]
    #: whether the trace ended at `most` instructions; then only its records are checked
    is_cut: bool = False

    @property
    def instructions(self) -> list[Instruction]:
        """All cores' instructions, core by core."""
        return [i for program in self.programs for i in program.instructions]

    @property
    def sbuf_peak_bytes(self) -> int:
        """Most SBUF bytes per partition live at once, on the fuller core."""
        return max(program.usage.sbuf_peak_bytes for program in self.programs)

    @property
    def psum_peak_bytes(self) -> int:
        """Most PSUM bytes per partition live at once, on the fuller core."""
        return max(program.usage.psum_peak_bytes for program in self.programs)

    @property
    def psum_peak_banks(self) -> int:
        """Most PSUM banks needed at once, on the fuller core."""
        return max(program.usage.psum_peak_banks for program in self.programs)


class Kernel:
    """A function marked with `nki.jit`: call it, or `kernel[lnc]` it first. Inside another kernel it is inlined."""

    def __init__(self, function: Callable[..., Any], schedule: Edges = (), configs: Configs = NO_CONFIGS) -> None:
        self.function = function
        self.schedule = schedule
        self.configs = configs
        functools.update_wrapper(self, function)

    def __getitem__(self, grid: Any) -> LaunchedKernel:
        return LaunchedKernel(self, _checked_grid(grid))

    def with_schedule(self, edges: Any) -> Kernel:
        """The kernel with dependencies between named instructions: pairs (later, earlier) or (later, [earlier, ...]).

        Raises NkiError: NKI174 for edges that are not pairs of names, and at the launch for a name that no or several
        instructions of a core have, or for another order; NKI173 at the launch for an edge across device loops.
        """
        return Kernel(self.function, self.schedule + checked(edges), self.configs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = running()
        if program is None:
            return execute(self, args, kwargs).outputs
        if self.schedule:  # the schedule of an inner kernel would be ignored
            fail("NKI174", "a kernel with a schedule is called by another kernel; give the outer one the schedule")
        _check_configs(self.configs, program.launch.configs)
        return self.function(*args, **kwargs)


class LaunchedKernel:
    """A kernel with its launch grid."""

    def __init__(self, kernel: Kernel, grid: int) -> None:
        self.kernel = kernel
        self.function = kernel.function
        self.grid = grid
        self.schedule = kernel.schedule
        self.configs = kernel.configs
        functools.update_wrapper(self, kernel.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = running()
        if program is None:
            return execute(self, args, kwargs).outputs
        if self.grid != program.num_programs:
            fail("NKI026", f"kernel[{self.grid}] called by a kernel that runs on {program.num_programs} cores")
        return self.kernel(*args, **kwargs)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    compile_config: CompileConfig | None = None,
    specialization_config: SpecializationConfig | None = None,
    **kwargs: Any,
) -> Any:
    """Mark a function as an NKI kernel.

    compile_config, specialization_config: of `nki.compiler`; they are for AWS's compiler.

    Returns: a `Kernel`; without `fn`, as in ``@nki.jit()``, a decorator.

    Raises: TypeError for an option, naming it: those that AWS's jit had it no longer takes. `mode` it ignores, with a
        DeprecationWarning.
    """
    if "mode" in kwargs:
        del kwargs["mode"]
        warnings.warn("nki.jit ignores mode since NKI 0.3: arguments decide", DeprecationWarning, stacklevel=2)
    if kwargs:
        names = ", ".join(sorted(kwargs))
        raise TypeError(f"nki.jit takes no {names}: removed in NKI 0.3; set NEURON_PLATFORM_TARGET_OVERRIDE instead")
    for name, config, kind in (
        ("compile_config", compile_config, CompileConfig),
        ("specialization_config", specialization_config, SpecializationConfig),
    ):
        if config is not None and not isinstance(config, kind):
            raise TypeError(f"{name}={config!r} is no nki.compiler.{kind.__name__}")
    configs = Configs(compile_config, specialization_config)
    if fn is None:
        return Kernel if configs == NO_CONFIGS else functools.partial(Kernel, configs=configs)
    return Kernel(fn, configs=configs)


def simulate(
    kernel: Any,
    *,
    trace_only: bool = False,
    sentinels: bool | None = None,
    races: bool | None = None,
    overflow: bool | None = None,
    nki: str | None = None,
) -> Callable[..., Any]:
    """A callable that runs `kernel` (jitted, `kernel[lnc]`, or a plain function) on NumPy and torch arrays.

    Args:
        trace_only: compute nothing; arguments may be `ArraySpec`s, and so are the results.
        sentinels, races, overflow: None: `install`'s value, else False.
        nki: the version of NKI whose calls the kernel may use, "0.7" or "0.6"; None: `install`'s value, else "0.7".
        sentinels: let the kernel read unwritten memory, with the values of AWS's simulator: NaN, and 4 for integers.
            For kernels that discard such elements later; without it they are refused (NKI016, and NKI023 for results).
        races: let the two cores race. They run alternately, one instruction each, and a conflict on shared HBM is a
            `RaceWarning` that names both lines; hardware need not keep this order. For kernels whose cores keep the
            order by similar speed; without it they are refused (NKI028).
        overflow: let live tensors need more than SBUF and PSUM have, with a `CapacityWarning`. For kernels that rely on
            the compiler's scheduler to find an order that fits; without it they are refused (NKI018, NKI019).

    Returns: a function of the kernel's arguments that returns its results, in the arguments' kind. Arrays that the
        kernel writes to are updated in place. It raises `execute`'s errors.

    Raises: nothing itself.
    """

    @functools.wraps(_function(kernel))
    def simulated(*args: Any, **kwargs: Any) -> Any:
        allowed: dict[str, Any] = {"sentinels": sentinels, "races": races, "overflow": overflow, "nki": nki}
        return execute(kernel, args, kwargs, trace_only=trace_only, **allowed).outputs

    return simulated


def execute(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    trace_only: bool = False,
    sentinels: bool | None = None,
    races: bool | None = None,
    overflow: bool | None = None,
    nki: str | None = None,
    most: int | None = None,
    alone: int | None = None,
    cut: bool = False,
) -> Execution:
    """Run a kernel and keep its instruction records.

    Args:
        kernel: jitted, `kernel[lnc]`, or a plain function.
        args, kwargs: its arguments. trace_only, sentinels, races, overflow, nki: as in `simulate`.
        most: limit of instructions of all cores, an equal share for each; None: no limit.
        alone: the only core that runs, without data (trace_only); None: all run.
        cut: for a core that runs alone, return its first `most` instructions instead of raising.

    Returns: an `Execution`.

    Raises: NkiError for any broken rule, KernelAssertionError for an assertion in the kernel, the kernel's own
        exceptions unchanged, TraceLimitError for more than `most` instructions, and MeetingError if a core that runs
        alone reaches a barrier with the other.
    """
    check_target()
    if running() is not None:
        fail("NKI026", "a launch from inside a kernel; call the kernel itself, it is inlined")
    function = _function(kernel)
    grid: int | None = kernel.grid if isinstance(kernel, LaunchedKernel) else None
    allowed = _allowed(sentinels=sentinels, races=races, overflow=overflow, nki=nki)
    launch = Launch(_degree(grid), int(grid is not None), numeric=not trace_only, allowed=allowed, most=most)
    launch.configs = getattr(kernel, "configs", launch.configs)
    binder = Binder(launch)
    bound_args, bound_kwargs = binder.call(function, args, kwargs or {})
    try:
        results = _run(launch, lambda: function(*bound_args, **bound_kwargs), alone)
    except TraceLimitError:
        if alone is None or not cut:
            raise
        found = Execution(None, tuple(launch.programs), is_cut=True)
        launch.let_go()
        return found
    schedule: Edges = getattr(kernel, "schedule", ())
    for program in launch.programs:
        if program.left:
            program.refuse_left()
        apply(schedule, program)
        program.usage = check_capacity(program, overflow=allowed.overflow)
    if alone is None:
        check_same_control_flow(launch, results)
    found = Execution(binder.outputs(results[0]), tuple(launch.programs))
    launch.let_go()
    return found


def _allowed(**asked: Any) -> Allowed:
    """The permissions of a launch with these arguments; None is the default."""
    return replace(default(), **{name: value for name, value in asked.items() if value is not None})


def _check_configs(inner: Configs, outer: Configs) -> None:
    """A kernel that another one calls is compiled as that one: a compile_config that differs is refused (NKI185), or a
    warning where the outer one says so. No document compares with a kernel that has none: it never differs."""
    if inner.compile is None or inner.compile == outer.compile:
        return
    detail = f"the kernel that is called has {inner.compile}, the one that is launched {outer.compile}"
    if not outer.overrides:
        fail("NKI185", detail)
    warnings.warn(f"{detail}, which holds", stacklevel=3)


def _function(kernel: Any) -> Callable[..., Any]:
    """The plain function of a kernel, jitted or not."""
    while isinstance(kernel, (Kernel, LaunchedKernel)):
        kernel = kernel.function
    return kernel  # type: ignore[no-any-return]


def check_target() -> None:
    """The platform override, if set, must name trn2."""
    target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    if target not in ("trn2", "gen3"):
        refuse_launch("NKI035", f"NEURON_PLATFORM_TARGET_OVERRIDE={target!r}; only trn2 (gen3) is simulated")


def _checked_grid(grid: Any) -> int:
    if isinstance(grid, tuple) and len(grid) == 1:
        grid = grid[0]
    if type(grid) is not int or grid not in hw.LNC_DEGREES:
        refuse_launch("NKI026", f"kernel[{grid!r}]: trn2 has LNC degrees {hw.LNC_DEGREES}")
    return grid


def _degree(grid: int | None) -> int:
    """LNC degree of a launch: the grid's, which must agree with NEURON_LOGICAL_NC_CONFIG where that is set."""
    text = os.environ.get("NEURON_LOGICAL_NC_CONFIG")
    if text is None:
        return grid or 1
    if text not in ("1", "2"):
        refuse_launch("NKI026", f"NEURON_LOGICAL_NC_CONFIG={text!r} is neither 1 nor 2")
    if grid is not None and grid != int(text):
        refuse_launch("NKI026", f"kernel[{grid}] contradicts NEURON_LOGICAL_NC_CONFIG={text}")
    return int(text)


def _run(launch: Launch, body: Callable[[], Any], alone: int | None) -> list[Any]:
    """Results of all cores that run, in core order."""
    launch.meeting = Rendezvous(launch, lambda program: _run_core(program, body), alone=alone)
    return launch.meeting.run()


def _run_core(program: Program, body: Callable[[], Any]) -> Any:
    before = running()
    set_running(program)
    try:
        with np.errstate(all="ignore"):
            return body()
    except NkiError:
        raise
    except AssertionError as error:
        refusal = _assertion(error)
        if refusal is None:
            raise
        raise refusal from error
    finally:
        set_running(before)


def _assertion(error: AssertionError) -> KernelAssertionError | None:
    """A kernel's assertion as an NkiError; None for one of the simulator's own."""
    stack = traceback.extract_tb(error.__traceback__)
    if _is_ours(stack[-1].filename):
        return None
    frames = [frame for frame in stack if not _is_ours(frame.filename)]
    frame = frames[-1]
    where = f"{frame.filename}:{frame.lineno}"
    if len(frames) > 1:  # the assertion may stand in a helper that all checks share
        where += f", called at {frames[-2].filename}:{frames[-2].lineno}"
    return KernelAssertionError(
        "KERNEL", "assert", str(error) or str(frame.line), location=where, remedy="call the kernel as it asks"
    )


def _is_ours(filename: str) -> bool:
    return Path(filename).is_relative_to(_PACKAGE_PATH)


def check_same_control_flow(launch: Launch, results: list[Any]) -> None:
    """Both cores allocated the same shared tensors and return the same (NKI027)."""
    counts = [program.num_shared for program in launch.programs]
    if len(set(counts)) > 1:
        refuse_launch("NKI027", f"the cores allocated {counts[0]} and {counts[1]} shared tensors")
    for where, trips in trip_counts(tuple(launch.programs)):
        if len(set(trips)) > 1:
            refuse_launch("NKI179", f"the loop at {where} ran {trips[0]} times on core 0, {trips[1]} on core 1")
    returned = [comparable(result) for result in results]
    for core, found in enumerate(returned):
        if found != returned[0]:
            refuse_launch("NKI027", f"core {core} does not return what core 0 returns")
