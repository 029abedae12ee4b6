"""The tests of a checkout of causal-conv1d, on the cpu, with nkiconv's functions in that package's place."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = Path("tests") / "test_causal_conv1d.py"
#: How often a test that looks for races between CUDA's threads runs again, instead of ten thousand times.
REPEATS = 3
#: What is changed in their source, and nothing else: (pattern, what for it).
CHANGES = ((r"(['\"])cuda\1", r"\1cpu\1"), (r"range\(10000\)", f"range({REPEATS})"))
#: pytest-timeout's words.
TOO_LONG = "Timeout"


@dataclass
class Found:
    """What came of the tests of one function."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    #: ended by the limit of seconds, with no result
    too_long: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Asked:
    """How a mode's tests run: sample 0 is all of them, seconds those that one of them may take."""

    mode: str
    sample: int
    seed: int
    seconds: int
    only: str = ""


def on_cpu(source: str) -> str:
    """Their tests, with what a machine without CUDA needs changed."""
    for pattern, instead in CHANGES:
        source = re.sub(pattern, instead, source)
    return source


def events(checkout: Path, asked: Asked) -> Iterator[dict[str, Any]]:
    """What plugin.py says while the tests run: {"total"} once, then {"test", "outcome", "message"} of each."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / TESTS.name
        copy.write_text(on_cpu((checkout / TESTS).read_text(encoding="utf-8")), encoding="utf-8")
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "pytest", "-p", "plugin", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-p", "no:xdist", "--rootdir", scratch, "--timeout", str(asked.seconds), "-k", asked.only]
        command += ["--checkout", str(checkout), "--sample", str(asked.sample), "--seed", str(asked.seed)]
        command += ["--events", str(writer), str(copy)]
        paths = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NKICONV_CPU": asked.mode}
        with open(Path(scratch) / "said", "w+", encoding="utf-8") as said:
            run = subprocess.Popen(
                command, cwd=scratch, env=environment, pass_fds=[writer], stdout=said, stderr=subprocess.STDOUT
            )
            os.close(writer)
            heard = False
            try:
                with os.fdopen(reader, encoding="utf-8") as lines:
                    for line in lines:
                        heard = True
                        yield json.loads(line)
            finally:
                run.terminate() if run.poll() is None and not heard else run.wait()
            if not heard:
                said.seek(0)
                missing = re.search(r"No module named '(\w+)'", text := said.read())
                sys.exit(f"{missing[1]}: is not installed" if missing else text)


def collect(happened: Iterator[dict[str, Any]]) -> dict[str, Found]:
    """What came of each function's tests, in their order."""
    found: dict[str, Found] = {}
    for event in happened:
        if "test" not in event:
            continue
        name = event["test"].rpartition("::")[2].partition("[")[0]
        one, message = found.setdefault(name, Found()), event["message"]
        if event["outcome"] == "passed":
            one.passed += 1
        elif event["outcome"] == "skipped":
            one.skipped += 1
        elif TOO_LONG in message:
            one.too_long += 1
        else:
            one.failed += 1
            one.reasons[message[:160].replace("|", "/")] += 1
    return found
