"""From a window of x to y, in prefill and decode steps: sums of taps in a bank, activation, l2norm, store.

    y[t, h, :] = z[t, h, :] / sqrt(sum of z[t, h, :]^2 + eps)

One `bn_stats` a head reads z once: count, mean and sum of squared deviations, of elements at even and odd places. The
sum of squares adds both halves' deviations + count * mean^2: no term is negative, so nothing cancels. Compared with a
product and a reduction this saves a third of Vector's time for heads of 128. A NaN or Inf makes all of its head NaN.
"""

from ...._nki import nisa, nl
from ....schedules.split import states_after
from ....schedules.tiles import share, size_of
from ..._dma import load, store
from ..._engines import book_select, book_vector, new_ledger, pick_sum
from ..._epilogue import evacuate, load_bias_rows
from ..._masks import make_diagonals
from ..._warm import WARM_BLOCKS, accumulator, warm_up, warm_zeros
from ...conv.sums import multiply
from ...depthwise_conv1d.state import states_of, store_final_state, store_rows
from ...depthwise_conv1d.tensors import Rows, RowTensors

#: Matmuls on zeros, of WARM_BLOCKS * 128 columns, during the first loads.
WARM_UPS = 8


def load_filters(operands, geometry, group, first, ledger):
    """(diagonals, bias) of a group in SBUF: a matrix [partitions, S, partitions] for each tile, with the filters of tap
    s on its diagonal; [128, channels] fp32 on all partitions, or None.

    first: whether it is the core's first group: then tiles are made one by one, so that the first is ready early.
    """
    S, diagonals = geometry.S, []
    for run in group.runs:
        w_sbuf = nl.ndarray((run.rows, run.tiles, S), dtype=operands.w.dtype, buffer=nl.sbuf)
        load(w_sbuf, operands.w, [[run.row_step * S, run.rows], [run.tile_step * S, run.tiles], [1, S]], run.c0 * S)
        each = 1 if first else run.tiles
        for tile in range(0, run.tiles, each):
            book_select(ledger, each * S * run.rows)
            taps = w_sbuf[:, tile : tile + each].reshape((run.rows, each * S))
            found = make_diagonals(taps, operands.w.dtype)
            diagonals += [found[0 : run.rows, one * S : (one + 1) * S, 0 : run.rows] for one in range(each)]
    return diagonals, load_bias_rows(operands.bias, group.c0, group.count)


class Results:
    """A core's evacuation into parts of y in HBM; norms: the unfinished norms of heads, oldest first."""

    def __init__(self, parts, epilogue, eps):
        self.parts, self.epilogue, self.eps, self.ledger, self.norms = parts, epilogue, eps, new_ledger(), []
        self.warm = warm_up(warm_zeros(), WARM_UPS, WARM_BLOCKS)

    def add(self, group, count, window, filters, step, token):
        """Compute y of `count` tokens of a group.

        window: returns the view [partitions, tokens] of x at (partitions, tile, tap). filters: of `load_filters`.
        The first is token `token` of y [N * T, heads, dim], the others follow `step` apart.
        """
        (diagonals, bias), y_hbm = filters, self.parts[group.part]
        acc_psum, started = accumulator(self.warm, (count, group.count))
        for run in group.runs:
            for tile in range(run.tile0, run.tile0 + run.tiles):
                for s in range(diagonals[tile].shape[1]):
                    moving, adds = diagonals[tile][0 : run.rows, s, 0 : run.rows], started or s > 0
                    multiply(acc_psum[:, group.channels(run, tile)], window(run.rows, tile, s), moving, adds)
        self.advance()
        y_sbuf = nl.ndarray((count, group.count), dtype=y_hbm.dtype, buffer=nl.sbuf)
        z_sbuf = nl.ndarray((count, group.count), dtype=nl.float32, buffer=nl.sbuf) if group.heads > 0 else y_sbuf
        bias = None if bias == None else bias[0:count, 0 : group.count]
        evacuate(z_sbuf, acc_psum, bias, None, self.epilogue, self.ledger)
        channels = y_hbm.shape[2] * y_hbm.shape[3]
        place = [[step * channels, count], [1, group.count]], token * channels + group.first
        if group.heads == 0:
            store(y_sbuf, y_hbm, *place)
        else:
            self.norms.append(self.normalize(z_sbuf, y_sbuf, group.heads, y_hbm, place))

    def normalize(self, z_sbuf, y_sbuf, heads, y_hbm, place):
        """Compute and store y of heads [tokens, channels], in stages that are issued one step apart, so that no engine
        waits for another's latest result: by Vector, and the product by Vector or GpSimd."""
        z, y = (one.reshape_dim(1, (heads, one.shape[1] // heads)) for one in (z_sbuf, y_sbuf))
        (tokens, _, dim), ledger = z.shape, self.ledger
        stats_sbuf = nl.ndarray((tokens, heads, 2, 3), dtype=nl.float32, buffer=nl.sbuf)
        for head in range(heads):
            book_vector(ledger, dim)
            into = stats_sbuf[:, head].reshape((tokens, 6))
            nisa.bn_stats(dst=into, data=z[:, head])
        yield True
        counts, means = (stats_sbuf[:, :, :, which] for which in (0, 1))
        for _ in range(2):
            book_vector(ledger, 2 * heads)
            nisa.tensor_tensor(dst=counts, data1=counts, data2=means, op=nl.multiply)
            yield True
        factor_sbuf = nl.ndarray((tokens, heads, 1), dtype=nl.float32, buffer=nl.sbuf)
        book_vector(ledger, 4 * heads)
        nisa.tensor_reduce(dst=factor_sbuf, op=nl.add, data=stats_sbuf[:, :, :, 0:3:2], axis=(2, 3))
        yield True
        book_vector(ledger, heads)
        nisa.tensor_scalar(
            dst=factor_sbuf, data=factor_sbuf, op0=nl.add, operand0=self.eps, op1=nl.power, operand1=-0.5
        )
        yield True
        engine = pick_sum(ledger, size_of(z.shape[1:]), False)
        nisa.tensor_tensor(dst=y, data1=z, data2=factor_sbuf.broadcast(2, dim), op=nl.multiply, engine=engine)
        store(y_sbuf, y_hbm, *place)

    def advance(self):
        """Issue one more stage of each norm, oldest first."""
        self.norms = [one for one in self.norms if next(one, False)]

    def end(self):
        """Issue all remaining stages."""
        while self.norms:
            self.advance()


def store_states(operands, geometry, final, positions):
    """Store the requested states; returns a tuple: [rows, C, S - 1] if `final`, then [N, positions, C, S - 1]."""
    found, size, rows, dtype = (), geometry.S - 1, geometry.rows, operands.x.dtype
    if final:
        final_hbm = nl.ndarray((len(rows), geometry.C, size), dtype=dtype, buffer=nl.shared_hbm)
        if len({row.count for row in rows}) == 1 and len(rows) == geometry.N:
            store_state(operands, geometry, rows[0], final_hbm, 0, geometry.N)
        else:
            for row in rows:
                store_state(operands, geometry, row, final_hbm, row.number)
        found += (final_hbm,)
    if positions is not None:
        states_hbm = nl.ndarray((geometry.N, len(positions), geometry.C, size), dtype=dtype, buffer=nl.shared_hbm)
        for image, number, row in states_after(rows, positions):
            store_state(operands, geometry, row, states_hbm, image * len(positions) + number)
        found += (states_hbm,)
    return found


def store_state(operands, geometry, row, states_hbm, place, images=1):
    """Store the last inputs of a row, or of the rows of `images` images, as states from `place` on of [..., C, S - 1];
    an empty row stores its own state."""
    C, size = geometry.C, geometry.S - 1
    steps, first = (geometry.x_n, geometry.x_c, geometry.x_t), row.image * geometry.x_n + row.first * geometry.x_t
    state = None if operands.state is None else states_of(operands.state, C, -size, 0, row.number * C)
    tensors = RowTensors(Rows(operands.x, steps, 0, row.count, first), state)
    final = states_of(states_hbm, C, 0, size, place * C)
    if row.count > 0:
        store_final_state(tensors, final, images, C)
    else:
        store_rows(tensors, final, 0, *share(C, nl.num_programs(), nl.program_id(0)))
