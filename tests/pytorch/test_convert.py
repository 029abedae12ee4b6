"""Converted models compute what they did before, with everything that hangs on them; what stays has its reason. Under
intercept, torch's functions are nkiconv's for whoever calls them; valid calls never fail.
"""

import copy
import importlib
import pickle
import sys
import threading
import warnings

import pytest
import torch
from chained import made
from operators_seen import Seen, seen
from torch import nn
from torch.nn import functional as F
from torch_models import build

from nkiconv import pytorch
from nkiconv.errors import DtypeError, UnsupportedError
from nkiconv.pytorch import convert, intercept


def test_a_model_that_refuses_its_example_inputs_stays_as_it_was():
    def forward(self, x):
        if x.shape[1] != 4:
            raise ValueError("takes 4 channels")
        return self.conv(x)

    model = made(forward, conv=nn.Conv2d(4, 4, 3))
    with pytest.raises(ValueError, match="takes 4 channels"):
        convert(model, inplace=True, example_inputs=[torch.randn(1, 3, 5, 5)])
    assert type(model.conv) is nn.Conv2d
    report = convert(model, inplace=True, example_inputs=[torch.randn(1, 4, 5, 5)])
    assert report.model is model
    assert report.measured.fraction == 1.0


def test_a_lazy_module_is_swapped_once_it_has_run():
    module = nn.LazyConv2d(4, 3)
    module(torch.ones(1, 3, 5, 5))
    assert isinstance(convert(module).model, pytorch.nn.Conv2d)


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


KEPT = {
    "lazy": (lambda: nn.LazyConv2d(4, 3), "is lazy"),
    "complex": (lambda: nn.Conv2d(3, 4, 3, dtype=torch.complex64), "weights are torch.complex64"),
    "quantized": (lambda: torch.ao.nn.quantized.Conv2d(3, 4, 3), "is quantized"),
    "scripted": (lambda: torch.jit.script(nn.Conv2d(3, 4, 3)), "is scripted; convert the model before"),
    "patched": (patched, "has its own forward"),
    "ours": (lambda: pytorch.nn.Conv2d(3, 4, 3), "is nkiconv's already"),
}


@pytest.mark.filterwarnings("ignore:.*(quantized tensor creation|torch.jit):")
@pytest.mark.parametrize(("make", "reason"), KEPT.values(), ids=KEPT)
def test_what_stays_has_its_reason(make, reason):
    module = make()
    kind = type(module)
    report = convert(nn.Sequential(nn.Identity(), module, nn.Conv2d(3, 4, 3)), functional=False)
    [kept] = report.kept
    assert kept.name == "1"
    assert reason in kept.reason
    assert type(report.model[1]) is kind
    assert isinstance(report.model[2], pytorch.nn.Conv2d)


FREEZES = {"scripted": lambda module: module, "frozen": torch.jit.freeze}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("kind", FREEZES)
def test_a_scripted_part_stays_and_a_scripted_model_is_refused(kind):
    scripted = FREEZES[kind](torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()))
    for call in (convert, lambda model: pytorch.plan_model(model, [torch.ones(1, 3, 5, 5)])):
        with pytest.raises(UnsupportedError, match=r"model: is scripted or traced; convert the model before torch"):
            call(scripted)
    x, model = torch.randn(1, 3, 6, 6), nn.Sequential(scripted, nn.Conv2d(4, 2, 1)).eval()
    for more in ({"fold_batchnorm": True}, {"fuse": True}, {"pack_filters": "frozen"}):
        report = convert(model, example_inputs=(x,), **more)
        assert torch.equal(report.model(x), model(x))
        assert report.measured.others == {"aten::convolution": 2 * 16 * 4 * 27}


class Reading(nn.Conv2d):
    """Half of its convolutions are in complex numbers, which stay in torch."""

    def forward(self, x):
        return super().forward(x) + nn.functional.conv2d(x + 0j, self.weight + 0j).real


@pytest.mark.filterwarnings("ignore:nkiconv.pytorch.intercept. conv2d stays with torch. dtype")
def test_the_headline_is_the_share_of_flops():
    x = torch.randn(1, 3, 6, 6)
    report = convert(nn.Sequential(nn.Conv2d(3, 3, 1), Reading(3, 4, 3)), example_inputs=(x,))
    ours = 2 * 4 * 16 * 27 + 2 * 3 * 36 * 3
    theirs = 3 * 2 * 4 * 16 * 27  # torch convolves complex numbers by three convolutions of real ones
    share = f"{ours / (ours + theirs):.1%} of {ours + theirs:,} flops of convolutions are nkiconv's"
    first, second = str(report).splitlines()[:2]
    assert first == f"On example_inputs, {share}; the others: aten::convolution {theirs:,}"
    assert second == "2 of 2 convolutions are nkiconv's, 1 of them by functions that their layers call"
    assert report.as_dict()["flops"] == {"nkiconv": ours, "torch": theirs, "fraction": report.measured.fraction}


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"model": nn.Conv2d}, DtypeError, "model: must be a torch.nn.Module, not type"),
    ({"model": None}, DtypeError, "model: must be a torch.nn.Module, not NoneType"),
    ({"filter": "conv1"}, UnsupportedError, "filter='conv1': must be None or a function"),
    ({"fold_batchnorm": True}, UnsupportedError, "fold_batchnorm=True: needs eval mode, and the model, 0 are in"),
    ({"example_inputs": torch.ones(1)}, DtypeError, r"example_inputs: must be a tuple or dict .* not Tensor; pass"),
    ({"fold_batchnorm": True, "filter": 1}, UnsupportedError, "2 reasons"),
    ({"fuse": 1}, UnsupportedError, "fuse=1: must be True or False"),
    ({"fuse": None}, UnsupportedError, "fuse=None: must be True or False"),
    ({"fold_batchnorm": "no"}, UnsupportedError, "fold_batchnorm='no': must be True or False"),
    ({"causal_conv1d": None, "inplace": 1}, UnsupportedError, "(?s)2 reasons.*causal_conv1d=None.*inplace=1: must be"),
    ({"polyphase": True}, UnsupportedError, "polyphase=True: is of what fuse=True finds; pass both"),
    ({"pack_filters": True}, UnsupportedError, "pack_filters=True: accepted are None, frozen"),
    ({"pack_filters": "frozen"}, UnsupportedError, "example_inputs=None: whether a packed filter is faster"),
    ({"pack_filters": "frozen", "example_inputs": (torch.ones(1, 2, 4, 4),)}, UnsupportedError, "needs eval mode, and"),
])  # fmt: skip
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        convert(**{"model": nn.Sequential(nn.Conv2d(2, 2, 1)), **arguments})


# How much of the convolutions' arithmetic is nkiconv's where models convolve by functions of their files.

FILE = "modeling_stub"
#: A model file as those of transformers are: functions of torch, which its layers look up when they run.
SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
    rows = F.pad(hidden_states, (weight.shape[1] - 1, 0)).to(weight.dtype)
    y = F.conv1d(rows, weight[:, None], bias, groups=weight.shape[0])
    y = {None: lambda y: y, "silu": F.silu, "gelu": F.gelu}[activation](y)
    return y.to(hidden_states.dtype)

def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
    rows = torch.cat([conv_state, hidden_states], 2)
    conv_state.copy_(rows[..., -conv_state.shape[2]:])
    return causal_conv1d_fn(rows, weight, bias, activation)[..., -hidden_states.shape[2]:]

class Mixer(nn.Module):
    def __init__(self, activation="silu"):
        super().__init__()
        self.conv1d = nn.Conv1d(6, 6, 4, padding=3, groups=6)
        self.activation = activation

    def forward(self, x, state=None):
        weight = self.conv1d.weight.squeeze(1)
        if state is not None:
            return causal_conv1d_update(x, state, weight, self.conv1d.bias, activation=self.activation)
        return causal_conv1d_fn(x, weight, self.conv1d.bias, activation=self.activation, other_layers="argument")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / f"{FILE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(FILE)
    del sys.modules[FILE]


X = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(1))
FLOPS = 2 * 2 * 6 * 9 * 4  # of a causal convolution of X with 4 taps


def test_functions_of_a_model_s_file(file):
    """Their modules are never called: the share of a run says what the list of modules cannot."""
    torch.manual_seed(0)
    model, state = nn.Sequential(file.Mixer(), nn.Conv1d(6, 6, 1)), torch.randn(2, 6, 3)
    states, before = [state.clone(), state.clone()], dict(vars(file))
    expected, step = model(X), model[0](X[..., :1], states[0])
    apart = convert(model, causal_conv1d=False, functional=False, example_inputs=(X,))
    assert (len(apart.swapped), apart.measured.nkiconv) == (2, 2 * 2 * 9 * 6 * 6)
    assert 0 < apart.measured.fraction < 1
    report = convert(model)
    assert [(entry.operator, entry.swapped) for entry in report.entries] == [("causal_conv1d", False), ("conv1d", True)]
    assert report.entries[0].function == f"causal_conv1d_fn of {FILE}"
    assert str(report).startswith("2 of 2 convolutions are nkiconv's, 1 of them by functions that their layers call")
    assert not report.kept
    torch.testing.assert_close(report.model(X), expected)
    torch.testing.assert_close(report.model[0](X[..., :1], states[1]), step)
    assert torch.equal(*states)
    share = report.share(X)
    assert (share.fraction, share.nkiconv) == (1, FLOPS + 2 * 2 * 9 * 6 * 6)
    report.installation.undo()
    assert all(vars(file)[name] is one for name, one in before.items())


def test_calls_that_nkiconv_refuses_stay_with_the_file_s_function(file):
    model = file.Mixer("gelu")
    expected = model(X)
    report = convert(model, functional=False)
    with pytest.warns(UserWarning, match="causal_conv1d_fn: stays with the model's own function: activation='gelu'"):
        found = report.model(X)
    assert torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(report.model(X), expected)
    assert report.share(X).fraction == 0
    report.installation.undo()


# Under intercept.
OURS, THEIRS = "nkiconv::conv2d", "aten::convolution"


def reader():
    """Reads the numbers of its layer."""

    def forward(self, x):
        return torch.conv1d(F.pad(x.flatten(2), (2, 0)), self.conv.weight, bias=self.conv.bias, groups=4)

    return made(forward, conv=nn.Conv1d(4, 4, 3, groups=4))


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), reader()).eval()


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
ALL = [OURS, "nkiconv::depthwise_conv1d"]


Tagged = type("Tagged", (torch.Tensor,), {})
REFUSED = {
    "integers": (lambda: F.conv1d(torch.ones(1, 1, 3).long(), torch.ones(1, 1, 1).long()),
     "dtype: torch.int64 must be one of"),
    "complex": (lambda: F.conv2d(IMAGES + 0j, torch.ones(1, 3, 1, 1) + 0j), "dtype: torch.complex64 must be one of"),
    "subclass": (lambda: F.conv2d(IMAGES.as_subclass(Tagged), torch.ones(1, 3, 1, 1)), "Tagged has a meaning"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_nkiconv_does_not_take_stays_with_torch_and_is_told_once(call, message):
    expected = call()
    with intercept(), pytest.warns(UserWarning, match="stays with torch") as told:
        found, again = call(), call()
    assert len(told) == 1
    assert message in str(told[0].message)
    assert type(found) is type(expected)
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)


def test_errors_of_torch_stay_torch_s():
    w = torch.ones(1, 4, 1, 1)
    with warnings.catch_warnings(), intercept():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="expected input"):
            F.conv2d(IMAGES, w)


def test_blocks_may_be_nested_and_end_with_exceptions():
    made = model()
    with intercept(), intercept():
        assert seen(made, IMAGES)[1] == ALL
    with pytest.raises(TypeError), intercept(), intercept():
        made(None)
    assert seen(made, IMAGES)[1] == [THEIRS] * 2
    with pytest.warns(UserWarning, match="stays with torch") as told, intercept(), intercept():
        assert seen(*[F.conv2d, IMAGES.long(), torch.ones(1, 3, 1, 1).long()])[1] == [THEIRS]
    assert len(told) == 1


def test_it_holds_in_its_own_thread_only():
    made, names = model(), {}
    inside, outside = threading.Event(), threading.Event()

    def block():
        with intercept():
            inside.set()
            outside.wait(60)
            names["inside"] = seen(made, IMAGES)[1]

    thread = threading.Thread(target=block)
    thread.start()
    inside.wait(60)
    names["outside"] = seen(made, IMAGES)[1]
    outside.set()
    thread.join()
    assert names == {"inside": ALL, "outside": [THEIRS] * 2}


def test_a_converted_model_runs_a_forward_of_its_own_so():
    own = reader()
    own.forward = lambda x: F.conv2d(x, torch.ones(1, 3, 1, 1))
    found, names = seen(convert(own, inplace=True).model, IMAGES)
    assert names == [OURS]
    torch.testing.assert_close(found, IMAGES.sum(1, keepdim=True))
