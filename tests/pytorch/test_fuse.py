"""convert(fuse=True) makes a norm, an activation, a convolution and what is around it one call, where nothing else can
tell: what is told of models, what their calls compute, and that results and gradients stay."""

import pickle

import fused_models as fm
import pytest
import torch
from chained import C, assert_gradients, assert_same, calls, close, drawn, hooked, image, made, terms_of, told
from fused_sequences import ConformerModule, Delta, ShortConv
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert
from nkiconv.pytorch import nn as ours
from nkiconv.pytorch.models import doublings

pytestmark = pytest.mark.usefixtures("published")
IMAGES = {1: (2, C, 5), 2: (2, C, 5, 6), 3: (2, C, 5, 6, 4)}
STEMS = {1: (2, 3, 7), 2: (2, 3, 6, 5), 3: (2, 3, 3, 4, 5)}
X, ROWS, VIDEO, TIME = [IMAGES[2]], [(2, 11, C)], [(1, C, 3, 4, 5)], (1, 2 * C, 1, 1, 1)
NORMS = {"Group": lambda rank: nn.GroupNorm(2, C), "Instance": lambda rank: getattr(nn, f"InstanceNorm{rank}d")(C),
         "Batch": lambda rank: getattr(nn, f"BatchNorm{rank}d")(C)}  # fmt: skip
ACTS = {"relu": nn.ReLU(inplace=True), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"),
        "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}  # fmt: skip
BLOCK = ["norm1: act -> conv1", "norm2: act -> dropout -> conv2 -> sum; offset; statistics conv1", "conv2: sum"]
CALLS = "channel_stats; norm silu conv2d stats; norm silu conv2d sum"
PLAIN, UP, ONE = "channel_stats; norm silu conv2d", "up conv2d", "layer pointwise_mlp sum gelu"
BOTH = ["mlp.fc1: norm -> 1x1 convolution -> gelu", "mlp.fc2: 1x1 convolution -> scale -> sum"]
APART = ["mlp.fc1: 1x1 convolution -> gelu", *BOTH[1:]]
BASIC = ["bn1: act -> conv2; statistics conv1", "bn2: act -> conv3; statistics conv2"]
OFFSET = "norm: silu -> conv2; offset; statistics conv1"
MODULATED = "norm: numbers for each channel -> silu -> conv2; statistics conv1"
NOT_ALONE = "is not followed by one convolution, with at most an activation between, that alone sees its result"
ALONE, NORM1 = f"norm: {NOT_ALONE}", f"norm1: {NOT_ALONE}"
HOOKS = "a module of it has hooks, which would see no tensor"
UNREAD = "is not followed by one convolution that alone sees its result"
UNKNOWN = "norm1: does not follow a convolution of a block whose code is known"
IN_MLP, IN_MODEL = (f"a module in {where} has hooks, which would see no tensor" for where in ("mlp", "the model"))
AHEAD = "frames conv3d rms silu; frames conv3d sum"
TWO, BACK, NOTHING = "conv2d; conv2d", "conv_transpose2d", "has no activation or sum after it that a convolution takes"


def own(kind, *args):
    """One of a subclass with a forward of its own."""
    return type(f"Own{kind.__name__}", (kind,), {"forward": lambda self, x: kind.forward(self, x) + 1})(*args)


def block(forward):
    """A block with what is no chain in it."""
    return lambda: made(forward, fm.Block)


def normed(act, *after, kind=fm.NormAct, training=True):
    """A norm with an activation in its forward, between two convolutions."""
    return lambda: nn.Sequential(nn.Conv2d(3, C, 3), kind(act, *after), nn.Conv2d(C, C, 3, padding=1)).train(training)


def of(make, change):

    def changed():
        model = make()
        change(model)
        return model

    return changed


def excitation(self, x):
    """A gate whose second layer stays, as nothing that a convolution takes comes after it."""
    return x * F.hardsigmoid(self.fc2(self.act(self.fc1(x.mean((2, 3), keepdim=True)))))


EXCITED = {"fc1": nn.Conv2d(C, fm.WIDE, 1), "act": nn.ReLU(inplace=True), "fc2": nn.Conv2d(fm.WIDE, C, 1)}
#: What makes a model, its inputs' shapes, what is told of it, and what its calls compute.
FUSED = {
    # norms and activations before convolutions
    "shared activation": (fm.Block, [*X, (2, 4)], BLOCK, CALLS),
    "functions": (block(fm.functional), [*X, (2, 4)],
        ["norm1: silu -> conv1", "norm2: relu -> conv2 -> sum; statistics conv1", "conv2: sum"],
        CALLS.replace("silu conv2d sum", "relu conv2d sum")),
    "no graph": (lambda: made(fm.looped, block=fm.Block()), [*X, (2, 4)],
        [f"block.{line}".replace("act", "block.act").replace("conv", "block.conv").replace("drop", "block.drop")
         for line in BLOCK[:2]] + ["block.conv2: sum"], f"{CALLS}; {CALLS}"),
    "a missing module": (block(fm.missing), [*X, (2, 4)], BLOCK, CALLS),
    "an fm.unbound name": (block(fm.unbound), [*X, (2, 4)], BLOCK, CALLS),
    "modules of modules": (fm.wrapped, [(2, C, 6, 5), (2, C, 1, 1)], ["norm1: silu -> replicate padding -> conv1.conv",
         "norm2: silu -> replicate padding -> conv2.conv -> sum; offset; statistics conv1.conv", "conv2.conv: sum"],
        CALLS),
    **{act: (lambda one=one: fm.chain(act=one), X, ["0: 1 -> 2"], f"channel_stats; norm {act} conv2d")
       for act, one in ACTS.items()},
    "no activation": (lambda: fm.chain(act=nn.Identity()), X, ["0: 1 -> 2"], "channel_stats; norm conv2d"),
    **{f"{kind}{rank}d": (lambda kind=kind, rank=rank: fm.ranked(kind, rank), [IMAGES[rank]], ["0: 1 -> 2"],
        PLAIN.replace("2d", f"{rank}d").removeprefix("channel_stats; " if kind == "BatchNorm" else ""),
    ) for kind in ("GroupNorm", "BatchNorm", "InstanceNorm") for rank in (1, 2, 3)},
    **{f"{mode} around rank {rank}": (
        lambda mode=mode, rank=rank: fm.padded(mode, rank, first=rank == 2), [IMAGES[rank]],
        [f"norm: silu -> {mode} padding -> conv"], PLAIN.replace("2d", f"{rank}d"),
    ) for mode, rank in (("replicate", 1), ("reflect", 2), ("circular", 3), ("replicate", 2))},
    "padding mode": (
        lambda: fm.padded("", sides=(), padding=1, padding_mode="circular"), X, ["norm: silu -> conv"], PLAIN),
    "norm with silu": (normed(nn.SiLU(inplace=True)), [STEMS[2]], ["1: silu -> 2"], "conv2d; norm silu conv2d"),
    "norm with none": (normed(nn.Identity()), [STEMS[2]], ["1: 2"], "conv2d; norm conv2d"),
    "groups with gelu": (normed(nn.GELU(), kind=fm.GroupNormAct), [STEMS[2]], ["1: gelu -> 2; statistics 0"],
        "conv2d stats; norm gelu conv2d"),
    # what follows convolutions
    **{f"{way}, after": (lambda does=does, rank=1 + i % 3: fm.two(does, rank), [IMAGES[1 + i % 3]], lines,
        ran.replace("2d", f"{1 + i % 3}d"),
    ) for i, (way, (does, lines, ran)) in enumerate(fm.WAYS.items())},
    "a chain has the sum": (
        lambda: fm.two(lambda m, x: F.relu(m.b(x) + m.a(m.act(m.norm(x)))), norm=nn.GroupNorm(2, C)), X,
        ["norm: act -> a -> sum", "a: sum, relu"], f"conv2d; {PLAIN} sum relu"),
    **{str(more): (
        lambda more=more: fm.two(fm.WAYS["both are terms"][0], **more), X, ["a: sum, relu"], "conv2d; conv2d sum relu"
    ) for more in ({"padding_mode": "circular"}, {"padding": "same"}, {"stride": 2}, {"groups": C}, {"dilation": 2},
                   {"bias": False})},
    # upsampling by 2
    "upsampled": (fm.Grown, X, [": x_upsample=2 of conv"], UP),
    "UpsamplingNearest2d": (
        lambda: nn.Sequential(nn.UpsamplingNearest2d(scale_factor=2), nn.Conv2d(C, C, 3, padding="same")), X,
        ["0: x_upsample=2 of 1"], UP),
    "casts": (
        lambda: nn.Sequential(fm.Cast(scale_factor=(2.0, 2.0), mode="nearest-exact"), nn.Conv2d(C, 4, 3, padding=1)), X,
        ["0: x_upsample=2 of 1"], UP),
    "groups": (
        lambda: fm.Grown(nn.Conv2d(C, C, 3, stride=(1, 2), groups=2, bias=False)), X, [": x_upsample=2 of conv"], UP),
    "decoder": (fm.decoder, [(2, 4, 4, 5)],
        ["norm: silu -> after -> sum; statistics grow.conv", "grow: x_upsample=2 of grow.conv", "after: sum"],
        "conv2d; up conv2d stats; norm silu conv2d sum"),
    # layers of images
    "timm": (fm.ConvNext, X, BOTH, ONE),
    "torchvision": (
        fm.torchvisions, X, [BOTH[0].replace("mlp.fc1", "block.0"), BOTH[1].replace("mlp.fc2", "block.2")], ONE),
    "1x1 convolutions": (fm.convolutions, X, [line.removeprefix("mlp.") for line in APART], ONE.removeprefix("layer ")),
    "after a chain": (lambda: fm.convolutions(nn.Sequential(nn.GroupNorm(2, C), nn.Conv2d(C, C, 1))), X,
        ["more.0: more.1", *(line.removeprefix("mlp.") for line in APART)],
        "channel_stats; norm conv2d; pointwise_mlp sum gelu"),
    "no scale": (lambda: fm.ConvNext(scale=False), X, [BOTH[0], "mlp.fc2: 1x1 convolution -> sum"], ONE),
    "a norm over the pixels of an image": (lambda: fm.ConvNext(fm.Mlp(between=made(
        lambda _self, x: x * (x.norm(dim=(1, 2), keepdim=True) + 1)))), X, APART, "conv2d gelu; conv2d sum"),
    "layers of no bias": (of(fm.ConvNext, lambda model: setattr(model.mlp.fc2, "bias", None)), X, BOTH, ONE),
    "Meta's norm": (lambda: fm.ConvNext(norm=fm.own_norm()), X, BOTH, ONE),
    "timm's norm": (lambda: fm.convolutions(fm.FrontNorm(C)), X,
        ["fc1: more -> 1x1 convolution -> gelu", "fc2: 1x1 convolution -> scale -> sum"], ONE),
    "RMSNorm": (lambda: fm.ConvNext(norm=nn.RMSNorm(C, 1e-5)), X, BOTH, ONE.replace("layer", "rms")),
    "LayerNorm without weights": (lambda: fm.ConvNext(norm=nn.LayerNorm(C, elementwise_affine=False)), X, BOTH, ONE),
    # norms that no kernel computes: eps of a dtype, of rows
    **{str(norm): (lambda norm=norm: fm.ConvNext(norm=norm), X, APART, ONE.removeprefix("layer "))
       for norm in (nn.RMSNorm(C), nn.LayerNorm((6, C)))},
    # rows, and pixels of videos
    "LFM2": (lambda: ShortConv(C, 3), ROWS, [": gated_short_conv"], "BCx gated_conv1d"),
    "Qwen3-Next": (
        lambda: Delta(C, [4, 4, 6], bias=True, before=3), ROWS, [": causal_conv1d_split"], "causal_conv1d_split silu"),
    "Conformer": (lambda: ConformerModule(C, 5), ROWS,
        ["batch_norm: is folded into", ": glu_conv1d with BatchNorm and silu"], "conv1d; xG gated_conv1d silu; conv1d"),
    "Wan": (fm.Clip, VIDEO, [UNKNOWN, "norm2: conv1"], "conv3d rms silu; conv3d"),
    "layer norms of pixels": (lambda: fm.Clip(kind="layer", bias=True), VIDEO, [UNKNOWN, "norm2: conv1"],
        "conv3d layer silu; conv3d"),
    **{f"LTX, {name}": (lambda norm=norm: fm.Ltx(*norm), shapes, [UNKNOWN, "norm2: conv1.conv", "conv2.conv: sum"], ran)
       for name, norm, shapes, ran in (
           ("without a time", [], VIDEO, AHEAD),
           ("a time", [], [*VIDEO, TIME], AHEAD),
           ("weights and a time", [lambda: nn.RMSNorm(C, 1e-6)], [*VIDEO, TIME], AHEAD),
           ("LayerNorm", [lambda: nn.LayerNorm(C)], [*VIDEO, TIME], AHEAD.replace("rms", "layer")),
           # numbers of several videos are no weight
           ("two videos", [], [(2, *VIDEO[0][1:]), (2, *TIME[1:])], AHEAD.replace(" silu", "")))},
}  # fmt: skip
#: What numbers for each channel do, the norm that they are around, ranks.
TIMED = (
    ("offset", "Batch", 1, OFFSET), ("offset, first", "Group", 2, OFFSET), ("scale", "Group", 2, MODULATED),
    ("scale and shift", "Instance", 3, MODULATED), ("shift, scale", "Batch", 1, MODULATED),
    ("shift before", "Instance", 3, ALONE), ("of pixels", "Batch", 2, ALONE),
)  # fmt: skip
#: The same in training.
TRAINED = {
    **{f"{more} of rank {rank}": (
        lambda more=more, rank=rank: fm.basic(rank, **more), [STEMS[rank]], BASIC,
        "conv2d stats; norm relu conv2d stats; norm relu conv2d".replace("2d", f"{rank}d"),
    ) for rank, more in (
        (2, {}), (1, {"momentum": None}), (3, {"track_running_stats": False}), (2, {"affine": False}))},
    "trained norm with relu": (normed(nn.ReLU(inplace=True)), [STEMS[2]], ["1: relu -> 2; statistics 0"],
        "conv2d stats; norm relu conv2d"),
    "trained Conformer": (
        lambda: ConformerModule(C, 5), ROWS, ["batch_norm: activation -> pointwise_conv2", ": glu_conv1d"],
        "conv1d; xG gated_conv1d; channel_stats; norm silu conv1d"),
    **{f"time, {how}": (lambda how=how, norm=norm, rank=rank: fm.timed(how, NORMS[norm](rank), rank),
        [STEMS[rank], (1 + rank % 2, 2 * C)], [line],
        (TWO if line == ALONE else "conv2d stats; norm silu conv2d").replace("2d", f"{rank}d"),
    ) for how, norm, rank, line in TIMED},
}  # fmt: skip


def converted(row, training=False):
    """A model, its inputs and its report, which tells what the row says of it."""
    make, shapes, lines, _ = row
    model = drawn(make()).train(training)
    report = convert(model, fuse=True)
    found = told(report)
    assert [line.startswith(words) for line, words in zip(found, lines, strict=True)] == [True] * len(lines), found
    return model, [image(*one, seed=i) for i, one in enumerate(shapes, 1)], report


@pytest.mark.parametrize("name", [*FUSED, *TRAINED])
def test_fused(name):
    training = name in TRAINED
    row = TRAINED[name] if training else FUSED[name]
    model, inputs, report = converted(row, training)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    assert_gradients(report.model, model, *inputs)
    assert [*report.model.state_dict()] == [*state]
    assert all(torch.equal(one, state[name]) for name, one in report.model.state_dict().items())
    assert calls(report.model, *inputs) == row[3]


@pytest.mark.parametrize("name", ["upsampled", "timm", "LFM2", "Qwen3-Next", "Conformer", "Wan", "silu"])
def test_models_are_pickled(name):
    _, inputs, report = converted(FUSED[name])
    loaded = pickle.loads(pickle.dumps(report.model))
    results = (tree_leaves(one(*inputs)) for one in (loaded, report.model))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert calls(loaded, *inputs) == FUSED[name][3]


@pytest.mark.parametrize("mode", ["simulate", "compare"], indirect=True)
@pytest.mark.parametrize("name", ["timm", "Wan", "{} of rank 2"])
def test_kernels_compute_them(name, mode):
    model, inputs, report = converted((FUSED | TRAINED)[name], name in TRAINED)
    check = assert_gradients if name in TRAINED else assert_same
    check(report.model, model, *inputs)


def test_calls_in_bf16():
    for name in ("upsampled", "casts", "groups", "Wan"):
        model, inputs, report = converted(FUSED[name])
        model.bfloat16()
        assert calls(report.model, *(one.bfloat16() for one in inputs)) == FUSED[name][3]


@pytest.mark.parametrize("act", ["relu", "silu", "gelu_tanh"])
def test_a_bottleneck_is_its_convolutions(act):
    model, x = drawn(fm.bottleneck(ACTS[act])).eval(), image(2, C, 6, 8)
    report = convert(model, fuse=True, fold_batchnorm=True)
    assert told(report)[4:] == [f"conv1: {act}", f"conv2: {act}", f"conv3: sum, {act}"]
    assert_same(report.model, model, x)
    assert calls(report.model, x) == f"conv2d {act}; conv2d {act}; conv2d; conv2d sum {act}"


def test_polyphase_sums_taps_where_they_meet_one_pixel():
    """By a transposed convolution, whose statistics the norm after it has."""
    model, x = drawn(fm.decoder()).eval(), image(2, 4, 4, 5)
    report = convert(model, fuse=True, polyphase=True)
    assert told(report)[1] == "grow: sums of taps of grow.conv"
    assert calls(report.model, x) == "conv2d; conv_transpose2d stats; norm silu conv2d sum"
    assert_same(report.model, model, x, terms=2 * 9 * C)
    strict = convert(model, fuse=True, polyphase=True, strict_nonfinite=True).model
    assert calls(strict, x) == FUSED["decoder"][3]
    for make in (FUSED["groups"][0], FUSED["UpsamplingNearest2d"][0], lambda: fm.Grown(nn.Conv2d(C, C, 1))):
        assert "x_upsample=2 of" in told(convert(drawn(make()).eval(), fuse=True, polyphase=True))[0]


def test_reports_count_what_is_fused():
    words = {
        "shared activation": "2 of 2 norms fused with a convolution, 1 with statistics from the one before",
        "functions": "1 convolutions with the sum or the activation after them in their call",
        "upsampled": "1 of 1 upsamplings by 2 on the way into a convolution",
        "timm": "2 of 2 layers of images are 1x1 convolutions",
        "LFM2": "1 of 1 modules with depthwise convolutions of rows make fused calls",
        "Wan": "1 of 2 norms fused with a convolution",
    }
    for name, said in words.items():
        report = converted(FUSED[name])[2]
        assert said in str(report)
        rows = report.as_dict()
        assert any(one["fused"] for kind in ("chains", "doublings", "layers", "blocks") for one in rows[kind])


def test_alike_rows_of_a_report_are_one():
    """With names beside a module in short; what stays comes first, and a folded norm is no norm that is apart."""
    blocks = (made(fm.Block.forward, fm.Block) for _ in range(3))
    report = convert(drawn(nn.Sequential(*blocks, nn.Conv2d(C, C, 3, dtype=torch.cfloat))).eval(), fuse=True)
    rows = [line.split() for line in str(report).splitlines()]
    first, *_ = rows[next(i for i, row in enumerate(rows) if row[:1] == ["name"]) + 2 :]
    assert first[:2] == ["3", "Conv2d"]
    norms = [" ".join(row) for row in rows if "norm" in row[1:4]]
    second = "0.norm2 +2 more norm one call with act -> dropout -> conv2 -> sum; statistics from"
    assert norms == ["0.norm1 +2 more norm one call with act -> conv1", second]
    model = nn.Sequential(nn.Conv2d(C, C, 3), nn.BatchNorm2d(C), nn.ReLU()).eval()
    lines = str(convert(model, fuse=True, fold_batchnorm=True))
    assert "1 of 1 batch norms folded into convolutions" in lines
    assert "folded into 0" in lines
    assert "norms fused" not in lines


def changed_input(m, x, t):
    z = m.norm1(x)
    x.mul_(2)
    return m.conv1(m.act(z)) + x


def changed_between(m, x):
    y = m.a(x)
    x.mul_(2)
    return F.relu(y)


T, ROWS_APART = [*X, (2, 4)], "conv1d; depthwise_conv1d; norm silu conv1d"
STAYS = "1: is a NormAct with a forward of its own"


def conformer():
    return ConformerModule(C, 5).eval()


def convnext():
    return fm.ConvNext().eval()


def clip():
    return fm.Clip().eval()


def forwards(make, name):
    """Where a part has a forward of its own."""
    return of(make, lambda m: setattr(m.get_submodule(name), "forward", m.get_submodule(name).forward))


#: What makes a model, its inputs' shapes, what stays and why, and what calls compute if that is not one convolution.
LEFT = {
    "two users": (block(lambda m, x, t: m.conv1(m.act(z := m.norm1(x))) + z), T, NORM1, "conv2d sum"),
    "activation is read": (block(lambda m, x, t: m.conv1(z := m.act(m.norm1(x))) * z.mean()), T, NORM1),
    "returned": (block(lambda m, x, t: (m.conv1(m.act(z := m.norm1(x))), z)), T, NORM1),
    "one way": (block(lambda m, x, t: m.conv1(m.act(z)) if (z := m.norm1(x)).sum() > t.sum() else z), T, NORM1, ""),
    "named": (block(lambda m, x, t: m.conv1(m.act(m.norm1(input=x)))), T, NORM1),
    "named convolution": (block(lambda m, x, t: m.conv1(input=m.act(m.norm1(x)))), T, NORM1),
    "several": (block(lambda m, x, t: m.conv1(m.act(m.norm1(x))) + m.conv2(m.norm1(x))), T,
        "norm1: is called in several chains", "conv2d; conv2d sum"),
    "an activation's forward": (forwards(fm.chain, "1"), X, "0: a module of it has a forward of its own"),
    "changed input": (block(changed_input), T, NORM1, "conv2d sum"),
    "changed between": (lambda: fm.two(changed_between, norm=nn.GroupNorm(2, C)), X, "norm: is not called in forward"),
    "hooks": (lambda: hooked(fm.chain(), "0"), X, f"0: {HOOKS}"),
    "hooks around": (lambda: hooked(fm.chain(nn.Sequential(nn.GroupNorm(2, C))), "0"), X, f"0.0: {HOOKS}"),
    "hooks after it": (lambda: fm.chain(conv=hooked(nn.Sequential(nn.Conv2d(C, 6, 3)), "0")), X, f"0: {HOOKS}"),
    "synchronised": (lambda: fm.chain(nn.SyncBatchNorm(C)), X, "0: takes statistics of all processes in training; c"),
    "running": (lambda: fm.chain(nn.InstanceNorm2d(C, track_running_stats=True)).eval(), X, "0: has running statist"),
    "hardswish": (lambda: fm.chain(act=nn.Hardswish()), X, f"0: {NOT_ALONE}"),
    "transposed": (lambda: fm.chain(conv=nn.ConvTranspose2d(C, 6, 3)), X, "0: its convolution is transposed", BACK),
    "own convolution": (lambda: fm.chain(conv=own(nn.Conv2d, C, 6, 3)), X, "0: its convolution is not swapped by"),
    "own norm": (lambda: fm.chain(own(nn.GroupNorm, 2, C)), X, "0: is a OwnGroupNorm with a forward of its own"),
    "norm that adds": (normed(nn.SiLU(), lambda y: y + 1, training=False), [STEMS[2]], STAYS, TWO),
    "norm that shrinks": (normed(nn.Softshrink(), training=False), [STEMS[2]], STAYS, TWO),
    "depthwise rows": (
        lambda: fm.chain(conv=nn.Conv1d(C, C, 3, groups=C)), [IMAGES[1]], "0: its convolution is of depthwise rows",
        "depthwise_conv1d"),
    "zeros around": (lambda: fm.padded("constant", sides=(1, 1, 1, 1)), X, "norm: is not followed by one convolution"),
    "another reader": (lambda: fm.large(lambda large, y: y + large), X, f": {UNREAD}", "conv2d sum"),
    "returned too": (lambda: fm.large(lambda large, y: (y, large)), X, f": {UNREAD}"),
    "changed in place": (lambda: made(fm.changed_before, conv=nn.Conv2d(C, C, 3, padding=1)), X,
        ": what runs between it and its convolution may change the image in place"),
    "named image": (
        lambda: made(lambda m, x: m.conv(input=F.interpolate(x, scale_factor=2)), conv=nn.Conv2d(C, C, 3)), X,
        ": its convolution is given more than an image"),
    "pixels around": (lambda: fm.Grown(nn.Conv2d(C, C, 3, padding_mode="circular")), X, ": its convolution pads by"),
    "transposed one": (
        lambda: fm.Grown(nn.ConvTranspose2d(C, C, 3)), X, ": its convolution is transposed, or is none of image", BACK),
    "ours": (lambda: fm.Grown(ours.Conv2d(C, C, 3)), X, ": its convolution is not swapped by this call"),
    "hooks in a layer": (lambda: hooked(convnext(), "mlp.act"), X, f"mlp.fc1: {IN_MLP}", ""),
    "hooks of layers": (lambda: hooked(convnext(), "mlp"), X, f"mlp.fc2: {IN_MODEL}", "conv2d gelu"),
    "what layers read is read": (lambda: fm.ConvNext(also=lambda h: h.permute(0, 3, 1, 2)).eval(), X,
        "mlp.fc1: is not the only one that sees its input", "conv2d sum"),
    "a layer's forward": (forwards(convnext, "mlp.fc1"), X, "mlp.fc1: has a forward of its own", "conv2d sum"),
    "hardswish layers": (lambda: fm.ConvNext(fm.Mlp(nn.Hardswish())).eval(), X, f"mlp.fc1: {NOTHING}", "conv2d sum"),
    "layers in a chain": (lambda: fm.convolutions(nn.GroupNorm(2, C)).eval(), X,
        "fc1: is not swapped by this call, or is in a chain with its norm, as its own row says",
        "channel_stats; norm conv2d gelu; conv2d sum"),
    "excitation": (lambda: made(excitation, **EXCITED).eval(), X, f"fc2: {NOTHING}", "conv2d relu; conv2d"),
    "rows with a forward": (forwards(conformer, "glu"), ROWS, ": a module of it has a forward of its own", ROWS_APART),
    "rows without GLU": (of(conformer, lambda m: setattr(m, "glu", nn.Conv1d(2 * C, C, 1))), ROWS,
        ": what its forward does around the convolution is in no fused call", f"conv1d; {ROWS_APART}"),
    "another norm of pixels": (
        lambda: fm.Clip(kind="another").eval(), VIDEO, "norm2: is a PixelNorm, which is found to compute none of rms",
        TWO.replace("2d", "3d")),
    "videos with hooks": (lambda: hooked(clip(), "conv1"), VIDEO, f"norm2: {HOOKS}", TWO.replace("2d", "3d")),
    "videos in groups": (of(clip, lambda m: setattr(m, "conv1", fm.Wan(C, C, 3, padding=1, groups=2))), VIDEO,
        "norm2: its convolution has groups, or is none of images or volumes", TWO.replace("2d", "3d")),
    "videos whose convolution stays": (
        forwards(clip, "conv1"), VIDEO, "norm2: its convolution is not swapped by this call", TWO.replace("2d", "3d")),
    "videos with a forward": (
        forwards(clip, "norm2"), VIDEO, "norm2: a module of it has a forward of its own", TWO.replace("2d", "3d")),
    "an eps of the dtype": (
        lambda: fm.Ltx(lambda: nn.RMSNorm(C)).eval(), VIDEO, "norm2: is a RMSNorm, which is found to compute none of",
        "frames conv3d; frames conv3d sum"),
    "videos without weight": (of(clip, lambda m: setattr(m, "norm2", fm.PixelNorm(1))), VIDEO,
        f"norm2: has no weight of the convolution's {C} channels", TWO.replace("2d", "3d")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_stays(name):
    make, shapes, why, *ran = LEFT[name]
    model = drawn(make())
    report = convert(model, fuse=True)
    assert any(line.startswith(why) for line in told(report)), told(report)
    inputs = [image(*one, seed=i) for i, one in enumerate(shapes, 1)]
    assert calls(report.model, *inputs) == (ran or ["conv2d"])[0]
    for sign in (1, -1):
        found = []
        for one in (report.model, model):
            torch.manual_seed(0)  # of dropout
            with torch.no_grad():
                found.append(tree_leaves(one(sign * inputs[0], *(other.clone() for other in inputs[1:]))))
        for one, other in zip(*found, strict=True):
            assert close(one, other, terms_of(model))


@pytest.mark.parametrize(("make", "why"), [
    (lambda: fm.chain(nn.GroupNorm(2, C + 2)), "raises RuntimeError on a probe in float64"),
    (lambda: fm.padded("replicate", sides=(0, 0, 0, 0, 1, 1)), "raises RuntimeError on a probe"),  # around channels
    (of(conformer, lambda m: setattr(m, "glu", nn.Identity())), "its forward raises RuntimeError on a probe"),
    (normed(nn.SiLU(), lambda y: y[:, :4], training=False), STAYS[3:]),
    (of(convnext, lambda m: setattr(m.mlp.fc2, "weight", nn.Parameter(torch.ones(C, fm.WIDE) * 1j))),
     "mlp.fc2: weights are torch.complex64; accepted are"),
])  # fmt: skip
def test_modules_that_do_not_go_together_stay(make, why):
    assert why in told(convert(make(), fuse=True))[-1]


@pytest.mark.parametrize("how", [{"scale_factor": 3}, {"mode": "bilinear"}, {"mode": "area"}, {"scale_factor": (2, 1)}])
def test_other_upsamplings_are_none(how):
    assert convert(fm.Grown(**how).eval(), fuse=True).doublings == ()


def test_a_fused_call_that_differs_is_left(monkeypatch):
    monkeypatch.setattr(doublings, "_GROWN", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
    assert told(convert(drawn(fm.Grown()).eval(), fuse=True)) == [": fused, it differs by more than rounding explains"]


def test_what_is_fused_already_stays():
    again = convert(convert(nn.Sequential(fm.Clip(), fm.chain(), fm.ConvNext()).eval(), fuse=True).model, fuse=True)
    norms, layers = ("1.0", "0.norm2"), ("2.mlp.fc1", "2.mlp.fc2")
    assert told(again) == [*(f"{one}: is in a fused chain already" for one in norms),
                           *(f"{one}: is a convolution already" for one in layers)]  # fmt: skip
    with pytest.raises(UnsupportedError, match="fuse=True: does not go with pack_filters"):
        convert(fm.chain().eval(), fuse=True, pack_filters="frozen", example_inputs=(image(*IMAGES[2]),))


# Norms that take the statistics that the convolution before them returns, where all graphs show it.
def branch(self, x, doubles=None):
    """On one of two ways a norm reads something else."""
    h = self.stem(x)
    if doubles is not None:
        h = h * doubles
    return self.blocks[0](h)


def alone(first, norm=lambda: nn.GroupNorm(2, C), depthwise=False):
    """A convolution, and two chains of which the first may be depthwise."""
    conv = fm.CONVOLUTIONS[len(first.kernel_size)]
    middle = conv(C, C, 2, groups=C if depthwise else 1)
    return nn.Sequential(first, norm(), nn.SiLU(), middle, nn.GroupNorm(2, C), nn.SiLU(), conv(C, C, 1))


FIRST = {"blocks.0.norm2": "blocks.0.conv1"}
FROM = {"blocks.0.norm1": "stem", **FIRST, "blocks.1.norm1": "blocks.0.conv2", "blocks.1.norm2": "blocks.1.conv1"}
TWICE = {"1": "0", "4": "3"}
#: What makes a model; the shape of its input; whose statistics its norms take; passes over images for those that no
#: convolution returns.
NETS = {
    **{f"{name} norms of rank {rank}": (
        lambda name=name, rank=rank: fm.net(lambda: NORMS[name](rank), rank), STEMS[rank], FROM, 0,
    ) for name, rank in (("Group", 1), ("Group", 2), ("Instance", 2), ("Group", 3), ("Instance", 3))},
    "a division": (lambda: fm.net(scale=2.0), STEMS[2], {k: v for k, v in FROM.items() if k != "blocks.1.norm1"}, 1),
    "in place": (lambda: fm.between(torch.relu_), STEMS[2], FIRST, 1),
    "another order": (lambda: fm.between(lambda x: x.flip(2)), STEMS[2], FIRST, 1),
    "a part": (lambda: fm.between(lambda x: x[:, :, 1:]), STEMS[2], FIRST, 1),
    "casts that do nothing": (
        lambda: fm.between(lambda x: x.to("cpu").contiguous()), STEMS[2], {"blocks.0.norm1": "stem", **FIRST}, 0),
    "another way": (lambda: fm.net(forward=branch), STEMS[2], FIRST, 1),
    "another call": (lambda: fm.net(forward=lambda m, x: m.blocks[0](m.stem(x)) + m.stem(x + 1)), STEMS[2], FIRST, 1),
    "depthwise": (lambda: alone(nn.Conv2d(C, C, 3, groups=C), depthwise=True), (2, C, 7, 6), TWICE, 0),
    "depthwise volumes": (lambda: alone(nn.Conv3d(C, C, 2, groups=C), depthwise=True), (2, C, 7, 6, 5), TWICE, 0),
    "transposed": (lambda: alone(nn.ConvTranspose2d(C, C, 3, stride=2)), (2, C, 7, 6), TWICE, 0),
    "depthwise rows": (lambda: alone(nn.Conv1d(C, C, 3, groups=C)), (2, C, 8), {"4": "3"}, 1),
    "running statistics": (lambda: alone(nn.Conv2d(C, C, 3), lambda: nn.BatchNorm2d(C)), (2, C, 8, 7), {"4": "3"}, 0),
}  # fmt: skip


@pytest.mark.parametrize(("make", "shape", "expected", "passes"), NETS.values(), ids=NETS)
def test_norms_take_what_convolutions_return(make, shape, expected, passes):
    model = drawn(make()).eval()
    report = convert(model, fuse=True)
    assert {chain.norm: " ".join(chain.statistics) for chain in report.chains if chain.statistics} == expected
    assert f"{len(expected)} with statistics from the one before" in str(report)
    assert_same(report.model, model, image(*shape))
    ran = calls(report.model, image(*shape)).split("; ")
    assert ran.count("channel_stats") == passes
    assert sum(one.endswith(" stats") for one in ran) == len(set(expected.values()))
