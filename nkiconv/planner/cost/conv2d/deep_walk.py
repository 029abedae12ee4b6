"""What a plan of deep takes: a walk through the longer job's pieces on the clocks of a core's engines."""

from __future__ import annotations

from typing import Any

from ....kernels.conv2d.deep.config import DEEP_WARM_UP_MAX
from ....kernels.conv2d.deep.tiling import AHEAD, is_copied, pieces_of
from ....simulator.timing.target import Target
from ..clock import Clock

#: ns from a core's start until the first matmul on zeros: calibrated.
WARM_UP_START_NS = 190.0


def warm_count(target: Target, geometry: Any, plan: Any) -> int:
    """Matmuls on zeros until the first filters come: work without which the array might stay at half rate, as matmuls
    on few pixels keep it waiting."""
    walk = Walk(target, geometry, plan)
    walk.load_x(plan.together)
    come_ns = walk.load_filters(plan.jobs[1].blocks[0][1], plan.together, plan.taps[0])
    time, count = WARM_UP_START_NS, 0
    while time < come_ns and count < DEEP_WARM_UP_MAX:
        time = walk.clock.stream(time, target.matmul_columns_min * target.tensor_column_ns)
        count += 1
    return count


class Walk:
    """The busier of two cores; the second job is the longer one where they differ. Each step returns when its result
    is there, in ns from the core's start."""

    def __init__(self, target: Target, geometry: Any, plan: Any) -> None:
        self.target, self.geometry, self.plan = target, geometry, plan
        self.clock, self.job = Clock(target), plan.jobs[1]

    def end(self) -> float:
        """The whole walk: when the last store is done."""
        target, clock, plan, plain = self.target, self.clock, self.plan, self.geometry.packed == 0
        warm_ns = plan.warmup * target.matmul_columns_min * target.tensor_column_ns
        clock.tensor = clock.stream(WARM_UP_START_NS, warm_ns)
        x_ns, free, summed = 0.0, (0.0, 0.0), 0.0
        waiting: list[tuple[float, int]] = []
        pieces: list[Any] = pieces_of(plan, self.job)
        for index, piece in enumerate(pieces):
            kn, count = self.job.blocks[piece.block][1], piece.count
            fresh = piece.which == 0 and piece.block == 0
            if fresh:
                x_ns = max(self.load_x(count), self.zeros(count))
            if index == 0:
                free = self.cleared()
            filters_ns = self.load_filters(kn, count, piece.taps)
            for which, step in enumerate(plan.steps[piece.which]):
                ready = filters_ns
                if plain:
                    ready = self.transpose(filters_ns, count * kn, step.taps, free[min(index, 1)])
                if which == 0 and fresh:
                    x_ns = self.put_among_zeros(x_ns, count)
                waiting.append((max(ready, x_ns) + target.hop_tensor_ns, count * (step.end - step.first)))
                if len(waiting) > AHEAD:
                    self.multiply(*waiting.pop(0))
        for one in waiting:
            summed = self.multiply(*one)
        self.finish(summed)
        return clock.end

    def cleared(self) -> tuple[float, float]:
        """When the first piece's stationary is clear, by Vector, and the second one's, by GpSimd."""
        target, clock, plan = self.target, self.clock, self.plan
        if not plan.gaps:
            return 0.0, 0.0
        last = plan.steps[0][-1]
        words = plan.together * (last.tap + last.taps) * plan.slot * self.geometry.itemsize / 4
        vector_ns, gpsimd_ns = words * target.vector_memset_ns, words * target.gpsimd_ns
        return (
            clock.on_vector(WARM_UP_START_NS, target.vector_fixed_ns + vector_ns, vector_ns),
            clock.on_gpsimd(0.0, target.gpsimd_fixed_ns + gpsimd_ns, target.gpsimd_done_ns + gpsimd_ns),
        )

    def load_filters(self, kn: int, count: int, taps: tuple[int, int, int, int]) -> float:
        """Filters of a piece."""
        target, geometry, depth = self.target, self.geometry, self.plan.depth
        _, rn, _, sn = taps
        R, S, item = geometry.rows.taps, geometry.columns.taps, geometry.itemsize
        num_bytes = count * kn * depth * rn * sn * geometry.hbm_itemsize
        if geometry.packed > 0:
            each = min(kn, geometry.packed)
            whole = kn % geometry.packed == 0 and sn == S
            row = target.run_ns(rn * sn * each * item) if whole else rn * sn * target.run_ns(each * item)
            blocks = max(1, kn // each)
            return self.clock.load(0.0, blocks, depth, blocks * row, num_bytes)
        whole = geometry.w_s == 1 and geometry.w_r == S and geometry.w_c == S * R and sn == S
        if whole and rn == R:
            row = target.run_ns(depth * rn * sn * item)
        elif whole:
            row = depth * target.run_ns(rn * sn * item)
        else:
            row = depth * rn * target.row_ns(sn, geometry.w_s, item)
        return self.clock.load(0.0, count, count * kn, row, num_bytes)

    def load_x(self, count: int) -> float:
        """x of so many chunks."""
        target, geometry, plan, window = self.target, self.geometry, self.plan, self.plan.window
        item, in_line = geometry.itemsize, geometry.x_w == 1 and geometry.x_h == window.wn
        row = window.hn * target.row_ns(window.wn, geometry.x_w, item)
        if in_line:
            row = target.run_ns(window.hn * window.wn * item)
        num_bytes = plan.depth * geometry.N * window.hn * window.wn * geometry.hbm_itemsize
        return [self.clock.load(0.0, 1, plan.depth, geometry.N * row, num_bytes) for _ in range(count)][-1]

    def zeros(self, count: int) -> float:
        """Zeros for x of so many chunks."""
        target, window = self.target, self.plan.window
        if not is_copied(window):
            return 0.0
        words = count * self.geometry.N * window.height * window.width * self.geometry.itemsize / 4
        gpsimd_ns = words * target.gpsimd_ns
        return self.clock.on_gpsimd(0.0, target.gpsimd_fixed_ns + gpsimd_ns, target.gpsimd_done_ns + gpsimd_ns)

    def put_among_zeros(self, ready: float, count: int) -> float:
        """x of so many chunks into its zeros."""
        window = self.plan.window
        if not is_copied(window):
            return ready
        return self.read(ready, count * self.geometry.N * window.hn * window.wn, self.geometry.itemsize == 2)

    def transpose(self, ready: float, rows: int, taps: int, free: float) -> float:
        """Transposes of a step and their read-out to what is free by then."""
        target, item = self.target, self.geometry.itemsize
        columns = taps * (target.transpose_passes_fp32 if item == 4 else 1)
        ready += target.hop_tensor_ns
        end = self.clock.matmuls(ready, int(columns), rows, target.tensor_column_ns, target.matmul_ns)
        return self.read(max(end + target.hop_ns, free), taps * rows, item == 2)

    def read(self, ready: float, elements: int, fast: bool) -> float:
        """A copy by Vector or Scalar, whichever is done first."""
        target, clock = self.target, self.clock
        vector_ns = elements * (target.vector_16bit_ns if fast else target.vector_ns)
        scalar_ns = elements * target.scalar_ns
        if max(clock.vector, ready) + vector_ns <= max(clock.scalar, ready) + scalar_ns:
            return clock.on_vector(ready, target.vector_fixed_psum_ns + vector_ns, target.vector_done_ns + vector_ns)
        return clock.on_scalar(ready, target.scalar_fixed_ns + scalar_ns, target.scalar_done_ns + scalar_ns)

    def add(self, ready: float, elements: int) -> float:
        """A sum of fp32 by Vector."""
        target = self.target
        vector_ns = elements * target.vector_ns
        return self.clock.on_vector(ready, target.vector_fixed_psum_ns + vector_ns, target.vector_done_ns + vector_ns)

    def multiply(self, ready: float, products: int) -> float:
        """So many products, of all banks of sums."""
        target, fast, banks = self.target, self.geometry.fast, self.plan.banks
        column_ns = target.tensor_column_ns if fast else target.tensor_column_fp32_ns
        fixed_ns = target.matmul_ns if fast else 2 * target.matmul_fp32_ns
        columns = banks[0].nn * banks[0].pn * self.plan.columns
        return self.clock.matmuls(ready, products * len(banks), columns, column_ns, fixed_ns)

    def finish(self, summed: float) -> None:
        """From the last sums to the end of the last store."""
        target, geometry, plan = self.target, self.geometry, self.plan
        P, Q, item = geometry.rows.out, geometry.columns.out, geometry.itemsize
        blocks, shared = self.job.blocks, plan.shard == "contraction"
        ready = done = summed + target.hop_ns
        for bank in len(blocks) * plan.banks:
            elements = bank.nn * bank.pn * Q
            done = self.read(ready, elements, False)
            for _ in range(plan.T - 1):
                done = self.add(done, elements)
        kn = blocks[-1][1]
        mine = (geometry.N * P + 1) // 2 * Q if shared else geometry.N * P * Q
        if shared:
            more = max(0.0, kn * mine * 4 - target.exchange_bytes)
            done = self.add(done + len(blocks) * (target.exchange_ns + more * target.exchange_byte_ns), mine)
        if shared or plan.T > 1:
            done = self.read(done, mine, False)
        row = mine // Q * target.row_ns(Q, geometry.y_q, item)
        if geometry.y_q == 1 and geometry.y_p == Q:
            row = geometry.N * target.run_ns(mine // geometry.N * item)
        for _ in blocks:
            self.clock.store(done, kn, row, kn * mine * item)
