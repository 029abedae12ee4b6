"""Sums of taps in chains: on Tensor in PSUM, extended on Vector, with products by Scalar and sums by GpSimd.

`schedules.recipes` has the recipes and their steps. All sums are fp32 until y.
"""

from ...._nki import nisa, nl
from ....schedules.depthwise import place_of_tap
from ....schedules.recipes import needs_finish, vector_steps
from ....schedules.tiles import BANK_COLUMNS
from ..._epilogue import evacuate
from ..._warm import accumulator
from .dma import Store, store_y, tap_view


def result(run, piece, step):
    """[rows, qn] in SBUF for the result of a step: fp32, or of the last step a part of y's columns that are stored
    together."""
    rows, (q0, qn), stores = run.tiles[piece.tile].rows, piece.stored, run.held[piece.tile].stores
    if step < piece.last:
        return nl.ndarray((rows, piece.qn), dtype=nl.float32, buffer=nl.sbuf)
    if q0 not in stores:
        stores[q0] = Store(nl.ndarray((rows, qn), dtype=run.tensors.y.dtype, buffer=nl.sbuf), qn)
    return stores[q0].y_sbuf[0:rows, piece.q0 - q0 : piece.q0 - q0 + piece.qn]


def run_step(run, place, step):
    """Issue one step of a piece, which extends its chains [A, B], each a tile or None; the last step stores y."""
    piece, chains = run.pieces[place], run.chains[place]
    on_tensor, in_a, head, in_b = piece.recipe
    # the tap before chain A's first on Vector; the tap of the product that heads chain B
    starts = max(1, on_tensor) - 1, max(1, on_tensor) + in_a
    if step == 0:
        chains[0] = sum_on_tensor(run, piece) if on_tensor > 0 else product(run, piece, 0)
        chains[1] = product(run, piece, starts[1]) if head else None
    elif step <= vector_steps(piece.recipe):
        # first the chain that is ready first: that of Scalar's first product, before the sums of Tensor
        for one in (1, 0) if on_tensor > 0 else (0, 1):
            if step <= (in_a, in_b)[one]:
                chains[one] = extend(run, piece, starts[one] + step, chains[one], step)
    elif head and step == vector_steps(piece.recipe) + 1:
        total = result(run, piece, step)
        # GpSimd cannot read PSUM, and takes longer: after the last sums no other work waits for Vector
        on_vector = (on_tensor > 0 and in_a == 0) or place == len(run.pieces) - 1
        engine = nisa.engine.vector if on_vector else nisa.engine.gpsimd
        nisa.tensor_tensor(dst=total, data1=chains[0], data2=chains[1], op=nl.add, engine=engine)
        chains[0] = total
    else:
        chains[0] = complete(run, piece, step, chains[0])
    if step == piece.last:
        store_y(run, piece)


def sum_on_tensor(run, piece):
    """Tensor's taps of a piece: sums in PSUM, one bank of columns after the other."""
    tile, held, taps = run.tiles[piece.tile], run.held[piece.tile], piece.recipe[0]
    acc_psum, started = accumulator(run.warm, (tile.rows, piece.qn))
    for begin in range(0, piece.qn, BANK_COLUMNS):
        count = min(BANK_COLUMNS, piece.qn - begin)
        for s in range(taps):
            place = place_of_tap(run.geometry, s, run.plan.taps)
            nisa.nc_matmul(
                dst=acc_psum[0 : tile.rows, begin : begin + count],
                stationary=held.diagonals[0 : tile.rows, place, 0 : tile.rows],
                moving=tap_view(run, piece.tile, s, piece.q0 + begin, count),
                accumulate=started or s > 0,
            )
    return acc_psum


def product(run, piece, s):
    """x_s * w_s on Scalar, plus the bias if no epilogue adds it: once, in chain B if there is one."""
    held, recipe, epilogue = run.held[piece.tile], piece.recipe, run.options.epilogue
    dst = result(run, piece, 0)
    place = place_of_tap(run.geometry, s, run.geometry.S)
    x, w = tap_view(run, piece.tile, s, piece.q0, piece.qn), held.w[0 : dst.shape[0], place : place + 1]
    added = {}
    if epilogue.bias and not needs_finish(recipe, epilogue) and (recipe[2] == 0 or s > 0):
        added = {"op1": nl.add, "operand1": held.bias}
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=w, engine=nisa.engine.scalar, **added)
    return dst


def extend(run, piece, s, chain, step):
    """chain + x_s * w_s on Vector."""
    held, dst = run.held[piece.tile], result(run, piece, step)
    place = place_of_tap(run.geometry, s, run.geometry.S)
    nisa.scalar_tensor_tensor(
        dst=dst,
        data=tap_view(run, piece.tile, s, piece.q0, piece.qn),
        op0=nl.multiply,
        operand0=held.w[0 : dst.shape[0], place : place + 1],
        op1=nl.add,
        operand1=chain,
    )
    return dst


def complete(run, piece, step, sums):
    """y from the sums, on Scalar, or on Vector for sums with a residual and for its share of plain copies."""
    held, epilogue = run.held[piece.tile], run.options.epilogue
    y_sbuf, residual = result(run, piece, step), None
    if held.residual is not None:
        residual = held.residual[0 : y_sbuf.shape[0], piece.q0 : piece.q0 + piece.qn]
    if epilogue.bias and epilogue.activation == "" and epilogue.residual == "":
        nisa.tensor_scalar(dst=y_sbuf, data=sums, op0=nl.add, operand0=held.bias, engine=nisa.engine.scalar)
    else:
        on_vector = epilogue.residual != "" or piece.vector_reads
        evacuate(y_sbuf, sums, held.bias, residual, epilogue, nisa.engine.vector if on_vector else nisa.engine.scalar)
    return y_sbuf
