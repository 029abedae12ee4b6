"""One core's run of a kernel: its instructions, its memory, and the state of its engines."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import hardware as hw
from .allowed import Allowed
from .capacity import Usage
from .compiler import NO_CONFIGS
from .dtypes import Array
from .errors import TraceLimitError
from .iterations import DeviceLoop, Repeat, note, require_reachable
from .memory import MemoryRegion, Region, Storage, StorageInfo
from .races import SharedAccess
from .randomness import Generators
from .rendezvous import Rendezvous
from .rules import fail, kernel_frame, kernel_line
from .running import running
from .tensor import NkiTensor


@dataclass(slots=True, eq=False)
class Instruction:
    """One executed instruction: engine, op, the regions it wrote and read, its settings, and its source line.

    `params` has the settings that decide its price and meaning besides the regions (op tokens, dge mode, ...).
    """

    index: int
    engine: str
    op: str
    writes: tuple[Region, ...]
    reads: tuple[Region, ...]
    params: dict[str, Any]
    file: str
    line: int
    name: str | None = None
    after: list[Instruction] = field(default_factory=list)
    #: iterations of device loops that it runs in, outermost first
    scope: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes moved: the larger of bytes written and read (of an indirect transfer: its patterns)."""
        moved = self.params.get("moved")
        writes, reads = (moved[:1], moved[1:]) if moved else (self.writes, self.reads)
        return max(sum(r.num_bytes for r in writes), sum(r.num_bytes for r in reads))

    def depends_on(self, *producers: Instruction) -> Instruction:
        """Scheduling dependency: this instruction runs after each producer. Returns itself.

        A producer runs in the same iteration of the same device loops, or outside the inner ones (NKI173).
        """
        for producer in producers:
            if not isinstance(producer, Instruction) or producer is self:
                fail("NKI173", f"{self.op} is to wait for {'itself' if producer is self else repr(producer)}")
            if producer.scope != self.scope[: len(producer.scope)]:
                fail(
                    "NKI173", f"{self.op} waits for a {producer.op} of another loop or iteration (line {producer.line})"
                )
        self.after.extend(producers)
        return self


class Accumulator:
    """The 128 fp32 reduction registers of the Vector or the Scalar Engine."""

    def __init__(self) -> None:
        self.values: Array | None = None
        self.op: Any = None


class Program:
    """One core's run of a kernel, and its record afterwards; `current()` is the one that runs in this thread."""

    def __init__(self, core: int, launch: Launch) -> None:
        self.core = core
        self.launch = launch
        self.num_programs = launch.degree
        self.numeric = launch.numeric
        self.instructions: list[Instruction] = []
        #: how many there may be
        self.most = min(
            hw.INSTRUCTIONS_MAX, hw.INSTRUCTIONS_MAX if launch.most is None else launch.most // launch.degree
        )
        #: open nl.no_reorder blocks, and the last instruction that ran in them
        self.in_order = 0
        self.last_in_order: Instruction | None = None
        #: iterations of device loops that are running, outermost first, and how many there have been
        self.scope: tuple[int, ...] = ()
        self.num_iterations = 0
        #: the loops of these iterations, the last iterations of loops that are done, where loops whose bounds are
        #: registers were and how often they ran, and where a loop was left before its end
        self.loops: list[DeviceLoop] = []
        self.last_iterations: set[int] = set()
        self.counted: list[tuple[str, int]] = []
        #: loops of which not all iterations are recorded, inner ones first
        self.repeats: list[Repeat] = []
        #: of loops that are done, the instructions recorded after their first iteration, and after their last
        self.repeated: list[tuple[int, int]] = []
        self.left = ""
        self.num_allocated = 0
        #: on-chip tensors, in the order of their allocation
        self.allocations: list[StorageInfo] = []
        #: shared HBM tensors allocated so far
        self.num_shared = 0
        #: peaks of SBUF and PSUM, once the run has ended
        self.usage = Usage()
        self.vector_accumulator = Accumulator()
        self.scalar_accumulator = Accumulator()
        #: state of the random number generators
        self.random = Generators(core)

    def record(
        self,
        engine: str,
        op: str,
        writes: tuple[NkiTensor, ...],
        reads: tuple[NkiTensor, ...],
        params: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Instruction:
        """Append an instruction; its source line is the first frame outside the simulator."""
        frame, _ = kernel_frame()
        index = len(self.instructions)
        if index >= self.most:
            if self.most < hw.INSTRUCTIONS_MAX:
                raise TraceLimitError(f"core {self.core} reached {self.most:,} instructions")
            fail("NKI034", f"core {self.core} reached {hw.INSTRUCTIONS_MAX:,} instructions")
        if self.left:
            self.refuse_left()
        for tensor in writes + reads:
            self._touch(tensor, index)
        if self.loops and op != "loop_branch":
            note(self, sys._getframe(1), engine, op, writes + reads, frame.f_lineno if frame else 0)
        instruction = Instruction(
            index,
            engine,
            op,
            tuple([t.region() for t in writes]),
            tuple([t.region() for t in reads]),
            params or {},
            frame.f_code.co_filename if frame else "",
            frame.f_lineno if frame else 0,
            name,
            scope=self.scope,
        )
        self.instructions.append(instruction)
        if self.in_order:
            if self.last_in_order is not None:
                instruction.after.append(self.last_in_order)
            self.last_in_order = instruction
        if self.launch.races:
            self.launch.step(self.core)
        return instruction

    def refuse_left(self) -> NoReturn:
        """A loop was left by break or return, which hardware does not do (NKI177)."""
        fail("NKI177", f"the loop at {self.left}")

    def _touch(self, tensor: NkiTensor, index: int) -> None:
        storage = tensor.storage
        if storage.owner is not self and storage.owner is not self.launch:
            storage.check_owner(tensor)
        info = storage.info
        if info.iteration is not None:
            require_reachable(self, tensor)
        if info.first < 0:
            info.first = index
        info.last = index

    def allocate(
        self, shape: tuple[int, ...], dtype: str, buffer: MemoryRegion, name: str, address: tuple[int, int] | None
    ) -> NkiTensor:
        """A fresh tensor; in shared HBM the n-th allocation of both cores is one storage."""
        info = StorageInfo(name, shape, dtype, buffer, kernel_line()[0], address)
        info.iteration, info.place = (self.scope[-1] if self.scope else None), self.num_allocated
        self.num_allocated += 1
        if buffer is MemoryRegion.shared_hbm:
            storage = self.launch.shared_storage(self.num_shared, info)
            self.num_shared += 1
        else:
            storage = Storage(info, self, numeric=self.numeric, sentinels=self.launch.sentinels)
            if info.on_chip:
                self.allocations.append(info)
        return NkiTensor(shape, dtype, storage)


class Launch:
    """The common state of a launch's cores: its degree, its shared HBM, and whether unwritten memory may be read.

    `races`: whether the cores may race, and so alternate instruction by instruction; needs two cores and data. `most`:
    limit of instructions of all cores, an equal share for each.
    """

    def __init__(
        self, degree: int, grid_dims: int, *, numeric: bool, allowed: Allowed, most: int | None = None
    ) -> None:
        self.degree = degree
        self.most = most
        #: whether the kernel is traced as Python, which NKI does from 0.7 on
        self.traces = allowed.nki != "0.6"
        #: of the kernel that is launched
        self.configs = NO_CONFIGS
        self.sentinels = allowed.sentinels
        self.races = allowed.races and numeric and degree > 1
        self.grid_dims = grid_dims
        self.numeric = numeric
        self.shared: list[Storage] = []
        self.meeting: Rendezvous | None = None
        self.programs = [Program(core, self) for core in range(degree)]

    def shared_storage(self, index: int, info: StorageInfo) -> Storage:
        """The `index`-th shared allocation: made by the first core that gets there, met again by the other."""
        if index == len(self.shared):
            storage = Storage(info, self, numeric=self.numeric, sentinels=self.sentinels)
            self.watch(storage)
            self.shared.append(storage)
        storage = self.shared[index]
        first = storage.info
        if (first.shape, first.dtype) != (info.shape, info.dtype):
            fail(
                "NKI027",
                f"shared tensor {index} is {list(info.shape)} {info.dtype} on this core, "
                f"{list(first.shape)} {first.dtype} on the other (allocated at {first.location})",
            )
        return storage

    def let_go(self) -> None:
        """Forget the cores once they have run: in no cycle, their many records end with their last user."""
        self.programs, self.meeting = [], None

    def watch(self, storage: Storage) -> None:
        """Look for races on a storage that two cores see."""
        if self.degree > 1 and self.numeric:
            storage.race = SharedAccess(storage.info, allowed=self.races)

    def step(self, core: int) -> None:
        """The other core's turn, until it has executed an instruction."""
        assert self.meeting is not None
        self.meeting.step(core)


def current() -> Program:
    """The running program, or NKI029."""
    program = running()
    if program is None:
        fail("NKI029", "called outside a kernel")
    return program
