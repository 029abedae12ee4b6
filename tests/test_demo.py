"""The guided tour leaves its pictures and passes its own checks; its filters do what their names say."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from commands import run

from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.tools import demo
from nkiconv.tools.cli.show import verdict
from nkiconv.tools.demo import eeg, photograph, plots, training
from nkiconv.tools.demo.curves import Curves

PICTURES = {
    "eeg.png", "photograph.png", "photograph-blur.png", "photograph-derivative.png", "photographs.png", "image.png",
    "clip.png", "training.png",
}  # fmt: skip
pytestmark = pytest.mark.simulator_only


@pytest.fixture
def small_picture(monkeypatch):
    """A corner of the photograph and few steps, so that drawing and running them are quick."""
    whole = photograph.picture()
    monkeypatch.setattr(photograph, "picture", lambda: whole[100:148, 200:296])
    monkeypatch.setattr(training, "STEPS", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("small_picture")
def test_the_tour(tmp_path):
    result = run("demo", "--out", tmp_path / "new" / "folder", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (0, True)
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == PICTURES
    assert all(plots.read_picture(path).shape[:2] >= (40, 96) for path in (tmp_path / "new" / "folder").iterdir())
    assert len(found["files"]) == len(PICTURES)
    assert {report["verdict"] for report in found["rows"]} == {"pass"}
    assert {report["identical"] for report in found["rows"] if report["lnc"] == 2} <= {None, True}
    assert {report["same_as_whole"] for report in found["rows"]} == {None, True}
    (learnt,) = found["training"]
    assert learnt["ok"] is True
    assert [len(learnt[name]) for name in ("float64", "kernels", "apart", "allowed")] == [3] * 4


@pytest.mark.usefixtures("small_picture")
@pytest.mark.cover(2)
@pytest.mark.parametrize("stop", demo._STOPS[:-1], ids=lambda stop: stop.__name__)
def test_a_stop_of_the_tour(stop, tmp_path):
    """But the last one, training."""
    part = stop(tmp_path, lambda what, share: None)
    assert part.ok
    assert {report.verdict for report in part.reports} == {"pass"}
    assert sorted(part.files) == sorted(tmp_path.iterdir())


@pytest.mark.parametrize("failed", ["report", "curves"])
def test_a_failed_check_is_an_exit_status(failed, monkeypatch, tmp_path):
    apart = Curves("learns", "float64", [1.0, 0.5], {"kernels": [1.0, 0.501]})
    report = SimpleNamespace(ok=False, as_dict=dict)
    part = demo.Part((report,), ()) if failed == "report" else demo.Part((), (), (apart,))
    monkeypatch.setattr(demo, "run", lambda out, advance: part)
    assert run("demo", "--out", tmp_path, "--json").exit_code == 1


def test_the_verdict_names_what_training_follows():
    same = Curves("learns", "float64", [1.0], {"kernels": [1.0]})
    assert verdict((), (same,))[0].endswith("reference, training follows the losses of float64")


def test_missing_matplotlib_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"needs matplotlib, .*pip install '\.\[plots\]'"):
        eeg.recording()


def test_sample_data_that_is_missing_or_of_another_size_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("matplotlib.cbook.get_sample_data", lambda name, asfileobj: tmp_path / name)
    with pytest.raises(UnsupportedError, match=r"eeg\.dat: is missing from matplotlib's sample data"):
        eeg.recording()
    np.zeros(7).tofile(tmp_path / "eeg.dat")
    with pytest.raises(FileFormatError, match=r"eeg\.dat: holds 7 numbers, not 800 samples of 4 electrodes"):
        eeg.recording()


@pytest.mark.cover(1)
@pytest.mark.parametrize("wrong", ["forward", "toward_layer", "toward_input"])
def test_training_notices_what_is_wrong(wrong, small_picture, plainly, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "_draw", lambda *_: None)
    monkeypatch.setattr(training, "STEPS", 2)
    real = getattr(training.KERNELS, wrong)

    def off(*args):
        found = real(*args)
        return (found[0] * np.float32(1.001), found[1]) if isinstance(found, tuple) else found * np.float32(1.001)

    monkeypatch.setattr(training, "KERNELS", dataclasses.replace(training.KERNELS, **{wrong: off}))
    curves, _ = training.run(photograph.picture(), tmp_path, lambda what, share: None)
    assert not curves.ok
