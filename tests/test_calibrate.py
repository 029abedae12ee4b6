"""Calibration: probe kernels, slopes, constants from slopes, targets side by side, the command; with devices of Python
and stand-ins for AWS's nki and nrtpy, which have never run here."""

import dataclasses
import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from commands import run
from hidden_device import HiddenDevice, hidden_constants

import nkiconv
from nkiconv import cases
from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.simulator import simulate
from nkiconv.simulator.constants import SHIPPED, load_target
from nkiconv.simulator.dtypes import DTYPES
from nkiconv.simulator.hardware import CONSTANTS
from nkiconv.simulator.profiling.settings import ignore
from nkiconv.tools.calibrate import clocks, estimate, measured, session
from nkiconv.tools.calibrate.clocks import Chains
from nkiconv.tools.calibrate.compare import compare
from nkiconv.tools.calibrate.model import ModelDevice, shared
from nkiconv.tools.calibrate.probe import LNC
from nkiconv.tools.calibrate.solve import solve
from nkiconv.tools.calibrate.suite import PROBES

pytestmark = pytest.mark.simulator_only

BY_NAME = {probe.name: probe for probe in PROBES}
#: Quick to trace, and enough for six constants.
FEW = ("vector_4x_few", "vector_4x", "vector_chain", "vector_operand", "elements_256", "elements_4096")


def probes(*names):
    return [BY_NAME[name] for name in names]


def clock_of(constants, noise=0.0, seed=0):
    return Chains(HiddenDevice(constants, noise, seed))


def found(clock, names, start=None):
    estimates, fits = solve(session.slopes(clock, probes(*names), ignore), ignore, start)
    return {one.name: one for one in estimates}, {fit.slope.probe: fit for fit in fits}


@pytest.mark.parametrize("name", {probe.kernel: probe.name for probe in PROBES}.values())
def test_every_kernel_keeps_the_rules_on_data(name):
    """Nothing unwritten is read or returned, and no core reads what the other writes."""
    probe = BY_NAME[name]
    y = simulate(probe.kernel[LNC])(np.ones(probe.shape, DTYPES[probe.dtype].numpy), **probe.arguments(4))
    assert np.isfinite(np.asarray(y, dtype=np.float64)).all()


def test_a_slope_is_free_of_what_a_launch_costs():
    probe = BY_NAME["vector_4x_few"]
    slope = measured.measure(clock_of({}), probe, ignore, rounds=2)
    assert slope.slope_ns == pytest.approx(shared().slope_ns(probe, {}))
    assert (slope.reason, slope.aa_difference) == ("", pytest.approx(0.0, abs=1e-9))
    # 16 columns of a copy in the fastest mode, and the fixed part
    expected = CONSTANTS["vector.issue_fixed_sbuf_ns"].value + 16 * CONSTANTS["vector.ns_per_elem_4x"].value
    assert slope.slope_ns == pytest.approx(expected)


def test_hidden_constants_are_found_within_five_percent_and_make_a_target(tmp_path):
    """From wrong ones, too."""
    names = {name for probe in probes(*FEW) for name in probe.constants}
    hidden, path = hidden_constants(names, 0), tmp_path / "measured.toml"
    clock = clock_of(hidden, 0.02, 0)
    estimates, _ = found(clock, FEW, {name: CONSTANTS[name].value / 1.1 for name in names})
    session.write(path, list(estimates.values()), clock)
    target = load_target(path)
    for name, value in hidden.items():
        assert estimates[name].status == estimate.FOUND
        row = target[name]
        assert row.value == pytest.approx(value, rel=0.05)
        assert row.low < row.value < row.high
        assert row.standing == "measured"
        assert "hidden, modelled, with noise" in row.source


def test_a_constant_that_nothing_tells_is_not_guessed():
    """Two of three hops appear only as a sum; an interval that nothing depends on; a probe that is not there."""
    clock = clock_of({"sync.hop_to_vector_ns": 60.0})
    names = ("vector_chain", "vector_4x_few", "vector_4x", "scalar_chain", "scalar_few", "scalar", "hops_vector_scalar")
    estimates, _ = found(clock, names)
    for one, other in (("vector", "scalar"), ("scalar", "vector")):
        hop = estimates[f"sync.hop_to_{one}_ns"]
        assert (hop.status, hop.value) == (estimate.UNIDENTIFIED, hop.old)
        assert f"only together with sync.hop_to_{other}_ns" in hop.reason
    assert estimates["vector.lat_fixed_sbuf_ns"].status == estimate.FOUND


def test_a_limit_that_does_not_bind_is_not_guessed():
    """Where the engines are slower than the core's limit, loads of a core tell only a bound of that limit."""
    clock = clock_of({"dma.engine_bytes_per_ns": 19.0}, 0.02)
    estimates, _ = found(clock, ("elements_256", "elements_4096", "core_loads"))
    assert estimates["dma.engine_bytes_per_ns"].value == pytest.approx(19.0, rel=0.02)
    assert estimates["dma.steady_core_gbps"].status == estimate.UNIDENTIFIED


def test_noise_beyond_three_percent_is_refused():
    noisy = measured.measure(clock_of({}, 2.0), BY_NAME["vector_4x"], ignore, rounds=4)
    assert noisy.reason.startswith(("noisy: equal runs differ by", "the slope is -"))
    estimates, fits = solve([noisy], ignore)
    assert [(one.status, one.value) for one in estimates] == [(estimate.UNIDENTIFIED, estimates[0].old)]
    assert not fits[0].misses


def test_a_constant_with_a_wide_interval_keeps_its_value():
    estimates, _ = found(clock_of({}), ("elements_4096",))
    assert estimates["dma.engine_bytes_per_ns"].status == estimate.FOUND
    wide = measured.measure(clock_of({}), BY_NAME["elements_4096"], ignore, rounds=1)
    wide = measured.Slope(**{**dataclasses.asdict(wide), "error_ns": 0.2 * wide.slope_ns})
    (one,), _ = solve([wide], ignore)
    assert (one.status, one.value) == (estimate.UNCERTAIN, one.old)


def test_a_slope_that_the_model_cannot_follow_is_named():
    """A static trigger that takes 670 ns for 128 rows and 100 for one is none of the model's."""
    names = "static_loads", "static_loads_128"
    slopes = [measured.measure(clock_of({}), BY_NAME[name], ignore, rounds=1) for name in names]
    slopes = [
        dataclasses.replace(slope, slope_ns=ns, error_ns=ns / 1e3)
        for slope, ns in zip(slopes, (100.0, 670.0), strict=True)
    ]
    (one, *_), fits = solve(slopes, ignore)
    assert any(fit.misses for fit in fits)
    assert (one.name, one.status, one.value) == ("dma.static_issue_ns", estimate.UNCERTAIN, one.old)
    assert "the model does not follow static_loads" in one.reason


def test_a_probe_that_the_device_fails_to_run_has_its_reason():
    def broken(_probe, _count):
        raise RuntimeError("the compiler gave up\nlong story")

    clock = clock_of({})
    clock.seconds = broken
    slope = measured.measure(clock, BY_NAME["vector_4x"], ignore, rounds=1)
    assert slope.reason == "RuntimeError: the compiler gave up"


def test_an_interrupted_calibration_goes_on(tmp_path):
    path, clock = tmp_path / "slopes.jsonl", clock_of({})
    first = session.slopes(clock, probes(*FEW[:2]), ignore, path, rounds=1)
    more = session.slopes(clock, probes(*FEW[:2]), ignore, path, rounds=2)
    assert [one.rounds for one in more] == [2 * one.rounds for one in first]
    clock.seconds = None
    assert session.slopes(clock, probes(*FEW[:2]), ignore, path, rounds=1) == more
    assert session.load(path, "another machine") == {}
    path.write_text("{}\n")
    with pytest.raises(FileFormatError, match="line 1 holds no slope"):
        session.load(path, clock.description)


def test_where_aws_s_nki_runs_estimates_have_a_process_of_its_own(monkeypatch):
    slopes = session.slopes(clock_of({}), probes("vector_4x_few", "vector_4x"), ignore, rounds=1)
    here = solve(slopes, ignore)
    module = sys.modules[solve.__module__]
    monkeypatch.setattr(module, "CHOICE", dataclasses.replace(module.CHOICE, provider="aws"))
    monkeypatch.setattr(module, "estimate", None)
    monkeypatch.setenv("NKICONV_NKI", "aws")
    assert solve(slopes, ignore) == here


def test_the_command_models_where_there_is_no_device():
    document = json.loads(run("calibrate", "--only", "scalar_bias", "--only", "elements_4096", "--json").stdout)
    assert "no /dev/neuron0 here" in document["note"]
    assert {row["status"] for row in document["rows"]} == {"found"}
    assert [row["slope"]["clock"] for row in document["probes"]] == ["modelled"] * 3
    rows = json.loads(run("calibrate", "--list", "--json").stdout)["rows"]
    assert [row["probe"] for row in rows] == [probe.name for probe in PROBES]


def test_the_command_ends_with_its_verdict(monkeypatch):
    few = "--only", "scalar_bias"
    lines = run("calibrate", *few).stdout.splitlines()
    assert lines[-1] == "all right: 2 of 2 constants found; the model has the times of all 2 probes"
    monkeypatch.setattr(ModelDevice, "seconds", None)
    failed = run("calibrate", *few)
    assert failed.exit_code == 1
    assert failed.stdout.splitlines()[-1].startswith("NOT all right: 0 of ")


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


def target(**values):
    """trn2.toml with other values of DMA's constants."""
    rows = {f"dma.{name}": value for name, value in values.items()}
    return {**SHIPPED, **{name: dataclasses.replace(SHIPPED[name], value=value) for name, value in rows.items()}}


def test_constants_and_plans(plans):
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


def test_equal_targets_plan_nothing(monkeypatch):
    monkeypatch.setattr(sys.modules[compare.__module__], "answer", None)
    assert (
        run("calibrate", "--compare", "trn2", "trn2").stdout
        == "trn2 and trn2 have the same constants: no plan changes\n"
    )


def test_a_case_that_cannot_be_planned_is_refused(plans):
    short = cases.get("short")
    case = dataclasses.replace(short, problem=short.problem.replace(dtype="fp8_e4m3"))
    with pytest.raises(UnsupportedError, match="dtype='fp8_e4m3'"):
        compare(SHIPPED, SHIPPED, [case])
