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
from ..._epilogue import activate, finish, function_of
from ..._tiles import BANK_COLUMNS, div_ceil
from .dma import store_y, tap_view


@dataclass
class Piece(nl.NKIObject):
    """Columns q0 .. q0+qn-1 of a tile, and the recipe for them."""

    tile: int
    q0: int
    qn: int
    recipe: tuple
    #: whether Vector copies PSUM out where no tap of its own does, instead of Scalar
    vector_reads: bool
    #: whether Vector adds the chains instead of GpSimd, which takes longer for it
    vector_joins: bool


@dataclass
class TileData(nl.NKIObject):
    """What a tile has in SBUF."""

    #: the RowTile
    tile: object
    x: object
    #: [rows, tensor taps, rows] stationaries, or None
    diagonals: object
    #: filters [rows, S] as stored, and in fp32 where Scalar multiplies
    w: object
    w32: object
    #: fp32 [rows, 1] or None
    bias: object
    #: [rows, qn] or None
    residual: object


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


def folds_bias(recipe, epilogue):
    """Whether a product on Scalar takes the bias with it."""
    return epilogue.bias and epilogue.activation == "" and epilogue.residual == "" and has_product(recipe)


def has_product(recipe):
    """Whether Scalar heads a chain."""
    return recipe[0] == 0 or recipe[2] == 1


def needs_finish(recipe, epilogue):
    """Whether the sums pass through the epilogue after the last tap."""
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


def fresh(data, piece, dtype):
    """A [rows, qn] tile in SBUF."""
    return nl.ndarray((data.tile.rows, piece.qn), dtype=dtype, buffer=nl.sbuf)


def destination(operands, data, piece, step, epilogue):
    """Where a step writes: y in its dtype if it is the last, else fp32."""
    last = step == last_step(piece.recipe, epilogue)
    return fresh(data, piece, operands.y.dtype if last else nl.float32)


def run_step(operands, geometry, extras, plan, data, piece, step, chains):
    """Issue one step of a piece. chains: (A, B) as they are, each a tile or None; returns what they are then."""
    recipe, epilogue = piece.recipe, extras.epilogue
    steps = vector_steps(recipe)
    a = chains[0]
    b = chains[1]
    if step == 0:
        a = head_a(operands, geometry, extras, plan, data, piece)
        if recipe[2] == 1:
            b = product(geometry, extras, plan, data, piece, first_b(recipe), fresh(data, piece, nl.float32))
    elif step <= steps:
        # the chain that is there first: Scalar's first product, or its only one before the sums of Tensor
        if recipe[0] == 0 and step <= recipe[1]:
            a = extend(operands, geometry, extras, plan, data, piece, tensor_end(recipe) + step - 1, a, step)
        if step <= recipe[3]:
            b = extend(operands, geometry, extras, plan, data, piece, first_b(recipe) + step, b, 0)
        if recipe[0] > 0 and step <= recipe[1]:
            a = extend(operands, geometry, extras, plan, data, piece, tensor_end(recipe) + step - 1, a, step)
    elif recipe[2] == 1 and step == steps + 1:
        total = destination(operands, data, piece, step, epilogue)
        on_vector = piece.vector_joins or (recipe[0] > 0 and recipe[1] == 0)
        engine = nisa.engine.vector if on_vector else nisa.engine.gpsimd
        nisa.tensor_tensor(dst=total, data1=a, data2=b, op=nl.add, engine=engine)
        a = total
    else:
        y_sbuf = fresh(data, piece, operands.y.dtype)
        complete(y_sbuf, a, data, piece, epilogue)
        a = y_sbuf
    if step == last_step(recipe, epilogue):
        store_y(operands, geometry, plan, data.tile, a, piece.q0, piece.qn)
    return a, b


def tensor_end(recipe):
    """First tap of chain A on Vector."""
    return recipe[0] if recipe[0] > 0 else 1


def first_b(recipe):
    """Tap of the product that heads chain B."""
    return tensor_end(recipe) + recipe[1]


def head_a(operands, geometry, extras, plan, data, piece):
    """The start of chain A: Tensor's taps in PSUM, or a product in SBUF."""
    recipe = piece.recipe
    rows = data.tile.rows
    if recipe[0] == 0:
        dst = destination(operands, data, piece, 0, extras.epilogue)
        return product(geometry, extras, plan, data, piece, 0, dst)
    acc_psum = nl.ndarray((rows, piece.qn), dtype=nl.float32, buffer=nl.psum)
    for begin in range(0, piece.qn, BANK_COLUMNS):
        count = min(BANK_COLUMNS, piece.qn - begin)
        for s in range(recipe[0]):
            nisa.nc_matmul(
                dst=acc_psum[0:rows, begin : begin + count],
                stationary=data.diagonals[0:rows, s, 0:rows],
                moving=tap_view(data.x, geometry, plan, data.tile, s, piece.q0 + begin, count),
                accumulate=s > 0,
            )
    return acc_psum


def product(geometry, extras, plan, data, piece, s, dst):
    """dst = x_s * w_s on Scalar, plus the bias where it is free: once, with chain B if there is one."""
    recipe = piece.recipe
    x = tap_view(data.x, geometry, plan, data.tile, s, piece.q0, piece.qn)
    w = data.w32[0 : data.tile.rows, s : s + 1]
    if folds_bias(recipe, extras.epilogue) and (recipe[2] == 0 or s > 0):
        nisa.tensor_scalar(
            dst=dst, data=x, op0=nl.multiply, operand0=w, op1=nl.add, operand1=data.bias, engine=nisa.engine.scalar
        )
    else:
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=w, engine=nisa.engine.scalar)
    return dst


def extend(operands, geometry, extras, plan, data, piece, s, chain, step):
    """chain + x_s * w_s on Vector. step: of chain A, which may end in y; 0 for chain B, which never does."""
    dst = fresh(data, piece, nl.float32)
    if step > 0 and piece.recipe[2] == 0:
        dst = destination(operands, data, piece, step, extras.epilogue)
    nisa.scalar_tensor_tensor(
        dst=dst,
        data=tap_view(data.x, geometry, plan, data.tile, s, piece.q0, piece.qn),
        op0=nl.multiply,
        operand0=data.w[0 : data.tile.rows, s : s + 1],
        op1=nl.add,
        operand1=chain,
    )
    return dst


def complete(y_sbuf, sums, data, piece, epilogue):
    """y = epilogue of the sums, on Scalar, except for sums with a residual and for Vector's share of plain copies."""
    rows = data.tile.rows
    residual = None
    if data.residual != None:
        residual = data.residual[0:rows, piece.q0 : piece.q0 + piece.qn]
    if epilogue.residual != "":
        finish(y_sbuf, sums, data.bias, residual, epilogue, nisa.engine.vector)
    elif epilogue.activation != "":
        activate(y_sbuf, function_of(epilogue), sums, data.bias, epilogue)
    elif epilogue.bias:
        nisa.tensor_scalar(dst=y_sbuf, data=sums, op0=nl.add, operand0=data.bias, engine=nisa.engine.scalar)
    else:
        engine = nisa.engine.vector if piece.vector_reads else nisa.engine.scalar
        nisa.tensor_copy(dst=y_sbuf, src=sums, engine=engine)
