"""A traced program as tasks: the price of each, the tasks that it waits for, and the memory that it fills.

Tasks of all cores are numbered together, core by core in program order. Edges are found once; the same tasks are then
put on a timeline as often as there are throttle phases, orders and constants to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..memory import PSUM, Region
from ..program import Instruction, Program
from ..timing import AnyPrice, DmaPrice, MeetPrice, PriceList, Rates
from .dependencies import Dependencies, written_storages
from .no_effect import overwritten_fills, unread_matmuls
from .pieces import Pieces
from .reloads import dropped_loads, resident

#: Engines of one core that take instructions from a queue; a task's engine is core * len(ENGINES) + position here.
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
_CODE = {name: code for code, name in enumerate(ENGINES)}


@dataclass
class Tile:
    """An on-chip allocation or a piece of one: space from its first user's start to its last user's end."""

    core: int
    psum: bool
    bytes_per_partition: int
    first_task: int
    last_task: int
    users: int = 0


@dataclass
class Tasks:
    """Parallel lists, one entry a task."""

    num_cores: int = 1
    engine: list[int] = field(default_factory=list)
    is_dma: list[bool] = field(default_factory=list)
    #: tasks that wait for this one's result to be visible
    followers: list[list[int]] = field(default_factory=list)
    #: later tasks of the same engine that may not start before this one (they write what it reads or writes)
    not_before: list[list[int]] = field(default_factory=list)
    num_waits: list[int] = field(default_factory=list)
    num_orders: list[int] = field(default_factory=list)
    #: indices into `tiles` of the on-chip memory that the task touches
    touches: list[tuple[int, ...]] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)
    #: the task of the other core that a barrier or sendrecv meets; -1 for all else
    meets: list[int] = field(default_factory=list)
    #: the caller's object for a task (an Instruction, or a trace's record)
    source: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.engine)

    @cached_property
    def queues(self) -> list[list[int]]:
        """Of all tasks, once they are complete: those of each engine that are no DMAs, in order."""
        found: list[list[int]] = [[] for _ in range(self.num_cores * len(ENGINES))]
        for task, engine in enumerate(self.engine):
            if not self.is_dma[task]:
                found[engine].append(task)
        return found

    @cached_property
    def places(self) -> list[int]:
        """Each task's place in its engine's queue."""
        found = [0] * len(self)
        for queue in self.queues:
            for place, task in enumerate(queue):
                found[task] = place
        return found

    @cached_property
    def consumers(self) -> list[int]:
        """What hops count each task as: its engine's position, or `len(ENGINES)` for a DMA."""
        return [len(ENGINES) if dma else one % len(ENGINES) for one, dma in zip(self.engine, self.is_dma, strict=True)]

    @cached_property
    def tiles_of(self) -> list[tuple[list[int], list[int]]]:
        """Each core's tiles of (SBUF, PSUM)."""
        found: list[tuple[list[int], list[int]]] = [([], []) for _ in range(self.num_cores)]
        for i, tile in enumerate(self.tiles):
            found[tile.core][tile.psum].append(i)
        return found

    def add(self, core: int, engine: str, *, is_dma: bool, source: Any) -> int:
        """Append a task without waits; returns its number."""
        self.engine.append(core * len(ENGINES) + _CODE[engine])
        self.is_dma.append(is_dma)
        self.followers.append([])
        self.not_before.append([])
        self.num_waits.append(0)
        self.num_orders.append(0)
        self.touches.append(())
        self.meets.append(-1)
        self.source.append(source)
        return len(self.engine) - 1

    def wait(self, task: int, producer: int) -> None:
        """`task` starts after `producer`'s result is visible."""
        self.followers[producer].append(task)
        self.num_waits[task] += 1

    def order(self, task: int, earlier: int) -> None:
        """`task` starts after `earlier`, of the same engine, has started."""
        self.not_before[earlier].append(task)
        self.num_orders[task] += 1


def build(programs: Sequence[Program], prices: PriceList) -> tuple[Tasks, list[AnyPrice]]:
    """The tasks of a launch's programs, and their prices; instructions that the compiler drops are no tasks."""
    tasks = Tasks(num_cores=len(programs))
    priced: list[AnyPrice] = []
    written = written_storages([i for program in programs for i in program.instructions])
    for program in programs:
        _add_program(tasks, priced, program, prices, written)
    _pair_meetings(tasks, priced)
    return tasks, priced


def _add_program(
    tasks: Tasks, priced: list[AnyPrice], program: Program, prices: PriceList, written: Mapping[int, Region]
) -> None:
    numbers: dict[int, int] = {}
    dependencies = Dependencies(written)
    tiles: dict[tuple[int, int], int] = {}
    held = dropped_loads(program, written, prices.rates("scheduling.reload_window"))
    dropped = overwritten_fills(program.instructions)
    if prices.rates("scheduling.drops_unread"):
        dropped |= unread_matmuls(program.instructions)
    pieces = Pieces(program)
    for instruction in program.instructions:
        if instruction.index in dropped or (held and instruction.writes and instruction.writes[0].info.id in held):
            continue
        if held:
            instruction = replace(instruction, reads=resident(instruction.reads, held))
        price = prices(instruction)
        engine = instruction.engine
        if type(price) is DmaPrice:
            engine = price.trigger
        elif engine not in _CODE:  # a sendrecv by DMA, or a barrier that leaves its engine open
            engine = "sync" if engine == "dma" else "gpsimd"
        task = tasks.add(program.core, engine, is_dma=type(price) is DmaPrice, source=instruction)
        numbers[instruction.index] = task
        priced.append(price)
        _add_edges(tasks, task, numbers, instruction, dependencies)
        _touch_tiles(tasks, task, instruction, program.core, pieces, tiles)


def _add_edges(
    tasks: Tasks, task: int, numbers: Mapping[int, int], instruction: Instruction, dependencies: Dependencies
) -> None:
    """Waits and orders of one task; numbers: the tasks of the program's earlier instructions, by their indices."""
    results, order = dependencies.of(instruction, task)
    for producer in results:
        tasks.wait(task, producer)
    engine, in_order = tasks.engine[task], not tasks.is_dma[task]
    for earlier in order:
        if in_order and tasks.engine[earlier] == engine and not tasks.is_dma[earlier]:
            tasks.order(task, earlier)
        else:
            tasks.wait(task, earlier)
    for producer_instruction in instruction.after:
        producer = numbers.get(producer_instruction.index, task)
        if producer == task:
            raise ValueError(
                f"depends_on: instruction {instruction.index} ({instruction.op} at {instruction.file}:"
                f"{instruction.line}) waits for instruction {producer_instruction.index}, which does not come before "
                "it; name earlier ones"
            )
        if producer not in results and producer not in order:
            tasks.wait(task, producer)


def _touch_tiles(
    tasks: Tasks, task: int, instruction: Instruction, core: int, pieces: Pieces, tiles: dict[tuple[int, int], int]
) -> None:
    touched = []
    for region in (*instruction.writes, *instruction.reads):
        info = region.info
        if not info.on_chip:
            continue
        for piece, size in pieces.of(region):
            tile = tiles.get((info.id, piece))
            if tile is None:
                tile = tiles[info.id, piece] = len(tasks.tiles)
                tasks.tiles.append(Tile(core, info.buffer is PSUM, size, task, task))
            if tile not in touched:
                touched.append(tile)
                tasks.tiles[tile].users += 1
                tasks.tiles[tile].last_task = task
    tasks.touches[task] = tuple(touched)


def _pair_meetings(tasks: Tasks, priced: list[AnyPrice]) -> None:
    """The n-th meeting of one core is the n-th of the other."""
    by_core: list[list[int]] = [[] for _ in range(tasks.num_cores)]
    for task, price in enumerate(priced):
        if type(price) is MeetPrice:
            by_core[tasks.engine[task] // len(ENGINES)].append(task)
    for a, b in zip(*by_core, strict=True) if tasks.num_cores > 1 else ():
        tasks.meets[a], tasks.meets[b] = b, a


def price_again(tasks: Tasks, rates: Rates) -> list[AnyPrice]:
    """Prices of the same tasks under other constants; their sources must be instructions."""
    prices = PriceList(rates)
    return [prices(source) for source in tasks.source]
