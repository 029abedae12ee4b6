"""Clocks of `nkiconv calibrate` with stand-ins for AWS's nki and nrtpy, which have never run here."""

import sys
import textwrap
from pathlib import Path

import pytest

from nkiconv.errors import UnsupportedError
from nkiconv.tools.calibrate import clocks, measured
from nkiconv.tools.calibrate.suite import PROBES

pytestmark = pytest.mark.simulator_only

PROBE = next(probe for probe in PROBES if probe.name == "vector_4x_few")
#: An nrtpy whose NEFFs, the stand-in's documents, take 10 us and 70 ns a repetition.
NRTPY = """
    import json, pathlib
    from types import SimpleNamespace

    class NrtpyTensor:
        @classmethod
        def from_numpy(cls, array, name):
            return array

    class NrtpyModel:
        @classmethod
        def load_from_neff(cls, path):
            self = cls()
            self.launch = json.loads(pathlib.Path(path).read_text())
            self.input_tensors_info = {"x_ref": SimpleNamespace(shape=[128, 144], size=128 * 144 * 2)}
            return self

        def benchmark(self, inputs, warmup_iter, benchmark_iter, mode):
            assert (inputs["x_ref"].shape, inputs["x_ref"].itemsize, mode) == ((128, 144), 2, "device")
            print("a line of the runtime")
            us = 10 + 0.07 * self.launch["constants"]["count"]
            return SimpleNamespace(durations_ms=[us / 1e3] * benchmark_iter)
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """One interpreter as both environments: AWS's stand-in of nki, and a module and distribution named nrtpy."""
    tests = Path(__file__).parent
    (tmp_path / "nrtpy.py").write_text(textwrap.dedent(NRTPY))
    folder = tmp_path / "nrtpy-2.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: nrtpy\nVersion: 2.1\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{tests.parent}:{tests / 'standins' / 'aws'}")
    monkeypatch.setenv("NKICONV_NKI", "aws")
    return tmp_path


def test_nrtpy_times_the_neffs_that_nki_compiles(environment):
    """The slope of the stand-in's law, whatever a launch costs; the runtime's lines are no answers."""
    clock = clocks.Neffs(sys.executable)
    slope = measured.measure(clock, PROBE, lambda *_: None, rounds=2)
    assert slope.reason == ""
    assert slope.slope_ns == pytest.approx(70)
    assert (slope.clock, clock.description[:9]) == ("device time, nrtpy", "nrtpy 2.1")


def test_a_probe_that_does_not_compile_has_its_reason(environment, monkeypatch):
    monkeypatch.setenv("NKI_STANDIN", "raise")
    slope = measured.measure(clocks.Neffs(sys.executable), PROBE, lambda *_: None, rounds=1)
    assert slope.reason.startswith("UnsupportedError: vector_4x_few: its compilation failed")
    assert "no such DMA" in slope.reason


def test_an_environment_without_nrtpy_is_refused(monkeypatch):
    with pytest.raises(UnsupportedError, match=r"NKICONV_NRTPY=.*: has no nrtpy \(PackageNotFoundError: .*\); install"):
        clocks.Neffs(sys.executable)
    with pytest.raises(UnsupportedError, match="NKICONV_NRTPY=/none/python: No such file"):
        clocks.Neffs("/none/python")


def test_a_process_that_ends_is_told(environment):
    clock = clocks.Neffs(sys.executable)
    clock._process.kill()
    with pytest.raises(UnsupportedError, match="ended with status -9"):
        clock.seconds(PROBE, 64)
