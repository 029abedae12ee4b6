"""How much of nki-library runs in nkiconv's simulator: `make conformance CHECKOUT=PATH` writes tests/conformance.md.

Runs the tests of a checkout, with their own inputs and references, and says for each file how many passed and why the
others did not. Needs what those tests import (README, "Kernels of others"); nothing of the checkout is kept.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from rich.progress import track

HERE = Path(__file__).resolve().parent
TESTS = Path("test") / "integration" / "nkilib"
#: What a failure's message tells of its reason: (pattern, reason); the first that is found.
REASONS = (
    (r"nki\.(isa|language)\.(\w+) is documented NKI that this simulator does not run", r"not simulated: \2"),
    (r"NKI049|NeuronCore-v4|trn3|gen4|_mx\b|_x4\b", "needs trn3"),
    (r"(NKI\d\d\d)", r"refused: \1"),
    (r"Validation failed", "differs from the reference"),
    (r"Timeout", "takes too long"),
    (r"(\w*Error): (.{0,80})", r"\1: \2"),
)


@dataclass
class Found:
    """What came of a file's tests."""

    file: str
    passed: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> int:
        return self.passed + sum(self.reasons.values())


def reason_of(message: str) -> str:
    """Why a test failed, in few words."""
    for pattern, reason in REASONS:
        match = re.search(pattern, message)
        if match:
            return match.expand(reason).strip().replace("|", "/")
    return message.strip().splitlines()[0][:80] if message.strip() else "no message"


def run_folder(checkout: Path, folder: Path, marker: str, seconds: int) -> ElementTree.Element | None:
    """The JUnit document of a folder's tests, or None where nothing came of it."""
    paths = [str(checkout), str(checkout / "src"), str(HERE), str(HERE.parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-p", "plugin", "--test-mode", "simulation", "-q", "--tb=line"]
        command += ["-n", "2", "--timeout", str(seconds), "--continue-on-collection-errors", "-m", marker]
        command += ["--output-directory", scratch, "--junitxml", str(report), str(folder)]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if report.exists():
            return ElementTree.parse(report).getroot()
        missing = re.search(r"No module named '(\w+)'", done.stderr + done.stdout)
        if missing:
            sys.exit(
                f"{missing[1]}: is not installed, and nki-library's tests import it; see README, Kernels of others"
            )
        return None


def results(document: ElementTree.Element) -> Iterator[tuple[str, str, str]]:
    """(file, "passed", "skipped" or "failed", message) of each test."""
    for case in document.iter("testcase"):
        names = case.attrib["classname"].split(".") if case.attrib["classname"] else case.attrib["name"].split(".")
        file = next((name for name in reversed(names) if name.startswith("test_")), names[-1])
        for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            node = case.find(kind)
            if node is not None:
                yield file, outcome, f"{node.attrib.get('message', '')}\n{node.text or ''}"
                break
        else:
            yield file, "passed", ""


def collect(checkout: Path, folders: Iterable[Path], marker: str, seconds: int) -> list[Found]:
    """What came of every file, by name."""
    found: dict[str, Found] = {}
    for folder in folders:
        document = run_folder(checkout, folder, marker, seconds)
        if document is None:
            found[str(folder)] = Found(folder.name, reasons=Counter({"pytest ended without a report": 1}))
            continue
        for name, outcome, message in results(document):
            one = found.setdefault(name, Found(name))
            if outcome == "passed":
                one.passed += 1
            elif outcome == "skipped":
                one.skipped += 1
            else:
                one.reasons[reason_of(message)] += 1
    return sorted(found.values(), key=lambda one: one.file)


def page(found: list[Found], checkout: Path, marker: str) -> str:
    """The Markdown page."""
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    passed, run = sum(one.passed for one in found), sum(one.run for one in found)
    whole = sum(one.run > 0 and one.passed == one.run for one in found)
    lines = [
        "# Kernels of nki-library in the simulator",
        "",
        f"Written by `make conformance CHECKOUT=PATH`. Checkout: {commit or 'unknown'}; tests marked `{marker}`, with "
        "their own inputs, references and tolerances, on the simulator.",
        "",
        f"{passed} of {run} tests passed; in {whole} of {sum(one.run > 0 for one in found)} files all did. Skipped are "
        "those that the tests themselves skip in this mode (large shapes, other platforms).",
        "",
        "| file | passed | of | skipped | why not |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for one in found:
        why = "; ".join(f"{count} x {reason}" for reason, count in one.reasons.most_common())
        lines.append(f"| {one.file} | {one.passed} | {one.run} | {one.skipped} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python tests/conformance", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of aws-neuron/nki-library")
    parser.add_argument("--only", default="", help="folders whose path contains this")
    parser.add_argument("--marker", default="fast", help="pytest's -m; default: fast")
    parser.add_argument("--seconds", type=int, default=60, help="for one test, at most; default: 60")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    if not (asked.checkout / TESTS).is_dir():
        parser.error(f"{asked.checkout}: has no folder {TESTS}; give a checkout of nki-library")
    checkout = asked.checkout.resolve()
    folders = sorted({path.parent for path in (checkout / TESTS).rglob("test_*.py")})
    folders = [folder for folder in folders if asked.only in str(folder.relative_to(checkout))]
    found = collect(checkout, track(folders, description="running nki-library's tests"), asked.marker, asked.seconds)
    text = page(found, checkout, asked.marker)
    if asked.out is None:
        print(text)
    else:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
