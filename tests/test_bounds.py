"""Bounds of depthwise rows, in whose order settings are timed, against the model's timelines.

A bound leaves out what hardly depends on settings and takes the array to be warm where it can be, so it is held to
shares. What matters is the order of two settings; `test_choice` looks at what is chosen by it.
"""

import random

import pytest
import random_problems
from depthwise import modelled_us

from nkiconv import ConvProblem, cases
from nkiconv.planner.cost import rows
from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.depthwise_conv1d import geometry_of, options_of
from nkiconv.planner.request import Asked
from nkiconv.schedules.depthwise_algorithms import ALGORITHMS, unsupported_reason
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
NAMED = ("nkl_n1_c256_w512_s64", "nkl_fs_asr", "kda_bf16", "kda_fp32", "odd_c", "short", "nkl_n1_c256_w129_s128")
#: What four of five named cases are within; of banded pieces wait for each other, which its bound has less of.
CLOSE = {"mixed": 0.15, "vector": 0.15, "banded": 0.25}


def shape_of(problem):
    return Shape(geometry_of(problem), options_of(problem, Asked()), 2, Rates())


def bound_us(shape, algorithm, config):
    """What a bound says."""
    plan = rows.ALGORITHMS[algorithm].completed(shape, config)
    return ALGORITHMS[algorithm].bound_ns(shape.geometry, shape.options, plan, shape.target) / 1e3


def tries(problems, algorithm, seed):
    """(problem, config) of the settings that a search starts from and of two that it would try beside them."""
    rng = random.Random(seed)
    for problem in problems:
        shape, family = shape_of(problem), rows.ALGORITHMS[algorithm]
        if problem.S > 64 and algorithm != "banded":
            continue
        configs = [config for config in family.configs(shape, False)[:1] if config]
        for config in configs:
            near = family.near(shape, config)
            for one in (family.complete(shape, one) for one in (config, *rng.sample(near, min(2, len(near))))):
                if not unsupported_reason(algorithm, shape.geometry, shape.options, one, 2):
                    yield problem, one


def errors(problems, algorithm, seed=0):
    """Bounds over modelled times, less 1, in order of size."""
    found = []
    for problem, config in tries(problems, algorithm, seed):
        found.append(bound_us(shape_of(problem), algorithm, config) / modelled_us(problem, algorithm, config) - 1)
    return sorted(abs(one) for one in found)


@pytest.mark.cover(1)
@pytest.mark.parametrize("algorithm", ["mixed", "vector", "banded"])
def test_named_cases(algorithm):
    found = errors([cases.get(name).problem for name in NAMED], algorithm)
    assert len(found) >= 12
    assert found[int(0.8 * len(found))] <= CLOSE[algorithm], found
    assert found[-1] <= 0.4, found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["mixed", "vector", "banded"])
def test_random_problems(algorithm):
    problems = [one for one in random_problems.depthwise(120, seed=5) if one.N * one.C * one.W < 2**21]
    found = errors(problems, algorithm)
    assert len(found) >= 100
    assert found[len(found) // 2] <= 0.1, found
    assert found[int(0.85 * len(found))] <= CLOSE[algorithm], found


@pytest.mark.parametrize("algorithm", ["mixed", "banded"])
def test_bounds_grow_with_channels(algorithm):
    """What C=3456 takes is about twice what half as many take."""
    found = []
    for C in (1728, 3456):
        problem = ConvProblem(N=42, C=C, W=514, S=59, groups=C, padding=((0, 0), (29, 29)), dtype="bf16")
        shape = shape_of(problem)
        config = rows.ALGORITHMS[algorithm].complete(shape, (("shard", "channels"),))
        found.append(bound_us(shape, algorithm, config))
    assert 1.7 < found[1] / found[0] < 2.3, found
