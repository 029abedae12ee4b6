"""How much of causal-conv1d's own tests nkiconv passes.

    make peers CHECKOUTS=../causal-conv1d

Takes a checkout of causal-conv1d and runs its tests with nkiconv's functions under that package's name, on the cpu, in
each mode of NKICONV_CPU, against the checkout's own references. Needs einops (`make setup` installs it); nothing of a
checkout is kept. torch's own tables are tests/pytorch/test_opinfo.py's, which `make test-all` runs.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import suite
from rich.progress import Progress

from nkiconv.pytorch.computers.modes import MODES
from nkiconv.whole_file import write_page

#: Tests of a sample in the simulator: a few minutes on two cores.
SAMPLE = 60


def suite_section(checkout: Path, asked: suite.Asked, progress: Progress) -> Iterator[str]:
    """What came of causal-conv1d's tests in one mode, as lines of Markdown."""
    task = progress.add_task(f"causal-conv1d, NKICONV_CPU={asked.mode}", total=None)

    def told() -> Iterator[dict[str, Any]]:
        for event in suite.events(checkout, asked):
            if "total" in event:
                progress.update(task, total=event["total"])
            else:
                progress.advance(task)
            yield event

    began = time.monotonic()
    found = suite.collect(told())
    which = f"a sample of {asked.sample}, seed {asked.seed}" if asked.sample else "all"
    yield f"## causal-conv1d, NKICONV_CPU={asked.mode} ({which}; {time.monotonic() - began:.0f} s)"
    yield ""
    yield "| test | passed | failed | skipped | too long | why |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for name, one in found.items():
        why = "; ".join(f"{count} x {reason}" for reason, count in one.reasons.most_common(3))
        yield f"| {name} | {one.passed} | {one.failed} | {one.skipped} | {one.too_long} | {why} |"
    sums = [sum(getattr(one, what) for one in found.values()) for what in ("passed", "failed", "skipped", "too_long")]
    yield f"| **all** | {' | '.join(map(str, sums))} | |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tests/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, nargs="+", help="of causal-conv1d")
    parser.add_argument("--mode", action="append", choices=MODES, help="of NKICONV_CPU, may be repeated; default: all")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"tests in the simulator; 0: all; default: {SAMPLE}")
    parser.add_argument(
        "--torch-sample", type=int, default=0, help="tests in torch's mode; default: 0, all (an hour or two)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples; default: 0")
    parser.add_argument("--seconds", type=int, default=300, help="for one of the suite's tests, at most; default: 300")
    parser.add_argument("--only", default="", help="of the suite: pytest's -k")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    for checkout in asked.checkouts:
        if not (checkout / suite.TESTS).is_file():
            parser.error(f"{checkout}: has no {suite.TESTS}; give a checkout of causal-conv1d")
    lines = ["# Peers' tests", "", "Written by `make peers`. Nothing here ran on hardware.", ""]
    with Progress() as progress:
        for checkout in asked.checkouts:
            for mode in asked.mode or MODES:
                count = asked.torch_sample if mode == "torch" else asked.sample
                one = suite.Asked(mode, count, asked.seed, asked.seconds, asked.only)
                lines += suite_section(checkout.resolve(), one, progress)
    write_page(lines, asked.out)


if __name__ == "__main__":
    main()
