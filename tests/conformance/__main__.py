"""How much of AWS's own kernels runs in nkiconv's simulator: writes tests/conformance.md.

    make conformance CHECKOUTS="../nki-library ../nki-samples ../aws-neuron-sdk"

Takes checkouts of nki-library (runs its tests), nki-samples and aws-neuron-sdk (run their tutorials) and says for each
kernel whether it passed, how far it is from its reference, and why it did not. Needs what nki-library's tests import
(docs/kernels.md, "Kernels of others"); nothing of a checkout is kept.
"""

import argparse
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import library
import tutorials
from rich.progress import track

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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tests/conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, nargs="+", help="of nki-library, nki-samples, aws-neuron-sdk")
    parser.add_argument("--only", default="", help="of nki-library: folders whose path contains this")
    parser.add_argument("--marker", default="fast", help="of nki-library: pytest's -m; default: fast")
    parser.add_argument("--seconds", type=int, default=120, help="for one of its tests, at most; default: 120")
    parser.add_argument("--commit", action="append", default=[], help="of each checkout that is no git repository")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    known = (library.TESTS, *TUTORIALS)
    for checkout in asked.checkouts:
        if not any((checkout / folder).is_dir() for folder in known):
            parser.error(f"{checkout}: has none of {', '.join(map(str, known))}; give a checkout of one of the three")
    lines = ["# AWS's kernels in the simulator", "", "Written by `make conformance`. Nothing here ran on hardware.", ""]
    for index, checkout in enumerate(path.resolve() for path in asked.checkouts):
        commit = asked.commit[index] if index < len(asked.commit) else commit_of(checkout)
        if (checkout / library.TESTS).is_dir():
            lines += library_section(checkout, commit, asked.only, asked.marker, asked.seconds)
        else:
            lines += tutorials_section(checkout, commit)
    write_page(lines, asked.out)


if __name__ == "__main__":
    main()
