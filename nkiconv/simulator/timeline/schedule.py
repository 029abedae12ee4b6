"""Puts tasks on a timeline, event by event in time order.

Each engine starts its tasks in program order (or any of the next few that are ready, in look-ahead order): when it is
free, when all results that the task waits for are visible and have hopped to the engine, and when its tiles have space.
DMA triggers that are ready overtake waiting tasks; a waiting trigger delays no other, but while one is issued its
engine starts nothing else. A DMA then waits for its first packet, flows, and is visible to others a completion later.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from .. import hardware as hw
from ..timing import AnyPrice, DmaPrice, MeetPrice, Price, Rates, TensorPrice
from .dma_engines import DmaEngines, Transfer
from .line import NOTHING, QUEUE_FULL, SPACE, Options, Timeline
from .space import Space
from .tasks import ENGINES, Tasks
from .throttle import Throttle

_NEVER = float("inf")
_DMA = len(ENGINES)
_QUADRANTS = hw.PARTITIONS // hw.QUADRANT_PARTITIONS


def run(tasks: Tasks, prices: Sequence[AnyPrice], rates: Rates, options: Options | None = None) -> Timeline:
    """The timeline of tasks under prices and constants."""
    return _Run(tasks, prices, rates, options or Options()).run()


def _quadrants(price: TensorPrice) -> slice:
    """The quadrants of the array's rows that a matmul runs on."""
    if not price.tiled:
        return slice(0, _QUADRANTS)
    first = price.first_row // hw.QUADRANT_PARTITIONS
    return slice(first, first + price.rows // hw.QUADRANT_PARTITIONS)


def hops(rates: Rates) -> list[list[float]]:
    """ns from a result's visibility to a waiting task's start: by producer (engines, then DMA) and consumer engine.

    The consumers are the engines, and last a DMA trigger on any engine.
    """
    to = {
        "tensor": rates("sync.hop_to_pe_ns"),
        "vector": rates("sync.hop_to_vector_ns"),
        "scalar": rates("sync.hop_to_scalar_ns"),
        "gpsimd": rates("sync.hop_to_gpsimd_ns"),
        "sync": rates("sync.hop_to_dma_issue_ns"),
    }
    same, dma = rates("sync.hop_same_engine_ns"), rates("dma.done_to_consumer_ns")
    table = []
    for producer in ENGINES:
        row = [same if producer == consumer else to[consumer] for consumer in ENGINES]
        table.append([*row, rates("sync.hop_to_dma_issue_ns")])
    return [*table, [dma] * (len(ENGINES) + 1)]


class DeadlockError(RuntimeError):
    """Instructions wait for each other on the timeline."""


class _Run:
    """State of one run; see the module's text."""

    def __init__(self, tasks: Tasks, prices: Sequence[AnyPrice], rates: Rates, options: Options) -> None:
        count = len(tasks)
        self.tasks, self.prices, self.options = tasks, prices, options
        self.line = Timeline(
            options, [0.0] * count, [NOTHING] * count, [_NEVER] * count, [_NEVER] * count, [_NEVER] * count,
            [_NEVER] * count,
        )  # fmt: skip
        self.ready, self.start = self.line.ready, self.line.start
        self.waits = tasks.num_waits.copy()
        num_engines = tasks.num_cores * len(ENGINES)
        self.queues, self.place = tasks.queues, tasks.places
        self.heads = [0] * num_engines
        self.window = int(rates("scheduling.lookahead_window")) if options.order == "lookahead" else 1
        if options.order == "lookahead":
            for task, orders in enumerate(tasks.num_orders):
                self.waits[task] += orders
        #: when each engine's unit is free, and when its front end is: a DMA's issue takes only the latter
        self.free = [0.0] * num_engines
        self.issuing = [0.0] * num_engines
        self.kinds: list[str | None] = [None] * num_engines
        self.tables: list[str | None] = [None] * num_engines
        self.front_ns = rates("sync.front_end_ns")
        self.table_ns = rates("scalar.act_table_load_ns")
        self.complete_ns = rates("pe.completion_full_ns"), rates("pe.completion_half_ns")
        self.hop = hops(rates)
        self.slow = rates("throttle.half_rate")
        self.depth = int(rates("dma.hwdge_queue_depth"))
        self.outstanding: dict[tuple[int, str], float] = {}
        #: when each engine's last trigger of a hardware queue had ended
        self.triggered = [-1.0] * num_engines
        #: the trigger whose issue waits for room in a full hardware queue
        self.stalled: dict[tuple[int, str], int] = {}
        #: heaps of the triggers of each engine that are ready and wait for its front end
        self.triggers: list[list[int]] = [[] for _ in range(num_engines)]
        #: the trigger for whose sake an event will look at each engine's heap
        self.called = [NOTHING] * num_engines
        self.events: list[tuple[float, int]] = []
        self.dma_event = _NEVER
        by_core: list[list[DmaPrice]] = [[] for _ in range(tasks.num_cores)]
        for task, price in enumerate(prices):
            if type(price) is DmaPrice:
                by_core[tasks.engine[task] // len(ENGINES)].append(price)
        self.dma = DmaEngines(rates, by_core)
        self.throttles = [Throttle(rates, options.phase, enabled=options.throttle) for _ in range(tasks.num_cores)]
        #: when the next stream may enter each quadrant of rows of a core's array, if some matmuls are tiled
        self.tiled = False
        self.rows_free = [[0.0] * _QUADRANTS for _ in range(tasks.num_cores)]
        self._set_up_space()

    def _set_up_space(self) -> None:
        """Allocators of all cores; tasks that use a tile first wait for its grant as well."""
        tasks = self.tasks
        self.spaces = [
            (Space(False, sbuf, tasks.tiles), Space(True, psum, tasks.tiles)) for sbuf, psum in tasks.tiles_of
        ]
        for tile in tasks.tiles:
            self.waits[tile.first_task] += 1
        self.users_left = [tile.users for tile in tasks.tiles]
        self.tile_end = [0.0] * len(tasks.tiles)
        self.tile_last = [NOTHING] * len(tasks.tiles)

    def run(self) -> Timeline:
        count = len(self.tasks)
        for task, waits in enumerate(self.waits):
            if waits == 0:
                self._resolved(task)
        for sbuf, psum in self.spaces:
            self._grant(sbuf, 0.0, NOTHING)
            self._grant(psum, 0.0, NOTHING)
        events = self.events
        while events:
            time, code = heappop(events)
            if code >= 0:
                if code < count:
                    self._try(time, code)
                else:
                    self._arrive(time, code - count)
            elif code == -1:
                if time == self.dma_event:
                    self.dma_event = _NEVER
                    self._finish(self.dma.advance(time), time)
                    self._next_dma_event()
            else:
                self._release(-2 - code, time)
        return self._result()

    # Waiting.

    def _resolved(self, task: int) -> None:
        """Everything that a task waits for is known: start it when it is its turn."""
        tasks = self.tasks
        engine = tasks.engine[task]
        if tasks.is_dma[task]:
            price = self.prices[task]
            assert type(price) is DmaPrice
            heappush(self.events, (self.line.ready[task] + price.prepare_ns, task))
        elif self.place[task] < self.heads[engine] + self.window:
            self._offer(task, engine)

    def _tell(self, task: int, visible: float, producer: int) -> None:
        """A task's result is (or will be) visible: its followers have one thing less to wait for."""
        followers = self.tasks.followers[task]
        if not followers:
            return
        ready, ready_by, waits, consumers = self.ready, self.line.ready_by, self.waits, self.tasks.consumers
        hop = self.hop[producer]
        for follower in followers:
            at = visible + hop[consumers[follower]]
            if at > ready[follower]:
                ready[follower] = at
                ready_by[follower] = task
            waits[follower] -= 1
            if waits[follower] == 0:
                self._resolved(follower)

    def _grant(self, space: Space, time: float, by: int) -> None:
        """Grant the free space; `by` is the task whose end freed it (NOTHING at the start)."""
        ready, ready_by, consumers = self.line.ready, self.line.ready_by, self.tasks.consumers
        for tile in space.grant(time):
            task = self.tasks.tiles[tile].first_task
            at = time if by == NOTHING else time + self.hop[consumers[by]][consumers[task]]
            if at > ready[task]:
                ready[task] = at
                ready_by[task] = SPACE
                self.line.made_room[task] = by
            self.waits[task] -= 1
            if self.waits[task] == 0:
                self._resolved(task)

    def _release(self, tile: int, time: float) -> None:
        kind = self.tasks.tiles[tile]
        space = self.spaces[kind.core][kind.psum]
        space.free(tile, time)
        self._grant(space, time, self.tile_last[tile])

    def _let_go(self, task: int, end: float) -> None:
        """A task has no more use for its tiles from `end` on."""
        left, ends = self.users_left, self.tile_end
        for tile in self.tasks.touches[task]:
            left[tile] -= 1
            if end > ends[tile]:
                ends[tile] = end
                self.tile_last[tile] = task
            if left[tile] == 0:
                heappush(self.events, (ends[tile], -2 - tile))

    # Starting.

    def _earliest(self, task: int, engine: int) -> float:
        """When a resolved task of a compute queue may start, as things are."""
        ready, free, issuing, price = self.ready[task], self.free[engine], self.issuing[engine], self.prices[task]
        if issuing > free:
            free = issuing
        if type(price) is TensorPrice:
            core = engine // _DMA
            ready += price.load_ns if self.throttles[core].full else price.load_half_ns
            if self.tiled:
                free = max(free, *self.rows_free[core][_quadrants(price)])
        elif type(price) is Price and price.table is not None and price.table != self.tables[engine]:
            free += self.table_ns
        return ready if ready > free else free

    def _try(self, time: float, task: int) -> None:
        engine = self.tasks.engine[task]
        price = self.prices[task]
        if type(price) is DmaPrice:
            self._offer_trigger(time, task, engine)
            return
        if self.start[task] != _NEVER:  # offered twice
            return
        if type(price) is MeetPrice and self.place[task] > self.heads[engine]:
            return  # it overtakes none, or two cores could wait for each other; it will be next
        at = self._earliest(task, engine)
        if at > time:
            if at < _NEVER:  # else the engine is held up, and wakes it
                heappush(self.events, (at, task))
            return
        self.start[task] = time
        self.issuing[engine] = time + self.front_ns
        if type(price) is Price:
            self._start_plain(time, task, engine, price)
        elif type(price) is TensorPrice:
            self._start_tensor(time, task, engine, price)
        elif type(price) is MeetPrice:
            self._start_meeting(time, task, engine, price)
        self._move_head(engine)
        if self.window > 1:
            for later in self.tasks.not_before[task]:
                self.waits[later] -= 1
                if self.waits[later] == 0:
                    self._resolved(later)

    def _move_head(self, engine: int) -> None:
        """Consider the tasks that have come within reach of the engine."""
        queue, start = self.queues[engine], self.start
        head = before = self.heads[engine]
        while head < len(queue) and start[queue[head]] != _NEVER:
            head += 1
        if head == before:
            return
        self.heads[engine] = head
        if self.window > 1 and head < len(queue) and self.waits[queue[head]] == 0:
            self._offer(queue[head], engine)  # a meeting that had to wait for its turn
        for task in queue[before + self.window : head + self.window]:
            if self.waits[task] == 0:
                self._offer(task, engine)

    def _offer(self, task: int, engine: int) -> None:
        """Try a resolved task as soon as its engine lets it; one that is held up asks again when it goes on."""
        at = self._earliest(task, engine)
        if at < _NEVER:
            heappush(self.events, (at, task))

    def _start_plain(self, time: float, task: int, engine: int, price: Price) -> None:
        issue = price.issue_ns
        if price.first_issue_ns is not None and self.kinds[engine] != price.kind:
            issue = price.first_issue_ns
        if price.table is not None and price.table != self.tables[engine]:
            self.tables[engine] = price.table
            self.line.table_loads.append((engine, time - self.table_ns, time, price.table))
        latency = price.latency_ns
        if time > self.free[engine] or self.kinds[engine] is None:
            issue += price.cold_ns
        else:
            latency -= price.cold_ns
        self.kinds[engine] = price.kind
        self.free[engine] = self.line.free[task] = time + issue
        self._end(task, time + latency, engine)

    def _start_tensor(self, time: float, task: int, engine: int, price: TensorPrice) -> None:
        core = engine // _DMA
        throttle = self.throttles[core]
        end = throttle.stream(time, price.stream_ns, price.work)
        full = throttle.at_full_rate(end)
        rest = price.interval_ns - price.stream_ns
        next_start = end + (rest if full else rest / self.slow)
        if full:
            next_start += price.gap_ns
        if price.tiled:  # the next matmul waits for its own rows, and for the issue of this one
            chosen, self.tiled = _quadrants(price), True
            self.rows_free[core][chosen] = [next_start] * (chosen.stop - chosen.start)
            issued = time + price.issue_ns + price.gap_ns
            next_start = issued + (1.0 - price.overlap) * max(0.0, next_start - issued)
        self.free[engine] = self.line.free[task] = next_start
        visible = end + price.between_ns + self.complete_ns[0] if full else end + self.complete_ns[1]
        self._end(task, visible, engine)

    def _start_meeting(self, time: float, task: int, engine: int, price: MeetPrice) -> None:
        partner = self.tasks.meets[task]
        other = self.line.start[partner]
        if other == _NEVER:
            self.free[engine] = _NEVER
            return
        end = time + price.seam_ns
        for one in (task, partner):
            its_engine = self.tasks.engine[one]
            self.free[its_engine] = self.line.free[one] = end
            self._end(one, end, its_engine)
            if one == partner:
                self._wake(its_engine)

    def _wake(self, engine: int) -> None:
        """Try the tasks within reach of an engine that was held up without knowing for how long."""
        self._call_trigger(engine)
        head = self.heads[engine]
        for task in self.queues[engine][head : head + self.window]:
            if self.waits[task] == 0 and self.line.start[task] == _NEVER:
                self._offer(task, engine)

    def _end(self, task: int, visible: float, engine: int) -> None:
        self.line.visible[task] = visible
        self._let_go(task, visible)
        self._tell(task, visible, engine % _DMA)

    # DMA.

    def _offer_trigger(self, time: float, task: int, engine: int) -> None:
        """A trigger is ready, or its engine's front end was to be free now: start the first that waits, if it is."""
        waiting = self.triggers[engine]
        if self.called[engine] == task:
            self.called[engine] = NOTHING
        else:
            heappush(waiting, task)
        if self.called[engine] == NOTHING and self.issuing[engine] <= time:
            first = heappop(waiting)
            price = self.prices[first]
            assert type(price) is DmaPrice
            self._trigger(time, first, engine, price)
        self._call_trigger(engine)

    def _call_trigger(self, engine: int) -> None:
        """Come back when the front end is free, if that is known, for the first of the triggers that wait for it."""
        if self.triggers[engine] and self.called[engine] == NOTHING and self.issuing[engine] < _NEVER:
            self.called[engine] = self.triggers[engine][0]
            heappush(self.events, (self.issuing[engine], self.called[engine]))

    def _trigger(self, time: float, task: int, engine: int, price: DmaPrice) -> None:
        """Issue a DMA; where its queue is full, the issue (and its engine with it) waits for room."""
        self.line.start[task] = time
        queue = (engine, price.queue)
        end = time + price.issue_ns
        if price.queue == "hwdge":
            self.outstanding[queue] = self.outstanding.get(queue, 0.0) + price.room
            if self.outstanding[queue] > self.depth:
                self.stalled[queue] = task
                self.issuing[engine] = _NEVER
                return
            if time <= self.triggered[engine]:
                end += price.again_ns
            self.triggered[engine] = end
        self._issued(end, task, engine, price)

    def _issued(self, end: float, task: int, engine: int, price: DmaPrice) -> None:
        """A DMA's issue ends at `end`."""
        self.issuing[engine] = self.line.free[task] = end
        heappush(self.events, (end - price.issue_ns + price.first_packet_ns, len(self.tasks) + task))

    def _make_room(self, queue: tuple[int, str], time: float, by: int) -> None:
        """A transfer is no longer on the way in a hardware queue."""
        gone = self.prices[by]
        assert type(gone) is DmaPrice
        self.outstanding[queue] -= gone.room
        task = self.stalled.get(queue)
        if task is None or self.outstanding[queue] > self.depth:
            return
        del self.stalled[queue]
        engine, price = queue[0], self.prices[task]
        assert type(price) is DmaPrice
        end = self.line.start[task] + price.issue_ns
        if time > end:
            end = time
            self.line.ready[task], self.line.ready_by[task], self.line.made_room[task] = time, QUEUE_FULL, by
        self.triggered[engine] = end
        self._issued(end, task, engine, price)
        self._wake(engine)

    def _arrive(self, time: float, task: int) -> None:
        """A DMA's first packets are ready."""
        self.line.arrival[task] = time
        price = self.prices[task]
        assert type(price) is DmaPrice
        engine = self.tasks.engine[task]
        self._finish(self.dma.start(time, engine // _DMA, Transfer(task, price, (engine, price.queue))), time)
        self._next_dma_event()

    def _next_dma_event(self) -> None:
        at = self.dma.next_end()
        if at != self.dma_event and at != _NEVER:
            heappush(self.events, (at, -1))
        self.dma_event = at

    def _finish(self, transfers: list[Transfer], time: float) -> None:
        for transfer in transfers:
            task, queue = transfer.task, transfer.queue
            done = time + self.dma.sem_write_ns
            self.line.visible[task] = done
            self._let_go(task, done)
            self._tell(task, done, _DMA)
            if queue[1] == "hwdge":
                self._make_room(queue, time, task)

    def _result(self) -> Timeline:
        line, tasks = self.line, self.tasks
        stuck = [task for task, visible in enumerate(line.visible) if visible == _NEVER]
        if stuck:
            source = tasks.source[stuck[0]]
            where = f"{getattr(source, 'op', source)} at {getattr(source, 'file', '?')}:{getattr(source, 'line', '?')}"
            raise DeadlockError(
                f"{len(stuck)} of {len(tasks)} instructions wait for each other for ever, the first is {where}"
            )
        line.throttle_changes = [throttle.changes for throttle in self.throttles]
        line.sbuf = [sbuf for sbuf, _ in self.spaces]
        line.psum = [psum for _, psum in self.spaces]
        line.hbm_bound_ns, line.dma_busy_ns = self.dma.hbm_bound_ns, self.dma.busy_ns
        chosen = [task for task in range(len(tasks)) if tasks.is_dma[task]] or list(range(len(tasks)))
        line.begin_ns = min((line.start[task] for task in chosen), default=0.0)
        line.end_ns = max((line.visible[task] for task in chosen), default=0.0)
        return line
