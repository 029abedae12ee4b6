"""A hardware trace as plain records. Times are in ns of the trace's own clock; nothing here is modelled."""

from __future__ import annotations

from dataclasses import dataclass


class TraceError(ValueError):
    """A file is no trace of one NeuronCore, lacks something, or contradicts itself."""


@dataclass(frozen=True)
class Operand:
    """A view in SBUF or PSUM: strides (in elements) and counts of its free dims, innermost first."""

    dtype: str
    psum: bool
    strides: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Matmul:
    """The Tensor Engine's part: rows and columns of the stationary operand, and whether it is a transpose.

    `load_ns`: when the load of the (first) stationary operand started; None if it is still that of the matmul before.
    """

    contraction: int
    columns: int
    is_transpose: bool
    load_ns: float | None


@dataclass(frozen=True)
class Transfer:
    """A DMA: `count` elements of so many bytes on either side, on `partitions` partitions from `first_partition` on.

    `queue` is a dge mode of nki.isa. Of its packets: when the engine that began last began, and when the last one had
    ended, its write of the semaphore included.
    """

    queue: str
    load: bool
    src_bytes: int
    dst_bytes: int
    count: int
    first_partition: int
    partitions: int
    arrival_ns: float
    end_ns: float


@dataclass(frozen=True)
class Record:
    """One instruction of an engine's queue.

    `waits`: (semaphore, value) pairs, those of the EVENT_SEMAPHOREs before it included; `increments`: (semaphore, by).
    `satisfied_ns`: when the last of its waits came true (None: it has none). `end_ns` is start plus duration: for a DMA
    the end of its issue, for two passes of a matmul the end of the second. `pointers` counts per-partition operands.
    """

    engine: str
    opcode: str
    pc: int
    waits: tuple[tuple[int, int], ...]
    increments: tuple[tuple[int, int], ...]
    satisfied_ns: float | None
    start_ns: float
    end_ns: float
    dst: Operand | None = None
    src: Operand | None = None
    partitions: int = 0
    pointers: int = 0
    function: str = ""
    matmul: Matmul | None = None
    dma: Transfer | None = None

    @property
    def done_ns(self) -> float:
        """When its result was there: of a DMA, when its last packet had ended."""
        return self.end_ns if self.dma is None else self.dma.end_ns

    def __str__(self) -> str:
        return f"{self.opcode} at pc {self.pc} of {self.engine}"


@dataclass(frozen=True)
class Trace:
    """A core's instructions, engine by engine in the order of its queue, and its throttle.

    `throttle`: (time, at full rate from then on), for every change that was seen.
    """

    name: str
    records: tuple[Record, ...]
    throttle: tuple[tuple[float, bool], ...]
