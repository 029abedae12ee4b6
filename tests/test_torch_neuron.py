"""The real device's code with everything of AWS's replaced: arrays to tensors and back, chains, refusals.

torch on the CPU stands for the device; neither backend of torch-neuronx has run here.
"""

import dataclasses
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nkiconv.errors import UnsupportedError
from nkiconv.problem import DTYPES
from nkiconv.tools import doctor
from nkiconv.tools.measure import torch_neuron
from nkiconv.tools.suites.profile_table import sources_hash

pytestmark = pytest.mark.simulator_only


class Kernel:
    """A launched kernel that works on torch's tensors and counts its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, x, w, factor):
        self.calls.append((x, w))
        return x * w * factor


@pytest.fixture
def environment(monkeypatch):
    """Changes of the environment, and what `_lacking` says, end with the test."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(torch_neuron, "_lacking", lambda lnc: iter(()))
    monkeypatch.setitem(sys.modules, "torch_neuronx", SimpleNamespace(nki_op=nki_op))


@pytest.fixture
def synced(environment, monkeypatch):
    """torch_xla on the CPU; the list fills with the name of each of its functions that is called."""
    called = []
    monkeypatch.setitem(
        sys.modules, "torch_xla", SimpleNamespace(device=lambda: "cpu", sync=lambda: called.append("sync"))
    )
    model = SimpleNamespace(wait_device_ops=lambda: called.append("wait"))
    monkeypatch.setitem(sys.modules, "torch_xla.core.xla_model", model)
    return called


@pytest.fixture
def native(environment, monkeypatch):
    """The native backend on the CPU, with torch.compile's own "eager"; the list fills with each synchronize."""
    called = []
    monkeypatch.setattr(torch, "neuron", SimpleNamespace(synchronize=lambda: called.append("wait")), raising=False)
    monkeypatch.setattr(torch_neuron._Native, "device", "cpu")
    monkeypatch.setattr(torch_neuron._Native, "compiler", "eager")
    return called


def nki_op(name, mutates_args):
    """As torch_neuronx's, with torch's own custom operators."""

    def register(function):
        operator = torch.library.custom_op(name, function, mutates_args=mutates_args)
        operator.register_fake(lambda x, w: torch.empty_like(x))
        return operator

    return register


def arrays(dtype, count=3):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6)).astype(DTYPES[dtype])
    return [(rng.standard_normal((4, 6)).astype(DTYPES[dtype]), w) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_arrays_come_back_as_they_went(dtype):
    array = np.array([[0.0, -0.0, 1.5], [np.inf, np.nan, -3e-3]]).astype(DTYPES[dtype])
    for one in (array, array.T, array[:, ::2], array[:, ::-1], array[np.newaxis]):
        tensor = torch_neuron.from_numpy(torch, one)
        assert (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) == (one.shape, str(one.dtype))
        back = torch_neuron.to_numpy(torch, tensor)
        assert (back.dtype, back.shape, back.tobytes()) == (one.dtype, one.shape, one.tobytes())
    assert torch_neuron.from_numpy(torch, array)[0, 2] == 1.5


@pytest.mark.usefixtures("synced")
def test_a_run_gives_the_kernel_s_outputs():
    device = torch_neuron.TorchNeuron(2)
    x, w = arrays("bf16")[0]
    y = device.run(Kernel(), (x, w), {"factor": 2})
    assert y.dtype == DTYPES["bf16"]
    np.testing.assert_array_equal(y, x * w * x.dtype.type(2))


def test_the_lazy_backend_records_a_chain_and_times_its_sync(synced):
    device, kernel = torch_neuron.TorchNeuron(2), Kernel()
    recorded = []
    calls, seconds = arrays("fp32"), []

    def launched(x, w, factor):
        recorded.append(len(synced))
        return kernel(x, w, factor)

    for again in (calls, list(calls)):
        seconds.append(device.seconds(launched, again, {"factor": 3}))
    assert min(seconds) > 0
    runs = torch_neuron.WARM_UPS + 2
    assert synced == ["sync", "wait", "sync", "wait"] * runs  # before the chain, and after it
    assert recorded == [4 * i + 2 for i in range(runs) for _ in calls]  # all calls lie between the two
    assert len({id(x) for x, _ in kernel.calls}) == 3  # uploaded once, and not merged
    assert len({id(w) for _, w in kernel.calls}) == 1
    device.seconds(launched, calls[:2], {"factor": 3})
    assert len(kernel.calls) == runs * 3 + (torch_neuron.WARM_UPS + 1) * 2  # another chain is another graph
    device.seconds(launched, calls[:2], {"factor": 4})
    assert len(kernel.calls) == runs * 3 + (torch_neuron.WARM_UPS + 1) * 2 * 2  # and so are other arguments
    device.forget()
    device.seconds(launched, calls, {"factor": 3})
    assert len({id(x) for x, _ in kernel.calls}) == 6


def test_the_clock_stops_when_the_device_has_finished(synced, monkeypatch):
    """Time that passes while calls are recorded does not count; time that passes in the wait does."""
    now = [0.0]
    monkeypatch.setattr(torch_neuron.time, "perf_counter", lambda: now[0])

    def wait():
        now[0] += 5.0

    sys.modules["torch_xla.core.xla_model"].wait_device_ops = wait

    def launched(x, w):
        now[0] += 100.0
        return x * w

    assert torch_neuron.TorchNeuron(2).seconds(launched, arrays("fp32"), {}) == 5.0


def test_the_native_backend_compiles_a_chain(native):
    device, kernel = torch_neuron.TorchNeuron(2), Kernel()
    calls = arrays("bf16")
    assert device.seconds(kernel, calls, {"factor": 2}) > 0
    runs = torch_neuron.WARM_UPS + 1
    assert native == ["wait", "wait"] * runs
    assert len(kernel.calls) == 3 * runs
    got = [torch_neuron.to_numpy(torch, x).tobytes() for x, _ in kernel.calls[-3:]]
    assert got == [x.tobytes() for x, _ in calls]
    device.seconds(kernel, calls, {"factor": 2})
    assert len(kernel.calls) == 3 * (runs + 1)


@pytest.mark.usefixtures("native")
def test_the_native_backend_takes_more_chains_than_torch_compiles_of_one_function(monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    device, calls = torch_neuron.TorchNeuron(2), arrays("fp32", 2)
    for _ in range(3):
        device.forget()
        for count in (1, 2):
            assert device.seconds(Kernel(), calls[:count], {"factor": 1}) > 0


@pytest.mark.usefixtures("synced")
def test_the_environment_is_completed_before_anything_is_imported(monkeypatch):
    monkeypatch.setitem(os.environ, "NEURON_COMPILE_CACHE_URL", "mine")
    device = torch_neuron.TorchNeuron(1)
    assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "1"
    assert os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn2"
    assert os.environ["NEURON_COMPILE_CACHE_URL"] == "mine"
    assert os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"].endswith(sources_hash())
    assert device.name in device.description
    assert f"torch_xla, torch {torch.__version__}" in device.description


@pytest.mark.usefixtures("environment")
def test_a_package_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    with pytest.raises(UnsupportedError, match=r"^torch_neuronx: cannot be imported \(.*\); reinstall it"):
        torch_neuron.TorchNeuron(2)


def test_nothing_is_lacking_on_a_whole_machine(monkeypatch, tmp_path):
    assert lacking(monkeypatch, tmp_path) == []


# why, what differs from a whole machine, patterns
LACKING = [
    ("no device", {"device": False}, ["/dev/neuron0: there is no Neuron device here; use a trn2 instance"]),
    ("no torch-neuronx", {"torch-neuronx": "missing"}, ["torch-neuronx: is missing; install it from AWS's own"]),
    ("placeholder", {"nki": doctor.PLACEHOLDER}, ["nki: is PyPI's placeholder of that name, not AWS's package;"]),
    ("no torch", {"torch": "missing"}, ["torch: is missing; install the one that torch-neuronx wants"]),
    ("simulator", {"provider": "simulator"}, ["nki: AWS's must run the kernels, and because I say so; unset"]),
    ("trn1", {"product": "trn1.2xlarge"}, ["trn1.2xlarge: is not a trn2 instance"]),
    ("other degree", {"NEURON_LOGICAL_NC_CONFIG": "1"},
     ["NEURON_LOGICAL_NC_CONFIG is 1; --lnc in NEURON_CC_FLAGS is unset; the launch's LNC degree is 2: these"]),
    ("other flags", {"NEURON_CC_FLAGS": "--lnc=1"},
     ["NEURON_LOGICAL_NC_CONFIG is unset, taken for 2; --lnc in NEURON_CC_FLAGS is 1; the launch's LNC degree is 2"]),
    ("two", {"device": False, "nki": "missing"}, ["nki: is missing", "/dev/neuron0: there is no"]),
]  # fmt: skip


@pytest.mark.cover(3, keep=["simulator"])
@pytest.mark.parametrize(("changes", "expected"), [row[1:] for row in LACKING], ids=[row[0] for row in LACKING])
def test_what_a_machine_lacks_has_a_name(monkeypatch, tmp_path, changes, expected):
    found = lacking(monkeypatch, tmp_path, **changes)
    assert len(found) == len(expected)
    assert all(error.startswith(start) for error, start in zip(found, expected, strict=True)), found


def lacking(monkeypatch, tmp_path, **changes):
    """What `_lacking` says of a machine that has everything but for the changes."""
    packages = tuple(
        doctor.Package(name, "a test", "1", changes.get(name, doctor.INSTALLED))
        for name in ("torch", "torch-neuronx", "nki", "neuronx-cc")
    )
    found = dataclasses.replace(
        doctor.diagnose(), packages=packages, provider=changes.get("provider", "aws"), reason="because I say so",
        device=changes.get("device", True),
    )  # fmt: skip
    monkeypatch.setattr(torch_neuron, "diagnose", lambda: found)
    product = tmp_path / "product_name"
    product.write_text(changes.get("product", "trn2.48xlarge") + "\n")
    monkeypatch.setattr(torch_neuron, "PRODUCT", product)
    for name in [name for name in changes if name.startswith("NEURON_")]:
        monkeypatch.setenv(name, changes[name])
    return [str(error) for error in torch_neuron._lacking(2)]
