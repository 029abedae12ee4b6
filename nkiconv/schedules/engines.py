"""Clocks of a core's engines and DMA queues, with which bounds of depthwise rows follow the order of the work."""

from __future__ import annotations

from ..simulator.timing.target import Target
from .tiles import div_ceil


class Engines:
    """The ns, from the kernel's first instruction, at which each engine and DMA queue is free."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tensor = self.vector = self.scalar = self.gpsimd = 0.0
        #: triggers of loads and of stores, DMA engines by direction, and all work of the DMA engines
        self.sync = self.triggers = self.loads = self.stores = self.moved = 0.0

    def load(self, rows: int, row_ns: float, num_bytes: float, triggers: int = 1) -> float:
        """DMAs to so many partitions, row_ns of a DMA engine each; returns the ns at which their readers may start."""
        issue_ns = self.target.static_issue_ns
        begin = self.sync + (triggers - 1) * issue_ns + self.target.first_packet_ns
        begin, self.sync = begin + self.target.load_skew_ns * self.skew(rows), self.sync + triggers * issue_ns
        self.loads = max(self.loads, begin) + self.busy_ns(rows, row_ns, num_bytes)
        return self.loads + self.target.dma_end_ns + self.target.dma_done_ns

    def store(self, ready: float, rows: int, row_ns: float, num_bytes: float, triggers: int = 1) -> None:
        """DMAs of so many partitions to HBM, of data that are ready at the ns `ready`."""
        begin = max(self.triggers, ready + self.target.hop_dma_ns)
        self.triggers = begin + triggers * self.target.static_issue_ns
        begin = self.triggers - self.target.static_issue_ns + self.target.first_packet_ns
        begin += self.target.store_skew_ns * self.skew(rows)
        self.stores = max(self.stores, begin) + self.busy_ns(rows, row_ns, num_bytes)

    def on(self, engine: str, ready: float, busy_ns: float, done_ns: float) -> float:
        """An instruction of an engine; returns the ns at which readers of its result, done_ns after its start, may
        start."""
        start = max(getattr(self, engine), ready)
        setattr(self, engine, start + busy_ns)
        return float(start + done_ns + self.target.hop_ns)

    def busy_ns(self, rows: int, row_ns: float, num_bytes: float) -> float:
        """ns of the busiest DMA engine, or of HBM."""
        target = self.target
        busy = max(min(rows, target.rows_an_engine) * row_ns, target.hbm_ns(num_bytes, num_bytes / rows))
        self.moved += busy
        return busy

    def skew(self, rows: int) -> float:
        """The delay of the last DMA engine of so many partitions, as a share of the last of all engines' delay."""
        return (div_ceil(rows, self.target.rows_an_engine) - 1) / (self.target.dma_engines - 1)
