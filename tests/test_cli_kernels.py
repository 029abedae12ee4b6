"""`nkiconv run` and `nkiconv profile` of kernels in files: results, traces, comparisons, and bad input by name."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import process
from shell import done, run
from tolerances import assert_relative

pytestmark = pytest.mark.simulator_only
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


def test_run_as_json():
    found = json.loads(run("run", PLAIN, *INPUTS, "--lnc", 1, "--json").stdout)
    [one] = found["rows"]
    assert found["ok"]
    assert one["outputs"][0]["shape"] == [256, 96]
    assert one["outputs"][0]["nonfinite"] == 0
    assert one["instructions"]["vector"] > 0


def test_cores_are_compared():
    result = done("run", PLAIN, *INPUTS, "--lnc", "both")
    assert "one core and two return the same bits" in result.output


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
"""


@pytest.mark.parametrize(("name", "words"), [("raises", "raised Odd (odd.py:10): odd"), ("leaves", "SystemExit")])
def test_a_kernel_that_raises_what_is_no_exception(name, words, tmp_path):
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


def test_what_is_0_or_not_finite_is_told(tmp_path):
    """Without a reference: zeros throughout, and NaN."""
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
