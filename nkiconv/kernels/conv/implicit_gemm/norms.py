"""A norm over channels on partitions: sums of an output tile wait in fp32 until all M tiles have theirs.

A matmul with ones adds the squares of a pixel, divided by K, over the partitions, and leaves the mean on all of them;
for "layer" another one first adds the sums themselves, whose mean is subtracted before they are squared. fp32 runs at
twice the rate if one operand is ones. Each matmul waits for Vector to finish its input, while the Tensor Engine makes
other sums. All in fp32.
"""

from ...._nki import nisa, nl
from ....schedules.tiles import size_of
from ..._engines import book_vector, copy_balanced, scaled
from ..._epilogue import evacuate, load_bias
from ..._masks import constant
from ..._pixel_norms import before_norm, rstd_of, scale_pixels, total_of
from ..regions import store_regions
from ..sums import multiply
from .rows import Deferred, regions_of_bank, window

#: The fewest matmuls between a bank's last sums and the matmul that adds them, or their squares: they hide Vector.
WAIT_MATMULS = 24


class Norms:
    """Banks of sums that wait for their norm."""

    def __init__(self, core):
        self.operands, self.geometry, self.ledger = core.operands, core.geometry, core.ledger
        self.options, self.waiting, self.numbers = core.options, Deferred(WAIT_MATMULS, self.take_mean), {}
        self.ones_sbuf = constant((nl.tile_size.pmax,) * 2, nl.float32, 1.0)

    def evacuate(self, sums_sbuf, acc_psum, bias_sbuf, residual):
        """Evacuate a bank of an M tile's sums with the operations before the norm."""
        before = before_norm(self.options.epilogue)
        by = self.ledger
        if bias_sbuf != None and self.options.epilogue.activation != "":
            # Scalar adds a bias by a function, and would load its table and the activation's in turn
            by = nisa.engine.vector
            book_vector(self.ledger, size_of(sums_sbuf.shape[1:]))
        evacuate(sums_sbuf, acc_psum, bias_sbuf, residual if before.residual != "" else None, before, by)

    def add(self, every, bank):
        """Begin the norm of a bank once all M tiles have their sums."""
        self.waiting.finish()
        if self.operands.kept != None:
            self.keep(every, bank)
        self.wait(every, bank, self.options.epilogue.norm.kind == "layer")

    def keep(self, every, bank):
        """Store the sums of a bank before the norm."""
        for results in every:
            sums = window(results.y_sbuf, bank)
            kept_sbuf = nl.ndarray(sums.shape, dtype=self.operands.y.dtype, buffer=nl.sbuf)
            copy_balanced(kept_sbuf, sums, self.ledger)
            self.store(self.operands.kept, kept_sbuf, results, bank)

    def store(self, hbm, tile_sbuf, results, bank):
        """Store a tile of a bank of an M tile's results."""
        regions = regions_of_bank(self.geometry.y_strides, results.m_tile, results.out_tile, bank)
        store_regions(hbm, tile_sbuf, [((0, 0, 0, 0), *region[1:]) for region in regions])

    def wait(self, every, bank, centers):
        """Have a bank wait for the total of its sums (centers), or for the mean of their squares."""
        sums = sorted((window(one.y_sbuf, bank) for one in every), key=lambda one: -one.shape[0])
        total_sbuf = total_of(sums, None if centers else 1.0 / self.geometry.K)
        self.waiting.add(every, bank, total_sbuf, centers)

    def take_mean(self, every, bank, total_sbuf, centers):
        """Add total_sbuf [P, images, rows, columns] over the partitions; then subtract the mean from a bank's sums of
        all M tiles (centers), or normalize and store them by the mean square."""
        shape = total_sbuf.shape
        means_psum = nl.ndarray((nl.tile_size.pmax, *shape[1:]), dtype=nl.float32, buffer=nl.psum)
        multiply(means_psum, self.ones_sbuf[0 : shape[0]], total_sbuf, False, is_stationary_onezero=True)
        if not centers:
            self.normalize(every, bank, means_psum)
            return
        for results in every:
            sums = window(results.y_sbuf, bank)
            scaled(sums, means_psum[0 : sums.shape[0]], -1.0 / self.geometry.K, nl.add, sums)
        self.wait(every, bank, False)

    def normalize(self, every, bank, means_psum):
        """Normalize and store a bank of all M tiles' results, by mean squares [P, images, rows, columns]."""
        rstd_sbuf = rstd_of(means_psum, self.operands.norm.eps)
        for results in every:
            sums = window(results.y_sbuf, bank)
            residual = window(results.residual_sbuf, bank)
            y_sbuf = nl.ndarray(sums.shape, dtype=self.operands.y.dtype, buffer=nl.sbuf)
            (weight, bias), rstd = self.of(results.m_tile), rstd_sbuf[0 : sums.shape[0]]
            scale_pixels(y_sbuf, sums, rstd, weight, bias, residual, self.options.epilogue, self.ledger)
            self.store(self.operands.y, y_sbuf, results, bank)

    def of(self, m_tile):
        """Weight and bias of the norm for an M tile, [k, 1] or None, each loaded once."""
        if m_tile.k0 not in self.numbers:
            norm = self.operands.norm
            self.numbers[m_tile.k0] = [load_bias(hbm, m_tile.k0, m_tile.kn) for hbm in (norm.weight, norm.bias)]
        return self.numbers[m_tile.k0]
