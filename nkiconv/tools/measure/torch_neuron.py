"""The real device: a trn2 instance through torch-neuronx. It has never run on one; see the README.

AWS has had two backends of the name. The older one records calls through torch_xla and runs them at a sync: the calls
are recorded first and the clock runs from the sync to its end. The native one has a device "neuron": the chain is
compiled by `torch.compile(backend="neuron")`, each call an operator registered with `torch_neuronx.nki_op`. Either way
all outputs are kept, so that nothing is left out, and one run waits for nothing but its own chain.
"""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnsupportedError, raise_all
from ...launches import DEGREE, TARGET, other_degree
from ...problem import DTYPES
from ..doctor import NO_DEVICE, diagnose, lacking
from ..suites.profile_table import sources_hash
from .device import Call

#: Where EC2 instances have their type.
PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
#: Runs of a new graph before it is timed; the first one compiles it.
WARM_UPS = 3
_BF16 = DTYPES["bf16"]
#: Variables of the compilers' caches, for the older and for the native backend.
_CACHE_VARIABLES = ("NEURON_COMPILE_CACHE_URL", "TORCH_NEURONX_NEFF_CACHE_DIR")


class TorchNeuron:
    """A `device.Device` on trn2."""

    def __init__(self, lnc: int) -> None:
        """Import torch and torch_neuronx, for launches of this LNC degree.

        Raises UnsupportedError, naming everything that this machine lacks.
        """
        raise_all("trn2 cannot be measured on this machine", _lacking(lnc))
        os.environ.setdefault(DEGREE, str(lnc))
        os.environ.setdefault(TARGET, "trn2")  # which nki otherwise asks for at each launch
        for variable in _CACHE_VARIABLES:
            os.environ.setdefault(variable, str(Path(tempfile.gettempdir()) / f"nkiconv-neuron-{sources_hash()}"))
        self._torch = _imported("torch")
        neuronx = _imported("torch_neuronx")
        native = hasattr(getattr(self._torch, "neuron", None), "synchronize")
        self._backend: _Native | _Lazy = _Native(self._torch, neuronx) if native else _Lazy()
        self._tensors: dict[int, tuple[Any, Any]] = {}
        self._graphs: dict[Any, tuple[Any, Callable[[], float]]] = {}

    @property
    def name(self) -> str:
        """The instance's type, or the host's name."""
        return _product() or platform.node()

    @property
    def description(self) -> str:
        """The name, the backend and the versions of AWS's packages."""
        versions = {package.name: package.version for package in diagnose().packages}
        found = ", ".join(f"{name} {versions[name]}" for name in ("torch", "torch-neuronx", "nki", "neuronx-cc"))
        return f"{self.name}, {self._backend.name}, {found}"

    @property
    def clock(self) -> str:
        """Wall time: the backend has no other."""
        return f"wall time of a graph, {self._backend.name}"

    def run(self, launched: Any, args: Call, kwargs: dict[str, Any]) -> Any:
        """Outputs of one call, outside any graph."""
        tensors = [self._upload(array) for array in args]
        return to_numpy(self._torch, launched(*tensors, **kwargs))

    def seconds(self, launched: Any, calls: Sequence[Call], kwargs: dict[str, Any]) -> float:
        """One run of the chain; its first run compiles it and warms it up before."""
        key = id(launched), tuple(id(array) for call in calls for array in call), repr(sorted(kwargs.items()))
        if key not in self._graphs:
            tensors = [tuple(self._upload(array) for array in call) for call in calls]
            graph = self._backend.graph(launched, tensors, kwargs)
            self._graphs[key] = (launched, list(calls)), graph  # objects that are kept keep their ids
            for _ in range(WARM_UPS):
                graph()
        return self._graphs[key][1]()

    def forget(self) -> None:
        """Drop graphs and tensors."""
        self._graphs.clear()
        self._tensors.clear()
        self._backend.forget()

    def _upload(self, array: Any) -> Any:
        if id(array) not in self._tensors:
            self._tensors[id(array)] = array, from_numpy(self._torch, array).to(self._backend.device)
        return self._tensors[id(array)][1]


class _Lazy:
    """The older backend: torch_xla records calls and runs them at a sync."""

    name = "torch_xla"

    def __init__(self) -> None:
        self._xla = _imported("torch_xla")
        self._model = _imported("torch_xla.core.xla_model")
        self.device = self._xla.device()

    def graph(self, launched: Any, calls: Sequence[Call], kwargs: dict[str, Any]) -> Callable[[], float]:
        """A function that runs the chain and returns its seconds, from the sync on."""

        def seconds() -> float:
            self._finish()
            outputs = [launched(*call, **kwargs) for call in calls]
            began = time.perf_counter()
            self._finish()
            took = time.perf_counter() - began
            del outputs  # a sync leaves out tensors without references
            return took

        return seconds

    def _finish(self) -> None:
        self._xla.sync()
        self._model.wait_device_ops()

    def forget(self) -> None:
        """Do nothing: torch_xla keeps compiled graphs."""


class _Native:
    """The native backend: a device "neuron", and torch.compile."""

    name = "native backend"
    device: Any = "neuron"
    compiler = "neuron"
    _operators = 0  # registered in this process; their names must differ

    def __init__(self, torch: Any, neuronx: Any) -> None:
        self._torch, self._neuronx = torch, neuronx

    def graph(self, launched: Any, calls: Sequence[Call], kwargs: dict[str, Any]) -> Callable[[], float]:
        """A function that runs the chain and returns its seconds."""
        width = len(calls[0])
        operator = self._operator(launched, width, kwargs)

        def chain(*arrays: Any) -> list[Any]:
            return [operator(*arrays[i : i + width]) for i in range(0, len(arrays), width)]

        compiled = self._torch.compile(chain, backend=self.compiler, fullgraph=True, dynamic=False)
        arrays = [array for call in calls for array in call]

        def seconds() -> float:
            self._torch.neuron.synchronize()
            began = time.perf_counter()
            outputs = compiled(*arrays)
            self._torch.neuron.synchronize()
            took = time.perf_counter() - began
            del outputs
            return took

        return seconds

    def _operator(self, launched: Any, width: int, kwargs: dict[str, Any]) -> Any:
        """The kernel with its keyword arguments as an operator of `width` tensors, one tensor out."""
        tensor = self._torch.Tensor

        def call(*arrays: Any) -> Any:
            return launched(*arrays, **kwargs)

        names = [f"array{i}" for i in range(width)]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind, annotation=tensor) for name in names]
        call.__signature__ = inspect.Signature(parameters, return_annotation=tensor)  # type: ignore[attr-defined]
        call.__annotations__ = dict.fromkeys([*names, "return"], tensor)
        _Native._operators += 1
        return self._neuronx.nki_op(f"nkiconv_bench::call{_Native._operators}", mutates_args=())(call)

    def forget(self) -> None:
        """Drop compiled chains: torch.compile limits the number of graphs of one function."""
        self._torch.compiler.reset()


def from_numpy(torch: Any, array: Any) -> Any:
    """A torch tensor on the host with an array's shape, dtype and values; torch has no name for ml_dtypes' bf16."""
    array = np.ascontiguousarray(array)
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(torch: Any, tensor: Any) -> Any:
    """The inverse of `from_numpy`, from any device."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BF16)
    return tensor.numpy()


def _lacking(lnc: int) -> Iterator[UnsupportedError]:
    """Obstacles to measuring on trn2 in this process, with remedies."""
    found = diagnose()
    yield from lacking(found, "torch", "torch-neuronx", "nki")
    if not found.device:
        yield UnsupportedError(NO_DEVICE)
    product = _product()
    if found.device and product and not product.startswith("trn2"):
        yield UnsupportedError(f"{product}: is not a trn2 instance; measure on one")
    yield from other_degree(lnc)


def _product() -> str:
    try:
        return PRODUCT.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsupportedError(f"{module}: cannot be imported ({error}); reinstall it") from error
