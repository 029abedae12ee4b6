"""How fast the timing model is on this machine: a program of 100,000 instructions, traced and put on a timeline."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

from ... import simulator
from ...simulator import ArraySpec, isa, language
from ...simulator.collector import without_collector
from ...simulator.launch import execute
from ...simulator.timeline import build, run
from ...simulator.timing import PriceList, Rates

#: The aims for timing this many instructions.
INSTRUCTIONS, AIM_SECONDS, AIM_GB = 100_000, 5.0, 1.0
_ROWS, _COLUMNS = 128, 512
_MATMULS = 6
#: Instructions of one tile: a load, the matmuls, a copy out of PSUM, a store.
_PER_TILE = _MATMULS + 3


@dataclass(frozen=True)
class TimingSpeed:
    """Seconds of each step, and the most memory that this process has held, its imports included."""

    instructions: int
    trace_seconds: float
    dependencies_seconds: float
    timeline_seconds: float
    peak_gb: float

    @property
    def seconds(self) -> float:
        """All three steps."""
        return self.trace_seconds + self.dependencies_seconds + self.timeline_seconds

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "seconds": self.seconds, "aim_seconds": AIM_SECONDS, "aim_gb": AIM_GB}


def timing_speed() -> TimingSpeed:
    """Time a program of `INSTRUCTIONS` (one load of a filter, then whole tiles of 9) as `profile` does."""
    num_tiles = (INSTRUCTIONS - 1) // _PER_TILE
    args = ArraySpec((num_tiles * _ROWS, _COLUMNS), "bfloat16"), ArraySpec((_ROWS, _ROWS), "bfloat16"), num_tiles
    with without_collector():
        began = time.perf_counter()
        execution = execute(_tiles_kernel, args, trace_only=True)
        traced = time.perf_counter()
        rates = Rates()
        tasks, prices = build(execution.programs, PriceList(rates))
        built = time.perf_counter()
        run(tasks, prices, rates)
        done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    return TimingSpeed(len(tasks), traced - began, built - traced, done - built, peak)


@simulator.jit
def _tiles_kernel(x_hbm: Any, w_hbm: Any, num_tiles: int) -> Any:
    """out[t] = `_MATMULS` products of w with tile t of x, added up."""
    out_hbm = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.shared_hbm)
    w_sbuf = language.ndarray(w_hbm.shape, dtype=w_hbm.dtype, buffer=language.sbuf)
    isa.dma_copy(dst=w_sbuf, src=w_hbm)
    for tile in range(num_tiles):
        rows = slice(tile * _ROWS, (tile + 1) * _ROWS)
        x_sbuf = language.ndarray((_ROWS, _COLUMNS), dtype=x_hbm.dtype, buffer=language.sbuf)
        y_sbuf = language.ndarray((_ROWS, _COLUMNS), dtype=x_hbm.dtype, buffer=language.sbuf)
        acc_psum = language.ndarray((_ROWS, _COLUMNS), dtype=language.float32, buffer=language.psum)
        isa.dma_copy(dst=x_sbuf, src=x_hbm[rows, 0:_COLUMNS])
        for i in range(_MATMULS):
            isa.nc_matmul(dst=acc_psum, stationary=w_sbuf, moving=x_sbuf, accumulate=i > 0)
        isa.tensor_copy(dst=y_sbuf, src=acc_psum)
        isa.dma_copy(dst=out_hbm[rows, 0:_COLUMNS], src=y_sbuf)
    return out_hbm
