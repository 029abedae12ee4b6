"""Recipes of `mixed` and `vector`: every tap once, engines in balance."""

import pytest
from depthwise import Row

from nkiconv.planner.cost.algorithm import Shape
from nkiconv.schedules.depthwise import Options, RowGeometry
from nkiconv.schedules.mixed import complete
from nkiconv.schedules.options import Epilogue
from nkiconv.schedules.recipes import (
    candidates,
    edge_recipes,
    last_step,
    phases_of,
    ranked_recipes,
    spread,
    tap_count,
    work_of,
)
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

PLAIN = Epilogue(activation="", bias=False, residual="", y_itemsize=2)
FULL = Epilogue(activation="silu", bias=True, residual="post_activation", y_itemsize=4)


def geometry_of(S, itemsize, columns=4096):
    problem = Row("any", 1, 512, columns, S).problem("bf16")
    return RowGeometry(
        N=1, C=512, W=columns, S=S, Q=problem.Q, stride=1, dilation=1, lhs_dilation=1, pad_left=0, pad_right=0,
        x_n=0, x_c=columns, x_w=1, w_c=S, w_s=1, y_n=0, y_c=problem.Q, y_q=1, itemsize=itemsize,
    )  # fmt: skip


def shape_of(S, itemsize, epilogue=PLAIN, **constants):
    options = Options(epilogue=epilogue, state=False, strict_nonfinite=False)
    return Shape(geometry_of(S, itemsize), options, 2, Rates(constants))


def best(shape, on_tensor):
    return next(ranked_recipes(shape.geometry, shape.options.epilogue, shape.target, 512, on_tensor))


def bare_settings(shape, on_tensor):
    return complete(shape.geometry, shape.options, None, shape.target, on_tensor)


@pytest.mark.parametrize("on_tensor", [False, True])
@pytest.mark.parametrize("S", [1, 2, 3, 4, 5, 8, 16, 64])
def test_every_recipe_has_every_tap_once(S, on_tensor):
    for itemsize in (2, 4):
        chosen = best(shape_of(S, itemsize), on_tensor)
        bare = bare_settings(shape_of(S, itemsize), on_tensor)
        for recipe in (*candidates(S, on_tensor), *chosen, *bare.recipes, *bare.start, *bare.end):
            assert tap_count(recipe) == S
            assert on_tensor or recipe[0] == 0
    assert {tap_count(recipe) for recipe in edge_recipes(S)} == {S}


def test_long_filters_go_to_tensor():
    bare = bare_settings(shape_of(40, 2), True)
    for recipe in (*best(shape_of(40, 2), True), *bare.recipes):
        assert recipe[0] >= 30


def test_a_slow_engine_has_fewer_taps():
    """Prices are those of the question."""
    taps = {}
    for factor in (1, 4):
        name = "vector.ns_per_elem_scalar_tensor_tensor"
        slow = shape_of(12, 2, **{name: factor * Rates()(name)})
        taps[factor] = max(recipe[1] + recipe[3] for recipe in best(slow, True))
    assert taps[4] < taps[1]


@pytest.mark.parametrize("epilogue", [PLAIN, FULL], ids=["plain", "full"])
def test_every_step_is_in_one_phase_and_the_last_writes_y(epilogue):
    for S in (1, 2, 5, 9):
        for recipe in (*candidates(S, True), *candidates(S, False)):
            phases = phases_of(recipe, epilogue)
            steps = [step for first, end in phases for step in range(first, end)]
            assert steps == list(range(last_step(recipe, epilogue) + 1))


def test_two_recipes_are_spread_evenly():
    a, b = (3, 1, 0, 0), (2, 1, 1, 0)
    assert spread(a, b, 1, 3) == (a, a, b)
    assert spread(a, b, 2, 4) == (a, b, a, b)
    assert spread(a, b, 0, 1) == (a,)


def test_work_follows_the_epilogue():
    plain, full = (
        work_of((3, 1, 0, 0), geometry_of(4, 2), epilogue, Target.of(Rates()), 512) for epilogue in (PLAIN, FULL)
    )
    assert full.tensor == plain.tensor
    assert full.vector > plain.vector
    assert full.scalar > plain.scalar == 0
