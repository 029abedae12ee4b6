"""The guided tour leaves its pictures and passes its own checks; its filters do what their names say."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.tools import demo
from nkiconv.tools.cli import app
from nkiconv.tools.demo import clip, eeg, image, photograph, plots, training
from nkiconv.tools.demo.curves import Curves

PICTURES = {
    "eeg.png", "photograph.png", "photograph-blur.png", "photograph-derivative.png", "photographs.png", "image.png",
    "clip.png", "training.png",
}  # fmt: skip
ROWS = [
    ("EEG, 4 FIR filters", 1),
    ("EEG, 4 FIR filters", 2),
    ("photograph, blur", 2),
    ("photograph, derivative", 2),
    *((name, lnc) for name in image.NAMES for lnc in (1, 2)),
    ("clip, blur", 1),
    ("clip, blur", 2),
    ("clip, blur, frame 1", 2),
    ("clip, blur, frames 2-5", 2),
    ("clip, blur, frames 6-9", 2),
    ("clip, 9 to 17 frames", 1),
    ("clip, 9 to 17 frames", 2),
    ("nkl_fs_asr", 1),
    ("nkl_fs_asr", 2),
]

pytestmark = pytest.mark.simulator_only


@pytest.fixture
def small_picture(monkeypatch):
    """A corner of the photograph and few steps, so that drawing and running them are quick; one tour for all forms."""
    whole, tour, toured = photograph.picture(), demo.run, []
    monkeypatch.setattr(photograph, "picture", lambda: whole[100:148, 200:296])
    monkeypatch.setattr(training, "STEPS", 3)

    def run(out, advance):
        if not toured:
            toured.extend((out, tour(out, advance)))
        first, found = toured
        if out != first:
            shutil.copytree(first, out, dirs_exist_ok=True)
        return dataclasses.replace(found, files=tuple(out / path.name for path in found.files))

    monkeypatch.setattr(demo, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("small_picture")
def test_the_tour(tmp_path):
    """As text, with what each took, and as JSON."""
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "new" / "folder")], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    written = {path.name: path for path in (tmp_path / "new" / "folder").iterdir()}
    assert set(written) == PICTURES
    for path in written.values():
        assert plots.read_picture(path).shape[:2] >= (40, 96)
        assert path.name in result.stdout
    for name, _ in ROWS:
        assert name in result.stdout
    assert training.TITLE in result.stdout
    verdict, files = result.stdout.splitlines()[-2:]
    assert verdict.startswith("all right: all 21 results are within the error bound of the float64 reference")
    assert verdict.endswith("one core and two give the same bits, training follows torch's losses")
    assert files.startswith(f"open {tmp_path / 'new' / 'folder' / 'eeg.png'}; also drawn: ")
    assert "SBUF" not in result.stdout
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "verbose"), "--verbose"])
    assert "identical to lnc 1" in result.stdout
    assert " ".join(result.stdout.split()).count("identical to one run") == len(clip.CHUNKS)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "json"), "--json"])
    found = json.loads(result.stdout)
    assert found["ok"] is True
    assert [(report["name"], report["lnc"]) for report in found["rows"]] == ROWS
    assert {report["verdict"] for report in found["rows"]} == {"pass"}
    assert [report["identical"] for report in found["rows"]] == [
        None, True, None, None, *[None, True] * 4, None, True, *[None] * 3, *[None, True] * 2,
    ]  # fmt: skip
    assert [report["same_as_whole"] for report in found["rows"]] == [None] * 14 + [True] * 3 + [None] * 4
    assert len(found["files"]) == len(PICTURES)
    (learnt,) = found["training"]
    assert learnt["ok"] is True
    assert [len(learnt[name]) for name in ("float64", "kernels", "apart", "allowed")] == [3] * 4


@pytest.mark.parametrize("failed", ["report", "curves"])
def test_a_failed_check_is_an_exit_status(failed, monkeypatch, tmp_path):
    apart = Curves("learns", "float64", [1.0, 0.5], {"kernels": [1.0, 0.501]})
    part = demo.Part((FailedReport(),), ()) if failed == "report" else demo.Part((), (), (apart,))
    monkeypatch.setattr(demo, "run", lambda out, advance: part)
    assert CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--json"]).exit_code == 1


class FailedReport:
    """Stands for a report that did not pass."""

    ok = False

    def as_dict(self):
        """Nothing to say."""
        return {}


def test_out_must_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "UnsupportedError: --out=" in result.stderr


def test_missing_matplotlib_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"needs matplotlib, .*pip install '\.\[plots\]'"):
        eeg.recording()


def test_missing_sample_data_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("matplotlib.cbook.get_sample_data", lambda name, asfileobj: tmp_path / name)
    with pytest.raises(UnsupportedError, match=r"eeg\.dat: is missing from matplotlib's sample data"):
        eeg.recording()


def test_a_recording_of_another_size_is_refused(monkeypatch, tmp_path):
    np.zeros(7).tofile(tmp_path / "eeg.dat")
    monkeypatch.setattr(plots, "sample_data", lambda name: tmp_path / name)
    with pytest.raises(FileFormatError, match=r"eeg\.dat: holds 7 numbers, not 800 samples of 4 electrodes"):
        eeg.recording()


@pytest.mark.cover(1)
@pytest.mark.parametrize("wrong", ["forward", "toward_layer", "toward_input"])
def test_training_notices_what_is_wrong(wrong, small_picture, plainly, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "_draw", lambda *_: None)
    real = getattr(training.KERNELS, wrong)

    def off(*args):
        found = real(*args)
        return (found[0] * np.float32(1.001), found[1]) if isinstance(found, tuple) else found * np.float32(1.001)

    monkeypatch.setattr(training, "KERNELS", dataclasses.replace(training.KERNELS, **{wrong: off}))
    curves, _ = training.run(photograph.picture(), tmp_path, lambda what, share: None)
    assert not curves.ok
