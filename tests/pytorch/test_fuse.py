"""convert(fuse=True) makes norm, activation, convolution and the sum after it one call, where nothing else can tell."""

import copy
import dataclasses
import pickle

import pytest
import torch
from chained import Block, C, assert_same, drawn, image
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.planner.request import Asked
from nkiconv.pytorch import convert, plan_model
from nkiconv.pytorch.models import fusing

K = 6
NOT_ALONE = "is not followed by one convolution, with at most an activation between, that alone sees its result"


def told(report):
    return {chain.norm: str(chain) if chain.fused else chain.reason for chain in report.chains}


def test_chains_that_share_an_activation(calls):
    model = drawn(Block()).eval()
    state = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fuse=True)
    assert told(report) == {"norm1": "act -> conv1", "norm2": "act -> dropout -> conv2 -> sum"}
    assert_same(report.model, model, image(2, C, 6, 5), image(2, 4), terms=2 * 9 * C)
    assert calls == [("silu", False), ("silu", True)]
    assert [*report.model.state_dict()] == [*state]
    assert all(torch.equal(one, state[name]) for name, one in report.model.state_dict().items())
    assert report.model.conv1.weight is model.conv1.weight
    assert [type(one) for one in model.children()] == [type(one) for one in Block().children()]
    assert "2 of 2 norms fused" in str(report)
    assert "one call with act -> conv1" in str(report)
    assert [row["fused"] for row in report.as_dict()["chains"]] == [True, True]


@pytest.mark.parametrize(("argument", "remedy"), [
    ({"fuse": 1}, "fuse=1: must be True or False"),
    ({"fuse": None}, "fuse=None: must be True or False"),
    ({"fuse": True, "pack_filters": "frozen", "example_inputs": (image(1, C, 4, 4),)}, "does not go with pack_filters"),
])  # fmt: skip
def test_refusals(argument, remedy):
    model = nn.Sequential(nn.GroupNorm(2, C), nn.SiLU(), nn.Conv2d(C, K, 3)).eval()
    with pytest.raises(UnsupportedError, match=remedy):
        convert(model, inplace=True, **argument)
    assert type(model[2]) is nn.Conv2d


ACTS = {
    "relu": nn.ReLU(inplace=True), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"),
    "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), None: nn.Identity(),
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTS)
def test_activations(activation, calls):
    model = drawn(nn.Sequential(nn.GroupNorm(2, C), ACTS[activation], nn.Conv2d(C, K, 3, padding=1)))
    report = convert(model, fuse=True)
    assert [(chain.activation, chain.fused) for chain in report.chains] == [(activation, True)]
    assert_same(report.model, model, image(2, C, 5, 5), terms=9 * C)
    assert calls == [(activation, False)]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["GroupNorm", "BatchNorm", "InstanceNorm"])
def test_norms_and_ranks(kind, rank, calls):
    norm = nn.GroupNorm(4, C) if kind == "GroupNorm" else getattr(nn, f"{kind}{rank}d")(C, affine=True)
    options = {"padding": "same"} if rank == 1 else {"stride": 2, "padding": 1, "groups": 2}
    model = drawn(nn.Sequential(norm, nn.SiLU(), getattr(nn, f"Conv{rank}d")(C, K, 3, **options))).eval()
    report = convert(model, fuse=True)
    assert_same(report.model, model, image(2, C, *[5] * rank), terms=3**rank * C)
    assert len(calls) == 1


def test_kernels_compute_a_chain(mode, calls):
    """In `simulate` and `compare` too."""
    model = drawn(nn.Sequential(nn.GroupNorm(2, C), nn.SiLU(), nn.Conv2d(C, K, 3, padding=1)))
    report = convert(model, fuse=True)
    x = image(1, C, 4, 4)
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(x.double())
        error = (report.model(x) - truth).abs().max()
    assert error <= 4 * 9 * C * 2.0**-24 * truth.abs().max()
    assert len(calls) == 1


class Functional(Block):
    """Functions in the place of modules, and a sum in place."""

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.dropout(torch.relu(self.norm2(h)), 0.5, False))
        h += x
        return h


def test_functions(calls):
    model = drawn(Functional())
    report = convert(model, fuse=True)
    assert told(report) == {"norm1": "silu -> conv1", "norm2": "relu -> conv2 -> sum"}
    assert_same(report.model, model, image(2, C, 6, 5), image(2, 4), terms=2 * 9 * C)
    assert calls == [("silu", False), ("relu", True)]


class Left(Block):
    """A block with a chain in it that is none."""

    def forward(self, x, t):
        return self.conv2(self.act(self.chain(x, t)))

    def chain(self, x, t):
        raise NotImplementedError


class TwoUsers(Left):
    def chain(self, x, t):
        z = self.norm1(x)
        return self.conv1(self.act(z)) + z


class ActivationIsRead(Left):
    def chain(self, x, t):
        z = self.act(self.norm1(x))
        return self.conv1(z) * z.mean()


class TwoActivations(Left):
    def chain(self, x, t):
        return self.conv1(self.act(self.act(self.norm1(x))))


class Returned(Left):
    def forward(self, x, t):
        z = self.norm1(x)
        return self.conv1(self.act(z)), z


class Branching(Left):
    """A chain on one way alone."""

    def chain(self, x, t):
        z = self.norm1(x)
        return self.conv1(self.act(z)) if t.sum() > 0 else z


class ChangedInput(Left):
    def chain(self, x, t):
        z = self.norm1(x)
        x.mul_(2)
        return self.conv1(self.act(z)) + x


class Scaled(Left):
    def chain(self, x, t):
        return self.conv1(self.act(self.norm1(x) * (1 + t.sum())))


@pytest.mark.parametrize("kind", [
    TwoUsers, ActivationIsRead, TwoActivations, Returned, Branching, ChangedInput, Scaled,
])  # fmt: skip
def test_what_something_else_sees_stays(kind, calls):
    model = drawn(kind()).eval()
    report = convert(model, fuse=True)
    assert told(report)["norm1"] == NOT_ALONE
    for sign in (1, -1):
        x, t = image(2, C, 6, 5), sign * image(2, 4)
        with torch.no_grad():
            found, expected = report.model(x.clone(), t), model(x.clone(), t)
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() <= 8 * 2 * 9 * C * 2.0**-24 * max(1, other.abs().max())
    assert calls == []


class InSteps(Block):
    """A sum that not every call makes, and an input that changes before the sum."""

    def forward(self, x, t):
        h = self.conv1(self.act(self.norm1(x)))
        x.mul_(2)
        return h + x


def test_a_sum_after_a_change_in_place_is_not_in_the_call(calls):
    model = drawn(InSteps()).eval()
    report = convert(model, fuse=True)
    assert told(report)["norm1"] == "act -> conv1"
    x, t = image(2, C, 6, 5), image(2, 4)
    with torch.no_grad():
        assert_within_share([report.model(x.clone(), t)], [model(x.clone(), t)], FLOAT32_SUMS)
    assert calls == [("silu", False)]


def hooked(model):
    model[0].register_forward_hook(lambda *_: None)
    return model


def chain(norm=None, act=None, conv=None):
    return nn.Sequential(norm or nn.GroupNorm(2, C), act or nn.SiLU(), conv or nn.Conv2d(C, K, 3, padding=1))


class OwnNorm(nn.GroupNorm):
    def forward(self, input):
        return super().forward(input) + 1


class OwnConv(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) + 1


@pytest.mark.parametrize(("model", "reason"), [
    (hooked(chain()), "a module of it has hooks, which would see no tensor"),
    (chain(hooked(nn.Sequential(nn.GroupNorm(2, C)))), "a module of it has hooks"),
    (hooked(nn.Sequential(nn.Sequential(nn.GroupNorm(2, C)), nn.Conv2d(C, K, 3))), "a module of it has hooks"),
    (chain(conv=hooked(nn.Sequential(nn.Conv2d(C, K, 3)))), "a module of it has hooks"),
    (chain(nn.SyncBatchNorm(C)), "takes statistics of all processes in training; call model.eval() first"),
    (chain(nn.InstanceNorm2d(C, track_running_stats=True)).eval(), "has running statistics"),
    (chain(act=nn.Hardswish()), NOT_ALONE),
    (chain(act=nn.Dropout(0.5)), NOT_ALONE),
    (chain(conv=nn.ConvTranspose2d(C, K, 3)), "its convolution is transposed"),
    (chain(conv=OwnConv(C, K, 3)), "its convolution is not swapped by this call"),
    (chain(OwnNorm(2, C)), "is a OwnNorm with a forward of its own"),
])  # fmt: skip
def test_why_a_chain_stays(model, reason, calls):
    drawn(model)
    report = convert(model, fuse=True)
    [one] = report.chains
    assert reason in one.reason
    torch.manual_seed(0)
    found = report.model(image(2, C, 5, 5))
    torch.manual_seed(0)
    assert (found - model(image(2, C, 5, 5))).abs().max() <= 8 * 9 * C * 2.0**-24 * max(1, found.abs().max())
    assert calls == []


def test_transposed_convolutions_read_what_is_pending():
    """Of code that no graph shows, which gives a norm's result to another convolution than the chain's."""
    norm, up = nn.GroupNorm(2, C), nn.ConvTranspose2d(C, K, 2, 2)
    model = drawn(nn.Sequential(norm, nn.SiLU(), nn.Conv2d(C, C, 1), up))
    own = convert(model, fuse=True).model
    x = image(2, C, 5, 5)
    found, expected = own[3](own[0](x)), up(norm(x))
    assert (found - expected).abs().max() <= 8 * C * 2.0**-24 * max(1, expected.abs().max())


def test_chains_of_depthwise_rows_stay():
    model = drawn(nn.Sequential(nn.GroupNorm(2, C), nn.SiLU(), nn.Conv1d(C, C, 3, groups=C)))
    report = convert(model, fuse=True)
    [one] = report.chains
    assert "its convolution is of depthwise rows" in one.reason
    assert_same(report.model, model, image(2, C, 9), terms=3 * C)


@pytest.mark.parametrize(("apart", "pays"), [(90.0, False), (100.0, True)])
def test_a_plan_counts_a_norm_before_groups_where_it_pays(apart, pays, priced):
    """The norm apart counts as a copy of its bytes, here 2 us."""
    asked = priced(lambda request: 100.0 if request.asked.x_scale else apart)
    model = drawn(nn.Sequential(nn.BatchNorm2d(C), nn.SiLU(), nn.Conv2d(C, C, 3, groups=C))).eval()
    found = plan_model(model, [image(1, C, 8, 7)], quick=True, fuse=True)
    [row] = found.rows
    together, plain = asked
    assert (together.problem.groups, together.operation) == (C, "conv2d")
    assert (together.asked.x_scale, together.asked.x_activation) == ("channel", "silu")
    assert plain == dataclasses.replace(together, asked=Asked(bias=True))
    assert row.convolved.asked.x_activation == ("silu" if pays else None)
    told = " ".join(str(found.report).split())
    assert (f"apart: costs more (100.0 us for 92.0, x 1x{C}x8x7)" in told) == (not pays)


def test_modules_that_do_not_go_together_stay():
    [one] = convert(chain(nn.GroupNorm(2, C + 2)), fuse=True).chains
    assert one.reason.startswith("raises RuntimeError on a probe in float64")


def test_a_call_that_differs_stays(monkeypatch):
    """What the modules give is the measure, not what they are."""
    own = fusing.norm_act_conv2d
    monkeypatch.setitem(fusing._CALLS, 2, lambda *args, **named: own(*args, **{**named, "eps": 1e-2}))
    [one] = convert(drawn(chain()), fuse=True).chains
    assert one.reason == "fused, it differs by more than rounding explains"


def test_a_folded_norm_is_in_no_chain():
    model = drawn(nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU(), nn.Conv2d(C, K, 3))).eval()
    report = convert(model, fuse=True, fold_batchnorm=True)
    assert told(report) == {"1": "is folded into the convolution before it"}
    assert_same(report.model, model, image(2, C, 5, 5), terms=10 * C)
    assert told(convert(model, fuse=True)) == {"1": "2 -> 3"}


def test_gradients(calls):
    model = drawn(Block())
    model.dropout.p = 0.0
    converted = convert(model, fuse=True).model
    x, t = image(2, C, 6, 5).requires_grad_(), image(2, 4)
    g = image(2, C, 6, 5, seed=3)
    found = torch.autograd.grad(converted(x, t), [x, *model.parameters()], g)
    assert calls == [("silu", False), ("silu", True)]
    wide = copy.deepcopy(model).double()
    far = x.detach().double().requires_grad_()
    truth = torch.autograd.grad(wide(far, t.double()), [far, *wide.parameters()], g.double())
    for one, other in zip(found, truth, strict=True):
        assert (one - other).abs().max() <= 4 * 2 * 9 * C * 60 * 2.0**-24 * max(1, other.abs().max())


def test_dropout_that_drops_is_not_passed_over(calls):
    """In training mode its chain stays; one that was converted in eval mode runs by its modules."""
    training = drawn(Block())
    assert told(convert(training, fuse=True))["norm2"] == NOT_ALONE
    converted = convert(training.eval(), fuse=True).model.train()
    training.train()
    x, t = image(2, C, 6, 5), image(2, 4)
    torch.manual_seed(0)
    found = converted(x, t)
    torch.manual_seed(0)
    assert_within_share([found], [training(x, t)], FLOAT32_SUMS)
    assert calls == [("silu", False)]


def test_a_batch_norm_back_in_training_learns(calls):
    model = drawn(chain(nn.BatchNorm2d(C))).eval()
    converted = convert(copy.deepcopy(model), fuse=True, inplace=True).model
    x = image(2, C, 5, 5)
    found, expected = converted.train()(x), model.train()(x)
    assert_within_share([found], [expected], FLOAT32_SUMS)
    moved = converted[0].running_mean - model[0].running_mean
    assert moved.abs().max() <= 2 * 2 * 25 * 2.0**-24 * x.abs().max()  # means of 50 values by two
    assert int(converted[0].num_batches_tracked) == 1
    converted.eval()(x)
    assert len(calls) == 2


def test_calls_of_other_kinds_run_by_modules(calls):
    """One image, autocast, a hook that came later, and a norm that other code calls."""
    model = drawn(chain())
    converted = convert(model, fuse=True).model
    x = image(2, C, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(converted(x), model(x))
    one = drawn(chain(nn.InstanceNorm2d(C)))
    alone = convert(one, fuse=True).model
    assert_within_share([alone(x[0])], [one(x[0])], FLOAT32_SUMS)
    normed = converted[0](x)
    assert torch.equal(normed * 2 - 1, model[0](x) * 2 - 1)
    assert normed.mean() == model[0](x).mean()
    normed.mul_(3)  # of what it is from now on
    assert torch.equal(converted[2](normed), model[2](model[0](x) * 3))
    seen = []
    handle = converted[0].register_forward_hook(lambda _m, _x, y: seen.append(y))
    converted(x)
    handle.remove()
    assert [type(y) for y in seen] == [torch.Tensor]
    assert calls == []
    converted(x)
    assert len(calls) == 1


def test_an_input_that_changes_in_the_meantime_is_refused():
    converted = convert(drawn(chain()), fuse=True).model
    x = image(2, C, 5, 5)
    normed = converted[0](x)
    x.add_(1)
    with pytest.raises(UnsupportedError, match="was changed in place between a norm"):
        converted[2](converted[1](normed))


def test_parameters_are_read_in_each_call():
    model = drawn(Block()).eval()
    converted = convert(model, fuse=True).model
    x, t = image(2, C, 6, 5), image(2, 4)
    drawn(model, seed=7)  # the converted model's too
    assert_same(converted, model, x, t, terms=2 * 9 * C)
    twice = {name: one * 2 for name, one in model.state_dict().items()}
    found = torch.func.functional_call(converted, twice, (x, t))
    assert (found - torch.func.functional_call(model, twice, (x, t))).abs().max() < 1e-3
    other = copy.deepcopy(converted).to(torch.float64)
    assert torch.equal(other(x.double(), t.double()), copy.deepcopy(converted).double()(x.double(), t.double()))


def test_a_filter_that_is_packed_later(calls):
    model = drawn(chain()).eval()
    converted = convert(copy.deepcopy(model), fuse=True, inplace=True).model
    converted[2].pack_filter()
    assert_same(converted, model, image(2, C, 5, 5), terms=9 * C)
    assert len(calls) == 1


def test_bf16(calls):
    """What is convolved is rounded once, and y: each by 2^-9 of it; parameters are the same in float64."""
    model = drawn(chain()).bfloat16()
    converted = convert(model, fuse=True).model
    x = image(2, C, 5, 5).bfloat16()
    with torch.no_grad():
        wide = copy.deepcopy(model).double()
        h = wide[1](wide[0](x.double()))
        truth, weight = wide[2](h), wide[2].weight
        limit = 2.0**-9 * (1.01 * truth.abs() + F.conv2d(h.abs(), weight.abs(), padding=1)) + 1e-5
        assert ((converted(x) - truth).abs() <= limit).all()
    assert calls == [("silu", False)]


def test_converted_models_are_copied_pickled_traced_and_converted_again(calls):
    model = drawn(chain())
    converted = convert(model, fuse=True).model
    x = image(2, C, 5, 5)
    expected = converted(x)
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(other(x), expected)
    assert len(calls) == 3
    assert_same(torch.fx.symbolic_trace(converted), model, x, terms=9 * C)
    assert told(convert(converted, fuse=True)) == {"0": "is in a fused chain already"}
    assert torch.equal(torch.vmap(converted)(x[None])[0], expected)


def test_compile_and_export():
    model = drawn(Block()).eval()
    converted = convert(model, fuse=True).model
    x, t = image(2, C, 6, 5), image(2, 4)
    torch._dynamo.reset()
    compiled = torch.compile(converted, backend="eager", fullgraph=True)
    assert_same(compiled, model, x, t, terms=2 * 9 * C)
    graph = torch.export.export(converted, (x, t)).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert [name for name in names if "conv2d" in name] == [
        "nkiconv.conv2d_with_stats.default",
        "nkiconv.conv2d_with_prologue.default",
    ]


class Untraced(nn.Module):
    """A loop that torch.fx cannot trace, around a block that it can."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x, t):
        for _ in range(int(t.shape[0])):
            x = self.block(x, t)
        return [*x]


def test_blocks_of_models_that_have_no_graph(calls):
    model = drawn(Untraced()).eval()
    report = convert(model, fuse=True)
    assert [chain.fused for chain in report.chains] == [True, True]
    report.model(image(2, C, 6, 5), image(2, 4))
    assert len(calls) == 4


@pytest.mark.cover(1)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_plans_of_chains(device):
    """Rows have the chain's scales and residual, and the convolution's name."""
    block, inputs = drawn(Block()).eval().to(device), [image(2, C, 6, 5).to(device), image(2, 4).to(device)]
    found = plan_model(block, inputs, fuse=True, quick=True)
    asked = {row.layers: row.convolved.asked for row in found.rows}
    assert {names: (one.x_scale, one.x_shift, one.x_activation, one.residual) for names, one in asked.items()} == {
        ("conv1",): ("image", "image", "silu", None),
        ("conv2",): ("image", "image", "silu", "pre_activation"),
    }
    assert found.uncalled == ()
