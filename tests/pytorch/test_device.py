"""The way to a Neuron device, with a torch_neuronx that records what it is given and runs it in the simulator."""

import sys
import types
import warnings

import numpy as np
import pytest
import torch
from gradchecks import assert_gradients
from layers import FUNCTIONS, LAYERS, SPLITS
from tolerances import FLOAT32_SUMS
from torch.nn import functional as F
from torch_exact import integers

from nkiconv import simulator
from nkiconv.errors import UnsupportedError
from nkiconv.planner import estimate as planner_estimate
from nkiconv.planner.estimate import estimate
from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.request import Asked, Request
from nkiconv.pytorch import causal_conv1d_split, pack_filter
from nkiconv.pytorch.computers import device, modes
from nkiconv.pytorch.computers.arrays import from_numpy, to_numpy
from nkiconv.pytorch.operators.called import Called, SplitCall
from nkiconv.pytorch.operators.convolution import Convolution
from nkiconv.pytorch.operators.registrar import registrar

pytestmark = pytest.mark.simulator_only


class Recorder:
    def __init__(self):
        self.calls = []

    def launched(self, kernel, lnc):
        def run(*tensors, **kwargs):
            self.calls.append(
                (kernel, lnc, [tuple(one.shape) for one in tensors if isinstance(one, torch.Tensor)], kwargs)
            )
            arrays = [tuple(map(to_numpy, one)) if isinstance(one, tuple) else to_numpy(one) for one in tensors]
            named = {name: to_numpy(one) if isinstance(one, torch.Tensor) else one for name, one in kwargs.items()}
            found = simulator.execute(kernel[lnc], tuple(arrays), named).outputs
            return tuple(map(from_numpy, found)) if isinstance(found, tuple) else from_numpy(found)

        return run


@pytest.fixture(params=["native", "xla"])
def recorder(request, monkeypatch):
    """The native backend wraps kernels; under torch_xla they are called as they are."""
    found = Recorder()
    fake = types.ModuleType("torch_neuronx")

    class Wrapped:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, lnc):
            return found.launched(self.kernel, lnc)

    if request.param == "native":
        fake.wrap_nki = Wrapped
    else:
        kernels, chosen = {one: one.kernel for one in OPERATIONS.values()}, planner_estimate.chosen

        def chosen_apart(asked):
            """With the kernels as they are, as the planner's own process has them."""
            with monkeypatch.context() as apart:
                for operation, kernel in kernels.items():
                    apart.setattr(operation, "kernel", kernel)
                return chosen(asked)

        monkeypatch.setattr(planner_estimate, "chosen", chosen_apart)
        for operation, kernel in kernels.items():
            monkeypatch.setattr(operation, "kernel", Wrapped(kernel), raising=False)
    monkeypatch.setitem(sys.modules, "torch_neuronx", fake)
    device.LAUNCHERS.clear()
    yield found
    device.LAUNCHERS.clear()


@pytest.fixture(autouse=True)
def fresh_arguments():
    device._arguments.cache_clear()


def asked_of(name, rank, **more):
    plain = {"stride": (1,) * rank, "dilation": (1,) * rank, "lhs_dilation": (1,) * rank}
    return Convolution(name=name, padding=((1, 1),) * rank, **{**plain, "groups": 1, **more})


#: Of what is asked for, what a kernel is given a tensor for, and what it is told.
TENSORS = ("bias", "residual", "initial_state", "initial_frames", "x_scale", "x_shift", "y_norm_weight", "y_norm_bias")
NUMBERS = ("activation", "x_activation", "return_stats", "return_final_state", "y_norm", "chunks", "strict_nonfinite")


@pytest.mark.cover(28)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    ("recorder", "name"), [*(("native", one) for one in LAYERS), *(("xla", one) for one in FUNCTIONS)],
    indirect=["recorder"],
)  # fmt: skip
def test_layers(recorder, name, lnc, monkeypatch):
    """Results and gradients; each kernel is launched with what is estimated best for what it is given."""
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", str(lnc))
    monkeypatch.setattr(device, "_arguments", device._arguments.__wrapped__)
    requests, estimated = [], device.estimated
    monkeypatch.setattr(device, "estimated", lambda request: requests.append(request) or estimated(request))
    layer = LAYERS[name]
    assert_gradients(layer.ours, layer.torchs, layer.given, 4 * FLOAT32_SUMS)
    assert {cores for _, cores, _, _ in recorder.calls} == {lnc}
    planned = [told for *_, told in recorder.calls if "algorithm" in told]
    assert requests or name.startswith(("split", "mlp"))
    for told, request in zip(planned, requests, strict=True):
        found = estimate(request)
        assert (told["algorithm"], told["config"], request.lnc) == (found.algorithm, found.config, lnc)
        asked = request.asked
        assert [bool(getattr(asked, one)) for one in TENSORS] == [
            one in told or (one, True) == ("bias", told.get("bias_gradient")) for one in TENSORS
        ]
        assert [getattr(asked, one) or None for one in NUMBERS] == [told.get(one) for one in NUMBERS]


def test_packed_filters_go_instead_of_plain_ones(recorder):
    x, (w,) = torch.ones(1, 70, 5, 5), integers((128, 70, 3, 3))
    y = device.BACKEND.convolve(Called(asked_of("conv2d", 2), x, w, packed=pack_filter(w)))
    assert torch.equal(y, F.conv2d(x, w, padding=1))
    [(_, _, shapes, told)] = recorder.calls
    assert shapes == [(1, 70, 5, 5), (1, 70, 3, 3, 128)]
    found = estimate(Request(problem=asked_of("conv2d", 2).problem(x, w), asked=Asked(packed=True)))
    assert (told["algorithm"], told["config"]) == (found.algorithm, found.config)


def test_arguments_are_pythons_own(recorder, monkeypatch):
    """AWS's parser may read a NumPy integer as None."""
    config = (("block", np.int64(32)), ("buffers", np.int32(2)))
    monkeypatch.setattr(device, "estimated", lambda request: types.SimpleNamespace(algorithm="banded", config=config))
    rows = Called(asked_of("depthwise_conv1d", 1, groups=4), torch.ones(1, 4, 40), torch.ones(4, 1, 3))
    device.BACKEND.convolve(rows)
    kwargs = recorder.calls[0][3]
    assert kwargs["config"] == (("block", 32), ("buffers", 2))
    assert [type(value) for _, value in kwargs["config"]] == [int, int]


def test_the_default_rule_goes_without_a_config(recorder, monkeypatch):
    monkeypatch.setenv("NKICONV_PLAN", "kernel")
    device.BACKEND.convolve(Called(asked_of("conv2d", 2), torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3)))
    assert "config" not in recorder.calls[0][3]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("NKICONV_PLAN", "3", "NKICONV_PLAN='3': .*estimate, timed, kernel"), ("NEURON_CC_FLAGS", "--lnc=1", "_EVRF066")],
)
def test_variables_are_checked(recorder, monkeypatch, variable, value, words):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedError, match=words):
        device.BACKEND.convolve(Called(asked_of("conv2d", 2), torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3)))
    assert recorder.calls == []


@pytest.mark.parametrize("kind", ["neuron", "xla", "privateuseone"])
def test_tensors_on_a_neuron_device_go_there(kind):
    assert modes.computer(types.SimpleNamespace(device=types.SimpleNamespace(type=kind))) == "device"


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedError, match=r"input.device=.*cuda.*: kernels run on Neuron devices"):
        modes.computer(types.SimpleNamespace(device=types.SimpleNamespace(type="cuda")))


def test_operators_are_registered_so_that_the_devices_compiler_sees_the_kernel(monkeypatch):
    fake = types.ModuleType("torch_neuronx")
    monkeypatch.setitem(sys.modules, "torch_neuronx", fake)
    assert registrar() is torch.library.custom_op
    fake.nki_op = object()
    assert registrar() is fake.nki_op


def test_a_torch_neuronx_that_cannot_be_imported_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch_neuronx", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registrar() is torch.library.custom_op
    (tmp_path / "torch_neuronx.py").write_text("raise RuntimeError('a stub')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"torch_neuronx: cannot be imported \(RuntimeError: a stub\)"):
        assert registrar() is torch.library.custom_op


@pytest.mark.parametrize("recorder", ["native"], indirect=True)
def test_split_rows(recorder, monkeypatch):
    """Kernels are launched once, with what they need and nothing else; that of steps for as few tokens as it takes."""
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    x, w, state = (torch.randn(shape) for shape in ((2, 47, 11), (47, 4), (2, 47, 3)))
    with torch.no_grad():
        given = SplitCall(x, w, None, state, SPLITS, "silu", 1e-6, "NCW", True, None, None, None, None)
        parts = device.BACKEND.causal_conv1d_split(given)[:3]
        whole = causal_conv1d_split(x, w, splits=SPLITS, initial_states=state)
    assert all(torch.equal(one, other) for one, other in zip(parts, whole, strict=True))
    told = {kernel.__name__: (cores, " ".join(sorted(given))) for kernel, cores, _, given in recorder.calls}
    assert told == {
        "causal_conv1d_split_heads": (2, "activation eps initial_state layout return_final_state splits"),
        "causal_conv1d_split_step": (2, "activation eps layout splits"),
    }
