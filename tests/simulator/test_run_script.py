"""`python -m nkiconv.simulator script.py`: scripts for AWS's package, unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nkiconv.simulator import NkiError
from nkiconv.simulator.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.simulator_only
SCRIPT = """
import sys

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

import beside


@nki.jit
def doubled(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


if __name__ == "__main__":
    found = doubled(beside.ones((2, 3)))
    print(sys.argv[1:], type(found).__module__, float(found.sum()), __file__)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text(
        "import numpy\n\n\ndef ones(shape):\n    return numpy.ones(shape, numpy.float32)\n"
    )
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_as_a_program(script):
    command = [sys.executable, "-m", "nkiconv.simulator", str(script), "--races", "7"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"['--races', '7'] numpy 12.0 {script}\n"


def test_torch_tensors_are_taken(script, capsys):
    pytest.importorskip("torch")
    (script.parent / "beside.py").write_text("from torch import ones\n")
    sys.modules.pop("beside", None)
    assert main([str(script)]) == 0
    sys.modules.pop("beside", None)
    assert capsys.readouterr().out == f"[] torch 12.0 {script}\n"
    assert "nki" not in sys.modules


@pytest.mark.parametrize("given", [[], ["--nki", "0.6"]])
def test_kernels_of_nki_06(tmp_path, given, capsys):
    path = tmp_path / "ranged.py"
    path.write_text(
        "import nki\nimport nki.language as nl\nimport numpy as np\n\n@nki.jit\ndef kernel(x):\n"
        "    for i in nl.dynamic_range(2):\n        nl.load(x)\n\nkernel(np.ones((2, 3), np.float32))\nprint('ran')\n"
    )
    if given:
        with pytest.warns(DeprecationWarning, match="dynamic_range"):
            assert main([*given, str(path)]) == 0
        assert capsys.readouterr().out == "ran\n"
    else:
        with pytest.raises(NkiError, match=r"NKI184: dynamic_range.*\n.*ranged\.py:7"):
            main([str(path)])


def test_what_is_no_script(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere.py")]) == 2
    assert "does not exist; give the path of a Python script" in capsys.readouterr().err


def test_aws_package_is_not_hidden(script, tmp_path, monkeypatch, capsys):
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert main([str(script)]) == 2
    assert "NKI_SIMULATOR=1" in capsys.readouterr().err
    sys.modules.pop("nki", None)
