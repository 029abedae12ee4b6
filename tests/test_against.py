"""`nkiconv bench --suite depthwise --against`: a stand-in checkout with a kernel of our own, timed beside the plans."""

import csv
import json
import sys

import pytest
from shell import run

from nkiconv import cases
from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.tools.suites import nki_library, suite
from nkiconv.tools.tables import readme

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans", "here")]

#: Our kernel in place of AWS's, for padding 0; with a bias it is wrong.
KERNEL = """
import nki
from nkiconv import depthwise_conv1d_implicit_gemm as ours

from ...core.helpers import no_padding


@nki.jit
def depthwise_conv1d_implicit_gemm(img_ref, filter_ref, padding, **more):
    assert padding[1] == no_padding, "only padding 0"
    return ours(img_ref, filter_ref, padding, bias=WRONG, **more)
"""
FS_ASR = "nkl_fs_asr"


@pytest.fixture
def checkout(tmp_path):
    return stand_in(tmp_path / "library")


def stand_in(root, kernel=None):
    """A checkout with this kernel, or with one that is right."""
    package = root / "src" / "nkilib_src"
    for folder in ("nkilib/experimental/conv", "nkilib/core"):
        (package / folder).mkdir(parents=True)
    (package / "nkilib/core/helpers.py").write_text("no_padding = (0, 0)\n")
    (package / "nkilib/experimental/conv/depthwise_conv1d.py").write_text(kernel or KERNEL.replace("WRONG", "None"))
    return root


def few(monkeypatch, *pairs):
    """The suite has only these, of fewer channels."""
    found = []
    for name, dtype, C in pairs:
        case = cases.get(name)
        problem = case.problem.replace(C=C, K=C, groups=C)
        found.append((cases.Case(case.name, case.suite, problem, case.source, case.headline), dtype))
    monkeypatch.setattr(suite, "headline", lambda: found)


def bench(*arguments):
    return run("bench", "--suite", "depthwise", "--against", *arguments)


def test_rows(monkeypatch, checkout):
    few(monkeypatch, ("nkl_n1_c16_w512_s3", "bf16", 2))
    before = set(sys.modules), list(sys.path)
    result = bench(checkout, "--check", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"]
    [row] = document["rows"]
    assert row["nki_library_instructions"] > 0
    assert row["nki_library_check"] == "pass"
    assert row["x_nki_library"] == pytest.approx(row["nki_library_us"] / row["modelled_us"])
    lookahead = row["nki_library_lookahead_us"]
    assert 0 < lookahead <= row["nki_library_phase0_us"]
    assert row["x_nki_library_lookahead"] == pytest.approx(lookahead / row["modelled_phase0_us"])
    assert document["geometric_means"]["rows"] == 1
    assert not {name for name in sys.modules if name == "nki" or "nkilib" in name}
    assert set(before[0]) <= set(sys.modules)
    assert sys.path == before[1]


def test_csv_readme_and_table(monkeypatch, checkout, tmp_path):
    few(monkeypatch, (FS_ASR, "bf16", 2), ("mamba2_prefill", "bf16", 2))
    first, last = readme.AGAINST_MARKERS
    (tmp_path / "page.md").write_text(f"before\n{first}old\n{last}\nafter\n")
    result = bench(checkout, "--csv", "rows.csv", "--readme", "page.md")
    assert result.exit_code == 0, result.output
    assert "mamba2_prefill bf16: AWS's is not timed: " in result.stdout
    assert "only padding 0" in result.stdout
    assert "wrote rows.csv" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:8])) <= 120
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        timed, refused = csv.DictReader(file)
    assert float(timed["x_nki_library"]) == pytest.approx(1, rel=0.1)
    assert (refused["nki_library_us"], refused["x_nki_library"]) == ("", "")
    table = readme.markdown(suite.read(tmp_path / "rows.csv"), readme.AGAINST_COLUMNS)
    assert (tmp_path / "page.md").read_text() == f"before\n{first}{table}{last}\nafter\n"
    assert f"| {FS_ASR} | bf16 | " in table


def test_a_wrong_result_is_status_1(monkeypatch, tmp_path):
    few(monkeypatch, (FS_ASR, "bf16", 2))
    checkout = stand_in(tmp_path / "wrong", KERNEL.replace("WRONG", "filter_ref[:, 0, 0, 0]"))
    result = bench(checkout, "--check")
    assert result.exit_code == 1
    assert "wrong" in result.stdout
    assert bench(checkout).exit_code == 0


def test_what_was_imported_before_is_there_again(checkout, monkeypatch):
    mine = type(sys)("nkilib_src")
    monkeypatch.setitem(sys.modules, "nkilib_src", mine)
    with nki_library.opened(checkout):
        assert sys.modules["nkilib_src"] is not mine
    assert sys.modules["nkilib_src"] is mine


def test_a_file_that_does_not_load_is_refused_by_name(tmp_path):
    broken = stand_in(tmp_path / "broken", "import no_such_package\n")
    with pytest.raises(FileFormatError, match=r"broken: nkilib_src\..*does not load \(ModuleNotFoundError: .*such"), \
            nki_library.opened(broken):  # fmt: skip
        pass
    other = stand_in(tmp_path / "other", "x = 1\n")
    with pytest.raises(FileFormatError, match="AttributeError"), nki_library.opened(other):
        pass


def test_awss_own_nki_is_not_hidden(checkout, monkeypatch):
    theirs = type(sys)("nki")
    theirs.__file__ = "site-packages/nki/__init__.py"
    monkeypatch.setitem(sys.modules, "nki", theirs)
    with (
        pytest.raises(UnsupportedError, match="compare where AWS's nki is not installed"),
        nki_library.opened(checkout),
    ):
        pass
