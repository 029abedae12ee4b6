"""A pytest plugin for a checkout of nki-library: its own tests, with nkiconv's simulator where they ask for AWS's.

    PYTHONPATH=CHECKOUT:CHECKOUT/src:tests/conformance pytest -p plugin --test-mode simulation -m fast test/integration

Their harness has a mode "simulation" for a package, `nki_cpu_simulator`, that is not public; here that name means
nkiconv.simulator. Other names that their tests import and nobody outside can have are stood in for by the little that a
run in that mode needs of them. Two things that NKI 0.3 refuses and kernels of the checkout still do are put right on
the way, and counted.
"""

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkiconv import simulator

#: Options of nki.jit that nki-library passes and that say nothing about results.
_IGNORED = ("mode", "debug_kernel", "experimental_flags", "show_compiler_tb")


def _module(name: str, **attributes: Any) -> ModuleType:
    """A module of this name, found by import from now on, also from the package that it is in."""
    made = ModuleType(name)
    made.__path__ = []
    vars(made).update(attributes)
    sys.modules[name] = made
    package, _, leaf = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], leaf, made)
    return made


def jit(function: Any = None, **options: Any) -> Any:
    """nki.jit, which also takes options that NKI 0.3 has dropped and nki-library still passes."""
    kept = {name: value for name, value in options.items() if name not in _IGNORED}
    if function is None:
        return lambda decorated: simulator.jit(decorated, **kept)
    return simulator.jit(function, **kept)


class _Launcher:
    """What `nki.cpu_simulate(kernel)` gives, of a kernel or of a plain function: launched on so many cores by [lnc]."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel if hasattr(kernel, "__getitem__") else simulator.jit(kernel)

    def __getitem__(self, lnc: int) -> Any:
        return functools.partial(_run, self.kernel[lnc])


def _run(kernel: Any, **arguments: Any) -> Any:
    """A kernel's results, as AWS's simulator makes them: it refuses no blank reads, races or full memories."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outputs = simulator.execute(kernel, (), arguments, sentinels=True, races=True, overflow=True).outputs
    for one in told:
        if one.category in _WARNED:
            _WARNED[one.category].append(str(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return outputs


def _enum_of(arguments: dict[str, Any]) -> bool:
    """dge_mode=3 of NKI 0.2 is dge_mode.none since 0.3."""
    if type(arguments.get("dge_mode")) is not int:
        return False
    arguments["dge_mode"] = simulator.isa.dge_mode(arguments["dge_mode"])
    return True


def _int_of(arguments: dict[str, Any]) -> bool:
    """memset(uint32 tensor, 0.0) of NKI 0.2 is memset(tensor, 0) since 0.3."""
    dst, value = arguments["dst"], arguments["value"]
    if "int" not in str(dst.dtype) or not isinstance(value, float) or value != int(value):
        return False
    arguments["value"] = int(value)
    return True


def _adapted(name: str, change: Callable[[dict[str, Any]], bool]) -> None:
    """Take what NKI 0.2 took of an instruction and 0.3 refuses, where kernels of the checkout still have it."""
    instruction = getattr(simulator.isa, name)
    signature = inspect.signature(instruction)

    @functools.wraps(instruction)
    def adapted(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        if change(bound.arguments):
            _ADAPTED.append(name)
        return instruction(*bound.args, **bound.kwargs)

    setattr(simulator.isa, name, adapted)


def _unknown_dtype(name: str) -> Any:
    """Of neuron_dtypes: fp8 and fp4 packed by four, which trn2 has none of and tests of trn3 name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return np.dtype([(name, np.uint32)])


def _stand_in() -> None:
    """All modules that the tests import."""
    simulator.install(nki="0.6")  # which nki-library is written for
    nki = sys.modules["nki"]
    vars(nki).update(jit=jit, cpu_simulate=_Launcher)
    for name in ("compiler", "tensor"):
        _module(f"nki.{name}")
    package = _module("nki_cpu_simulator", nki=nki)
    # the dtypes of nki.language under the names that the harness looks for
    _module("nki.language.dtypes", **{name: one for name, one in vars(nki.language).items() if isinstance(one, str)})
    for name in ("builtin", "compiler", "isa", "isa.constants", "language", "language.dtypes", "tensor", "typing"):
        found = sys.modules.get(f"nki.{name}") or _module(f"nki.{name}")
        sys.modules[f"{package.__name__}.nki.{name}"] = found
    sys.modules[f"{package.__name__}.nki"] = nki
    _module(
        "neuron_dtypes", bfloat16=ml_dtypes.bfloat16, float8_e4m3=ml_dtypes.float8_e4m3,
        float8_e5m2=ml_dtypes.float8_e5m2, __getattr__=_unknown_dtype,
        is_float_type=lambda dtype: np.dtype(dtype).kind == "f" or "float" in np.dtype(dtype).name,
        static_cast=lambda values, dtype: np.asarray(values).astype(dtype),
    )  # fmt: skip
    for name in ("neuronxcc", "neuronxcc.nki"):
        _module(name)
    _module("neuronxcc.nki.typing", tensor=object, mutable_tensor=object)
    _module("test.utils.scripts")
    _module("test.utils.scripts.remote_lock_scripts", LockResult=object, LockStatus=object)
    _module("test.utils.perf_analysis_private", analyze_trace=None)


def _difference(found: Any, wanted: Any) -> float:
    """The largest difference over the largest number wanted, where both are finite."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    both = np.isfinite(found) & np.isfinite(wanted)
    if not both.any():
        return 0.0
    largest = np.abs(wanted[both]).max()
    return float(np.abs(found[both] - wanted[both]).max() / (largest or 1.0))


def _record_differences() -> list[float]:
    """What their comparisons find from now on, in order."""
    comparators = importlib.import_module("test.integration.nkilib.utils.comparators")
    compare, differences = comparators.maxAllClose, []

    def recorded(found: Any, wanted: Any, *arguments: Any, **options: Any) -> bool:
        if np.shape(found) == np.shape(wanted):
            differences.append(_difference(found, wanted))
        return bool(compare(found, wanted, *arguments, **options))

    comparators.maxAllClose = recorded
    return differences


_ADAPTED: list[str] = []
#: warnings that a report counts
_WARNED: dict[type[Warning], list[str]] = {simulator.RaceWarning: [], simulator.CapacityWarning: []}
_adapted("dma_copy", _enum_of)
_adapted("dma_transpose", _enum_of)
_adapted("memset", _int_of)
_stand_in()
_DIFFERENCES = _record_differences()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Each test's report says how far its results are from the reference, and what to know of its kernel."""
    for of_another in (_DIFFERENCES, _ADAPTED, *_WARNED.values()):
        of_another.clear()
    try:
        return (yield)
    finally:
        if _DIFFERENCES:
            item.user_properties.append(("difference", max(_DIFFERENCES)))
        if _ADAPTED:
            item.user_properties.append(("adapted", 1))
        item.user_properties.extend((kind.__name__, 1) for kind, messages in _WARNED.items() if messages)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems() -> None:
    """Without a compilation, as in this mode, the harness reads an attribute that only a compilation sets."""
    orchestrator = sys.modules["test.utils.test_orchestrator"].Orchestrator
    if not hasattr(orchestrator, "_compiled_kernel"):
        orchestrator._compiled_kernel = None
