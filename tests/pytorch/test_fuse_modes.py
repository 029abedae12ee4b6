"""Pending results of fused models that other code reads: without gradients, by custom functions, with operators; graphs
for images and sequences of unknown size.
"""

import copy
import inspect
import operator
import pickle
import subprocess
import sys

import fused_models as fm
import numpy as np
import pytest
import torch
from chained import C, assert_gradients, calls, close, image, made, pair, terms_of, told
from fused_sequences import ConformerModule
from gradchecks import assert_batches, assert_derivatives, assert_tangents
from gradchecks import assert_gradients as assert_gradients_of
from torch import nn
from torch.export import Dim, export
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from nkiconv import UnsupportedError, pytorch
from nkiconv.pytorch import causal_conv1d_fn, channel_stats, convert, norm_scale_shift
from nkiconv.pytorch.computers.statistics import Norm, norm_by_torch, stats_by_torch
from nkiconv.pytorch.models.callers import within
from nkiconv.pytorch.models.pending import Normed
from nkiconv.pytorch.operators.statistics import known_stats

pytestmark = pytest.mark.usefixtures("published")
ROWS, X = (2, 11, C), (2, C, 6, 5)


class Silu(torch.autograd.Function):
    """SiLU that keeps its input detached, as a memory-saving one of a model's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        slope = ctx.x.sigmoid()
        return gradient * slope * (1 + ctx.x * (1 - slope))


def noted(self, h):
    """A number that training writes down."""
    with torch.no_grad():
        self.most = h.abs().amax()
    return h


def scanned(self, h):
    return Silu.apply(h)


def split_apart(self, h):
    """Two calls of the convolution, the second without gradients."""
    with torch.no_grad():
        fixed, _ = h.transpose(1, 2).split([4, 6], -1)
    return h + fixed.mean()


def conformer():
    """With a custom activation after the rows."""
    model = ConformerModule(C, 3)
    model.activation = made(lambda _, x: Silu.apply(x))
    return model


def stage(read):
    """A stage whose rows are read."""

    def forward(self, hidden):
        mixed = self.in_proj(hidden)[..., 3:].transpose(1, 2)
        h, again = (
            causal_conv1d_fn(mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation="silu") for _ in "12"
        )
        return *again.transpose(1, 2).split([4, 6], -1), read(self, h)

    return lambda: made(forward, fm.Mamba)


@pytest.mark.parametrize("make", [*map(stage, (noted, scanned, split_apart)), conformer])
def test_rows_that_are_read_keep_their_gradients(make):
    assert_gradients(*pair(make), image(*ROWS))


def parts_one_by_one(self, x):
    """Modules called by other code than the forward that the graphs show, which looks at each result."""
    for part in self.parts:
        x = noted(self, part(x))
    return x


def frozen_norm(self, x):
    norm, act, conv = self.parts
    with torch.no_grad():
        x = norm(x)
    return conv(act(x))


def read_within(self, x):
    """As a chain's forward would, if no graph showed it."""
    with within(self.parts):
        return parts_one_by_one(self, x)


def frozen_within(self, x):
    norm, act, conv = self.parts
    with torch.no_grad(), within(self.parts):
        x = norm(x)
    with within(self.parts):
        return conv(act(x))


def custom_within(self, x):
    norm, _, conv = self.parts
    with within(self.parts):
        return conv(Silu.apply(norm(x)))


def checkpoint_within(reentrant):
    """As a forward does whose flag was set after the conversion."""

    def forward(self, x):
        with within(self.parts):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=reentrant)
        return x

    return forward


#: Forwards that call modules of a chain, which its own forward proves.
CALLERS = {one.__name__: one for one in (parts_one_by_one, frozen_norm, read_within, frozen_within, custom_within)}
for again in (False, True):
    CALLERS[f"checkpoint within, {again}"] = checkpoint_within(again)
    CALLERS[f"segments, {again}"] = lambda self, x, again=again: checkpoint_sequential(
        self.parts, 3, x, use_reentrant=again
    )


@pytest.mark.parametrize("name", CALLERS)
def test_other_callers_of_a_chain(name):
    """They get tensors where C++ of torch may read them, and the gradients."""
    assert_gradients(*(made(CALLERS[name], parts=one) for one in pair(fm.chain)), image(*X))


#: What a hook of an activation may do with a result that is computed later, and whether that is refused: torch's C++
#: asks no function mode.
READ = {
    "as_tensor": (torch.as_tensor, False),
    "tensor": (lambda y: torch.tensor(y), False),
    "asarray": (torch.asarray, False),
    "in NumPy": (lambda y: torch.from_numpy(np.asarray(y.detach())), False),
    "another dtype": (lambda y: torch.as_tensor(y, dtype=torch.float64), True),
    "a scripted function": (torch.jit.script(nn.SiLU()), False),
    "vmap": (torch.vmap(torch.neg), True),
    "a pickle": (lambda y: pickle.loads(pickle.dumps(y.detach())), False),
    "a buffer": (lambda y: torch.empty(1).set_(y), True),
}


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")
@pytest.mark.parametrize(("read", "is_refused"), READ.values(), ids=READ)
def test_hooks_that_hand_results_to_cpp(read, is_refused):
    found, model = pair(lambda: nn.Sequential(*fm.chain()))
    for one in (found, model):
        one[1].register_forward_hook(lambda _module, _given, y: read(y))
    with torch.no_grad():
        if not is_refused:
            assert close(found(image(*X)), model(image(*X)), terms_of(model))
            return
        with pytest.raises(UnsupportedError, match=r"torch's C\+\+ reads a result that .* computes later; pass on"):
            found(image(*X))


def test_models_are_loaded_by_a_process_that_has_fused_none(tmp_path):
    model, x = convert(fm.chain().eval(), fuse=True).model, image(*X)
    torch.save((model, x, model(x)), tmp_path / "model.pt")
    code = (
        "import sys, torch; m, x, y = torch.load(sys.argv[1], weights_only=False); torch.testing.assert_close(m(x), y)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "model.pt"], check=True)


@pytest.mark.parametrize("training", [False, True])
def test_a_norm_runs_in_the_mode_of_its_call(training):
    """Not in that of the convolution's."""

    def forward(self, x):
        self.norm.train(not training)
        x = self.act(self.norm(x))
        self.norm.train(training)
        return self.conv(x)

    parts = dict(zip(("norm", "act", "conv"), fm.chain(nn.BatchNorm2d(C)), strict=True))
    assert_gradients(*pair(lambda: made(forward, **copy.deepcopy(parts)), training), image(*X))


@pytest.mark.parametrize("part", range(3))
def test_a_part_that_is_compiled_by_itself(part):
    found, model = pair(lambda: nn.Sequential(*fm.chain()))
    found[part].compile(backend="eager")
    assert_gradients(found, model, image(*X))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_blocks_stay_fused(reentrant):
    """A chain that two blocks share is computed at the end of the first, one within a block is one call; a checkpoint
    is given tensors."""

    class Blocks(nn.Module):
        checkpoints = False

        def __init__(self):
            super().__init__()
            self.stem = nn.GroupNorm(2, C)
            self.first = nn.Sequential(nn.Conv2d(C, C, 1), *fm.chain(conv=nn.Conv2d(C, C, 3)), nn.GroupNorm(2, C))
            self.second = nn.Sequential(nn.SiLU(), nn.Conv2d(C, 4, 1))

        def forward(self, x):
            x = self.stem(x)
            for one in (self.first, self.second):
                x = checkpoint(one, x, use_reentrant=reentrant) if self.checkpoints else one(x)
            return x

    (found, model), fused = pair(Blocks), "conv2d stats; norm silu conv2d stats;"
    assert calls(found, image(*X)) == f"channel_stats; norm {fused} norm silu conv2d"
    found.checkpoints = model.checkpoints = True
    assert_gradients(found, model, image(*X))
    assert calls(found, image(*X).requires_grad_(), grad=True) == f"{fused} conv2d"


def test_hooks_of_blocks_see_tensors():
    """And parameters may be taken away after a block, as FSDP does, though a chain goes on in the next."""

    def blocks():
        norm, *rest = fm.chain()
        return nn.Sequential(nn.Sequential(nn.Conv2d(3, C, 3), norm), nn.Sequential(*rest))

    (found, model), x, seen = pair(blocks), image(2, 3, 6, 5), []
    expected, terms = model(x), C * terms_of(model)

    def taken(block, _given, y):
        seen.append(type(y))
        for one in block.parameters():
            one.data = torch.empty(0)

    assert calls(found, x) == "conv2d stats; norm silu conv2d"
    for block in found:
        block.register_forward_hook(taken)
    assert close(found(x), expected, terms)
    assert seen == [torch.Tensor] * 2


@pytest.mark.parametrize("compute", [lambda norm, x: norm(x), lambda norm, x: nn.Sequential(norm, nn.ReLU())(x)])
def test_modules_by_themselves_give_tensors(compute):
    """Also such that C++ takes, and a slice of a Sequential."""
    (chain, model), x = pair(fm.chain), image(*X)
    for found, expected in ((compute(chain[0], x), compute(model[0], x)), (chain[:2](x), model[:2](x))):
        assert type(found) is torch.Tensor
        assert close(found, expected, C * X[2] * X[3])


@pytest.mark.slow
def test_other_modes_compile():
    (found, model), x = pair(fm.chain), image(*X)
    compiled = torch.compile(made(frozen_norm, parts=found), backend="eager", fullgraph=True)
    assert close(compiled(x), made(frozen_norm, parts=model)(x), terms_of(model))


def test_autocast_around_a_convolution_alone():
    """The norm's result is rounded, not its input."""
    found = []
    for norm, act, conv in pair(fm.chain):
        h = act(norm(image(*X)))
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            found.append(conv(h))
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(*found)


# Gradients of what a convolution gives, whose statistics it returns.


def of_hook(model, x):
    seen = []
    hook = model[0].register_forward_hook(lambda _module, _given, y: y.register_hook(seen.append) and None)
    model(x).sin().sum().backward()
    hook.remove()
    return seen


def of_leaf(model, x):
    """Features that are made without gradients, and then have one of their own."""
    with torch.no_grad():
        features = model[0](x)
    return torch.autograd.grad(model[1:](features.requires_grad_()).sin().sum(), features)


def kept(model, x):
    features = model[0](x)
    features.retain_grad()
    model[1:](features).sin().sum().backward()
    return [features.grad]


@pytest.mark.parametrize("gradient", [of_hook, of_leaf, kept])
@pytest.mark.parametrize("compute", ["torch", "simulate"])
def test_gradients_of_features(gradient, compute, monkeypatch):
    """As Grad-CAM reads them: those through a norm's statistics are among them."""
    found, model = pair(lambda: nn.Sequential(nn.Conv2d(3, C, 3), *fm.chain()))
    monkeypatch.setenv("NKICONV_CPU", compute)
    x = image(2, 3, 6, 5).requires_grad_()
    (one,), (other,) = (gradient(each, x) for each in (found, model))
    assert close(one, other, C * terms_of(model))


def by_known(x):
    """scale and shift of a norm of x by known statistics."""
    stats = known_stats(x, channel_stats(x.detach() + 0))
    return tuple(norm_scale_shift(stats, norm="group", num_groups=2))[:2]


def by_torch(x):
    return tuple(norm_by_torch(stats_by_torch(x), None, None, Norm("group", 2, 1e-5)))[:2]


@pytest.mark.parametrize("compute", ["torch", "simulate"])
def test_derivatives_of_known_statistics(compute, monkeypatch):
    monkeypatch.setenv("NKICONV_CPU", compute)
    x = image(*X)
    assert_gradients_of(by_known, by_torch, [x])
    assert_tangents(by_known, by_torch, [x])
    assert_batches(by_known, by_torch, [x], [0])
    if compute == "torch":
        assert_derivatives(by_known, [image(1, 4, 3, 2).double().requires_grad_()])


OPERATORS = [getattr(operator, name) for name in ("lt", "ge", "eq", "ne", "floordiv", "mod", "pow", "truediv", "sub")]


@pytest.mark.parametrize("two", OPERATORS)
@pytest.mark.parametrize("is_first", [True, False])
def test_operators_of_a_pending_result(two, is_first):
    (chain, (plain, *_)), x = pair(fm.chain), image(*X)
    with within(chain):
        h = chain[0](x)
    assert isinstance(h, Normed)
    found, expected = (two(one, 2.0) if is_first else two(2.0, one) for one in (h, plain(x)))
    assert close(found.float(), expected.float(), C * X[2] * X[3])


def test_a_pending_result_as_other_objects():
    (chain, (plain, *_)), x = pair(fm.chain), image(*X)
    norm = chain[0]
    with torch.no_grad(), within(chain):
        y = plain(x)
        assert np.array_equal(np.asarray(norm(x)), y)
        assert float(norm(x)[0, 0, 0, 0]) == float(y[0, 0, 0, 0])
        assert torch.equal(abs(norm(x)), abs(y))
        assert torch.equal(~(norm(x) > 0), ~(y > 0))
        h = norm(x)
        h[0] = 0
        assert torch.equal(h + 0, torch.cat([0 * y[:1], y[1:]]))


class Counted(nn.Module):
    """A parametrization that counts how often a weight is computed, as a spectral norm moves its estimates then."""

    def __init__(self):
        super().__init__()
        self.register_buffer("reads", torch.zeros((), dtype=torch.int64))

    def forward(self, weight):
        self.reads.add_(1)
        return weight


def counted(make):
    """(a model with such weights, their counts from 0)."""
    model = make()
    layers = [one for one in model.modules() if isinstance(one, (nn.Linear, nn.modules.conv._ConvNd))]
    parts = [Counted() for _ in layers]
    for layer, part in zip(layers, parts, strict=True):
        parametrize.register_parametrization(layer, "weight", part)
    return model, [part.reads.zero_() for part in parts]


#: What makes a model, and the shape of its input.
PARAMETRIZED = {
    "norm": (fm.chain, X),
    "1x1": (lambda: nn.Sequential(nn.Conv2d(C, 8, 1), nn.GELU(), nn.Conv2d(8, C, 1)), X),
    "upsampled": (lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(C, C, 3)), X),
    "ConvNeXt": (fm.ConvNext, X),
    "Conformer": (lambda: ConformerModule(C, 3), ROWS),
    "video": (fm.Clip, (1, C, 3, 4, 5)),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("make", "shape"), PARAMETRIZED.values(), ids=PARAMETRIZED)
def test_parametrized_weights_are_computed_as_often(make, shape, grad):
    model, reads = counted(make)
    report = convert(model.eval(), fuse=True)
    assert not any(reads)
    assert told(report)
    seen = []
    with torch.set_grad_enabled(grad):
        for one in (model, report.model):
            one(image(*shape))
            seen.append([int(count) for count in reads])
            for count in reads:
                count.zero_()
    assert seen[0] == seen[1]
    assert all(seen[0])


# torch.export with named dims, torch.compile with dynamic=True.
OF_ANY_SIZE = {
    "image": (lambda: fm.ranked("GroupNorm", 2), (2, C, 7, 9)),
    "sequence": (lambda: fm.ranked("GroupNorm", 1), (2, C, 9)),
    "video": (lambda: fm.ranked("InstanceNorm", 3), (2, C, 5, 7, 9)),
    "residual": (fm.basic, (2, 3, 7, 9)),
    "decoder": (fm.decoder, (2, 4, 7, 9)),
    "ConvNeXt": (fm.ConvNext, (2, C, 7, 9)),
}
OF_ROWS = {
    "depthwise_conv1d": (lambda x, w: pytorch.depthwise_conv1d(x, w, padding="same"), C, (C, 1, 3)),
    "gated_short_conv": (pytorch.gated_short_conv, 3 * C, (C, 3)),
    "glu_conv1d": (lambda x, w: pytorch.glu_conv1d(x, w, padding=1), 2 * C, (C, 3)),
}


@pytest.mark.parametrize(("make", "shape"), OF_ANY_SIZE.values(), ids=OF_ANY_SIZE)
@pytest.mark.parametrize("grad", [False, True])
def test_fused_models_export(make, shape, grad):
    """Also for as many images as there are channels, which no guard may tell apart."""
    (found, model), x = pair(make), image(*shape)
    dims = {0: Dim("images", min=2), 2: Dim("rows", min=3)}
    with torch.set_grad_enabled(grad):
        graph = export(found, (x,), dynamic_shapes=(dims,)).module()
    with torch.no_grad():
        for other in (x, image(C, shape[1], 70, *shape[3:])):
            assert close(graph(other), model(other), terms_of(model))


@pytest.mark.parametrize(("function", "channels", "shape"), OF_ROWS.values(), ids=OF_ROWS)
def test_functions_of_rows_compile_whole(function, channels, shape):
    compiled, w = torch.compile(function, backend="aot_eager", dynamic=True, fullgraph=True), image(*shape)
    for x in (image(2, channels, 9), image(3, channels, 14)):
        assert torch.equal(compiled(x, w), function(x, w))


@pytest.mark.parametrize("make", [fm.decoder, fm.Grown, fm.basic, fm.ConvNext])
def test_forwards_keep_their_signatures(make):
    """Trainers choose a data set's columns by them."""
    found, model = pair(make)
    for one, other in zip(found.modules(), model.modules(), strict=True):
        if not isinstance(one, nn.modules.conv._ConvNd):
            assert inspect.signature(one.forward) == inspect.signature(other.forward)
