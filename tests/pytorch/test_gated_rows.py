"""convert(fuse=True) makes GLU, depthwise convolution, BatchNorm and activation one call: Conformer's modules."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from chained import C, assert_same, drawn, image
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert
from nkiconv.pytorch.models import gated_rows

TAPS = 5
#: Products in the sums of all three convolutions.
TERMS = 2 * C + TAPS + C


def depthwise(taps=TAPS, bias=False, **more):
    return nn.Conv1d(C, C, taps, groups=C, bias=bias, **{"padding": (taps - 1) // 2, **more})


class Sequence(nn.Module):
    """As torchaudio writes it: all in one Sequential."""

    def __init__(self, conv=None, norm=None, act=None):
        super().__init__()
        norm, act = norm or nn.BatchNorm1d(C), act or nn.SiLU()
        self.layer_norm = nn.LayerNorm(C)
        self.sequential = nn.Sequential(
            nn.Conv1d(C, 2 * C, 1), nn.GLU(dim=1), conv or depthwise(), norm, act, nn.Conv1d(C, C, 1), nn.Dropout(0.1)
        )

    def forward(self, x):
        return self.sequential(self.layer_norm(x).transpose(1, 2)).transpose(1, 2)


class Masked(nn.Module):
    """As transformers' Parakeet writes it: a function gates, and a mask may come after it."""

    def __init__(self, also=None):
        super().__init__()
        self.pointwise_conv1, self.depthwise_conv = nn.Conv1d(C, 2 * C, 1), depthwise(bias=True)
        self.norm, self.pointwise_conv2, self.also = nn.BatchNorm1d(C), nn.Conv1d(C, C, 1), also

    def forward(self, x, mask=None):
        h = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)
        if mask is not None:
            h = h.masked_fill(mask, 0.0)
        y = self.pointwise_conv2(F.silu(self.norm(self.depthwise_conv(h)))).transpose(1, 2)
        return y if self.also is None else y + self.also(h).transpose(1, 2)


@pytest.fixture
def called(monkeypatch):
    """Names of the functions that stages have called."""
    found = []

    def counted(name):
        own = getattr(gated_rows, name)

        def call(*tensors, **more):
            found.append((name, more["activation"]))
            return own(*tensors, **more)

        monkeypatch.setattr(gated_rows, name, call)

    counted("glu_conv1d")
    counted("conv1d")
    return found


ONE = [("glu_conv1d", "silu")]
FUSED = {
    "torchaudio": (Sequence(), ONE),
    "parakeet": (Masked(), ONE),
    "no norm": (Sequence(norm=nn.Identity()), ONE),
    "no scale": (Sequence(norm=nn.BatchNorm1d(C, affine=False)), ONE),
    "in place": (Sequence(act=nn.SiLU(inplace=True)), ONE),
    "another activation": (Sequence(act=nn.GELU()), [("glu_conv1d", "gelu")]),
    "same": (Sequence(depthwise(3, padding="same")), ONE),
}


def told(report):
    """What is said of the only stage."""
    [stage] = report.stages
    return stage.reason


@pytest.mark.parametrize("why", FUSED)
def test_a_module_is_one_call(why, called):
    model, calls = FUSED[why]
    drawn(model).eval()
    report = convert(model, fuse=True)
    assert told(report) == ""
    called.clear()
    assert_same(report.model, model, image(2, 12, C), terms=TERMS)
    assert called == calls
    assert "1 of 1 GLUs fused with the depthwise convolution" in str(report)
    assert "one call: GLU -> depthwise convolution" in " ".join(str(report).split())
    assert [row["fused"] for row in report.as_dict()["stages"]] == [True]
    state = model.state_dict()
    assert all(torch.equal(one, state[name]) for name, one in report.model.state_dict().items())
    assert not any(chain.fused for chain in report.chains)


def test_a_call_with_a_mask_is_a_convolution_with_its_norm(called):
    model, mask = drawn(Masked()).eval(), torch.arange(12) > 8
    converted = convert(model, fuse=True).model
    called.clear()
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(image(2, 12, C).double(), mask)
        for one in (converted, model):
            error = (one(image(2, 12, C), mask) - truth).abs().max()
            assert error <= 4 * TERMS * 2.0**-24 * max(1, truth.abs().max())
    assert called == [("conv1d", "silu")]


def test_a_folded_norm(called):
    model = drawn(Sequence()).eval()
    report = convert(model, fuse=True, fold_batchnorm=True)
    called.clear()
    assert_same(report.model, model, image(2, 12, C), terms=TERMS)
    assert called == ONE


def hooked(model, name):
    model.get_submodule(name).register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(("model", "reason"), [
    (hooked(Sequence(), "sequential.3"), "a module of it has hooks, which would see no tensor"),
    (hooked(Sequence(), "sequential.0"), "a module of it has hooks, which would see no tensor"),
    (Sequence(depthwise(dilation=2, padding=4)), "has a stride, a dilation or a padding by other than zeros"),
    (Sequence(depthwise(padding_mode="reflect")), "has a stride, a dilation or a padding by other than zeros"),
    (Sequence(norm=nn.GroupNorm(1, C)), "is not followed by an activation that nkiconv fuses, with at most a BatchNorm "
     "between"),
    (Sequence(norm=nn.BatchNorm1d(C, track_running_stats=False)), "its norm takes statistics of the batch; call "
     "model.eval() first"),
])  # fmt: skip
def test_why_a_stage_stays(model, reason, called):
    report = convert(drawn(model).eval(), fuse=True)
    assert told(report) == reason
    assert_same(report.model, model, image(2, 12, C), terms=TERMS)
    assert called == []


def test_what_another_reads_is_no_stage(called):
    model = drawn(Masked(nn.Identity())).eval()
    report = convert(model, fuse=True)
    assert report.stages == ()
    assert_same(report.model, model, image(2, 12, C), terms=TERMS)
    assert called == []


def test_training_runs_the_modules(called):
    """A norm of the batch sees what the convolution gives, and its statistics move."""
    model = drawn(Sequence()).eval()
    model.sequential[6].p = 0.0
    converted, alone = convert(model, fuse=True).model.train(), copy.deepcopy(model).train()
    called.clear()
    assert_same(converted, alone, image(2, 12, C), terms=TERMS)
    assert called == [("glu_conv1d", None)]
    assert converted.sequential[3].num_batches_tracked > 0


def test_kernels_compute_a_stage(mode, called):
    """In `simulate` and `compare` too."""
    model = drawn(Sequence()).eval()
    assert_same(convert(model, fuse=True).model, model, image(1, 9, C), terms=TERMS)
    assert ("glu_conv1d", "silu") in called


def test_gradients():
    model = drawn(Sequence()).eval()
    converted = convert(model, fuse=True).model
    x, g = image(2, 12, C).requires_grad_(), image(2, 12, C, seed=3)
    found = torch.autograd.grad(converted(x), [x, *model.parameters()], g)
    wide, far = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    truth = torch.autograd.grad(wide(far), [far, *wide.parameters()], g.double())
    for one, other in zip(found, truth, strict=True):
        assert (one - other).abs().max() <= 4 * TERMS * 24 * 2.0**-24 * max(1, other.abs().max())


def test_an_input_that_changes_in_between_is_refused():
    model = drawn(Sequence()).eval()
    parts = convert(model, fuse=True).model.sequential
    x = parts[0](image(2, C, 12))
    rows = parts[2](parts[1](x))
    x.value().mul_(2)
    with pytest.raises(UnsupportedError, match="was changed in place"):
        parts[4](parts[3](rows))


def test_autocast_and_pickles(called):
    model = drawn(Sequence()).eval()
    converted, x = convert(model, fuse=True).model, image(2, 12, C)
    called.clear()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(converted(x), convert(model).model(x))
    assert called == []
    again = pickle.loads(pickle.dumps(converted))
    assert_same(again, model, x, terms=TERMS)
    assert called == ONE
    report = convert(converted, fuse=True)
    assert told(report) == "is one call with its GLU already"


@pytest.mark.parametrize(("file", "name", "more"), [
    ("torchaudio.models.conformer", "_ConvolutionModule", {}),
    ("transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer", "Wav2Vec2ConformerConvolutionModule",
     {"conv_depthwise_kernel_size": TAPS, "hidden_act": "silu", "conformer_conv_dropout": 0.1}),
    ("transformers.models.parakeet.modeling_parakeet", "ParakeetEncoderConvolutionModule",
     {"conv_kernel_size": TAPS, "convolution_bias": True}),
])  # fmt: skip
def test_packages(file, name, more, called):
    """The modules of torchaudio and transformers, where they are installed."""
    kind = getattr(pytest.importorskip(file), name)
    config = SimpleNamespace(hidden_size=C, **more)
    model = drawn(kind(config) if more else kind(C, C, TAPS)).eval()
    report = convert(model, fuse=True)
    assert told(report) == ""
    called.clear()
    assert_same(report.model, model, image(2, 12, C), terms=TERMS)
    assert called == ONE
