"""The tests of a checkout of nki-library in the simulator, with their own inputs, references and tolerances."""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
TESTS = Path("test") / "integration" / "nkilib"
#: Why a test cannot run on what is simulated here.
TRN3 = "needs trn3"
#: What a failure's message tells of its reason: (pattern, reason); the first that is found.
REASONS = (
    (r"nki\.collectives\.\w+ is documented NKI", "needs several devices"),
    (r"nki\.(isa|language)\.(\w+) is documented NKI that this simulator does not run", r"not simulated: \2"),
    (r"NKI049|NeuronCore-v4|trn3|gen4|_mx\b|_x4\b", TRN3),
    (r"(NKI\d\d\d)", r"refused: \1"),
    (r"No module named 'nki\.compiler", "needs AWS's compiler"),
    (r"Validation failed", "differs from the reference"),
    (r"Timeout", "takes too long"),
    (r"worker '\w+' crashed", "its process died"),
    (r"(\w*Error): (.{0,80})", r"\1: \2"),
)
#: What a file of theirs says that does not load, or a test that ends before it calls a kernel, with nothing of ours on
#: the way: else it is no fault of theirs.
UNLOADED = (
    (r"IndentationError|SyntaxError", "theirs: does not parse"),
    (r"test_\w+\.py: KeyError: '(\w+)'", r"theirs: the test finds no \1 among its own inputs"),
    (r"NameError: name '(\w+)'|No module named 'nkilib_src[\w.]*\.(\w+)'", r"theirs: no \1\2"),
)


@dataclass
class Found:
    """What came of a file's tests."""

    file: str
    passed: int = 0
    skipped: int = 0
    #: of these with a kernel that was adapted from NKI 0.2 to 0.3 (plugin.py)
    adapted: int = 0
    #: and of these whose cores race (NKI028), right in the order in which they run here
    raced: int = 0
    #: and of these whose tensors need more than SBUF or PSUM in program order (NKI018, NKI019)
    overflowed: int = 0
    #: the largest difference from a reference over its largest number, of the tests that passed and say it
    difference: float | None = None
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> int:
        return self.passed + sum(self.reasons.values())

    @property
    def beyond(self) -> int:
        """Tests that need what is not here, whose kernel breaks a documented rule, or which end before one runs."""
        return sum(count for reason, count in self.reasons.items() if reason.startswith(("needs", "theirs")))


def reason_of(message: str, places: Sequence[str] = ()) -> str:
    """Why a test failed, in few words; places: the files that the exception came through, the one it began in last."""
    ours = any("nkiconv/simulator/" in place for place in places)
    text = ": ".join([*places[-1:], message])
    for pattern, reason in REASONS if ours else (*UNLOADED, *REASONS):
        match = re.search(pattern, text)
        if match:
            return match.expand(reason).strip().replace("|", "/")
    return message.strip().splitlines()[0][:80] if message.strip() else "no message"


def document_of(
    arguments: Sequence[str], folder: Path, paths: Sequence[Path], seconds: int, **environment: str
) -> ElementTree.Element | None:
    """The JUnit document of tests that run in a folder for at most so many seconds each, or None where nothing came of
    them."""
    places = os.pathsep.join(map(str, [*paths, HERE, HERE.parents[1]]))
    environment = {**os.environ, "PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1", **environment}
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--timeout", str(seconds), *arguments]
        command += ["--junitxml", str(report)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if report.exists():
            return ElementTree.parse(report).getroot()
        missing = re.search(r"No module named '(\w+)'", done.stderr + done.stdout)
        if missing:
            sys.exit(f"{missing[1]}: is not installed, and these tests import it; see docs/kernels.md")
        return None


def run_folder(checkout: Path, folder: Path, marker: str, seconds: int) -> ElementTree.Element | None:
    """The JUnit document of a folder of nki-library's tests."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["-p", "plugin", "--test-mode", "simulation", "-n", "2", "--continue-on-collection-errors"]
        command += ["-m", marker, "--output-directory", scratch, str(folder)]
        command += ["--force-local-cleanup"]  # of gigabytes that their harness writes for each test
        return document_of(command, checkout, [checkout, checkout / "src"], seconds)


@dataclass(frozen=True)
class Result:
    """One test's: "passed", "skipped" or "failed", with its message, the files that an exception came through, and its
    difference from the reference."""

    file: str
    test: str
    outcome: str
    message: str = ""
    places: tuple[str, ...] = ()
    difference: float | None = None
    adapted: bool = False
    raced: bool = False
    overflowed: bool = False


def results(document: ElementTree.Element) -> Iterator[Result]:
    """Of each test."""
    for case in document.iter("testcase"):
        names = case.attrib["classname"].split(".") if case.attrib["classname"] else case.attrib["name"].split(".")
        file = next((name for name in reversed(names) if name.startswith("test_")), names[-1])
        test = case.attrib["name"].partition("[")[0]
        for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            node = case.find(kind)
            if node is not None:
                last = re.split(r"^(?:During handling|The above exception).*$", node.text or "", flags=re.MULTILINE)[-1]
                said = [node.attrib.get("message", ""), *re.findall(r"^E +(.*)$", last, re.MULTILINE)]
                places = re.findall(r"^(\S+\.py):\d+: ", last, re.MULTILINE)
                yield Result(file, test, outcome, "\n".join(said), tuple(places))
                break
        else:
            said = {one.attrib["name"]: one.attrib["value"] for one in case.iterfind("properties/property")}
            difference = float(said["difference"]) if "difference" in said else None
            told = ("adapted" in said, "RaceWarning" in said, "CapacityWarning" in said)
            yield Result(file, test, "passed", "", (), difference, *told)


def tallied(found: Iterable[Result], by: str) -> list[Found]:
    """What came of every file, or test, in their order."""
    every: dict[str, Found] = {}
    for result in found:
        one = every.setdefault(getattr(result, by), Found(getattr(result, by)))
        if result.outcome == "passed":
            one.passed += 1
            one.adapted += result.adapted
            one.raced += result.raced
            one.overflowed += result.overflowed
            if result.difference is not None:
                one.difference = max(one.difference or 0.0, result.difference)
        elif result.outcome == "skipped":
            one.skipped += 1
        else:
            one.reasons[reason_of(result.message, result.places)] += 1
    return list(every.values())


def collect(checkout: Path, folders: Iterable[Path], marker: str, seconds: int) -> list[Found]:
    """What came of every file, by name."""
    found: list[Found] = []
    for folder in folders:
        document = run_folder(checkout, folder, marker, seconds)
        if document is None:
            found.append(Found(folder.name, reasons=Counter({"pytest ended without a report": 1})))
        else:
            found += tallied(results(document), "file")
    return sorted(found, key=lambda one: one.file)
