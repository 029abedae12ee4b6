"""convert(fuse=True) makes norm, activation, convolution and the sum after it one call, where nothing else can tell."""

import copy
import dataclasses
import pickle

import pytest
import torch
from chained import Block, C, assert_gradients, assert_same, drawn, image
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from nkiconv.errors import UnsupportedError
from nkiconv.planner.request import Asked
from nkiconv.pytorch import convert, plan_model

K = 6
NOT_ALONE = "is not followed by one convolution, with at most an activation between, that alone sees its result"


def told(report):
    return {chain.norm: str(chain) if chain.fused else chain.reason for chain in report.chains}


def chain(norm=None, act=None, conv=None):
    return nn.Sequential(norm or nn.GroupNorm(2, C), act or nn.SiLU(), conv or nn.Conv2d(C, K, 3, padding=1))


def ranked(kind, rank):
    """A chain of a norm's kind and of images of this rank."""
    norm = nn.GroupNorm(4, C) if kind == "GroupNorm" else getattr(nn, f"{kind}{rank}d")(C, affine=True)
    options = {"padding": "same"} if rank == 1 else {"stride": 2, "padding": 1, "groups": 2}
    return chain(norm, conv=getattr(nn, f"Conv{rank}d")(C, K, 3, **options)).eval()


class Functional(Block):
    """Functions in the place of modules, and a sum in place."""

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.dropout(torch.relu(self.norm2(h)), 0.5, False))
        h += x
        return h


class Untraced(nn.Module):
    """A loop that torch.fx cannot trace, around a block that it can."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x, t):
        for _ in range(int(t.shape[0])):
            x = self.block(x, t)
        return x


class Attribute(Block):
    """A way that no call goes, as the module that it calls is missing."""

    def forward(self, x, t, u=None):
        return super().forward(x if u is None else x + self.missing(u), t)


class Unbound(Block):
    """A way on which a name has no value."""

    def forward(self, x, t):
        if x.dim() == 4:
            height = x.shape[2]
        return super().forward(x, t) / height * height


class Padded(nn.Module):
    """A convolution with pixels around its input, before or after the activation, as HunyuanVideo's VAE has them."""

    def __init__(self, mode, rank=2, first=False, within=False):
        super().__init__()
        self.norm, self.mode, self.first = nn.GroupNorm(2, C), mode, first
        own = {"padding": 1, "padding_mode": mode} if within else {}
        self.sides = () if within else (1, 0, 2, 1, 1, 1)[: 2 * rank]
        self.conv = getattr(nn, f"Conv{rank}d")(C, C, 3, **own)

    def forward(self, x):
        h = self.norm(x)
        h = h if self.first else F.silu(h)
        h = F.pad(h, self.sides, mode=self.mode) if self.sides else h
        return self.conv(F.silu(h) if self.first else h)


class Causal(nn.Module):
    """Copies of the first row in front, and a convolution, as modules of video VAEs."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3)

    def forward(self, x):
        return self.conv(F.pad(x, (1, 1, 2, 0), mode="replicate"))


class Wrapped(nn.Module):
    """A residual block with a time, whose convolutions are in modules of their own."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, C), nn.GroupNorm(2, C)
        self.conv1, self.conv2 = Causal(), Causal()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h + t[:, :])))


ACTS = {
    "relu": nn.ReLU(inplace=True), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"),
    "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(),
}  # fmt: skip
OF_BLOCK, ROWS = ((2, C, 6, 5), (2, 4)), {1: ((2, C, 5),), 2: ((2, C, 5, 6),), 3: ((2, C, 5, 6, 4),)}
BLOCK = {"norm1": "act -> conv1", "norm2": "act -> dropout -> conv2 -> sum"}
NO_GRAPH = {
    "block.norm1": "block.act -> block.conv1",
    "block.norm2": "block.act -> block.dropout -> block.conv2 -> sum",
}
#: What makes a model, its inputs' shapes, what is told of its norms, (activation, whether there is a sum) of each call.
CHAINS = {
    "shared activation": (Block, OF_BLOCK, BLOCK, [("silu", False), ("silu", True)]),
    "functions": (
        Functional, OF_BLOCK, {"norm1": "silu -> conv1", "norm2": "relu -> conv2 -> sum"},
        [("silu", False), ("relu", True)],
    ),
    "no graph": (Untraced, OF_BLOCK, NO_GRAPH, None),
    "a missing module": (Attribute, OF_BLOCK, BLOCK, None),
    "an unbound name": (Unbound, OF_BLOCK, BLOCK, None),
    **{name: (lambda act=act: chain(act=act), ROWS[2], {"0": "1 -> 2"}, [(name, False)]) for name, act in ACTS.items()},
    "no activation": (lambda: chain(act=nn.Identity()), ROWS[2], {"0": "1 -> 2"}, [(None, False)]),
    **{
        f"{kind}{rank}d": (lambda kind=kind, rank=rank: ranked(kind, rank), ROWS[rank], {"0": "1 -> 2"}, None)
        for kind in ("GroupNorm", "BatchNorm", "InstanceNorm") for rank in (1, 2, 3)
    },
    **{
        f"{mode} around rank {rank}": (
            lambda mode=mode, rank=rank: Padded(mode, rank, first=rank == 2), ROWS[rank],
            {"norm": f"silu -> {mode} padding -> conv"}, [("silu", False)],
        ) for mode, rank in (("replicate", 1), ("reflect", 2), ("circular", 3), ("replicate", 2))
    },
    "padding mode": (lambda: Padded("circular", within=True), ROWS[2], {"norm": "silu -> conv"}, [("silu", False)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name, calls):
    make, shapes, expected, ran = CHAINS[name]
    model = drawn(make()).eval()
    state = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fuse=True)
    assert told(report) == expected
    assert f"{len(expected)} of {len(expected)} norms fused" in str(report)
    assert_gradients(report.model, model, *(image(*one) for one in shapes), terms=2 * 27 * C)
    assert calls == ran or (ran is None and len(calls) >= len(expected))
    assert [*report.model.state_dict()] == [*state]
    assert all(torch.equal(one, state[name]) for name, one in report.model.state_dict().items())


class Left(Block):
    """A block with what is no chain in it."""

    def __init__(self, chain):
        super().__init__()
        self.chain = [chain]  # no module

    def forward(self, x, t):
        return self.chain[0](self, x, t)


def changed_input(m, x, t):
    z = m.norm1(x)
    x.mul_(2)
    return m.conv1(m.act(z)) + x


def hooked(model):
    model[0].register_forward_hook(lambda *_: None)
    return model


def padded(mode, sides):
    model = Padded(mode)
    model.sides = sides
    return model


class OwnNorm(nn.GroupNorm):
    def forward(self, input):
        return super().forward(input) + 1


class OwnConv(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) + 1


HOOKS = "a module of it has hooks, which would see no tensor"
LEFT = {
    "two users": (Left(lambda m, x, t: m.conv1(m.act(z := m.norm1(x))) + z), NOT_ALONE),
    "activation is read": (Left(lambda m, x, t: m.conv1(z := m.act(m.norm1(x))) * z.mean()), NOT_ALONE),
    "two activations": (Left(lambda m, x, t: m.conv1(m.act(m.act(m.norm1(x))))), NOT_ALONE),
    "returned": (Left(lambda m, x, t: (m.conv1(m.act(z := m.norm1(x))), z)), NOT_ALONE),
    "one way": (Left(lambda m, x, t: m.conv1(m.act(z)) if (z := m.norm1(x)).sum() > t.sum() else z), NOT_ALONE),
    "changed input": (Left(changed_input), NOT_ALONE),
    "scaled": (Left(lambda m, x, t: m.conv1(m.act(m.norm1(x) * (1 + t.sum())))), NOT_ALONE),
    "hooks": (hooked(chain()), HOOKS),
    "hooks around": (hooked(nn.Sequential(nn.Sequential(nn.GroupNorm(2, C)), nn.Conv2d(C, K, 3))), HOOKS),
    "hooks of the convolution": (chain(conv=hooked(nn.Sequential(nn.Conv2d(C, K, 3)))), HOOKS),
    "synchronised": (chain(nn.SyncBatchNorm(C)), "takes statistics of all processes in training; call model.eval()"),
    "instances": (chain(nn.InstanceNorm2d(C, track_running_stats=True)).eval(), "has running statistics"),
    "hardswish": (chain(act=nn.Hardswish()), NOT_ALONE),
    "dropout": (chain(act=nn.Dropout(0.5)), NOT_ALONE),
    "transposed": (chain(conv=nn.ConvTranspose2d(C, K, 3)), "its convolution is transposed"),
    "own convolution": (chain(conv=OwnConv(C, K, 3)), "its convolution is not swapped by this call"),
    "own norm": (chain(OwnNorm(2, C)), "is a OwnNorm with a forward of its own"),
    "rows": (chain(conv=nn.Conv1d(C, C, 3, groups=C)), "its convolution is of depthwise rows"),
    "zeros around": (padded("constant", (1, 1, 1, 1)), "is not followed by one convolution"),
}


@pytest.mark.parametrize("name", LEFT)
def test_why_a_chain_stays(name, calls):
    model, reason = LEFT[name]
    report = convert(drawn(model), fuse=True)
    assert reason in next(iter(report.chains)).reason
    for sign in (1, -1):
        inputs = [image(2, C, 9)] if name == "rows" else [image(2, C, 6, 5)]
        inputs += [sign * image(2, 4)] if isinstance(model, Left) else []
        found = []
        for one in (report.model, model):
            torch.manual_seed(0)  # of dropout
            with torch.no_grad():
                found.append(tree_leaves(one(*(given.clone() for given in inputs))))
        for one, other in zip(*found, strict=True):
            assert (one - other).abs().max() <= 8 * 2 * 9 * C * 2.0**-24 * max(1, other.abs().max())
    assert calls == []


@pytest.mark.parametrize("model", [
    chain(nn.GroupNorm(2, C + 2)), padded("replicate", (0, 0, 0, 0, 1, 1)),  # around channels
])  # fmt: skip
def test_modules_that_do_not_go_together_stay(model):
    [one] = convert(model, fuse=True).chains
    assert one.reason.startswith("raises RuntimeError on a probe in float64")


@pytest.mark.parametrize(("argument", "remedy"), [
    ({"fuse": 1}, "fuse=1: must be True or False"),
    ({"fuse": None}, "fuse=None: must be True or False"),
    ({"fuse": True, "pack_filters": "frozen", "example_inputs": (image(1, C, 4, 4),)}, "does not go with pack_filters"),
])  # fmt: skip
def test_refusals(argument, remedy):
    model = chain().eval()
    with pytest.raises(UnsupportedError, match=remedy):
        convert(model, inplace=True, **argument)
    assert type(model[2]) is nn.Conv2d


def test_transposed_convolutions_read_what_is_pending():
    """Of code that no graph shows, which gives a norm's result to another convolution than the chain's."""
    norm, up = nn.GroupNorm(2, C), nn.ConvTranspose2d(C, K, 2, 2)
    model = drawn(nn.Sequential(norm, nn.SiLU(), nn.Conv2d(C, C, 1), up))
    own = convert(model, fuse=True).model
    x = image(2, C, 5, 5)
    found, expected = own[3](own[0](x)), up(norm(x))
    assert (found - expected).abs().max() <= 8 * C * 2.0**-24 * max(1, expected.abs().max())


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


def test_calls_of_other_kinds_run_by_modules(calls):
    """Autocast, a hook that came later, and a norm that other code calls."""
    model = drawn(chain())
    converted = convert(model, fuse=True).model
    x = image(2, C, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(converted(x), model(x))
    normed = converted[0](x)
    assert normed.mean() == model[0](x).mean()
    normed.mul_(3)  # of what it is from now on
    assert torch.equal(converted[2](normed), model[2](model[0](x) * 3))
    seen = []
    converted[0].register_forward_hook(lambda _m, _x, y: seen.append(type(y)))
    converted(x)
    assert (seen, calls) == ([torch.Tensor], [])


def test_an_input_that_changes_in_the_meantime_is_refused():
    converted = convert(drawn(chain()), fuse=True).model
    x = image(2, C, 5, 5)
    normed = converted[0](x)
    x.add_(1)
    with pytest.raises(UnsupportedError, match="was changed in place between a norm"):
        converted[2](converted[1](normed))


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


class ByMethods(nn.Module):
    """A model whose forward is not called."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        raise NotImplementedError

    def decode(self, x, t):
        return self.block(x, t)


def test_methods_of_a_model_whose_forward_is_not_called(calls):
    model = drawn(ByMethods()).eval()
    converted, inputs = convert(model, fuse=True).model, (image(2, C, 6, 5), image(2, 4))
    with torch.no_grad():
        assert_within_share([converted.decode(*inputs)], [model.decode(*inputs)], FLOAT32_SUMS)
    assert len(calls) == 2


@pytest.mark.parametrize(("where", "fused", "known"), [
    ("", [True, True], [False, True]), ("conv1", [False, True], [False, False]), ("conv2", [True, False], [False] * 2),
])  # fmt: skip
def test_hooks_of_modules_around_see_tensors(where, fused, known):
    model, seen = drawn(Wrapped()).eval(), []
    if where:
        model.get_submodule(where).register_forward_hook(lambda _m, args, y: seen.extend([type(args[0]), type(y)]))
    report = convert(model, fuse=True)
    seen.clear()  # of torch.fx
    assert [one.fused for one in report.chains] == fused
    assert [one.offset for one in report.chains] == [bool(one.statistics) for one in report.chains] == known
    assert_same(report.model, model, image(2, C, 6, 5), image(2, C, 1, 1), terms=2 * 9 * C)
    assert set(seen) <= {torch.Tensor}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_again(reentrant):
    model = drawn(Wrapped())
    results = []
    for one in (convert(model, fuse=True).model, model):
        leaves = [image(2, C, 6, 5).requires_grad_(), image(2, C, 1, 1).requires_grad_()]
        y = checkpoint(one, *leaves, use_reentrant=reentrant)
        y.sin().sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for found, right in zip(*results, strict=True):
        assert (found - right).abs().max() <= 32 * 2 * 9 * C * 2.0**-24 * max(1, right.abs().max())
