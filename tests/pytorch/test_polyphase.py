"""Filters of transposed convolutions that are convolutions of each row and column twice."""

import pytest
import torch
from tolerances import assert_within_limit
from torch.nn import functional as F

from nkiconv.bounds import EPS, error_bound
from nkiconv.pytorch import conv2d, conv_transpose2d, polyphase_filter
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.operators.tensor_kinds import DTYPES


def by_phases(x, w, bias=None, padding=(1, 1), groups=1, **more):
    sides = tuple(taps - 1 - side for taps, side in zip(w.shape[2:], padding, strict=True))
    return conv_transpose2d(x, polyphase_filter(w, groups), bias, 2, sides, groups=groups, **more)


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("taps", "padding", "groups"),
    [((3, 3), (1, 1), 1), ((3, 3), (0, 2), 1), ((1, 1), (0, 0), 1), ((2, 5), (1, 3), 1), ((3, 4), (1, 2), 2)],
    ids=str,
)
def test_integers_are_exact(taps, padding, groups, mode):
    x = torch.arange(2 * 6 * 4 * 5).remainder(5).float().reshape(2, 6, 4, 5) - 2
    w = torch.arange(4 * (6 // groups) * taps[0] * taps[1]).remainder(7).float().reshape(4, 6 // groups, *taps) - 3
    expected = F.conv2d(F.interpolate(x, scale_factor=2), w, padding=padding, groups=groups)
    assert torch.equal(by_phases(x, w, None, padding, groups), expected)
    assert torch.equal(conv2d(x, w, None, 1, padding, 1, groups, x_upsample=2), expected)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_its_taps_are_rounded_once(dtype, mode):
    """One more rounding of each sum of taps than a convolution has, as the documentation says."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*size, generator=generator).to(dtype) for size in ((1, 40, 5, 6), (8, 40, 3, 3)))
    truth = F.conv2d(F.interpolate(x.double(), scale_factor=2), w.double(), padding=1)
    sums = polyphase_filter(w.float().abs()).double()  # of sums in fp32, of which each is rounded twice, then once
    most = to_numpy(F.conv_transpose2d(x.double().abs(), sums, stride=2, padding=1))
    kind = DTYPES[dtype]
    limit = error_bound(40 * 4, most, to_numpy(truth), kind) + (2 * EPS["fp32"] + EPS[kind] * (kind != "fp32")) * most
    assert_within_limit(to_numpy(by_phases(x, w)), to_numpy(truth), limit)
