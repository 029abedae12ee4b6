"""Calls of convolutions with x_scale, x_shift, x_activation and x_upsample, and the same by torch."""

import torch
from tolerances import FLOAT32_SUMS, assert_within_share
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv import bounds, reference
from nkiconv.problem import ConvProblem
from nkiconv.pytorch import conv1d, conv2d, conv3d
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.operators.tensor_kinds import DTYPES

OURS = {1: conv1d, 2: conv2d, 3: conv3d}
THEIRS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}


def tensors(rank, form="image", residual=True, dtype=torch.float32, groups=2, channels=6, upsample=1):
    """x, w, bias, residual, x_scale, x_shift of a convolution with 3 taps and padding 1."""
    generator = torch.Generator().manual_seed(rank)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    of_x = (channels,) if form == "channel" else (2, channels)
    of_y = (2, 4, *(upsample * size for size in SIZES[rank]))
    shapes = (2, channels, *SIZES[rank]), (4, channels // groups, *[3] * rank), (4,), of_y, of_x, of_x
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
    x_upsample=1,
):
    rank = w.dim() - 2
    call = getattr(torch.ops.nkiconv, f"conv{rank}d_with_{suffix}")
    ones, pads = [1] * rank, [1] * 2 * rank
    more = ones, pads, ones, ones, x.shape[1] // w.shape[1], activation, residual_position, None, None, False, act
    return call(x, w, bias, residual, scale, shift, *more, x_upsample)


def torchs(
    x, w, bias, residual, scale, shift, act="silu", activation=None, residual_position="pre_activation", x_upsample=1
):
    """By torch's functions alone, in the dtype of what they take."""
    rank = w.dim() - 2
    h = x if scale is None else x * scale.reshape(*scale.shape, *[1] * rank)
    h = activation_of(act)(h if shift is None else h + shift.reshape(*shift.shape, *[1] * rank))
    for axis in range(2, 2 + rank):
        h = h.repeat_interleave(x_upsample, axis)
    z = THEIRS[rank](h, w, bias, padding=1, groups=x.shape[1] // w.shape[1])
    if residual is None:
        return activation_of(activation)(z)
    before = residual_position == "pre_activation"
    return activation_of(activation)(z + residual) if before else activation_of(activation)(z) + residual


def assert_gradients(function, given, **more):
    """y of `ours` or `operator`, and its gradients by all tensors that there are, are those of torch in float64."""
    leaves = [None if one is None else one.requires_grad_() for one in given]
    wide = [None if one is None else one.detach().double().requires_grad_() for one in given]
    y, expected = function(*leaves, **more), torchs(*wide, **more)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad(y, [one for one in leaves if one is not None], g)
    right = torch.autograd.grad(expected, [one for one in wide if one is not None], g.double())
    assert_within_share([y], [expected], FLOAT32_SUMS)
    for one, other in zip(found, right, strict=True):
        assert_within_share([one], [other], FLOAT32_SUMS)


def assert_gradient_of_one(given, index, **more):
    """The gradient by one of the tensors alone is that of torch in float64."""
    given[index].requires_grad_()
    wide = [one.detach().double() for one in given]
    wide[index].requires_grad_()
    operator(*given, **more).sum().backward()
    torchs(*wide, **more).sum().backward()
    assert_within_share([given[index].grad], [wide[index].grad], FLOAT32_SUMS)


def truth(given, act, activation=None, out_dtype=None, x_upsample=1):
    """(y [N, K, ...] of `ours` in float64, how far the kernel's may be off), y rounded to out_dtype, or x's."""
    x, w, bias, residual, scale, shift = map(to_numpy, given)
    rank, dtype = w.ndim - 2, DTYPES[given[0].dtype]
    convolved = (x_upsample * size for size in x.shape[2:])
    sizes = dict(zip("DHW"[-rank:], convolved, strict=True)) | dict(zip("TRS"[-rank:], w.shape[2:], strict=True))
    padding = (((0, 0),) if rank == 1 else ()) + ((1, 1),) * rank
    groups = x.shape[1] // w.shape[1]
    problem = ConvProblem(N=len(x), C=x.shape[1], K=len(w), **sizes, groups=groups, padding=padding, dtype=dtype)
    images, filters = x[:, :, None] if rank == 1 else x, w.reshape(problem.filter_shape)
    off = reference.prologue_ref(bounds.prologue_bound(images, dtype, scale, shift, act), x_upsample=x_upsample)
    inexact = reference.abs_sum_ref(off, filters, problem)
    h = reference.prologue_ref(images, scale, shift, act, x_upsample)
    sums, most = (one(h, filters, problem) for one in (reference.conv_ref, reference.abs_sum_ref))
    after = bias, activation, residual.reshape(sums.shape)
    terms, out_dtype = reference.num_terms(problem), out_dtype or dtype
    return reference.epilogue_ref(sums, *after), bounds.epilogue_bound(
        terms, most, sums, out_dtype, *after, inexact=inexact
    )
