"""Sums of taps in chains: on Tensor in PSUM, extended on Vector, with products by Scalar and sums by GpSimd.

A recipe (tensor, vector_a, head, vector_b) shares out the S taps of a piece of columns, in this order:

    A = taps on Tensor, one diagonal matmul each, accumulated in PSUM (a product on Scalar if there is none on Tensor),
        then vector_a taps by Vector: A = x_s * w_s + A; the first of them is PSUM's read-out
    B = with head = 1: a product on Scalar, then vector_b taps by Vector, added to A by GpSimd, for the last
        piece by Vector

All in fp32 until y. The steps of a piece fall into phases; those of neighbouring pieces are issued in turn, so that an
engine need not wait for its own last result.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, div_ceil
from ..._epilogue import finish
from ..._warm import accumulator
from .dma import store_y, tap_view
from .tiles import place_of_tap


@dataclass
class MixedPiece(nl.NKIObject):
    """Columns q0 .. q0+qn-1 of a tile, and the recipe for them."""

    tile: int
    q0: int
    qn: int
    recipe: tuple
    #: (first step, end) of each phase; the step that writes y
    phases: tuple
    last: int
    #: whether Vector copies PSUM out where no tap of its own does, instead of Scalar
    vector_reads: bool
    #: whether Vector adds the chains instead of GpSimd, which takes longer for it
    vector_joins: bool


def tap_count(recipe):
    """Taps of a recipe."""
    products = recipe[2] + (1 if recipe[0] == 0 else 0)
    return recipe[0] + recipe[1] + recipe[3] + products


def vector_steps(recipe):
    """Steps on Vector of the longer chain."""
    return max(recipe[1], recipe[3])


def phases_of(recipe, epilogue):
    """(first step, end) of each phase of a piece; step 0 is the heads, then Vector's taps, the sum, the epilogue.

    A single chain has two phases on Vector, so that steps of two pieces alternate; two chains alternate by themselves.
    """
    steps = vector_steps(recipe)
    phases = ((0, 1),)
    if steps > 1 and recipe[2] == 0:
        half = div_ceil(steps, 2)
        phases = phases + ((1, 1 + half), (1 + half, 1 + steps))
    elif steps > 0:
        phases = phases + ((1, 1 + steps),)
    for step in range(1 + steps, last_step(recipe, epilogue) + 1):
        phases = phases + ((step, step + 1),)
    return phases


def has_product(recipe):
    """Whether Scalar heads a chain."""
    return recipe[0] == 0 or recipe[2] == 1


def needs_finish(recipe, epilogue):
    """Whether the sums pass through the epilogue after the last tap; a product on Scalar takes a mere bias with it."""
    if epilogue.activation != "" or epilogue.residual != "":
        return True
    return epilogue.bias and not has_product(recipe)


def last_step(recipe, epilogue):
    """The step that writes y."""
    finishes = needs_finish(recipe, epilogue) or reads_out(recipe)
    return vector_steps(recipe) + recipe[2] + (1 if finishes else 0)


def reads_out(recipe):
    """Whether PSUM has to be copied out because no tap on Vector reads it."""
    return recipe[0] > 0 and recipe[1] == 0 and recipe[2] == 0


def result(run, piece, step):
    """[rows, qn] in SBUF for what a step computes: y in its dtype if it is the last, else fp32."""
    dtype = run.operands.y.dtype if step == piece.last else nl.float32
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
    tile, taps = run.tiles[piece.tile], piece.recipe[0]
    acc_psum, started = accumulator(run.warm, (tile.rows, piece.qn))
    for begin in range(0, piece.qn, BANK_COLUMNS):
        count = min(BANK_COLUMNS, piece.qn - begin)
        for s in range(taps):
            place = place_of_tap(run.geometry, s, run.plan.taps)
            nisa.nc_matmul(
                dst=acc_psum[0 : tile.rows, begin : begin + count],
                stationary=tile.diagonals[0 : tile.rows, place, 0 : tile.rows],
                moving=tap_view(run, tile, s, piece.q0 + begin, count),
                accumulate=started or s > 0,
            )
    return acc_psum


def product(run, piece, s):
    """x_s * w_s on Scalar, plus the bias where it is free: once, with chain B if there is one."""
    tile, recipe, epilogue = run.tiles[piece.tile], piece.recipe, run.extras.epilogue
    dst = result(run, piece, 0)
    place = place_of_tap(run.geometry, s, run.geometry.S)
    x, w = tap_view(run, tile, s, piece.q0, piece.qn), tile.w[0 : tile.rows, place : place + 1]
    if epilogue.bias and not needs_finish(recipe, epilogue) and (recipe[2] == 0 or s > 0):
        nisa.tensor_scalar(
            dst=dst, data=x, op0=nl.multiply, operand0=w, op1=nl.add, operand1=tile.bias, engine=nisa.engine.scalar
        )
    else:
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=w, engine=nisa.engine.scalar)
    return dst


def extend(run, piece, s, chain, step):
    """chain + x_s * w_s on Vector."""
    tile, dst = run.tiles[piece.tile], result(run, piece, step)
    place = place_of_tap(run.geometry, s, run.geometry.S)
    nisa.scalar_tensor_tensor(
        dst=dst,
        data=tap_view(run, tile, s, piece.q0, piece.qn),
        op0=nl.multiply,
        operand0=tile.w[0 : tile.rows, place : place + 1],
        op1=nl.add,
        operand1=chain,
    )
    return dst


def complete(run, piece, step, sums):
    """y of the sums, on Scalar, except for sums with a residual and for Vector's share of plain copies."""
    tile, epilogue = run.tiles[piece.tile], run.extras.epilogue
    y_sbuf, residual = result(run, piece, step), None
    if tile.residual != None:
        residual = tile.residual[0 : tile.rows, piece.q0 : piece.q0 + piece.qn]
    if epilogue.bias and epilogue.activation == "" and epilogue.residual == "":
        nisa.tensor_scalar(dst=y_sbuf, data=sums, op0=nl.add, operand0=tile.bias, engine=nisa.engine.scalar)
    else:
        on_vector = epilogue.residual != "" or piece.vector_reads
        finish(y_sbuf, sums, tile.bias, residual, epilogue, nisa.engine.vector if on_vector else nisa.engine.scalar)
    return y_sbuf
