"""The tests of a checkout of causal-conv1d, on the cpu, with nkiconv's functions in that package's place."""

import re
import tempfile
from pathlib import Path

import library

TESTS = Path("tests") / "test_causal_conv1d.py"
#: How often a test that looks for races between CUDA's threads runs again, instead of ten thousand times.
REPEATS = 3
#: What is changed in their source, and nothing else: (pattern, what for it).
CHANGES = ((r"(['\"])cuda\1", r"\1cpu\1"), (r"range\(10000\)", f"range({REPEATS})"))


def on_cpu(source: str) -> str:
    """Their tests, with what a machine without CUDA needs changed."""
    for pattern, instead in CHANGES:
        source = re.sub(pattern, instead, source)
    return source


def collect(checkout: Path, mode: str, sample: int, seed: int, seconds: int, only: str) -> list[library.Found]:
    """What came of each function's tests in a mode of NKICONV_CPU; sample: so many of them, 0: all."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / TESTS.name
        copy.write_text(on_cpu((checkout / TESTS).read_text(encoding="utf-8")), encoding="utf-8")
        command = ["-p", "causal_plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", scratch, "-k", only]
        command += ["--checkout", str(checkout), "--sample", str(sample), "--seed", str(seed), str(copy)]
        document = library.document_of(command, Path(scratch), [], seconds, NKICONV_CPU=mode)
    return library.tallied(library.results(document), "test") if document is not None else []
