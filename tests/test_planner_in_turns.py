"""What plans say of row tiles that nobody has measured side by side."""

import pytest

from nkiconv import ConvProblem, Plan, plan

pytestmark = pytest.mark.simulator_only
GROUPED = ConvProblem(N=1, C=256, K=256, H=28, W=28, R=3, S=3, groups=32, padding=((1, 1), (1, 1)))
TURNS = {"pe.row_tiles_overlap": 0.0}


def test_a_plan_says_what_it_would_take_if_row_tiles_took_turns():
    found = plan(GROUPED, use_cache=False)
    turns = found.in_turns
    assert turns is not None
    assert turns.us > found.phase0_us
    assert turns.least_us <= turns.us
    assert "row tiles of the array side by side, which nobody has measured" in found.explain()
    assert Plan.from_json(found.to_json()) == found
    # the same plan, searched for where they do
    other = plan(GROUPED, use_cache=False, constants=TURNS)
    assert other.in_turns is None
    us = {(one.algorithm, one.config): one.us for one in other.alternatives}
    assert us.get((found.algorithm, found.config), turns.us) == pytest.approx(turns.us)
    assert other.phase0_us <= turns.least_us * 1.001


def test_a_plan_without_row_tiles_has_nothing_to_say():
    found = plan(GROUPED.replace(groups=1, C=64, K=64), use_cache=False)
    assert found.in_turns is None
    assert "row tiles" not in found.explain()
