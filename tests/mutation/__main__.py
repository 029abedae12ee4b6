"""Plant faults in the kernels and in the simulator's rules, and count how many the tests notice: tests/mutation.md.

    make mutation

Kernels are judged by `make test`, the simulator's rules by whole tables of tests/simulator, of which that runs some
rows. Each fault is planted alone, in a copy of the repository; the tests that run its line are run until one fails: a
few first, then more, then all up to a limit, by turns those that run the fewest lines and others at random. A survivor
has passed them all. What no test runs survives too. In the end the tests that failed run once more, in a copy where
those files have a comment more and no fault; what fails there too has told nothing, and its faults are judged without
it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import faults
import reach
from rich.progress import Progress

from nkiconv.whole_file import write_page

ROOT = Path(__file__).resolve().parents[2]
#: What judges faults: pytest's -m and files; all of `make test`, or all rows of tables.
JUDGES: dict[str, tuple[str, list[str]]] = {"kernels": ("not slow", []), "rules": ("", ["tests/simulator"])}
#: How many of the tests that run a line are run, one step after the other, until one fails.
STEPS = (12, 60, 400)
#: Seconds for one step; a fault that makes a loop endless is noticed as such.
SECONDS = 600
COPIED = ("nkiconv", "tests", "examples", "profiles", "docs", ".github", "pyproject.toml", "Makefile", "README.md")
COPIED += ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md")


@dataclass(frozen=True)
class Verdict:
    """What came of a fault: "noticed", "survived" or "not reached", after how many tests, and which of them noticed it:
    the one that failed, or all of a step that did not end."""

    fault: faults.Fault
    outcome: str
    tests: int
    by: tuple[str, ...] = ()


def copy_of_repository(to: Path) -> Path:
    """Everything that tests need, in a folder of its own."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, to / name)
    return to


def failing(copy: Path, tests: Sequence[str], *options: str, seconds: int | None = None) -> tuple[str, ...]:
    """Which of these tests fail in the copy; all of them if they do not end in time, or if pytest itself breaks."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return tuple(tests)
    if done.returncode in (4, 5):
        sys.exit(f"pytest ran none of {tests[:3]}: {done.stdout[-300:]}")
    return (failed_of(done.stdout, tests) or tuple(tests)) if done.returncode else ()


def failed_of(output: str, tests: Sequence[str]) -> tuple[str, ...]:
    """The tests that the last lines of pytest's output name as failed, or as broken by their fixtures."""
    named = {line.partition(" ")[2] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))}
    return tuple(test for test in tests if any(line == test or line.startswith(f"{test} - ") for line in named))


def judge(fault: faults.Fault, copy: Path, tests: Sequence[str], marker: str) -> Verdict:
    """Plant a fault in a copy, run tests until one fails, and take it back."""
    file = copy / fault.path.relative_to(ROOT)
    text = fault.path.read_text(encoding="utf-8")
    file.write_text(fault.planted(text), encoding="utf-8")
    done = 0
    try:
        for step in STEPS:
            batch = tests[done : done + step]
            by = failing(copy, batch, "-x", "-m", marker, seconds=SECONDS) if batch else ()
            done += len(batch)
            if by:
                return Verdict(fault, "noticed", done, by)
    finally:
        file.write_text(text, encoding="utf-8")
    return Verdict(fault, "survived" if done else "not reached", done)


def untold(copy: Path, verdicts: Sequence[Verdict], marker: str) -> set[str]:
    """The tests that fail without a fault too, in a copy whose files have changed as little as a file can."""
    tests = sorted({test for verdict in verdicts for test in verdict.by})
    originals = {verdict.fault.path: verdict.fault.path.read_text(encoding="utf-8") for verdict in verdicts}
    try:
        for path, text in originals.items():
            (copy / path.relative_to(ROOT)).write_text(f"{text}# no fault\n", encoding="utf-8")
        steps = [tests[start : start + STEPS[-1]] for start in range(0, len(tests), STEPS[-1])]
        return {test for step in steps for test in failing(copy, step, "-m", marker)}
    finally:
        for path, text in originals.items():
            (copy / path.relative_to(ROOT)).write_text(text, encoding="utf-8")


def sample(found: list[faults.Fault], count: int, seed: int) -> list[faults.Fault]:
    """So many of them at random; of each kind at least a tenth of an even share, so that rare kinds are there."""
    if count >= len(found):
        return found
    if count == 0:
        return []
    chance = random.Random(seed)
    kinds = sorted({fault.kind for fault in found})
    chosen: list[faults.Fault] = []
    for kind in kinds:
        of_kind = [fault for fault in found if fault.kind == kind]
        chosen += chance.sample(of_kind, min(len(of_kind), max(1, count // (2 * len(kinds)))))
    rest = [fault for fault in found if fault not in set(chosen)]
    return chosen + chance.sample(rest, max(0, count - len(chosen)))


def section(title: str, verdicts: list[Verdict], of: int) -> list[str]:
    """A table of what came of these faults, and the survivors."""
    kinds = sorted({verdict.fault.kind for verdict in verdicts})
    noticed = sum(verdict.outcome == "noticed" for verdict in verdicts)
    asking = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(asking, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    share = f"{noticed} of {len(verdicts)} noticed, {100 * noticed / max(len(verdicts), 1):.1f} %"
    lines = [f"## {title}", "", f"At commit {commit}: {share}; {of} can be planted."]
    lines += ["", "| fault | planted | noticed | survived | not reached |", "| --- | ---: | ---: | ---: | ---: |"]
    for kind in kinds:
        counts = Counter(verdict.outcome for verdict in verdicts if verdict.fault.kind == kind)
        lines.append(
            f"| {kind} | {counts.total()} | {counts['noticed']} | {counts['survived']} | {counts['not reached']} |"
        )
    left = [verdict for verdict in verdicts if verdict.outcome != "noticed"]
    lines += ["", "Survivors:" if left else "No survivors.", ""]
    for verdict in sorted(left, key=lambda one: (one.fault.path, one.fault.line)):
        fault = verdict.fault
        shown = fault.shown(fault.path.read_text(encoding="utf-8"))
        place = f"{fault.path.relative_to(ROOT)}:{fault.line}"
        lines.append(f"- {place}, {fault.kind}: `{shown}` ({verdict.outcome}, {verdict.tests} tests)")
    return [*lines, ""]


def judge_all(chosen: list[faults.Fault], reached: reach.Reach, seed: int, jobs: int, marker: str) -> list[Verdict]:
    """The verdict of every fault, in their order."""
    with tempfile.TemporaryDirectory() as scratch, Progress() as progress:
        task = progress.add_task("planting faults", total=len(chosen))
        copies: SimpleQueue[Path] = SimpleQueue()
        for index in range(jobs):
            copies.put(copy_of_repository(Path(scratch) / str(index)))
        without: set[str] = set()

        def one(fault: faults.Fault) -> Verdict:
            copy = copies.get()
            try:
                tests = reached.tests(fault.path, fault.line, seed)
                verdict = judge(fault, copy, [test for test in tests if test not in without], marker)
            finally:
                copies.put(copy)
            if verdict.outcome != "noticed":
                place = f"{fault.path.relative_to(ROOT)}:{fault.line}"
                progress.console.print(f"{verdict.outcome}: {place} {fault.kind}", markup=False)
            progress.advance(task)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            verdicts = list(pool.map(one, chosen))
            while told_nothing := untold(Path(scratch) / "0", verdicts, marker):
                without |= told_nothing
                for test in sorted(told_nothing):
                    progress.console.print(f"fails without a fault too: {test}", markup=False)
                again = [verdict.fault for verdict in verdicts if without.intersection(verdict.by)]
                progress.reset(task, total=len(again))
                judged = {verdict.fault: verdict for verdict in pool.map(one, again)}
                verdicts = [judged.get(verdict.fault, verdict) for verdict in verdicts]
            return verdicts


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=150, help="faults in kernels; default: 150")
    parser.add_argument("--rules", type=int, default=10**6, help="faults in the simulator's rules; default: all")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--tests", nargs="*", default=[], help="only these files, with all rows of their tables")
    parser.add_argument("--seed", type=int, default=0, help="of the choice; default: 0")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--reach", type=Path, help="keep in this folder which test runs which line, and use it so")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    said = "Written by `make mutation`; files and lines are those of the commit that is named."
    lines = ["# Faults that the tests notice", "", said, ""]
    groups = (
        ("kernels", "Kernels", faults.of_kernels, asked.kernels),
        ("rules", "The simulator's rules", faults.of_rules, asked.rules),
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name, title, of, count in groups:
            found = [fault for fault in of(ROOT / "nkiconv") if asked.only in str(fault.path)]
            chosen, verdicts = sample(found, count, asked.seed), []
            if chosen:
                marker, files = ("", asked.tests) if asked.tests else JUDGES[name]
                data = (asked.reach or Path(scratch)).resolve() / name
                if not data.exists():
                    reach.record(data, asked.jobs, "-m", marker, *files)
                reached = reach.Reach.of(data, "-m", marker, *files)
                verdicts = judge_all(chosen, reached, asked.seed, asked.jobs, marker)
            lines += section(title, verdicts, len(found))
    write_page(lines, asked.out)


if __name__ == "__main__":
    main()
