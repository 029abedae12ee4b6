"""The tests of `tests/aws`, in a process where stand-ins play AWS's NKI and torch-neuronx."""

import re
from pathlib import Path

import pytest
from commands import process

TESTS = Path(__file__).parent
pytest.importorskip("torch")


#: The last one makes a device of a name that stays one for the rest of a process.
FILES = ("test_compiled.py", "test_compile_stages.py", "test_launches.py", "test_device.py")


@pytest.mark.simulator_only
@pytest.mark.timeout(900)  # it is all these files, of whose tests pytest there times each
def test_under_aws_nki(request):
    assert set(FILES) == {path.name for path in TESTS.glob("aws/test_*.py")}
    words = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", request.config.option.markexpr
    files, front = [TESTS / "aws" / name for name in FILES], [TESTS / "standins" / "aws", TESTS / "aws"]
    done = process(*words, *files, front=front, cwd=TESTS.parent, NKICONV_NKI="aws")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
