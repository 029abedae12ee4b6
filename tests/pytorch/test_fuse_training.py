"""convert(fuse=True) of models with BatchNorms in training: chains are fused, running statistics move as torch's."""

import copy

import pytest
import torch
from chained import C, drawn, image
from operators_seen import Seen
from torch import nn

from nkiconv.pytorch import convert
from nkiconv.pytorch.models.pending import Normed

TERMS = 9 * C
STEPS = 3


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


def trained(model, kind, inputs):
    """(results, gradients, buffers) of some steps of SGD; names of nkiconv's operators in the last."""
    found, optimizer = [], torch.optim.SGD(model.parameters(), 0.05)
    for x in inputs:
        optimizer.zero_grad()
        with Seen() as seen:
            y = model(x.to(kind))
        (y * y.detach().cos()).mean().backward()
        found += [y.detach(), *(one.grad.clone() for one in model.parameters())]
        optimizer.step()
    return [*found, *(one.clone() for one in model.buffers())], seen.names


ROWS = {1: (7,), 2: (6, 5), 3: (3, 4, 5)}
OPTIONS = {
    "as torch has it": {},
    "mean of all batches": {"momentum": None},
    "no running statistics": {"track_running_stats": False},
    "no affine": {"affine": False},
}


def assert_near(found, expected):
    """Within fp32 rounding of three layers forward and back, in each of the steps."""
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= STEPS * 16 * 3 * TERMS * 2.0**-24 * max(1, other.abs().max())


@pytest.mark.cover(6)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_steps_of_training(options, rank, calls):
    model = drawn(Basic(rank, **options)).train()
    report = convert(model, fuse=True)
    assert {chain.norm: chain.statistics for chain in report.chains} == {"bn1": ("conv1",), "bn2": ("conv2",)}
    wide = copy.deepcopy(model).double()
    inputs = [image(2, 3, *ROWS[rank], seed=seed) for seed in range(STEPS)]
    found, names = trained(copy.deepcopy(report.model), torch.float32, inputs)
    expected, _ = trained(wide, torch.float64, inputs)
    assert_near(found, expected)
    assert len(calls) == 2 * STEPS
    assert "nkiconv::channel_stats" not in names
    assert names.count(f"nkiconv::conv{rank}d_with_stats") == 2


def test_kernels_train(mode):
    model = drawn(Basic()).train()
    wide, inputs = copy.deepcopy(model).double(), [image(1, 3, 4, 4)]
    found, _ = trained(convert(model, fuse=True).model, torch.float32, inputs)
    expected, _ = trained(wide, torch.float64, inputs)
    assert_near(found, expected)


def test_evaluation_takes_running_statistics(calls):
    model = drawn(Basic()).train()
    converted = convert(model, fuse=True).model.eval()
    x = image(2, 3, 6, 5)
    with torch.no_grad(), Seen() as seen:
        found = converted(x)
    assert_near([found], [copy.deepcopy(model).eval().double()(x.double())])
    assert not any("stats" in name for name in seen.names)
    assert len(calls) == 2


def test_a_model_that_was_converted_for_evaluation():
    model = drawn(Basic()).eval()
    report = convert(model, fuse=True)
    assert [chain.statistics for chain in report.chains] == [(), ()]
    inputs = [image(2, 3, 6, 5)]
    found, names = trained(copy.deepcopy(report.model).train(), torch.float32, inputs)
    assert_near(found, trained(copy.deepcopy(model).double().train(), torch.float64, inputs)[0])
    assert names.count("nkiconv::channel_stats") == 2


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


@pytest.mark.slow
def test_compiled_steps():
    model, x = drawn(Basic()).train(), image(2, 3, 6, 5)
    expected, _ = trained(copy.deepcopy(model).double(), torch.float64, [x] * 2)
    converted = convert(model, fuse=True).model
    torch._dynamo.reset()
    compiled = torch.compile(converted, backend="aot_eager", fullgraph=True)
    optimizer, found = torch.optim.SGD(converted.parameters(), 0.05), []
    for _ in range(2):
        optimizer.zero_grad()
        y = compiled(x)
        (y * y.detach().cos()).mean().backward()
        found += [y.detach(), *(one.grad.clone() for one in converted.parameters())]
        optimizer.step()
    torch._dynamo.reset()
    assert_near([*found, *converted.buffers()], expected)
