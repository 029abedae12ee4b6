"""Iterations of device loops that were not recorded: how often an instruction runs, and their time.

An iteration that was not recorded gets the mean time of the middle half of the recorded ones, from the last result of
one to that of the next: the first ones start with other states of throttle and queues, and while the last ones store,
no loads run any more. Instructions in the loop run as often.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import Array
from ..program import Program
from .line import Timeline
from .tasks import ENGINES, Tasks


def times_run(program: Program) -> Array:
    """How often each recorded instruction of a core runs."""
    found = np.ones(len(program.instructions) + 1)
    for repeat in program.repeats:
        found[repeat.ends[-2] : repeat.ends[-1]] *= 1 + repeat.skipped
    return found


def repeated_ns(programs: Sequence[Program], tasks: Tasks, line: Timeline) -> float:
    """Time of the iterations that were not recorded; for loops on both cores that of the slower one."""
    if not any(program.repeats for program in programs):
        return 0.0
    by_core: list[list[float]] = []
    for program in programs:
        done, times = _done(program, tasks, line), times_run(program)
        own: list[float] = []
        for repeat in program.repeats:
            quarter = len(repeat.ends) // 4
            ends = repeat.ends[quarter - 1], repeat.ends[-quarter - 1]
            first, last = (float(done[repeat.began : end].max()) for end in ends)
            each = (last - first) / (len(repeat.ends) - 2 * quarter)
            own.append(each * repeat.skipped * float(times[repeat.began]))
        by_core.append(own)
    if len({len(own) for own in by_core}) > 1:
        return max(sum(own) for own in by_core)
    slower: list[float] = [max(core) for core in zip(*by_core, strict=True)]
    return sum(slower)


def _done(program: Program, tasks: Tasks, line: Timeline) -> Array:
    """When each recorded instruction of a core was done; 0 for those that the compiler drops."""
    found = np.zeros(len(program.instructions))
    for task, source in enumerate(tasks.source):
        if tasks.engine[task] // len(ENGINES) == program.core:
            found[source.index] = line.visible[task]
    return found
