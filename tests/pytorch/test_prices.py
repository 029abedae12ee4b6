"""Where quick plans say that one kernel takes longer than its parts, calls of known times are in parts, and the report
says so."""

import pickle
from types import SimpleNamespace

import pytest
from chained import C, assert_same, drawn, image
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
