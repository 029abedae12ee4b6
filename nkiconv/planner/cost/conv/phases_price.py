"""What `phases` takes: its start, then the slowest of the array, the read-outs and the DMAs, and its end."""

from __future__ import annotations

import math
from typing import Any

from ....kernels.conv.phases.banks import phase_banks, phase_in_bank, products_in
from ....schedules.geometry import num_taps
from ....schedules.options import either_reads
from ....schedules.tiles import PARTS
from ....simulator.timing.target import Target
from .common import matmul_rates

#: How much longer than evenly shared read-outs take, as engines wait for each other.
SHARED = 1.1
#: Windows of the array's clock at full rate from which on it is warmed up: of the golden table's problems those of at
#: most 0.46 take less without, those of at least 0.88 less with it.
WARMED = 0.6


class PhasesPrice:
    """Times of a kernel's Phases on two cores, taken from an item amid all."""

    def __init__(self, target: Target, geometry: Any, extras: Any, plan: Any) -> None:
        self.target, self.geometry, self.extras, self.plan = target, geometry, extras, plan
        self.item = plan.items[len(plan.items) // 2]
        self.segment = self.item[0]
        self.banks = phase_banks(plan, self.segment)
        self.chunks = len(plan.chunks)
        self.blocks = sum(len(batch) for batch in plan.outputs)
        self.kn = plan.outputs[0][0][1]
        #: items of all output channels that a core works on; those whose x it loads
        items = self._items()
        self.loaded = items if plan.by_channels else items / PARTS
        self.worked = self.loaded * (-(-self.blocks // PARTS) if plan.by_channels else self.blocks)
        self.column_ns, self.matmul_ns = matmul_rates(target, geometry)

    def total_ns(self) -> float:
        """ns of the busier core."""
        target, plan = self.target, self.plan
        x_ns, w_ns, y_ns = self._x_ns(), self._w_ns(), self._y_ns()
        array_ns, read_ns = self.worked * self._array_ns(), self.worked * self._read_ns()
        first_ns = (x_ns + w_ns) / self.chunks
        start_ns = target.first_packet_ns + target.load_skew_ns + target.dma_end_ns + target.dma_done_ns + first_ns
        if plan.together < self.chunks or plan.together == 1:
            start_ns += (x_ns + w_ns) - first_ns
        batches = max(1, len(plan.outputs) // PARTS if plan.by_channels else len(plan.outputs))
        blocks = self.worked / self.loaded
        moved_ns = blocks * w_ns + batches * self.loaded * x_ns + self.worked * y_ns
        columns = self._size(self.banks[-1])
        end_ns: float = columns * target.scalar_ns + target.scalar_done_ns + target.matmul_done_ns + 2 * target.hop_ns
        end_ns += target.first_packet_ns + target.store_skew_ns + target.dma_end_ns
        stored_ns = y_ns / max(1, len(self.banks) // len(plan.jobs))
        # the last block of the first item waits for its filters, or their last chunk; the other items follow
        items = max(1.0, self.loaded)
        waits = (1.0 if blocks > 1 else 1.0 / self.chunks) / (items * blocks)
        filled_ns = x_ns + blocks * w_ns - first_ns + array_ns * (1.0 - 1.0 / items + waits)
        if array_ns < target.window_ns * target.window_work:
            array_ns /= target.half_rate
        rest_ns = moved_ns - x_ns - w_ns - stored_ns
        return float(start_ns) + max(array_ns, filled_ns, read_ns, rest_ns) + end_ns + stored_ns

    def is_worth_warming(self) -> bool:
        """Whether the array has enough to do for its full rate to pay for matmuls on zeros before."""
        return self.worked * self._array_ns() >= WARMED * self.target.window_ns

    def _size(self, bank: Any) -> int:
        """Sums of a bank, a partition."""
        return math.prod(count for _, count in bank.blocks)

    def _items(self) -> float:
        """Items, as many as there would be of the size of this one."""
        sizes = [math.prod(part.yn for part in item[0]) * len(item) for item in self.plan.items]
        found: float = sum(sizes) / sizes[len(sizes) // 2]
        return found

    def _array_ns(self) -> float:
        """Of the array at full rate for a block of output channels of an item."""
        target, found = self.target, 0.0
        for bank in self.banks:
            every = products_in(self.plan, bank, self.segment)
            for one in every:
                columns = one.planes[2] * one.rows[2] * one.columns[2]
                found += max(target.matmul_columns_min, columns) * self.column_ns + self.matmul_ns
            if not every:
                found += self._size(bank) * self.column_ns / self.chunks
        return found * self.chunks

    def _read_ns(self) -> float:
        """Of the read-outs of a block of output channels of an item."""
        target, epilogue, found = self.target, self.extras.epilogue, 0.0
        shared = either_reads(epilogue, self.extras.strict_nonfinite)
        for bank in self.banks:
            for phase in self.plan.jobs[bank.job].phases:
                elements = math.prod(sums[1] for sums, _ in phase_in_bank(bank, self.segment, phase))
                vector_ns = elements * target.vector_ns + target.vector_fixed_psum_ns
                scalar_ns = elements * target.scalar_ns + target.scalar_fixed_psum_ns
                if epilogue.residual:
                    found += vector_ns
                elif shared:
                    found += SHARED * scalar_ns * vector_ns / (scalar_ns + vector_ns)
                else:
                    found += scalar_ns
        return found

    def _dma_ns(self, partitions: int, elements: float, run: float, itemsize: int, beside: float = 1.0) -> float:
        """Of a core's DMA engines, or HBM, for so many elements of each of some partitions in runs; beside: how many
        such, on engines of their own, go at a time."""
        target = self.target
        engines = min(target.rows_an_engine, partitions)
        engine_ns = engines * elements / run * target.run_ns(run * itemsize)
        return max(engine_ns / beside, target.hbm_ns(partitions * elements * itemsize, run * itemsize))

    def _x_ns(self) -> float:
        """Of x of an item."""
        geometry = self.geometry
        z, p, q = self.segment
        run = float(q.xn)
        if q.xn == geometry.columns.size:
            run *= p.xn * (z.xn if p.xn == geometry.rows.size else 1)
        elements = float(z.xn * p.xn * q.xn)
        _, channels, _, segments = self.plan.chunks[0]
        parts = min(len(self.item), segments) * channels
        return self.chunks * self._dma_ns(parts, elements, max(1.0, run), geometry.hbm_itemsize)

    def _w_ns(self) -> float:
        """Of the filters of a block of output channels, and of what is put together of them."""
        run = float(self.kn * num_taps(self.geometry))
        _, channels, _, segments = self.plan.chunks[0]
        parts = segments * channels
        return self.chunks * self._dma_ns(parts, run, run, self.geometry.hbm_itemsize)

    def _y_ns(self) -> float:
        """Of the results of a block of output channels of an item."""
        z, p, q = self.segment
        run = float(q.qn)
        if q.qn == self.geometry.columns.out:
            run *= max(1.0, p.yn / max(1, len(self.banks) // len(self.plan.jobs)))
        parts, elements = len(self.item) * self.kn, float(z.yn * p.yn * q.yn)
        # results side by side on the partitions have DMA engines of their own
        beside = max(1.0, min(float(self.plan.places), self.worked))
        return self._dma_ns(parts, elements, max(1.0, run), self.extras.epilogue.y_itemsize, beside)
