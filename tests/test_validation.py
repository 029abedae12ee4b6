"""The command that holds the timing model against published measurements: its table, its kernels, its page."""

import dataclasses

import pytest
from commands import of_command

pytestmark = pytest.mark.simulator_only
measured = of_command("validation", "measured")
modelled = of_command("validation", "modelled")
command = of_command("validation")
#: Rows of classes that constants were not read off, and the least and most that the model may take for them.
NEAR = [("m 2, n 1, k 8", 0.95, 1.05), ("m 2, n 6, k 4", 0.93, 1.07), ("copy of 4096 x 128", 0.95, 1.05)]


@pytest.mark.cover(0, keep=["copy of 4096 x 128"])
@pytest.mark.parametrize(("what", "least", "most"), NEAR, ids=[row[0] for row in NEAR])
def test_hardware_made_descriptors_take_what_was_measured(measured, modelled, what, least, most):
    sources = [source for source in measured.read() if "chipboost" in source.name]
    for source in sources:
        rows = tuple(row for row in source.rows if row.what == what)
        for found in modelled.outcomes(dataclasses.replace(source, rows=rows), None, {}):
            assert least < 1 + found.error < most
            assert least < 1 + found.ahead_error < most
            return
    pytest.fail("no such row")


def test_the_page(command, tmp_path):
    command.main(["--only", "runs of 64 bytes", "--out", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert page.count("| ours |") == 5
    assert "pe.row_tiles_overlap | 1 | 0 to 1" in page
    command.main(["--only", "nki-autotune", "--out", str(tmp_path / "page.md")])
    assert "No checkout of it was given." in (tmp_path / "page.md").read_text()
