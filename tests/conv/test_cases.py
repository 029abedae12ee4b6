"""Named cases exact on integers, what the host chooses for them, and random settings."""

import random

import choices
import numpy as np
import pytest
from conv_calls import FLOATS, canonical_of, check_exact, in_layout, integers, run
from depthwise import same_bits
from tolerances import assert_exact

from nkiconv import ConvProblem, cases
from nkiconv.planner import Request
from nkiconv.planner.candidates import field_of
from nkiconv.planner.operations import operation_of
from nkiconv.reference import conv_ref
from nkiconv.simulator.timing import Rates

CASES = {case.name: case.problem for case in cases.load("conv2d") if case.problem.dtype in FLOATS}
IMAGES, CHANNELS_IN, CHANNELS_OUT, GROUPS = 2, 37, 21, 5


def extent(axis, least):
    """An extent with some whole windows, at least `least`, and no larger than the axis."""
    return min(axis.size, max(least, axis.window - axis.lo - axis.hi + 2 * axis.stride + 1))


def smaller(problem):
    """The same kind of problem, small and not square unless it is a row."""
    groups = min(problem.groups, GROUPS)
    inputs, outputs = problem.C // problem.groups, problem.K // problem.groups
    if groups == 1:
        inputs, outputs = min(inputs, CHANNELS_IN), min(outputs, CHANNELS_OUT)
    return problem.replace(
        N=min(problem.N, IMAGES), C=groups * inputs, K=groups * outputs, groups=groups, H=extent(problem.height, 9),
        W=extent(problem.width, 14),
    )  # fmt: skip


@pytest.mark.cover(10)
@pytest.mark.parametrize("name", CASES)
def test_exact_on_a_smaller_problem(name):
    few = smaller(CASES[name])
    kept = ("R", "S", "stride", "padding", "rhs_dilation", "dtype")
    assert [getattr(few, field) for field in kept] == [getattr(CASES[name], field) for field in kept]
    assert few.is_depthwise == CASES[name].is_depthwise
    check_exact(few)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exact_whole(name):
    check_exact(CASES[name])


#: One of each kind, small enough for seconds.
SOME = (
    "rn50_c2", "rn50_c3_s2", "mobilenet_dw", "mult2_dw", "whisper_conv1", "rect_filter", "prime", "fp16", "c1k1",
    "unet_up", "hifigan_up1", "sam_up", "mimi_dw", "kokoro_dw", "odd_up_fp32",
)  # fmt: skip
NAMES = [case.name for suite in ("conv2d", "conv_transpose") for case in cases.load(suite)]


def check_choice(name):
    problem = cases.get(name).problem
    assert choices.times_slower(problem, operation_of(problem).name if problem.transposed else "conv2d") <= choices.SAME


@pytest.mark.simulator_only
@pytest.mark.cover(2, keep=["unet_up"])
@pytest.mark.parametrize("name", SOME)
def test_the_choice_for_named_cases(name):
    check_choice(name)


@pytest.mark.simulator_only
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SOME])
def test_every_other_named_case(name):
    check_choice(name)


SAME = ((1, 1), (1, 1))
PROBLEMS = {
    "dense": ConvProblem(N=3, C=20, H=9, W=13, K=33, R=3, S=2, padding=((1, 0), (1, 1)), dtype="fp32"),
    "many channels": ConvProblem(N=2, C=260, H=6, W=5, K=300, R=2, S=3, padding=((0, 1), (1, 1))),
    "few inputs": ConvProblem(N=2, C=3, H=21, W=30, K=17, R=7, S=5, stride=(2, 2), padding=((3, 2), (2, 2))),
    "few outputs": ConvProblem(N=1, C=70, H=14, W=23, K=3, R=3, S=3, padding=SAME, dtype="fp32"),
    "few pixels": ConvProblem(N=2, C=300, H=6, W=5, K=24, R=3, S=3, padding=SAME),
    "patches": ConvProblem(N=2, C=3, H=24, W=40, K=50, R=8, S=8, stride=(8, 8)),
    "depthwise": ConvProblem(N=2, C=21, H=14, W=11, K=21, groups=21, R=5, S=3, padding=((2, 2), (1, 1))),
    "multiplied": ConvProblem(N=2, C=9, H=12, W=11, K=18, groups=9, R=3, S=3, padding=SAME, dtype="fp32"),
    "small groups": ConvProblem(N=2, C=64, H=9, W=8, K=64, groups=16, R=3, S=3, padding=SAME),
    "channels last": ConvProblem(N=3, C=20, H=12, W=14, K=33, R=3, S=2, padding=((1, 1), (1, 1)), layout="NHWC"),
    "gaps": ConvProblem(
        N=2, C=5, H=6, W=7, K=6, R=3, S=4, lhs_dilation=(2, 3), rhs_dilation=(2, 1), padding=((1, 2), (3, 0))
    ),
    "fp8": ConvProblem(N=2, C=128, H=12, W=14, K=140, R=3, S=3, padding=SAME, dtype="fp8_e4m3"),
    "fp8, small images": ConvProblem(N=5, C=150, H=6, W=7, K=40, R=3, S=2, padding=SAME, dtype="fp8_e5m2"),
    "a row": ConvProblem(N=2, C=12, W=300, K=24, S=9, stride=(1, 2), padding=((0, 0), (4, 4)), dtype="fp16"),
}
#: Settings changed one after another.
STEPS = 3


def random_configs(problem, count, seed):
    """(algorithm, config) of settings up to `STEPS` changes away from those that a wide search starts from, with those
    that they leave open as the host has them."""
    rng = random.Random(seed)
    field = field_of(Request(problem=problem), Rates())
    accepted = field.start(wide=True)[0]
    for _ in range(count):
        one = rng.choice(accepted)
        for _ in range(rng.randint(0, STEPS)):
            one = rng.choice(field.near(one) or [one])
        yield one.algorithm, field.operation.complete(one.algorithm, field.shape, one.config)


def check_config(name, count, seed):
    problem = PROBLEMS[name]
    x, w = integers(np.random.default_rng(seed), problem)
    truth = in_layout(conv_ref(canonical_of(x, problem), w, problem), problem)
    tried = set()
    for algorithm, config in random_configs(problem, count, seed):
        if (algorithm, config) in tried:
            continue
        tried.add((algorithm, config))
        full = (("algorithm", algorithm), *(config or ()))
        one, two = (run(x, w, problem, lnc, config=full) for lnc in (1, 2))
        assert_exact(one, truth, problem.out_dtype)
        assert same_bits(one, two), full
    return tried


@pytest.mark.timeout(1800)
@pytest.mark.cover(0, keep=["channels last-8", "depthwise-8"])
@pytest.mark.parametrize("count", [8, 100])
@pytest.mark.parametrize("name", PROBLEMS)
def test_random_configs(name, count):
    assert len(check_config(name, count, count)) > count // 5 + 1
