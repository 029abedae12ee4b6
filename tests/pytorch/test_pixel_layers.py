"""convert(fuse=True) makes linear layers of images 1x1 convolutions with what follows them: ConvNeXt's blocks."""

import pickle

import pytest
import torch
from chained import C, assert_gradients, assert_same, drawn, image
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert, plan_model
from nkiconv.pytorch.models import pixel_layers

WIDE = 3 * C
#: Products in the sums of both layers.
TERMS = C + WIDE


class Mlp(nn.Module):
    """Two linear layers, and what may be between them."""

    def __init__(self, act=None, between=None, dropout=0.1):
        super().__init__()
        self.fc1, self.act, self.drop = nn.Linear(C, WIDE), act or nn.GELU(), nn.Dropout(dropout)
        self.between, self.fc2 = between or nn.Identity(), nn.Linear(WIDE, C)

    def forward(self, x):
        return self.drop(self.fc2(self.between(self.drop(self.act(self.fc1(x))))))


class DropPath(nn.Module):
    """timm's, in eval mode."""

    def forward(self, x):
        return 3 * x if self.training else x


class Block(nn.Module):
    """ConvNeXt's block as timm writes it, and whatever else reads what its layers read or give."""

    def __init__(self, mlp=None, scale=True, also=None):
        super().__init__()
        self.norm, self.mlp, self.path = nn.LayerNorm(C), mlp or Mlp(), DropPath()
        self.gamma, self.also = nn.Parameter(torch.ones(C)) if scale else None, also

    def forward(self, x):
        h = self.norm(x.permute(0, 2, 3, 1))
        y = self.mlp(h).permute(0, 3, 1, 2)
        if self.gamma is not None:
            y = y.mul(self.gamma.reshape(1, -1, 1, 1))
        y = self.path(y) + x
        return y if self.also is None else y + self.also(h)


class Sequence(nn.Module):
    """The same as torchvision writes it."""

    def __init__(self):
        super().__init__()
        self.norm, self.block = nn.LayerNorm(C), nn.Sequential(nn.Linear(C, WIDE), nn.GELU(), nn.Linear(WIDE, C))
        self.scale = nn.Parameter(torch.ones(C, 1, 1))

    def forward(self, x):
        y = self.block(self.norm(torch.permute(x, [0, 2, 3, 1])))
        y = self.scale * torch.permute(y, [0, 3, 1, 2])
        y += x
        return y


class First(nn.Module):
    """The same as Meta and transformers write it: scaled before it is permuted."""

    def __init__(self):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(C), nn.GELU()
        self.pwconv1, self.pwconv2 = nn.Linear(C, WIDE), nn.Linear(WIDE, C)
        self.gamma = nn.Parameter(torch.ones(C))

    def forward(self, x):
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(x.permute(0, 2, 3, 1)))))
        return x + y.permute(0, 3, 1, 2)


class Convolutions(nn.Module):
    """The same by 1x1 convolutions."""

    def __init__(self, more=None):
        super().__init__()
        self.fc1, self.act, self.drop = nn.Conv2d(C, WIDE, 1), nn.GELU(), nn.Dropout(0.1)
        self.fc2, self.gamma, self.more = nn.Conv2d(WIDE, C, 1), nn.Parameter(torch.ones(C, 1, 1)), more

    def forward(self, x):
        h = x * 2 if self.more is None else self.more(x)
        return self.gamma * self.fc2(self.drop(self.act(self.fc1(h)))) + x


class Excitation(nn.Module):
    """A gate whose second layer stays, as nothing that a convolution takes comes after it."""

    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Conv2d(C, WIDE, 1), nn.ReLU(inplace=True), nn.Conv2d(WIDE, C, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.fc2(self.act(self.fc1(x.mean((2, 3), keepdim=True)))))


class Response(nn.Module):
    """ConvNeXt V2's norm over the pixels of an image."""

    def forward(self, x):
        return x * (x.norm(dim=(1, 2), keepdim=True) + 1)


class OwnNorm(nn.Module):
    """Meta's LayerNorm."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C)), 1e-6

    def forward(self, x):
        return F.layer_norm(x, (C,), self.weight, self.bias, self.eps)


class FrontNorm(nn.LayerNorm):
    """timm's LayerNorm2d."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def with_norm(norm, model=None):
    """A block whose norm is another."""
    model = model or Block()
    model.norm = norm
    return model


@pytest.fixture
def convolved(monkeypatch):
    """(activation, whether a residual is in the call) of each call, "mlp" in front of those of two layers, and the norm
    that one of these has taken in behind."""
    found = []

    def counted(name, mark):
        own = getattr(pixel_layers, name)

        def call(*tensors, **more):
            found.append((*mark, more["activation"], more["residual"] is not None, *[more.get("x_norm")] * len(mark)))
            return own(*tensors, **more)

        monkeypatch.setattr(pixel_layers, name, call)

    counted("conv2d", ())
    counted("pointwise_mlp", ("mlp",))
    return found


def no_bias():
    model = Block()
    model.mlp.fc2.bias = None
    return model


BOTH, ONE, PLAIN = [("gelu", False), (None, True)], [("mlp", "gelu", True, "layer")], [("mlp", "gelu", True, None)]
#: (model, the norm that is in the call, calls of one run)
FUSED = {
    "timm": (Block(), "norm", ONE),
    "torchvision": (Sequence(), "norm", ONE),
    "Meta": (First(), "norm", ONE),
    "1x1 convolutions": (Convolutions(), None, PLAIN),
    "after a chain": (Convolutions(nn.Sequential(nn.GroupNorm(2, C), nn.Conv2d(C, C, 1))), None, PLAIN),
    "no scale": (Block(scale=False), "norm", ONE),
    "another activation": (Block(Mlp(nn.ReLU(inplace=True))), "norm", [("mlp", "relu", True, "layer")]),
    "a norm between": (Block(Mlp(between=Response())), None, BOTH),
    "no bias": (no_bias(), "norm", ONE),
    "Meta's norm": (with_norm(OwnNorm()), "norm", ONE),
    "timm's norm": (Convolutions(FrontNorm(C)), "more", ONE),
    "RMSNorm": (with_norm(nn.RMSNorm(C, 1e-5)), "norm", [("mlp", "gelu", True, "rms")]),
    # norms that no kernel computes
    "eps of a dtype": (with_norm(nn.RMSNorm(C)), None, PLAIN),
    "no affine": (with_norm(nn.LayerNorm(C, elementwise_affine=False)), None, PLAIN),
    "of rows": (with_norm(nn.LayerNorm((5, C))), None, PLAIN),
}


@pytest.mark.parametrize("why", FUSED)
def test_a_block_is_one_call_or_two(why, convolved):
    model, norm, calls = FUSED[why]
    drawn(model).eval()
    state = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fuse=True)
    assert_same(report.model, model, image(2, C, 6, 5), terms=TERMS)
    assert convolved == calls
    assert [(layer.fused, layer.norm) for layer in report.layers] == [(True, norm), (True, None)]
    assert [layer.scaled for layer in report.layers] == [False, why != "no scale"]
    assert "2 of 2 layers of images are 1x1 convolutions" in str(report)
    assert [row["fused"] for row in report.as_dict()["layers"]] == [True, True]
    assert all(torch.equal(one, state[name]) for name, one in report.model.state_dict().items())
    assert_same(pickle.loads(pickle.dumps(report.model)), model, image(2, C, 6, 5), terms=TERMS)


def test_a_norm_with_hooks_or_under_autocast_computes_by_itself(convolved):
    model = drawn(Block()).eval()
    converted, x = convert(model, fuse=True).model, image(2, C, 6, 5)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(converted(x), model(x))
    assert convolved == []
    seen = []
    converted.norm.register_forward_hook(lambda *given: seen.append(given[2].shape))
    assert_same(converted, model, x, terms=TERMS)
    assert (seen, convolved) == ([(2, 6, 5, C)], PLAIN)
    assert convert(hooked(Block(), "norm"), fuse=True).layers[0].norm is None


def test_what_reads_a_norm_by_itself():
    model = drawn(Block()).eval()
    norm, x = convert(model, fuse=True).model.norm, image(2, 4, 3, C)
    assert torch.equal(norm(x) + 0, model.norm(x))
    assert torch.equal(F.gelu(norm(x)), F.gelu(model.norm(x)))
    assert torch.equal(norm(x[0]), model.norm(x[0]))
    pending = norm(x)
    x += 1
    with pytest.raises(UnsupportedError, match="was changed in place"):
        pending.sum()


def hooked(model, name):
    model.get_submodule(name).register_forward_hook(lambda *_: None)
    return model


ALONE = "is not the only one that sees its input"
CHAINED = "is not swapped by this call, or is in a chain with its norm, as its own row says"
NOTHING = "has no activation or sum after it that a convolution takes"
IN_MLP, IN_MODEL = (f"a module in {where} has hooks, which would see no tensor" for where in ("mlp", "the model"))


@pytest.mark.parametrize(("model", "reasons", "calls"), [
    (hooked(Block(), "mlp.act"), {"mlp.fc1": IN_MLP, "mlp.fc2": IN_MODEL}, []),
    (hooked(Block(), "mlp"), {"mlp.fc2": IN_MODEL}, [("gelu", False)]),
    (hooked(Block(), "path"), {"mlp.fc2": IN_MODEL}, [("gelu", False)]),
    (Block(also=lambda h: h.permute(0, 3, 1, 2)), {"mlp.fc1": ALONE}, [(None, True)]),
    (Block(Mlp(nn.Hardswish())), {"mlp.fc1": NOTHING}, [(None, True)]),
    (Convolutions(nn.GroupNorm(2, C)), {"fc1": CHAINED}, [(None, True)]),
    (Excitation(), {"fc2": NOTHING}, [("relu", False)]),
])  # fmt: skip
def test_why_a_layer_stays(model, reasons, calls, convolved):
    report = convert(drawn(model).eval(), fuse=True)
    assert {layer.name: layer.reason for layer in report.layers if layer.reason} == reasons
    assert_same(report.model, model, image(2, C, 6, 5), terms=TERMS)
    assert convolved == calls


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float16, (2, C, 6, 5)), (torch.float32, (1, C, 2, 2))])
def test_a_scale_that_does_not_go_into_filters(dtype, shape, convolved):
    """Of fp16, where small products are lost, and of fewer pixels than the filter has inputs."""
    model = drawn(Block()).eval()
    converted, x = convert(model, fuse=True).model, image(*shape)
    with torch.no_grad():
        truth = model.double()(x.double())
        found = converted.to(dtype)(x.to(dtype))
    eps = torch.finfo(dtype).eps
    assert (found - truth).abs().max() <= 4 * TERMS * eps * truth.abs().max()
    assert convolved == [("mlp", "gelu", False, "layer")]


def test_kernels_compute_a_block(mode, convolved):
    """In `simulate` and `compare` too."""
    model = drawn(Block()).eval()
    assert_same(convert(model, fuse=True).model, model, image(1, C, 4, 7), terms=TERMS)
    assert convolved == ONE


def test_gradients(convolved):
    """Training keeps the hidden channels, by two calls."""
    model = drawn(Block()).eval()
    assert_gradients(convert(model, fuse=True).model, model, image(2, C, 6, 5), terms=TERMS)
    assert convolved == BOTH


def test_training_takes_what_it_can(convolved):
    """Dropout and stochastic depth see tensors."""
    model = drawn(Block(Mlp(dropout=0.5))).eval()
    converted = convert(model, fuse=True).model.train()
    model.train()
    torch.manual_seed(0)
    found = converted(image(2, C, 6, 5))
    torch.manual_seed(0)
    # dropout draws by the order of elements in memory, which is another
    assert found.shape == model(image(2, C, 6, 5)).shape
    assert convolved == [("gelu", False), (None, False)]


def test_calls_by_other_code(convolved):
    """A layer that is called by itself, and what else may be done with what it gives."""
    model = drawn(Block()).eval()
    layer, plain, x = convert(model, fuse=True).model.mlp.fc2, model.mlp.fc2, image(2, 4, 3, WIDE)
    expected = plain(x)
    cases = {
        "a sum of channels last": (lambda y: y + x[..., :C], expected + x[..., :C]),
        "a number": (lambda y: 2 * y, 2 * expected),
        "a scale": (lambda y: y * x[0, 0, 0, :C], expected * x[0, 0, 0, :C]),
        "a sum after an activation": (lambda y: F.relu(y) + 1, F.relu(expected) + 1),
        "two activations": (lambda y: F.relu(F.gelu(y)), F.relu(F.gelu(expected))),
        "another order": (lambda y: y.permute(0, 1, 3, 2), expected.permute(0, 1, 3, 2)),
        "a product": (lambda y: y @ x[0, 0, :, :C].T, expected @ x[0, 0, :, :C].T),
        "twice": (lambda y: y.sum() + F.gelu(y).sum(), expected.sum() + F.gelu(expected).sum()),
        "tokens": (lambda _: layer(x[0]), plain(x[0])),
        "none": (lambda _: layer(x[:0]), plain(x[:0])),
    }
    for why, (use, wanted) in cases.items():
        found = use(layer(x))
        assert found.shape == wanted.shape, why
        assert (found - wanted).abs().sum() <= wanted.numel() * 8 * TERMS * 2.0**-24 * (1 + wanted.abs().sum()), why


@pytest.mark.parametrize("between", [True, False])
def test_an_input_that_changes_is_refused(between):
    mlp = convert(drawn(Block()).eval(), fuse=True).model.mlp
    x = image(2, 4, 3, C)
    pending = mlp.act(mlp.fc1(x))
    if between:
        x += 1
    pending = mlp.fc2(pending)
    if not between:
        x += 1
    with torch.no_grad(), pytest.raises(UnsupportedError, match="was changed in place"):
        pending.sum()


def test_plan_model_counts_them():
    x = image(2, C, 6, 5)
    found = plan_model(drawn(Block()).eval(), (x,), fuse=True, quick=True, use_cache=False, advice=True)
    [row] = found.rows
    asked = row.convolved.asked
    assert (row.layers, row.convolved.hidden, asked.activation, asked.residual) == (
        *(("mlp.fc2",), WIDE, "gelu", "pre_activation"),
    )
    assert row.convolved.x_norm == "layer"
    assert found.modelled_us == row.plan.modelled_us > 0
    assert found.flops.nkiconv == 2 * 2 * x.numel() * WIDE
    assert "pointwise_mlp" in str(found)
    whole = plan_model(drawn(Block()).eval(), (x,), fuse=True, quick=True, use_cache=False, training=True)
    by_convolutions = plan_model(drawn(Convolutions()).eval(), (x,), fuse=True, quick=True, use_cache=False)
    assert [row.layers for row in by_convolutions.rows] == [("fc2",)]
    assert by_convolutions.uncalled == ()
    assert [row.layers for row in whole.toward("forward").rows] == [("mlp.fc1",), ("mlp.fc2",)]
