"""Whether `nkiconv calibrate` finds constants that it cannot see, of devices that are the timing model under them.

    make calibration SEEDS=20

Each device has every constant that a probe is for moved by up to 30 %, noise of 2 % on every run, and a launch that
costs 95 us and 5 us a call. Nothing here ran on hardware.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.progress import track

from nkiconv.tools.calibrate.clocks import Chains
from nkiconv.tools.calibrate.estimate import FOUND, Estimate
from nkiconv.tools.calibrate.probe import Probe
from nkiconv.tools.calibrate.session import slopes
from nkiconv.tools.calibrate.solve import solve
from nkiconv.tools.calibrate.suite import PROBES
from nkiconv.whole_file import write_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from hidden_device import HiddenDevice, hidden_constants

#: Of every run.
NOISE = 0.02
#: Error of a constant that counts as recovered.
WITHIN = 0.05


def ignore(_what: str, _share: float | None) -> None:
    """An `Advance` that does nothing."""


def recovered(probes: Sequence[Probe], seed: int) -> list[tuple[Estimate, float]]:
    """The estimate of each constant that the probes are for, and its error as a share of the hidden value."""
    hidden = hidden_constants({name for probe in probes for name in probe.constants}, seed)
    estimates, _ = solve(slopes(Chains(HiddenDevice(hidden, NOISE, seed)), probes, ignore), ignore)
    return [(one, one.value / hidden[one.name] - 1) for one in estimates]


def table(found: Sequence[Sequence[tuple[Estimate, float]]]) -> list[str]:
    """Markdown, a line a constant: its errors over the seeds."""
    lines = [
        f"| constant | found, of {len(found)} | largest error | root mean square | widest 95 % interval |",
        "|---|---:|---:|---:|---:|",
    ]
    good = 0
    for rows in zip(*found, strict=True):
        estimates, errors = (
            [one for one, _ in rows if one.status == FOUND],
            [e for one, e in rows if one.status == FOUND],
        )
        worst = max(map(abs, errors), default=float("nan"))
        good += len(estimates) == len(rows) and worst <= WITHIN
        widest = max((one.half_interval / one.value for one in estimates), default=float("nan"))
        square = float(np.sqrt(np.mean(np.square(errors)))) if errors else float("nan")
        lines.append(f"| {rows[0][0].name} | {len(estimates)} | {worst:.1%} | {square:.1%} | ±{widest:.1%} |")
    lines += ["", f"{good} of {len(found[0])} constants are found within {WITHIN:.0%} in each of {len(found)} seeds."]
    return lines


def main() -> None:
    """Print the table, or put it on a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="probes whose name contains this")
    parser.add_argument("--out", type=Path, help="write the table to this page; default: print it")
    options = parser.parse_args()
    probes = [probe for probe in PROBES if options.only in probe.name]
    if not probes:
        parser.error(f"--only={options.only}: no probe has this in its name; drop it")
    if options.seeds < 1:
        parser.error(f"--seeds={options.seeds}: must be at least 1")
    found = [recovered(probes, seed) for seed in track(range(options.seeds), "seeds")]
    write_page(["# Constants recovered from hidden ones", "", *table(found)], options.out)


if __name__ == "__main__":
    main()
