"""`python -m nkiconv.simulator.replay TRACE.json...`: predicted and seen times of hardware traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .compare import Comparison, compare
from .parse import read_trace
from .records import TraceError
from .show import rows_table, spans_table, steps_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison of each trace; returns the exit status (2: a file that is no such trace)."""
    parser = argparse.ArgumentParser(
        prog="python -m nkiconv.simulator.replay",
        description="Replay neuron-profile JSON exports of one NeuronCore through the timing model, and compare.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE.json")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--spans", action="store_true", help="print only the table of spans")
    parser.add_argument("--path", action="store_true", help="add where predicted minus seen grows")
    chosen = parser.parse_args(arguments)
    found: list[Comparison] = []
    try:
        for path in chosen.traces:
            found.append(compare(read_trace(path)))
    except (TraceError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for one in () if chosen.spans else found:
        print(f"{'### ' * chosen.markdown}{one.name}\n\n{rows_table(one.rows, markdown=chosen.markdown)}\n")
        if chosen.path:
            print(f"{steps_table(one.in_order, markdown=chosen.markdown)}\n")
    print(spans_table(found, markdown=chosen.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
