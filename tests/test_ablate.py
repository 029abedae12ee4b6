"""The command that says what each setting buys."""

import ast
import sys

import pytest
from commands import of_command

pytestmark = pytest.mark.simulator_only


ablate = of_command("ablate")


@pytest.fixture
def plan(ablate):
    """A plan of the golden table with a warm-up."""
    return next(one for one in ablate.plans(ablate.golden_table(), "implicit_gemm") if one.name == "rn50_c4")


def test_a_plan_with_its_own_value_takes_its_own_time(ablate, plan):
    assert ablate.ratio_of(plan, "warmup", dict(plan.config)["warmup"]) == pytest.approx(1.0, abs=1e-4)
    assert ablate.ratio_of(plan, "warmup", 0) > 1.02
    assert ablate.ratio_of(plan, "warmup", -1) is None


def test_a_setting_is_held_at_its_most_frequent_value(ablate, plan):
    others = [ablate.Plan("a", plan.problem, "x", (("rows", rows), ("fold", "none")), 1.0) for rows in (1, 2, 2)]
    assert ablate.held_values(others) == {("x", "rows"): 2, ("x", "fold"): "none"}
    assert ablate.with_setting(others[0].config, "rows", 2) == others[1].config


def test_means_are_over_all_plans_that_are_not_refused(ablate):
    held = ablate.Held("x", "rows", 2, 4, (("a", 2.0), ("b", None), ("c", 0.5 * 4**0.5)))
    assert held.mean == pytest.approx(2 ** (1 / 3))
    assert held.worst == (2.0, "a")
    assert held.cells() == ["x", "rows", "2", "3 of 4", "1", "1.2599", "2.000", "a"]
    lines = ablate.table_lines([held, ablate.Held("x", "fold", "none", 4, ())])
    assert [line.split(" | ")[1] for line in lines[2:]] == ["fold", "rows"]


@pytest.mark.slow
def test_the_command(ablate, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ablate", "--only", "skewed"])
    assert ablate.main() == 0
    lines = capsys.readouterr().out.splitlines()
    table = ablate.golden_table().read().values()
    configs = [ast.literal_eval(row.config) for row in table if row.way == "timed" and row.algorithm == "skewed"]
    assert len(lines) == 2 + len({name for config in configs for name, _ in config})
    monkeypatch.setattr(sys, "argv", ["ablate", "--only", "nonesuch"])
    with pytest.raises(SystemExit):
        ablate.main()
    assert "--only=nonesuch" in capsys.readouterr().err
