"""`nkiconv bench`: modelled here, measured on a fake device, and refused by name where it makes no sense; `nkiconv run`
and `nkiconv profile` of kernels in files: results, traces, comparisons, and bad input by name.
"""

import csv
import dataclasses
import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import done, process, run
from fake_device import FakeDevice, off_by_one
from tolerances import assert_relative

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
    monkeypatch.setattr(timing_speed, "INSTRUCTIONS", 100)
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


# Kernels in files.
FILE = Path(__file__).parents[1] / "examples" / "kernels" / "rms_norm.py"
PLAIN, FUSED = f"{FILE}:rms_norm", f"{FILE}:rms_norm_fused"
INPUTS = ("--input", "256x96:fp32", "--input", "1x96:fp32")


@pytest.mark.parametrize(("target", "eps"), [(PLAIN, 1e-6), (FUSED, 0.5)])
def test_run_writes_what_a_kernel_returns(target, eps, tmp_path):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((256, 96), dtype=np.float32), rng.standard_normal((1, 96), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", w)
    files = ("--input", tmp_path / "x.npy", "--input", tmp_path / "w.npy")
    result = done("run", target, *files, "--arg", f"eps={eps}", "--lnc", 1, "--out", tmp_path / "y.npy")
    assert "256 x 96" in result.output
    # 96 squares and their sum, of which a root halves the error; the mean, eps, the root, a quotient and two products
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + eps) * w
    assert_relative(np.load(tmp_path / "y.npy"), expected, 97 / 2 + 6)


@pytest.mark.parametrize(
    "target", ["matmul.py:matmul", "matmul.py:matmul_reused", "softmax.py:softmax", "softmax.py:softmax_fused"]
)
def test_other_examples_compute_what_they_say(target, tmp_path):
    """Products of integers exactly; quotients within the roundings of a sum of 1,024, fused of powers in bf16."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (256, columns)).astype(np.float32) for columns in (256, 1024))
    given = {"a": a, "b": b} if "matmul" in target else {"b": b}
    for name, one in given.items():
        np.save(tmp_path / f"{name}.npy", one)
    inputs = [word for name in given for word in ("--input", tmp_path / f"{name}.npy")]
    done("run", FILE.with_name(target), *inputs, "--lnc", 1, "--out", tmp_path / "y.npy")
    if "matmul" in target:
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), a.T @ b)
    else:
        powers = np.exp(b.astype(np.float64))
        operations = 1024 + 2**16 * ("fused" in target)
        assert_relative(np.load(tmp_path / "y.npy"), powers / powers.sum(1, keepdims=True), operations)


def test_run_as_json_and_of_cores_that_are_compared():
    found = json.loads(run("run", PLAIN, *INPUTS, "--lnc", 1, "--json").stdout)
    [one] = found["rows"]
    assert found["ok"]
    assert (one["outputs"][0]["shape"], one["outputs"][0]["nonfinite"]) == ([256, 96], 0)
    assert one["instructions"]["vector"] > 0
    assert "one core and two return the same bits" in done("run", PLAIN, *INPUTS, "--lnc", "both").output


def test_profile_against_another_kernel_a_case_and_a_file(tmp_path):
    alone = json.loads(run("profile", FUSED, *INPUTS, "--lnc", 1, "--json").stdout)
    (tmp_path / "fused.json").write_text(json.dumps(alone))
    for other in (FUSED, tmp_path / "fused.json"):
        found = json.loads(run("profile", PLAIN, *INPUTS, "--lnc", 1, "--against", other, "--json").stdout)
        assert found["after"]["modelled_us"] == alone["rows"][0]["modelled_us"]
        assert found["rows"]["instructions"]["after"] == alone["rows"][0]["instructions"]
    result = run("profile", PLAIN, *INPUTS, "--lnc", 1, "--against", "nkl_n1_c16_w512_s7")
    assert "rms_norm -> nkl_n1_c16_w512_s7 (" in result.output
    result = run("profile", "nkl_n1_c16_w512_s7", "--against", "nkl_n1_c16_w512_s7")
    assert ": 1.000 times as fast" in result.output


def test_a_broken_rule_names_the_line_of_the_file(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n@nki.jit\ndef wide(x):\n"
        "    tile = nl.ndarray((200, 8), dtype=x.dtype, buffer=nl.sbuf)\n    nisa.memset(tile, 0.0)\n"
    )
    for command in ("run", "profile"):
        result = run(command, f"{script}:wide", "--input", "4x4:fp32", "--lnc", 1)
        assert result.exit_code != 0
        assert "NKI" in result.output
        assert "mine.py:8" in "".join(result.output.split())


ODD = """
import os, sys
import nki, nki.isa as nisa, nki.language as nl

class Odd(BaseException):
    pass

@nki.jit
def raises(x):
    raise Odd("odd")

@nki.jit
def leaves(x):
    sys.exit(3)

@nki.jit
def prints(x):
    os.write(1, b"to the file descriptor\\n")
    print("to sys.__stdout__", file=sys.__stdout__)
    print("to sys.stdout")
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(y, x)
    return y

@nki.jit
def misspells(x):
    nisa.dma_copi(x, x)

@nki.jit
def adds(x):
    return x + x

@nki.jit
def steers(x):
    return x if x > 0 else x

@nki.jit
def forgets(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
"""


@pytest.mark.parametrize(("name", "words"), [
    ("raises", "raised Odd (odd.py:10): odd"), ("leaves", "SystemExit"),
    ("misspells", "has no attribute 'dma_copi'; did you mean dma_copy, "),
    ("adds", "; tensors have no operators: compute with nki.isa."), ("steers", "; tensors have no operators: "),
])  # fmt: skip
def test_what_a_kernel_raises_has_a_remedy(name, words, tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    found = run("run", f"{tmp_path / 'odd.py'}:{name}", "--input", "128x4:fp32", "--lnc", "1", "--json")
    assert found.exit_code == 2
    assert words in json.loads(found.stdout)["error"]["message"]


def test_what_a_kernel_prints_is_not_stdouts(tmp_path):
    """In a process of its own: what reaches file descriptor 1 is seen there alone."""
    (tmp_path / "odd.py").write_text(ODD)
    words = "run", f"{tmp_path / 'odd.py'}:prints", "--input", "128x4:fp32", "--lnc", "1", "--json"
    found = process("-m", "nkiconv", *words)
    assert json.loads(found.stdout)["ok"]
    assert {"to the file descriptor", "to sys.__stdout__", "to sys.stdout"} <= set(found.stderr.splitlines())


@pytest.mark.parametrize(("returned", "arrays"), [
    ("{'a': y, 'b': [y, y]}", 3), ("(y, (), None)", 1), ("y, 3", 0), ("(y for _ in range(2))", 0),
])  # fmt: skip
def test_what_a_kernel_returns_is_written_or_refused(returned, arrays, tmp_path):
    (tmp_path / "odd.py").write_text(f"{ODD}    y = x\n    return {returned}\n")
    words = f"{tmp_path / 'odd.py'}:forgets", "--input", "4x4:fp32", "--lnc", 1, "--out", tmp_path / "y.npz"
    found = run("run", *words)
    assert found.exit_code == (0 if arrays else 2 if "3" in returned else 1), found.stderr
    if arrays:
        assert len(np.load(tmp_path / "y.npz")) == arrays
    else:
        assert not (tmp_path / "y.npz").exists()


def test_what_is_0_or_not_finite_is_told(tmp_path):
    """Without a reference: zeros throughout, NaN, and nothing at all."""
    (tmp_path / "odd.py").write_text(ODD)
    result = done("run", f"{tmp_path / 'odd.py'}:forgets", "--input", "4x4:bf16", "--lnc", 1)
    assert "but it returned nothing: results are the tensors" in " ".join(result.stdout.split())
    for name, value, said in (
        ("zeros", 0.0, "every element that it returned is 0"),
        ("lost", float("nan"), "12 of the"),
    ):
        path = tmp_path / f"{name}.py"
        path.write_text(
            "import nki, nki.isa as nisa, nki.language as nl\n\n\n@nki.jit\ndef kernel(x):\n"
            "    tile = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.sbuf)\n"
            f"    nisa.memset(dst=tile, value=float('{value}'))\n"
            "    y = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.shared_hbm)\n"
            "    nisa.dma_copy(dst=y, src=tile)\n    return y\n"
        )
        result = done("run", f"{path}:kernel", "--input", "4x4:bf16", "--lnc", 1)
        assert f"but {said}" in " ".join(result.stdout.split())
