"""How much of AWS's own kernels runs in nkiconv's simulator, and of causal-conv1d's own tests on nkiconv's functions.

    make conformance CHECKOUTS="../nki-library ../nki-samples ../aws-neuron-sdk"    writes tests/conformance.md
    make peers CHECKOUTS=../causal-conv1d

Takes checkouts of nki-library (runs its tests), nki-samples and aws-neuron-sdk (run their tutorials) and says for each
kernel whether it passed, how far it is from its reference, and why it did not. Needs what nki-library's tests import
(docs/kernels.md, "Kernels of others"). The tests of causal-conv1d run with nkiconv's functions under that package's
name, on the cpu, in each mode of NKICONV_CPU, against the checkout's own references; they need einops (`make setup`).
Nothing of a checkout is kept.
"""

import argparse
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import causal_suite
import library
import tutorials
from rich.progress import track

from nkiconv.pytorch.computers.modes import MODES
from nkiconv.whole_file import write_page

#: Folders by which a checkout of tutorials is known.
TUTORIALS = (Path("src/nki_samples/tutorials"), Path("nki/examples"))


def commit_of(checkout: Path) -> str:
    """The commit that is checked out, or that it is not known."""
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown commit"


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def library_section(checkout: Path, commit: str, only: str, marker: str, seconds: int) -> Iterator[str]:
    """What came of nki-library's tests, as lines of Markdown."""
    folders = sorted({path.parent for path in (checkout / library.TESTS).rglob("test_*.py")})
    folders = [folder for folder in folders if only in str(folder.relative_to(checkout))]
    found = library.collect(checkout, track(folders, description="running nki-library's tests"), marker, seconds)
    passed, run, beyond = (sum(getattr(one, name) for one in found) for name in ("passed", "run", "beyond"))
    within = [one for one in found if one.run > one.beyond]
    whole = sum(one.passed == one.run - one.beyond for one in within)
    yield f"## nki-library ({commit})"
    yield ""
    yield (
        f"Its tests marked `{marker}`, with their own inputs, references and tolerances, for at most {seconds} s each: "
        f"{passed} of {run} passed. "
        f"{beyond} need other hardware or AWS's compiler, or break a documented rule, or end before a kernel runs "
        f"('needs', 'theirs'); of the other {run - beyond} that is {100 * passed / max(run - beyond, 1):.1f} %. "
        f"Of {len(within)} files with such tests all of them passed in {whole}, "
        f"some in {sum(one.passed > 0 for one in within)}. "
        "Difference: the largest from a reference over that reference's largest number, in the tests that passed and "
        "compare so. Skipped: by the tests themselves, in this mode. "
        f"Adapted: {sum(one.adapted for one in found)} that passed have kernels which pass ints for enums, or floats "
        "to memset of integers; NKI refuses both since 0.3, the command puts them right. "
        "Raced, overfull: of those that passed, the ones whose two cores race (NKI028), and whose live tensors in "
        "program order need more than SBUF or PSUM has (NKI018, NKI019). AWS's simulator checks neither, and its "
        "compiler's scheduler may find an order that fits; they ran with `races=True` and `overflow=True`, without "
        "which they are refused."
    )
    yield ""
    yield "| tests | passed | raced | overfull | of | skipped | difference | why not |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for one in found:
        why = "; ".join(f"{count} x {reason}" for reason, count in one.reasons.most_common())
        counts = f"{one.passed} | {one.raced or ''} | {one.overflowed or ''} | {one.run} | {one.skipped}"
        yield f"| {one.file} | {counts} | {_difference(one.difference)} | {why} |"
    yield ""


def tutorials_section(checkout: Path, commit: str) -> Iterator[str]:
    """What came of tutorials' kernels, as lines of Markdown."""
    outcomes = list(tutorials.outcomes(checkout))
    older = tutorials.older(checkout)
    counts = Counter(outcome.status.partition(":")[0] for outcome in outcomes)
    name = "nki-samples" if (checkout / TUTORIALS[0]).is_dir() else "aws-neuron-sdk"
    yield f"## {name} ({commit})"
    yield ""
    yield (
        f"Tutorials that import nki: {', '.join(f'{count} {status}' for status, count in counts.most_common())}. "
        f"{len(older)} files with kernels of NKI before 0.3 (neuronxcc.nki) are not run: the compilers since do not "
        "take them either."
    )
    yield ""
    yield "| file | kernel | status | difference |"
    yield "| --- | --- | --- | ---: |"
    for outcome in outcomes:
        yield f"| {outcome.file} | {outcome.kernel} | {outcome.status} | {_difference(outcome.difference)} |"
    yield ""
    yield from (f"- older: {file}" for file in older)
    yield ""


def causal_section(checkout: Path, commit: str, mode: str, asked: argparse.Namespace) -> Iterator[str]:
    """What came of causal-conv1d's tests in one mode, as lines of Markdown."""
    began, sample = time.monotonic(), asked.torch_sample if mode == "torch" else asked.sample
    found = causal_suite.collect(checkout, mode, sample, asked.seed, asked.seconds, asked.only)
    which = f"a sample of {sample}, seed {asked.seed}" if sample else "all"
    yield f"## causal-conv1d ({commit}), NKICONV_CPU={mode} ({which}; {time.monotonic() - began:.0f} s)"
    yield ""
    yield "| test | passed | of | skipped | why not |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for one in found:
        why = "; ".join(f"{count} x {reason}" for reason, count in one.reasons.most_common(3))
        yield f"| {one.file} | {one.passed} | {one.run} | {one.skipped} | {why} |"
    sums = [sum(getattr(one, what) for one in found) for what in ("passed", "run", "skipped")]
    yield f"| **all** | {' | '.join(map(str, sums))} | |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tests/conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkouts", type=Path, nargs="+", help="of nki-library, nki-samples, aws-neuron-sdk, causal-conv1d"
    )
    parser.add_argument(
        "--only", default="", help="of nki-library: folders whose path contains this; of causal-conv1d: pytest's -k"
    )
    parser.add_argument("--marker", default="fast", help="of nki-library: pytest's -m; default: fast")
    parser.add_argument("--seconds", type=int, default=120, help="for one of their tests, at most; default: 120")
    parser.add_argument("--mode", action="append", choices=MODES, help="of causal-conv1d: of NKICONV_CPU; default: all")
    parser.add_argument("--sample", type=int, default=60, help="of its tests in the simulator; 0: all; default: 60")
    parser.add_argument(
        "--torch-sample", type=int, default=0, help="of its tests in torch's mode; default: 0, all (an hour or two)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples; default: 0")
    parser.add_argument("--commit", action="append", default=[], help="of each checkout that is no git repository")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    known = (library.TESTS, *TUTORIALS, causal_suite.TESTS)
    for checkout in asked.checkouts:
        if not any((checkout / place).exists() for place in known):
            parser.error(f"{checkout}: has none of {', '.join(map(str, known))}; give a checkout of one of the four")
    peers = all((checkout / causal_suite.TESTS).is_file() for checkout in asked.checkouts)
    title, command = ("Peers' tests", "peers") if peers else ("AWS's kernels in the simulator", "conformance")
    lines = [f"# {title}", "", f"Written by `make {command}`. Nothing here ran on hardware.", ""]
    for index, checkout in enumerate(path.resolve() for path in asked.checkouts):
        commit = asked.commit[index] if index < len(asked.commit) else commit_of(checkout)
        if (checkout / library.TESTS).is_dir():
            lines += library_section(checkout, commit, asked.only, asked.marker, asked.seconds)
        elif (checkout / causal_suite.TESTS).is_file():
            for mode in asked.mode or MODES:
                lines += causal_section(checkout, commit, mode, asked)
        else:
            lines += tutorials_section(checkout, commit)
    write_page(lines, asked.out)


if __name__ == "__main__":
    main()
