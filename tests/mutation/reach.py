"""Which tests run which lines: one run of tests with coverage's contexts, kept for as long as no file changes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
#: What coverage adds to a test's name in a context.
_TEST = re.compile(r"\|(run|setup|teardown)$")
_RULE = re.compile(r"NKI\d{3}")


def record(data: Path, jobs: int, *tests: str) -> None:
    """Run tests, in pytest's words, and write which of them runs which line to `data`."""
    data.parent.mkdir(parents=True, exist_ok=True)
    settings = data.with_name(f"{data.name}-settings.ini")  # coverage deletes what is named as data are, with an ending
    sources = ",".join(str(ROOT / "nkiconv" / name) for name in ("kernels", "simulator"))
    settings.write_text(f"[run]\ndata_file = {data}\nsource = {sources}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "-p", "no:cacheprovider"]
    command += ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", *tests]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COVERAGE_FILE": str(data)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        sys.exit("the suite fails as it is; no fault can be told from that")


def collected(*tests: str) -> set[str]:
    """The tests that there are now, by their node ids: a kept record may name others."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


@dataclass(frozen=True)
class Reach:
    """Of each line of the package the tests that run it, by their node ids, and how many lines each test runs."""

    lines: dict[str, dict[int, list[str]]]
    runs: Counter[str]

    @classmethod
    def of(cls, path: Path, *tests: str) -> Reach:
        data = CoverageData(basename=str(path))
        data.read()
        there = collected(*tests)
        lines: dict[str, dict[int, list[str]]] = {}
        runs: Counter[str] = Counter()
        for file in track(sorted(data.measured_files()), description="reading which tests run which lines"):
            found = {
                line: sorted(there.intersection(_TEST.sub("", context) for context in contexts))
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            lines[file] = found
            for tests in found.values():
                runs.update(tests)
        return cls(lines, runs)

    def tests(self, file: Path, line: int, seed: int) -> list[str]:
        """Tests that run this line: by turns those named after a rule that the next lines name, then those that run
        the fewest lines beside it, and others at random."""
        found = self.lines.get(str(file.resolve()), {}).get(line, [])
        rules = set(_RULE.findall(" ".join(file.read_text(encoding="utf-8").splitlines()[line - 1 : line + 2])))
        narrow = sorted(found, key=lambda test: (not rules.intersection(_RULE.findall(test)), self.runs[test], test))
        mixed = random.Random(seed).sample(found, len(found))
        return list(dict.fromkeys(test for pair in zip(narrow, mixed, strict=True) for test in pair))
