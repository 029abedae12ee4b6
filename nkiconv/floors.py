"""The floors of a problem: modelled time of kernels that move its bytes, or one row, and compute nothing."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from .kernels.floors import copy_floor, launch_floor
from .problem import ConvProblem
from .simulator import ArraySpec
from .simulator.dtypes import canonical
from .simulator.launch import execute
from .simulator.timeline import build, run
from .simulator.timing import PriceList, Rates

#: Bytes a partition of a tile that `copy_floor` is tried with; the fastest counts.
TILE_BYTES = (512, 1024, 2048, 4096, 8192, 16384)
#: Bytes of the one row of `launch_floor`.
ROW_BYTES = 512


@dataclass(frozen=True)
class Floors:
    """Modelled us: the problem's bytes in and out by the best tiling, and one row in and out."""

    copy_us: float
    copy_tile_bytes: int  # a partition
    launch_us: float


def floors(problem: ConvProblem, lnc: int) -> Floors:
    """Floors of a problem on 1 or 2 cores, at default constants."""
    inputs = prod(problem.input_shape) + prod(problem.filter_shape)
    return _floors(inputs, prod(problem.output_shape), problem.itemsize, problem.dtype, lnc)


@functools.lru_cache(maxsize=256)
def _floors(inputs: int, outputs: int, itemsize: int, dtype: str, lnc: int) -> Floors:
    name = canonical(dtype)
    assert name is not None
    timed = {
        tile: _modelled_us(copy_floor, lnc, (ArraySpec((inputs,), name), outputs, tile // itemsize))
        for tile in TILE_BYTES
    }
    best = min(timed, key=lambda tile: timed[tile])
    launch = _modelled_us(launch_floor, lnc, (ArraySpec((1, ROW_BYTES // itemsize), name),))
    return Floors(timed[best], best, launch)


def _modelled_us(kernel: object, lnc: int, args: tuple[object, ...]) -> float:
    """First DMA issue to last DMA done, program order; these kernels leave the Tensor Engine alone."""
    rates = Rates()
    execution = execute(kernel[lnc], args, trace_only=True)  # type: ignore[index]
    tasks, prices = build(execution.programs, PriceList(rates))
    return run(tasks, prices, rates).total_ns / 1e3
