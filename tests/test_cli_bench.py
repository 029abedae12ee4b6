"""`nkiconv bench`: modelled here, measured on a fake device, and refused by name where it makes no sense."""

import csv
import dataclasses
import functools
import json
import re

import pytest
from fake_device import FakeDevice, off_by_one
from shell import run

from nkiconv.tools import doctor
from nkiconv.tools.cli import measure as cli_measure
from nkiconv.tools.measure import timing_speed, torch_neuron

pytestmark = pytest.mark.simulator_only

CASE, OTHER = "nkl_pad_n1_c16_w512_s7", "short"


bench = functools.partial(run, "bench", width=160)


@pytest.fixture
def on(monkeypatch):
    """A function that puts a device where torch-neuronx's would be; the list fills with the LNC degrees asked for."""
    degrees = []

    def put(device):
        def make(lnc):
            degrees.append(lnc)
            return device

        monkeypatch.setattr(torch_neuron, "TorchNeuron", make)
        return degrees

    return put


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_measured_cases(here, on):
    degrees = on(FakeDevice())
    result = bench(CASE, OTHER, "--target", "trn2", "--lnc", "1", "--rounds", "5", "--dtype", "fp32", "--wide")
    assert result.exit_code == 0, result.output
    assert degrees == [1]
    lines = result.stdout.splitlines()
    assert lines[0] == FakeDevice.description
    assert lines[1].startswith("measured us (trn2, 1 core)")
    assert max(map(len, lines)) <= 160
    assert re.search(
        rf"{CASE} fp32 +[a-z]+ +12\.00 +12\.00 +12\.00 +12\.00 +3\.00 +2\.00 +4\.00 .* pass", result.stdout
    )
    assert re.search("fp32 +(mixed|vector|banded|update)", result.stdout)
    assert "appended to measured_trn2.csv" in result.stdout
    found = read(here / "measured_trn2.csv")
    assert [(row["case"], row["lnc"], row["dtype"], row["iterations"]) for row in found] == [
        (CASE, "1", "fp32", "5"),
        (OTHER, "1", "fp32", "5"),
    ]


def test_a_wrong_result_is_status_1_and_a_row_without_a_number(here, on):
    on(FakeDevice(spoil=off_by_one(2, 0)))
    result = bench(CASE, "--target", "trn2", "--rounds", "4", "--wide")
    assert result.exit_code == 1
    assert f"{CASE}: wrong: 1 of 8,192 outputs are beyond their bound, worst at n=0 k=2 p=0 q=0" in result.stdout
    assert re.search(rf"{CASE} bf16 +[a-z]+( +-){{8}} +[\d.]+ +failed", result.stdout)
    [row] = read(here / "measured_trn2.csv")
    assert (row["status"], row["p50_us"], row["copy_floor_p50_us"]) == ("failed", "", "")
    assert row["reason"].startswith("wrong: 1 of")


def test_a_case_that_fails_leaves_the_others(here, on):
    on(FakeDevice(fail_at=3))
    result = bench(CASE, OTHER, "--target", "trn2", "--rounds", "4", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert (found["target"], found["kind"], found["machine"]) == ("trn2", "measured", FakeDevice.description)
    assert [row["status"] for row in found["rows"]] == ["failed", "failed"]  # `fail_at` is reached in both
    assert [row["reason"] for row in read(here / "measured_trn2.csv")] == ["RuntimeError: the compiler gave up"] * 2


@pytest.mark.usefixtures("here")
def test_a_machine_without_neuron_is_refused_by_name(monkeypatch):
    """Any machine, with its device and AWS's packages hidden."""
    found = doctor.diagnose()
    packages = tuple(dataclasses.replace(package, status="missing") for package in found.packages)
    bare = dataclasses.replace(found, packages=packages, device=False)
    monkeypatch.setattr(torch_neuron, "diagnose", lambda: bare)
    result = bench(CASE, "--target", "trn2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "UnsupportedError: " in result.stderr
    assert "torch-neuronx: is missing; install it from AWS's own package repository" in result.stderr
    assert "/dev/neuron0: there is no Neuron device here" in result.stderr


@pytest.mark.parametrize("device", [True, False])
def test_the_target_when_nobody_says(here, on, monkeypatch, device):
    path = here / "neuron0"
    if device:
        path.touch()
    monkeypatch.setattr(cli_measure, "DEVICE", path)
    degrees = on(FakeDevice())
    result = bench(OTHER)
    assert result.exit_code == 0
    assert degrees == ([2] if device else [])
    assert ("so this is modelled; --target trn2 measures" in " ".join(result.stdout.split())) is not device
    assert ("modelled us (trn2" in result.stdout) is not device


def test_the_speed_of_the_model(monkeypatch):
    monkeypatch.setattr(timing_speed, "timing_speed", functools.partial(timing_speed.timing_speed, 100))
    result = bench("--target", "model", "--timing-speed")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"timing 100 instructions takes \d+\.\d\d s here \(.*\): trace [\d.]+, dependencies [\d.]+, one timeline "
        r"[\d.]+; peak memory [\d.]+ GB; aim: 5 s and 1 GB\n",
        result.stdout,
    )
    found = json.loads(bench(OTHER, "--target", "model", "--timing-speed", "--json").stdout)
    assert found["timing_speed"]["instructions"] == 100
    assert (found["timing_speed"]["aim_seconds"], found["timing_speed"]["aim_gb"]) == (5.0, 1.0)
    assert found["timing_speed"]["seconds"] > 0
    assert [row["case"] for row in found["rows"]] == [OTHER]
