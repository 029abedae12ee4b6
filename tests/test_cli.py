"""The command line in this process: tables, JSON, files in and out, and every bad input with its name and status."""

import json
import re

import numpy as np
import pytest
from shell import run

from nkiconv import cases, depthwise_conv1d
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.tools import verify as verification
from nkiconv.tools.cli import app, files, paths
from nkiconv.tools.cli.shell import print_json
from nkiconv.tools.verify import depthwise_conv1d as verify

pytestmark = pytest.mark.simulator_only
COMMANDS = [command.name for command in app.registered_commands]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory with good and bad files."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 5, 40)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    np.save("x.npy", x)
    np.save("w.npy", w)
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.npy").write_text("precious")
    return tmp_path


FILES = ("--input", "x.npy", "--filter", "w.npy")

# why, arguments, pattern in stderr
BAD_RUNS = [
    ("nothing", [], r"UnsupportedError: CASE, --input: neither is given"),
    ("unknown case", ["nkl_fs_asx"], r"case='nkl_fs_asx': .*did you mean nkl_fs_asr"),
    ("two refused", ["vae_512", "mobilenet_dw", "rn50_c4", "--algorithm", "weight_stationary"],
     r"2 reasons\n  - case='vae_512': K=512: weight_stationary.*\n  - case='rn50_c4'"),
    ("another operation's", ["rn50_c2", "--algorithm", "dot"], r"case='rn50_c2': algorithm='dot': accepted for conv2d"),
    ("case and files", ["short", *FILES], r"--input, --filter: cannot be combined with named cases"),
    ("case and stride", ["short", "--stride", "2"], r"--stride: cannot be combined with named cases"),
    ("case of another dtype", ["short", "--dtype", "fp8_e4m3"],
     r"dtype='fp8_e4m3': accepted are bf16, fp16, fp32; use"),
    ("case and out", ["short", "--out", "y.npy"], r"--out: cannot be combined with named cases"),
    ("no input", ["--filter", "w.npy"], r"CASE, --input: neither is given"),
    ("seed of files", [*FILES, "--seed", "1"], r"--seed=1: files bring their own data"),
    ("force without out", [*FILES, "--force"], r"--force: lets --out overwrite, and there is no --out"),
    ("half the channels", ["short", "--channels", "half"], r"--channels=half: must be auto, all"),
    ("sample and out", [*FILES, "--out", "y.npy", "--channels", "3"], r"--channels=3: --out needs every channel"),
    ("dtype of another", [*FILES, "--dtype", "bf16"], r"DtypeError: --dtype=bf16: x\.npy holds float32"),
    ("algorithm of files", [*FILES, "--algorithm", "fft"],
     r"UnsupportedError: algorithm='fft': accepted are None, banded"),
    ("a later case is not the algorithm's", ["short", "mamba2_prefill", "--algorithm", "dot"],
     r"UnsupportedError: case='mamba2_prefill': Q=4096: dot computes at most"),
    ("out is there", [*FILES, "--out", "there.npy"], r"UnsupportedError: --out=there\.npy: exists already"),
    ("out is a folder", [*FILES, "--out", "folder", "--force"], r"UnsupportedError: --out=folder: is a directory"),
    ("out in no folder", [*FILES, "--out", "no/y.npy"], r"UnsupportedError: --out=no.y\.npy: no is not a directory"),
    ("out below a file", [*FILES, "--out", "x.npy/y.npy"],
     r"UnsupportedError: --out=x\.npy.y\.npy: x\.npy is not a directory"),
]  # fmt: skip


@pytest.mark.cover(20)
@pytest.mark.parametrize(("arguments", "pattern"), [row[1:] for row in BAD_RUNS], ids=[row[0] for row in BAD_RUNS])
def test_bad_arguments_have_a_name(here, arguments, pattern):
    assert_refused(here, arguments, pattern)


def test_errors_as_json():
    result = run("run", "vae_512", "rn50_c4", "--algorithm", "weight_stationary", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["class"]) == (2, "UnsupportedError")
    assert [violation[:13] for violation in error["violations"]] == ["case='vae_512", "case='rn50_c4"]


def assert_refused(here, arguments, pattern):
    """`nkiconv run` says why in red, prints nothing else, runs nothing, touches no file, and exits with 2."""
    before = sorted(here.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(verification, "verify_depthwise_conv1d")
        result = run("run", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.search(pattern, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(here.iterdir()) == before
    assert (here / "there.npy").read_text() == "precious"


def test_run_at_a_precision():
    result = run("run", "c1k1", "prime", "--precision", "fp16x3", "--lnc", "both", "--json")
    found = json.loads(result.stdout)["rows"]
    assert result.exit_code == 0, result.output
    assert {(one["algorithm"], one["precision"], one["verdict"]) for one in found} == {
        ("implicit_gemm", "fp16x3", "pass")
    }
    assert "fp32 as tf32" in " ".join(run("run", "c1k1", "--precision", "tf32").stdout.split())
    assert "precision='tf32': depthwise_conv1d has none" in run("run", "short", "--precision", "tf32").stderr


def test_several_cases_in_one_table():
    result = run("run", "short", "nkl_n1_c16_w512_s7", "--lnc", "both", "--wide")
    assert result.exit_code == 0, result.stderr
    for text in ("short", "N=3 C=130 W=2 S=2", "nkl_n1_c16_w512_s7", "identical to lnc 1", "all 130 channels", "pass"):
        assert text in result.stdout
    assert result.stdout.count("convolutions on nkiconv's simulator") == 1
    last = (
        "all right: all 4 results are within the error bound of the float64 reference, one core and two give the same"
    )
    assert result.stdout.splitlines()[-1].startswith(last)
    table, _, _ = result.stdout.partition("bound: ")
    assert max(map(len, table.splitlines())) <= 120


def test_cases_as_json():
    result = run("run", "short", "--lnc", "both", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, found["ok"]) == (0, "", True)
    one, two = found["rows"]
    assert (one["lnc"], two["lnc"], two["identical"]) == (1, 2, True)
    assert one["max_error"] <= one["bound"]
    assert set(one["instructions"]) >= {"dma", "tensor"}
    assert one["dma_bytes"] > 0 < one["sbuf_peak_bytes_per_partition"]


@pytest.mark.cover(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_by_name(algorithm):
    result = run("run", "short", "--algorithm", algorithm, "--lnc", "both", "--json")
    assert result.exit_code == 0, result.stderr
    reports = json.loads(result.stdout)["rows"]
    assert [(report["algorithm"], report["lnc"], report["identical"]) for report in reports] == [
        (algorithm, 1, None),
        (algorithm, 2, True),
    ]


def test_a_wrong_result_is_status_1_and_no_file(here, monkeypatch):
    launch = verify.run_depthwise_conv1d

    def wrong(x, w, problem, **options):
        done = launch(x, w, problem, **options)
        if not options.get("trace_only"):
            done.y[0, 3, 5] += 1
        return done

    monkeypatch.setattr(verify, "run_depthwise_conv1d", wrong)
    result = run("run", *FILES, "--out", "y.npy")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("WRONG: 1 of 1 checks failed: x.npy on 2 cores (fail: 1 wrong,")
    assert "1 wrong, worst n=0 c=3 q=5" in result.stdout
    assert "y.npy was not written: the result is wrong" in result.stdout
    assert not (here / "y.npy").exists()


# options, the same call in Python
CALLS = [
    ([], {}),
    (["--stride", "2", "--padding", "same"], {"stride": 2, "padding": "same"}),
    (["--padding", "causal", "--dilation", "3", "--lnc", "1"], {"padding": "causal", "dilation": 3, "lnc": 1}),
    (["--padding", "4,-2", "--lhs-dilation", "2"], {"padding": (4, -2), "lhs_dilation": 2}),
    (["--padding", "3", "--strict-nonfinite"], {"padding": 3, "strict_nonfinite": True}),
    (["--padding=-1,5", "--lnc", "both"], {"padding": (-1, 5), "lnc": 1}),
    (["--algorithm", "vector"], {"algorithm": "vector"}),
]


@pytest.mark.cover(5)
@pytest.mark.parametrize(("options", "call"), CALLS, ids=[" ".join(row[0]) or "plain" for row in CALLS])
def test_files_in_and_out(here, options, call):
    result = run("run", *FILES, "--out", "y.npy", *options)
    assert result.exit_code == 0, result.stderr
    assert "wrote y.npy" in result.stdout
    y = np.load("y.npy")
    np.testing.assert_array_equal(y, depthwise_conv1d(np.load("x.npy"), np.load("w.npy"), **call))
    assert not [path for path in here.iterdir() if path.suffix == ".part"]


@pytest.mark.usefixtures("here")
def test_nan_needs_strict_nonfinite():
    """40 channels of long rows and filters share matmuls, unless they are kept apart."""
    x = np.ones((1, 40, 3000), np.float32)
    x[0, 0, 3] = np.nan
    np.save("x_nan.npy", x)
    np.save("w_long.npy", np.ones((40, 40), np.float32))
    files = ("--input", "x_nan.npy", "--filter", "w_long.npy")
    spread = run("run", *files)
    assert spread.exit_code == 1
    assert "an infinite error comes from NaN or Inf in x; --strict-nonfinite keeps them" in spread.stdout
    assert json.loads(run("run", *files, "--json").stdout)["rows"][0]["max_error"] == "inf"
    assert run("run", *files, "--strict-nonfinite").exit_code == 0


def test_a_folder_that_cannot_be_written(here, monkeypatch):
    monkeypatch.setattr(
        paths.os, "access", lambda path, mode: path.name != "folder"
    )  # the superuser may write anywhere
    result = run("run", *FILES, "--out", "folder/y.npy")
    assert result.exit_code == 2
    assert "folder is not a directory that can be written" in result.stderr
    assert list((here / "folder").iterdir()) == []


def test_interrupted_writes_leave_nothing(here, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    before = sorted(here.iterdir())
    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.save(files.Source("--out", here / "y.npy"), "a .npy file", False, lambda file: file.write(b"half"))
    assert sorted(here.iterdir()) == before


def test_the_environment_must_fit_the_launch(monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    result = run("run", "short")
    assert result.exit_code == 2
    assert "NKI026: launch: kernel[2] contradicts NEURON_LOGICAL_NC_CONFIG=1" in result.stderr


def test_listing_cases():
    result = run("cases")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in cases.names())
    only = run("cases", "--suite", "conv2d").stdout
    assert "31 cases" in only
    assert "nkl_fs_asr" not in only


@pytest.mark.cover(3)
@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_json_of_numbers_that_json_has_not(capsys):
    print_json({"a": (float("inf"), -float("inf"), float("nan"), 1.5), 2: None})
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "a": ["inf", "-inf", "nan", 1.5], "2": None}
