"""convert(fuse=True) lets convolutions double rows and columns on the way in, where nothing else sees the result."""

import pickle

import pytest
import torch
from chained import C, assert_same, drawn, image
from operators_seen import Seen
from torch import nn
from torch.nn import functional as F

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert, plan_model
from nkiconv.pytorch import nn as ours
from nkiconv.pytorch.models import doublings

TERMS = 9 * C


class Grown(nn.Module):
    """diffusers' Upsample2D: with a size it is torch's, and has no graph; without one it is the convolution's."""

    def __init__(self, convolution=None, **how):
        super().__init__()
        self.conv = convolution or nn.Conv2d(C, C, 3, padding=1)
        self.how = {"scale_factor": 2.0, "mode": "nearest", **how}

    def between(self, x):
        return x

    def forward(self, x, size=None):
        factor = 2 if size is None else max(one / own for one, own in zip(size, x.shape[-2:], strict=True))
        if x.numel() * factor > 2**31:
            x = x.contiguous()
        kind = x.dtype
        x = F.interpolate(x, size=size) if size is not None else F.interpolate(x, **self.how)
        if kind == torch.bfloat16 and torch.__version__ < "2.1":
            x = x.to(kind)
        return self.conv(self.between(x))


class Cast(nn.Upsample):
    """Wan's."""

    def forward(self, x):
        return super().forward(x.float()).type_as(x)


class Large(nn.Module):
    """The large image of one layer, where something else sees it."""

    def __init__(self, then):
        super().__init__()
        self.conv, self.then = nn.Conv2d(C, C, 3, padding=1), then

    def forward(self, x):
        large = F.interpolate(x, scale_factor=2)
        return self.then(large, self.conv(large))


class Changed(nn.Module):
    """One that changes the small image after it was doubled."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1)

    def forward(self, x):
        large = F.interpolate(x, scale_factor=2)
        x += 1
        return self.conv(large)


def upsampled(model, *inputs):
    """(nkiconv's operators that convolve, whether torch doubles an image) of a call."""
    with Seen() as seen, torch.no_grad():
        model(*inputs)
    found = [name.removeprefix("nkiconv::") for name in seen.names if name.startswith("nkiconv::conv")]
    return found, any("upsample" in name for name in seen.names)


FUSED = {
    "a function": Grown(),
    "a whole number": Grown(scale_factor=(2, 2), mode="nearest-exact"),
    "torch's module": nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(C, C, 3, padding=1)),
    "its other": nn.Sequential(nn.UpsamplingNearest2d(scale_factor=2), nn.Conv2d(C, C, 3, padding="same")),
    "with casts": nn.Sequential(Cast(scale_factor=(2.0, 2.0), mode="nearest-exact"), nn.Conv2d(C, 4, 3, padding=1)),
    "groups": Grown(nn.Conv2d(C, C, 3, stride=(1, 2), groups=2, bias=False)),
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_the_convolution_reads_the_small_image(name, dtype):
    model = drawn(FUSED[name]).eval().to(dtype)
    report = convert(model, fuse=True)
    (one,) = report.doublings
    assert (one.fused, str(one)) == (True, f"x_upsample=2 of {one.convolutions[0]}")
    assert "1 of 1 upsamplings by 2 on the way into a convolution" in str(report)
    assert str(one) in str(report)
    x = image(2, C, 4, 5).to(dtype)
    assert upsampled(report.model, x) == (["conv2d_with_prologue"], False)
    assert upsampled(model, x) == ([], True)
    if dtype == torch.float32:
        assert_same(report.model, model, x, terms=TERMS)
    again = pickle.loads(pickle.dumps(report.model))
    assert torch.equal(again(x), report.model(x))


def test_another_size_stays_torchs():
    model = drawn(Grown()).eval()
    converted = convert(model, fuse=True).model
    x = image(2, C, 4, 5)
    with torch.no_grad():
        assert torch.equal(converted(x, (7, 9)), model(x, (7, 9)))
    assert upsampled(converted, x, (7, 9)) == (["conv2d"], True)


class Between(Grown):
    def between(self, x):
        return x * 2


WHY = "is not followed by one convolution that alone sees its result"
KEPT = {
    "an operation between": (Between(), WHY),
    "another reader": (Large(lambda large, y: y + large), WHY),
    "returned": (Large(lambda large, y: (y, large)), WHY),
    "changed in place": (Changed(), "what runs between it and its convolution may change the image in place"),
    "padding": (Grown(nn.Conv2d(C, C, 3, padding=1, padding_mode="circular")), "its convolution pads by padding_mode="),
    "transposed": (Grown(nn.ConvTranspose2d(C, C, 3)), "its convolution is transposed, or is none of images"),
    "ours": (Grown(ours.Conv2d(C, C, 3)), "its convolution is not swapped by this call"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name):
    model, words = KEPT[name]
    report = convert(drawn(model).eval(), fuse=True)
    (one,) = report.doublings
    assert not one.fused
    assert words in one.reason
    assert words in " ".join(str(report).split())
    x = image(2, C, 4, 5)
    with torch.no_grad():
        found, expected = report.model(x.clone()), model(x.clone())
    torch.testing.assert_close(found, expected)
    assert upsampled(report.model, x.clone())[1]


@pytest.mark.parametrize(
    "how", [{"scale_factor": 3}, {"mode": "bilinear"}, {"mode": "area"}, {"scale_factor": (2, 1)}], ids=str
)
def test_other_upsamplings_are_none(how):
    assert convert(Grown(**how).eval(), fuse=True).doublings == ()


def test_a_fused_call_that_differs_is_left(monkeypatch):
    monkeypatch.setattr(doublings, "_grown", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    (one,) = convert(drawn(Grown()).eval(), fuse=True).doublings
    assert one.reason == "fused, it differs by more than rounding explains"


def test_whoever_else_asks_has_it_computed():
    """By code that no graph shows: the module's method is replaced later."""
    model = drawn(Grown()).eval()
    converted = convert(model, fuse=True).model
    x = image(2, C, 4, 5)
    converted.between = model.between = lambda large: large[:, :, 1:].relu() - large[:, :, :-1]
    assert_same(converted, model, x, terms=TERMS)
    converted.between = model.between = lambda large: F.dropout(large, training=False)
    assert_same(converted, model, x, terms=TERMS)
    assert upsampled(converted, x) == (["conv2d_with_prologue"], False)

    def changing(large):
        x.add_(1)
        return large

    converted.between = changing
    with pytest.raises(UnsupportedError, match="was changed in place between a norm, linear layer or upsampling"):
        converted(x)


class Decoder(nn.Module):
    """A block, an upsampler, and a block whose norm reads what the upsampler writes."""

    def __init__(self):
        super().__init__()
        self.before, self.grow = nn.Conv2d(4, C, 3, padding=1), Grown()
        self.norm, self.after = nn.GroupNorm(2, C), nn.Conv2d(C, C, 3, padding=1)

    def forward(self, x):
        x = self.grow(self.before(x))
        return x + self.after(F.silu(self.norm(x)))


def test_polyphase_sums_taps_where_they_meet_one_pixel():
    """By a transposed convolution, whose statistics the norm after it has."""
    model, x = drawn(Decoder()).eval(), image(2, 4, 4, 5)
    report = convert(model, fuse=True, polyphase=True)
    assert report.doublings[0].polyphase
    assert "sums of taps of grow.conv" in str(report)
    expected = ["conv2d", "conv_transpose2d_with_stats", "conv2d_with_prologue"]
    assert upsampled(report.model, x) == (expected, False)
    assert_same(report.model, model, x, terms=2 * TERMS)
    strict = convert(model, fuse=True, polyphase=True, strict_nonfinite=True).model
    assert upsampled(strict, x)[0] == ["conv2d", "conv2d_with_stats", "conv2d_with_prologue"]
    for kept in (FUSED["groups"], FUSED["its other"], Grown(nn.Conv2d(C, C, 1))):
        (one,) = convert(drawn(kept).eval(), fuse=True, polyphase=True).doublings
        assert (one.fused, one.polyphase) == (True, False)
    rows = plan_model(model, (x,), fuse=True, polyphase=True, quick=True).rows
    assert {"conv_transpose2d"} <= {row.convolved.operation for row in rows if row.layers == ("grow.conv",)}
    with pytest.raises(UnsupportedError, match="polyphase=True: is of what fuse=True finds; pass both"):
        convert(model, polyphase=True)


def test_a_plan_has_it():
    rows = plan_model(drawn(Decoder()), (image(2, 4, 4, 5),), fuse=True, quick=True).rows
    (row,) = [row for row in rows if row.convolved.asked.x_upsample == 2]
    assert row.layers == ("grow.conv",)
    assert (row.convolved.problem.H, row.convolved.asked.return_stats) == (8, "channel")
