"""The float64 references against torch and by hand, and the bounds' constants; every activation has its function."""

import math

import numpy as np
import pytest
import torch
from commands import ROOT
from hypothesis import assume, example, given
from hypothesis import strategies as st
from isa_tiles import result
from tolerances import FLOAT64_ROUNDINGS, FLOAT64_SUMS, assert_within_limit
from torch.nn import functional as F
from torch_exact import activation_of, spread

from nkiconv import bounds
from nkiconv._nki import nisa
from nkiconv.activations import ACTIVATIONS
from nkiconv.errors import GeometryError
from nkiconv.kernels._epilogue import evacuate
from nkiconv.pixel_norms import NORMS
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import (
    ChannelNorm,
    abs_sum_ref,
    conv_ref,
    depthwise_conv1d_ref,
    epilogue_ref,
    filter_gradient_ref,
    norm_ref,
)
from nkiconv.rules import RESIDUAL_POSITIONS
from nkiconv.schedules.options import Epilogue

#: All inputs are cropped away.
NOTHING = ConvProblem(N=1, C=2, W=4, K=2, S=2, padding=((0, 0), (-5, 6)), groups=2)


def inputs(problem):
    """Random integers x and w of a problem, canonical, in float64: all sums are exact."""
    rng, x_shape = np.random.default_rng(0), (problem.N, problem.C, problem.H, problem.W)
    return (rng.integers(-9, 10, shape).astype(np.float64) for shape in (x_shape, problem.filter_shape))


def torch_conv(x, w, problem):
    """The same convolution by torch, of an array and a tensor: zeros inserted, F.pad, then F.conv2d."""
    (top, bottom), (left, right) = problem.padding
    if min(left + problem.width.dilated, right + problem.width.dilated) < 0:  # torch refuses to crop beyond an edge
        return 0 * w.sum() + torch.zeros(problem.N, problem.K, problem.P, problem.Q)
    padded = F.pad(spread(torch.from_numpy(x), problem.lhs_dilation), (left, right, top, bottom))
    options = {"stride": problem.stride, "dilation": problem.rhs_dilation, "groups": problem.groups}
    return F.conv2d(padded, w, **options)


@st.composite
def problems(draw):
    """Small problems with every field drawn on its own, height and width apart."""

    def pair(low, high):
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    groups = draw(st.integers(1, 3))
    fields = {name: draw(st.integers(1, high)) for name, high in {"N": 2, "H": 6, "W": 7, "R": 3, "S": 4}.items()}
    fields |= {"C": groups * draw(st.integers(1, 2)), "K": groups * draw(st.integers(1, 2)), "groups": groups}
    fields |= {"stride": pair(1, 3), "rhs_dilation": pair(1, 3), "lhs_dilation": pair(1, 3)}
    try:
        problem = ConvProblem(**fields, padding=(pair(-2, 4), pair(-2, 4)))
    except GeometryError:
        assume(False)
    kept = [axis.dilated + min(axis.lo, 0) + min(axis.hi, 0) for axis in (problem.height, problem.width)]
    assume(min(kept) >= 1)  # torch cannot crop an input to nothing
    return problem


@example(NOTHING)
@given(problems())
def test_equals_torch_anywhere(problem):
    """And the filter's gradient where y is that of the outputs."""
    x, w = inputs(problem)
    leaf, y = torch.from_numpy(w).requires_grad_(), conv_ref(x, w, problem)
    expected = torch_conv(x, leaf, problem)
    np.testing.assert_array_equal(y, expected.detach())
    (gradient,) = torch.autograd.grad(expected, leaf, torch.from_numpy(y))
    np.testing.assert_array_equal(filter_gradient_ref(x, y, problem), gradient)


def test_cross_correlation_by_hand():
    x, w = np.array([[[[1.0, 2, 3, 4]]]]), np.array([[[[10.0, 1]]]])
    assert depthwise_conv1d_ref(x, w).tolist() == [[[[12, 23, 34]]]]
    assert depthwise_conv1d_ref(x, w, padding=((0, 0), (1, 0))).tolist() == [[[[1, 12, 23, 34]]]]
    assert depthwise_conv1d_ref(x, w, stride=(1, 2)).tolist() == [[[[12, 34]]]]
    assert depthwise_conv1d_ref(x, w, rhs_dilation=(1, 2)).tolist() == [[[[13, 24]]]]
    assert depthwise_conv1d_ref(x, w, lhs_dilation=(1, 2)).tolist() == [[[[10, 2, 20, 3, 30, 4]]]]
    assert depthwise_conv1d_ref(x, w, padding=((0, 0), (-1, 1))).tolist() == [[[[23, 34, 40]]]]


#: A permutation that is not its own inverse, so that the two directions of reading it differ: NHWC as NCHW.
NHWC_TO_NCHW, NCHW_TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def test_depthwise_perms():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 5, 1, 9)), rng.standard_normal((5, 1, 1, 4))
    x_nhwc, w_shwc = x.transpose(0, 2, 3, 1), w.transpose(3, 1, 2, 0)
    y_nhwc = depthwise_conv1d_ref(x_nhwc, w_shwc, in_perm=NHWC_TO_NCHW, kern_perm=(3, 1, 2, 0), out_perm=NCHW_TO_NHWC)
    assert y_nhwc.shape == (2, 1, 6, 5)
    np.testing.assert_array_equal(y_nhwc.transpose(0, 3, 1, 2), depthwise_conv1d_ref(x, w))


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_dtypes_are_summed_in_float64(dtype):
    x, w = np.full((1, 1, 1, 600), 1.5, DTYPES[dtype]), np.ones((1, 1, 1, 599), DTYPES[dtype])
    assert depthwise_conv1d_ref(x, w).tolist() == [[[[898.5, 898.5]]]]


@pytest.mark.parametrize("groups", [1, 2], ids=["dense", "depthwise"])
def test_padding_zeros_take_part(groups):
    x, w = np.ones((1, 2, 1, 3)), np.ones((2, 2 // groups, 1, 2))
    w[:, :, :, 0] = np.inf  # the tap that lies on the left padding at q = 0
    y = conv_ref(x, w, ConvProblem(N=1, C=2, W=3, S=2, padding=((0, 0), (1, 0)), groups=groups))
    np.testing.assert_array_equal(y, [[[[np.nan, np.inf, np.inf]]] * 2])


def test_sampled_channels_equal_those_of_the_whole():
    problem = ConvProblem(N=2, C=7, W=20, S=3, padding=((0, 0), (2, -1)), stride=(1, 2), groups=7)
    x, w = inputs(problem)
    for channels in ([5, 0], (5, 0), range(2, 7, 3)):
        chosen = list(channels)
        np.testing.assert_array_equal(conv_ref(x, w, problem, channels), conv_ref(x, w, problem)[:, chosen])
        np.testing.assert_array_equal(abs_sum_ref(x, w, problem, channels), abs_sum_ref(x, w, problem)[:, chosen])


#: Every 1/4096 of the interval in which the functions bend, and coarsely to where they underflow.
ARGUMENTS = np.concatenate([np.arange(-12, 12, 2.0**-12), np.linspace(-150, 150, 3001), [0.0, -0.0]])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_torchs(name):
    act, odd = activation_of(name), np.array([np.nan, np.inf, -np.inf])
    error = np.abs(epilogue_ref(ARGUMENTS, activation=name) - act(torch.from_numpy(ARGUMENTS)).numpy())
    assert np.all(error <= FLOAT64_ROUNDINGS * np.maximum(1, np.abs(ARGUMENTS)))
    np.testing.assert_array_equal(epilogue_ref(odd, activation=name), act(torch.from_numpy(odd)).numpy())


@pytest.mark.parametrize("position", RESIDUAL_POSITIONS)
@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
def test_epilogue_is_torchs(name, position):
    rng = np.random.default_rng(1)
    sums, bias, residual = rng.standard_normal((2, 5, 1, 7)), rng.standard_normal(5), rng.standard_normal((2, 5, 1, 7))
    y, b, r = (torch.from_numpy(array) for array in (sums, bias, residual))
    act = activation_of(name)
    y = y + b[:, None, None]
    expected = act(y + r) if position == "pre_activation" else act(y) + r
    actual = epilogue_ref(sums, bias, name, residual, position)
    terms = abs(sums) + abs(bias)[:, None, None] + abs(residual)
    assert np.all(np.abs(actual - expected.numpy()) <= FLOAT64_ROUNDINGS * np.maximum(1, terms))


@pytest.mark.parametrize("kind", NORMS)
def test_norms_over_channels_are_torchs(kind):
    rng, eps = np.random.default_rng(2), 0.1
    u, weight, bias = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal(5), rng.standard_normal(5)
    z, w, b = (torch.from_numpy(array) for array in (u, weight, bias))
    expected = F.layer_norm(z, (5,), w, b, eps) if kind == "layer" else F.rms_norm(z, (5,), w, eps) + b
    actual = np.moveaxis(norm_ref(np.moveaxis(u, -1, 1), ChannelNorm(kind, weight, bias, eps)), 1, -1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=FLOAT64_SUMS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_the_largest_and_rounded_up(name):
    z = torch.from_numpy(np.arange(-8, 8, 2.0**-14)).requires_grad_()
    activation_of(name)(z).sum().backward()
    largest = float(z.grad.abs().max())
    assert largest <= ACTIVATIONS[name].steepest <= largest + 1e-4


def test_gelu_tanh_constant():
    """7 roundings of v, each letting through at most sup|z v sigmoid'(v)|."""
    z = np.arange(-8, 8, 2.0**-14)
    v = 2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    sigmoid = 1 / (1 + np.exp(-v))
    largest = float(np.abs(z * v * sigmoid * (1 - sigmoid)).max())
    assert largest == pytest.approx(0.2543, abs=1e-4)
    assert 7 * largest <= ACTIVATIONS["gelu_tanh"].absolute_roundings <= 7 * largest + 1


@pytest.mark.simulator_only
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fp32_evaluation_stays_within_the_bound(name):
    """On exact arguments: everything beyond one rounding is the activation's own error."""
    z = np.resize(ARGUMENTS, (64, -(-ARGUMENTS.size // 64))).astype(np.float32)
    epilogue = Epilogue(activation=name, bias=False, residual="", y_itemsize=4)
    actual = result(evacuate, z.shape, "float32", z, None, None, epilogue, nisa.engine.scalar)
    sums = z.astype(np.float64)
    limit = bounds.epilogue_bound(1, np.zeros_like(sums), sums, "fp32", activation=name)
    assert_within_limit(actual, epilogue_ref(sums, activation=name), limit)


def test_the_page_lists_them():
    assert f"| `activation` | {', '.join(ACTIVATIONS)}," in (ROOT / "docs" / "numpy.md").read_text()
