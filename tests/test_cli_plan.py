"""`nkiconv plan` and `nkiconv tune`, of named cases and of shapes of one's own; `nkiconv crossover`: sweeps, the values
between which plans change, its tables, and what is refused.
"""

import csv
import dataclasses
import json

import pytest
from commands import done, run

import nkiconv
from nkiconv import ConvProblem, Plan
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.planner import Alternative, Rejection, cache, entry
from nkiconv.planner.entry import answer
from nkiconv.tools.cli import crossover as cli_crossover
from nkiconv.tools.suites import crossover, csv_rows
from nkiconv.tools.suites.crossover import Change, Sweep

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans", "here")]
CASE = "nkl_n1_c16_w512_s7"


def one_plan(*arguments):
    [found] = json.loads(run("plan", CASE, "--json", *arguments).stdout)["rows"]
    return found


def test_a_row_a_case_and_why():
    result = done("plan", CASE, "short")
    for text in (CASE, "short", "modelled", "x copy", "of the limit", "bound by", "0 of 2 cached"):
        assert text in result.output
    assert "1 of 1 cached" in run("plan", CASE).output
    explained = run("plan", CASE, "--explain").output
    for text in ("x best", "rejected", "C=16", "S=7", *ALGORITHMS):
        assert text in explained
    assert "dot computes at most" in " ".join(explained.split())


def test_json_is_a_plan():
    found = one_plan()
    name = found.pop("case")
    plan = Plan.from_dict(found)
    assert (name, plan.problem.C, plan.lnc, plan.cached) == (CASE, 16, 2, False)
    assert found["roofline_fraction"] == pytest.approx(plan.roofline_fraction)
    assert one_plan()["cached"]


def test_options_reach_the_planner(plans):
    found = one_plan(
        "--lnc", 1, "--dtype", "fp32", "--strict-nonfinite", "--no-cache", "--constant", "scalar.ns_per_elem=1.5"
    )
    assert (found["lnc"], found["problem"]["dtype"], found["asked"]["strict_nonfinite"]) == (1, "fp32", True)
    assert found["constants"] == {"scalar.ns_per_elem": 1.5}
    assert found["algorithm"] == "vector"
    assert not plans.exists()


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path / "file"))
    result = done("plan", CASE, "short")
    assert result.stderr.count("warning: ") == result.stderr.count("file: cannot be written (File exists); set ") == 1


def test_a_corrupt_file_is_a_warning(plans):
    run("plan", CASE)
    [file] = plans.iterdir()
    file.write_text("{")
    cache.forget()
    result = done("plan", CASE)
    assert f"{file.name}: cannot be read" in " ".join(result.stderr.split()).replace("\n", "")
    assert "warnings.warn" not in result.stderr


ROW, IMAGE = "--C 16 --W 64 --S 4", "--C 16 --W 64 --S 3 --H 8 --R 3"
ROW_IS, IMAGE_IS = {"N": 1, "C": 16, "W": 64, "S": 4}, {"N": 1, "C": 16, "W": 64, "S": 3, "H": 8, "R": 3}
# options beside those, the fields that they are
ROWS = [
    ("--padding causal", {"groups": 16, "padding": ((0, 0), (3, 0))}),
    ("--padding 3,1 --stride 2 --N 2", {"groups": 16, "padding": ((0, 0), (3, 1)), "stride": (1, 2), "N": 2}),
    ("--padding same", {"groups": 16, "padding": ((0, 0), (1, 2))}),
    ("--K 8", {"K": 8}),
]
IMAGES = [
    ("--padding 1", {"padding": ((1, 1), (1, 1))}),
    ("--padding same", {"padding": ((1, 1), (1, 1))}),
    ("--groups 16 --padding 0,1,2,3", {"groups": 16, "padding": ((0, 1), (2, 3))}),
    ("--dilation 1,2 --dtype fp32", {"rhs_dilation": (1, 2), "dtype": "fp32"}),
    ("--layout NHWC --lhs-dilation 2", {"layout": "NHWC", "lhs_dilation": (2, 2)}),
]
UP, UP_IS = "--transposed --C 16 --W 64 --S 4", {"N": 1, "C": 16, "W": 64, "taps": (1, 4)}
UPS = [
    ("--stride 2 --padding 1", {"K": 16, "stride": (1, 2), "padding": ((0, 0), (1, 1))}),
    ("--K 6 --groups 2 --dilation 3 --padding 2,1",
     {"K": 6, "groups": 2, "dilation": (1, 3), "padding": ((0, 0), (2, 1))}),
    ("--H 8 --R 2 --stride 3,2 --output-padding 2,1 --layout NHWC",
     {"H": 8, "taps": (2, 4), "stride": (3, 2), "output_padding": (2, 1), "layout": "NHWC"}),
    (
        "--D 3 --H 8 --T 2 --R 2 --stride 2 --output-padding 1 --padding 1,0,0",
        {"D": 3, "H": 8, "taps": (2, 2, 4), "stride": (2,) * 3, "output_padding": (1,) * 3,
         "padding": ((1, 1), (0, 0), (0, 0))}),
]  # fmt: skip


def transposed(**fields):
    ones, none = (1,) * len(fields["taps"]), (0,) * len(fields["taps"])
    plain = {"stride": ones, "dilation": ones, "output_padding": none, "padding": ((0, 0),) * len(ones)}
    return ConvProblem.transpose(**plain | fields)


SHAPES = [
    *((f"{ROW} {options}", ConvProblem(**ROW_IS | fields)) for options, fields in ROWS),
    *((f"{IMAGE} {options}", ConvProblem(**IMAGE_IS | fields)) for options, fields in IMAGES),
    *((f"{UP} {options}", transposed(**UP_IS | fields)) for options, fields in UPS),
]


@pytest.mark.cover(6)
@pytest.mark.parametrize(("options", "problem"), SHAPES, ids=[options for options, _ in SHAPES])
def test_plans_of_shapes(options, problem, monkeypatch):
    """Every problem has the plan of one: what options say is looked at, not what a search finds."""
    plan = nkiconv.plan(ConvProblem(**ROW_IS, groups=16), algorithms=("vector",))
    monkeypatch.setattr(entry, "search", lambda request, **_: dataclasses.replace(plan, problem=request.problem))
    [found] = json.loads(run("plan", *options.split(), "--json").stdout)["rows"]
    assert ConvProblem(**{name: _tuples(value) for name, value in found["problem"].items()}) == problem


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# Sweeps: `nkiconv crossover`.
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
        assert point.times(point.runner_up) > 0.9  # the plan has the least mean, not these times


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
    lines = cli_crossover.as_markdown(found).splitlines()
    assert lines[0].startswith("| S | algorithm |")
    assert {line.count("|") for line in lines[:4]} == {9}
    assert lines[-1] == "- mixed up to S=5, banded from S=6 (mixed takes 1.50 x there)"
    csv_rows.write(tmp_path / "sweep.csv", found.as_rows())
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["value"]) for row in rows] == [point.value for point in found.points]
    assert [row["between"] for row in rows].count("False") == 2
    assert {row["vary"] for row in rows} == {"S"}
    assert rows[0]["runner_up"] == "banded"
    assert float(rows[0]["x_runner_up"]) == pytest.approx(1.5)


LINE = ("--vary", "S", "--values", "4,1", "--C", 16, "--W", 64)


def test_the_table():
    result = done("crossover", *LINE)
    for text in ("plans by S: N=1 C=16 W=64, bf16, causal", "modelled", "x copy", "runner-up", "x best", "bound by"):
        assert text in result.output
    assert " up to S=" in result.output or "throughout" in result.output


def test_json_csv_and_the_cache(plans, tmp_path):
    found = json.loads(done("crossover", *LINE, "--csv", "sweep.csv", "--json").stdout)
    assert found["sweep"]["values"] == [1, 4]
    asked = [point for point in found["rows"] if not point["between"]]
    assert [(point["S"], point["C"], point["pad_left"]) for point in asked] == [(1, 16, 0), (4, 16, 3)]
    for point in asked:
        assert point["x_copy_floor"] == pytest.approx(point["modelled_us"] / point["copy_floor_us"])
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == [point["algorithm"] for point in found["rows"]]
    assert len(list(plans.iterdir())) == len(found["rows"])
