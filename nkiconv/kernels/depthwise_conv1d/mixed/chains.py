"""Sums of taps in chains: on Tensor in PSUM, extended on Vector, with products by Scalar and sums by GpSimd.

`schedules.recipes` has the recipes and their steps. All sums are fp32 until y.
"""

from ...._nki import nisa, nl
from ....schedules.depthwise import place_of_tap
from ....schedules.recipes import needs_finish, vector_steps
from ....schedules.tiles import BANK_COLUMNS
from ..._epilogue import evacuate
from ..._warm import accumulator
from .dma import store_y, tap_view


def result(run, piece, step):
    """[rows, qn] in SBUF for what a step computes: y in its dtype if it is the last, else fp32."""
    dtype = nl.float32 if step < piece.last else run.operands.y.dtype
    return nl.ndarray((run.tiles[piece.tile].rows, piece.qn), dtype=dtype, buffer=nl.sbuf)


def run_step(run, place, step):
    """Issue one step of a piece, which makes more of its chains (A, B), each a tile or None; the last stores y."""
    piece = run.pieces[place]
    recipe, steps = piece.recipe, vector_steps(piece.recipe)
    a, b = run.chains[place]
    # first tap of chain A on Vector, tap of the product that heads chain B
    first_a = max(1, recipe[0])
    first_b = first_a + recipe[1]
    if step == 0:
        a = sum_on_tensor(run, piece) if recipe[0] > 0 else product(run, piece, 0)
        if recipe[2] == 1:
            b = product(run, piece, first_b)
    elif step <= steps:
        # the chain that is there first: Scalar's first product, or its only one before the sums of Tensor
        if recipe[0] == 0 and step <= recipe[1]:
            a = extend(run, piece, first_a + step - 1, a, step)
        if step <= recipe[3]:
            b = extend(run, piece, first_b + step, b, step)
        if recipe[0] > 0 and step <= recipe[1]:
            a = extend(run, piece, first_a + step - 1, a, step)
    elif recipe[2] == 1 and step == steps + 1:
        total = result(run, piece, step)
        on_vector = piece.vector_joins or (recipe[0] > 0 and recipe[1] == 0)
        engine = nisa.engine.vector if on_vector else nisa.engine.gpsimd
        nisa.tensor_tensor(dst=total, data1=a, data2=b, op=nl.add, engine=engine)
        a = total
    else:
        a = complete(run, piece, step, a)
    run.chains[place] = (a, b)
    if step == piece.last:
        store_y(run, piece, a)


def sum_on_tensor(run, piece):
    """Tensor's taps of a piece: sums in PSUM, a bank of columns after the other."""
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
    """x_s * w_s on Scalar, plus the bias where it is free: once, with chain B if there is one."""
    held, recipe, epilogue = run.held[piece.tile], piece.recipe, run.options.epilogue
    dst = result(run, piece, 0)
    place = place_of_tap(run.geometry, s, run.geometry.S)
    x, w = tap_view(run, piece.tile, s, piece.q0, piece.qn), held.w[0 : dst.shape[0], place : place + 1]
    if epilogue.bias and not needs_finish(recipe, epilogue) and (recipe[2] == 0 or s > 0):
        nisa.tensor_scalar(
            dst=dst, data=x, op0=nl.multiply, operand0=w, op1=nl.add, operand1=held.bias, engine=nisa.engine.scalar
        )
    else:
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=w, engine=nisa.engine.scalar)
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
    """y of the sums, on Scalar, except for sums with a residual and for Vector's share of plain copies."""
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
