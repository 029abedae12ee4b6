"""Stages of `nkiconv compile-check` under the stand-in of AWS's nki, in this process."""

import json

import nki
import pytest

from nkiconv.tools.cli import compile_stages
from nkiconv.tools.measure import neffs
from nkiconv.tools.verify.launched import WrongResult

KERNELS = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def filled(x, value, dtype=nl.float32):
    out = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def asked(direction="forward", algorithm="implicit_gemm"):
    """A request for c1k1 by an algorithm's own settings."""
    taken = {"algorithm": algorithm, "config": None}
    return {"case": "c1k1", "direction": direction, "lnc": 2, "taken": taken, "instructions": 10}


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    """A folder for NEFFs, as if nki had been imported with it; jit is nki's own again afterwards."""
    monkeypatch.setenv(neffs.ARTIFACTS, str(tmp_path))
    monkeypatch.setattr(nki, "ARTIFACTS", str(tmp_path))
    monkeypatch.setattr(nki, "jit", nki.jit)
    return tmp_path


@pytest.mark.parametrize("one", [asked(), asked("dgrad"), asked("wgrad", "blocks")], ids=lambda one: one["direction"])
def test_a_case(one, artifacts, monkeypatch):
    found = compile_stages.compile_kernel(one)
    assert (found["neff"], found["neff_bytes"] > 0) == (str(artifacts / "kernel.neff"), True)
    simulated = compile_stages.simulate(one)
    assert (simulated["channels_checked"], 0 < simulated["worst_ratio"] <= 1) == (1, True)
    monkeypatch.setattr(nki, "FAULT", "wrong")
    wrong = compile_stages.told(_error(compile_stages.simulate, one), None)
    assert (wrong["error"][:6], wrong["line"]) == ("wrong:", "")


def _error(stage, one):
    with pytest.raises((RuntimeError, WrongResult, neffs.NotCompiled)) as found:
        stage(one)
    return found.value


def test_a_kernel_that_the_compiler_refuses(artifacts, monkeypatch):
    monkeypatch.setattr(nki.isa, "dma_copy", nki.refuse_loads)
    told = compile_stages.told(_error(compile_stages.compile_kernel, asked()), None)
    assert told["error"] == "RuntimeError: [x1] error: no such DMA"
    assert told["line"].startswith("nkiconv/kernels/")
    assert not list(artifacts.iterdir())


def test_a_call_that_compiles_nothing(artifacts, monkeypatch):
    monkeypatch.setattr(nki, "ARTIFACTS", None)
    error = _error(compile_stages.compile_kernel, asked())
    assert str(error) == "the call returned and left no .neff file in NKI_ARTIFACTS_DIR"


def test_a_kernel_of_a_file(artifacts):
    (artifacts / "k.py").write_text(KERNELS)
    one = {"target": f"{artifacts / 'k.py'}:filled", "inputs": ["128x4"], "arguments": ["value=2.0"], "lnc": 1}
    assert compile_stages.simulate({**one, "arguments": ["value=2.0", "dtype=nl.bfloat16"]}) == {}
    assert compile_stages.compile_kernel(one)["neff"] == str(artifacts / "kernel.neff")


def test_a_reply(artifacts, tmp_path):
    reply = tmp_path / "reply.json"
    compile_stages.main(json.dumps({**asked(), "stage": "compile"}), reply)
    assert json.loads(reply.read_text())["neff"] == str(tmp_path / "kernel.neff")
    (tmp_path / "kernel.neff").unlink()
    compile_stages.main(json.dumps({**asked(algorithm="none"), "stage": "compile"}), reply)
    assert set(json.loads(reply.read_text())) == {"error", "line"}
