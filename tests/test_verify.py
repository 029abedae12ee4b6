"""Verification notices what is wrong, accepts what is right, and covers the channels it says it covers."""

import dataclasses
import math

import numpy as np
import pytest
from tolerances import integer_inputs

from nkiconv import ConvProblem, cases
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.api.epilogue import Epilogue
from nkiconv.planner.estimate import chosen
from nkiconv.planner.request import Request
from nkiconv.problem import DTYPES
from nkiconv.reference import conv_ref
from nkiconv.rules import FILTER_LAYOUTS
from nkiconv.simulator import simulate
from nkiconv.tools.cli.show import report_grid
from nkiconv.tools.verify import chunks, compare, compare_channels, comparison, conv, launched, verify_chunks
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


def test_one_wrong_element_is_found(monkeypatch):
    monkeypatch.setattr(comparison, "SLAB_ELEMS", 1)  # channel by channel
    x, w, problem = arrays()
    y = truth(x, w, problem)
    y[1, 3, 20] += 0.25
    found = compare(y, x, w, problem)
    assert (found.num_wrong, found.worst) == (1, (1, 3, 20))
    assert abs(found.max_error - 0.25) <= 2 * found.bound  # y was rounded without the 0.25 and again with it
    assert found.worst_ratio == found.max_error / found.bound


#: Value of x at [0, 2, 10], change to y, number of wrong elements.
NONFINITE = {
    "NaN where it belongs": (np.nan, None, 0), "NaN that should not be there": (0.0, np.nan, 1),
    "Inf that should not be there": (0.0, np.inf, 1), "a number where NaN belongs": (np.nan, 0.0, 1),
}  # fmt: skip


@pytest.mark.parametrize(("value", "change", "wrong"), NONFINITE.values(), ids=NONFINITE)
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


def test_blocks_cover_all_channels(monkeypatch):
    x, w, problem = arrays(C=601, W=75, S=70, padding=(9, -1), lhs_dilation=2)
    [whole], _ = verify.verify_depthwise_conv1d("whole", x, w, problem)
    monkeypatch.setattr(verify, "BLOCK_INSTRUCTIONS", whole.trace.num_instructions // 2)
    [parts], _ = verify.verify_depthwise_conv1d("parts", x, w, problem)
    assert (whole.num_blocks, whole.ok) == (1, True)
    assert (parts.num_blocks, parts.ok) == (2, True)
    assert parts.trace.instructions == whole.trace.instructions
    assert parts.comparison.num_elems == whole.comparison.num_elems == x.shape[0] * x.shape[1] * problem.Q


@pytest.mark.parametrize(("channels", "limit", "checked"), [("auto", 1, 16), (3, 10**6, 3), (99, 10**6, 40)])
def test_samples(monkeypatch, channels, limit, checked):
    """Of 40 channels."""
    monkeypatch.setattr(verify, "SAMPLE_ABOVE_INSTRUCTIONS", limit)
    [report], _ = verify.verify_depthwise_conv1d("sampled", *arrays(C=40), channels=channels)
    assert (report.channels_checked, report.ok) == (checked, True)


VOLUME = ConvProblem(N=1, C=4, D=9, H=5, W=7, K=4, T=3, R=3, S=2, groups=2, dtype="fp32")
UP = ConvProblem.transpose(
    N=1, C=4, D=3, H=5, W=7, K=6, groups=2, taps=(3, 2, 3), stride=(2, 2, 1), padding=((1, 1), (0, 0), (1, 0)),
    output_padding=(0, 1, 0), dilation=(1, 1, 1), dtype="fp32",
)  # fmt: skip
# problem, channels that are checked, output channels that must be among them
HELD = {
    "all": (ConvProblem(N=2, C=6, H=9, W=8, K=10, R=3, S=3, dtype="fp32"), "all", range(10)),
    "NHWC": (ConvProblem(N=2, C=6, H=9, W=8, K=10, R=3, S=3, dtype="fp32", layout="NHWC"), 3, (0, 9)),
    "groups": (ConvProblem(N=1, C=12, H=9, W=8, K=20, R=3, S=2, groups=4, dtype="fp32"), 2, (0, 4, 15, 19)),
    "depthwise": (ConvProblem(N=1, C=5, H=9, W=8, K=5, R=3, S=2, groups=5, dtype="fp32"), 3, (0, 2, 4)),
    "volume": (VOLUME, "all", range(4)),
    "transposed": (UP, "all", range(6)),
}


def integers_of(problem):
    rng = np.random.default_rng(5)
    return integer_inputs(rng, problem.input_shape, "fp32"), integer_inputs(rng, problem.filter_shape, "fp32")


def spoilt(module, monkeypatch, place, number=0, output=0):
    """Add 1 at a place of y, or of another output, of the launch of this number."""
    launch, count = module.run_conv, iter(range(9))

    def run(*args, **options):
        done = launch(*args, **options)
        if next(count) == number:
            (done.y[output] if isinstance(done.y, tuple) else done.y)[place] += 1
        return done

    monkeypatch.setattr(module, "run_conv", run)


@pytest.mark.cover(0, keep=["NHWC", "groups", "volume", "transposed"])
@pytest.mark.parametrize(("problem", "channels", "among"), HELD.values(), ids=HELD)
def test_images_and_volumes_are_held_against_the_reference(monkeypatch, problem, channels, among):
    x, w = integers_of(problem)
    [one, two], y = conv.verify_conv("it", x, w, problem, degrees=(1, 2), channels=channels)
    assert (one.verdict, two.verdict, two.identical) == ("pass", "pass", True)
    axes = 3 if problem.is_volume else 2
    assert (one.operation, y.shape) == (f"conv{'_transpose' * problem.transposed}{axes}d", problem.output_shape)
    checked = range(problem.K) if channels == "all" else conv.sampled_channels(problem, channels)
    assert set(among) <= set(checked)
    assert (one.channels_checked, one.comparison.num_elems) == (len(checked), y.size // problem.K * len(checked))
    n, k, *rest = place = (problem.N - 1, checked[-1], *(2, 1, 4)[:axes])
    spoilt(conv, monkeypatch, place if problem.channels_first else (n, *rest, k))
    [found], _ = conv.verify_conv("it", x, w, problem, channels=channels)
    assert (found.verdict, found.comparison.num_wrong, found.comparison.worst) == ("fail", 1, place)
    letters = ("n", "k", *"zpq"[-axes:])
    assert found.comparison.place == " ".join(f"{letter}={at}" for letter, at in zip(letters, place, strict=True))


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp16x3"])
def test_the_bound_is_of_the_precision(precision):
    """Results within it pass; those of the next coarser way do not."""
    rng = np.random.default_rng(4)
    problem = ConvProblem(N=1, C=2, H=9, W=30, K=40, R=1, S=1, dtype="fp32")
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (problem.input_shape, problem.filter_shape))
    [found], y = conv.verify_conv("it", x, w, problem, Epilogue(precision=precision))
    assert (found.verdict, found.asked.precision, found.as_dict()["precision"]) == ("pass", precision, precision)
    finer = {"bf16": "tf32", "tf32": "fp16x3", "fp16x3": None}[precision]
    everything = range(problem.K)
    assert compare_channels(y, x, w, problem, everything, Epilogue(precision=precision)).num_wrong == 0
    assert compare_channels(y, x, w, problem, everything, Epilogue(precision=finer)).num_wrong > 0


def test_conv2d_that_differs_between_degrees(monkeypatch):
    problem = HELD["all"][0]
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


def launch(name, direction):
    case = cases.get(name).toward(direction)
    found = launched.case_launch(case, 2, chosen(Request(problem=case.problem, lnc=2)))
    return found, simulate(found.kernel)(*found.args, **found.kwargs)


@pytest.mark.cover(4)
@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", ["short", "nkl_st2_p0_c16_w512_s3_bf16", "prime", "small_fp32", "odd_up_fp32"])
def test_a_wrong_element_of_a_case_or_gradient_is_found(name, direction):
    found, y = launch(name, direction)
    right, channels = found.check(y)
    assert (right.num_wrong, channels, right.num_elems) == (0, y.shape[0 if direction == "wgrad" else 1], y.size)
    at = tuple(size - 1 for size in y.shape)
    y[at] += 1
    seen = found.check(y)[0]
    assert (seen.num_wrong, seen.worst) == (1, at)
    assert launched.wrong(seen).startswith(
        f"wrong: 1 of {y.size:,} outputs are beyond their bound, worst at {seen.place}"
    )


def test_filters_of_a_sample_of_groups(monkeypatch):
    monkeypatch.setattr(launched, "SAMPLE_ABOVE_FLOPS", 1)
    monkeypatch.setattr(launched, "SAMPLE_CHANNELS", 4)
    found, dw = launch("short", "wgrad")  # 130 channels, of which 0, 43, 86 and 129 are checked
    for channel, wrong in ((86, 1), (87, 0)):
        spoilt = dw.copy()
        spoilt[channel, 0, 0, 1] += 1
        seen, checked = found.check(spoilt)
        assert (seen.num_wrong, checked) == (wrong, 4)
        assert not wrong or seen.place == f"k={channel} c=0 r=0 s=1"


def test_filters_of_another_dtype_are_wrong():
    found, dw = launch("c1k1", "wgrad")
    with pytest.raises(launched.WrongResult, match="the result is float16"):
        found.check(dw.astype(np.float16))


# what is asked for beside the sums
EPILOGUES = [
    {"bias": True},
    {"activation": "silu"},
    {"residual": True, "bias": True, "activation": "gelu"},
    {"bias": True, "activation": "relu", "residual": True, "residual_position": "post_activation"},
]


def normals(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.cover(3)
@pytest.mark.parametrize("row", EPILOGUES, ids=lambda row: "-".join(row))
@pytest.mark.parametrize("which", ["rows", "NCHW KCRS", "NHWC RSCK"])
def test_a_launch_without_what_was_asked_for_fails(monkeypatch, row, which):
    """On one core and two; blocks of rows are of few instructions."""
    monkeypatch.setattr(verify, "BLOCK_INSTRUCTIONS", 1)
    if which == "rows":
        module, name, check = verify, "run_depthwise_conv1d", verify.verify_depthwise_conv1d
        x, w = normals(2, 9, 40), normals(9, 4)
        problem, y_shape, how = depthwise_problem(x, w), (2, 9, 37), {"channels": 3}
    else:
        module, name, check = conv, "run_conv", conv.verify_conv
        layout, filter_layout = which.split()
        problem = ConvProblem(N=2, C=3, H=7, W=6, K=5, R=2, S=3, dtype="fp32", layout=layout)
        x, y_shape, how = normals(*problem.input_shape), problem.output_shape, {"filter_layout": filter_layout}
        w = np.ascontiguousarray(normals(5, 3, 2, 3).transpose(np.argsort(FILTER_LAYOUTS[filter_layout])))
    arrays = {"bias": normals(problem.K), "residual": normals(*y_shape)}
    asked = Epilogue(**{key: arrays[key] if value is True else value for key, value in row.items()})
    reports, _ = check("it", x, w, problem, asked, degrees=(1, 2), **how)
    assert [one.verdict for one in reports] == ["pass", "pass"]
    launch = getattr(module, name)

    def without(*args, epilogue, **options):
        return launch(*args, epilogue=dataclasses.replace(epilogue, **{next(iter(row)): None}), **options)

    monkeypatch.setattr(module, name, without)
    assert check("it", x, w, problem, asked, **how)[0][0].verdict == "fail"


@pytest.mark.parametrize("what", ["sums", "cache"])
def test_a_chunk_that_differs_is_no_pass(monkeypatch, what):
    x, w = integers_of(VOLUME)
    _, whole = conv.verify_conv("it", x, w, VOLUME)
    if what == "sums":
        whole[0, 0, 3] = np.nextafter(whole[0, 0, 3], np.float32(np.inf))
    else:
        spoilt(chunks, monkeypatch, (0, 1, 1, 2, 3), number=1, output=1)
    found = verify_chunks("it", x, w, VOLUME, whole, (3, 4))
    assert [(one.ok, one.verdict) for one in found] == [(True, "pass"), (False, "chunk differs")]
    assert found[1].as_dict()["same_as_whole"] is False
    first, second = report_grid("them", found).rows
    assert "all 4 channels; identical to one run" in first
    assert "all 4 channels; DIFFERS from one run" in second
