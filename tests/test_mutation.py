"""The command that plants faults: which it finds in a file, how it plants them, and what it makes of the tests."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import of_command

FOLDER = Path(__file__).resolve().parent / "mutation"


faults = of_command("mutation", "faults")
command = of_command("mutation")


KERNEL = '''"""Größe: a line that is longer in bytes than in characters."""
def kernel(x, rows, pad, P):
    for i in range(rows):
        t = x.ap(pattern=[[P, 4], [8, 2], [1, 3]], offset=pad + i)
    nisa.memset(t[0:rows], 0.0)
    nisa.nc_matmul(t, x, x, accumulate=i > 0)
'''
RULES = """
def check(n):
    if n > 3:
        fail("NKI001", "more")
    if n == 2 or n < 1:
        fail("NKI002", f"{n}")
"""


def planted(faults, makers, text, tmp_path):
    """{what a fault does: the text with it}."""
    path = tmp_path / "file.py"
    path.write_text(text, encoding="utf-8")
    found = faults.of_file(path, makers)
    return {f"{fault.kind}, {fault.line}: {fault.shown(text)}": fault.planted(text) for fault in found}


def test_faults_of_kernels(faults, tmp_path):
    found = planted(faults, faults.KERNEL, KERNEL, tmp_path)
    assert list(found) == [
        "tile bound, 3: rows -> (rows) - 1",
        "swapped strides, 4: [[P, 4], [8, 2], [1, 3]] -> [[P, 4], [1, 2], [8, 3]]",
        "halo, 4: pad + i -> pad - (i)",
        "missing memset, 5: nisa.memset(t[0:rows], 0.0) -> pass",
        "tile bound, 5: rows -> (rows) - 1",
        "missing instruction, 6: nisa.nc_matmul(t, x, x, accumulate=i > 0) -> pass",
        "accumulation, 6: i > 0 -> not (i > 0)",
    ]
    for text in found.values():
        compile(text, "file.py", "exec")
        changed = [new for old, new in zip(KERNEL.splitlines(), text.splitlines(), strict=True) if old != new]
        assert len(changed) == 1


def test_faults_of_rules(faults, tmp_path):
    found = planted(faults, faults.RULES, RULES, tmp_path)
    assert list(found) == [
        "limit, 3: n > 3 -> n >= 3",
        'missing rule, 4: fail("NKI001", "more") -> pass',
        "limit, 5: n < 1 -> n <= 1",
        'missing rule, 6: fail("NKI002", f"{n}") -> pass',
    ]


@pytest.mark.slow
def test_there_are_faults_of_every_kind(faults):
    package = FOLDER.parents[1] / "nkiconv"
    assert {fault.kind for fault in faults.of_kernels(package)} == {
        "tile bound", "swapped strides", "halo", "missing memset", "missing instruction", "accumulation"
    }  # fmt: skip
    assert {fault.kind for fault in faults.of_rules(package)} == {"missing rule", "limit"}


class Reached:
    """Forty tests run every line."""

    def tests(self, file, line, seed):
        return [f"test_{i}" for i in range(40)]


class Suite:
    """A suite in which one test fails with a fault, and one whenever a file is not as it was."""

    def __init__(self, file, fails, fails_always=""):
        self.file, self.fails, self.fails_always = file, fails, fails_always
        self.seen = []

    def failing(self, copy, names, *options, seconds=None):
        self.seen.append((copy / self.file).read_text(encoding="utf-8"))
        failing = {self.fails_always} if self.seen[-1].endswith("# no fault\n") else {self.fails, self.fails_always}
        found = tuple(name for name in names if name in failing)
        return found[:1] if "-x" in options else found


@pytest.fixture
def judged(command, monkeypatch, tmp_path):
    """The first fault in DMAs, its verdict with a suite, and the suite."""

    def judge(fails, fails_always=""):
        fault = command.faults.of_file(command.ROOT / "nkiconv" / "kernels" / "_dma.py", command.faults.KERNEL)[0]
        suite = Suite(fault.path.relative_to(command.ROOT), fails, fails_always)
        monkeypatch.setattr(command, "failing", suite.failing)
        monkeypatch.setattr(command, "copy_of_repository", lambda to: _with_file(to, fault, command))
        [verdict] = command.judge_all([fault], Reached(), seed=0, jobs=1, kept=command.Kept(tmp_path / "kept"))
        return fault, verdict, suite

    return judge


@pytest.mark.parametrize(
    ("fails", "outcome", "tests"), [("test_3", "noticed", 12), ("test_30", "noticed", 40), ("", "survived", 40)]
)
def test_verdicts(judged, command, tmp_path, fails, outcome, tests):
    """A fault is planted while tests run, few at first, and gone when those that failed run again."""
    fault, verdict, suite = judged(fails)
    assert (verdict.outcome, verdict.tests, verdict.by) == (outcome, tests, (fails,) if fails else ())
    text = fault.path.read_text(encoding="utf-8")
    assert set(suite.seen) == {fault.planted(text)} | ({f"{text}# no fault\n"} if fails else set())
    again = command.Kept(tmp_path / "kept").get(fault, set())
    assert again == (verdict if outcome == "noticed" else None)
    lines = "\n".join(command.section("Kernels", [verdict], 7))
    assert f"{int(outcome == 'noticed')} of 1 noticed" in lines
    assert (f":{fault.line}, {fault.kind}" in lines) == (outcome == "survived")


@pytest.mark.parametrize(("fails", "outcome", "by"), [("test_30", "noticed", ("test_30",)), ("", "survived", ())])
def test_one_that_fails_without_a_fault_tells_nothing(judged, command, tmp_path, fails, outcome, by):
    fault, verdict, _ = judged(fails, fails_always="test_5")
    assert (verdict.outcome, verdict.tests, verdict.by) == (outcome, 39, by)
    assert command.Kept(tmp_path / "kept").get(fault, {"test_5", "test_30"}) is None


OUTPUT = """F
FAILED test_a.py::test_sum[1 - 2] - assert 3 == 4
FAILED test_a.py::test_sum[1]
ERROR test_a.py::test_broken - ValueError
1 failed
"""


def test_which_failed(command):
    tests = [f"test_a.py::{name}" for name in ("test_sum", "test_sum[1]", "test_sum[1 - 2]", "test_broken", "test_ok")]
    assert command.failed_of(OUTPUT, tests) == tuple(tests[1:4])


@pytest.mark.cover(1)
@pytest.mark.parametrize(("body", "seconds", "fails"), [
    ("def test_a(): pass\ndef test_b(): assert False", 60, ["test_b"]),
    ("def test_a(): pass\ndef test_b(): pass", 60, []),
    ("import os\ndef test_a(): os._exit(3)\ndef test_b(): pass", 60, ["test_a", "test_b"]),
    ("def test_a():\n    while True: pass\ndef test_b(): pass", 1, ["test_a", "test_b"]),
])  # fmt: skip
def test_running_tests(command, tmp_path, body, seconds, fails):
    (tmp_path / "test_few.py").write_text(body, encoding="utf-8")
    names = [f"test_few.py::{name}" for name in ("test_a", "test_b")]
    found = command.failing(tmp_path, names, "-x", seconds=seconds)
    assert found == tuple(f"test_few.py::{name}" for name in fails)


def _with_file(to, fault, command):
    path = to / fault.path.relative_to(command.ROOT)
    path.parent.mkdir(parents=True)
    path.write_text(fault.path.read_text(encoding="utf-8"), encoding="utf-8")
    return to


def test_help_says_what_it_does():
    done = subprocess.run([sys.executable, str(FOLDER), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Plant faults" in done.stdout
