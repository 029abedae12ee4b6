"""The prologue of K packing: one instruction for all copies of x, then zeros again in their elements outside x.

x is in other columns of X [(d, b, c), ..] for each shift d, and only on some rows b of blocks at the image's edges. As
engines begin at few partitions, elements outside x pass the prologue too, and are then multiplied by 0: strips of
columns by a tile, rows of a block by a number for each partition.
"""

from ...._nki import nisa, nl
from ....schedules.block_axes import plane_span
from ....schedules.tiles import size_of
from ..._engines import book_vector


class StackedPrologue(nl.NKIObject):
    """A prologue, and its masks, which are made at their first use."""

    def __init__(self, operands, stack, ledger):
        self.on_x, self.dtype, self.stack, self.ledger = operands.prologue, operands.x_dtype, stack, ledger
        spans = [(low, high) for low, high, _ in stack.spans(0) if low < high] or [(0, 0)]
        self.low, self.high = min(low for low, _ in spans), max(high for _, high in spans)
        #: columns in which only some shifts have x
        lows, highs = max(low for low, _ in spans), min(high for _, high in spans)
        every_has = len(spans) == stack.D and lows < highs
        self.strips = [(self.low, lows), (highs, self.high)] if every_has else [(self.low, self.high)]
        self.strips = [one for one in self.strips if one[0] < one[1]]
        self.masks = {}

    def apply(self, x_sbuf, lane, first, end):
        """Apply the prologue to loaded blocks first .. end - 1 of X [(d, b, c), planes, blocks, columns]."""
        stack, m0, (d0, dn) = self.stack, lane[1].x0, plane_span(lane[0])
        held = self.blocks_held(first, end)
        if held and dn > 0:
            whole = x_sbuf[0 : x_sbuf.shape[0], 0:dn, held[0] - m0 : held[-1] + 1 - m0, self.low : self.high]
            self.on_x.apply_once(whole, whole, 0, 0, d0, self.ledger, stack.D * stack.B)

    def blocks_held(self, first, end):
        """The blocks among first .. end - 1 with rows of x; empty if no column has x."""
        some = range(first, end) if self.low < self.high else ()
        return [m for m in some if self.stack.rows_held(m)[1] > 0]

    def clear(self, x_sbuf, lane, first, end):
        """Zero the elements outside x again, in the same blocks."""
        stack, m0, (_, dn), parts = self.stack, lane[1].x0, plane_span(lane[0]), x_sbuf.shape[0]
        held = self.blocks_held(first, end)
        if not held or dn == 0:
            return
        for low, high in self.strips:
            strip = x_sbuf[0:parts, 0:dn, held[0] - m0 : held[-1] + 1 - m0, low:high]
            mask = self.mask_of_columns(low, high).expand_dim(1).broadcast(1, len(held))
            for plane in range(dn):
                self.multiply(strip[0:parts, plane], mask)
        for m in held:
            if stack.rows_held(m)[1] < stack.B:
                block = x_sbuf[0:parts, 0:dn, m - m0, self.low : self.high]
                nisa.tensor_scalar(
                    dst=block, data=block, op0=nl.multiply, operand0=self.mask_of_rows(*stack.rows_held(m)),
                    engine=nisa.engine.vector,
                )  # fmt: skip
                book_vector(self.ledger, size_of(block.shape[1:]))

    def multiply(self, data, mask):
        """data *= mask."""
        nisa.tensor_tensor(dst=data, data1=data, data2=mask, op=nl.multiply, engine=nisa.engine.vector)
        book_vector(self.ledger, size_of(data.shape[1:]))

    def mask_of_columns(self, low, high):
        """A mask [(d, b, c), columns]: 1 if columns low .. high - 1 are in x at shift d, else 0."""
        if (low, high) not in self.masks:
            stack = self.stack
            mask_sbuf = nl.ndarray((stack.parts, high - low), dtype=self.dtype, buffer=nl.sbuf)
            for d in reversed(range(stack.D)):
                count = (d + 1) * stack.B * stack.geometry.C
                begin, end, _ = stack.spans(0)[d]
                begin, end = max(begin, low) - low, min(end, high) - low
                fill(mask_sbuf[0:count, 0 : high - low], 0.0)
                if begin < end:
                    fill(mask_sbuf[0:count, begin:end], 1.0)
            self.masks[low, high] = mask_sbuf
        return self.masks[low, high]

    def mask_of_rows(self, b, bn):
        """A mask [(d, b, c), 1] in fp32: 1 for rows b .. b + bn - 1, else 0."""
        if ("rows", b, bn) not in self.masks:
            stack, C = self.stack, self.stack.geometry.C
            mask_sbuf = nl.ndarray((stack.parts, 1), dtype=nl.float32, buffer=nl.sbuf)
            for d in reversed(range(stack.D)):
                for begin, end, value in ((b + bn, stack.B, 0.0), (b, b + bn, 1.0), (0, b, 0.0)):
                    if begin < end:
                        fill(mask_sbuf[0 : (d * stack.B + end) * C, 0:1], value)
            self.masks["rows", b, bn] = mask_sbuf
        return self.masks["rows", b, bn]


def fill(dst, value):
    """Write a number on partitions from 0 on; the partitions after them keep theirs."""
    nisa.memset(dst=dst, value=value, engine=nisa.engine.gpsimd)
