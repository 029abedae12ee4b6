"""Recipes of `mixed` and `vector`: every tap once, engines in balance."""

import pytest
from depthwise import Row

from nkiconv.kernels._epilogue import Epilogue
from nkiconv.kernels.depthwise_conv1d.call import Extras
from nkiconv.kernels.depthwise_conv1d.geometry import Geometry
from nkiconv.kernels.depthwise_conv1d.rows.chains import last_step, phases_of, tap_count
from nkiconv.kernels.depthwise_conv1d.rows.recipes import candidates, default_recipes, engine_times, spread

PLAIN = Epilogue(activation="", bias=False, residual="", y_itemsize=2)
FULL = Epilogue(activation="silu", bias=True, residual="post_activation", y_itemsize=4)


def geometry_of(S, itemsize, columns=4096):
    problem = Row("any", 1, 512, columns, S).problem("bf16")
    return Geometry(
        N=1, C=512, W=columns, S=S, Q=problem.Q, stride=1, dilation=1, lhs_dilation=1, pad_left=0, pad_right=0,
        x_n=0, x_c=columns, x_w=1, w_c=S, w_s=1, y_n=0, y_c=problem.Q, y_q=1, itemsize=itemsize,
    )  # fmt: skip


@pytest.mark.parametrize("on_tensor", [False, True])
@pytest.mark.parametrize("S", [1, 2, 3, 4, 5, 8, 16, 64])
def test_every_recipe_has_every_tap_once(S, on_tensor):
    extras = Extras(epilogue=PLAIN, state=False, strict_nonfinite=False)
    for itemsize in (2, 4):
        chosen = default_recipes(geometry_of(S, itemsize), extras, 512, on_tensor)
        for recipe in (*candidates(S, on_tensor), *chosen):
            assert tap_count(recipe) == S
            assert on_tensor or recipe[0] == 0


def test_long_filters_go_to_tensor():
    extras = Extras(epilogue=PLAIN, state=False, strict_nonfinite=False)
    for recipe in default_recipes(geometry_of(40, 2), extras, 512, True):
        assert recipe[0] >= 30


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


def test_prices_follow_the_epilogue():
    geometry = geometry_of(4, 2)
    plain = engine_times((3, 1, 0, 0), geometry, PLAIN, 512)
    full = engine_times((3, 1, 0, 0), geometry, FULL, 512)
    assert full[0] == plain[0]
    assert full[1] > plain[1]
    assert full[2] > plain[2] == 0
