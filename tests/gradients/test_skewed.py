"""`skewed`: exact sums under every setting, what it needs, and when the host takes it."""

import numpy as np
import pytest
from depthwise import on_cores
from depthwise_gradients import FEW, PROBLEMS, check, problem_of

import nkiconv
from nkiconv import cases
from nkiconv.kernels.gradients.depthwise_conv1d import SKEWED, depthwise_conv1d_weight_gradient
from nkiconv.planner.depthwise_conv1d import geometry_of
from nkiconv.planner.estimate import estimate
from nkiconv.planner.request import Request
from nkiconv.schedules import skewed
from nkiconv.schedules.skewed import BESIDE, build, skewed_ns
from nkiconv.simulator import KernelAssertionError
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

#: (N, C), (size, taps, stride, dilation, before, after).
MORE = {
    "parts of positions": ((3, 40), (1500, 5, 1, 1, 2, 2)),
    "parts of positions, strided": ((2, 6), (2100, 4, 3, 2, 3, -1)),
    "more images than partitions": ((150, 9), (20, 3, 1, 1, 1, 1)),
    "images that fill no tile": ((33, 32), (36, 16, 1, 1, 0, 0)),
    "chunks of taps": ((1, 3), (1400, 700, 1, 1, 10, 10)),
    "a window before and behind x": ((1, 4), (90, 40, 1, 1, 100, 100)),
    "far strides": ((1, 3), (3000, 3, 300, 1, 0, 0)),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", [*PROBLEMS, *MORE])
def test_channels_beside_each_other(name, beside):
    given = {**PROBLEMS, **MORE}[name]
    config = (("beside", beside),)
    on_cores(check, *given, algorithm=SKEWED, config=config, adds=True)


#: Of PROBLEMS and MORE those without stride and dilation.
PLAIN = [name for name, ((N, _), axis) in {**PROBLEMS, **MORE}.items() if axis[2:4] == (1, 1) and N < 100]


@pytest.mark.cover(0, keep=["windows outside x-3", "one channel-16", "chunks of taps-2"])
@pytest.mark.parametrize("shifts", [2, 3, 16])
@pytest.mark.parametrize("name", PLAIN)
def test_parts_of_taps(name, shifts):
    given = {**PROBLEMS, **MORE}[name]
    on_cores(check, *given, algorithm=SKEWED, config=(("shifts", shifts),), adds=True)


@pytest.mark.cover(3)
@pytest.mark.parametrize("buffers", [2, 5])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", [*FEW, "parts of positions"])
def test_batches(name, groups, buffers, monkeypatch):
    monkeypatch.setattr(skewed, "BUFFERS", buffers)
    monkeypatch.setattr(skewed, "build", skewed.build.__wrapped__)
    config = (("beside", 2), ("groups", groups))
    check(*{**PROBLEMS, **MORE}[name], algorithm=SKEWED, config=config, bias_gradient=True)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype):
    for name in FEW:
        check(*PROBLEMS[name], dtype=dtype, algorithm=SKEWED)


def test_nan_stays_with_the_channels_beside_it():
    """None is left in places that the last batch does not fill."""
    (N, C), axis = (1, 7), (60, 4, 1, 1, 3, 0)
    x, gy = problem_of((N, C), axis)
    x[0, 3] = np.nan
    config = (("beside", 2), ("groups", 1))
    dw = nkiconv.depthwise_conv1d_weight(x, (C, 4), gy, padding="causal", algorithm=SKEWED, config=config)
    lost = np.isnan(dw).any(1)
    assert lost[3]
    assert lost.sum() <= 2


def traced(problem, config, lnc=2):
    """A launch without data."""
    specs = nkiconv.spec(problem.input_shape, problem.dtype), nkiconv.spec(problem.output_shape, problem.dtype)
    more = {"padding": problem.padding, "stride": problem.stride, "rhs_dilation": problem.rhs_dilation}
    more |= {"feature_group_count": problem.C, "algorithm": SKEWED, "config": config}
    return (*specs, problem.filter_shape), more


@pytest.mark.cover(0, keep=["conformer-skewed"])
@pytest.mark.simulator_only
@pytest.mark.parametrize(
    ("name", "choice"), [("conformer", SKEWED), ("nkl_n4_c256_w512_s128", SKEWED), ("kda_bf16", "dot")]
)
def test_the_host_takes_what_takes_least(name, choice):
    problem = cases.get(name).problem
    operation = "depthwise_conv1d_weight"
    found = estimate(Request(problem=problem.toward("wgrad"), operation=operation), use_cache=False)
    algorithm, config = found.algorithm, found.config
    assert algorithm == choice
    if choice == SKEWED:
        args, more = traced(problem, config)
        us = nkiconv.profile(depthwise_conv1d_weight_gradient[2])(*args, **more).modelled_us
        assert (
            0.75
            < skewed_ns(geometry_of(problem), build(geometry_of(problem), config, 2)[0], 2, Target.of(Rates()))
            / 1e3
            / us
            < 1.3
        )


def test_rows_that_do_not_fit_are_refused():
    x = nkiconv.spec((40_000, 1, 1, 4000), "bf16")
    problem = nkiconv.ConvProblem(N=x.shape[0], C=1, W=4000, S=3, groups=1, dtype="bf16")
    args, more = traced(problem, (("beside", 1),))
    with pytest.raises(KernelAssertionError, match=r"skewed needs \d+ bytes per partition of SBUF for x, gy"):
        nkiconv.simulator.execute(depthwise_conv1d_weight_gradient[2], args, more, trace_only=True)
