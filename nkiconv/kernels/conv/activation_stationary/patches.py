"""Patches of y: columns of x are stationary, filters move as they are stored, rows of y are stored as runs.

Results are [(image, row, part of a row), k, row of taps, column, column of taps] on chip; in NHWC channels are last.
"""

from itertools import product

from ...._nki import nl
from ....schedules.geometry import writes_rows
from ....schedules.tiles import div_ceil
from ..._epilogue import evacuate
from ..._prologue import load_x
from ..._warm import warm_up
from ..regions import load_filters, offset_at, store_regions
from .loop import Core, bias_of


class PatchCore(Core):
    """The loop of a core over output tiles of patches; weights: by rows of taps, the filters [c, k, r, s] of each K
    tile."""

    def tiles(self, items):
        """Output tiles of items; x of the next one, and its filters if its rows of taps are new, are loaded ahead."""
        plan, geometry, self.weights, after = self.plan, self.geometry, {}, None
        warm_up(self.zeros_sbuf, plan.settings.warmup, 1)
        self.load_bias(0, geometry.K)
        for index, item in enumerate(items):
            x = self.load_tile(item) if after is None else after
            after = self.load_tile(items[index + 1]) if index + 1 < len(items) else None
            parts, patch = item.n[1] * item.i[1] * plan.settings.across, (item.r[1], plan.side, geometry.columns.taps)
            shape = (parts, geometry.K, *patch) if writes_rows(geometry) else (parts, *patch, geometry.K)
            stored_sbuf = nl.ndarray(shape, dtype=self.operands.y.dtype, buffer=nl.sbuf)
            y_sbuf = stored_sbuf if writes_rows(geometry) else stored_sbuf.permute((0, 4, 1, 2, 3))
            for column, (k, r) in product(range(plan.side), plan.banks(geometry, item)):
                yield self.bank_of(item, x, y_sbuf, column, k, r)
            self.store_patches(item, stored_sbuf)

    def load_tile(self, item):
        """Load x of an output tile, [c, image, row, column] of each K tile; after each K tile's x its filters of the
        rows of taps, unless they are loaded."""
        geometry, operands, found, fresh = self.geometry, self.operands, [], item.r not in self.weights
        own = self.weights.setdefault(item.r, [])
        for c0, cn in self.plan.k_tiles:
            shape = (cn, item.n[1], item.i[1], geometry.columns.size)
            found.append(nl.ndarray(shape, dtype=operands.x_dtype, buffer=nl.sbuf))
            load_x(found[-1], operands, geometry, (c0, item.n[0], item.i[0], 0), ledger=self.ledger)
            if fresh:
                block = *item.r, 0, geometry.columns.taps
                own.append(load_filters(operands, geometry, (0, geometry.K), (c0, cn), block, True))
        return found

    def bank_of(self, item, x, y_sbuf, column, k, r):
        """A bank of sums of output channels and rows of taps, each (first, count), at a column of each partition's part
        of a row, as `run` takes it."""
        (k0, kn), (r0, rn), parts, S, Q = k, r, y_sbuf.shape[0], self.geometry.columns.taps, self.geometry.columns.size
        acc_psum = nl.ndarray((parts, kn, rn, S), dtype=nl.float32, buffer=nl.psum)
        channels, rows = slice(k0, k0 + kn), slice(r0 - item.r[0], r0 - item.r[0] + rn)

        def products(_):
            for index, (x_sbuf, w_sbuf) in enumerate(zip(x, self.weights[item.r])):
                cn, images, height = x_sbuf.shape[0:3]
                stationary = x_sbuf[0:cn, 0:images, 0:height, column : Q : self.plan.side]
                yield acc_psum, stationary, w_sbuf[0:cn, channels, rows, 0:S], index > 0

        def leave():
            bias, options = bias_of(self.bias_sbuf, k0, acc_psum.shape), self.options
            into = y_sbuf[0:parts, channels, rows, column, 0:S]
            evacuate(into, acc_psum, bias, None, options.epilogue, self.ledger, options.strict_nonfinite)

        return products, leave

    def store_patches(self, item, y_sbuf):
        """Store the rows of y of an output tile by plane of taps, and rows of NCHW by output channel, as an access
        pattern has few dimensions."""
        geometry, plan, parts, (first, rows) = self.geometry, self.plan, y_sbuf.shape[0], item.r
        _, by_n, by_p, by_q, *_ = geometry.y_strides
        T, R, wide = geometry.planes.taps, geometry.rows.taps, plan.side * geometry.columns.taps
        outer = [[T * by_n, item.n[1]], [R * by_p, item.i[1]], [wide * by_q, plan.settings.across]]
        channels, run = (geometry.K, wide) if writes_rows(geometry) else (1, wide * geometry.K)
        y_sbuf = y_sbuf.reshape((parts, channels, rows, run))
        for k, t in product(range(channels), range(first // R, div_ceil(first + rows, R))):
            r0, end = max(first, t * R), min(first + rows, (t + 1) * R)
            offset = offset_at(geometry.y_strides, (k, item.n[0] * T + t, item.i[0] * R + r0 - t * R, 0))
            region = ((0, 0, 0), [*outer, [by_p, end - r0], [1, run]], offset)
            store_regions(self.operands.y, y_sbuf[0:parts, k, r0 - first : end - first], [region])
