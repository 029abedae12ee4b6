"""convert(fuse=True) makes linear layers of images 1x1 convolutions with what follows them: ConvNeXt's blocks."""

import copy
import pickle

import pytest
import torch
from chained import C, assert_same, drawn, image
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
        self.norm, self.pwconv1, self.act, self.pwconv2 = (
            nn.LayerNorm(C),
            nn.Linear(C, WIDE),
            nn.GELU(),
            nn.Linear(WIDE, C),
        )
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


@pytest.fixture
def convolved(monkeypatch):
    """(activation, whether a residual is in the call) of each call, "mlp" in front of those of two layers."""
    found = []

    def counted(name, mark):
        own = getattr(pixel_layers, name)

        def call(*tensors, **more):
            found.append((*mark, more["activation"], more["residual"] is not None))
            return own(*tensors, **more)

        monkeypatch.setattr(pixel_layers, name, call)

    counted("conv2d", ())
    counted("pointwise_mlp", ("mlp",))
    return found


def told(report):
    return {layer.name: layer.reason or str(layer) for layer in report.layers}


BOTH, ONE = [("gelu", False), (None, True)], [("mlp", "gelu", True)]
#: (model, calls of one run)
FUSED = {
    "timm": (Block(), ONE),
    "torchvision": (Sequence(), ONE),
    "Meta": (First(), ONE),
    "1x1 convolutions": (Convolutions(), ONE),
    "1x1 convolutions after a chain": (Convolutions(nn.Sequential(nn.GroupNorm(2, C), nn.Conv2d(C, C, 1))), ONE),
    "no scale": (Block(scale=False), ONE),
    "another activation": (Block(Mlp(nn.ReLU(inplace=True))), [("mlp", "relu", True)]),
    "a norm between": (Block(Mlp(between=Response())), BOTH),
    "no bias": (Block(Mlp()), ONE),
}
FUSED["no bias"][0].mlp.fc2.bias = None


@pytest.mark.parametrize("why", FUSED)
def test_a_block_is_one_call_or_two(why, convolved):
    model, calls = FUSED[why]
    drawn(model).eval()
    state = {name: one.clone() for name, one in model.state_dict().items()}
    report = convert(model, fuse=True)
    assert_same(report.model, model, image(2, C, 6, 5), terms=TERMS)
    assert convolved == calls
    assert [layer.fused for layer in report.layers] == [True, True]
    assert [layer.scaled for layer in report.layers] == [False, why != "no scale"]
    assert "2 of 2 layers of images are 1x1 convolutions" in str(report)
    assert "1x1 convolution -> gelu" in str(report) or why == "another activation"
    assert [row["fused"] for row in report.as_dict()["layers"]] == [True, True]
    assert all(torch.equal(one, state[name]) for name, one in report.model.state_dict().items())


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
def norms(monkeypatch):
    """x_norm of each call of two layers."""
    found, own = [], pixel_layers.pointwise_mlp

    def call(*tensors, **more):
        found.append(more.get("x_norm"))
        return own(*tensors, **more)

    monkeypatch.setattr(pixel_layers, "pointwise_mlp", call)
    return found


@pytest.mark.parametrize(("model", "norm", "kind"), [
    (Block(), "norm", "layer"),
    (Sequence(), "norm", "layer"),
    (First(), "norm", "layer"),
    (with_norm(OwnNorm()), "norm", "layer"),
    (with_norm(nn.RMSNorm(C, 1e-5)), "norm", "rms"),
    (Convolutions(FrontNorm(C)), "more", "layer"),
])  # fmt: skip
def test_a_norm_goes_into_the_call_of_two_layers(model, norm, kind, norms):
    model = drawn(model).eval()
    report = convert(model, fuse=True)
    assert [layer.norm for layer in report.layers] == [norm, None]
    assert f"{norm} -> 1x1 convolution -> gelu" in str(report)
    assert_same(report.model, model, image(2, C, 6, 5), terms=TERMS)
    assert norms == [kind]
    assert_same(pickle.loads(pickle.dumps(report.model)), model, image(2, C, 6, 5), terms=TERMS)


@pytest.mark.parametrize("model", [
    with_norm(nn.RMSNorm(C)),  # whose eps is that of a dtype
    with_norm(nn.LayerNorm(C, elementwise_affine=False)),
    with_norm(nn.LayerNorm((5, C))),
    with_norm(nn.Sequential(nn.LayerNorm(C), nn.Identity())),
    Block(Mlp(between=Response())),
])  # fmt: skip
def test_norms_that_stay(model, norms):
    """No kernel computes them, or what reads them is no call of two layers."""
    converted = convert(drawn(model).eval(), fuse=True).model
    assert_same(converted, model, image(2, C, 6, 5), terms=TERMS)
    assert norms in ([], [None])


def test_a_norm_with_hooks_or_under_autocast_computes_by_itself(norms):
    model = drawn(Block()).eval()
    converted, x = convert(model, fuse=True).model, image(2, C, 6, 5)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(converted(x), model(x))
    assert norms == []
    seen = []
    converted.norm.register_forward_hook(lambda *given: seen.append(given[2].shape))
    assert_same(converted, model, x, terms=TERMS)
    assert (seen, norms) == ([(2, 6, 5, C)], [None])
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


@pytest.mark.parametrize("model", [nn.Sequential(nn.LayerNorm(C), Mlp()), nn.Sequential(nn.Linear(C, C), nn.ReLU())])
def test_layers_of_tokens_are_not_told(model):
    report = convert(model.eval(), fuse=True)
    assert report.layers == ()
    assert "layers of images" not in str(report)
    assert report.as_dict()["layers"] == []


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
    assert convolved == [("mlp", "gelu", False)]


def test_filters_that_do_not_fit_are_two_calls(convolved, monkeypatch):
    monkeypatch.setattr(pixel_layers, "unsupported", lambda *_: "too many channels")
    model = drawn(Block()).eval()
    assert_same(convert(model, fuse=True).model, model, image(2, C, 6, 5), terms=TERMS)
    assert convolved == BOTH


def test_a_norm_that_does_not_fit_computes_by_itself(convolved, norms, monkeypatch):
    monkeypatch.setattr(pixel_layers, "unsupported", lambda *given: "too many channels" if given[3:] else "")
    model = drawn(Block()).eval()
    assert_same(convert(model, fuse=True).model, model, image(2, C, 6, 5), terms=TERMS)
    assert (convolved, norms) == (ONE, [None])


def test_kernels_compute_a_block(mode, convolved):
    """In `simulate` and `compare` too."""
    model = drawn(Block()).eval()
    assert_same(convert(model, fuse=True).model, model, image(1, C, 4, 7), terms=TERMS)
    assert convolved == ONE


def test_gradients(convolved):
    """Training keeps the hidden channels, by two calls."""
    model = drawn(Block()).eval()
    converted = convert(model, fuse=True).model
    x, g = image(2, C, 6, 5).requires_grad_(), image(2, C, 6, 5, seed=3)
    found = torch.autograd.grad(converted(x), [x, *model.parameters()], g)
    assert convolved == BOTH
    wide, far = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    truth = torch.autograd.grad(wide(far), [far, *wide.parameters()], g.double())
    for one, other in zip(found, truth, strict=True):
        assert (one - other).abs().max() <= 4 * TERMS * 60 * 2.0**-24 * max(1, other.abs().max())


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


@pytest.mark.slow
def test_converted_models_are_copied_pickled_traced_compiled_and_converted_again():
    model = drawn(Sequence()).eval()
    converted, x = convert(model, fuse=True).model, image(2, C, 6, 5)
    expected = converted(x)
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(other(x), expected)
    assert_same(torch.fx.symbolic_trace(converted), model, x, terms=TERMS)
    assert set(told(convert(converted, fuse=True)).values()) == {"is a convolution already"}
    torch._dynamo.reset()
    assert_same(torch.compile(converted, backend="eager", fullgraph=True), model, x, terms=TERMS)


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


@pytest.mark.parametrize("package", ["timm", "torchvision", "transformers"])
def test_models_of_packages(package, convolved, norms):
    pytest.importorskip(package, exc_type=Exception)
    x = image(1, 3, 256, 256)
    if package == "timm":
        from timm.models.convnext import ConvNeXt

        model = ConvNeXt(depths=(1, 1, 1, 1), dims=(C,) * 4, num_classes=3, ls_init_value=0.5)
    elif package == "transformers":
        from transformers.models.convnext.configuration_convnext import ConvNextConfig
        from transformers.models.convnext.modeling_convnext import ConvNextLayer

        config = ConvNextConfig(layer_scale_init_value=0.5)
        model, x = nn.Sequential(*(ConvNextLayer(config, C) for _ in range(4))), image(1, C, 9, 8)
    else:
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        model = ConvNeXt([CNBlockConfig(C, C, 2), CNBlockConfig(C, None, 2)], layer_scale=0.5, num_classes=3)
    report = convert(model.eval(), fuse=True)
    assert [layer.fused for layer in report.layers] == [True] * 8
    assert_same(report.model, model, x, terms=8 * TERMS)
    assert convolved == 4 * ONE
    assert norms == ["layer"] * 4
