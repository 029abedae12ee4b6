"""convert(fuse=True) of models with BatchNorms in training: chains are fused, running statistics move as torch's."""

import copy

import pytest
import torch
from chained import C, assert_gradients, drawn, image
from operators_seen import Seen
from torch import nn

from nkiconv.pytorch import convert
from nkiconv.pytorch.models.pending import Normed

TERMS = 9 * C


class Basic(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, rank=2, **options):
        super().__init__()
        conv, norm = getattr(nn, f"Conv{rank}d"), getattr(nn, f"BatchNorm{rank}d")
        self.conv1, self.bn1, self.act = conv(3, C, 3, padding=1), norm(C, **options), nn.ReLU(inplace=True)
        self.conv2, self.bn2, self.conv3 = conv(C, C, 3, padding=1), norm(C, **options), conv(C, C, 1)

    def forward(self, x):
        h = self.conv2(self.act(self.bn1(self.conv1(x))))
        return self.conv3(self.act(self.bn2(h)))


ROWS = {1: (7,), 2: (6, 5), 3: (3, 4, 5)}
OPTIONS = {
    "as torch has it": {},
    "mean of all batches": {"momentum": None},
    "no running statistics": {"track_running_stats": False},
    "no affine": {"affine": False},
}


def assert_near(found, expected):
    """Within fp32 rounding of three layers, and of the sums of pixels in statistics."""
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 16 * 3 * TERMS * 2.0**-24 * max(1, other.abs().max())


@pytest.mark.cover(6)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_step_of_training(options, rank, calls):
    model, x = drawn(Basic(rank, **options)).train(), image(2, 3, *ROWS[rank])
    report = convert(model, fuse=True)
    assert {chain.norm: chain.statistics for chain in report.chains} == {"bn1": ("conv1",), "bn2": ("conv2",)}
    assert_gradients(report.model, model, x, terms=3 * TERMS)
    assert len(calls) == 2
    with Seen() as seen:
        report.model(x)
    assert "nkiconv::channel_stats" not in seen.names
    assert seen.names.count(f"nkiconv::conv{rank}d_with_stats") == 2


class NormAct(nn.BatchNorm2d):
    """timm's: an activation in the norm's own forward."""

    def __init__(self, act, after=lambda y: y):
        super().__init__(C)
        self.act, self.after = act, [after]

    def forward(self, x):
        return self.after[0](self.act(super().forward(x)))


class GroupNormAct(nn.GroupNorm):
    def __init__(self, act):
        super().__init__(2, C)
        self.act = act

    def forward(self, x):
        return self.act(super().forward(x))


OWN = {
    "silu": (NormAct(nn.SiLU(inplace=True)), "silu"),
    "relu": (NormAct(nn.ReLU(inplace=True)), "relu"),
    "none": (NormAct(nn.Identity()), None),
    "groups": (GroupNormAct(nn.GELU()), "gelu"),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_norms_with_an_activation_in_their_forward(name, training, calls):
    """One call, with its gradients and running statistics; and alone, also once these have moved."""
    norm, activation = OWN[name]
    model = drawn(nn.Sequential(nn.Conv2d(3, C, 3), norm, nn.Conv2d(C, C, 3, padding=1))).train(training)
    report = convert(model, fuse=True)
    assert [(one.fused, one.activation) for one in report.chains] == [(True, activation)]
    assert_gradients(report.model, model, image(2, 3, 6, 5), terms=3 * TERMS)
    assert calls == [(activation, False)]
    first, middle, last = report.model
    with torch.no_grad():
        h = first(image(2, 3, 6, 5))
        pending, expected = middle(h), copy.deepcopy(model[1])(h.clone())
        last(pending)
        assert (pending + 0 - expected).abs().max() <= 64 * 2.0**-24 * expected.abs().max()


@pytest.mark.parametrize("norm", [
    NormAct(nn.SiLU(), lambda y: y + 1), NormAct(nn.Dropout(0.5)), NormAct(nn.SiLU(), lambda y: y[:, :4]),
    NormAct(nn.Softshrink()),
])  # fmt: skip
def test_norms_that_do_something_else_stay(norm):
    model = nn.Sequential(norm, nn.Conv2d(C, C, 3)).eval()
    assert ["a forward of its own" in one.reason for one in convert(model, fuse=True).chains] == [True]


def test_kernels_train(mode):
    model = drawn(Basic()).train()
    assert_gradients(convert(model, fuse=True).model, model, image(1, 3, 4, 4), terms=3 * TERMS)


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_was_converted_in_the_other_mode(first, calls):
    model, x = drawn(Basic()).train(first), image(2, 3, 6, 5)
    report = convert(model, fuse=True)
    assert [bool(chain.statistics) for chain in report.chains] == [first] * 2
    converted, plain = copy.deepcopy(report.model).train(not first), copy.deepcopy(model).train(not first)
    assert_gradients(converted, plain, x, terms=3 * TERMS)
    with Seen() as seen:
        converted(x)
    assert (seen.names.count("nkiconv::channel_stats"), len(calls)) == (0 if first else 2, 4)


def test_statistics_move_once_for_each_call():
    """However often code that no graph shows asks for what the norm gives."""
    model = drawn(nn.Sequential(nn.BatchNorm2d(C), nn.SiLU(), nn.Conv2d(C, C, 3))).train()
    norm, act, conv = convert(model, fuse=True).model
    x = image(2, C, 6, 5)
    expected = copy.deepcopy(model[0]).double()
    z = norm(x)
    assert isinstance(z, Normed)
    first, other = act(z), z * 1
    found = conv(first), first + 0, z + 0
    right = expected(x.double())
    assert_near([norm.running_mean, norm.running_var], [expected.running_mean, expected.running_var])
    assert int(norm.num_batches_tracked) == 1
    h = nn.functional.silu(right)
    assert_near([other, *found], [right, copy.deepcopy(model[2]).double()(h), h, right])
