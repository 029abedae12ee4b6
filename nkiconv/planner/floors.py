"""The floors of a problem: modelled times of kernels that copy its bytes, or one row, and compute nothing."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..kernels.floors import copy_floor, launch_floor
from ..problem import ConvProblem
from ..simulator import ArraySpec
from ..simulator.hardware import PARTITIONS
from ..simulator.launch import execute
from ..simulator.profiling import in_time
from ..simulator.timing import Rates
from .request import nl_name

#: Bytes a partition of the tiles that are tried in `copy_floor`; the fastest counts.
TILE_BYTES = (512, 1024, 2048, 4096, 8192, 16384)
#: Most tiles of one core with a tile size that is tried: with more, issuing DMAs takes longer than moving the bytes.
TILES_MAX = 150
#: Most DMAs of a core with a tile size that is tried, unless all take more: DMAs are short if little is read and much
#: written.
DMAS_MAX = 4_000
#: Most bytes of a core that are timed; the time of more bytes is proportional.
BYTES_MAX = 2**29
#: Bytes of the one row of `launch_floor`.
ROW_BYTES = 512


@dataclass(frozen=True)
class Floors:
    """Modelled us of a copy of the problem's bytes by the best tiling, and of one row in and out."""

    copy_us: float
    copy_tile_bytes: int  # a partition
    launch_us: float


def floors(problem: ConvProblem, lnc: int, constants: Mapping[str, float] | None = None, spared: int = 0) -> Floors:
    """Floors of a problem on 1 or 2 cores: the lower ones of the bytes that it needs and of all its bytes, as few bytes
    in and many out may take longer than more in. constants: values by name, instead of trn2.toml's. spared: bytes that
    need not be read."""
    every = [(max(1, read - spared), written) for read, written in (problem.moved, problem.held)]
    found = [_floors_of(problem, moved, lnc, constants) for moved in dict.fromkeys(every)]
    return min(found, key=lambda one: one.copy_us)


def pass_us(elements: int, dtype: str, lnc: int, reads: float) -> float:
    """Modelled us of a pass that reads `reads` tensors of so many elements and writes one, as a copy of these bytes."""
    columns = max(1, elements // PARTITIONS)
    row = ConvProblem(N=1, C=PARTITIONS, W=columns, S=1, groups=PARTITIONS, dtype=dtype)
    return floors(row, lnc).copy_us * (reads + 1) / 2


def _floors_of(problem: ConvProblem, moved: tuple[int, int], lnc: int, constants: Mapping[str, float] | None) -> Floors:
    inputs, outputs = (count // problem.itemsize for count in moved)
    changed = tuple(sorted((constants or {}).items()))
    parts = -(-max(inputs, outputs) * problem.itemsize // (lnc * BYTES_MAX))
    read, written = max(lnc, inputs // parts), outputs // parts

    def of_outputs(count: int) -> Floors:
        return _floors(read, count, problem.itemsize, problem.dtype, lnc, changed)

    each = problem.itemsize / lnc
    several = _dmas(int(each * read), int(each * written), TILE_BYTES[-1]) // DMAS_MAX
    if several < 2:
        found = of_outputs(written)
        return found if parts == 1 else replace(found, copy_us=found.copy_us * parts)
    one, two = (of_outputs(count * written // several) for count in (1, 2))
    return replace(one, copy_us=parts * (one.copy_us + (two.copy_us - one.copy_us) * (several - 1)))


@functools.lru_cache(maxsize=256)
def _floors(
    inputs: int, outputs: int, itemsize: int, dtype: str, lnc: int, constants: tuple[tuple[str, float], ...]
) -> Floors:
    name = nl_name(dtype)
    timed = {
        tile: _modelled_us(copy_floor, lnc, (ArraySpec((inputs,), name), outputs, tile // itemsize), constants)
        for tile in _worth_trying(inputs * itemsize // lnc, outputs * itemsize // lnc)
    }
    best = min(timed, key=lambda tile: timed[tile])
    launch = _modelled_us(launch_floor, lnc, (ArraySpec((1, ROW_BYTES // itemsize), name),), constants)
    return Floors(timed[best], best, launch)


def _worth_trying(read: int, written: int) -> list[int]:
    """Tile sizes of at most `TILES_MAX` tiles and `DMAS_MAX` DMAs of a core; the largest if none is."""
    few = [tile for tile in TILE_BYTES if max(read, written) <= TILES_MAX * PARTITIONS * tile] or [TILE_BYTES[-1]]
    return [tile for tile in few if _dmas(read, written, tile) <= DMAS_MAX] or few[-1:]


def _dmas(read: int, written: int, tile: int) -> int:
    """DMAs of a core, about: each tile is read once and written as often as the bytes out need."""
    return max(read, written) // (PARTITIONS * tile) * (1 + written // max(1, read))


def _modelled_us(kernel: object, lnc: int, args: tuple[object, ...], constants: tuple[tuple[str, float], ...]) -> float:
    """Modelled us of a launch, in program order, from the first DMA issue to the last DMA done."""
    execution = execute(kernel[lnc], args, trace_only=True)  # type: ignore[index]
    return in_time(execution, Rates(dict(constants))).us
