"""Calls of fused models that differ from those proved: what is asked for is computed as before, or refused."""

import copy

import fused_models as fm
import pytest
import torch
from chained import C, assert_gradients, assert_same, calls, close, drawn, hooked, image, made, pair, terms_of, told
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert
from nkiconv.pytorch.models import pixel_chains
from nkiconv.pytorch.models.callers import within
from nkiconv.pytorch.models.pending import Normed, Pending

pytestmark = pytest.mark.usefixtures("published")
X, STEM, ROWS, VIDEO = (2, C, 6, 5), (2, 3, 6, 5), (2, 11, C), (1, C, 3, 4, 5)


def same_draws(*calls):
    """What calls give that draw the same numbers."""
    found = []
    for call in calls:
        torch.manual_seed(0)
        found.append(call())
    return found


def summed():
    return made(lambda m, x, other: F.relu(m.conv(x) + other), conv=nn.Conv2d(C, C, 3, padding=1))


#: What makes a model, shapes of inputs that no graph tells from others, and calls.
SHAPES = {
    **{f"added, {other}": (summed, [X, other], "conv2d") for other in ((1, C, 1, 1), (1, 2, C, 6, 5))},
    **{f"added to a time's, {other}": (fm.summed, [STEM, other], "conv2d stats; channel_stats; norm silu conv2d")
       for other in ((2, C, 6, 5), (2, C, 1, 5), (C, 1, 1), (1, 1, 1, 1))},
    "one number for all channels": (lambda: fm.timed("scale and shift"), [STEM, (1, 2)], ""),
}  # fmt: skip


@pytest.mark.parametrize(("make", "shapes", "ran"), SHAPES.values(), ids=SHAPES)
def test_other_shapes(make, shapes, ran):
    both, inputs = pair(make), [image(*one) for one in shapes]
    assert_same(*both, *inputs)
    assert not ran or calls(both[0], *inputs) == ran


def test_convolutions_by_themselves():
    """Images without N, autocast, hooks that come later, and what is added to them."""
    found, model = pair(lambda: fm.two(lambda m, x: F.relu(m.a(x)) + m.b(x)))
    x, seen = image(*X), []
    assert close(found.a(x) + 0, model.a(x), terms_of(model))
    assert tuple(found.a(x).shape) == X
    assert_same(found, model, x[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert found(x).dtype == model(x).dtype
    found.a.register_forward_hook(lambda _m, _i, y: seen.append(type(y)))
    assert_same(found, model, x)
    assert seen == [torch.Tensor]


def test_norms_by_themselves():
    """Autocast, an image alone, a hook that came later, and another convolution, in what no graph shows."""
    found, model = pair(lambda: nn.Sequential(*fm.chain(conv=nn.Conv2d(C, C, 1)), nn.ConvTranspose2d(C, 6, 2, 2)))
    x, seen = image(2, C, 5, 5), []
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found[:3](x), model[:3](x))
    normed = found[0](x)
    assert normed.mean() == model[0](x).mean()
    normed.mul_(3)  # of what it is from now on
    assert torch.equal(found[2](normed), model[2](model[0](x) * 3))
    assert close(found[3](found[0](x)), model[3](model[0](x)), terms_of(model))
    found[0].register_forward_hook(lambda _m, _x, y: seen.append(type(y)))
    assert calls(found, x) == "conv2d; conv_transpose2d"
    assert seen == [torch.Tensor]


class Three:
    """Of another library, which knows how to be added to tensors."""

    def __radd__(self, y):
        return y + 3

    def __rmul__(self, y):
        return y * 3


def test_operators_between_pending_tensors_and_what_is_no_tensor():
    pending = Pending()
    pending.tensor = torch.ones(2)
    for found, wanted in ((pending + Three(), 4.0), (pending * Three(), 3.0), (2 * pending, 2.0)):
        assert found.tolist() == [wanted] * 2


def test_norms_of_layers_by_themselves():
    """Under autocast, with a hook that came later, for other readers, of pixels without images."""
    found, model = pair(fm.ConvNext)
    x, y, seen = image(*X), image(2, 4, 3, C), []
    for one in (found.norm(y) + 0, F.gelu(found.norm(y)), found.norm(y[0])):
        seen.append(one)
    assert all(map(torch.equal, seen, (model.norm(y), F.gelu(model.norm(y)), model.norm(y[0]))))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(found(x), model(x))
    seen.clear()
    found.norm.register_forward_hook(lambda *given: seen.append(given[2].shape))
    assert_same(found, model, x)
    assert calls(found, x) == "pointwise_mlp sum gelu"
    assert seen == [(2, 6, 5, C)] * 2
    assert "norm" not in told(convert(hooked(fm.ConvNext().eval(), "norm"), fuse=True))[0].partition(": ")[2]


def test_layers_by_themselves():
    found, model = pair(fm.ConvNext)
    layer, plain, x = found.mlp.fc2, model.mlp.fc2, image(2, 4, 3, fm.WIDE)
    uses = [
        lambda y: y + x[..., :C], lambda y: 2 * y, lambda y: y * x[0, 0, 0, :C], lambda y: F.relu(y) + 1,
        lambda y: F.relu(F.gelu(y)), lambda y: y.permute(0, 1, 3, 2), lambda y: y @ x[0, 0, :, :C].T,
        lambda y: y.sum() + F.gelu(y).sum(), lambda y: y.permute(dims=(0, 3, 1, 2)),
    ]  # fmt: skip
    tokens = [(layer(one), plain(one)) for one in (x[0], x[:0])]
    for one, wanted in [*((use(layer(x)), use(plain(x))) for use in uses), *tokens]:
        assert one.shape == wanted.shape
        assert (one - wanted).abs().sum() <= wanted.numel() * 32 * fm.WIDE * 2.0**-24 * (1 + wanted.abs().sum())


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float16, X), (torch.float32, (1, C, 2, 2))])
def test_a_scale_that_does_not_go_into_filters(dtype, shape):
    """Of fp16, where small products are lost, and of fewer pixels than the filter has inputs."""
    found, model = pair(fm.ConvNext)
    x, terms = image(*shape), terms_of(model)
    with torch.no_grad():
        truth = model.double()(x.double())
        y = found.to(dtype)(x.to(dtype))
    assert (y - truth).abs().max() <= 4 * terms * torch.finfo(dtype).eps * truth.abs().max()
    assert calls(found, x.to(dtype)) == "layer pointwise_mlp gelu"


def test_upsampling_by_itself():
    """Another size is torch's; what no graph shows is computed: the module's method is replaced later."""
    found, model = pair(fm.Grown)
    x = image(2, C, 4, 5)
    with torch.no_grad():
        assert torch.equal(found(x, (7, 9)), model(x, (7, 9)))
    found.between = model.between = lambda large: large[:, :, 1:].relu() - large[:, :, :-1]
    assert_same(found, model, x)
    found.between = model.between = lambda large: F.dropout(large, training=False)
    assert_same(found, model, x)
    assert calls(found, x) == "up conv2d"


def test_pixel_norms_by_themselves():
    found, model = pair(fm.Clip)
    x = image(1, C, 3, 4, 5)
    with torch.no_grad():
        assert torch.equal(found.conv1(x) * 2, model.conv1(x) * 2)
        assert torch.equal(found.norm2(x), model.norm2(x))
        pending = found.norm2(found.conv1(x)).relu()
        assert_within_share(pending + 0, F.relu(model.norm2(model.conv1(x))), 9 * 3 * C * 2.0**-24)
        with torch.autocast("cpu"):
            assert isinstance(found.conv1(x), torch.Tensor)


def test_pixel_norms_with_channels_last(monkeypatch):
    """One call or several, and whatever reads what is pending between a convolution and its norm, or after it."""
    found, model = pair(fm.Ltx)
    x, time = image(1, C, 3, 4, 5), image(1, 2 * C, 1, 1, 1)
    with torch.no_grad():
        for one, other in zip(*([m.conv1(x), m.norm2(m.conv1(x).movedim(1, -1))] for m in (found, model)), strict=True):
            assert torch.equal(one.movedim(0, 1), other.movedim(0, 1)) or close(one + 0, other, 27 * C)
            assert one.movedim(1, -1).shape == other.movedim(1, -1).shape
        with pytest.raises(RuntimeError, match="normalized_shape"):
            found.norm2(found.conv1(x))  # channels are in front
        assert close(found.conv1(x).movedim(1, -1) * 2, model.conv1(x).movedim(1, -1) * 2, 27 * C)
    monkeypatch.setattr(pixel_chains, "norm_pays", lambda *_: False)
    assert_same(found, model, x, time)
    assert calls(found, x, time) == "frames conv3d; frames conv3d sum"


#: A convolution behind copies of first planes: what makes it, its input, what is called.
BEHIND = {
    "causal": (fm.Causal, VIDEO, "frames conv3d"),
    "on both sides": (lambda: fm.Causal(False), VIDEO, "conv3d"),
    "no copy": (lambda: fm.Causal(kernel_size=(1, 3, 3)), VIDEO, "conv3d"),
    "five taps": (lambda: fm.Causal(kernel_size=(5, 1, 3)), VIDEO, "frames conv3d"),
    "strides": (lambda: fm.Causal(stride=(2, 1, 2)), VIDEO, "frames conv3d"),
    "dilated": (lambda: fm.Causal(dilation=(2, 1, 1)), (2, C, 5, 4, 5), "frames conv3d"),
    "groups": (lambda: fm.Causal(groups=2, bias=False), VIDEO, "frames conv3d"),
    "zeros in time": (lambda: fm.Causal(padding=1), VIDEO, "conv3d"),
    "same": (lambda: fm.Causal(padding="same"), VIDEO, "conv3d"),
    "pixels around": (lambda: fm.Causal(padding_mode="replicate"), VIDEO, "conv3d"),
    "hooks": (lambda: hooked(fm.Causal(), "conv"), VIDEO, "conv3d"),
}


@pytest.mark.parametrize(("make", "shape", "said"), BEHIND.values(), ids=BEHIND)
def test_copies_of_first_planes(make, shape, said):
    found, model = pair(make)
    assert_gradients(found, model, image(*shape))
    assert calls(found, image(*shape)) == said
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert found(image(*shape)).dtype == model(image(*shape)).dtype


def test_calls_that_a_module_with_first_planes_refuses():
    found, model = pair(fm.Causal)
    for one in (found, model):
        with pytest.raises(TypeError, match="unexpected keyword"):
            one(image(*VIDEO), causal=True)
        with pytest.raises(RuntimeError):
            one(image(1, C, 3, 4, 5, 6))
    assert_same(found, model, image(*VIDEO))
    found.is_causal = model.is_causal = False
    assert_same(found, model, image(*VIDEO))
    assert calls(found, image(*VIDEO)) == "conv3d"


def test_numbers_after_a_norm_that_are_none_of_channels():
    """A number, those of pixels, and those that come after a sum are torch's."""
    found, model = pair(fm.Clip)
    x, row, times = image(1, C, 3, 4, 5), image(1, C, 1, 1, 1), image(1, C, 3, 4, 5, seed=2)
    for change in (
        lambda h: h * torch.tensor(2.0), lambda h: h * times, lambda h: (h + row) * row, lambda h: F.silu(h) * row,
        lambda h: (h * row + row) + row, lambda h: h * row.double(), lambda h: row + h * row,
    ):  # fmt: skip
        with torch.no_grad():
            one, other = (change(m.norm2(m.conv1(x))) + 0 for m in (found, model))
        assert one.dtype == other.dtype
        assert close(one, other, 27 * C)


@pytest.mark.parametrize("norm", [{"kind": "rms"}, {"kind": "layer", "bias": True}], ids=str)
def test_caches_of_videos(norm):
    results = []
    for one in pair(lambda: fm.Clip(**norm).double()):
        caches, leaf = [None, None], image(1, C, 3, 4, 5).double().requires_grad_()
        first, second = one(leaf, caches), one(2 * leaf, caches)
        gradients = torch.autograd.grad(first.sin().sum() + second.sum(), [leaf, *one.parameters()])
        results.append([first, second, *caches, *gradients])
    for mine, other in zip(*results, strict=True):
        assert_within_share(mine.detach(), other.detach(), FLOAT64_SUMS)


def test_training_keeps_what_is_between_layers():
    """By two calls; dropout and stochastic depth see tensors, and dropout that drops is passed over in no chain."""
    found, model = (one.train() for one in pair(lambda: fm.ConvNext(fm.Mlp(dropout=0.5))))
    x, t = image(*X), image(2, 4)
    one, other = same_draws(lambda: found(x), lambda: model(x))
    assert one.shape == other.shape  # dropout draws by the order of elements in memory, which is another
    assert calls(found, x) == "conv2d gelu; conv2d"
    training = drawn(fm.Block())
    assert "alone" in told(convert(training, fuse=True))[1]
    found = convert(training.eval(), fuse=True).model.train()
    training.train()
    assert_within_share(*([one] for one in same_draws(lambda: found(x, t), lambda: training(x, t))), FLOAT32_SUMS)
    assert calls(found, x, t) == "channel_stats; norm silu conv2d stats; conv2d sum"


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_was_converted_in_the_other_mode(first):
    model, x = drawn(fm.basic()).train(first), image(*STEM)
    report = convert(model, fuse=True)
    assert [bool(chain.statistics) for chain in report.chains] == [first] * 2
    found, plain = copy.deepcopy(report.model).train(not first), copy.deepcopy(model).train(not first)
    assert_gradients(found, plain, x)
    stats = "" if first else "channel_stats; "
    assert calls(found, x) == f"conv2d; {stats}norm relu conv2d; {stats}norm relu conv2d"


def test_statistics_move_once_for_each_call():
    """However often code that no graph shows asks for what the norm gives."""
    chain, model = pair(lambda: fm.chain(nn.BatchNorm2d(C)), training=True)
    (norm, act, conv), x, expected = chain, image(*X), copy.deepcopy(model[0]).double()
    with within(chain):
        z = norm(x)
        assert isinstance(z, Normed)
        first, other = act(z), z * 1
        found, right = [other, conv(first), first + 0, z + 0], expected(x.double())
    assert int(norm.num_batches_tracked) == 1
    h = F.silu(right)
    found += [norm.running_mean, norm.running_var]
    wanted = [right, copy.deepcopy(model[2]).double()(h), h, right, expected.running_mean, expected.running_var]
    assert all(close(one, two, 2 * terms_of(model)) for one, two in zip(found, wanted, strict=True))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("act", ["SiLU", "Identity"])
def test_norms_with_an_activation_alone(act, training):
    """Also once running statistics have moved."""
    norm = fm.NormAct(getattr(nn, act)())
    (first, middle, last), model = pair(lambda: nn.Sequential(nn.Conv2d(3, C, 3), norm, nn.Conv2d(C, C, 3)), training)
    with torch.no_grad():
        h = first(image(*STEM))
        pending, expected = middle(h), copy.deepcopy(model[1])(h.clone())
        last(pending)
        assert (pending + 0 - expected).abs().max() <= 64 * 2.0**-24 * expected.abs().max()


def test_a_divisor_that_changes_after_the_conversion():
    found, model = pair(fm.net)
    for net in (model, found):
        net.blocks[0].scale = 4.0  # after it was proved to be 1
    assert_same(found, model, image(*STEM))
    assert calls(found, image(*STEM)).count("channel_stats") == 1


@pytest.mark.parametrize("kind", ["GroupNorm", "BatchNorm", "InstanceNorm"])
def test_traces_batches_and_another_conversion(kind):
    found, model = pair(lambda: fm.ranked(kind, 2))
    x = image(2, C, 5, 5)
    assert_same(torch.fx.symbolic_trace(found), model, x)
    assert torch.equal(torch.vmap(found)(x[None])[0], found(x))
    again = convert(pair(fm.net)[0], fuse=True)
    assert not any(chain.statistics for chain in again.chains)
    assert calls(again.model, image(*STEM)).count("channel_stats") == 0


@pytest.mark.slow
def test_compiled():
    found, model = pair(fm.Block)
    torch._dynamo.reset()
    assert_same(torch.compile(found, backend="eager", fullgraph=True), model, image(*X), image(2, 4))


def test_exported():
    graph = torch.export.export(pair(fm.Block)[0], (image(*X), image(2, 4))).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    operators = ["nkiconv.conv2d_with_stats.default", "nkiconv.conv2d_with_prologue.default"]
    assert [name for name in names if "conv2d" in name] == operators


def refuses(self, x):
    raise NotImplementedError


def test_methods_of_a_model_whose_forward_is_not_called():
    model = made(refuses, block=fm.Block())
    type(model).decode = lambda self, x, t: self.block(x, t)
    found, inputs = convert(drawn(model).eval(), fuse=True).model, (image(*X), image(2, 4))
    with torch.no_grad():
        assert_within_share([found.decode(*inputs)], [model.decode(*inputs)], FLOAT32_SUMS)
    assert calls(found.decode, *inputs) == "channel_stats; norm silu conv2d stats; norm silu conv2d sum"


@pytest.mark.parametrize(("where", "fused", "known"), [
    ("conv1", [False, True], [False, False]), ("conv2", [True, False], [False] * 2),
])  # fmt: skip
def test_hooks_of_modules_around_see_tensors(where, fused, known):
    model, seen = drawn(fm.wrapped()).eval(), []
    model.get_submodule(where).register_forward_hook(lambda _m, args, y: seen.extend([type(args[0]), type(y)]))
    report = convert(model, fuse=True)
    seen.clear()  # of torch.fx
    assert [one.fused for one in report.chains] == fused
    assert [one.offset for one in report.chains] == [bool(one.statistics) for one in report.chains] == known
    assert_same(report.model, model, image(*X), image(2, C, 1, 1))
    assert set(seen) == {torch.Tensor}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_again(reentrant):
    results, both = [], pair(fm.wrapped, training=True)
    for one in both:
        leaves = [image(*X).requires_grad_(), image(2, C, 1, 1).requires_grad_()]
        y = checkpoint(one, *leaves, use_reentrant=reentrant)
        y.sin().sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    assert all(close(found, right, 4 * terms_of(both[1])) for found, right in zip(*results, strict=True))


def hidden(m, x):
    """A change that no graph shows."""
    y = m.a(x)
    for change in m.changes:
        change(x)
    return F.relu(y) + m.b(x)


def zeroes(self, hidden):
    h = self.pointwise_conv1(hidden.transpose(1, 2))
    x = self.glu(h)
    if hidden.shape[0] == 3:
        h.zero_()
    return self.pointwise_conv2(self.depthwise_conv(x))


def between(m, x):
    m.between = lambda y: (x.add_(1), y)[1]
    return m(x)


def inside(m, x):
    m.changes.append(lambda x: x.add_(1))
    return m(x)


TIME, TOKENS = image(2, C, 1, 1), (2, 4, 3, C)
#: What makes a model, the shape of its input, what makes a result that is not computed yet, and what asks for it after
#: the input, or numbers for each channel, were changed.
CHANGES = {
    "norm": (fm.chain, X, lambda m, x: m[0](x), lambda m, z: m[2](m[1](z))),
    "time": (fm.timed, STEM, lambda m, x: m.norm(m.conv1(x) + TIME), lambda m, z: m.conv2(z)),
    "scale": (lambda: fm.timed("scale and shift"), X, lambda m, x: m.norm(x + 0) * TIME, lambda m, z: m.conv2(z)),
    "videos": (fm.Clip, (1, C, 3, 4, 5), lambda m, x: m.conv1(x), lambda m, z: z.sum()),
    "norm of layers": (fm.ConvNext, TOKENS, lambda m, x: m.norm(x), lambda m, z: z.sum()),
    "first layer": (fm.ConvNext, TOKENS, lambda m, x: m.mlp.act(m.mlp.fc1(x)), lambda m, z: m.mlp.fc2(z).sum()),
    "layer": (fm.ConvNext, TOKENS, lambda m, x: m.mlp.fc2(m.mlp.act(m.mlp.fc1(x))), lambda m, z: z.sum()),
    # changed by the model's own code
    "upsampling": (fm.Grown, X, lambda m, x: x, between),
    "convolution": (
        lambda: made(hidden, changes=[], **dict(fm.two(hidden).named_children())), X, lambda m, x: x, inside),
    "rows": (lambda: made(zeroes, fm.Conformer), (3, 11, C), lambda m, x: x, lambda m, x: m(x)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "shape", "begin", "ask"), CHANGES.values(), ids=CHANGES)
def test_an_input_that_changes_in_the_meantime_is_refused(make, shape, begin, ask):
    found, _ = pair(make)
    x = image(*shape)
    with torch.no_grad(), within(found):
        pending = begin(found, x)
        for one in (x, TIME) if pending is not x else ():
            one.add_(1)
        with pytest.raises(UnsupportedError, match="was changed in place"):
            ask(found, pending)
