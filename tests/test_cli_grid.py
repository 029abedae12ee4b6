"""Tables of any width: no digit is lost, and Markdown and CSV hold the same cells."""

import csv
import io
import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from shell import run

from nkiconv.tools.cli import shell
from nkiconv.tools.cli.grid import Grid

CASE = "nkl_n1_c16_w512_s7"
CELL = st.text("abc=,()0123456789.", min_size=1, max_size=40)


@pytest.mark.cover(3)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 300])
@given(rows=st.lists(st.tuples(CELL, CELL, st.integers(0, 10**9)), min_size=1, max_size=4))
def test_no_character_is_lost(width, rows):
    grid = Grid("numbers", ("case", "settings", "us"), ("case", "settings"))
    for name, settings, number in rows:
        grid.add(name, settings, f"{number:,}")
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    grid.show(screen)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown, held = Counter("".join(lines)), Counter("".join("".join(row) for row in grid.rows))
    assert not held - shown
    assert "…" not in shown
    for _, _, number in rows:
        assert any(f"{number:,}" in line for line in lines)


@pytest.mark.parametrize("width", range(50, 140, 3))
def test_a_table_of_many_columns_is_whole_or_paragraphs(width):
    """Rich cut the last column of such a table where the others left it less than it asked for."""
    headings = ("case", "algorithm", "mean", "phase 0", "copy floor", "of the roofline", "instructions", "bound by")
    grid = Grid("modelled us", headings, ("case", "algorithm", "bound by"))
    grid.add("short bf16", "update", "4.01", "4.01", "2.83", "0.1%", "60", "dma latency")
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    grid.show(screen)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any("dma latency" in line for line in lines)
    assert any("60" in line for line in lines)


MANY = ("case", "shape", "algorithm", "mean", "phase 0", "instructions", "bound by")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_main_columns_are_a_table_at_any_width(width):
    """Those that come first in `main` stay longest; what is left out is named."""
    grid = Grid("them", MANY, ("case", "shape", "algorithm", "bound by"), ("case", "mean", "bound by", "shape"))
    grid.add("short bf16", "8 256 14 14 -> 256 14 14", "implicit_gemm", "16.53", "17.01", "310", "tensor")
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    grid.show(screen)
    *lines, hidden = screen.file.getvalue().splitlines()
    assert hidden.startswith("--wide also shows:")
    assert max(map(len, lines)) <= width
    headings = next(line for line in lines if "mean" in line)
    assert "case" in headings
    assert "phase 0" not in headings
    assert any("16.53" in line for line in lines)
    if width >= 60:
        assert "shape" in headings


def test_wide_shows_every_column():
    found = run("plan", CASE, "--wide", width=200)
    assert "settings" in found.stdout
    assert "--wide" not in found.stdout
    assert "--wide also shows: settings" in run("plan", CASE, width=200).stdout


def test_progress_through_a_pipe_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(shell, "PLAIN_SECONDS", 0.0)
    with shell.progress(show=True) as advance:
        advance("planning", None)
        advance("timing", 0.5)
    assert re.fullmatch(r"0 s: planning\n0 s: timing, 50%\n", capsys.readouterr().err)
    with shell.progress(show=False) as advance:
        advance("nothing", 0.5)
    assert capsys.readouterr().err == ""


def test_sentences_wrap_at_words_on_a_terminal_and_are_whole_elsewhere():
    sentence = "modelled: mean over phases of the throttle's grid, program order; searched for a while"
    for terminal in (True, False):
        screen = Console(file=io.StringIO(), width=40, color_system=None, force_terminal=terminal)
        shell.say(screen, sentence)
        lines = screen.file.getvalue().splitlines()
        assert " ".join(line.strip() for line in lines) == sentence
        assert (max(map(len, lines)) <= 40) == terminal


def test_a_table_without_rows_is_its_headings():
    screen = Console(file=io.StringIO(), width=80)
    Grid("none", ("case", "us"), ("case",)).show(screen)
    assert "case" in screen.file.getvalue()


@pytest.mark.cover(3, keep=["bench-60"])
@pytest.mark.simulator_only
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("arguments", [
    ("plan", CASE, "rn50_1x1"),
    ("profile", CASE),
    ("bench", CASE, "--target", "model"),
    ("crossover", "--vary", "S", "--values", "3,4", "--C", "16", "--W", "64"),
    ("cases",),
    ("run", CASE),
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_commands_cut_nothing(arguments, width):
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout


@pytest.mark.simulator_only
def test_csv_and_markdown_are_the_table():
    [header, row] = csv.reader(io.StringIO(run("plan", CASE, "--format", "csv").stdout))
    plan = json.loads(run("plan", CASE, "--json").stdout)["rows"][0]
    found = dict(zip(header, row, strict=True))
    assert found["algorithm"] == plan["algorithm"]
    assert float(found["modelled us"]) == pytest.approx(plan["modelled_us"], abs=0.005)
    lines = run("plan", CASE, "--format", "markdown").stdout.splitlines()
    assert lines[0] == "| " + " | ".join(header) + " |"
    assert lines[2] == "| " + " | ".join(row) + " |"


@pytest.mark.simulator_only
def test_quiet_leaves_the_notes_out():
    assert "mean over phases" in run("plan", CASE).stdout
    assert "mean over phases" not in run("plan", CASE, "--quiet").stdout


def test_version_and_help():
    assert run("--version").stdout.startswith("nkiconv ")
    assert run("plan", "-h").stdout == run("plan", "--help").stdout
