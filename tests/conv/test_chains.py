"""Whole chains of random shapes and options, against float64: act(conv(act(x * scale + shift)) + bias + residual)."""

import hypothesis
import numpy as np
import pytest
from conv_calls import combined
from draws import draws
from hypothesis import strategies as st

from nkiconv import ConvProblem
from nkiconv.api.conv import run_conv
from nkiconv.api.epilogue import Epilogue
from nkiconv.bounds import epilogue_bound, prologue_bound, returned_stats_bound
from nkiconv.errors import NkiconvError
from nkiconv.planner.request import X_PERMS
from nkiconv.problem import DTYPES
from nkiconv.reference import abs_sum_ref, channel_stats_ref, conv_ref, epilogue_ref, num_terms, prologue_ref
from nkiconv.rules import RESIDUAL_POSITIONS

ACTIVATIONS = (None, "relu", "silu", "gelu", "tanh")


@st.composite
def problems(draw):
    """Images and volumes, plain, transposed, in groups, of one channel each."""

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in axes)

    axes = draw(st.sampled_from(["HW", "DHW"]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    transposed = draw(st.booleans())
    of_group = [draw(st.sampled_from([1, 2, 5, 16, 43, 66, 130])) for _ in range(2)]
    return ConvProblem(
        N=draw(st.integers(1, 3)), C=groups * of_group[0], K=groups * of_group[1], groups=groups,
        **dict(zip(axes, each(1, 8 if len(axes) == 2 else 4), strict=True)),
        **dict(zip("TRS"[-len(axes) :], each(1, 3), strict=True)),
        padding=tuple(zip(each(0, 2), each(0, 2), strict=True)), rhs_dilation=each(1, 2),
        **{"lhs_dilation" if transposed else "stride": each(1, 2), "transposed": transposed},
        layout=draw(st.sampled_from(["NCHW", "NHWC"] if len(axes) == 2 else ["NCDHW", "NDHWC"])),
        dtype=draw(st.sampled_from(["bf16", "fp16", "fp32"])),
    )  # fmt: skip


@st.composite
def chains(draw):
    """(problem, prologue, epilogue, cores, seed): forms of scale and shift, names of the rest."""
    try:
        problem = draw(problems())
    except NkiconvError:  # no output
        hypothesis.reject()
    forms = st.sampled_from([None, "channel", "image"])
    prologue = {"x_scale": draw(forms), "x_shift": draw(forms), "x_activation": draw(st.sampled_from(ACTIVATIONS))}
    epilogue = {"activation": draw(st.sampled_from(ACTIVATIONS)), "bias": draw(st.booleans())}
    epilogue["residual_position"] = draw(st.sampled_from([None, *RESIDUAL_POSITIONS]))
    return problem, prologue, epilogue, draw(st.integers(1, 2)), draw(st.integers(0, 99))


def numbers(rng, problem, form):
    shape = {"channel": (problem.C,), "image": (problem.N, problem.C)}.get(form)
    return None if shape is None else rng.standard_normal(shape).astype(np.float32)


def check(problem, prologue, epilogue, lnc, seed, with_stats):
    """y, and its statistics, are within their bounds of float64."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[problem.dtype]
    x = rng.standard_normal(problem.input_shape).astype(dtype)
    w = (rng.standard_normal(problem.filter_shape) * num_terms(problem) ** -0.5).astype(dtype)
    before = {name: numbers(rng, problem, form) for name, form in prologue.items() if name != "x_activation"}
    before["x_activation"] = prologue["x_activation"]
    after = {"activation": epilogue["activation"]}
    bias = rng.standard_normal(problem.K).astype(np.float32) if epilogue["bias"] else None
    if epilogue["residual_position"] is not None:
        after["residual"] = rng.standard_normal(problem.output_shape).astype(dtype)
        after["residual_position"] = epilogue["residual_position"]
    asked = Epilogue(bias=bias, return_stats="channel" if with_stats else None, **before, **after)
    found = run_conv(x, w, problem, epilogue=asked, lnc=lnc).y
    y, stats = found if with_stats else (found, None)

    perm = X_PERMS[problem.layout]
    x, y = x.transpose(perm), y.transpose(perm).astype(np.float64)
    if "residual" in after:
        after["residual"] = after["residual"].transpose(perm)
    prepared, off = prologue_ref(x, **before), 0.0
    if any(value is not None for value in before.values()):
        off = prologue_bound(x, problem.dtype, **before)
    sums, magnitude = conv_ref(prepared, w, problem), abs_sum_ref(np.abs(prepared) + off, w, problem)
    inexact = abs_sum_ref(np.broadcast_to(off, x.shape), w, problem)
    truth = epilogue_ref(sums, bias, **after)
    of_sums = num_terms(problem), magnitude, sums
    assert np.all(np.abs(y - truth) <= epilogue_bound(*of_sums, problem.dtype, bias, inexact=inexact, **after))
    if with_stats:
        error = epilogue_bound(*of_sums, "fp32", bias, inexact=inexact, **after)
        check_stats(stats, truth, error)


def check_stats(stats, truth, error):
    whole, average, variance = combined(stats)
    right, limits = channel_stats_ref(truth), returned_stats_bound(truth, error, truth[0, 0].size)
    assert np.array_equal(whole, right[..., 0])
    assert np.all(np.abs(average - right[..., 1]) <= limits[0])
    assert np.all(np.abs(variance - right[..., 2]) <= limits[1])


@pytest.mark.parametrize("with_stats", [False, True])
@draws(20, 250)
@hypothesis.given(chains())
def test_any_chain(with_stats, chain):
    check(*chain, with_stats)
