"""The loop of a core: all matmuls of an output tile, with loads of filters between them, evacuation and stores."""

from typing import Any

from ..._engines import new_ledger
from ..._epilogue import evacuate, load_bias_rows
from ..._pixel_norms import evacuate_normalized, load_norm
from ..._warm import warm_zeros
from ..call import of_array
from ..sums import multiply


class Core:
    """One core's operands and its loop. Each kind of schedule overrides `tiles`, which loads x of the next output tile
    before it yields one.

    filters: moving filters, or None if `tiles` loads its own; norm: NormOperands in SBUF, or None.
    """

    filters: Any = None
    bias_sbuf: Any = None
    norm: Any = None

    def __init__(self, operands, geometry, options, plan):
        self.operands, self.geometry, self.options, self.plan = operands, geometry, options, plan
        self.ledger, self.zeros_sbuf = new_ledger(), warm_zeros()

    def tiles(self, items):
        """Output tiles of items, as `run` takes them."""
        raise NotImplementedError

    def run(self, tiles):
        """Compute output tiles, or some banks of one, in order: each is (products, leave).

        products(K tile): yields (sums, stationary, moving, whether the matmul accumulates); leave(): evacuates the
        sums. Moving filters that no matmul waits for are put in place between matmuls.
        """
        for products, leave in tiles:
            filters = self.filters
            for k_tile in range(1 if filters is None else len(self.plan.k_tiles)):
                for dst, stationary, moving, adds in products(k_tile):
                    multiply(dst, of_array(stationary, self.operands), of_array(moving, self.operands), adds)
                    if filters is not None and filters.waiting(k_tile + 1) > 0:
                        filters.place_next()
            leave()

    def load_bias(self, k0, kn, fold=1):
        """Load the biases of output channels k0 .. k0+kn-1 to all partitions, `fold` times, and a norm's scales and
        shifts."""
        self.bias_sbuf = load_bias_rows(self.operands.bias, k0, kn, fold)
        self.norm = load_norm(self.operands.norm, kn)

    def evacuate_pixels(self, dst_sbuf, acc_psum, k0, residual_sbuf=None, kept_sbuf=None):
        """Evacuate sums [positions, n, row, k] of output channels from the group's k0 on, with the epilogue, all rows
        with one instruction. With a norm they are all channels of a pixel; kept_sbuf: as in `evacuate_normalized`."""
        bias_sbuf, options, (positions, n, rows, kn) = self.bias_sbuf, self.options, acc_psum.shape
        if bias_sbuf is not None:
            bias_sbuf = bias_sbuf[0:positions, k0 : k0 + rows * kn].reshape((positions, rows, kn))
            bias_sbuf = bias_sbuf.expand_dim(1).broadcast(1, n)
        if self.norm is None:
            evacuate(
                dst_sbuf, acc_psum, bias_sbuf, residual_sbuf, options.epilogue, self.ledger, options.strict_nonfinite
            )
            return
        for row in range(rows):
            y, acc, bias, residual, kept = (
                None if one is None else one[0:positions, 0:n, row]
                for one in (dst_sbuf, acc_psum, bias_sbuf, residual_sbuf, kept_sbuf)
            )
            evacuate_normalized(y, acc, bias, residual, options.epilogue, self.norm, self.ledger, kept)


def bias_of(bias_sbuf, k0, shape):
    """A view [positions, k, rows, columns] of biases [128, channels] from channel k0 on, or None without biases."""
    if bias_sbuf is None:
        return None
    positions, kn, rows, columns = shape
    return bias_sbuf[0:positions, k0 : k0 + kn].expand_dim(2).expand_dim(3).broadcast(2, rows).broadcast(3, columns)
