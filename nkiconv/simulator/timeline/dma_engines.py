"""The DMA engines of all cores and the HBM that they share, as flows.

Each core has 16 engines. A transfer gives every engine its share of work. The transfers of one queue run one after the
other; queues alternate packet by packet, so that each gets the engine's time in proportion to its packets'. Three rates
bound the flow: an engine's own, a core's, and the HBM's time, which all cores share in proportion to their demand.

Engines that every transfer of a program loads alike behave alike, so they are one group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..timing import DmaPrice, Rates

#: Work below this is done: rounding of sums of ns.
_DONE_NS = 1e-6


class Transfer:
    """One DMA on its way: its task, its queue, and how many engine groups still work on it."""

    __slots__ = ("groups_left", "price", "queue", "task")

    def __init__(self, task: int, price: DmaPrice, queue: tuple[int, str]) -> None:
        self.task, self.price, self.queue = task, price, queue
        self.groups_left = 0


class _Flow:
    """The head of one queue on one group of engines."""

    __slots__ = ("demand", "group", "left", "packet_ns", "payload", "rate", "transfer")

    def __init__(self, transfer: Transfer, group: _Group, work_ns: float, share: float) -> None:
        self.transfer, self.group = transfer, group
        self.left = work_ns
        self.packet_ns = transfer.price.packet_ns
        #: of the whole group while it works on this alone: the share of the HBM's time that it asks for, and bytes/ns
        self.demand = transfer.price.hbm_ns * share / work_ns
        self.payload = transfer.price.payload_bytes * share / work_ns
        self.rate = 0.0


class _Group:
    """Engines of one core with equal work: their queues, each with the flow that is at its head."""

    __slots__ = ("engines", "queues", "waiting")

    def __init__(self, engines: list[int]) -> None:
        self.engines = engines
        self.queues: dict[tuple[int, str], _Flow] = {}
        self.waiting: dict[tuple[int, str], deque[_Flow]] = {}


class DmaEngines:
    """Flows of all cores. Times are in ns and only move on.

    Args: prices: of every DMA of the program, by core, so that engines can be grouped.
    """

    def __init__(self, rates: Rates, prices: Sequence[Sequence[DmaPrice]]) -> None:
        self._core = rates("dma.steady_core_gbps")
        #: from the last packet to the semaphore that says so
        self.sem_write_ns = rates("dma.sem_write_ns")
        self._now = 0.0
        self._groups = [_grouped(each) for each in prices]
        #: by core: the flows at the heads of all queues
        self._heads: list[list[_Flow]] = [[] for _ in prices]
        #: time until which HBM was the bound, and the same for a core's own rate: for reports
        self.hbm_bound_ns = 0.0
        self.busy_ns = [0.0] * len(self._groups)
        self._throttled = False

    def start(self, time: float, core: int, transfer: Transfer) -> list[Transfer]:
        """Add a transfer whose first packets are ready; returns the transfers finished by then."""
        done, changed = self._let_run(time)
        work = transfer.price.work_ns
        total = sum(work)
        for group in self._groups[core]:
            each = work[group.engines[0]]
            if each <= 0.0:
                continue
            transfer.groups_left += 1
            flow = _Flow(transfer, group, each, each * len(group.engines) / total)
            if transfer.queue in group.queues:
                group.waiting.setdefault(transfer.queue, deque()).append(flow)
            else:
                group.queues[transfer.queue] = flow
                changed = True
        if changed:
            self._set_rates()
        return done

    def next_end(self) -> float:
        """When the next flow ends if nothing is added before; infinite when all is idle."""
        best = float("inf")
        for heads in self._heads:
            for flow in heads:
                end = flow.left / flow.rate
                if end < best:
                    best = end
        return self._now + best

    def advance(self, time: float) -> list[Transfer]:
        """Let the flows run until `time`; returns the transfers that finish, none of them before `next_end`."""
        finished, changed = self._let_run(time)
        if changed:
            self._set_rates()
        return finished

    def _let_run(self, time: float) -> tuple[list[Transfer], bool]:
        """(the transfers that finish until `time`, whether any queue has come to another flow, with rates to be set)"""
        elapsed = time - self._now
        self._now = time
        over: list[_Flow] = []
        for core, heads in enumerate(self._heads):
            if heads and elapsed > 0.0:
                self.busy_ns[core] += elapsed
            for flow in heads:
                flow.left -= elapsed * flow.rate
                if flow.left <= _DONE_NS:
                    over.append(flow)
        if self._throttled and elapsed > 0.0:
            self.hbm_bound_ns += elapsed
        finished = []
        for flow in over:
            transfer, group = flow.transfer, flow.group
            transfer.groups_left -= 1
            if transfer.groups_left == 0:
                finished.append(transfer)
            waiting = group.waiting.get(transfer.queue)
            if waiting:
                group.queues[transfer.queue] = waiting.popleft()
            else:
                del group.queues[transfer.queue]
        return finished, bool(over)

    def _set_rates(self) -> None:
        """Shares of each engine's time by queue, limited by the rates of the core and the HBM."""
        asked = 0.0
        for groups, flows in zip(self._groups, self._heads, strict=True):
            payload = demand = 0.0
            flows.clear()
            for group in groups:
                heads = group.queues.values()
                if len(heads) == 1:
                    for flow in heads:
                        flow.rate = 1.0
                        payload += flow.payload
                        demand += flow.demand
                    flows += heads
                elif heads:
                    turn = sum([flow.packet_ns for flow in heads])
                    for flow in heads:
                        flow.rate = rate = flow.packet_ns / turn
                        payload += rate * flow.payload
                        demand += rate * flow.demand
                    flows += heads
            if payload > self._core:
                cut = self._core / payload
                demand *= cut
                for flow in flows:
                    flow.rate *= cut
            asked += demand
        self._throttled = asked > 1.0
        if self._throttled:
            cut = 1.0 / asked
            for flows in self._heads:
                for flow in flows:
                    if flow.demand > 0.0:
                        flow.rate *= cut


def _grouped(prices: Sequence[DmaPrice]) -> list[_Group]:
    """Engines that no transfer tells apart."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for engine, works in enumerate(zip(*{price.work_ns for price in prices}, strict=True)):
        groups.setdefault(works, []).append(engine)
    return [_Group(engines) for engines in groups.values()]
