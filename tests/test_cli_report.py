"""`nkiconv report`: one file with what other commands have left; what is not there names the command that makes it."""

import json
import re

import pytest
from shell import run

from nkiconv import __version__
from nkiconv.tools.calibrate import kept
from nkiconv.tools.calibrate.measured import Slope
from nkiconv.tools.measure import rows

pytestmark = pytest.mark.simulator_only

SLOPE = Slope("scalar", "modelled", 1, 486.65, 0.1, 0.0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(path):
    """The blocks of JSON in a page, by the headings above them."""
    found = re.findall(r"^## (.*?)\n\n.*?(?:```json\n(.*?)\n```|None here: (.*?)$)", path.read_text(), re.M | re.S)
    return {title: json.loads(text) if text else None for title, text, _ in found}


def test_an_empty_folder_says_what_to_run(folder):
    assert run("report").exit_code == 0
    found = blocks(folder / "nkiconv_report.md")
    assert found["versions"]["nkiconv"] == __version__
    assert {title for title, value in found.items() if value is None} == {
        "constants", "slopes of probes", "kernels under AWS's tools", "measured", "modelled",
    }  # fmt: skip
    assert "`nkiconv calibrate` makes them" in (folder / "nkiconv_report.md").read_text()


def test_everything_that_is_there_is_in_it(folder):
    (folder / "trn2_measured.toml").write_text("[dma]\n")
    kept.append(kept.path_of(folder / "trn2_measured.toml"), "machine", SLOPE)
    (folder / "compile_check").mkdir()
    (folder / "compile_check" / "rows.jsonl").write_text('{"kernel": "short"}\n{"half')
    values = {"case": "c1k1", "p50_us": "12.5"}
    cells = ",".join(values.get(name, "") for name in rows.COLUMNS)
    (folder / "measured_trn2.csv").write_text(",".join(rows.COLUMNS) + f"\n{cells}\n")
    document = json.loads(run("report", "--json").stdout)
    assert document["constants"] == ["[dma]"]
    assert document["slopes of probes"][0]["slope"] == SLOPE.as_dict()
    assert document["kernels under AWS's tools"] == [{"kernel": "short"}, '{"half']
    assert document["measured"][0]["p50_us"] == "12.5"
    assert [(one["case"], one["modelled_us"] > 0) for one in document["modelled"]] == [("c1k1", True)]
    found = blocks(folder / "nkiconv_report.md")
    assert {title: document[title] for title in found} == found


def test_refusals(folder):
    (folder / "measured_trn2.csv").write_text("case\nc1k1\n")
    assert "has other columns" in run("report").stderr
    (folder / "measured_trn2.csv").unlink()
    assert "case='no such': unknown name" in run("report", "--case", "no such").stderr
    assert run("report").exit_code == 0
    assert "exists; name another, or overwrite it with --force" in run("report").stderr
