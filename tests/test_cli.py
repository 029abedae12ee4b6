"""The command line in this process: tables, JSON, files in and out, and every bad input with its name and status."""

import json

import numpy as np
import pytest
from shell import done, run

from nkiconv import cases
from nkiconv.tools.cli import app
from nkiconv.tools.verify import depthwise_conv1d as verify

pytestmark = pytest.mark.simulator_only
COMMANDS = [command.name for command in app.registered_commands]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory with x and a filter."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 5, 40)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    np.save("x.npy", x)
    np.save("w.npy", w)
    return tmp_path


FILES = ("--input", "x.npy", "--filter", "w.npy")


def test_several_cases_in_one_table():
    result = done("run", "short", "nkl_n1_c16_w512_s7", "--lnc", "both", "--wide")
    for text in ("short", "N=3 C=130 W=2 S=2", "nkl_n1_c16_w512_s7", "identical to lnc 1", "all 130 channels", "pass"):
        assert text in result.stdout
    assert result.stdout.count("convolutions on nkiconv's simulator") == 1
    last = (
        "all right: all 4 results are within the error bound of the float64 reference, one core and two give the same"
    )
    assert result.stdout.splitlines()[-1].startswith(last)
    table, _, _ = result.stdout.partition("bound: ")
    assert max(map(len, table.splitlines())) <= 120


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


def test_the_environment_must_fit_the_launch(monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    result = run("run", "short")
    assert result.exit_code == 2
    assert "NKI026: launch: kernel[2] contradicts NEURON_LOGICAL_NC_CONFIG=1" in result.stderr


def test_listing_cases():
    result = done("cases")
    assert all(name in result.stdout for name in cases.names())
    only = run("cases", "--suite", "conv2d").stdout
    assert "31 cases" in only
    assert "nkl_fs_asr" not in only


@pytest.mark.cover(3)
@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help(command):
    result = done(*command, "--help")
    assert "Usage" in result.stdout
