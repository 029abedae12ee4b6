"""Device loops: hardware has one copy of a body, which must be the same in every iteration that Python runs.

Each iteration leaves a trail: its instructions, with the settings and places that a compiler would see in the one copy.
An access by a register counts as all places where it may point, a tensor that the iteration allocates as its n-th, and
an inner loop, however often it runs, as one body.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from .memory import StorageInfo
from .objects import DeviceInteger
from .rules import fail, kernel_line

if TYPE_CHECKING:
    from .program import Program
    from .tensor import NkiTensor

#: Without data, a loop's iterations are recorded until they have so many instructions (an eighth for each loop around
#: it) and so many are done; then its last one, which stands for those between.
RECORDED_INSTRUCTIONS, RECORDED_ITERATIONS = 16_384, 16
#: Arguments of instructions that may differ between iterations: a name is for people.
_NOT_SEEN = frozenset({"name"})
#: A step of a trail: an instruction as (the compared values, its text), or an inner loop as its trail.
Step = tuple[tuple[Any, ...], str]


@dataclass(frozen=True)
class Repeat:
    """A device loop of which some iterations were not recorded.

    began: instructions recorded before it. ends: and after each of its recorded iterations. skipped: iterations that
    the last one stands for as well.
    """

    location: str
    began: int
    ends: tuple[int, ...]
    skipped: int


@dataclass(eq=False)
class DeviceLoop:
    """One device loop of a running program."""

    program: Program
    #: where it was called
    location: str
    #: the trail of its first iteration, and how many have ended
    first: list[Step] | None = None
    count: int = 0
    #: of the iteration that runs: its trail, its number, and tensors and instructions before it
    trail: list[Step] = field(default_factory=list)
    iteration: int = 0
    allocated: int = 0
    entered: int = 0
    #: allocations of the first iteration
    own: int = 0
    #: instructions recorded before it began, and after each iteration
    began: int = 0
    ends: list[int] = field(default_factory=list)
    #: how often an inner loop runs may depend on the iteration
    varies: bool = False
    #: iterations that are not recorded
    skipped: int = 0

    def begin(self) -> None:
        """Enter an iteration."""
        program = self.program
        program.loops.append(self)
        self.trail, self.allocated, self.iteration = [], program.num_allocated, program.num_iterations
        self.entered = len(program.instructions)
        program.scope = (*program.scope, self.iteration)
        program.num_iterations += 1

    def end(self) -> None:
        """Leave an iteration that did what the first one did (NKI176): Sync, and each engine that ran something in it,
        branches back."""
        program = self.program
        used = {"sync", *(instruction.engine for instruction in program.instructions[self.entered :])}
        for engine in ("tensor", "vector", "scalar", "gpsimd", "sync"):
            if engine in used:
                program.record(engine, "loop_branch", (), ())
        program.scope = program.scope[:-1]
        program.loops.pop()
        if self.first is None:
            self.first, self.own = self.trail, program.num_allocated - self.allocated
        else:
            _require_same(self.first, self.trail, self.count)
        program.num_allocated = self.allocated + self.own
        self.count += 1
        self.ends.append(len(program.instructions))

    def is_known(self) -> bool:
        """Whether enough is recorded of a loop that computes nothing to leave out iterations that are like these."""
        program = self.program
        enough = RECORDED_INSTRUCTIONS >> 3 * len(program.loops)
        long = self.ends[-1] - self.began >= enough and self.count >= RECORDED_ITERATIONS
        return long and not self.varies and not program.numeric

    def close(self) -> None:
        """End the loop: the last iteration's tensors outlive it, like the memory of the one copy."""
        if self.count:
            self.program.last_iterations.add(self.iteration)
            self.program.repeated.append((self.ends[0], self.ends[-1]))
        if self.skipped:
            self.program.repeats.append(Repeat(self.location, self.began, tuple(self.ends), self.skipped))
        if self.program.loops:
            self.program.loops[-1].trail.append((("loop", tuple(step[0] for step in self.first or ())), "a loop"))


def open_loop(program: Program) -> DeviceLoop:
    """A loop that begins."""
    return DeviceLoop(program, kernel_line()[0], began=len(program.instructions))


def note(program: Program, frame: FrameType, engine: str, op: str, touched: tuple[NkiTensor, ...], line: int) -> None:
    """Add an instruction to the trail of the iteration that runs; frame: of the call of nki.isa."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    settings = {name: frame.f_locals.get(name) for name in names if name not in _NOT_SEEN}
    seen = tuple((name, word) for name, value in settings.items() if (word := _word(value)) is not None)
    places = tuple(_place(program, tensor) for tensor in touched)
    said = ", ".join(f"{name}={word}" for name, word in seen)
    program.loops[-1].trail.append(((engine, op, line, seen, places), f"{op}({said}) at line {line}"))


def _word(value: Any) -> str | None:
    """A setting in the form that is compared; None for tensors, whose places are compared, and for ignored settings."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, DeviceInteger):
        return "a register"
    if isinstance(value, (tuple, list)):
        return repr([_word(item) for item in value])
    named = getattr(value, "name", None)
    return named if isinstance(named, str) else None


def _place(program: Program, tensor: NkiTensor) -> tuple[Any, ...]:
    """Which elements of which tensor: of one that an iteration allocates, its number there."""
    region, info = tensor.region(), tensor.storage.info
    return (*_identity(program, info), *region[1:])


def _identity(program: Program, info: StorageInfo) -> tuple[str, int, int]:
    for level in reversed(range(len(program.loops))):
        loop = program.loops[level]
        if info.iteration == loop.iteration:
            return ("own", level, info.place - loop.allocated)
    return ("outside", 0, info.id)


def _require_same(first: list[Step], trail: list[Step], count: int) -> None:
    for index, (one, other) in enumerate(zip(first, trail, strict=False)):
        if not _alike(one[0], other[0]):
            fail("NKI176", f"instruction {index} of iteration {count} is {other[1]}, of the first {_told(one, other)}")
    if len(first) != len(trail):
        fail("NKI176", f"iteration {count} has {len(trail)} instructions and loops, the first {len(first)}")


def _alike(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two things of a trail are one; an inner loop that did not run is like any."""
    if one[0] == other[0] == "loop":
        return not one[1] or not other[1] or one == other
    return one == other


def _told(one: Step, other: Step) -> str:
    """The first iteration's step in words, or that it used other memory."""
    return one[1] if one[1] != other[1] else "the same on other tensors or elements"


def require_reachable(program: Program, tensor: NkiTensor) -> None:
    """A tensor that an iteration allocated is used in that iteration, or, of the last one, after the loop (NKI178)."""
    iteration = tensor.storage.info.iteration
    if iteration is None or iteration in program.scope or iteration in program.last_iterations:
        return
    fail("NKI178", "a tensor that an earlier iteration of a device loop allocated", tensor=tensor)


def num_compiled(program: Program) -> int:
    """Instructions of a core that a compiler sees: of each loop on the device those of one iteration."""
    found, end = len(program.instructions), 0
    for first, last in sorted(program.repeated):  # inner loops within those that an outer one repeats count once
        found -= max(0, last - max(first, end))
        end = max(end, last)
    return found


def trip_counts(programs: tuple[Program, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(where, how often on each core) of the loops whose bounds are registers, in order."""
    for loops in zip(*(program.counted for program in programs), strict=False):
        yield loops[0][0], tuple(count for _, count in loops)
