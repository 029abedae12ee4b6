"""How far the timing model is from what others have measured on trn2: writes profiles/validation.md.

    make validation CHECKOUTS="../nki-autotune ../trainium-kernel-fusion"

Published times are in measured.toml. Most are modelled by kernels of ours that make the same moves; the kernels of
nki-autotune and the hardware traces of trainium-kernel-fusion are read from checkouts, and left out where none is
given. Nothing of a checkout is kept.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from measured import Source, read
from modelled import Outcome, outcomes

from nkiconv.simulator.hardware import CONSTANTS
from nkiconv.simulator.timing import inferred
from nkiconv.whole_file import write_page

#: Mean error from which a class of work is said not to be believed, and us below which starts count for much.
UNSURE, SHORT_US = 0.1, 40.0


def mean(errors: list[float]) -> float:
    """Mean of absolute errors."""
    return sum(abs(error) for error in errors) / len(errors)


def worst(errors: list[float]) -> float:
    """The error that is furthest from none."""
    return max(errors, key=abs)


def summary(found: dict[str, list[Outcome]]) -> Iterator[str]:
    """One line a class, then all, then the short ones of all."""
    yield "| class | times | mean error | worst | moved ahead: mean error | worst | |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    every = [one for ones in found.values() for one in ones]
    short = [one for one in every if one.seen_us < SHORT_US]
    for name, ones in [*found.items(), ("all", every), (f"all below {SHORT_US:g} us", short)]:
        if not ones:
            continue
        errors, ahead = [one.error for one in ones], [one.ahead_error for one in ones]
        doubt = "not to be believed" if mean(errors) > UNSURE else ""
        doubt += " in program order" if doubt and mean(ahead) <= UNSURE else ""
        cells = f"{mean(errors):.1%} | {worst(errors):+.1%} | {mean(ahead):.1%} | {worst(ahead):+.1%}"
        yield f"| {name} | {len(ones)} | {cells} | {doubt} |"
    yield ""


def table(source: Source, ones: list[Outcome]) -> Iterator[str]:
    """A source's measurements one by one."""
    yield f"## {source.name} ({source.commit})"
    yield ""
    adds = f"; modelled times are spans and {source.adds_us:.1f} us ({source.adds})" if source.adds else ""
    yield f"{source.says}{adds}."
    yield ""
    yield "| what | kernel | measured us | modelled us | ratio | moved ahead us | ratio |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for one in ones:
        modelled = f"{one.modelled_us:.1f} | {1 + one.error:.3f} | {one.ahead_us:.1f} | {1 + one.ahead_error:.3f}"
        yield f"| {one.what} | {one.how} | {one.seen_us:.1f} | {modelled} |"
    yield ""


def unmeasured() -> Iterator[str]:
    """The constants that no measurement stands behind."""
    yield "## What nobody has measured"
    yield ""
    yield (
        "Work that rests on these is not validated by anything above, strided elements of 2 bytes "
        "(`dma.tiny_element_ns`) and row tiles side by side (`pe.row_tiles_overlap`) before all."
    )
    yield ""
    yield "| constant | value | range | |"
    yield "| --- | ---: | --- | --- |"
    for one in inferred(CONSTANTS):
        yield f"| {one.name} | {one.value:g} | {one.low:g} to {one.high:g} | {one.unit} |"


def page(sources: list[Source], checkouts: list[Path], constants: dict[str, float]) -> Iterator[str]:
    """All lines."""
    yield "# The timing model against published measurements"
    yield ""
    yield (
        "Written by `make validation`. Measured times are others', as published; nothing here ran on hardware of this "
        "project's. *Kernel*: ours makes the same moves (tests/validation/moves.py), theirs is their own file in the "
        "simulator, replayed is their trace's instruction stream. *Moved ahead*: with instructions up to 32 places "
        "ahead, as a compiler may move them; of traces, with DMA triggers that overtake what waits. Mean error: of "
        "absolute values. The copies, relus and adds on two cores and the mixed streams also gave constants of "
        "trn2.toml (TB, MHC), and most others were read off single instructions of the traces: there small errors are "
        "consistency, no independent validation. The matmuls of nki-autotune gave nothing but the rule for memsets; "
        "those in blocks the depth of hardware queues (within a range from traces), when a load waits for space, and, "
        "with those tile by tile, that loads of what a tile holds are dropped; the price of a trigger is the traces'."
    )
    yield ""
    found: dict[str, list[Outcome]] = {}
    tables: list[str] = []
    for source in sources:
        mine = [path for path in checkouts if source.folder is not None and (path / source.folder).is_dir()]
        ones = list(outcomes(source, mine[0] if mine else None, constants))
        if not ones:
            tables += [f"## {source.name} ({source.commit})", "", "No checkout of it was given.", ""]
            continue
        found.setdefault(source.kind, []).extend(ones)
        tables += table(source, ones)
    yield from summary(found)
    yield from tables
    yield from unmeasured()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/validation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, nargs="*", help="of nki-autotune, trainium-kernel-fusion")
    parser.add_argument("--only", default="", help="sources whose name or class contains this")
    parser.add_argument("--constant", action="append", default=[], metavar="NAME=VALUE", help="instead of trn2.toml's")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    asked = parser.parse_args()
    sources = [source for source in read() if asked.only in source.name or asked.only in source.kind]
    folders = [source.folder for source in sources if source.folder is not None]
    for checkout in asked.checkouts:
        if not any((checkout / folder).is_dir() for folder in folders):
            parser.error(f"{checkout}: has none of {', '.join(folders)}; give a checkout of one of the sources")
    constants = {}
    for one in asked.constant:
        name, _, value = one.partition("=")
        try:
            constants[name] = float(value)
        except ValueError:
            parser.error(f"--constant {one}: must be NAME=VALUE with a number; give one")
    write_page(page(sources, asked.checkouts, constants), asked.out)


if __name__ == "__main__":
    main()
