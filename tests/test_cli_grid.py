"""Tables of any width: no digit is lost, and Markdown and CSV hold the same cells."""

import io
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from shell import run

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


@pytest.mark.parametrize("width", [50, 77, 113])
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


@pytest.mark.cover(1, keep=["bench-60"])
@pytest.mark.simulator_only
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
    result = run(*arguments, width=width)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
