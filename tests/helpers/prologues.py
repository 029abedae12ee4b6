"""Calls of convolutions with x_scale, x_shift and x_activation, and the same by torch."""

import torch
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv.pytorch import conv1d, conv2d, conv3d

OURS = {1: conv1d, 2: conv2d, 3: conv3d}
THEIRS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}


def tensors(rank, form="image", residual=True, dtype=torch.float32, groups=2, channels=6):
    """x, w, bias, residual, x_scale, x_shift of a convolution with 3 taps and padding 1."""
    generator = torch.Generator().manual_seed(rank)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    of_x = (channels,) if form == "channel" else (2, channels)
    shapes = (2, channels, *SIZES[rank]), (4, channels // groups, *[3] * rank), (4,), (2, 4, *SIZES[rank]), of_x, of_x
    kinds = (dtype,) * 4 + (kind,) * 2
    found = [torch.randn(one, generator=generator).to(each) for one, each in zip(shapes, kinds, strict=True)]
    return found if residual else [*found[:3], None, *found[4:]]


def ours(x, w, bias, residual, scale, shift, act="silu", **more):
    rank = w.dim() - 2
    given = {"padding": 1, "groups": x.shape[-1 - rank] // w.shape[1], "residual": residual, **more}
    return OURS[rank](x, w, bias, x_scale=scale, x_shift=shift, x_activation=act, **given)


def operator(
    x,
    w,
    bias,
    residual,
    scale,
    shift,
    act="silu",
    activation=None,
    residual_position="pre_activation",
    suffix="prologue",
):
    rank = w.dim() - 2
    call = getattr(torch.ops.nkiconv, f"conv{rank}d_with_{suffix}")
    ones, pads = [1] * rank, [1] * 2 * rank
    more = ones, pads, ones, ones, x.shape[1] // w.shape[1], activation, residual_position, None, None, False, act
    return call(x, w, bias, residual, scale, shift, *more)


def torchs(x, w, bias, residual, scale, shift, act="silu", activation=None, residual_position="pre_activation"):
    """By torch's functions alone, in the dtype of what they take."""
    rank = w.dim() - 2
    h = x if scale is None else x * scale.reshape(*scale.shape, *[1] * rank)
    h = activation_of(act)(h if shift is None else h + shift.reshape(*shift.shape, *[1] * rank))
    z = THEIRS[rank](h, w, bias, padding=1, groups=x.shape[1] // w.shape[1])
    if residual is None:
        return activation_of(activation)(z)
    before = residual_position == "pre_activation"
    return activation_of(activation)(z + residual) if before else activation_of(activation)(z) + residual
