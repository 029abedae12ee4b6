"""The robust choice: among plans that are nearly as fast, the one that loses least where a constant is wrong."""

import csv

import pytest
from typer.testing import CliRunner

import nkiconv
from nkiconv import cases
from nkiconv.errors import UnsupportedError
from nkiconv.planner.robust import percent_of
from nkiconv.tools.cli import app


@pytest.mark.slow
@pytest.mark.simulator_only
def test_the_last_plan_is_kept_with_how_robust_it_is(plans):
    problem = nkiconv.ConvProblem(N=1, C=16, W=64, S=3)
    found = nkiconv.plan(problem, robust="on")
    assert (found.robust, found.cached) == (2, False)
    assert nkiconv.plan(problem).cached
    assert nkiconv.plan(problem, robust=2).cached
    other = nkiconv.plan(problem, robust=3.5)
    assert (other.robust, other.cached) == (3.5, False)
    assert nkiconv.plan(problem, robust=3.5).cached
    plain = nkiconv.plan(problem)
    assert (plain.robust, plain.cached) == (2, False)
    tuned = nkiconv.plan(problem, robust="off", wide=True)
    assert nkiconv.plan(problem) == tuned
    assert (nkiconv.plan(problem, robust="on").robust, tuned.robust) == (2, 0)
    assert other.fastest_us <= other.modelled_us <= 1.035 * other.fastest_us
    assert nkiconv.Plan.from_json(other.to_json()) == other


@pytest.mark.slow
@pytest.mark.simulator_only
def test_a_plan_that_hedges_at_no_cost():
    """GpSimd may take twice as long for an element; another split of the channels is as fast without."""
    problem = cases.get("mamba2_prefill").problem
    fast, found = (nkiconv.plan(problem, robust=how, use_cache=False) for how in ("off", "on"))
    assert found.fastest_us == fast.modelled_us
    assert found.modelled_us <= 1.02 * fast.modelled_us
    assert fast.risks[0].constant == "gpsimd.elementwise_ns_per_elem"
    assert found.worst_regret < 1.02 < fast.worst_regret == found.fastest_regret
    assert f"robust: the fastest takes {fast.modelled_us:,.2f} us, but " in found.explain()
    assert (
        f"gpsimd.elementwise_ns_per_elem, which is inferred, may be 3.3333: {fast.risks[0].us:,.2f}" in fast.explain()
    )


@pytest.mark.parametrize(("value", "percent"), [("off", 0), ("on", 2), (5, 5), ("2.5", 2.5), (0, 0)])
def test_per_cent(value, percent):
    assert percent_of(value) == percent


@pytest.mark.parametrize("value", ["yes", -1, 101, float("nan")])
def test_what_is_no_per_cent_is_refused(value):
    with pytest.raises(UnsupportedError, match=r"^robust=.*: must be off, on or per cent from 0 to 100; use robust=on"):
        percent_of(value)


@pytest.mark.simulator_only
def test_the_table_has_regrets_where_they_were_asked_for(plans):
    plain, found = (
        next(csv.DictReader(CliRunner().invoke(app, ["plan", "short", "--format", "csv", *more]).stdout.splitlines()))
        for more in ([], ["--robust", "on"])
    )
    assert not {"worst regret", "fastest us", "its regret"} & set(plain)
    assert found["fastest us"] == found["modelled us"] == plain["modelled us"]
    assert found["worst regret"] == found["its regret"] > "1.02"
