"""Filters in the kernel's own order: the same sums, and where a module owns one, no other filter beside it; a call
computes with the weight as it is now, however it was changed: nothing of it is kept from call to call.
"""

import copy
import pickle

import numpy as np
import pytest
import torch
from causal import integers
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch_exact import filled

import nkiconv
from nkiconv.errors import ComparisonError, DtypeError
from nkiconv.pytorch import causal_conv1d_update, conv1d, conv2d, convert, pack_filter, plan_model
from nkiconv.pytorch import nn as ours
from nkiconv.pytorch.errors import FrozenFilterError

pytestmark = pytest.mark.simulator_only


def layer(kind=nn.Conv2d, inputs=70, outputs=128, **more):
    return nn.Sequential(filled(kind(inputs, outputs, 3, padding=1, **more))).eval()


@pytest.mark.parametrize("rank", [1, 2])
def test_sums_are_the_same(rank, mode):
    taps = (3, 2)[-rank:]
    x, w, bias = integers(2, 70, *(6, 5)[-rank:]), integers(128, 70, *taps), integers(128)
    convolve = (conv1d, conv2d)[rank - 1]
    expected = getattr(F, f"conv{rank}d")(x, w, bias, padding=1)
    residual = integers(*expected.shape)
    found = convolve(x, w, bias, padding=1, packed=pack_filter(w), residual=residual, activation="relu")
    assert torch.equal(found, torch.relu(expected + residual))
    one = convolve(x[0], w, padding=1, packed=pack_filter(w))
    assert torch.equal(one, (expected - bias.reshape(-1, *[1] * rank))[0])


def test_the_kernel_takes_the_packed_filter(monkeypatch):
    x, w = integers(1, 70, 5, 5), integers(128, 70, 3, 3)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    other = conv2d(x, w, padding=1, packed=pack_filter(w + 1))
    torch.testing.assert_close(other, F.conv2d(x, w + 1, padding=1), rtol=0, atol=0)
    monkeypatch.setenv("NKICONV_CPU", "compare")
    with pytest.raises(ComparisonError, match=r"stale.*the kernel and torch differ"):
        conv2d(x, w, padding=1, packed=pack_filter(w + 1), layer="stale")


@pytest.mark.parametrize("dims", [(0, None), (None, 0)], ids=["images", "filters"])
def test_vmap(dims, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", "compare")
    given = integers(3, 1, 70, 4, 4), integers(3, 128, 70, 3, 3)
    x, w = (one if dim == 0 else one[0] for one, dim in zip(given, dims, strict=True))
    found = torch.vmap(lambda x, w: conv2d(x, w, packed=pack_filter(w)), dims)(x, w)
    assert torch.equal(found, torch.vmap(F.conv2d, dims)(x, w))


def frozen(**more):
    model = layer(ours.Conv2d, **more)
    model[0].pack_filter()
    return model


def convolved(x, weight, bias, **more):
    return F.conv2d(x, weight, bias, padding=1, **more)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
class TestFrozen:
    """A frozen module has one filter, which nothing outside of it changes."""

    def run(self, model, weight, x=None, by=None):
        """Sums of integers, which are exact."""
        x = integers(1, 70, 4, 4) if x is None else x
        expected = convolved(x, weight, model[0].bias)
        with torch.no_grad():
            torch.testing.assert_close((by or model)(x), expected, rtol=0, atol=0)

    @pytest.mark.cover(4)
    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_values(self, rank):
        kind, convolve = getattr(ours, f"Conv{rank}d"), getattr(F, f"conv{rank}d")
        module, x = layer(kind)[0], integers(2, 70, *[4, 5, 6][-rank:])
        x.requires_grad_()
        expected = convolve(x, module.weight, module.bias, padding=1)
        [of_x] = torch.autograd.grad(expected.sum(), x)
        module.pack_filter()
        y = module(x)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), [x, module.bias])[0], of_x, rtol=0, atol=0)

    @pytest.mark.cover(4, keep=["<lambda>7-torch"])
    @pytest.mark.parametrize("change", [
        lambda weight: weight.data.add_(1), lambda weight: weight.copy_(weight), lambda weight: weight.numpy(),
        lambda weight: weight.untyped_storage(), lambda weight: weight.requires_grad_(),
        lambda weight: weight.detach(), lambda weight: setattr(weight, "data", torch.zeros(128, 70, 3, 3)),
        lambda weight: setattr(weight, "requires_grad", True), lambda weight: nn.init.zeros_(weight),
        lambda weight: F.conv2d(torch.zeros(1, 70, 4, 4), weight), lambda weight: torch.ones(1) * weight,
        lambda weight: torch.stack([weight]),
    ])  # fmt: skip
    def test_nothing_writes_to_it(self, change):
        model = frozen()
        weight = model[0].weight.plain()
        with pytest.raises(FrozenFilterError, match=r"the filter is frozen \(made 2.* from its weight\)"):
            change(model[0].weight)
        model[0].weight.plain().zero_()
        model.state_dict()["0.weight"].zero_()
        self.run(model, weight)

    def test_what_it_says(self):
        model = frozen()
        weight = model[0].weight
        assert (weight.shape, weight.dtype, weight.device.type) == ((128, 70, 3, 3), torch.float32, "cpu")
        assert "weight=FrozenFilter((128, 70, 3, 3), torch.float32, made 2" in str(model)
        assert [name for name, _ in model.named_parameters()] == ["0.bias"]
        assert not list(model.buffers())

    def test_functional_call_says_what_to_do(self):
        """torch asks for a tensor under the name, so the error is torch's own; what it says of the filter is ours."""
        model, x = frozen(), torch.zeros(1, 70, 4, 4)
        message = r"a frozen module has no parameter weight: call its unpack_filter\(\), or convert without pack_"
        with pytest.raises(TypeError, match=message):
            torch.func.functional_call(model, model.state_dict(), (x,))
        torch.func.functional_call(model, {"0.bias": torch.zeros(128)}, (x,))

    @pytest.mark.parametrize("call", [lambda model: model.train(), lambda model: model[0].train()])
    def test_it_does_not_train(self, call):
        model = frozen()
        model[0].layer = "stem"
        with pytest.raises(FrozenFilterError, match=r"stem: train\(\): the filter is frozen .* call unpack_filter"):
            call(model)
        assert model.eval()[0].is_frozen

    def test_an_optimizer_after_it(self):
        """Parameters come in torch's order, by which optimizers keep their states."""
        model = frozen()
        model[0].unpack_filter()
        assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
        assert model[0].weight.requires_grad
        model.train()[0](integers(1, 70, 4, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1, fused=True).step()
        assert not model[0].is_frozen
        self.run(model, model[0].weight)

    @pytest.mark.parametrize("assign", [False, True])
    def test_saved_and_loaded(self, assign):
        model, plain, w = frozen(), layer(), integers(128, 70, 3, 3) - 2
        assert list(model.state_dict()) == list(plain.state_dict())
        plain.load_state_dict(model.state_dict())
        self.run(model, plain[0].weight)
        state = {"0.weight": w, "0.bias": integers(128)}
        model.load_state_dict(state, assign=assign)
        assert "from load_state_dict" in model[0].weight.made
        self.run(model, w)
        w.data.add_(1)
        self.run(model, w - 1)
        with pytest.raises(RuntimeError, match=r"Missing key.*0\.weight"):
            model.load_state_dict({"0.bias": integers(128)})
        with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
            model.load_state_dict({**state, "0.weight": w[:64]})
        self.run(model, w - 1)

    def test_cast_and_moved(self):
        model = frozen()
        weight = model[0].weight.plain()
        model.to(memory_format=torch.channels_last)
        self.run(model, weight, integers(1, 70, 4, 4).to(memory_format=torch.channels_last))
        model.bfloat16()
        assert model[0].weight.dtype == torch.bfloat16
        x = integers(1, 70, 4, 4)
        expected = convolved(x, weight, model[0].bias.float()).bfloat16()
        with torch.no_grad():
            torch.testing.assert_close(model(x.bfloat16()), expected, rtol=0, atol=0)
        with pytest.raises(DtypeError, match=r"dtype=torch.float64: the filter is frozen.*unpack_filter\(\) first"):
            model.double()
        assert model[0].is_frozen
        assert frozen().to("meta")[0].weight.device.type == "meta"

    @pytest.mark.parametrize("copies", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_copied(self, copies):
        model = frozen()
        weight, other = model[0].weight.plain(), copies(model)
        other.load_state_dict({"0.weight": weight + 1, "0.bias": model[0].bias})
        self.run(model, weight)
        self.run(other, weight + 1)


class TestConvert:
    """convert packs on request, where plans of example inputs take less time so."""

    @pytest.mark.slow
    def test_by_plans(self):
        few, many = nn.Conv2d(256, 128, 1), nn.Conv2d(128, 128, 3, padding=1)
        groups = nn.Conv2d(128, 128, 3, groups=2)
        model = nn.Sequential(few, many, groups, nn.Conv2d(128, 131, 1), Own(131, 4, 1)).eval().bfloat16()
        x = torch.randn(1, 256, 14, 14).bfloat16()
        report = convert(model, pack_filters="frozen", example_inputs=[x])
        for i, entry in enumerate(report.entries[:2]):
            plain, packed = (plan_of(model[i], x.shape, packed=packed) for packed in (False, True))
            assert report.model[i].is_frozen == entry.packed == (packed < plain)
            assert entry.packing.endswith(f"{packed:.1f} us packed, {plain:.1f} plain, modelled")
            x = model[i](x)
        assert any(entry.packed for entry in report.entries)
        assert [entry.packing.partition(": ")[2] for entry in report.entries[2:]] == [
            "groups=2; filters of groups are not packed", "out_channels=131 has no divisor that is worth a block",
            "",
        ]  # fmt: skip
        assert "conv2d, packed   filter frozen 2" in str(report)
        assert not any(type(one.weight) is not nn.Parameter for one in model)

    def test_plan_model_plans_what_runs(self):
        model = convert(layer(inputs=128)).model
        model[0].pack_filter()
        problem = nkiconv.ConvProblem(N=1, C=128, H=7, W=7, K=128, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32")
        found = plan_model(model, [torch.zeros(1, 128, 7, 7)])
        assert found.modelled_us == nkiconv.plan(problem, bias=True, packed=True).modelled_us


class Own(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * self.weight.mean()


def plan_of(module, shape, packed):
    N, C, H, W = shape
    K, _, R, S = module.weight.shape
    sides = tuple((one, one) for one in module.padding)
    problem = nkiconv.ConvProblem(N=N, C=C, H=H, W=W, K=K, R=R, S=S, padding=sides, dtype="bf16")
    return nkiconv.plan(problem, bias=True, packed=packed).modelled_us


def stepped(module):
    """A step of an optimizer, in which every element of a weight moves."""
    module.weight.grad = torch.sign(module.weight.detach()) + 0.5
    torch.optim.SGD([module.weight], lr=2.0, fused=True).step()


CHANGES = {
    "SGD, fused": stepped,
    "data.mul_": lambda module: module.weight.data.mul_(2),
    "NumPy": lambda module: np.add(module.weight.detach().numpy(), 1, out=module.weight.detach().numpy()),
    "storage": lambda module: module.weight.untyped_storage().copy_((module.weight.detach() + 1).untyped_storage()),
    "assign": lambda module: module.load_state_dict(
        {"weight": module.weight.detach() + 1, "bias": module.bias.detach() - 1}, assign=True
    ),
    "bias": lambda module: module.bias.data.add_(1),
}


@pytest.mark.parametrize("mode", ["simulate", "torch"], indirect=True)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_weight(mode, name):
    model, x = convert(nn.Sequential(nn.Conv2d(128, 128, (2, 3), padding=1)).eval()).model, integers(1, 128, 3, 4)
    with torch.no_grad():
        for change in (lambda module: None, CHANGES[name]):
            change(model[0])
            expected = F.conv2d(x, model[0].weight, model[0].bias, padding=1)
            assert_within_share([model(x)], [expected], FLOAT32_SUMS)


X, W, B = torch.ones(1, 4, 5, 5), torch.ones(6, 4, 3, 3), torch.ones(6)
RESIDUAL, STATE = torch.ones(1, 6, 3, 3), torch.ones(2, 4, 3)
CALL = {"input": X, "weight": W, "bias": B, "residual": RESIDUAL, "activation": "silu", "stride": 1}
STEP = {"x": STATE[..., 0], "conv_state": STATE, "weight": torch.ones(4, 4), "conv_state_indices": torch.arange(2)}


@pytest.mark.parametrize(("function", "call", "changes"), [
    *((conv2d, CALL, one) for one in (
        {"input": X[:, :3]}, {"input": X[..., :2]}, {"input": X.int()}, {"weight": W[:, :2]}, {"weight": W.double()},
        {"bias": B[:5]}, {"bias": B.to("meta")}, {"residual": RESIDUAL[..., :2]}, {"residual": RESIDUAL.to_sparse()},
        {"stride": True}, {"stride": 1.0}, {"padding": 1}, {"dilation": 0}, {"groups": 2}, {"activation": "absent"})),
    *((causal_conv1d_update, STEP, one) for one in (
        {"conv_state_indices": torch.tensor([1, 1])}, {"conv_state": STATE.bfloat16()},
        {"conv_state": STATE.clone().requires_grad_()})),
])  # fmt: skip
def test_checks_are_made_again_for_another_call(function, call, changes):
    """On the host they are left out after one that is equal in all that they read."""
    for _ in range(2):
        function(**call)
        with pytest.raises(
            ValueError, match=r"cannot run this call|must|accepted|differ|over|input channels per group"
        ):
            function(**{**call, **changes})


@pytest.mark.parametrize(("function", "call"), [(conv2d, CALL), (causal_conv1d_update, STEP)])
def test_checks_are_made_again_in_another_mode(function, call, monkeypatch):
    wide = {
        name: one.double() if torch.is_tensor(one) and one.is_floating_point() else one for name, one in call.items()
    }
    function(**wide)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with pytest.raises(DtypeError, match="float64"):
        function(**wide)
