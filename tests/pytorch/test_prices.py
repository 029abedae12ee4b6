"""Where quick plans say that one kernel takes longer than its parts, calls of known times are in parts, and the report
says so."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from chained import C, assert_same, drawn, image
from operators_seen import Seen
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import convert, plan_model
from nkiconv.pytorch.models import only_ways, pixel_layers, prices

pytestmark = pytest.mark.usefixtures("estimates")
X = (2, C, 6, 5)


class Grouped(nn.Sequential):
    """A chain that reads what grouped convolutions write."""

    def __init__(self, first):
        super().__init__(first, nn.GroupNorm(2, C), nn.SiLU(), nn.Conv2d(C, C, 3))


class Layers(nn.Module):
    """Two linear layers behind a norm, as ConvNeXt's."""

    def __init__(self):
        super().__init__()
        self.norm, self.expand, self.shrink = nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        y = self.shrink(F.gelu(self.expand(self.norm(x.permute(0, 2, 3, 1)))))
        return x + y.permute(0, 3, 1, 2)


def words(report):
    return " ".join(str(report).split())


@pytest.mark.cover(2)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("apart", "pays"), [(90.0, False), (98.0, True)])
def test_statistics_of_groups(transposed, apart, pays, priced, monkeypatch):
    """Statistics that a kernel of their own takes in 2 us."""
    asked = priced(lambda request: 100.0 if request.asked.return_stats else apart)
    monkeypatch.setattr(prices, "taken", lambda call, lnc: (2.0, 0))
    first = (nn.ConvTranspose2d if transposed else nn.Conv2d)(C, C, 3, padding=1, groups=C)
    found = plan_model(drawn(Grouped(first)).eval(), [image(*X)], fuse=True, quick=True)
    rows = {row.layers[0]: row.convolved.asked.return_stats for row in found.rows}
    assert rows == {"0": "channel" if pays else None, "3": None}
    assert found.launches == 3 + (not pays)
    plain = next(one for one in asked if not one.asked.return_stats)
    assert (plain.problem.groups, plain.operation) == (C, "conv_transpose2d" if transposed else "conv2d")
    told = "statistics from 0" if pays else f"statistics apart: costs more (100.0 us for {apart + 2}, x 2x{C}x6x5)"
    assert f"one call with 2 -> 3; {told}" in words(found.report)
    assert words(pickle.loads(pickle.dumps(found.report))) == words(found.report)


@pytest.mark.parametrize(("layers", "norm"), [(True, False), (False, True)])
def test_layers_in_parts_give_the_same(layers, norm, monkeypatch):
    """As on a device, whose prices are those of its calls."""
    monkeypatch.setattr(pixel_layers, "is_timed", lambda x: True)
    monkeypatch.setattr(pixel_layers, "layers_pay", lambda *_: layers)
    monkeypatch.setattr(pixel_layers, "x_norm_pays", lambda *_: norm)
    model = drawn(Layers()).eval()
    assert_same(convert(model, fuse=True).model, model, image(*X), terms=C + 4 * C)


class Summed(nn.Module):
    """A sum with what a depthwise convolution reads, as encodings of positions have it, and an activation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1, groups=C)

    def forward(self, x):
        return F.relu(x + self.conv(x))


@pytest.mark.parametrize(("apart", "pays"), [(90.0, False), (98.0, True)])
def test_sums_of_groups(apart, pays, priced):
    asked = priced(lambda request: 100.0 if request.asked.residual else apart)
    found = plan_model(drawn(Summed()).eval(), [image(*X)], fuse=True, quick=True)
    [row] = found.rows
    wanted = ("pre_activation", "relu") if pays else (None, None)
    assert (row.convolved.asked.residual, row.convolved.asked.activation) == wanted
    assert [one.asked.residual for one in asked] == ["pre_activation", None]
    assert found.report.entries[0].epilogue == "sum, relu"
    told = "sum, relu" if pays else f"apart: costs more (100.0 us for 92.0, x 2x{C}x6x5)"
    assert told.replace(" ", "") in str(found.report).replace(" ", "").replace("\n", "")


#: Modelled us of `pointwise_mlp` with the norm and without it, and of one of two convolutions; a pass takes 2. Then
#: what runs, and what the report says of the norm and the second layer.
WAYS = {
    "all": (100.0, 98.0, 60.0, ["layer"], "", ""),
    "apart": (101.0, 98.0, 60.0, [None], "apart: costs more (101.0 us for 100.0, x 2x8x6x5)", ""),
    "two": (100.0, 98.0, 48.0, [], "", "apart: costs more (100.0 us for 98.0, x 2x8x6x5)"),
}


@pytest.mark.parametrize("way", WAYS)
def test_two_layers(way, priced, monkeypatch):
    normed, plain, one, expected, of_norm, of_layers = WAYS[way]
    priced(lambda request: one)

    def plan(request, hidden, x_norm):
        assert (hidden, request.asked.residual) == (4 * C, "pre_activation")
        return SimpleNamespace(modelled_us=normed if x_norm else plain)

    monkeypatch.setattr(only_ways, "plan_mlp", plan)
    found = plan_model(drawn(Layers()).eval(), [image(*X)], fuse=True, quick=True)
    assert [row.convolved.x_norm for row in found.rows if row.convolved.hidden] == expected
    assert len(found.rows) == (2 if way == "two" else 1)
    assert sorted(name for name in ("norm", "shrink") if prices.is_apart(found.report.model.get_submodule(name))) == (
        ["norm"] * bool(of_norm) + ["shrink"] * bool(of_layers)
    )
    assert f"norm -> 1x1 convolution -> gelu{'; ' if of_norm else ' '}{of_norm}".strip() in words(found.report)
    assert of_layers in words(found.report)


def test_a_module_with_two_shapes_has_two_prices(priced):
    priced(lambda request: float(request.problem.W if request.asked.x_scale else 6))

    class Twice(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + super().forward(x[..., 1:4])[..., :1]

    model = Twice(nn.BatchNorm2d(C), nn.SiLU(), nn.Conv2d(C, C, 3, groups=2)).eval()
    found = plan_model(drawn(model), [image(1, C, 6, 12)], fuse=True, quick=True)
    told = words(found.report)
    assert f"one call with 1 -> 2; apart: costs more (12.0 us for 8.0, x 1x{C}x6x12)" in told
    assert "1 of 1 norms fused" in told


@pytest.mark.slow
@pytest.mark.parametrize("model", [Grouped(nn.Conv2d(C, C, 3, groups=2)), Layers()])
def test_calls_of_unknown_times_are_in_one(model, priced):
    """As where torch computes, and under torch.compile."""
    asked = priced(lambda request: 0.0)
    converted, x = convert(drawn(model).eval(), fuse=True).model, image(*X)
    with Seen() as seen, torch.no_grad():
        expected = converted(x)
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(converted, backend="eager", fullgraph=True)(x), expected)
    assert asked == []
    assert {"nkiconv::conv2d_with_stats", "nkiconv::pointwise_mlp"} & set(seen.names)


@pytest.mark.slow
def test_quick_plans_of_small_images():
    """8 x 768 at 7 x 7: 103 us in one kernel, 59 in two and 4 for the norm; 32 of them 155, 140 with the norm apart.
    8 x 672, 5 taps, at 14 x 14: 40 us with statistics, 24 without and 12 for these; 74 with a sum, and 12 for it."""
    layer, norm, w1, w2 = nn.Identity(), nn.Identity(), torch.empty(3072, 768), torch.empty(768, 3072)
    for images, together in ((8, False), (32, True)):
        x = torch.empty(images, 768, 7, 7, dtype=torch.bfloat16, device="meta")
        call = only_ways.mlp_of(x, (w1, w2), (w1[:, 0], w2[:, 0]), "gelu", x, "layer")
        assert prices.layers_pay(layer, call, x) is together
        assert not prices.x_norm_pays(norm, call, x)
    convolution = nn.Conv2d(672, 672, 5, padding=2, groups=672, device="meta")
    x = torch.empty(8, 672, 14, 14, dtype=torch.bfloat16, device="meta")
    assert not prices.statistics_pay(convolution, x)
    assert not prices.sum_pays(convolution, x)
