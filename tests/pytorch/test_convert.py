"""Converted models compute what they did before, with everything that hangs on them; what stays has its reason."""

import copy
import io
import json
import pickle

import pytest
import torch
from operators_seen import Seen
from tolerances import sums_share
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch_exact import same
from torch_models import MODELS, build

from nkiconv import pytorch
from nkiconv.errors import DtypeError, UnsupportedError
from nkiconv.pytorch import convert


class Reshaping(nn.Conv2d):
    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1)
        self.note = "kept"

    def twice(self, x):
        return self(self(x))


def gradients(model, x, dtype):
    model, x = copy.deepcopy(model).to(dtype), x.to(dtype, copy=True).requires_grad_()
    y = model(x)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return y.detach(), torch.autograd.grad(y, x, g)[0]


@pytest.mark.cover(4)
@pytest.mark.parametrize("mode", ["torch", "compare"])
@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_did(name, mode, monkeypatch):
    """On the host torch's own convolution runs in either mode, and "compare" holds the kernels against it.

    Gradients of inputs are convolutions of ours, which sum the same terms in another order than torch: as far from
    those of the same model in float64 as torch's own, or by one more rounding of each of the 4 layers' sums of at most
    n = 72 terms, as `sums_share` has it.
    """
    monkeypatch.setenv("NKICONV_CPU", mode)
    model, x = build(name)
    y, expected = gradients(model, x, torch.float32)
    _, truth = gradients(model, x, torch.float64)
    report = convert(model)
    assert [entry.operator for entry in report.entries] == MODELS[name][2]
    assert report.kept == ()
    found_y, found = gradients(report.model, x, torch.float32)
    assert torch.equal(found_y, y)
    allowed = (expected - truth).abs().max() + sums_share(72, 4) * truth.abs().max()
    assert (found - truth).abs().max() <= allowed
    assert not torch.equal(found, torch.zeros_like(found))


def test_a_model_that_refuses_its_example_inputs_stays_as_it_was():
    class Refuses(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3)

        def forward(self, x):
            if x.shape[1] != 4:
                raise ValueError("takes 4 channels")
            return self.conv(x)

    model = Refuses()
    with pytest.raises(ValueError, match="takes 4 channels"):
        convert(model, inplace=True, example_inputs=[torch.randn(1, 3, 5, 5)])
    assert [type(module) for module in model.modules()] == [Refuses, nn.Conv2d]
    report = convert(model, inplace=True, example_inputs=[torch.randn(1, 4, 5, 5)])
    assert report.model is model
    assert report.measured.fraction == 1.0


@pytest.mark.parametrize("inplace", [False, True])
def test_parameters_stay_the_same_objects(inplace):
    model, x = build("resnet")
    before = dict(model.named_parameters()), dict(model.named_buffers()), [*model.state_dict()]
    report = convert(model, inplace=inplace)
    assert (report.model is model) == inplace
    assert isinstance(report.model.conv1, pytorch.nn.Conv2d)
    assert isinstance(model.conv1, pytorch.nn.Conv2d) == inplace
    after = dict(report.model.named_parameters()), dict(report.model.named_buffers()), [*report.model.state_dict()]
    assert after[2] == before[2]
    for one, other in zip(after[:2], before[:2], strict=True):
        assert all(one[name] is other[name] for name in other)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    report.model.train()(x).sum().backward()
    start = model.conv1.weight.clone()
    optimizer.step()
    assert not torch.equal(report.model.conv1.weight, start)


def test_tied_and_shared_modules():
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 1))
    model[1].weight = model[0].weight
    model.append(model[2])
    converted = convert(model).model
    assert converted[1].weight is converted[0].weight is model[0].weight
    assert converted[3] is converted[2]
    assert converted[3] is not model[3]
    assert [module.layer for module in converted] == ["0", "1", "2", "2"]
    x = torch.randn(1, 4, 9)
    assert torch.equal(converted(x), model(x))


def test_hooks_flags_and_other_references_stay():
    model, x = build("whisper")
    seen = []
    model.conv1.register_forward_hook(lambda module, inputs, y: seen.append(type(module)))
    model.conv2.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    model.conv1.weight.requires_grad_(False)
    model.conv2.train()
    model.by_hand = [model.conv1]
    expected = model(x)
    converted = convert(model).model
    assert torch.equal(converted(x), expected)
    assert seen == [nn.Conv1d, pytorch.nn.Conv1d]
    assert (converted.conv1.training, converted.conv2.training) == (False, True)
    assert not converted.conv1.weight.requires_grad
    assert converted.by_hand[0] is converted.conv1


@pytest.mark.parametrize("functional", [True, False])
def test_what_the_filter_leaves_out_stays_torch_s(functional):
    model, x = build("vae")
    report = convert(model, lambda name, module: name != "shortcut", functional=functional)
    for one in (report.model, copy.deepcopy(report.model), pickle.loads(pickle.dumps(report.model))):
        with Seen() as seen:
            y = one(x)
        assert seen.convolutions.count("aten::convolution") == 1
        assert torch.equal(y, model(x))
    assert isinstance(report.model.shortcut, nn.Conv2d)
    again = convert(report.model)
    reason = "was left out by a filter before" if functional else ""
    assert again.entries[2].reason.startswith(reason)
    assert bool(again.entries[2].reason) == functional


def patched():
    module = nn.Conv2d(3, 4, 3)
    module.forward = lambda x: x
    return module


def quantized():
    return torch.ao.nn.quantized.Conv2d(3, 4, 3)


def scripted():
    return torch.jit.script(nn.Conv2d(3, 4, 3))


KEPT = {
    "lazy": (lambda: nn.LazyConv2d(4, 3), "is lazy"),
    "complex": (lambda: nn.Conv2d(3, 4, 3, dtype=torch.complex64), "weights are torch.complex64"),
    "quantized": (quantized, "is quantized"),
    "scripted": (scripted, "is scripted; convert the model before"),
    "patched": (patched, "has its own forward"),
    "ours": (lambda: pytorch.nn.Conv2d(3, 4, 3), "is nkiconv's already"),
}


@pytest.mark.filterwarnings("ignore:.*(quantized tensor creation|torch.jit):")
@pytest.mark.parametrize("name", KEPT)
def test_what_stays_has_its_reason(name):
    make, reason = KEPT[name]
    module = make()
    kind = type(module)
    report = convert(nn.Sequential(nn.Identity(), module, nn.Conv2d(3, 4, 3)), functional=False)
    [kept] = report.kept
    assert kept.name == "1"
    assert reason in kept.reason
    assert type(report.model[1]) is kind
    assert isinstance(report.model[2], pytorch.nn.Conv2d)


def test_lazy_modules_are_swapped_once_they_have_run():
    model = nn.Sequential(nn.LazyConv2d(4, 3))
    x = torch.randn(1, 3, 6, 6)
    assert convert(model).swapped == ()
    y = model(x)
    [entry] = convert(model, inplace=True).swapped
    assert entry.weight == (4, 3, 3, 3)
    assert torch.equal(model(x), y)


def test_subclasses_without_a_forward():
    model = nn.Sequential(Reshaping(3), nn.ReLU())
    x = torch.randn(1, 3, 6, 6)
    converted = convert(model).model
    saved = io.BytesIO()
    torch.save(converted, saved)
    saved.seek(0)
    for one in (converted, copy.deepcopy(converted), torch.load(saved, weights_only=False)):
        assert isinstance(one[0], Reshaping)
        assert isinstance(one[0], pytorch.nn.Conv2d)
        assert (one[0].note, one[0].layer, type(one[0]).__name__) == ("kept", "0", "Reshaping")
        assert torch.equal(one[0].twice(x), model[0].twice(x))


WEIGHTS = {
    "weight_norm": parametrizations.weight_norm, "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal, "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_computed_weights_go_on_being_computed(name):
    torch.manual_seed(0)
    model = nn.Sequential(WEIGHTS[name](nn.Conv2d(3, 4, 3))).eval()
    x = torch.randn(1, 3, 6, 6)
    report = convert(model)
    [entry] = report.swapped
    assert entry.weight == (4, 3, 3, 3)
    y = report.model(x)
    assert torch.equal(y, model(x))
    with torch.no_grad():
        next(model.parameters()).mul_(2)
        for one in model.parameters():
            one.add_(0.25)
    assert torch.equal(report.model(x), model(x))
    assert not torch.equal(report.model(x), y)
    grads = [torch.autograd.grad(one(x).pow(2).sum(), [*one.parameters()]) for one in (report.model, model)]
    assert same(*grads)


def test_parametrizations_can_be_removed():
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), parametrizations.weight_norm(Reshaping(3)))
    converted = convert(model).model
    x = torch.randn(1, 3, 6, 6)
    for module, before in zip(converted, model, strict=True):
        y = before(x)
        parametrize.remove_parametrizations(module, "weight")
        assert not parametrize.is_parametrized(module)
        assert type(module).__mro__[1 if isinstance(module, Reshaping) else 0] is pytorch.nn.Conv2d
        assert torch.equal(module(x), y)
        assert parametrize.is_parametrized(before)


def test_a_model_may_be_a_convolution_itself():
    conv = nn.Conv2d(3, 4, 3)
    report = convert(conv)
    assert (report.model.layer, report.entries[0].name) == (None, "")
    assert "(the model)" in str(report)
    assert convert(conv, inplace=True).model is conv
    assert type(conv) is pytorch.nn.Conv2d


def test_converted_models_can_be_traced_and_exported():
    model, x = build("conformer")
    converted = convert(model).model
    traced = torch.fx.symbolic_trace(converted)
    functions = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert functions.count(pytorch.conv1d) == 3
    exported = torch.export.export(converted, (x,))
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.nkiconv.conv1d.default) == 2
    assert targets.count(torch.ops.nkiconv.depthwise_conv1d.default) == 1
    for one in (traced, exported.module()):
        assert torch.equal(one(x), model(x))


class Reading(nn.Conv2d):
    """Half of its convolutions are in complex numbers, which stay in torch."""

    def forward(self, x):
        return super().forward(x) + nn.functional.conv2d(x + 0j, self.weight + 0j).real


def test_report():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), patched(), nn.Conv2d(6, 6, 5, groups=6))
    report = convert(model, functional=False)
    text = str(report)
    assert text.startswith("2 of 3 convolution modules swapped for nkiconv's; their share of flops is not known")
    assert "torch's convolution functions" not in text
    for word in ("6x1x5x5", "6x4x3x3", "has its own forward"):
        assert word in text
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["flops"] is None
    assert plain["entries"][2] == {
        "name": "2", "kind": "Conv2d", "weight": [6, 1, 5, 5], "operator": "conv2d", "reason": "", "packed": False,
        "packing": "", "epilogue": "", "function": "", "swapped": True,
    }  # fmt: skip
    assert (plain["entries"][1]["swapped"], plain["folds"]) == (False, [])


@pytest.mark.filterwarnings("ignore:nkiconv.pytorch.intercept. conv2d stays with torch. dtype")
@pytest.mark.parametrize("how", ["by position", "by name"])
def test_the_headline_is_the_share_of_flops(how):
    x = torch.randn(1, 3, 6, 6)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), Reading(3, 4, 3)) if how == "by position" else Reading(3, 4, 3)
    report = convert(model, example_inputs=(x,) if how == "by position" else {"x": x})
    ours = 2 * 4 * 16 * 27 + (2 * 3 * 36 * 3 if how == "by position" else 0)
    theirs = 3 * 2 * 4 * 16 * 27  # torch convolves complex numbers by three convolutions of real ones
    assert (report.measured.nkiconv, report.measured.torch) == (ours, theirs)
    first, second, third = str(report).splitlines()[:3]
    share = f"{ours / (ours + theirs):.1%} of {ours + theirs:,} flops of convolutions are nkiconv's"
    assert first == f"On example_inputs, {share}; the others: aten::convolution {theirs:,}"
    assert second.startswith("1 of 2 convolution modules" if how == "by position" else "0 of 1 convolution modules")
    assert third == "torch's convolution functions are nkiconv's in the model's forward"
    assert report.as_dict()["flops"] == {"nkiconv": ours, "torch": theirs, "fraction": report.measured.fraction}


def test_what_cannot_be_copied_is_converted_in_place():
    model = nn.Sequential(nn.Conv1d(2, 2, 1))
    model.lines = (line for line in "abc")
    with pytest.raises(UnsupportedError, match=r"model: cannot be copied .*generator.*inplace=True"):
        convert(model)
    assert type(model[0]) is nn.Conv1d
    assert convert(model, inplace=True).swapped


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"model": nn.Conv2d}, DtypeError, "model: must be a torch.nn.Module, not type"),
    ({"model": None}, DtypeError, "model: must be a torch.nn.Module, not NoneType"),
    ({"filter": "conv1"}, UnsupportedError, "filter='conv1': must be None or a function"),
    ({"fold_batchnorm": True}, UnsupportedError, "fold_batchnorm=True: needs eval mode, and the model, 0 are in"),
    ({"example_inputs": torch.ones(1)}, DtypeError, r"example_inputs: must be a tuple or dict .* not Tensor; pass"),
    ({"fold_batchnorm": True, "filter": 1}, UnsupportedError, "2 reasons"),
])  # fmt: skip
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        convert(**{"model": nn.Sequential(nn.Conv2d(2, 2, 1)), **arguments})
