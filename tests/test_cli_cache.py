"""`nkiconv cache list` and `nkiconv cache clear`."""

import json

import pytest
from shell import run

from nkiconv import ConvProblem, plan
from nkiconv.planner import cache, entry
from nkiconv.planner.request import Asked, Request

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
PROBLEM = ConvProblem(N=1, C=8, W=40, S=3, groups=8)


def test_an_empty_cache(plans):
    assert f"0 files in {plans}" in " ".join(run("cache", "list", width=300).stdout.split())
    assert run("cache", "clear").stdout.startswith("deleted 0 files (0 B)")


def test_what_is_kept_is_listed(plans):
    found = plan(PROBLEM)
    (plans / ("0" * 32 + ".json")).write_text("{")
    (plans / "mine.json").write_text("{}")
    rows = json.loads(run("cache", "list", "--json").stdout)["rows"]
    assert [row["kind"] for row in sorted(rows, key=lambda row: row["kind"])] == ["plan", "unreadable"]
    [row] = [row for row in rows if row["kind"] == "plan"]
    assert row["problem"] == "N=1 C=8 W=40 S=3 bf16"
    assert (row["algorithm"], row["modelled_us"], row["current"]) == (found.algorithm, found.modelled_us, True)
    assert row["target"] == "trn2"
    assert "N=1 C=8 W=40 S=3 bf16,plan,2,trn2," in run("cache", "list", "--format", "csv").stdout


def test_estimates_are_listed_and_current(plans):
    request = Request(problem=PROBLEM, asked=Asked())
    cache.store_estimate(request, entry.answer(request, quick=True))
    (plans / ("0" * 32 + ".json")).write_text("[]")
    rows = json.loads(run("cache", "list", "--json").stdout)["rows"]
    assert sorted((row["kind"], row["current"]) for row in rows) == [("estimate", True), ("unreadable", False)]


def test_clear_leaves_other_files_and_what_is_current(plans, monkeypatch):
    plan(PROBLEM)
    (plans / "mine.json").write_text("{}")
    assert json.loads(run("cache", "clear", "--stale", "--json").stdout)["deleted"] == 0
    monkeypatch.setattr(cache, "_sources", lambda: "other sources")
    assert "yes" in run("cache", "list", "--stale").stdout
    assert json.loads(run("cache", "clear", "--stale", "--json").stdout)["deleted"] == 1
    assert [one.name for one in plans.iterdir()] == ["mine.json"]
    assert not plan(PROBLEM).cached


def test_without_a_directory(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    for name in ("NKICONV_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("nkiconv.planner.cache.Path.home", nowhere)
    result = run("cache", "list")
    assert result.exit_code == 2
    assert "NKICONV_CACHE: is not set" in result.stderr
