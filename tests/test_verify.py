"""Verification notices what is wrong, accepts what is right, and covers the channels it says it covers."""

import dataclasses
import math

import numpy as np
import pytest

from nkiconv import ConvProblem, cases
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.errors import UnsupportedError
from nkiconv.problem import DTYPES
from nkiconv.reference import conv_ref
from nkiconv.tools.verify import case_arrays, compare, compare_channels, comparison, conv, verify_case
from nkiconv.tools.verify import depthwise_conv1d as verify

pytestmark = pytest.mark.simulator_only


def arrays(N=2, C=5, W=40, S=4, dtype="fp32", **call):
    """Random x, w and their problem."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((N, C, W)).astype(DTYPES[dtype])
    w = rng.standard_normal((C, S)).astype(DTYPES[dtype])
    return x, w, depthwise_problem(x, w, **call)


def truth(x, w, problem):
    """The reference's result in the dtype of x, [N, C, Q]."""
    return conv_ref(x[:, :, None], w[:, None, None], problem)[:, :, 0].astype(x.dtype)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_truth_passes(dtype):
    x, w, problem = arrays(dtype=dtype)
    found = compare(truth(x, w, problem), x, w, problem)
    assert (found.num_wrong, found.num_elems) == (0, 2 * 5 * 37)
    assert 0 < found.worst_ratio <= 1
    assert found.max_error > 0


def test_one_wrong_element_is_found(monkeypatch):
    monkeypatch.setattr(comparison, "SLAB_ELEMS", 1)  # channel by channel
    x, w, problem = arrays()
    y = truth(x, w, problem)
    y[1, 3, 20] += 0.25
    found = compare(y, x, w, problem)
    assert (found.num_wrong, found.worst) == (1, (1, 3, 20))
    assert abs(found.max_error - 0.25) <= 2 * found.bound  # y was rounded without the 0.25 and again with it
    assert found.worst_ratio == found.max_error / found.bound


# why, value of x at [0, 2, 10], change to y, number of wrong elements
NONFINITE = [
    ("NaN where it belongs", np.nan, None, 0),
    ("NaN that should not be there", 0.0, np.nan, 1),
    ("Inf that should not be there", 0.0, np.inf, 1),
    ("a number where NaN belongs", np.nan, 0.0, 1),
]


@pytest.mark.parametrize(
    ("value", "change", "wrong"), [row[1:] for row in NONFINITE], ids=[row[0] for row in NONFINITE]
)
def test_nonfinite_numbers(value, change, wrong):
    x, w, problem = arrays()
    x[0, 2, 10] = value
    y = truth(x, w, problem)
    if change is not None:
        y[0, 2, 9] = change
    found = compare(y, x, w, problem)
    assert found.num_wrong == wrong
    assert math.isinf(found.max_error) == bool(wrong)


def test_what_rounds_to_infinity_may_be_infinite():
    x, w, problem = arrays(dtype="fp16")
    x[0, 0, :4] = w[0] = 1000.0
    with np.errstate(over="ignore"):
        y = truth(x, w, problem)
    assert np.isinf(y[0, 0, 0])
    assert compare(y, x, w, problem).num_wrong == 0
    y[0, 0, 0] = -np.inf
    assert compare(y, x, w, problem).num_wrong == 1


@pytest.mark.parametrize("call", [{}, {"padding": (9, -1), "lhs_dilation": 2}], ids=str)
def test_blocks_cover_all_channels(monkeypatch, call):
    x, w, problem = arrays(C=601, W=75, S=70, **call)
    [whole], _ = verify.verify_depthwise_conv1d("whole", x, w, problem)
    monkeypatch.setattr(verify, "BLOCK_INSTRUCTIONS", whole.trace.num_instructions // 2)
    [parts], _ = verify.verify_depthwise_conv1d("parts", x, w, problem)
    assert (whole.num_blocks, whole.ok) == (1, True)
    assert (parts.num_blocks, parts.ok) == (2, True)
    assert parts.trace.instructions == whole.trace.instructions
    assert parts.comparison.num_elems == whole.comparison.num_elems == x.shape[0] * x.shape[1] * problem.Q


# channels asked for, C, instructions above which to sample, channels expected
SAMPLES = [
    ("auto", 40, 1, [round(c) for c in np.linspace(0, 39, 16)]),
    (3, 40, 10**6, [0, 20, 39]),
    (99, 40, 10**6, range(40)),
]


@pytest.mark.parametrize(("channels", "C", "limit", "expected"), SAMPLES)
def test_samples(monkeypatch, channels, C, limit, expected):
    monkeypatch.setattr(verify, "SAMPLE_ABOVE_INSTRUCTIONS", limit)
    seen = []
    run_block = verify._run_block

    def spy(x, w, problem, block, *rest):
        seen.extend(block)
        return run_block(x, w, problem, block, *rest)

    monkeypatch.setattr(verify, "_run_block", spy)
    [report], _ = verify.verify_depthwise_conv1d("sampled", *arrays(C=C), channels=channels)
    assert seen == list(expected)
    assert report.channels_checked == len(seen)
    assert report.ok


def test_cases_that_no_kernel_runs_are_refused():
    case = cases.get("kda_bf16")
    case = dataclasses.replace(case, problem=case.problem.replace(dtype="fp8_e4m3"))
    with pytest.raises(UnsupportedError, match=r"case='kda_bf16': dtype='fp8_e4m3'"):
        case_arrays(case, seed=0)


# problem, channels that are checked, output channels that must be among them
CONV2D = [
    (ConvProblem(N=2, C=6, H=9, W=8, K=10, R=3, S=3, dtype="fp32"), "all", range(10)),
    (ConvProblem(N=2, C=6, H=9, W=8, K=10, R=3, S=3, dtype="fp32", layout="NHWC"), 3, (0, 9)),
    (ConvProblem(N=1, C=12, H=9, W=8, K=20, R=3, S=2, groups=4, dtype="fp32"), 2, (0, 4, 15, 19)),
    (ConvProblem(N=1, C=5, H=9, W=8, K=5, R=3, S=2, groups=5, dtype="fp32"), 3, (0, 2, 4)),
]


@pytest.mark.cover(0, keep=["NHWC", "groups"])
@pytest.mark.parametrize(("problem", "channels", "among"), CONV2D, ids=["all", "NHWC", "groups", "depthwise"])
def test_conv2d_is_held_against_the_reference(monkeypatch, problem, channels, among):
    rng = np.random.default_rng(3)
    x = rng.standard_normal(problem.input_shape).astype(np.float32)
    w = rng.standard_normal(problem.filter_shape).astype(np.float32)
    [one, two], y = conv.verify_conv("it", x, w, problem, degrees=(1, 2), channels=channels)
    assert (one.verdict, two.verdict, two.identical) == ("pass", "pass", True)
    assert y.shape == problem.output_shape
    checked = range(problem.K) if channels == "all" else conv.sampled_channels(problem, channels)
    assert set(among) <= set(checked)
    assert one.channels_checked == len(checked)
    assert one.comparison.num_elems == problem.N * problem.P * problem.Q * len(checked)
    launch, place = conv.run_conv, (problem.N - 1, checked[-1], 2, 1)

    def wrong(*args, **options):
        done = launch(*args, **options)
        axes = (0, 1, 2, 3) if problem.layout == "NCHW" else (0, 3, 1, 2)
        done.y.transpose(axes)[place] += 1
        return done

    monkeypatch.setattr(conv, "run_conv", wrong)
    [found], _ = conv.verify_conv("it", x, w, problem, channels=channels)
    assert (found.verdict, found.comparison.num_wrong, found.comparison.worst) == ("fail", 1, place)
    assert found.comparison.place == "n={} k={} p={} q={}".format(*place)


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp16x3"])
def test_the_bound_is_of_the_precision(precision):
    """Results within it pass; those of the next coarser way do not."""
    rng = np.random.default_rng(4)
    problem = ConvProblem(N=1, C=2, H=9, W=30, K=40, R=1, S=1, dtype="fp32")
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (problem.input_shape, problem.filter_shape))
    [found], y = conv.verify_conv("it", x, w, problem, precision=precision)
    assert (found.verdict, found.precision, found.as_dict()["precision"]) == ("pass", precision, precision)
    finer = {"bf16": "tf32", "tf32": "fp16x3", "fp16x3": None}[precision]
    everything = range(problem.K)
    assert compare_channels(y, x, w, problem, everything, precision=precision).num_wrong == 0
    assert compare_channels(y, x, w, problem, everything, precision=finer).num_wrong > 0


def test_conv2d_that_differs_between_degrees(monkeypatch):
    problem = CONV2D[0][0]
    x, w = np.ones(problem.input_shape, np.float32), np.ones(problem.filter_shape, np.float32)
    launch = conv.run_conv

    def flipped(*args, lnc, **options):
        done = launch(*args, lnc=lnc, **options)
        if lnc == 2:
            done.y[0, 1, 2, 3] = np.nextafter(done.y[0, 1, 2, 3], np.float32(np.inf))
        return done

    monkeypatch.setattr(conv, "run_conv", flipped)
    reports, _ = conv.verify_conv("it", x, w, problem, degrees=(1, 2))
    assert [one.verdict for one in reports] == ["pass", "lnc differs"]


def test_big_conv2d_is_checked_on_a_sample(monkeypatch):
    monkeypatch.setattr(conv, "SAMPLE_ABOVE_FLOPS", 10)
    problem = ConvProblem(N=1, C=2, H=4, W=4, K=40, R=1, S=1)
    case = dataclasses.replace(cases.get("c1k1"), problem=problem)
    [found] = verify_case(case, *case_arrays(case, 0))
    assert (found.verdict, found.channels_checked) == ("pass", 16)


def test_a_transposed_case_is_checked(monkeypatch):
    """On both degrees; a filter whose taps run the other way is noticed."""
    case = cases.get("odd_up_fp32")
    x, w = case_arrays(case, seed=0)
    assert (x.shape, w.shape) == (case.problem.input_shape, case.problem.filter_shape)
    reports = verify_case(case, x, w, degrees=(1, 2))
    assert [(one.verdict, one.operation) for one in reports] == [("pass", "conv_transpose2d")] * 2
    launch = conv.run_conv
    monkeypatch.setattr(conv, "run_conv", lambda x, w, *args, **more: launch(x, w[:, :, ::-1].copy(), *args, **more))
    (wrong,) = verify_case(case, x, w)
    assert wrong.verdict == "fail"
