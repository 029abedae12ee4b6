"""Filters in the kernel's own order: the same sums, never of a weight that is no longer there."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import nkiconv
from nkiconv.errors import ComparisonError, DtypeError, GeometryError, LayoutError, UnsupportedError
from nkiconv.pytorch import convert, pack_filter, plan_model
from nkiconv.pytorch import nn as ours
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.functional import conv1d, conv2d

pytestmark = pytest.mark.simulator_only


def integers(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def layer(kind=nn.Conv2d, inputs=70, outputs=128, **more):
    made = kind(inputs, outputs, 3, padding=1, **more)
    with torch.no_grad():
        made.weight.copy_(integers(*made.weight.shape))
        made.bias.copy_(integers(*made.bias.shape))
    return nn.Sequential(made).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pack_filter_is_that_of_arrays(dtype):
    w = integers(256, 70, 3, 2, dtype=dtype)
    packed = pack_filter(w)
    assert packed.dtype == dtype
    assert packed.is_contiguous()
    np.testing.assert_array_equal(to_numpy(packed), nkiconv.pack_filter(to_numpy(w)))


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.zeros(131, 70, 3, 3), UnsupportedError, "weight.shape=.131, 70, 3, 3.: K has no divisor"),
        (torch.zeros(128, 70), LayoutError, "weight.shape=.128, 70.: must have 3 to 5 axes"),
        (torch.zeros(128, 70, 3).double(), DtypeError, "weight.dtype=torch.float64"),
        (None, DtypeError, "weight: must be a torch.Tensor"),
    ],
)
def test_what_cannot_be_packed(weight, error, message):
    with pytest.raises(error, match=message):
        pack_filter(weight)


@pytest.mark.parametrize("mode", ["torch", "simulate", "compare"])
@pytest.mark.parametrize("rank", [1, 2])
def test_sums_are_the_same(rank, mode, monkeypatch):
    taps = (3, 2)[-rank:]
    x, w, bias = integers(2, 70, *(6, 5)[-rank:]), integers(128, 70, *taps), integers(128)
    convolve = conv2d if rank == 2 else conv1d
    expected = (torch.nn.functional.conv2d if rank == 2 else torch.nn.functional.conv1d)(x, w, bias, padding=1)
    residual = integers(*expected.shape)
    monkeypatch.setenv("NKICONV_CPU", mode)
    found = convolve(x, w, bias, padding=1, packed=pack_filter(w), residual=residual, activation="relu")
    torch.testing.assert_close(found, torch.relu(expected + residual), rtol=0, atol=0)
    one = convolve(x[0], w, padding=1, packed=pack_filter(w))
    torch.testing.assert_close(one, (expected - bias.reshape(-1, *[1] * rank))[0], rtol=0, atol=0)


def test_the_kernel_takes_the_packed_filter(monkeypatch):
    x, w = integers(1, 70, 5, 5), integers(128, 70, 3, 3)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    other = conv2d(x, w, padding=1, packed=pack_filter(w + 1))
    torch.testing.assert_close(other, torch.nn.functional.conv2d(x, w + 1, padding=1), rtol=0, atol=0)
    monkeypatch.setenv("NKICONV_CPU", "compare")
    with pytest.raises(ComparisonError, match=r"stale.*the kernel and torch differ"):
        conv2d(x, w, padding=1, packed=pack_filter(w + 1), layer="stale")


@pytest.mark.parametrize(
    ("packed", "more", "error", "message"),
    [
        (torch.zeros(1, 70, 3, 3, 64), {}, GeometryError, r"packed.shape=\(1, 70, 3, 3, 64\): must be \(1, 70, 3, 3, "),
        (torch.zeros(1, 70, 3, 3, 128).bfloat16(), {}, DtypeError, "packed.dtype=torch.bfloat16: must be weight's"),
        (torch.zeros(1, 70, 3, 3, 128), {"groups": 2}, UnsupportedError, "packed: groups=2"),
        (torch.zeros(1, 70, 3, 3, 128, device="meta"), {}, UnsupportedError, "packed.device=meta: must be"),
        ("packed", {}, DtypeError, "packed: must be a torch.Tensor, not str"),
    ],
)  # fmt: skip
def test_what_is_refused(packed, more, error, message):
    groups = more.get("groups", 1)
    with pytest.raises(error, match=message):
        conv2d(torch.zeros(1, 70 * groups, 5, 5), torch.zeros(128, 70, 3, 3), packed=packed, **more)


def test_gradients_are_those_of_the_weight():
    x, w = integers(1, 70, 4, 4).requires_grad_(), integers(128, 70, 3, 3).requires_grad_()
    g = integers(1, 128, 2, 2)
    found = torch.autograd.grad(conv2d(x, w, packed=pack_filter(w)), (x, w), g)
    expected = torch.autograd.grad(torch.nn.functional.conv2d(x, w), (x, w), g)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_opcheck():
    x, w = torch.randn(1, 70, 4, 4, requires_grad=True), torch.randn(128, 70, 3, 3, requires_grad=True)
    numbers = [[1, 1], [0, 0, 0, 0], [1, 1], [1, 1], 1, "silu", "pre_activation", None]
    found = torch.library.opcheck(torch.ops.nkiconv.conv2d.default, (x, w, None, None, *numbers, pack_filter(w)))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("batched", ["images", "filters"])
def test_vmap(batched, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    x, w = integers(3, 1, 70, 4, 4), integers(3, 128, 70, 3, 3)
    if batched == "images":
        found = torch.vmap(lambda one: conv2d(one, w[0], packed=pack_filter(w[0])))(x)
        expected = torch.stack([torch.nn.functional.conv2d(one, w[0]) for one in x])
    else:
        found = torch.vmap(lambda one: conv2d(x[0], one, packed=pack_filter(one)))(w)
        expected = torch.stack([torch.nn.functional.conv2d(x[0], one) for one in w])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


class TestModules:
    """convert packs; a call never takes what was packed of another weight."""

    def test_convert_packs_in_eval_mode(self):
        report = convert(layer())
        module = report.model[0]
        torch.testing.assert_close(module.packed_weight, pack_filter(module.weight), rtol=0, atol=0)
        assert [entry.packed for entry in report.entries] == [True]
        assert "conv2d, packed" in str(report)
        assert set(module.state_dict()) == {"weight", "bias"}
        nn.Conv2d(70, 128, 3).load_state_dict(module.state_dict())

    @pytest.mark.parametrize(
        "model",
        [
            layer().train(), layer(inputs=64), layer(outputs=127), layer(inputs=140, groups=2), layer(outputs=131),
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(70, 128, 3))).eval(),
        ],
        ids=["training", "few inputs", "few outputs", "groups", "prime", "computed"],
    )  # fmt: skip
    def test_what_is_not_packed(self, model):
        report = convert(model)
        assert report.entries[0].swapped
        assert not report.entries[0].packed
        assert report.model[0].packed_filter() is None
        assert report.model[0].pack_filter() != ""

    def test_not_on_request(self):
        assert not hasattr(convert(layer(), pack_filters=False).model[0], "packed_weight")

    @pytest.fixture(autouse=True)
    def _compare(self, monkeypatch):
        monkeypatch.setenv("NKICONV_CPU", "simulate")

    def run(self, model, x, like=None):
        expected = torch.nn.functional.conv2d(x, (like or model)[0].weight, (like or model)[0].bias, padding=1)
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)  # sums of integers

    def test_changed_in_place(self):
        model, x = convert(layer()).model, integers(1, 70, 4, 4)
        before = model[0].packed_weight
        with torch.no_grad():
            model[0].weight.add_(1)
        self.run(model, x)
        assert model[0].packed_weight is before

    def test_changed_by_its_original(self):
        original = layer()
        model = convert(original).model
        with torch.no_grad():
            original[0].weight.mul_(2)
        self.run(model, integers(1, 70, 4, 4), like=original)

    def test_replaced(self):
        model = convert(layer()).model
        model[0].weight = nn.Parameter(integers(128, 70, 3, 3) + 1)
        self.run(model, integers(1, 70, 4, 4))

    def test_loaded(self):
        model = convert(layer()).model
        model.load_state_dict({"0.weight": integers(128, 70, 3, 3) - 2, "0.bias": integers(128)})
        torch.testing.assert_close(model[0].packed_weight, pack_filter(model[0].weight), rtol=0, atol=0)
        self.run(model, integers(1, 70, 4, 4))

    def test_copied(self):
        model = copy.deepcopy(convert(layer()).model)
        with torch.no_grad():
            model[0].weight.add_(1)
        self.run(model, integers(1, 70, 4, 4))

    def test_cast(self):
        model = convert(layer()).model.bfloat16()
        y = model(integers(1, 70, 4, 4, dtype=torch.bfloat16))
        assert model[0].packed_weight.dtype == torch.bfloat16
        expected = torch.nn.functional.conv2d(integers(1, 70, 4, 4), model[0].weight.float(), padding=1)
        expected = (expected + model[0].bias.float().reshape(-1, 1, 1)).bfloat16()
        torch.testing.assert_close(y, expected, rtol=0, atol=0)

    def test_of_another_call(self):
        model, x = convert(layer()).model, integers(1, 70, 4, 4)
        other = {"0.weight": integers(128, 70, 3, 3) + 2, "0.bias": integers(128)}
        found = torch.func.functional_call(model, other, (x,))
        expected = torch.nn.functional.conv2d(x, other["0.weight"], other["0.bias"], padding=1)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        self.run(model, x)

    def test_training_takes_the_plain_filter(self):
        model, x = convert(layer()).model.train(), integers(1, 70, 4, 4)
        model[0].packed_weight.zero_()
        self.run(model, x)

    def test_dropped(self):
        model = convert(layer()).model
        model[0].drop_packed()
        assert model[0].packed_filter() is None
        self.run(model, integers(1, 70, 4, 4))
        assert model[0].pack_filter() == ""
        assert model[0].packed_filter() is not None

    def test_compiled(self):
        model, x = convert(layer()).model, integers(1, 70, 4, 4)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            self.run(compiled, x, like=model)
            model.load_state_dict({"0.weight": integers(128, 70, 3, 3) - 2, "0.bias": integers(128)})
            self.run(compiled, x, like=model)
            model[0].weight.add_(1)
            model[0].pack_filter()
            self.run(compiled, x, like=model)

    def test_of_a_module(self):
        module = layer(ours.Conv1d)[0]
        assert module.pack_filter() == ""
        assert module.packed_weight.shape == (1, 70, 1, 3, 128)
        x = integers(1, 70, 9)
        expected = torch.nn.functional.conv1d(x, module.weight, module.bias, padding=1)
        torch.testing.assert_close(module(x), expected, rtol=0, atol=0)


def test_plan_model_plans_what_runs():
    found = plan_model(layer(inputs=512, outputs=512), [torch.zeros(1, 512, 7, 7)])
    expected = nkiconv.plan(
        nkiconv.ConvProblem(N=1, C=512, H=7, W=7, K=512, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32"),
        bias=True, packed=True,
    )  # fmt: skip
    assert found.modelled_us == expected.modelled_us
