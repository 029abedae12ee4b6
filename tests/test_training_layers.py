"""`examples/training_layers.py`: the table of docs/training.md."""

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulator_only
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_row_is_that_of_the_page(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["training_layers.py", "--only", "kda"])
    runpy.run_path(str(ROOT / "examples" / "training_layers.py"), run_name="__main__")
    titles, ruler, row = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").splitlines()
    assert titles in page
    assert row in page
    assert set(ruler) == set("|-: ")
