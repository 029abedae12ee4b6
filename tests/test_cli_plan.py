"""`nkiconv plan` and `nkiconv tune`: the row, the explanation, JSON, the cache, and bad input by name."""

import json

import pytest
from shell import run

from nkiconv import Plan
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.planner import cache

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
CASE = "nkl_n1_c16_w512_s7"


def one_plan(*arguments):
    [found] = json.loads(run("plan", CASE, "--json", *arguments).stdout)["rows"]
    return found


def test_a_row_a_case_and_why():
    result = run("plan", CASE, "short")
    assert result.exit_code == 0, result.output
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
    result = run("plan", CASE)
    assert result.exit_code == 0
    assert f"{file.name}: cannot be read" in " ".join(result.stderr.split()).replace("\n", "")
    assert "warnings.warn" not in result.stderr
