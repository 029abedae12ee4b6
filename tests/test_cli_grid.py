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


@pytest.mark.parametrize("width", range(50, 140, 9))
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
