"""What conftest.py makes of a machine that lacks a package: skips that say so, and no other failure hidden."""

import os
import re
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent / "conftest.py"
FILES = {
    "helper.py": "import lacking_one.part",
    "test_imports.py": "import lacking_one\ndef test(): ...",
    "test_imports_by_a_helper.py": "import helper\ndef test(): ...",
    "test_when_it_runs.py": "def test(): import lacking_one\ndef test_rest(): ...",
    "test_another.py": "import lacking_two\ndef test(): ...",
    "test_another_when_it_runs.py": "def test(): import lacking_two",
    "test_wrong.py": "raise ValueError(\"No module named 'lacking_one'\")",
}
OUTCOMES = {
    "SKIPPED [1] test_imports.py: needs lacking_one, which is not installed: make setup",
    "SKIPPED [1] test_imports_by_a_helper.py: needs lacking_one, which is not installed: make setup",
    "SKIPPED [1] conftest.py: needs lacking_one, which is not installed: make setup",
    "ERROR test_another.py",
    "FAILED test_another_when_it_runs.py::test - ModuleNotFoundError: No module named 'lacking_two'",
    "ERROR test_wrong.py - ValueError: No module named 'lacking_one'",
}


def test_tests_that_need_what_is_lacking_are_skipped(tmp_path):
    text = CONFTEST.read_text(encoding="utf-8")
    assert text.count("OPTIONAL = (") == 1
    (tmp_path / "conftest.py").write_text(text.replace("OPTIONAL = (", 'OPTIONAL = ("lacking_one", '))
    for name, lines in FILES.items():
        (tmp_path / name).write_text(f"{lines}\n")
    command = [
        sys.executable, "-m", "pytest", "-q", "-rsfE", "--continue-on-collection-errors", "-p", "no:cacheprovider",
    ]  # fmt: skip
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    summary = done.stdout.partition("short test summary info")[2].splitlines()
    found = {re.sub(r"\.py:\d+:", ".py:", line) for line in summary if line.startswith(("SKIPPED", "ERROR", "FAILED"))}
    assert found == OUTCOMES, done.stdout
    assert "1 passed" in done.stdout
