"""`nkiconv crossover`: sweeps, the values between which plans change, its tables, and what is refused."""

import csv
import dataclasses
import functools
import json

import pytest
import shell

from nkiconv.planner import Alternative, Rejection, search
from nkiconv.planner.entry import answer
from nkiconv.tools.suites import crossover
from nkiconv.tools.suites.crossover import Change, Sweep

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans", "here")]
SMALL = Sweep(vary="S", values=(3,), C=2, W=16)


@pytest.fixture
def fake(monkeypatch):
    """A function that makes the planner answer by a rule (value -> algorithm, config); the values that it was asked."""
    plan = answer(SMALL.request(3), use_cache=False)

    def use(rule, other_us=None, refused=None):
        asked = []

        def found(request, **_more):
            asked.append(request.problem.S)
            algorithm, config = rule(request.problem.S)
            best = Alternative(algorithm, config, plan.phase0_us, "tensor", 1)
            others = [
                Alternative(name, None, (other_us or 2.0) * plan.phase0_us, "tensor", 1, at_least=other_us is None)
                for name in ("mixed", "banded", "dot")
                if name != algorithm and (refused is None or name != refused.algorithm)
            ]
            return dataclasses.replace(
                plan, problem=request.problem, algorithm=algorithm, config=config, alternatives=(best, *others),
                rejected=() if refused is None else (refused,),
            )  # fmt: skip

        monkeypatch.setattr(crossover, "answer", found)
        return asked

    return use


def steps(*ends):
    """A rule: the first algorithm up to the first end, and so on."""

    def rule(value):
        return next(name for end, name in ends if value <= end), None

    return rule


def test_points_are_the_planners():
    found = crossover.crossover(SMALL)
    assert [point.value for point in found.points] == [3]
    for point in found.points:
        assert point.plan == answer(SMALL.request(point.value))
        assert point.plan.problem.S == point.value
        assert point.runner_up.algorithm != point.plan.algorithm
        assert point.times(point.runner_up) > 1 / search.NEAR  # the plan has the least mean, not these times


@pytest.mark.parametrize("last", [1, 6, 15])
def test_a_change_is_bisected(fake, last):
    asked = fake(steps((last, "mixed"), (16, "banded")), other_us=1.5)
    found = crossover.crossover(Sweep(vary="S", values=(1, 16)))
    assert found.changes == (Change(last, last + 1, "mixed", "banded", pytest.approx(1.5)),)
    assert len(asked) == len(set(asked)) <= 2 + 4
    assert [point.value for point in found.table] == [1, 16]
    assert [point.value for point in found.points] == sorted(asked)


def test_a_refusal_is_a_change(fake):
    fake(steps((64, "dot"), (128, "banded")), refused=Rejection("dot", None, "too many taps; use banded"))
    [change] = crossover.crossover(Sweep(vary="S", values=(1, 128))).changes
    assert (change.last, change.first, change.x_before) == (64, 65, None)
    assert change.text("S").endswith("(dot is refused there: too many taps; use banded)")


def test_markdown_and_csv(fake, tmp_path):
    fake(steps((5, "mixed"), (16, "banded")), other_us=1.5)
    found = crossover.crossover(Sweep(vary="S", values=(1, 16)))
    lines = crossover.markdown(found).splitlines()
    assert lines[0].startswith("| S | algorithm |")
    assert {line.count("|") for line in lines[:4]} == {len(crossover.HEADINGS) + 2}
    assert lines[-1] == "- mixed up to S=5, banded from S=6 (mixed takes 1.50 x there)"
    crossover.write(tmp_path / "sweep.csv", found)
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["value"]) for row in rows] == [point.value for point in found.points]
    assert [row["between"] for row in rows].count("False") == 2
    assert {row["vary"] for row in rows} == {"S"}
    assert rows[0]["runner_up"] == "banded"
    assert float(rows[0]["x_runner_up"]) == pytest.approx(1.5)


LINE = ("--vary", "S", "--values", "4,1", "--C", 16, "--W", 64)


done = functools.partial(shell.done, "crossover")


def test_the_table():
    result = done(*LINE)
    for text in ("plans by S: N=1 C=16 W=64, bf16, causal", "modelled", "x copy", "runner-up", "x best", "bound by"):
        assert text in result.output
    assert " up to S=" in result.output or "throughout" in result.output


def test_json_csv_and_the_cache(plans, tmp_path):
    found = json.loads(done(*LINE, "--csv", "sweep.csv", "--json").stdout)
    assert found["sweep"]["values"] == [1, 4]
    asked = [point for point in found["rows"] if not point["between"]]
    assert [(point["S"], point["C"], point["pad_left"]) for point in asked] == [(1, 16, 0), (4, 16, 3)]
    for point in asked:
        assert point["x_copy_floor"] == pytest.approx(point["modelled_us"] / point["copy_floor_us"])
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == [point["algorithm"] for point in found["rows"]]
    assert len(list(plans.iterdir())) == len(found["rows"])
