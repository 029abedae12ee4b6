"""The tests of `tests/aws`, in a process where stand-ins play AWS's NKI and torch-neuronx."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
pytest.importorskip("torch")


@pytest.mark.simulator_only
@pytest.mark.timeout(900)  # each is a file of tests, of which pytest there times each
@pytest.mark.parametrize("name", sorted(path.name for path in TESTS.glob("aws/test_*.py")))
def test_under_aws_nki(name):
    paths = [TESTS.parent, TESTS / "standins" / "aws", TESTS / "aws"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "aws" / name)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "NKICONV_NKI": "aws"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
