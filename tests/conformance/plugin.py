"""A pytest plugin for a checkout of nki-library: its own tests, with nkiconv's simulator where they ask for AWS's.

    PYTHONPATH=CHECKOUT:CHECKOUT/src:tests/conformance pytest -p plugin --test-mode simulation -m fast test/integration

Their harness has a mode "simulation" for a package, `nki_cpu_simulator`, that is not public; here that name means
nkiconv.simulator. Other names that their tests import and nobody outside can have are stood in for by the little that a
run in that mode needs of them.
"""

from __future__ import annotations

import sys
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
        return lambda **arguments: simulator.execute(self.kernel[lnc], (), arguments).outputs


def _is_float(dtype: Any) -> bool:
    return np.dtype(dtype).kind == "f" or "float" in np.dtype(dtype).name


def _unknown_dtype(name: str) -> Any:
    """Of neuron_dtypes: fp8 and fp4 packed by four, which trn2 has none of and tests of trn3 name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return np.dtype([(name, np.uint32)])


def _stand_in() -> None:
    """All modules that the tests import."""
    simulator.install()
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
        "neuron_dtypes",
        bfloat16=ml_dtypes.bfloat16,
        float8_e4m3=ml_dtypes.float8_e4m3,
        float8_e5m2=ml_dtypes.float8_e5m2,
        is_float_type=_is_float,
        static_cast=lambda values, dtype: np.asarray(values).astype(dtype),
        __getattr__=_unknown_dtype,
    )
    for name in ("neuronxcc", "neuronxcc.nki"):
        _module(name)
    _module("neuronxcc.nki.typing", tensor=object, mutable_tensor=object)
    _module("test.utils.scripts")
    _module("test.utils.scripts.remote_lock_scripts", LockResult=object, LockStatus=object)
    _module("test.utils.perf_analysis_private", analyze_trace=None)


_stand_in()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems() -> None:
    """Without a compilation, as in this mode, the harness reads an attribute that only a compilation sets."""
    orchestrator = sys.modules["test.utils.test_orchestrator"].Orchestrator
    if not hasattr(orchestrator, "_compiled_kernel"):
        orchestrator._compiled_kernel = None
