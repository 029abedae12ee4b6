"""`nkiconv bench --suite`: rows that are planned, checked and modelled; baselines, means, CSV, and bad input."""

import dataclasses
import json
import math
import types

import pytest
from shell import run

from nkiconv import cases
from nkiconv.tools.suites import h200, roofline_plot, suite
from nkiconv.tools.tables import readme

pytestmark = pytest.mark.simulator_only


@pytest.fixture(autouse=True)
def here(plans, tmp_path, monkeypatch):
    """A current directory of this test's own, and an empty cache of plans."""
    monkeypatch.chdir(tmp_path)


def test_rows_of_some_cases():
    result = run("bench", "--suite", "depthwise", "--only", "kda_bf16", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"]
    (row,) = document["rows"]
    assert (row["case"], row["dtype"], row["verdict"], row["channels_checked"]) == ("kda_bf16", "bf16", "pass", 384)
    assert row["x_copy_floor"] == pytest.approx(row["modelled_us"] / row["copy_floor_us"])
    assert row["h200_cudnn_fraction"] == h200.fractions()["kda_bf16", "bf16"]
    mean = document["geometric_means"]["x_copy_floor"]
    assert (mean["rows"], mean["mean"]) == (1, pytest.approx(row["x_copy_floor"]))


def test_the_table_and_a_wrong_result(monkeypatch):
    result = run("bench", "--suite", "depthwise", "--only", "kda_bf16")
    assert result.exit_code == 0, result.output
    for text in ("look-", "x copy", "cuDNN", "geometric mean", "kda_bf16"):
        assert text in result.output
    verify = suite.verify_case

    def wrong(*args, **kwargs):
        [report] = verify(*args, **kwargs)
        return [dataclasses.replace(report, comparison=dataclasses.replace(report.comparison, num_wrong=1))]

    monkeypatch.setattr(suite, "verify_case", wrong)
    result = run("bench", "--suite", "depthwise", "--only", "kda_bf16")
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_rows_do_not_depend_on_what_was_tuned(monkeypatch):
    """A quick plan is searched for anew where the cache has a tuned one, and the cache keeps that."""
    asked = []

    def answer(request, *, wide=False, use_cache=True, advance):
        asked.append((wide, use_cache))
        return types.SimpleNamespace(effort="tuned" if wide or use_cache else "timed")

    monkeypatch.setattr(suite, "answer", answer)
    request = suite.Request(problem=cases.get("kda_bf16").problem)
    assert suite.plan_of(request, False, lambda *_: None).effort == "timed"
    assert suite.plan_of(request, True, lambda *_: None).effort == "tuned"
    assert asked == [(False, True), (False, False), (True, True)]


def test_readme(monkeypatch, tmp_path):
    """The table between the markers is that of the CSV file, number by number."""
    monkeypatch.setattr(suite, "headline", lambda: [(cases.get("kda_bf16"), "bf16")])
    first, last = readme.markers("depthwise")
    (tmp_path / "page.md").write_text(f"before\n{first}old\n{last}\nafter\n")
    result = run("bench", "--suite", "depthwise", "--csv", "rows.csv", "--readme", "page.md")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page.md").read_text()
    table = readme.markdown(suite.read(tmp_path / "rows.csv"))
    assert text == f"before\n{first}{table}{last}\nafter\n"
    assert "| kda_bf16 | bf16 | mixed |" in table


def test_a_readme_without_markers_is_refused_before_any_work(tmp_path):
    (tmp_path / "page.md").write_text("nothing here\n")
    result = run("bench", "--suite", "depthwise", "--readme", "page.md")
    assert result.exit_code == 2
    assert "lacks the markers" in result.output


def test_a_baseline_that_does_not_run_has_no_number(monkeypatch):
    def refuse(request, wide, advance):
        raise suite.UnsupportedError("too many instructions")

    monkeypatch.setattr(suite, "answer", refuse)
    found = suite._baseline(suite.Request(problem=cases.get("hyena").problem), lambda *_: None)
    assert found == suite.Baseline(None, reason="too many instructions")
    mean, count = suite.geometric_mean([2.0, None, 8.0])
    assert (mean, count) == (pytest.approx(4.0), 2)
    assert math.isnan(suite.geometric_mean([None])[0])


@pytest.mark.slow
def test_rows_and_picture_of_conv2d(tmp_path):
    result = run("bench", "--suite", "conv2d", "--only", "rn50_1x1", "--plot", "roofline.png", "--json")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)["rows"]
    assert [(row["case"], row["dtype"]) for row in (first, second)] == [("rn50_1x1", "bf16"), ("rn50_1x1", "fp32")]
    x, w, y = 8 * 1024 * 14 * 14, 1024 * 256, 8 * 256 * 14 * 14
    for row in (first, second):
        assert row["verdict"] == "pass"
        assert row["x_implicit_gemm"] == pytest.approx(row["implicit_gemm_us"] / row["modelled_us"])
        shared = x if "shard=channels" in row["settings"] else w  # what both cores need
        assert row["reload"] == pytest.approx((x + w + y + shared) / (x + w + y))
        assert 0 < row["psum_banks"] <= 8
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_no_picture(monkeypatch):
    monkeypatch.setattr(roofline_plot.importlib.util, "find_spec", lambda _name: None)
    result = run("bench", "--suite", "conv2d", "--only", "rn50_1x1", "--plot", "roofline.png")
    assert result.exit_code == 2
    assert "--plot: needs matplotlib, which is not installed; run pip install" in " ".join(result.output.split())
