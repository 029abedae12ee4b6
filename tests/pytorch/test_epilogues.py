"""convert(fuse=True) lets convolutions take in the sum and the activation after them, where nothing else can tell."""

import operator

import pytest
import torch
from chained import C, assert_gradients, assert_same, drawn, image
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert, plan_model


class Calls(TorchDispatchMode):
    """(activation, whether there is a residual) of each call of an operator of nkiconv, and names of torch's."""

    def __init__(self):
        super().__init__()
        self.ours, self.others = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name.startswith("nkiconv::"):
            given = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
            self.ours.append((given["activation"], given["residual"] is not None))
        else:
            self.others.append(name.partition("::")[2].partition(".")[0])
        return func(*args, **(kwargs or {}))


def calls(model, *inputs):
    with Calls() as found, torch.no_grad():
        model(*inputs)
    return found


def epilogues(report):
    return {entry.name: entry.epilogue for entry in report.entries}


class Bottleneck(nn.Module):
    """ResNet's, whose last activation sees a sum in place."""

    def __init__(self, activation=None, down=True):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(C, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, 2 if down else 1, 1, bias=False), nn.BatchNorm2d(4)
        self.conv3, self.bn3 = nn.Conv2d(4, C, 1, bias=False), nn.BatchNorm2d(C)
        self.down = nn.Sequential(nn.Conv2d(C, C, 1, 2, bias=False), nn.BatchNorm2d(C)) if down else nn.Identity()
        self.act = activation or nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.act(self.bn2(self.conv2(y)))))
        y += self.down(x)
        return self.act(y)


TERMS = 2 * 9 * C


@pytest.mark.parametrize(("activation", "name"), [(None, "relu"), (nn.SiLU(), "silu"), (nn.GELU("tanh"), "gelu_tanh")])
def test_a_bottleneck_is_its_convolutions(activation, name):
    model = drawn(Bottleneck(activation)).eval()
    report = convert(model, fuse=True, fold_batchnorm=True)
    sums = f"sum, {name}"
    assert epilogues(report) == {"conv1": name, "conv2": name, "conv3": sums, "down.0": ""}
    assert "3 convolutions with the sum or the activation after them in their call" in str(report)
    x = image(2, C, 6, 8)
    assert_same(report.model, model, x, terms=TERMS)
    found = calls(report.model, x)
    assert found.ours == [(name, False), (name, False), (None, False), (name, True)]
    assert not {"relu", "relu_", "silu", "gelu", "add", "add_"} & {*found.others}


class Convolutions(nn.Module):
    """Two convolutions, and what a test makes of them."""

    def __init__(self, forward, rank=2, **more):
        super().__init__()
        kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
        more = {"padding": 1, **more}
        self.a, self.b = kind(C, C, 3, **more), kind(C, C, 3, **more)
        self.act, self.norm = nn.SiLU(), nn.GroupNorm(2, C)
        self.does = [forward]  # no module

    def forward(self, x):
        return self.does[0](self, x)


def changed_between(m, x):
    y = m.a(x)
    x.mul_(2)
    return F.relu(y)


WAYS = {
    "functions": (lambda m, x: F.silu(m.b(torch.relu(m.a(x)))), ("relu", "silu")),
    "in place": (lambda m, x: F.silu(m.b(F.relu(m.a(x), inplace=True)), inplace=True), ("relu", "silu")),
    "a sum": (lambda m, x: m.b(x + m.a(x)), ("sum", "")),
    "a sum, second": (lambda m, x: torch.tanh(torch.add(x, m.a(x)) * m.b(x)), ("sum", "")),
    "both terms are convolutions": (lambda m, x: F.relu(m.a(x) + m.b(x)), ("sum, relu", "")),
    "in place, second": (lambda m, x: F.relu(operator.iadd(x * 2, m.a(x)) + m.b(x)), ("sum", "sum, relu")),
    "after a norm": (lambda m, x: F.relu(x + m.a(m.act(m.norm(x)))) + m.b(x), ("sum, relu", "sum")),
    "a chain has the sum": (lambda m, x: F.relu(m.b(x) + m.a(m.act(m.norm(x)))), ("sum, relu", "")),
    "seen twice": (lambda m, x: torch.cat([y := m.a(x), F.relu(y)]) + 0 * m.b(x).sum(), ("", "")),
    "a product": (lambda m, x: F.relu(m.a(x) * 2) + 0 * m.b(x).sum(), ("", "")),
    "a number": (lambda m, x: F.relu(m.a(x) + 1) + 0 * m.b(x).sum(), ("", "")),
    "slope": (lambda m, x: F.leaky_relu(m.a(x)) + 0 * m.b(x).sum(), ("", "")),
    "doubled": (lambda m, x: F.relu((y := m.a(x)) + y) + 0 * m.b(x).sum(), ("", "")),
    "scaled": (lambda m, x: F.relu(torch.add(m.a(x), x, alpha=2)) + 0 * m.b(x).sum(), ("", "")),
    "changed between": (changed_between, ("", "")),
}  # fmt: skip


@pytest.mark.cover(15)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_ways(way, rank):
    does, expected = WAYS[way]
    model = drawn(Convolutions(does, rank)).eval()
    report = convert(model, fuse=True)
    found = epilogues(report)
    assert (found["a"], found["b"]) == expected
    check = assert_same if way == "changed between" else assert_gradients  # of which torch has none
    check(report.model, model, image(2, C, *(5, 6, 7)[-rank:]), terms=2 * 3**rank * C)


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1)

    def forward(self, x, other):
        return F.relu(self.conv(x) + other)


@pytest.mark.parametrize("other", [(1, C, 1, 1), (1, 2, C, 6, 7)])
def test_other_shapes_are_added_by_torch(other):
    model, inputs = drawn(Added()).eval(), (image(2, C, 6, 7), image(*other))
    report = convert(model, fuse=True)
    assert epilogues(report) == {"conv": "sum, relu"}
    assert_same(report.model, model, *inputs, terms=TERMS)
    assert calls(report.model, *inputs).ours == [(None, False)]


OPTIONS = [
    {"padding_mode": "circular"}, {"padding": "same"}, {"stride": 2}, {"groups": C}, {"dilation": 2}, {"bias": False},
]  # fmt: skip


@pytest.mark.parametrize("more", OPTIONS)
def test_options_of_the_convolution(more):
    model = drawn(Convolutions(lambda m, x: F.relu(m.a(x) + m.b(x)), **more)).eval()
    report = convert(model, fuse=True)
    assert epilogues(report) == {"a": "sum, relu", "b": ""}
    x = image(2, C, 6, 7)
    assert_same(report.model, model, x, terms=TERMS)
    assert calls(report.model, x).ours[-1] == ("relu", True)


def test_what_is_not_a_chain_computes_as_before():
    """Convolutions called by themselves, images without N, autocast, hooks that come later."""
    model = drawn(Convolutions(lambda m, x: F.relu(m.a(x)) + m.b(x))).eval()
    found = convert(model, fuse=True).model
    x = image(2, C, 6, 7)
    one = found.a(x)
    assert torch.equal(one + 0, model.a(x)) or (one - model.a(x)).abs().max() < TERMS * 2.0**-20
    assert tuple(one.shape) == (2, C, 6, 7)
    assert_same(found, model, x[0], terms=TERMS)
    with torch.autocast("cpu", torch.bfloat16):
        assert found(x).dtype == model(x).dtype
    seen = []
    found.a.register_forward_hook(lambda _m, _i, y: seen.append(type(y)))
    assert_same(found, model, x, terms=TERMS)
    assert seen == [torch.Tensor]


def test_an_input_that_other_code_changes_is_an_error():
    changes = []

    def does(m, x):
        y = m.a(x)
        for change in changes:  # that no graph shows
            change(x)
        return F.relu(y) + m.b(x)

    found = convert(drawn(Convolutions(does)).eval(), fuse=True).model
    changes.append(lambda x: x.mul_(2))
    with pytest.raises(UnsupportedError, match="changed in place"):
        found(image(2, C, 6, 7))


def test_plans_have_them():
    model = drawn(Bottleneck()).eval()
    plan = plan_model(model, (torch.randn(1, C, 6, 8),), fuse=True, fold_batchnorm=True, quick=True)
    found = {name: row.convolved.asked for row in plan.rows for name in row.layers}
    told = {name: (asked.activation, asked.residual) for name, asked in found.items()}
    plain = (None, None)
    assert told == {
        "conv1": ("relu", None), "conv2": ("relu", None), "conv3": ("relu", "pre_activation"), "down.0": plain,
    }  # fmt: skip
    assert plan.uncalled == ()
