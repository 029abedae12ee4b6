"""profiles/modelled_trn2.csv is what the kernels and the model of this commit give."""

from pathlib import Path

import pytest

from nkiconv import FileFormatError
from nkiconv.tools.suites import profile_table

pytestmark = pytest.mark.simulator_only
FILE = Path(__file__).parents[1] / "profiles" / "modelled_trn2.csv"
COMMITTED = {(row["case"], row["dtype"]): row for row in profile_table.read(FILE)}
#: Rows with more instructions take seconds to tens of seconds: `make test-all` checks them.
QUICK_INSTRUCTIONS = 1_500


def test_the_file_has_every_headline_case_in_both_dtypes():
    assert list(COMMITTED) == [(case.name, dtype) for case, dtype in profile_table.headline()]
    assert len(COMMITTED) >= 20
    assert {dtype for _, dtype in COMMITTED} == {"bf16", "fp32"}


def is_quick(key):
    return int(COMMITTED[key]["instructions"]) <= QUICK_INSTRUCTIONS


def check(key):
    case, dtype = next(pair for pair in profile_table.headline() if (pair[0].name, pair[1]) == key)
    (fresh,) = profile_table.rows([(case, dtype)])
    assert profile_table.stale(COMMITTED[key], fresh) == [], "run `make profiles` and say in the commit what moved"


@pytest.mark.cover(1)
@pytest.mark.parametrize("key", [key for key in COMMITTED if is_quick(key)], ids="-".join)
def test_quick_rows_are_current(key):
    check(key)


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in COMMITTED if not is_quick(key)], ids="-".join)
def test_long_rows_are_current(key):
    check(key)


def test_what_is_stale():
    row = dict(next(iter(COMMITTED.values())))
    assert profile_table.stale(row, row) == []
    moved = {**row, "modelled_us": str(float(row["modelled_us"]) * 1.002)}
    (found,) = profile_table.stale(row, moved)
    assert found.startswith("modelled_us is ")
    little = {**row, "modelled_us": str(float(row["modelled_us"]) * 1.0005)}
    assert profile_table.stale(row, little) == []


def test_another_header_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("case,dtype\n")
    with pytest.raises(FileFormatError, match="has other columns"):
        profile_table.read(tmp_path / "x.csv")
