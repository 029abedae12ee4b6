"""Two targets side by side: which constants differ, and which plans change."""

import dataclasses

import pytest

import nkiconv
from nkiconv import cases
from nkiconv.errors import UnsupportedError
from nkiconv.simulator.constants import SHIPPED
from nkiconv.tools.calibrate.compare import compare

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]


def target(**values):
    """trn2.toml with other values of DMA's constants."""
    rows = {f"dma.{name}": value for name, value in values.items()}
    return {**SHIPPED, **{name: dataclasses.replace(SHIPPED[name], value=value) for name, value in rows.items()}}


def test_constants_and_plans():
    """Times are those of plans under the same overrides; a plan that stays is told once."""
    short = cases.get("short")
    found = compare(SHIPPED, target(static_issue_ns=670.0, sem_write_ns=0.0), [short])
    assert [(one.name, one.old, one.new) for one in found.constants] == [
        ("dma.sem_write_ns", 7, 0),
        ("dma.static_issue_ns", 58, 670),
    ]
    assert [one.ratio for one in found.constants] == [0, pytest.approx(670 / 58)]
    (change,) = found.changes
    overrides = {one.name: one.new for one in found.constants}
    assert change.old.modelled_us == nkiconv.plan(short.problem).modelled_us
    assert change.new.modelled_us == nkiconv.plan(short.problem, constants=overrides).modelled_us
    assert change.kept_us >= change.new.modelled_us > change.old.modelled_us
    assert [row[0] for row in found.constant_rows()] == ["dma.sem_write_ns", "dma.static_issue_ns"]
    (row,) = found.case_rows()
    assert row[3] == f"{change.new.modelled_us:,.2f}"
    assert (row[-1] == "the same") is not change.is_other


def test_a_case_that_cannot_be_planned_is_refused():
    short = cases.get("short")
    case = dataclasses.replace(short, problem=short.problem.replace(dtype="fp8_e4m3"))
    with pytest.raises(UnsupportedError, match="dtype='fp8_e4m3'"):
        compare(SHIPPED, SHIPPED, [case])
