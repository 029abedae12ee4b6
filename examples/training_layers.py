"""What gradients of single layers would take on trn2, modelled, compared with cuDNN on an H200; a table in Markdown.

The layers are those of `nkiconv cases --suite training`, in both layouts. cuDNN's share of its own limit was measured
elsewhere, in the better layout (nkiconv/data/training.csv).

    python examples/training_layers.py
    python examples/training_layers.py --only rn50_c2
"""

import argparse
import csv
from importlib import resources

from rich.console import Console
from rich.progress import track

import nkiconv
from nkiconv import cases

SUFFIX = "_train"


def cells(problem: nkiconv.ConvProblem, direction: str, h200: str) -> list[str]:
    """Modelled us of a gradient in both layouts, the share of the limit that the better reaches, and cuDNN's."""
    plans = [nkiconv.plan(problem.replace(layout=layout), direction=direction) for layout in ("NHWC", "NCHW")]
    best = max(one.roofline_fraction for one in plans)
    reached = float(h200)
    return [*(f"{one.modelled_us:,.1f}" for one in plans), f"{best:.0%}", f"{reached:.{0 if reached >= 0.01 else 1}%}"]


def main() -> None:
    """Print the table."""
    text = (resources.files("nkiconv") / "data" / "training.csv").read_text(encoding="utf-8")
    measured = {row["name"].removesuffix(SUFFIX): row for row in csv.DictReader(text.splitlines())}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=measured, help="one layer")
    only = parser.parse_args().only
    titles = ["layer"]
    for direction in ("wgrad", "dgrad"):
        titles += [f"{direction} us, NHWC", "NCHW", "better, of the limit", "cuDNN, H200"]
    lines = [titles, ["---", *["---:"] * 8]]
    console = Console(stderr=True)
    for name in track(list(measured) if only is None else [only], "planning", console=console, transient=True):
        problem = cases.get(name + SUFFIX).problem
        found = [cells(problem, direction, measured[name][f"h200_{direction}"]) for direction in ("wgrad", "dgrad")]
        lines.append([name, *found[0], *found[1]])
    for line in lines:
        print("|", " | ".join(line), "|")


if __name__ == "__main__":
    main()
