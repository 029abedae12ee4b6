"""Layers that do more than convolve, and modules, equal torch's: results, derivatives in both directions and twice,
parameters, batches and none.
"""

import contextlib
import copy
import functools
import io

import numpy as np
import pytest
import torch
from gradchecks import assert_batches, assert_derivatives, assert_gradients, assert_tangents, several
from layers import ENDS, FUNCTIONS, LAYERS, by_phases, grown_in_torch, of_y_norm, pair_of, randoms, y_norm
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch_exact import filled, integers, leaves_of, same

from nkiconv import pytorch
from nkiconv.activations import ACTIVATIONS
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import nn, pack_filter

in_both = pytest.mark.parametrize("mode", ["torch", "simulate"], indirect=True)
of_each = pytest.mark.parametrize("name", LAYERS)


def refused(name, what, mode):
    """That kernels of some layers have no tangents or no batches."""
    if what not in LAYERS[name].refuses or (mode == "torch" and "torch" not in LAYERS[name].refuses):
        return contextlib.nullcontext()
    return pytest.raises(UnsupportedError, match="forward mode" if what == "tangents" else "vmap")


def share(name):
    """Of statistics, and of means in norms, gradients are sums of sums."""
    summed = any(word in name for word in ("statistics", "norm", "pixels", "mlp"))
    return (4 if summed else 1) * FLOAT32_SUMS


@in_both
@pytest.mark.cover
@of_each
def test_results_and_gradients(name, mode):
    """By torch's functions where these compute, and by nkiconv's operators, which whoever looks on sees."""
    layer = LAYERS[name]
    for look in (contextlib.nullcontext, Seen) if mode == "torch" else (contextlib.nullcontext,):
        with look():
            assert_gradients(layer.ours, layer.torchs, layer.given, share(name))


@pytest.mark.cover(10, keep=["causal, packed", "causal, numbered"])
@of_each
def test_derivatives_in_float64(name):
    """Twice, of every tensor and result, of operators; in both directions where there are such."""
    layer = LAYERS[name]

    def call(*given):
        with Seen():
            return layer.ours(*given)

    leaves = [one.detach().double().requires_grad_() for one in layer.given]
    assert_derivatives(call, leaves, check_forward_ad="tangents" not in layer.refuses)


@in_both
@pytest.mark.cover
@of_each
def test_tangents(name, mode):
    layer = LAYERS[name]
    look = Seen if mode == "torch" and "tangents" not in layer.refuses else contextlib.nullcontext
    with refused(name, "tangents", mode), look():
        assert_tangents(layer.ours, layer.torchs, layer.given, share(name))


@in_both
@pytest.mark.cover(40, keep=[
    "causal-x-simulate", "causal-all-simulate", "layer of pixels, 3d, post_activation, frames-x-simulate",
])  # fmt: skip
@pytest.mark.parametrize("batched", ["x", "filters", "all"])
@of_each
def test_batches(name, batched, mode):
    layer = LAYERS[name]
    at = {"x": (0,), "filters": (1,), "all": tuple(range(len(layer.given)))}[batched]
    with refused(name, "vmap", mode):
        assert_batches(layer.ours, layer.torchs, layer.given, at, 4 * FLOAT32_SUMS)


@in_both
@pytest.mark.cover
@of_each
def test_no_images(name, mode):
    layer = LAYERS[name]
    given = [one[:0] if i in layer.images else one for i, one in enumerate(layer.given)]
    for look in (contextlib.nullcontext, Seen) if layer.images else ():
        with look(), torch.no_grad():
            found, whole = several(layer.ours(*given)), several(layer.torchs(*layer.given))
        assert [one.shape for one in found] == [(0, *one.shape[1:]) for one in whole]


@pytest.mark.cover(8, keep=["causal"])
@of_each
def test_only_what_is_wanted_is_differentiated(name):
    layer = LAYERS[name]
    for index in range(len(layer.given)):
        found = []
        for call, kind in ((layer.ours, torch.float32), (layer.torchs, torch.float64)):
            given = [one.detach().to(kind, copy=True) for one in layer.given]
            leaf = given[index].requires_grad_()
            with Seen():
                total = sum(map(torch.sum, several(call(*given))))
            found.append([leaf.grad or 0 * leaf] if not total.requires_grad else torch.autograd.grad(total, leaf))
        if found[1][0].any():
            assert_within_share(*found, share(name))


@pytest.mark.cover(27, keep=["short conv, BCx-torch.float32-compare", "glu, same-torch.float32-compare"])
@pytest.mark.parametrize("mode", ["torch", "compare"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@of_each
def test_dtypes(name, dtype, mode):
    """Near float64; kernels' results and gradients within bounds of their own, or compare raises."""
    layer = LAYERS[name]
    kinds = [torch.float32 if i in layer.wide else dtype for i in range(len(layer.given))]
    given = [one.detach().to(kind, copy=True).requires_grad_() for one, kind in zip(layer.given, kinds, strict=True)]
    found = several(layer.ours(*given))
    assert found[0].dtype == dtype
    expected = several(layer.torchs(*(one.detach().double() for one in given)))
    # fp32 sums, or of 16 bits a few roundings to the dtype
    assert_within_share(found, expected, max(FLOAT32_SUMS, 4 * torch.finfo(dtype).eps))
    found[0].float().square().sum().backward()
    assert given[0].grad.dtype == dtype


@pytest.mark.cover(12)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_epilogues(name, activation, position, mode):
    assert_gradients(*pair_of(name, activation=activation, position=position), LAYERS[name].given)


def ahead(f, x, along):
    return func.jvp(f, (x,), (along,))[1]


def back(f, x, along):
    return (func.grad(f)(x) * along).sum()


def after(f, x):
    """f's gradient, by a function that outlives the transform that made it."""
    y, pull = func.vjp(f, x)
    return pull(torch.ones_like(y))[0]


#: Second derivatives of a number along a direction, and gradients, of each sample too.
TRANSFORMS = {
    "reverse, later": lambda f, x, along: after(f, x),
    "reverse, later, in reverse": lambda f, x, along: func.grad(lambda x: (after(f, x) * along).sum())(x),
    "reverse twice": lambda f, x, along: func.grad(lambda x: back(f, x, along))(x),
    "forward in reverse": lambda f, x, along: func.grad(lambda x: ahead(f, x, along))(x),
    "reverse in forward": lambda f, x, along: ahead(func.grad(f), x, along),
    "forward twice": lambda f, x, along: ahead(lambda x: ahead(f, x, along), x, along),
    "each sample": lambda f, x, along: func.vmap(func.grad(f))(torch.stack([x, along])),
}


@in_both
@pytest.mark.cover(28, keep=[
    "conv1d-forward in reverse-0-simulate", "conv2d-reverse in forward-0-torch",
    "short conv, BCx-reverse, later-0-simulate", "short conv, tokens-reverse, later, in reverse-1-simulate",
])  # fmt: skip
@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("transform", TRANSFORMS)
@of_each
def test_transforms(name, transform, by, mode):
    """Of torch.func, by x and by the filters."""
    layer, found = LAYERS[name], []
    what = "vmap" if transform == "each sample" else "tangents" if "forward" in transform else ""
    for call, kind in ((layer.ours, torch.float32), (layer.torchs, torch.float64)):
        given = [one.to(kind) for one in layer.given]

        def number(leaf, call=call, given=given):
            found = several(call(*given[:by], leaf, *given[by + 1 :]))
            return sum((one * one.detach().cos()).square().sum() for one in found)

        with refused(name, what, mode) if call is layer.ours else contextlib.nullcontext():
            found.append(TRANSFORMS[transform](number, given[by], given[by].cos()))
    if len(found) == 2:
        assert_within_share(found[:1], found[1:], 16 * FLOAT32_SUMS)


@in_both
def test_a_step_of_decoding_leaves_no_tangent_in_its_state(mode):
    x, w, state = randoms((2, 3), (3, 4), (2, 3, 3))
    expected = F.conv1d(torch.cat([torch.zeros(2, 3, 3), x.cos()[..., None]], 2), w[:, None], groups=3)[..., 0]
    with forward_ad.dual_level():
        y = pytorch.causal_conv1d_update(forward_ad.make_dual(x, x.cos()), state, w)
        assert_within_share([forward_ad.unpack_dual(y).tangent], [expected], FLOAT32_SUMS)
        assert forward_ad.unpack_dual(state).tangent is None


@pytest.mark.cover(0, keep=["short conv, BCx"])
@pytest.mark.parametrize("name", [name for name in LAYERS if "numbered" not in name])
def test_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    layer = LAYERS[name]
    # the values of a tensor are read, which breaks the graph
    ours = functools.partial(layer.ours, cu_seqlens=ENDS) if name == "split, packed" else layer.ours
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    assert_within_share(several(compiled(*layer.given)), several(layer.ours(*layer.given)), FLOAT32_SUMS)


# Norms over the channels of pixels.


@pytest.mark.parametrize("mode", ["simulate"], indirect=True)
def test_norms_of_pixels_with_packed_filters_and_final_frames(mode):
    x, w, *others = given = of_y_norm(3, True)
    plain = y_norm(*given)
    y, frames, u = y_norm(*given, packed=pack_filter(w), return_final_frames=True)
    for one, other in zip((y, u), plain, strict=True):
        assert_within_share([one], [other], FLOAT32_SUMS)
    assert torch.equal(frames, x[:, :, -2:])
    assert torch.equal(y_norm(*given, return_before_norm=False), plain[0])
    of_image = y_norm(x[0], w, *(one[0] if i in (1, 4) else one for i, one in enumerate(others)))
    for one, other in zip(of_image, plain, strict=True):
        assert_within_share([one], [other[0]], FLOAT32_SUMS)


# Stages of LFM2 and of Conformers.


@pytest.mark.parametrize(("layout", "name"), [("NCW", "short conv, BCx"), ("NWC", "short conv, tokens")])
def test_steps_of_stages_are_the_whole(layout, name, simulate):
    x, w, *_ = (one.detach() for one in LAYERS[name].given)
    conv, axis = torch.nn.Conv1d(4, 4, 3, padding=2, groups=4, bias=False), layout.index("W")
    module = nn.GatedShortConv.from_module(conv, "BCx", "block.0", layout=layout)
    assert (module.weight is conv.weight, module.layer) == (True, "block.0")
    module.load_state_dict({"weight": w[:, None]})
    whole, final = module(x, return_final_states=True)
    states, found = torch.zeros(2, 4, 2), []
    for piece in x.split([4, 1, 1, 3], axis):
        y, states = module(piece, states, return_final_states=True)
        found.append(y)
    assert_within_share([torch.cat(found, axis)], [whole], FLOAT32_SUMS)
    torch.testing.assert_close(states, final)


def test_conformers_stage(simulate):
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv1d(6, 6, 5, padding=2, groups=6, bias=False), torch.nn.BatchNorm1d(6)
    norm(torch.randn(4, 6, 9))
    conv, norm = conv.eval(), norm.eval()
    x = torch.randn(2, 12, 11)
    with torch.no_grad():
        wanted = F.silu(norm(conv(F.glu(x, 1))))
        found = nn.ConformerConv.from_modules(conv, norm)(x)
    assert_within_share([found], [wanted], FLOAT32_SUMS)
    alone = nn.ConformerConv.from_modules(conv, activation=None)
    assert alone.weight is conv.weight
    assert_within_share([alone(x)], [conv(F.glu(x, 1))], FLOAT32_SUMS)
    assert torch.equal(nn.ConformerConv.from_modules(conv, norm, padding=[np.int64(2), 2])(x), found)
    shorter = nn.ConformerConv.from_modules(conv.train(), norm, padding="valid", layer="block.0")
    assert (conv.training, shorter.layer) == (True, "block.0")
    assert_within_share([shorter(x)], [found[..., 2:-2]], FLOAT32_SUMS)


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("taps", "padding", "groups"),
    [((3, 3), (1, 1), 1), ((3, 3), (0, 2), 1), ((1, 1), (0, 0), 1), ((2, 5), (1, 3), 1), ((3, 4), (1, 2), 2)],
    ids=str,
)
def test_upsampled_integers_are_exact(taps, padding, groups, mode):
    """By filters for each phase, too."""
    x, w = (torch.round(one) for one in randoms((2, 6, 4, 5), (4, 6 // groups, *taps)))
    expected = grown_in_torch(x, w, None, padding, groups)
    assert torch.equal(by_phases(x, w, None, padding, groups), expected)
    assert torch.equal(pytorch.conv2d(x, w, None, 1, padding, 1, groups, x_upsample=2), expected)


@pytest.mark.cover(6)
# class, arguments, input's shape, operator
@pytest.mark.parametrize(("name", "sizes", "more", "shape", "operator"), [
    ("Conv1d", (6, 4, 3), {"bias": False, "stride": 2, "padding": 2, "groups": 2}, (2, 6, 11), "conv1d"),
    ("Conv1d", (6, 6, 5), {"padding": "same", "dilation": 2, "groups": 6}, (6, 11), "depthwise_conv1d"),
    ("Conv1d", (6, 12, 5), {"groups": 6}, (2, 6, 11), "conv1d"),
    ("Conv1d", (1, 1, 5), {}, (2, 1, 11), "depthwise_conv1d"),
    ("Conv2d", (6, 4, (3, 2)), {"padding": (1, 0), "dtype": torch.bfloat16}, (2, 6, 9, 8), "conv2d"),
    ("Conv2d", (6, 4, 3), {"stride": (2, 1), "dilation": (1, 2), "padding": 2, "groups": 2}, (6, 9, 8), "conv2d"),
    ("Conv3d", (6, 6, 3), {"padding": "valid", "groups": 6}, (2, 6, 4, 5, 6), "conv3d"),
    ("Conv1d", (6, 4, 3), {"padding": 2, "padding_mode": "reflect"}, (2, 6, 9), "conv1d"),
    ("Conv1d", (6, 4, 3), {"padding": "same", "dilation": 2, "padding_mode": "replicate"}, (6, 9), "conv1d"),
    ("Conv2d", (6, 4, 3), {"padding": (1, 2), "stride": 2, "groups": 2, "padding_mode": "circular"}, (2, 6, 7, 8),
     "conv2d"),
], ids=lambda value: str(value)[:30])  # fmt: skip
def test_equals_torchs_module(name, sizes, more, shape, operator, mode):
    ours, theirs = (getattr(of, name)(*sizes, **more) for of in (nn, torch.nn))
    filled(ours)
    assert theirs.load_state_dict(ours.state_dict()).missing_keys == []
    dtype = more.get("dtype", torch.float32)
    (x,), (wide,) = leaves_of(shape, dtype=dtype, seed=7)
    with Seen() as ran:
        y = ours(x)
    assert ran.convolutions == [f"nkiconv::{ours.operator}"] == [f"nkiconv::{operator}"]
    converted = pytorch.convert(torch.nn.Sequential(theirs)).model[0]
    assert repr(ours) == repr(theirs) == repr(converted)
    assert type(converted) is type(ours)
    assert torch.equal(converted(x), y)
    expected = theirs.double()(wide)
    assert y.dtype == dtype
    (g,) = integers(y.shape, seed=8)
    found = torch.autograd.grad(y, [x, *ours.parameters()], g.to(dtype))
    assert same([y, *found], [expected, *torch.autograd.grad(expected, [wide, *theirs.parameters()], g.double())])


@pytest.mark.cover(7)
# in, out, taps, groups, dilation, stride
@pytest.mark.parametrize(("inputs", "outputs", "taps", "groups", "dilation", "stride"), [
    (6, 4, 3, 1, 1, 1), (6, 6, 4, 6, 1, 1), (6, 6, 4, 6, 3, 1), (6, 4, 3, 2, 2, 2), (4, 4, 1, 4, 5, 1),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_causal_equals_padding_on_the_left(inputs, outputs, taps, groups, dilation, stride, dtype, mode):
    conv = filled(nn.CausalConv1d(inputs, outputs, taps, stride, dilation, groups, dtype=dtype))
    for shape in ((2, inputs, 11), (inputs, 3)):
        (x,) = integers(shape, dtype=dtype, seed=5)
        padded = F.pad(x.double(), ((taps - 1) * dilation, 0))
        numbers = {"stride": stride, "dilation": dilation, "groups": groups}
        expected = F.conv1d(padded, conv.weight.double(), conv.bias.double(), **numbers)
        assert torch.equal(conv(x), expected.to(dtype))
    assert conv.operator == ("depthwise_conv1d" if groups == inputs == outputs else "conv1d")


def test_state_dicts_go_both_ways_and_copies_keep_the_fusion():
    conv = nn.CausalConv1d(4, 4, 3, groups=4, activation="silu", residual_position="post_activation", layer="mixer")
    torch.nn.Conv1d(4, 4, 3, groups=4).load_state_dict(conv.state_dict())
    saved = io.BytesIO()
    torch.save(conv, saved)
    saved.seek(0)
    x = torch.randn(2, 4, 9)
    for other in (copy.deepcopy(conv), torch.load(saved, weights_only=False)):
        assert (other.activation, other.residual_position, other.layer) == ("silu", "post_activation", "mixer")
        assert torch.equal(other(x), conv(x))
