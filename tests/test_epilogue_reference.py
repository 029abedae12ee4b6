"""The float64 epilogue against torch and by hand, and the bound's constants; every activation has its function."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from isa_tiles import result
from tolerances import FLOAT64_ROUNDINGS, assert_within_limit
from torch_activation import torchs

from nkiconv import bounds
from nkiconv._nki import nisa
from nkiconv.activations import ACTIVATIONS
from nkiconv.kernels import _epilogue
from nkiconv.kernels._epilogue import evacuate
from nkiconv.reference import epilogue_ref
from nkiconv.rules import RESIDUAL_POSITIONS
from nkiconv.schedules.options import Epilogue

#: Every 1/4096 of the interval in which the functions bend, and coarsely to where they underflow.
ARGUMENTS = np.concatenate([np.arange(-12, 12, 2.0**-12), np.linspace(-150, 150, 3001), [0.0, -0.0]])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_torchs(name):
    expected = torchs(name)(torch.from_numpy(ARGUMENTS)).numpy()
    error = np.abs(epilogue_ref(ARGUMENTS, activation=name) - expected)
    assert np.all(error <= FLOAT64_ROUNDINGS * np.maximum(1, np.abs(ARGUMENTS)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_what_is_not_finite_are_torchs(name):
    values = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(epilogue_ref(values, activation=name), torchs(name)(torch.from_numpy(values)).numpy())


@pytest.mark.parametrize("position", RESIDUAL_POSITIONS)
@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
def test_epilogue_is_torchs(name, position):
    rng = np.random.default_rng(1)
    sums, bias, residual = rng.standard_normal((2, 5, 1, 7)), rng.standard_normal(5), rng.standard_normal((2, 5, 1, 7))
    y, b, r = (torch.from_numpy(array) for array in (sums, bias, residual))
    act = torchs(name)
    y = y + b[:, None, None]
    expected = act(y + r) if position == "pre_activation" else act(y) + r
    actual = epilogue_ref(sums, bias, name, residual, position)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=8 * FLOAT64_ROUNDINGS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_the_largest_and_rounded_up(name):
    z = torch.from_numpy(np.arange(-8, 8, 2.0**-14)).requires_grad_()
    torchs(name)(z).sum().backward()
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


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_kernels_have_every_activation(name):
    assert name in _epilogue.FUNCTIONS, "nkiconv/kernels/_epilogue.py: what issues it"


def test_the_page_lists_them():
    assert f"| `activation` | {', '.join(ACTIVATIONS)}," in (ROOT / "docs" / "numpy.md").read_text()
