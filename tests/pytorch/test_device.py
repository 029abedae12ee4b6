"""The way to a Neuron device, with a torch_neuronx that records what it is given and runs it in the simulator."""

import dataclasses
import math
import sys
import types
import warnings

import causal
import numpy as np
import pytest
import torch
from layers import SPLITS, short_conv
from tolerances import FLOAT32_SUMS, assert_within_share
from torch.nn import functional as F

from nkiconv import simulator
from nkiconv.errors import UnsupportedError
from nkiconv.planner import estimate as planner_estimate
from nkiconv.planner.estimate import estimate
from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.request import Asked, Request
from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_split, pack_filter
from nkiconv.pytorch.computers import device, dispatch, modes, statistics
from nkiconv.pytorch.computers.arrays import from_numpy, to_numpy
from nkiconv.pytorch.operators.called import Called
from nkiconv.pytorch.operators.convolution import Convolution
from nkiconv.pytorch.operators.pixel_norm import PixelNorm
from nkiconv.pytorch.operators.registrar import registrar
from nkiconv.pytorch.operators.split_call import SplitCall

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
    device.launcher.cache_clear()
    yield found
    device.launcher.cache_clear()


@pytest.fixture(autouse=True)
def fresh_arguments():
    device._arguments.cache_clear()


def asked_of(name, rank, **more):
    plain = {"stride": (1,) * rank, "dilation": (1,) * rank, "lhs_dilation": (1,) * rank}
    return Convolution(name=name, padding=((1, 1),) * rank, **{**plain, "groups": 1, **more})


def assert_estimated(given, problem, operation="conv2d", lnc=2, **asked):
    """A kernel is called with what is estimated best."""
    found = estimate(Request(problem=problem, lnc=lnc, asked=Asked(**asked), operation=operation))
    assert (given["algorithm"], given["config"]) == (found.algorithm, found.config)


def small(*shape, most=3, seed=0):
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed + len(shape))).float()


def scaled(x, scale, shift):
    by_channel = [*scale.shape, *[1] * (x.dim() - 2)]
    return (x * scale.reshape(by_channel) + shift.reshape(by_channel)).relu()


def launch(recorder, asked, x, w, *given, lnc=2, estimated=(), operation=None, **more):
    """What a convolution on the device gives; it is one launch, of this estimate, whose arguments are told too."""
    found = device.convolve(Called(asked, x, w, *given, **more))
    [(_, cores, shapes, told)] = recorder.calls
    assert cores == lnc
    assert_estimated(told, asked.problem(x, w), operation or asked.operation, lnc, **dict(estimated))
    return found, shapes, told


#: Name, shapes of images and filters, what is asked for beside the plain call.
CALLS = [
    ("conv2d", (2, 6, 7, 8), (4, 6, 3, 3), {}),
    ("conv2d", (2, 6, 7, 8), (4, 3, 3, 3), {"groups": 2, "stride": (2, 1), "activation": "relu"}),
    ("conv1d", (2, 6, 9), (4, 6, 3), {}),
    ("depthwise_conv1d", (2, 6, 9), (6, 1, 3), {"groups": 6}),
    ("depthwise_conv2d", (1, 6, 7, 8), (6, 1, 3, 3), {"groups": 6}),
]


@pytest.mark.cover(12)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("name", "x_shape", "w_shape", "more"), CALLS, ids=lambda one: str(one)[:30])
def test_launches(recorder, monkeypatch, lnc, name, x_shape, w_shape, more):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", str(lnc))
    x, w, bias = small(*x_shape), small(*w_shape), torch.arange(w_shape[0]).float()
    asked = asked_of(name, len(x_shape) - 2, **more)
    sums = getattr(F, name.removeprefix("depthwise_"))(x, w, bias, asked.stride, 1, 1, asked.groups)
    residual = None if asked.activation else torch.ones_like(sums)
    expected = sums.relu() if asked.activation else sums + residual
    words = {"activation": asked.activation, "residual": None if asked.activation else "pre_activation", "bias": True}
    operation = "depthwise_conv1d" if name == "depthwise_conv1d" else "conv2d"
    y, shapes, _ = launch(recorder, asked, x, w, bias, residual, lnc=lnc, operation=operation, estimated=words)
    assert torch.equal(y, expected)
    assert [len(shape) for shape in shapes] == [4, 4]


def test_packed_filters_go_instead_of_plain_ones(recorder):
    x, w = torch.ones(1, 70, 5, 5), small(128, 70, 3, 3)
    y, shapes, _ = launch(recorder, asked_of("conv2d", 2), x, w, None, None, pack_filter(w), estimated={"packed": True})
    assert torch.equal(y, F.conv2d(x, w, padding=1))
    assert shapes == [(1, 70, 5, 5), (1, 70, 3, 3, 128)]


def pair_of(name):
    """x and w of few channels."""
    rank = int(name[-2])
    return small(2, 4, *[5] * rank), small(*((4, 6) if "transpose" in name else (6, 4)), *[3] * rank)


@pytest.mark.parametrize(("name", "form", "more"), [
    ("conv1d", "channel", {}), ("conv2d", "image", {}), ("conv2d", "channel", {"x_upsample": 2}),
    ("conv3d", "channel", {}), ("conv_transpose2d", "image", {}),
])  # fmt: skip
def test_a_prologue_goes_along(recorder, name, form, more):
    (x, w), shape = pair_of(name), (4,) if form == "channel" else (2, 4)
    scale, shift = torch.arange(math.prod(shape)).float().reshape(shape) - 2, torch.ones(shape)
    words = {"x_scale": form, "x_shift": form, "x_activation": "relu", **more}
    asked = asked_of(name, int(name[-2]), x_activation="relu", **more)
    plain = asked_of(name, int(name[-2])).operation
    y, _, told = launch(recorder, asked, x, w, None, None, scales=(scale, shift), estimated=words, operation=plain)
    h = scaled(x, scale, shift)
    assert torch.equal(y, getattr(F, name)(F.interpolate(h, scale_factor=2) if more else h, w, padding=1))
    assert (told["x_activation"], told.get("x_upsample")) == ("relu", more.get("x_upsample"))


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d", "conv_transpose2d"])
def test_statistics_come_back(recorder, name):
    x, w = pair_of(name)
    asked, words = asked_of(name, int(name[-2]), return_stats="channel"), {"return_stats": "channel"}
    operation = asked_of(name, int(name[-2])).operation
    (y, stats), _, told = launch(recorder, asked, x, w, None, None, estimated=words, operation=operation)
    assert torch.equal(y, getattr(F, name)(x, w, padding=1))
    each = statistics.Norm("instance", None, 0.0)
    expected = statistics.moments(statistics.stats_by_torch(y), each)
    assert_within_share(statistics.moments(stats, each), expected, FLOAT32_SUMS)
    assert told["return_stats"] == "channel"


@pytest.mark.parametrize("before", [False, True])
def test_a_norm_of_pixels_goes_along(recorder, before):
    x, w = pair_of("conv2d")
    norm, asked = PixelNorm("rms", torch.arange(6).float(), None, 1.0, before), asked_of("conv2d", 2)
    words = {"y_norm": "rms", "y_norm_weight": True, "return_before_norm": before}
    (y, u), _, told = launch(recorder, asked, x, w, None, None, norm=norm, estimated=words)
    expected, read = statistics.by_torch(Called(asked, x, w, norm=norm))
    assert_within_share(y, expected, FLOAT32_SUMS)
    assert torch.equal(u, read)
    assert told["y_norm_eps"] == 1.0


GRADIENTS = {
    "conv1d": ((2, 6, 9), (4, 6, 3), {"stride": (2,)}, torch.float32),
    "depthwise_conv1d": ((2, 6, 9), (6, 1, 3), {"groups": 6}, torch.bfloat16),
    "conv2d": ((2, 6, 7, 8), (4, 3, 3, 2), {"groups": 2, "dilation": (2, 1)}, torch.bfloat16),
    "conv3d": ((2, 6, 3, 5, 4), (6, 1, 3, 3, 3), {"groups": 6}, torch.float16),
}


@pytest.mark.cover(16)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", GRADIENTS)
def test_launches_of_filters_gradients(recorder, name, bias, monkeypatch):
    """Rows are images of height 1; the kernel is told the convolution, and what is estimated best for its gradient; its
    fp32 sums are rounded here."""
    x_shape, size, more, dtype = GRADIENTS[name]
    rank = int(name[-2])
    asked = asked_of(name, rank, **more)
    x, w = (small(*shape).to(dtype) for shape in (x_shape, size))
    wide = [one.double().requires_grad_() for one in (x, w)]
    y = getattr(F, name.removeprefix("depthwise_"))(*wide, None, asked.stride, 1, asked.dilation, asked.groups)
    g = small(*y.shape, seed=1).to(dtype)
    (expected,) = torch.autograd.grad(y, wide[1], g.double())
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    dw, db = dispatch.filters_gradient(asked, x, g, size, dtype, bias)
    assert torch.equal(dw, expected.to(dtype))
    assert torch.equal(db, g.float().sum([0, *range(2, g.dim())])) if bias else db is None
    [(_, cores, shapes, kwargs)] = recorder.calls
    row, ones, zeros = ((1,), (1,), ((0, 0),)) if rank == 1 else ((), (), ())
    assert cores == 2
    assert shapes == [(*one.shape[:2], *row, *one.shape[2:]) for one in (x, g)]
    problem = asked.problem(x, w)
    request = Request(problem=problem.toward("wgrad"), asked=Asked(bias=bias))
    found = estimate(request)
    assert kwargs == {
        "filter_shape": (*size[:2], *row, *size[2:]), "padding": (*zeros, *asked.padding),
        "stride": (*ones, *asked.stride), "rhs_dilation": (*ones, *asked.dilation),
        "lhs_dilation": (*ones, *asked.lhs_dilation), "feature_group_count": asked.groups, "algorithm": found.algorithm,
        "config": found.config, **({"bias_gradient": True} if bias else {}),
    }  # fmt: skip


@pytest.mark.parametrize("recorder", ["native"], indirect=True)
def test_statistics_and_their_norm(recorder, monkeypatch):
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    x, weight = torch.arange(2 * 4 * 30).remainder(7).float().reshape(2, 4, 5, 6), torch.arange(4).bfloat16()
    stats = statistics.channel_stats(x)
    found = statistics.norm_scale_shift(stats, weight, None, statistics.Norm("group", 2, 1e-5))
    assert stats.shape == (2, 2, 4, 3)
    expected = statistics.norm_by_torch(statistics.stats_by_torch(x), weight, None, statistics.Norm("group", 2, 1e-5))
    assert_within_share(found, expected, FLOAT32_SUMS)
    assert [call[1] for call in recorder.calls] == [2, 2]
    assert recorder.calls[1][3].keys() == {"weight", "norm", "num_groups", "eps"}


def test_arguments_are_pythons_own(recorder, monkeypatch):
    """AWS's parser may read a NumPy integer as None."""
    config = (("block", np.int64(32)), ("buffers", np.int32(2)))
    monkeypatch.setattr(device, "estimated", lambda request: types.SimpleNamespace(algorithm="banded", config=config))
    device.convolve(Called(asked_of("depthwise_conv1d", 1, groups=4), torch.ones(1, 4, 40), torch.ones(4, 1, 3)))
    kwargs = recorder.calls[0][3]
    assert kwargs["config"] == (("block", 32), ("buffers", 2))
    assert [type(value) for _, value in kwargs["config"]] == [int, int]


def test_the_default_rule_goes_without_a_config(recorder, monkeypatch):
    monkeypatch.setenv("NKICONV_PLAN", "kernel")
    device.convolve(Called(asked_of("conv2d", 2), torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3)))
    assert "config" not in recorder.calls[0][3]


@pytest.mark.parametrize(
    ("variable", "words"), [("NKICONV_PLAN", "estimate, timed, kernel"), ("NEURON_LOGICAL_NC_CONFIG", "1 or 2")]
)
def test_variables_are_checked(recorder, monkeypatch, variable, words):
    monkeypatch.setenv(variable, "3")
    with pytest.raises(UnsupportedError, match=f"{variable}='3': .*{words}"):
        device.convolve(Called(asked_of("conv2d", 2), torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3)))
    assert recorder.calls == []


class On:
    def __init__(self, kind):
        self.device = types.SimpleNamespace(type=kind)


@pytest.mark.parametrize("kind", ["neuron", "xla", "privateuseone"])
def test_tensors_on_a_neuron_device_go_there(kind):
    assert modes.computer(On(kind)) == "device"


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedError, match=r"input.device=.*cuda.*: kernels run on Neuron devices"):
        modes.computer(On("cuda"))


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


@pytest.mark.parametrize("final", [False, True])
def test_gated_rows(recorder, final):
    bcx, w, state = small(2, 18, 9), small(6, 1, 3), torch.ones(2, 6, 2) if final else None
    asked = dataclasses.replace(asked_of("depthwise_conv1d", 1, groups=6), padding=((2, 0),))
    y, found = device.convolve_gated(asked, bcx[:, :6], bcx, w, None, state, "BCx", final)
    expected, kept = short_conv(bcx, w, None, state)
    assert torch.equal(y, expected)
    assert found is None if not final else torch.equal(found, kept)
    [(_, _, shapes, kwargs)] = recorder.calls
    assert (shapes[0], kwargs["chunks"]) == ((2, 18, 1, 9), "BCx")


CAUSAL = {
    "plain": {},
    "states": {"initial_states": causal.integers(1, 3, 3, seed=3), "return_final_states": True},
    "packed": {"cu_seqlens": torch.tensor([0, 2, 7])},
}


@pytest.mark.parametrize("recorder", ["native"], indirect=True)
@pytest.mark.parametrize("how", CAUSAL)
def test_causal_rows(recorder, how, monkeypatch):
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    x, w, bias = (causal.integers(*shape) for shape in ((1, 3, 7), (3, 4), (3,)))
    found = causal_conv1d_fn(x, w, bias, **CAUSAL[how])
    if how == "states":
        expected = causal.rows(x, w, bias, CAUSAL[how]["initial_states"])
    else:
        found, expected = [found], causal.sequences(x, [0, 2, 7] if how == "packed" else [0, 7], w, bias)[:1]
    assert all(torch.equal(one, other.float()) for one, other in zip(found, expected, strict=True))
    [(_, _, _, kwargs)] = recorder.calls
    assert kwargs.get("strict_nonfinite", False) == (how == "packed")
    states = ("initial_state" in kwargs, kwargs.get("return_final_state"))
    assert states == ((True, True) if how == "states" else (False, None))


@pytest.mark.parametrize("recorder", ["native"], indirect=True)
def test_split_rows(recorder, monkeypatch):
    """Kernels are launched once, with what they need and nothing else; that of steps for as few tokens as it takes."""
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    x, w, state = (torch.randn(shape) for shape in ((2, 47, 11), (47, 4), (2, 47, 3)))
    with torch.no_grad():
        given = SplitCall(x, w, None, state, SPLITS, "silu", 1e-6, "NCW", True, None, None, None)
        parts = device.causal_conv1d_split(given)[:3]
        whole = causal_conv1d_split(x, w, splits=SPLITS, initial_states=state)
    assert all(torch.equal(one, other) for one, other in zip(parts, whole, strict=True))
    told = {kernel.__name__: (cores, " ".join(sorted(given))) for kernel, cores, _, given in recorder.calls}
    assert told == {
        "causal_conv1d_split_heads": (2, "activation eps initial_state layout return_final_state splits"),
        "causal_conv1d_split_step": (2, "activation eps layout splits"),
    }
