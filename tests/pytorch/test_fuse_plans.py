"""plan_model with fuse=True: what is asked for each call, what kernels of statistics take, and what quick plans keep
apart, as a device's calls do, which the report says."""

import dataclasses
import pickle
from types import SimpleNamespace

import fused_models as fm
import pytest
import torch
from chained import C, assert_same, drawn, image, made, steps
from fused_sequences import ConformerModule, Delta, ShortConv
from torch import nn
from torch.nn import functional as F

from nkiconv.planner.request import Asked
from nkiconv.pytorch import channel_stats, convert, norm_scale_shift, plan_model
from nkiconv.pytorch.models import only_ways, pixel_layers, prices
from nkiconv.pytorch.models.statistics_plan import Statistics, taken

pytestmark = pytest.mark.usefixtures("published")
X, GROWN, VIDEO, ROWS = (2, C, 6, 5), (2, 4, 4, 5), (1, C, 3, 4, 5), (2, 11, C)


def planned(model, *shapes, fuse=True, **more):
    return plan_model(drawn(model).eval(), [image(*shape) for shape in shapes], quick=True, fuse=fuse, **more)


def asked_of(found):
    """What the calls of each layer compute."""
    rows = ((row.layers, row.convolved) for row in found.rows)
    return {
        layer: steps(one.operation, dataclasses.asdict(one.asked) | {"x_norm": one.x_norm})
        for layers, one in rows
        for layer in layers
    }


BOTTLENECK = {"conv1": "conv2d relu", "conv2": "conv2d relu", "conv3": "conv2d sum relu", "down.0": "conv2d"}
#: What makes a model, the shape of its input, what is asked for its layers, and options.
PLANS = {
    "Bottleneck": (fm.bottleneck, (1, C, 6, 8), BOTTLENECK, {"fold_batchnorm": True}),
    "Decoder": (
        fm.decoder, GROWN, {"before": "conv2d", "grow.conv": "up conv2d stats", "after": "norm silu conv2d sum"}, {}),
    "polyphase": (
        fm.decoder, GROWN, {"before": "conv2d", "grow.conv": "conv_transpose2d stats", "after": "norm silu conv2d sum"},
        {"polyphase": True}),
    "layers": (fm.ConvNext, X, {"mlp.fc2": "layer pointwise_mlp sum gelu"}, {"advice": True}),
    "trained layers": (fm.ConvNext, X, {"mlp.fc1": "conv2d gelu", "mlp.fc2": "conv2d sum"}, {"training": True}),
    "1x1 convolutions": (fm.convolutions, X, {"fc2": "pointwise_mlp sum gelu"}, {}),
    "LFM2": (lambda: ShortConv(C, 3), ROWS, {"": "BCx causal_conv1d_split"}, {}),
    "Qwen3-Next": (lambda: Delta(C, [4, 4, 6]), ROWS, {"": "causal_conv1d_split silu"}, {}),
    "Mamba2": (lambda: Delta(C, [4, 6], before=3), ROWS, {"": "causal_conv1d_split silu"}, {}),
    "Conformer": (lambda: ConformerModule(C, 5), ROWS,
        {"pointwise_conv1": "conv2d", "activation": "xG depthwise_conv1d silu", "pointwise_conv2": "conv2d"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_what_is_asked_for(name):
    make, shape, asked, options = PLANS[name]
    with torch.device("meta" if shape is ROWS else "cpu"):
        model = make().eval()
    x = image(*shape).to(next(model.parameters()).device)
    found = plan_model(drawn(model), [x], quick=True, fuse=True, **options)
    forward = found.toward("forward") if options.get("training") else found
    assert asked_of(forward) == asked
    assert (found.uncalled, found.kept, found.flops.fraction) == ((), (), 1)
    assert all(row.us > 0 for row in found.rows)
    if name == "Decoder":
        heights = {"before": 4, "grow.conv": 8, "after": 8}
        assert {row.layers[0]: row.convolved.problem.H for row in found.rows} == heights
    if name == "Qwen3-Next":
        assert found.rows[0].convolved.splits == ((1, 4, False), (1, 4, False), (1, 6, False))
    if name in ("Qwen3-Next", "Mamba2"):
        assert found.rows[0].convolved.within == (None if name == "Qwen3-Next" else (3, 13))
    if name == "LFM2":
        assert found.rows[0].convolved.tokens_first
    if name == "layers":
        assert found.flops.nkiconv == 2 * 2 * 2 * C * 6 * 5 * fm.WIDE
        assert "pointwise_mlp" in str(found)


def grouped(kind=nn.Conv2d):
    """A chain that reads what grouped convolutions write."""
    return nn.Sequential(kind(C, C, 3, padding=1, groups=C), nn.GroupNorm(2, C), nn.SiLU(), nn.Conv2d(C, C, 3))


def summed():
    """A sum with what a depthwise convolution reads, as encodings of positions have it, and an activation."""
    return made(lambda m, x: F.relu(x + m.conv(x)), conv=nn.Conv2d(C, C, 3, padding=1, groups=C))


EACH = nn.Conv2d(C, C, 3, groups=C)
#: What makes a model, its input's shape, a layer, and what its call computes with what pays and without it.
PRICED = {
    "norm": (lambda: fm.chain(nn.BatchNorm2d(C), None, EACH), X, "2", "norm silu conv2d", "conv2d"),
    "norm of pixels": (fm.Clip, VIDEO, "conv1", "conv3d rms silu", "conv3d"),
    "statistics": (grouped, X, "0", "conv2d stats", "conv2d"),
    "statistics, transposed": (
        lambda: grouped(nn.ConvTranspose2d), X, "0", "conv_transpose2d stats", "conv_transpose2d"),
    "sum": (summed, X, "conv", "conv2d sum relu", "conv2d"),
}  # fmt: skip


@pytest.mark.parametrize(("apart", "pays"), [(90.0, False), (98.0, True)])
@pytest.mark.parametrize("name", PRICED)
def test_one_kernel_runs_where_it_pays(name, apart, pays, priced, monkeypatch):
    """What is apart, a copy or a kernel of statistics, takes 2 us more."""
    make, shape, layer, whole, plain = PRICED[name]

    def of(request):
        return steps(request.operation, dataclasses.asdict(request.asked))

    asked = priced(lambda request: apart if of(request) == plain else 100.0)
    monkeypatch.setattr(prices, "taken", lambda call, lnc: (2.0, 0))
    found = planned(make(), shape)
    assert asked_of(found)[layer] == (whole if pays else plain)
    together, alone = (next(one for one in asked if (of(one) == plain) == is_plain) for is_plain in (False, True))
    assert of(together) == whole.removesuffix(" relu")
    assert alone == dataclasses.replace(together, asked=Asked(bias=together.asked.bias))
    told = " ".join(str(found.report).split())
    size = "x".join(map(str, shape))
    said = f"apart: costs more (100.0 us for {apart + 2}, x {size})".replace(" ", "")
    assert (said in told.replace(" ", "")) == (not pays)
    if name.startswith("statistics"):
        assert " ".join(str(pickle.loads(pickle.dumps(found.report))).split()) == told
        assert found.launches == 3 + (not pays)
    if name == "norm of pixels":
        assert [one["fused"] for one in found.report.as_dict()["chains"]] == [False, pays]


def test_numbers_of_a_time_are_a_norms_weights():
    asked = [row.convolved.asked for row in planned(fm.Ltx(), VIDEO, (1, 2 * C, 1, 1, 1)).rows]
    assert [(one.y_norm, one.y_norm_weight, one.y_norm_bias) for one in asked if one.y_norm] == [("rms", True, True)]


#: Modelled us of `pointwise_mlp` with the norm and without it, and of one of two convolutions; a pass takes 2. Then
#: what runs, and what the report says of the norm and the second layer.
WAYS = {
    "all": (100.0, 98.0, 60.0, ["layer pointwise_mlp sum gelu"], "", ""),
    "apart": (101.0, 98.0, 60.0, ["pointwise_mlp sum gelu"], "apart: costs more (101.0 us for 100.0, x 2x8x6x5)", ""),
    "two": (100.0, 98.0, 48.0, ["conv2d gelu", "conv2d sum"], "", "apart: costs more (100.0 us for 98.0, x 2x8x6x5)"),
}


@pytest.mark.parametrize(("with_norm", "plain", "one", "expected", "of_norm", "of_layers"), WAYS.values(), ids=WAYS)
def test_two_layers(with_norm, plain, one, expected, of_norm, of_layers, priced, monkeypatch):
    priced(lambda request: one)

    def plan(request, hidden, x_norm):
        assert (hidden, request.asked.residual) == (fm.WIDE, "pre_activation")
        return SimpleNamespace(modelled_us=with_norm if x_norm else plain)

    monkeypatch.setattr(only_ways, "plan_mlp", plan)
    found = planned(fm.metas(), X)
    assert [*asked_of(found).values()] == expected
    told = " ".join(str(found.report).split())
    assert f"norm -> 1x1 convolution -> gelu{'; ' if of_norm else ' '}{of_norm}".strip() in told
    assert of_layers in told


@pytest.mark.parametrize(("layers", "norm"), [(True, False), (False, True)])
def test_layers_in_parts_give_the_same(layers, norm, monkeypatch):
    """As on a device, whose prices are those of its calls."""
    monkeypatch.setattr(pixel_layers, "is_timed", lambda x: True)
    monkeypatch.setattr(pixel_layers, "layers_pay", lambda *_: layers)
    monkeypatch.setattr(pixel_layers, "x_norm_pays", lambda *_: norm)
    model = drawn(fm.metas()).eval()
    assert_same(convert(model, fuse=True).model, model, image(*X))


def once():
    """A convolution, and two chains of which the first takes its statistics."""
    one, two = (fm.chain(conv=nn.Conv2d(C, C, 3, padding=1)) for _ in range(2))
    return nn.Sequential(nn.Conv2d(C, C, 3, padding=1), *one, nn.AvgPool2d(1), *two)


def test_launches_and_times_of_statistics():
    found = planned(once(), X, lnc=1)
    each = {row.statistics.operator: row for row in found.statistics}
    assert {name: row.calls for name, row in each.items()} == {"channel_stats": 1, "norm_scale_shift": 2}
    assert each["norm_scale_shift"].statistics == Statistics(
        "norm_scale_shift", ((1, 2, C, 3), "fp32"), (((C,), "fp32"), ((C,), "fp32")), ("group", 2, 1e-5)
    )
    assert found.statistics_us == sum(row.calls * taken(row.statistics, 1)[0] for row in found.statistics) > 0
    assert found.totals == (
        ("statistics of norms", 3, found.statistics_us),
        ("with statistics", 0, found.modelled_us + found.statistics_us),
    )
    assert "fused calls also compute norms" in " ".join(str(found).split())
    document = found.as_dict()
    assert (found.launches, document["launches"], len(document["statistics"])) == (6, 6, 2)
    assert document["hbm_bytes"] == found.hbm_bytes


def test_bytes():
    """Of x, filters, y, residual and bias-free kernels once; statistics read x once."""
    found = planned(once(), X)
    x, w = 4 * 2 * C * 30, 4 * C * C * 9
    assert sum(row.hbm_bytes for row in found.rows) == 3 * (2 * x + w)
    (of_x,) = [row for row in found.statistics if row.statistics.operator == "channel_stats"]
    assert x <= of_x.hbm_bytes <= x + 2 * 4 * 2 * 2 * C * 3
    fused, apart = (planned(fm.Block(), X, (2, 4), fuse=fuse) for fuse in (True, False))
    assert sum(row.hbm_bytes for row in fused.rows) - sum(row.hbm_bytes for row in apart.rows) == x


def test_pieces_of_one_x():
    def forward(self, x):
        return norm_scale_shift([channel_stats(x[:, :, :2]), channel_stats(x[:, :, 2:])], num_groups=2).scale

    found = plan_model(made(forward), [image(1, C, 6, 5)])
    (row,) = [one for one in found.statistics if one.statistics.operator == "norm_scale_shift"]
    assert row.statistics.x == ((2, 1, C, 3), "fp32")
