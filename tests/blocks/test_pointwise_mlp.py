"""Two 1x1 convolutions in one kernel: against the float64 reference, and what schedules count."""

import math

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_within_limit

import nkiconv
from nkiconv import simulator
from nkiconv.pixel_bounds import mlp_bound
from nkiconv.pixel_norms import NORMS
from nkiconv.problem import DTYPES
from nkiconv.reference import ChannelNorm, epilogue_ref, norm_ref
from nkiconv.schedules import pointwise_mlp as schedule
from nkiconv.schedules.pointwise_mlp import MlpGeometry

#: (x, hidden channels, output channels): one tile and several of each kind of channels, images that share a bank,
#: images of several banks, an odd one, groups of unlike banks, one pixel.
SHAPES = {
    "images share a bank": ((5, 20, 5, 6), 40, 24), "several tiles": ((1, 130, 30, 20), 300, 140),
    "banks of an image": ((2, 16, 24, 55), 64, 16), "unlike banks": ((1, 8, 1, 1030), 24, 8),
    "rows": ((3, 9, 70), 33, 130), "volumes": ((2, 7, 3, 4, 5), 129, 5), "a pixel": ((1, 3, 1, 1), 2, 1),
}  # fmt: skip
#: bias1, bias2, residual.
ADDED = {"all": (True, True, True), "alone": (False, False, False), "biases": (True, True, False),
         "a residual": (False, False, True)}  # fmt: skip


def drawn(shape, M, K, dtype="fp32", added=ADDED["all"], seed=0):
    """x, w1, w2, and what is added."""
    rng, (N, C, *pixels) = np.random.default_rng(seed), shape
    x, residual = (rng.standard_normal((N, count, *pixels)).astype(DTYPES[dtype]) for count in (C, K))
    w1, w2 = ((rng.standard_normal(s) / math.sqrt(s[1])).astype(DTYPES[dtype]) for s in ((M, C), (K, M)))
    more = {"bias1": rng.standard_normal(M).astype(np.float32), "bias2": rng.standard_normal(K).astype(np.float32)}
    return (x, w1, w2), {
        name: one for (name, one), asked in zip((more | {"residual": residual}).items(), added, strict=True) if asked
    }


def truth(arrays, more, dtype, activation="gelu"):
    """(y in float64, how far it may be from that)."""
    x, w1, w2 = (one.astype(np.float64) for one in arrays)
    biases, residual, norm = (more.get("bias1"), more.get("bias2")), more.get("residual"), None
    if "x_norm" in more:
        numbers = {name.removeprefix("x_norm_"): one for name, one in more.items() if name.startswith("x_norm_")}
        norm = ChannelNorm(more["x_norm"], **numbers)
    read = x if norm is None else norm_ref(x, norm)
    hidden = epilogue_ref(np.einsum("mc,nc...->nm...", w1, read), biases[0], activation)
    y = epilogue_ref(np.einsum("km,nm...->nk...", w2, hidden), biases[1], None, residual)
    return y, mlp_bound(x, arrays[1:], dtype, biases, activation, residual, norm)


def check(arrays, more, dtype="fp32", activation="gelu", lnc=2):
    """y within its bound of the truth; returns y."""
    y = nkiconv.pointwise_mlp(*arrays, **more, activation=activation, lnc=lnc)
    assert_within_limit(y, *truth(arrays, more, dtype, activation))
    assert y.dtype == arrays[0].dtype
    return y


@pytest.mark.cover(6)
@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu_tanh"])
@pytest.mark.parametrize("added", ADDED)
def test_what_may_be_left_out(added, activation):
    arrays, more = drawn(*SHAPES["images share a bank"], "bf16", ADDED[added])
    check(arrays, more, "bf16", activation)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_residual_of_fp32_is_rounded_with_the_sum_alone(dtype):
    (x, w1, w2), more = drawn(*SHAPES["several tiles"], dtype)
    more |= {"bias2": -np.ones_like(more["bias2"]), "residual": np.full(more["residual"].shape, 1 + 2**-12, np.float32)}
    y = nkiconv.pointwise_mlp(x, w1, 0 * w2, **more)
    assert (y.astype(np.float32) == 2.0**-12).all()


def normed(arrays, kind, weight=True, bias=True, seed=1):
    """What asks for a norm of x, if any."""
    if kind is None:
        return {}
    rng, C = np.random.default_rng(seed), arrays[0].shape[1]
    numbers = {"x_norm_weight": weight, "x_norm_bias": bias}
    return {"x_norm": kind} | {
        name: rng.standard_normal(C).astype(np.float32) for name, asked in numbers.items() if asked
    }


#: Channels of a tile with room for eps, of a whole one, of several, of a whole number of them.
OF_NORMS = SHAPES | {"a whole tile": ((2, 128, 9, 7), 40, 24), "whole tiles": ((1, 384, 5, 5), 24, 130)}


@pytest.mark.parametrize("kind", [None, *NORMS])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("why", OF_NORMS)
@pytest.mark.cover(22)
def test_it_agrees_with_float64(why, dtype, kind):
    arrays, more = drawn(*OF_NORMS[why], dtype)
    more |= normed(arrays, kind)
    assert check(arrays, more, dtype).tobytes() == check(arrays, more, dtype, lnc=1).tobytes()


@pytest.mark.parametrize("kind", [None, "layer"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("K", [70, 260, 384])
def test_cores_share_the_hidden_channels_of_one_bank(K, dtype, kind, monkeypatch):
    """Of one K tile, of three, and of three whole ones."""
    monkeypatch.setattr(schedule, "SHARED_BYTES", 0)
    arrays, more = drawn((2, 70, 5, 6), 300, K, dtype)
    more |= normed(arrays, kind)
    assert len(MlpGeometry(2, 70, 300, K, 30, 2, 0).halves) == 2
    assert check(arrays, more, dtype).tobytes() == check(arrays, more, dtype, lnc=1).tobytes()


@pytest.mark.cover(3)
@pytest.mark.parametrize("C", [96, 384])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_mean_of_a_thousand_standard_deviations(dtype, C):
    """A variance that is a difference of squares would be lost, and so would x that is rounded with its mean."""
    arrays, _ = drawn((1, C, 6, 5), 40, 24, dtype, ADDED["alone"])
    x = (1000 + arrays[0].astype(np.float32)).astype(DTYPES[dtype])
    pixels = x.astype(np.float64)
    assert (np.abs(pixels.mean(1)) > 300 * pixels.std(1)).all()
    call = (x, *arrays[1:]), normed(arrays, "layer"), dtype
    y = check(*call)
    assert truth(*call)[1].max() < np.abs(y.astype(np.float64)).max()


@pytest.mark.parametrize("kind", NORMS)
def test_pixels_of_zeros_and_of_one_value(kind):
    """Their variance is 0, or eps all that is added to."""
    (x, *filters), more = drawn(*SHAPES["images share a bank"], "bf16")
    x[0], x[1] = 0, 3
    check((x, *filters), more | normed((x,), kind), "bf16")


@draws(60, 200)
@given(st.data())
def test_any_call(data):
    N, C, M, K = (data.draw(st.integers(1, most)) for most in (4, 140, 140, 140))
    pixels = data.draw(st.sampled_from([(1,), (7, 3), (130, 5), (2, 3, 4)]))
    dtype = data.draw(st.sampled_from(["fp32", "bf16", "fp16"]))
    arrays, more = drawn((N, C, *pixels), M, K, dtype, data.draw(st.sampled_from([*ADDED.values()])))
    kind = data.draw(st.sampled_from([None, *NORMS]))
    more |= normed(arrays, kind, data.draw(st.booleans()), data.draw(st.booleans()))
    check(arrays, more, dtype, data.draw(st.sampled_from([None, "gelu", "silu"])), data.draw(st.integers(1, 2)))


@pytest.mark.parametrize("kind", [None, *NORMS])
def test_nan_and_inf_stay_in_their_pixel(kind):
    (x, *filters), more = drawn(*SHAPES["images share a bank"])
    more |= normed((x,), kind)
    x[1, 3, 2, 0], x[0, 2, 4, 5] = np.nan, np.inf
    lost = ~np.isfinite(nkiconv.pointwise_mlp(x, *filters, **more))
    assert {tuple(at) for at in np.argwhere(lost)[:, [0, 2, 3]]} == {(1, 2, 0), (0, 4, 5)}
    assert lost[1, :, 2, 0].all()


def test_no_images():
    (x, *filters), more = drawn(*SHAPES["images share a bank"])
    y = nkiconv.pointwise_mlp(x[:0], *filters, bias1=more["bias1"])
    assert (y.shape, y.dtype) == ((0, 24, 5, 6), np.float32)


@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kind", [None, *NORMS])
@pytest.mark.parametrize("why", OF_NORMS)
@pytest.mark.cover(4)
def test_it_needs_no_more_than_a_schedule_says(why, kind, dtype, lnc):
    """dtype: of the residual."""
    (x, w1, w2), more = drawn(*OF_NORMS[why], "bf16")
    more |= normed((x,), kind)
    more["residual"] = more["residual"].astype(DTYPES[dtype])
    launched = nkiconv.pointwise_mlp_fused[lnc]
    found = simulator.execute(launched, (x, w1, w2), more, trace_only=True)
    N, C, *pixels = x.shape
    geometry = MlpGeometry(N, C, w1.shape[0], w2.shape[0], math.prod(pixels), 2, more["residual"].itemsize, kind)
    assert found.sbuf_peak_bytes <= geometry.bytes(geometry.together)
