"""`nkiconv plan` and `nkiconv tune`, of named cases and of shapes of one's own."""

import dataclasses
import json

import pytest
from shell import done, run

import nkiconv
from nkiconv import ConvProblem, Plan
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.planner import cache, entry

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
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


@pytest.fixture
def any_search(monkeypatch):
    """Every problem has the plan of one: what options say is looked at, not what a search finds."""
    plan = nkiconv.plan(ConvProblem(**ROW_IS, groups=16), algorithms=("vector",))
    monkeypatch.setattr(entry, "search", lambda request, **_: dataclasses.replace(plan, problem=request.problem))


@pytest.mark.cover(6)
@pytest.mark.usefixtures("any_search")
@pytest.mark.parametrize(("options", "problem"), SHAPES, ids=[options for options, _ in SHAPES])
def test_plans_of_shapes(options, problem):
    [found] = json.loads(run("plan", *options.split(), "--json").stdout)["rows"]
    assert ConvProblem(**{name: _tuples(value) for name, value in found["problem"].items()}) == problem


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
