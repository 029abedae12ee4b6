"""depthwise_conv1d with epilogue, states, algorithm and settings: against float64, and every refusal by name."""

import ml_dtypes
import numpy as np
import pytest

import nkiconv
from nkiconv import DtypeError, GeometryError, NkiconvError, UnsupportedError, depthwise_conv1d
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.bounds import epilogue_bound
from nkiconv.reference import ACTIVATIONS, abs_sum_ref, conv_ref, epilogue_ref

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 40)).astype(np.float32)
W = RNG.standard_normal((5, 4)).astype(np.float32)
BIAS = RNG.standard_normal(5).astype(np.float32)
RESIDUAL = RNG.standard_normal((2, 5, 40)).astype(np.float32)
STATE = RNG.standard_normal((2, 5, 3)).astype(np.float32)


@pytest.mark.cover(12)
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_epilogues(activation, position):
    y = depthwise_conv1d(
        X, W, padding="causal", bias=BIAS, activation=activation, residual=RESIDUAL, residual_position=position
    )
    problem = depthwise_problem(X, W, padding="causal")
    sums, abs_sum = (ref(X[:, :, None], W[:, None, None], problem)[:, :, 0] for ref in (conv_ref, abs_sum_ref))
    expected = epilogue_ref(sums, BIAS, activation, RESIDUAL, position)
    limit = epilogue_bound(4, abs_sum, sums, "fp32", BIAS, activation, RESIDUAL, position)
    assert (np.abs(y - expected) <= limit).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", np.float16, ml_dtypes.bfloat16])
def test_out_dtype(dtype):
    y = depthwise_conv1d(X, W, out_dtype=dtype)
    wanted = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}.get(dtype, dtype)
    assert y.dtype == np.dtype(wanted)
    np.testing.assert_array_equal(y, depthwise_conv1d(X, W).astype(wanted))


def test_pieces_with_states_are_the_whole():
    whole = depthwise_conv1d(X, W, padding="causal", initial_state=STATE)
    state, pieces = STATE, []
    for part in (X[:, :, :7], X[:, :, 7:9], X[:, :, 9:]):
        y, state = depthwise_conv1d(part, W, padding="causal", initial_state=state, return_final_state=True)
        pieces.append(y)
    np.testing.assert_allclose(np.concatenate(pieces, axis=2), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state, X[:, :, -3:])


def test_a_final_state_without_an_initial_one():
    y, state = depthwise_conv1d(X[:, :, :2], W, padding="causal", return_final_state=True)
    assert y.shape == (2, 5, 2)
    np.testing.assert_array_equal(state, np.concatenate([np.zeros((2, 5, 1), np.float32), X[:, :, :2]], axis=2))


@pytest.mark.parametrize("algorithm", ["mixed", "vector", "banded"])
def test_algorithms_agree(algorithm):
    exact = [np.round(2 * array) for array in (X, W)]
    np.testing.assert_array_equal(
        depthwise_conv1d(*exact, padding=2, algorithm=algorithm), depthwise_conv1d(*exact, padding=2)
    )


def test_settings_reach_the_kernel():
    x, w = np.round(2 * X), np.round(2 * W)
    y = depthwise_conv1d(x, w, algorithm="banded", config=(("block", 8), ("shard", "batch")))
    np.testing.assert_array_equal(y, depthwise_conv1d(x, w))


# why, class, arguments, pattern
REFUSED = [
    ("state shape", GeometryError, {"initial_state": STATE[:, :, :2], "padding": "causal"},
     r"initial_state.shape=\(2, 5, 2\): must be \[N, C, window - 1\] = \(2, 5, 3\)"),
    ("state dtype", DtypeError, {"initial_state": STATE.astype(np.float16), "padding": "causal"},
     r"initial_state.dtype=float16: must be x's, float32"),
    ("stride", GeometryError, {"return_final_state": True, "stride": 2}, r"a state needs 1 and 1"),
    ("setting", UnsupportedError, {"algorithm": "banded", "config": (("size", 2),)}, r"banded has no setting size"),
    ("not for it", UnsupportedError, {"algorithm": "banded", "dilation": 2}, r"rhs_dilation=2"),
    ("strict", UnsupportedError, {"algorithm": "banded", "strict_nonfinite": True}, r"strict_nonfinite=True"),
    ("several", UnsupportedError, {"activation": "nonesuch", "bias": BIAS[None], "lnc": 3}, r"3 reasons"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "kwargs", "pattern"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_before_any_work(monkeypatch, kind, kwargs, pattern):
    monkeypatch.setattr("nkiconv.api.depthwise_conv1d.run_depthwise_conv1d", None)
    with pytest.raises(NkiconvError, match=pattern) as caught:
        depthwise_conv1d(X, W, **kwargs)
    if "several" not in pattern and "reasons" not in pattern:
        assert type(caught.value) is kind


@pytest.mark.simulator_only
def test_plans_fit_the_call():
    problem = depthwise_problem(X, W, padding="causal")
    found = nkiconv.plan(problem, bias=True, activation="silu", use_cache=False)
    y = depthwise_conv1d(
        X, W, padding="causal", bias=BIAS, activation="silu", algorithm=found.algorithm, config=found.config
    )
    np.testing.assert_allclose(y, depthwise_conv1d(X, W, padding="causal", bias=BIAS, activation="silu"), atol=1e-5)
