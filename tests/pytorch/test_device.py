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
from nkiconv.pytorch.operators.convolution import Convolution
from nkiconv.pytorch.operators.pixel_norm import PixelNorm, by_torch
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


CALLS = [
    ("conv2d", 2, (2, 6, 7, 8), (4, 6, 3, 3), {}, F.conv2d),
    ("conv2d", 2, (2, 6, 7, 8), (4, 3, 3, 3), {"groups": 2, "stride": (2, 1), "activation": "relu"}, F.conv2d),
    ("conv1d", 1, (2, 6, 9), (4, 6, 3), {}, F.conv1d),
    ("depthwise_conv1d", 1, (2, 6, 9), (6, 1, 3), {"groups": 6}, F.conv1d),
    ("depthwise_conv2d", 2, (1, 6, 7, 8), (6, 1, 3, 3), {"groups": 6}, F.conv2d),
]


@pytest.mark.cover(12)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("name", "rank", "x_shape", "w_shape", "more", "theirs"), CALLS, ids=lambda one: str(one)[:30])
def test_launches(recorder, monkeypatch, lnc, name, rank, x_shape, w_shape, more, theirs):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", str(lnc))
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-3, 4, shape, generator=generator).float() for shape in (x_shape, w_shape))
    bias = torch.arange(w_shape[0]).float()
    asked = asked_of(name, rank, **more)
    expected = theirs(x, w, bias, asked.stride, 1, 1, asked.groups)
    expected = expected.relu() if asked.activation == "relu" else expected
    residual = torch.ones_like(expected)
    if asked.activation is None:
        expected = expected + residual
    y = device.convolve(asked, x, w, bias, residual if asked.activation is None else None)
    assert torch.equal(y, expected)
    [(_, cores, shapes, kwargs)] = recorder.calls
    assert cores == lnc
    assert [len(shape) for shape in shapes] == [4, 4]
    operation = "depthwise_conv1d" if name == "depthwise_conv1d" else "conv2d"
    more = {"activation": asked.activation, "residual": None if asked.activation else "pre_activation"}
    assert_estimated(kwargs, asked.problem(x, w), operation, lnc, bias=True, **more)


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
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in (x_shape, size))
    wide = [one.double().requires_grad_() for one in (x, w)]
    y = getattr(F, name.removeprefix("depthwise_"))(*wide, None, asked.stride, 1, asked.dilation, asked.groups)
    g = torch.randint(-3, 4, y.shape, generator=generator).to(dtype)
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


def test_packed_filters_go_instead_of_plain_ones(recorder):
    x, w = torch.ones(1, 70, 5, 5), torch.arange(128 * 70 * 9).remainder(7).float().reshape(128, 70, 3, 3)
    asked = asked_of("conv2d", 2)
    y = device.convolve(asked, x, w, None, None, pack_filter(w))
    assert torch.equal(y, F.conv2d(x, w, padding=1))
    [(_, _, shapes, kwargs)] = recorder.calls
    assert shapes == [(1, 70, 5, 5), (1, 70, 3, 3, 128)]
    assert_estimated(kwargs, asked.problem(x, w), packed=True)


@pytest.mark.parametrize(("name", "form", "more"), [
    ("conv1d", "channel", {}), ("conv2d", "image", {}), ("conv2d", "channel", {"x_upsample": 2}),
    ("conv3d", "channel", {}), ("conv_transpose2d", "image", {}),
])  # fmt: skip
def test_a_prologue_goes_along(recorder, name, form, more):
    rank = int(name[-2])
    x = torch.arange(2 * 4 * 5**rank).remainder(5).float().reshape(2, 4, *[5] * rank)
    w, shape = torch.ones(6, 4, *[3] * rank), (4,) if form == "channel" else (2, 4)
    w = w.transpose(0, 1) if "transpose" in name else w
    scale, shift = torch.arange(math.prod(shape)).float().reshape(shape) - 2, torch.ones(shape)
    asked = asked_of(name, rank, x_activation="relu", **more)
    y = device.convolve(asked, x, w, None, None, scales=(scale, shift))
    by_channel = [*shape, *[1] * rank]
    h = (x * scale.reshape(by_channel) + shift.reshape(by_channel)).relu()
    h = F.interpolate(h, scale_factor=2) if more else h
    assert torch.equal(y, getattr(F, name)(h, w, padding=1))
    [(_, _, _, kwargs)] = recorder.calls
    scales = {"x_scale": form, "x_shift": form, "x_activation": "relu"}
    assert_estimated(kwargs, asked.problem(x, w), asked_of(name, rank).operation, **scales, **more)
    assert kwargs["x_activation"] == "relu"
    assert kwargs.get("x_upsample") == more.get("x_upsample")


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d", "conv_transpose2d"])
def test_statistics_come_back(recorder, name):
    rank = int(name[-2])
    channels = (4, 6) if "transpose" in name else (6, 4)
    x, w = (
        torch.arange(2 * 4 * 5**rank).remainder(5).float().reshape(2, 4, *[5] * rank),
        torch.ones(*channels, *[3] * rank),
    )
    y, stats = device.convolve(asked_of(name, rank, return_stats="channel"), x, w, None, None)
    assert torch.equal(y, getattr(F, name)(x, w, padding=1))
    each = statistics.Norm("instance", None, 0.0)
    expected = statistics.moments(statistics.stats_by_torch(y), each)
    assert_within_share(statistics.moments(stats, each), expected, FLOAT32_SUMS)
    [(_, _, _, kwargs)] = recorder.calls
    plain = asked_of(name, rank)
    assert_estimated(kwargs, plain.problem(x, w), plain.operation, return_stats="channel")
    assert kwargs["return_stats"] == "channel"


@pytest.mark.parametrize("before", [False, True])
def test_a_norm_of_pixels_goes_along(recorder, before):
    x, w = torch.arange(2 * 4 * 30).remainder(5).float().reshape(2, 4, 5, 6) - 2, torch.ones(6, 4, 3, 3)
    norm = PixelNorm("rms", torch.arange(6).float(), None, 1.0, before)
    asked = asked_of("conv2d", 2)
    y, u = device.convolve(asked, x, w, None, None, norm=norm)
    expected, read = by_torch(asked, x, w, None, None, None, norm)
    assert_within_share(y, expected, FLOAT32_SUMS)
    assert torch.equal(u, read)
    [(_, _, _, kwargs)] = recorder.calls
    wanted = {"y_norm": "rms", "y_norm_weight": True, "return_before_norm": before}
    assert_estimated(kwargs, asked.problem(x, w), **wanted)
    assert kwargs["y_norm_eps"] == 1.0


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
    device.convolve(asked_of("depthwise_conv1d", 1, groups=4), torch.ones(1, 4, 40), torch.ones(4, 1, 3), None, None)
    kwargs = recorder.calls[0][3]
    assert kwargs["config"] == (("block", 32), ("buffers", 2))
    assert [type(value) for _, value in kwargs["config"]] == [int, int]


def test_the_default_rule_goes_without_a_config(recorder, monkeypatch):
    monkeypatch.setenv("NKICONV_PLAN", "kernel")
    device.convolve(asked_of("conv2d", 2), torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3), None, None)
    assert "config" not in recorder.calls[0][3]


@pytest.mark.parametrize(
    ("variable", "words"), [("NKICONV_PLAN", "estimate, timed, kernel"), ("NEURON_LOGICAL_NC_CONFIG", "1 or 2")]
)
def test_variables_are_checked(recorder, monkeypatch, variable, words):
    monkeypatch.setenv(variable, "3")
    with pytest.raises(UnsupportedError, match=f"{variable}='3': .*{words}"):
        device.convolve(asked_of("conv2d", 2), torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3), None, None)
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
    generator = torch.Generator().manual_seed(0)
    bcx, w = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((2, 18, 9), (6, 1, 3)))
    state = torch.ones(2, 6, 2) if final else None
    asked = dataclasses.replace(asked_of("depthwise_conv1d", 1, groups=6), padding=((2, 0),))
    y, found = device.convolve_gated(asked, bcx[:, :6], bcx, w, None, state, "BCx", final)
    B, C, x = bcx.chunk(3, 1)
    rows = torch.cat([torch.zeros(2, 6, 2) if state is None else state, B * x], 2)
    assert torch.equal(y, C * F.conv1d(rows, w, groups=6))
    assert found is None if not final else torch.equal(found, rows[..., -2:])
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
    splits = ((2, 8, True), (1, 16, True), (3, 5, False))
    with torch.no_grad():
        parts = device.causal_conv1d_split(x, w, None, state, splits, "silu", 1e-6, "NCW", True, None, None)[:3]
        whole = causal_conv1d_split(x, w, splits=splits, initial_states=state)
    assert all(torch.equal(one, other) for one, other in zip(parts, whole, strict=True))
    assert [(kernel.__name__, cores, sorted(given)) for kernel, cores, _, given in recorder.calls] == [
        (
            "causal_conv1d_split_heads",
            2,
            ["activation", "eps", "initial_state", "layout", "return_final_state", "splits"],
        ),
        ("causal_conv1d_split_step", 2, ["activation", "eps", "layout", "splits"]),
    ]
