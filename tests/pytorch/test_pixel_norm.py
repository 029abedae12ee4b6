"""y_norm of conv2d and conv3d: act(norm(conv(x) + bias + residual)), its derivatives, and what the norm reads."""

import pytest
import torch
from gradchecks import assert_derivatives
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, FLOAT64_SUMS, assert_within_share
from torch import func
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import conv2d, conv3d, pack_filter

OURS, THEIRS = {2: conv2d, 3: conv3d}, {2: F.conv2d, 3: F.conv3d}
SIZES = {2: (5, 6), 3: (3, 4, 5)}
NAMES = ("weight", "bias", "residual", "initial_frames", "y_norm_weight", "y_norm_bias")


def tensors(rank, frames=False, dtype=torch.float64, all_of_it=True):
    """x, and the others by name, of a convolution of 3 to 4 channels with 3 taps and padding 1."""
    generator = torch.Generator().manual_seed(rank)
    sizes = SIZES[rank]
    shapes = [(2, 3, *sizes), (4, 3, *[3] * rank), (4,), (2, 4, *sizes), (2, 3, 2, *sizes[1:]), (4,), (4,)]
    x, *others = (torch.randn(one, generator=generator, dtype=torch.float64).to(dtype) for one in shapes)
    named = dict(zip(NAMES, others, strict=True))
    left_out = () if frames else ("initial_frames",)
    left_out = left_out if all_of_it else ("bias", "residual", "initial_frames", "y_norm_weight", "y_norm_bias")
    return x, {name: one for name, one in named.items() if name not in left_out}


def padding_of(rank, frames):
    return ((0, 0) if frames else (2, 0), (1, 1), (1, 1)) if rank == 3 else 1


def ours(x, named, kind="rms", **more):
    rank = named["weight"].dim() - 2
    given = {"padding": padding_of(rank, "initial_frames" in named), "y_norm": kind, "activation": "silu", **more}
    return OURS[rank](x, **named, **given, return_before_norm=True)


def torchs(x, named, kind="rms", activation="silu", residual_position="pre_activation"):
    """By torch's functions alone, in the dtype of what they take."""
    rank, residual, before = x.dim() - 2, named.get("residual"), residual_position == "pre_activation"
    frames = named.get("initial_frames")
    if rank == 3:
        x = F.pad(x, (0, 0, 0, 0, 2, 0)) if frames is None else torch.cat([frames, x], 2)
    u = THEIRS[rank](x, named["weight"], named.get("bias"), padding=(0, 1, 1)[-rank:])
    u = u + residual if before and residual is not None else u
    channels, last = u.shape[1:2], u.movedim(1, -1)
    affine = named.get("y_norm_weight"), named.get("y_norm_bias")
    if kind == "layer":
        z = F.layer_norm(last, channels, *affine, eps=1e-6)
    else:
        z = F.rms_norm(last, channels, affine[0], eps=1e-6)
        z = z if affine[1] is None else z + affine[1]
    y = activation_of(activation)(z.movedim(-1, 1))
    return (y if before or residual is None else y + residual), u


def agree(found, expected, share=FLOAT64_SUMS):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_within_share(one.detach(), other.detach(), share)


@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(("rank", "frames"), [(2, False), (3, False), (3, True)])
def test_values_and_derivatives_equal_torchs(rank, frames, kind, position):
    """Of torch's functions on the host, and of the operator, which whoever records calls sees."""
    x, named = tensors(rank, frames)
    leaves = [x, *named.values()]

    def results(call):
        own = [one.clone().requires_grad_() for one in leaves]
        y, u = call(own[0], dict(zip(named, own[1:], strict=True)), kind, residual_position=position)
        return [y, u, *torch.autograd.grad(y.sin().sum() + u.cos().sum(), own)]

    expected = results(torchs)
    agree(results(ours), expected)
    with Seen() as seen:
        agree(results(ours), expected)
    assert seen.convolutions[0] == f"nkiconv::conv{rank}d_with_norm"


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_derivatives_of_derivatives(kind):
    x, named = tensors(2, all_of_it=False)
    named["y_norm_weight"] = torch.ones(4, dtype=torch.float64)

    def operator(x, weight, norm_weight):
        numbers = [1, 1], [1] * 4, [1, 1], [1, 1], 1, "silu", "pre_activation", None, None, False
        given = x, weight, None, None, None, norm_weight, None
        return torch.ops.nkiconv.conv2d_with_norm(*given, *numbers, kind, 1e-6, True)

    leaves = [one.requires_grad_() for one in (x[:1, :, :2, :3].contiguous(), *named.values())]
    assert_derivatives(operator, leaves)


@pytest.mark.cover(4)
@pytest.mark.parametrize("mode", ["compare"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(("rank", "frames"), [(2, False), (3, True)])
def test_kernels_agree_with_torch(rank, frames, kind, dtype, mode):
    """What is compared is held to its bound; the gradients' kernels, too."""
    x, named = tensors(rank, frames, dtype)
    with Seen() as seen:
        found = ours(x.requires_grad_(), named, kind)
    assert seen.convolutions == [f"nkiconv::conv{rank}d_with_norm"]
    found[0].float().square().sum().backward()
    assert x.grad.shape == x.shape
    of_image = {name: named[name][0] for name in ("residual", "initial_frames") if name in named}
    agree(ours(x[0].detach(), {**named, **of_image}, kind), [one[0] for one in found], FLOAT32_SUMS)


@pytest.mark.parametrize("mode", ["simulate"], indirect=True)
def test_packed_filters_and_final_frames(mode):
    x, named = tensors(3, True, torch.float32)
    plain = ours(x, named)
    y, frames, u = ours(x, named, packed=pack_filter(named["weight"]), return_final_frames=True)
    agree([y, u], plain, FLOAT32_SUMS)
    assert torch.equal(frames, x[:, :, -2:])
    alone = conv3d(x, **named, padding=padding_of(3, True), y_norm="rms", activation="silu")
    assert torch.equal(alone, plain[0])
    empty = ours(x[:0], {**named, "residual": named["residual"][:0], "initial_frames": named["initial_frames"][:0]})
    assert [one.shape for one in empty] == [(0, *one.shape[1:]) for one in plain]


@pytest.mark.parametrize("batched", ["x", "x, weight", "y_norm_weight"])
def test_batches(batched):
    x, named = tensors(2)
    axes = {name: 0 if name in batched else None for name in ("x", *named)}
    several = {name: torch.stack([one, 2 * one]) if name in batched else one for name, one in {"x": x, **named}.items()}

    def call(arguments):
        own = dict(arguments)
        return ours(own.pop("x"), own)

    found = func.vmap(call, in_dims=(axes,))(several)
    each = [call({k: one if axes[k] is None else one[i] for k, one in several.items()}) for i in range(2)]
    agree(found, [torch.stack(one) for one in zip(*each, strict=True)])


@pytest.mark.parametrize("mode", ["simulate"], indirect=True)
def test_forward_mode_is_torchs_alone(mode):
    x, named = tensors(2, dtype=torch.float32)
    with pytest.raises(UnsupportedError, match="y_norm has no derivatives in forward mode where a kernel computes"):
        func.jvp(lambda x: ours(x, named), (x,), (x,))
