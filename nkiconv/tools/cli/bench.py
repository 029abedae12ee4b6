"""`nkiconv bench-simulator`: how fast the simulator is on this machine."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from rich.text import Text

from .grid import Grid
from .shell import JsonOption, console, print_json, prints_tables, progress
from .show import this_machine

if TYPE_CHECKING:
    from ..bench import Timing


@prints_tables
def command(as_json: JsonOption = False) -> None:
    """Time the simulator, and NumPy on the same arithmetic; what is between them is overhead."""
    bench = importlib.import_module("nkiconv.tools.bench")
    load = _load()
    with progress(show=not as_json) as advance:
        whole, single = bench.run(bench.RUNS, advance)
    if as_json:
        timings = {"cases": [t.as_dict() for t in whole], "instructions": [t.as_dict() for t in single]}
        aimed_at = {"aim_us": bench.AIM_US, "aim_traced_us": bench.AIM_TRACED_US}
        print_json({"machine": this_machine(), "runs": bench.RUNS, **aimed_at, "load": load, **timings})
        return
    screen = console()
    aims = f"{bench.AIM_US:g} us of overhead, {bench.AIM_TRACED_US:g} us to trace"
    screen.print(Text(f"{this_machine()}; medians of {bench.RUNS} runs, one process; aims: {aims}"))
    if load is not None and load > 1:
        screen.print(Text(f"other processes keep this machine busy (load {load:.1f} a processor): times are too long"))
    _grid("whole cases on LNC2, time of an instruction on average", whole, cases=True).show(screen)
    tiles = f"[{bench.ROWS}, {bench.COLUMNS}] tiles"
    _grid(f"single instructions on {tiles}, nc_matmul bf16, others fp32", single, cases=False).show(screen)
    if any(timing.overhead_us <= 0.0 for timing in (*whole, *single)):
        screen.print(Text("none seen: NumPy alone took longer, which is noise; run it again on a quiet machine"))
    missing = sum(timing.num_not_replayed for timing in whole)
    if missing:
        screen.print(Text(f"{missing} instructions have no NumPy twin; their whole time counts as overhead"))


def _load() -> float | None:
    """Processes that ran or waited a processor, on average over the last minute; None where that is not known."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None


def _grid(title: str, timings: list[Timing], *, cases: bool) -> Grid:
    name = "case" if cases else "instruction"
    columns = ["instructions", "total ms", "instructions/s"] if cases else []
    grid = Grid(title, (name, *columns, "simulated us", "NumPy us", "overhead us", "traced us"), (name,))
    for timing in timings:
        totals = [
            f"{timing.num_instructions:,}",
            f"{timing.seconds * 1e3:.1f}",
            f"{timing.instructions_per_second:,.0f}",
        ]
        overhead = f"{timing.overhead_us:.1f}" if timing.overhead_us > 0.0 else "none seen"
        each = [f"{us:.1f}" for us in (timing.simulated_us, timing.numpy_us, timing.traced_us)]
        grid.add(timing.name, *(totals if cases else []), *each[:2], overhead, each[2])
    return grid
