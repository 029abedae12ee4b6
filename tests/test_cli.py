"""The command line in this process: tables of any width, of which no digit is lost, JSON, files in and out, and every
bad input with its name and status; `nkiconv cache`; `nkiconv report`, one file with what other commands left.
"""

import dataclasses
import io
import json
import re
from collections import Counter

import numpy as np
import pytest
from commands import done, run
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nkiconv import ConvProblem, __version__, cases, plan
from nkiconv.planner import cache, entry
from nkiconv.planner.request import Asked, Request
from nkiconv.tools.calibrate import session
from nkiconv.tools.calibrate.measured import Slope
from nkiconv.tools.cli import app
from nkiconv.tools.cli.grid import Grid
from nkiconv.tools.measure import rows
from nkiconv.tools.verify import depthwise_conv1d as verify

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]
COMMANDS = [command.name for command in app.registered_commands]


@pytest.fixture
def arrays(here):
    """A current directory with x and a filter."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 5, 40)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    np.save("x.npy", x)
    np.save("w.npy", w)
    return here


def test_several_cases_in_one_table():
    result = done("run", "short", "nkl_n1_c16_w512_s7", "--lnc", "both", "--wide")
    for text in ("short", "N=3 C=130 W=2 S=2", "nkl_n1_c16_w512_s7", "identical to lnc 1", "all 130 channels", "pass"):
        assert text in result.stdout
    assert result.stdout.count("convolutions on nkiconv's simulator") == 1
    last = (
        "all right: all 4 results are within the error bound of the float64 reference, one core and two give the same"
    )
    assert result.stdout.splitlines()[-1].startswith(last)
    table, _, _ = result.stdout.partition("bound: ")
    assert max(map(len, table.splitlines())) <= 120


def test_a_wrong_result_is_status_1_and_no_file(arrays, monkeypatch):
    launch = verify.run_depthwise_conv1d

    def wrong(x, w, problem, **options):
        done = launch(x, w, problem, **options)
        if not options.get("trace_only"):
            done.y[0, 3, 5] += 1
        return done

    monkeypatch.setattr(verify, "run_depthwise_conv1d", wrong)
    result = run("run", "--input", "x.npy", "--filter", "w.npy", "--out", "y.npy")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("WRONG: 1 of 1 checks failed: x.npy on 2 cores (fail: 1 wrong,")
    assert "1 wrong, worst n=0 c=3 q=5" in result.stdout
    assert "y.npy was not written: the result is wrong" in result.stdout
    assert not (arrays / "y.npy").exists()


@pytest.mark.usefixtures("arrays")
def test_nan_needs_strict_nonfinite():
    """40 channels of long rows and filters share matmuls, unless they are kept apart."""
    x = np.ones((1, 40, 3000), np.float32)
    x[0, 0, 3] = np.nan
    np.save("x_nan.npy", x)
    np.save("w_long.npy", np.ones((40, 40), np.float32))
    files = ("--input", "x_nan.npy", "--filter", "w_long.npy")
    spread = run("run", *files)
    assert spread.exit_code == 1
    assert "an infinite error comes from NaN or Inf in x; --strict-nonfinite keeps them" in spread.stdout
    assert json.loads(run("run", *files, "--json").stdout)["rows"][0]["max_error"] == "inf"
    assert run("run", *files, "--strict-nonfinite").exit_code == 0


def test_the_environment_must_fit_the_launch(monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    result = run("run", "short")
    assert result.exit_code == 2
    assert "NKI026: launch: kernel[2] contradicts NEURON_LOGICAL_NC_CONFIG=1" in result.stderr


def test_listing_cases():
    result = done("cases")
    assert all(name in result.stdout for name in cases.names())
    only = run("cases", "--suite", "conv2d").stdout
    assert "31 cases" in only
    assert "nkl_fs_asr" not in only


@pytest.mark.cover(3)
@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help(command):
    result = done(*command, "--help")
    assert "Usage" in result.stdout
    flags = [line.split()[1] for line in result.stdout.splitlines() if "<bool>" in line]
    assert set(flags) <= {"--help", "--version", "--install-completion", "--show-completion"}, "flags take no value"


def test_help_lists_commands_by_what_they_are_for():
    text = done("--help").stdout
    titles = "Kernels: run and check", "Times and plans, modelled", "AWS's tools and trn2", "nkiconv itself"
    assert sorted(titles, key=text.index) == list(titles)
    assert all(re.search(rf"^\W* {name} ", text, re.MULTILINE) for name in COMMANDS)


PROBLEM = ConvProblem(N=1, C=8, W=40, S=3, groups=8)


def test_what_is_kept_is_listed(plans):
    assert f"0 files in {plans}" in " ".join(run("cache", "list", width=300).stdout.split())
    assert run("cache", "clear").stdout.startswith("deleted 0 files (0 B)")
    found, request = plan(PROBLEM), Request(problem=PROBLEM.replace(N=2), asked=Asked(bias=True, activation="silu"))
    quick = entry.answer(request, quick=True)
    cache.store(request, cache.Estimate(quick.algorithm, quick.config))
    (plans / ("0" * 32 + ".json")).write_text("{")
    (plans / "mine.json").write_text("{}")
    rows = json.loads(run("cache", "list", "--json").stdout)["rows"]
    kinds = [("estimate", True), ("plan", True), ("unreadable", False)]
    assert sorted((row["kind"], row["current"]) for row in rows) == kinds
    [row] = [row for row in rows if row["kind"] == "plan"]
    assert row["problem"] == "N=1 C=8 W=40 S=3 bf16"
    assert (row["algorithm"], row["modelled_us"], row["current"]) == (found.algorithm, found.modelled_us, True)
    assert row["target"] == "trn2"
    lines = run("cache", "list", "--format", "csv").stdout
    assert "N=1 C=8 W=40 S=3 bf16,plan,2,trn2," in lines
    assert "N=2 C=8 W=40 S=3 bf16 bias activation=silu,estimate,2,trn2," in lines
    assert [row["asked"] for row in rows if row["kind"] != "unreadable"].count({}) == 1


@pytest.mark.parametrize("command", ["list", "clear"])
@pytest.mark.parametrize("name", ["file", "file/plans"])
def test_a_cache_that_is_no_directory_is_refused(tmp_path, monkeypatch, name, command):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path / name))
    found = run("cache", command)
    assert found.exit_code == 2
    assert f"{name}: cannot be listed (Not a directory); set NKICONV_CACHE to a directory" in found.stderr


def test_clear_leaves_other_files_and_what_is_current(plans, monkeypatch):
    plan(PROBLEM)
    (plans / "mine.json").write_text("{}")
    assert json.loads(run("cache", "clear", "--stale", "--json").stdout)["deleted"] == 0
    monkeypatch.setattr(cache, "_sources", lambda: "other sources")
    assert "yes" in run("cache", "list", "--stale").stdout
    assert json.loads(run("cache", "clear", "--stale", "--json").stdout)["deleted"] == 1
    assert [one.name for one in plans.iterdir()] == ["mine.json"]
    assert not plan(PROBLEM).cached


SLOPE = Slope("scalar", "modelled", 1, 486.65, 0.1, 0.0)


def blocks(path):
    """The blocks of JSON in a page, by the headings above them."""
    found = re.findall(r"^## (.*?)\n\n.*?(?:```json\n(.*?)\n```|None here: (.*?)$)", path.read_text(), re.M | re.S)
    return {title: json.loads(text) if text else None for title, text, _ in found}


def test_an_empty_folder_says_what_to_run(here):
    assert run("report").exit_code == 0
    found = blocks(here / "nkiconv_report.md")
    assert found["versions"]["nkiconv"] == __version__
    assert {title for title, value in found.items() if value is None} == {
        "constants", "slopes of probes", "kernels under AWS's tools", "measured", "modelled",
    }  # fmt: skip
    assert "`nkiconv calibrate` makes them" in (here / "nkiconv_report.md").read_text()


def test_everything_that_is_there_is_in_it(here):
    (here / "trn2_measured.toml").write_text("[dma]\n")
    session.append(session.path_of(here / "trn2_measured.toml"), "machine", SLOPE)
    (here / "compile_check").mkdir()
    (here / "compile_check" / "rows.jsonl").write_text('{"kernel": "short"}\n{"half')
    values = {"case": "c1k1", "p50_us": "12.5"}
    cells = ",".join(values.get(name, "") for name in rows.COLUMNS)
    (here / "measured_trn2.csv").write_text(",".join(rows.COLUMNS) + f"\n{cells}\n")
    document = json.loads(run("report", "--json").stdout)
    assert document["constants"] == ["[dma]"]
    assert document["slopes of probes"][0]["slope"] == dataclasses.asdict(SLOPE)
    assert document["kernels under AWS's tools"] == [{"kernel": "short"}, '{"half']
    assert document["measured"][0]["p50_us"] == "12.5"
    assert [(one["case"], one["modelled_us"] > 0) for one in document["modelled"]] == [("c1k1", True)]
    found = blocks(here / "nkiconv_report.md")
    assert {title: document[title] for title in found} == found


def test_refusals(here):
    (here / "measured_trn2.csv").write_text("case\nc1k1\n")
    assert "has other columns" in run("report").stderr
    (here / "measured_trn2.csv").unlink()
    assert "case='no such': unknown name" in run("report", "--case", "no such").stderr
    assert run("report").exit_code == 0
    assert "exists; name another, or overwrite it with --force" in run("report").stderr


CASE = "nkl_n1_c16_w512_s7"
CELL = st.text("abc=,()0123456789.", min_size=1, max_size=40)


def lines_of(grid, width):
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    grid.show(screen)
    return screen.file.getvalue().splitlines()


@pytest.mark.cover(3)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 300])
@given(rows=st.lists(st.tuples(CELL, CELL, st.integers(0, 10**9)), min_size=1, max_size=4))
def test_no_character_is_lost(width, rows):
    grid = Grid("numbers", ("case", "settings", "us"), ("case", "settings"))
    for name, settings, number in rows:
        grid.add(name, settings, f"{number:,}")
    lines = lines_of(grid, width)
    assert max(map(len, lines)) <= width
    shown, held = Counter("".join(lines)), Counter("".join("".join(row) for row in grid.rows))
    assert not held - shown
    assert "…" not in shown
    for _, _, number in rows:
        assert any(f"{number:,}" in line for line in lines)


def test_where_words_break():
    """A column with room gives it to a word that would; one longer than a column goes on after a dot."""
    grid = Grid("shapes", ("case", "who", "us"), ("case", "who"))
    grid.add("a_case_of_27_characters_now", "a layer of a model, of two words", "1.0")
    assert any("a_case_of_27_characters_now" in line for line in lines_of(grid, 48))
    grid = Grid("layers", ("layer", "us"), ("layer",))
    grid.add("encoder.mid_block.resnets.0.conv1 +5 more", "1.0")
    lines = [line.split("  ")[0].strip() for line in lines_of(grid, 30)]
    assert lines[4:7] == ["encoder.mid_block.", "resnets.0.conv1 +5 more", ""]


@pytest.mark.cover(1, keep=["bench-60"])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("arguments", [
    ("plan", CASE),
    ("profile", CASE),
    ("bench", CASE, "--target", "model"),
    ("crossover", "--vary", "S", "--values", "3,4", "--C", "16", "--W", "64"),
    ("cases",),
    ("run", CASE),
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_commands_cut_nothing(arguments, width):
    result = done(*arguments, width=width)
    assert "…" not in result.stdout
