"""Random models that are converted with fuse=True give what they gave, with their gradients."""

import copy

import pytest
import torch
from chained import C, drawn, image
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import convert
from nkiconv.pytorch.models import fusing

TAPS = 3
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCES = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def added_in_place(last, other):
    total = last * 1
    total += other
    return total


#: What a model does with the last value and an earlier one.
STEPS = {
    "relu": lambda last, _: F.relu(last),
    "relu in place": lambda last, _: F.relu_(last * 1),
    "silu": lambda last, _: F.silu(last),
    "leaky": lambda last, _: F.leaky_relu(last),
    "sum": lambda last, other: last + other,
    "sum, second": lambda last, other: other + last,
    "sum in place": added_in_place,
    "sum over 1": lambda last, other: (last + other) / 1.0,
    "offset": lambda last, other: last + other,  # of its first pixels
    "product": lambda last, other: last * other,
    "half of both": lambda last, other: torch.cat([last, other], 1)[:, ::2],
}
#: Modules by the rank of images.
MODULES = {
    "convolution": lambda rank: CONVOLUTIONS[rank](C, C, TAPS, padding=1),
    "pointwise": lambda rank: CONVOLUTIONS[rank](C, C, 1, bias=False),
    "groups": lambda rank: CONVOLUTIONS[rank](C, C, TAPS, padding=1, groups=2),
    "depthwise": lambda rank: CONVOLUTIONS[rank](C, C, TAPS, padding=1, groups=C),
    "batch norm": lambda rank: NORMS[rank](C),
    "group norm": lambda _: nn.GroupNorm(2, C),
    "instance norm": lambda rank: INSTANCES[rank](C, affine=True),
    "ReLU": lambda _: nn.ReLU(inplace=False),
    "GELU": lambda _: nn.GELU(),
    "Dropout": lambda _: nn.Dropout(0.5),
}


class Random(nn.Module):
    """Steps (name, which earlier value), each of the last value."""

    def __init__(self, rank, steps):
        super().__init__()
        self.steps, self.first = steps, (slice(None), slice(None), *[slice(1)] * rank)
        self.parts = nn.ModuleList(MODULES.get(name, lambda _: nn.Identity())(rank) for name, _ in steps)

    def forward(self, x):
        values = [x]
        for part, (name, back) in zip(self.parts, self.steps, strict=True):
            last, other = values[-1], values[back % len(values)]
            other = other[self.first] if name == "offset" else other
            values.append(part(last) if name in MODULES else STEPS[name](last, other))
        return values[-1] + values[-2]


def run(model, x):
    """(y, dL/dx) of a model that may move its statistics."""
    own, x = copy.deepcopy(model), x.clone().requires_grad_()
    y = own(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]


def check(rank, steps, training, fold):
    model = drawn(Random(rank, steps)).train(training)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    x = image(2, C, *(4, 3, 5)[:rank])
    truth, plain = run(model.double(), x.double()), run(model.float(), x)
    found = run(convert(model, fuse=True, fold_batchnorm=fold and not training).model, x)
    for one, other, right in zip(found, plain, truth, strict=True):
        scale = right.abs().max().clamp(min=1)
        # the model's own rounding errors, and as much again for sums in another order, by some factor
        limit = 20 * (other - right).abs().max() + 4 * TAPS**rank * C * len(steps) * 2.0**-24 * scale
        assert (one - right).abs().max() <= limit


MODELS = (
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from([*MODULES] * 2 + [*STEPS]), st.integers(0, 6)), min_size=2, max_size=9),
    st.booleans(),
    st.booleans(),
)


@draws(96, 2000)
@given(*MODELS, st.tuples(*[st.booleans()] * 3))
def test_random_models(rank, steps, training, fold, pays):
    with pytest.MonkeyPatch.context() as patch:
        for name, one in zip(("prologue_pays", "statistics_pay", "sum_pays"), pays, strict=True):
            patch.setattr(fusing, name, lambda *_, one=one: one)
        check(rank, steps, training, fold)
