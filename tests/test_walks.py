"""Walks with a clock for each engine, by which settings are chosen, against the model's timelines.

A walk leaves out room in memory and takes what is on the edge of the array's full rate for slow, so it is held to
shares: nearly all within 15 %. What matters is the order of two settings; `test_choice` looks at what is chosen by it.
"""

import random

import pytest
import random_problems
from depthwise import modelled_us

from nkiconv import ConvProblem, cases
from nkiconv.planner import cost
from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.clock import Clock
from nkiconv.planner.cost.depthwise_conv1d import banded_walk as banded
from nkiconv.planner.cost.depthwise_conv1d import mixed_walk as mixed
from nkiconv.planner.depthwise_conv1d import extras_of, geometry_of
from nkiconv.planner.request import Asked
from nkiconv.schedules.depthwise_rule import refusal
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

pytestmark = pytest.mark.simulator_only
NAMED = ("nkl_n1_c256_w512_s64", "nkl_fs_asr", "kda_bf16", "kda_fp32", "odd_c", "short", "nkl_n1_c256_w129_s128")
CLOSE = 0.15
TARGET = Target.of(Rates())


def shape_of(problem):
    return Shape(geometry_of(problem), extras_of(problem, Asked()), 2, Rates())


def walked_us(shape, algorithm, config):
    """What a walk says."""
    walk = banded if algorithm == "banded" else mixed
    return walk.walk_ns(shape, cost.algorithm("depthwise_conv1d", algorithm).settled(shape, config)) / 1e3


def tries(problems, algorithm, seed):
    """(problem, config) of the settings that a search starts from and of two that it would try beside them."""
    rng = random.Random(seed)
    for problem in problems:
        shape, family = shape_of(problem), cost.algorithm("depthwise_conv1d", algorithm)
        if problem.S > 64 and algorithm != "banded":
            continue
        configs = [config for config in family.configs(shape, False)[:1] if config]
        for config in configs:
            near = family.near(shape, config)
            for one in (family.settle(shape, one) for one in (config, *rng.sample(near, min(2, len(near))))):
                if not refusal(algorithm, shape.geometry, shape.extras, one, 2):
                    yield problem, one


def errors(problems, algorithm, seed=0):
    """Walked over modelled times, less 1, in order of size."""
    found = []
    for problem, config in tries(problems, algorithm, seed):
        found.append(walked_us(shape_of(problem), algorithm, config) / modelled_us(problem, algorithm, config) - 1)
    return sorted(abs(one) for one in found)


@pytest.mark.parametrize("algorithm", ["mixed", "vector", "banded"])
def test_named_cases(algorithm):
    found = errors([cases.get(name).problem for name in NAMED], algorithm)
    assert len(found) >= 12
    assert found[int(0.8 * len(found))] <= CLOSE, found
    assert found[-1] <= 0.4, found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["mixed", "vector", "banded"])
def test_random_problems(algorithm):
    problems = [one for one in random_problems.depthwise(120, seed=5) if one.N * one.C * one.W < 2**21]
    found = errors(problems, algorithm)
    assert len(found) >= 100
    assert found[len(found) // 2] <= 0.05, found
    assert found[int(0.85 * len(found))] <= CLOSE, found


def test_the_array_gets_to_full_rate_by_a_busy_window_and_loses_it_by_an_idle_one():
    clock, window_ns = Clock(TARGET), TARGET.window_ns
    work_ns = 400 * 128 * TARGET.tensor_column_ns
    end = clock.stream(0.0, work_ns)
    # half of the first window's time is work, all of the others'
    assert end == pytest.approx(window_ns + work_ns - window_ns / 2)
    assert clock.full
    clock.stream(end + 2 * window_ns, 1.0)
    assert not clock.full


def test_loads_follow_each_other_and_share_with_stores():
    clock = Clock(TARGET)
    num_bytes = 128 * 8192
    moved = TARGET.hbm_ns(num_bytes, 8192)
    first = clock.load(0.0, 1, 128, 100.0, num_bytes)
    assert clock.load(0.0, 1, 128, 100.0, num_bytes) == pytest.approx(first + moved)
    before = clock.loads
    clock.store(TARGET.first_packet_ns / 2, 128, 100.0, num_bytes)
    assert clock.loads == pytest.approx(before + moved)
    assert clock.stores == pytest.approx(before + moved, rel=0.3)


def test_a_load_that_waits_holds_up_nobody():
    clock = Clock(TARGET)
    late = clock.load(5000.0, 1, 128, 100.0, 1000)
    assert clock.load(0.0, 1, 128, 100.0, 1000) < late
    assert late > 5000.0 + TARGET.first_packet_ns


#: Images whose tiles follow each other for each range of groups, the first of which is a small one: N, C, W, S.
EDGES = [(42, 864, 514, 59), (14, 1728, 514, 59), (16, 834, 1325, 235)]


@pytest.mark.parametrize("shard", ["channels", "columns"])
@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize("extents", EDGES, ids=str)
def test_a_long_walk_goes_on_at_the_rate_of_its_large_tiles(extents, block, shard, monkeypatch):
    N, C, W, S = extents
    problem = ConvProblem(N=N, C=C, W=W, S=S, groups=C, padding=((0, 0), (S // 2, S // 2)), dtype="bf16")
    shape = shape_of(problem)
    config = (("block", block), ("shard", shard))
    found = walked_us(shape, "banded", config)
    monkeypatch.setattr(banded, "BANDED_WALKED", 10**6)
    assert found == pytest.approx(walked_us(shape, "banded", config), rel=0.15)


@pytest.mark.slow
def test_a_long_walk_is_what_the_timeline_says():
    """Of the edges, that whose walk was least in proportion."""
    N, C, W, S = EDGES[-1]
    problem = ConvProblem(N=N, C=C, W=W, S=S, groups=C, padding=((0, 0), (S // 2, S // 2)), dtype="bf16")
    shape = shape_of(problem)
    config = cost.algorithm("depthwise_conv1d", "banded").settle(shape, (("block", 8), ("shard", "channels")))
    assert walked_us(shape, "banded", config) == pytest.approx(modelled_us(problem, "banded", config), rel=CLOSE)


def test_walked_times_grow_with_channels():
    """What C=3456 takes is not less than what half as many take."""
    found = {}
    for C in (1728, 3456):
        problem = ConvProblem(N=42, C=C, W=514, S=59, groups=C, padding=((0, 0), (29, 29)), dtype="bf16")
        shape = shape_of(problem)
        for block in (4, 8, 16, 32):
            found[C, block] = walked_us(shape, "banded", (("block", block), ("shard", "channels")))
    for block in (4, 8, 16, 32):
        assert 1.7 < found[3456, block] / found[1728, block] < 2.3, found


@pytest.mark.parametrize("algorithm", ["mixed", "banded"])
def test_a_long_walk_is_a_short_one_and_a_rate(algorithm, monkeypatch):
    problem = cases.get("nkl_n1_c2048_w2048_s256" if algorithm == "banded" else "qwen3_next_gdn").problem
    shape = shape_of(problem)
    config = cost.algorithm("depthwise_conv1d", algorithm).configs(shape, False)[0]
    found = walked_us(shape, algorithm, config)
    module, name = (banded, "BANDED_WALKED") if algorithm == "banded" else (mixed, "MIXED_WALKED")
    monkeypatch.setattr(module, name, 10**6)
    assert found == pytest.approx(walked_us(shape, algorithm, config), rel=0.05)
