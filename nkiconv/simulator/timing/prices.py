"""The price of one instruction, as plain numbers. A price knows no tensor, no name and no program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """An instruction of Vector, Scalar, GpSimd or Sync.

    The engine is free again `issue_ns` after the start, the result is visible after `latency_ns`. `kind` is the opcode
    that a change of costs time, `table` the activation table that must be resident, `first_issue_ns` the ISSUE of the
    first instruction of a kind where that differs. On Vector a start after a pause costs `cold_ns` more of both;
    `issue_ns` is without it and `latency_ns` with it. `constants` are the names that the price rests on.
    """

    issue_ns: float
    latency_ns: float
    kind: str
    constants: frozenset[str]
    table: str | None = None
    first_issue_ns: float | None = None
    cold_ns: float = 0.0


@dataclass(frozen=True)
class TensorPrice:
    """A matmul or transpose on the Tensor Engine, in ns at full rate.

    `stream_ns`: the moving columns flow through; `interval_ns`: until the next one may flow (longer for few columns);
    `gap_ns`: issue overhead on top, at full rate only, of which `between_ns` lies between passes; `load_ns`,
    `load_half_ns`: from operands ready to flow when the array was idle, at full and at half rate. `work` is the share
    of the array's rows that the stream keeps to itself, for the throttle. `first_row`, `rows`: the row tile it runs on;
    `tiled` matmuls on other rows of the array may flow at the same time, `issue_ns` after each other, for `overlap` of
    the time that they could.
    """

    stream_ns: float
    interval_ns: float
    gap_ns: float
    between_ns: float
    load_ns: float
    load_half_ns: float
    work: float
    first_row: int
    rows: int
    tiled: bool
    issue_ns: float
    overlap: float
    flops: int
    constants: frozenset[str]


@dataclass(frozen=True)
class DmaPrice:
    """A transfer by the DMA engines.

    `trigger`: engine that issues it; `queue`: kind of queue it waits in ("hwdge", "swdge", "static"); `prepare_ns`:
    from its wait's end to its issue; `issue_ns` of its trigger, and `again_ns` more where the trigger before has only
    just ended; `room`: its share of a hardware queue, in transfers of 128 partitions;
    `first_packet_ns`: from issue to the first packet of the last engine; `work_ns`:
    busy time of each of the core's DMA engines; `packet_ns`: time of one packet, by which queues take turns;
    `hbm_bytes`: traffic to and from HBM, both directions added, and `hbm_ns` its time on an HBM that two cores share;
    `payload_bytes`: bytes moved once; `elements`: (bytes, count) of the descriptors' elements. `constants` are those of
    the flow, `issue_constants` those of issue and first packet.
    """

    trigger: str
    queue: str
    prepare_ns: float
    issue_ns: float
    again_ns: float
    room: float
    first_packet_ns: float
    work_ns: tuple[float, ...]
    packet_ns: float
    hbm_bytes: int
    hbm_ns: float
    payload_bytes: int
    elements: tuple[tuple[float, int], ...]
    constants: frozenset[str]
    issue_constants: frozenset[str]


@dataclass(frozen=True)
class MeetPrice:
    """A barrier or sendrecv: both cores arrive, and go on `seam_ns` after the later one."""

    seam_ns: float
    constants: frozenset[str]


AnyPrice = Price | TensorPrice | DmaPrice | MeetPrice
