"""The evacuation of sums in all kernels: bias, norm over channels, activation, residual, cast.

    y = act(norm(conv + bias + residual))    residual "pre_activation"
    y = act(norm(conv + bias)) + residual    residual "post_activation"
    y = act(conv + bias) * residual          residual "product", of depthwise rows with a chunk of x as factor

All in fp32; the cast to y's dtype is the only other rounding. Bias, residual and activation are part of the evacuation
of PSUM, so an epilogue without a residual costs no extra pass: Scalar's activation takes scale, bias and function in
one instruction, Vector adds a bias while it copies. The norm is in `_pixel_norms`.
"""

from .. import rules
from .._nki import nisa, nl
from ..schedules.options import Epilogue, adds_last, either_reads
from ..schedules.tiles import require, size_of
from ._arguments import refuse
from ._dma import copy, load
from ._engines import SCALAR_WORK, VECTOR_WORK, Ledger, pick

#: Functions of nki.isa.activation.
FUNCTIONS = {
    "relu": nl.relu,
    "silu": nl.silu,
    "gelu": nl.gelu,
    "gelu_tanh": nl.gelu_apprx_tanh,
    "tanh": nl.tanh,
    "sigmoid": nl.sigmoid,
}

#: Parts of bf16 that hold all bits of a bias in fp32.
BIAS_PARTS = 3


def read_epilogue(activation, bias, residual, residual_position, y_itemsize, chunks="x", norm=None):
    """Check the arguments of an epilogue (bias and residual may be None) and return an Epilogue. chunks: letters of the
    chunks of x's channels; a factor of y among them takes the residual's place."""
    factor = "C" in chunks
    refuse(rules.activation(activation), rules.residual_position(residual_position))
    require(not factor or residual == None, "residual: y has a factor C in its place; add it to the result")
    position = "" if residual == None else residual_position
    return Epilogue(
        activation="" if activation == None else activation,
        bias=bias != None,
        residual="product" if factor else position,
        y_itemsize=y_itemsize,
        norm=norm,
        by_sigmoid="G" in chunks and activation == "silu",
    )


def load_bias(bias_hbm, k0, kn, times=1):
    """The bias of output channels k0 .. k0+kn-1, [times * kn, 1] fp32 in SBUF, `times` copies in sequence; or None."""
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray((times * kn, 1), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(times):
        copy(bias_sbuf[index * kn : (index + 1) * kn], bias_hbm.ap(pattern=[[1, kn], [1, 1]], offset=k0))
    return bias_sbuf


def load_bias_rows(bias_hbm, k0, kn, times=1):
    """As `load_bias`, on all partitions, [128, times * kn]; or None."""
    if bias_hbm == None:
        return None
    P_MAX = nl.tile_size.pmax
    bias_sbuf = nl.ndarray((P_MAX, times * kn), dtype=nl.float32, buffer=nl.sbuf)
    load(bias_sbuf, bias_hbm, [[0, P_MAX], [0, times], [1, kn]], k0)
    return bias_sbuf


def bias_in_parts(left_sbuf):
    """A bias fp32 in SBUF as three rows of bf16 that add up to it, [3, channels], for matmuls with ones; None for
    None."""
    if left_sbuf is None:
        return None
    parts_sbuf = nl.ndarray((BIAS_PARTS, size_of(left_sbuf.shape)), dtype=nl.bfloat16, buffer=nl.sbuf)
    for part in range(BIAS_PARTS):
        part_sbuf = nl.ndarray(left_sbuf.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=part_sbuf, src=left_sbuf, engine=nisa.engine.gpsimd)
        copy(parts_sbuf[part : part + 1], part_sbuf)
        if part + 1 < BIAS_PARTS:
            rest_sbuf = nl.ndarray(left_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(
                dst=rest_sbuf, data1=left_sbuf, data2=part_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd
            )
            left_sbuf = rest_sbuf
    return parts_sbuf


def evacuate(y_sbuf, acc, bias, residual, epilogue, by, strict=False, rest=None, adder=None, row=0):
    """Evacuate sums into y_sbuf with the whole epilogue.

    Args:
        y_sbuf: SBUF, y's dtype. acc: y_sbuf's shape, fp32, in PSUM or SBUF.
        bias: fp32 [P, 1], which the first instruction adds, or a view of y_sbuf's shape, which takes an instruction; or
            None. residual: y_sbuf's shape, any dtype, or None.
        by: the engine of instructions that Vector and Scalar can both run, or a Ledger, which chooses the less loaded.
        strict: as in `options.either_reads`. rest: None, or the other part of the sums, fp32 in SBUF, which includes a
            residual added before the activation; Scalar copies acc first. adder: the engine that adds operands that are
            all in SBUF; None: the compiler's choice. row: first partition of all operands.
    """
    apart, last = bias != None and tuple(bias.shape[1:]) != (1,), adds_last(epilogue)
    fused = None if apart else bias
    # the addends in order; None: the activation
    steps = [bias] if apart else []
    if rest != None:
        steps.append(rest)
    elif epilogue.residual != "" and not last:
        steps.append(residual)
    if epilogue.activation != "":
        steps.append(None)
    if last:
        steps.append(residual)
    engine, maximum = by, False
    if isinstance(by, Ledger):
        engine = pick_reader(by, acc, epilogue, apart, strict)
        maximum = engine == nisa.engine.vector and steps == [None]
    sums, last_op = acc, nl.multiply if epilogue.residual == "product" else nl.add
    if rest != None and engine == nisa.engine.scalar:
        sums = scratch_of(y_sbuf, row)
        copy_out(sums, acc, fused, engine)
        fused = None
    if len(steps) == 0 or maximum:
        copy_out(y_sbuf, acc, fused, engine, maximum)
        return
    for index, step in enumerate(steps):
        into = scratch_of(y_sbuf, row) if index + 1 < len(steps) else y_sbuf
        op = last_op if index + 1 == len(steps) else nl.add
        if step == None and epilogue.by_sigmoid:
            sigmoid_sbuf = scratch_of(y_sbuf, row)
            nisa.activation(dst=sigmoid_sbuf, op=nl.sigmoid, data=sums, bias=fused)
            multiply_out(into, sums, fused, sigmoid_sbuf)
        elif step == None:
            nisa.activation(dst=into, op=FUNCTIONS[epilogue.activation], data=sums, bias=fused)
        elif fused != None:
            nisa.scalar_tensor_tensor(dst=into, data=sums, op0=nl.add, operand0=fused, op1=op, operand1=step)
        else:
            in_sbuf = nisa.engine.unknown if adder == None or sums is acc else adder
            nisa.tensor_tensor(dst=into, data1=sums, data2=step, op=op, engine=in_sbuf)
        sums, fused = into, None


def multiply_out(dst, acc, bias, factor):
    """dst = (acc + bias) * factor, by Vector."""
    if bias == None:
        nisa.tensor_tensor(dst=dst, data1=acc, data2=factor, op=nl.multiply, engine=nisa.engine.vector)
    else:
        nisa.scalar_tensor_tensor(dst=dst, data=acc, op0=nl.add, operand0=bias, op1=nl.multiply, operand1=factor)


def scratch_of(y_sbuf, row):
    """An fp32 tile of y_sbuf's shape on partitions from `row` on, as engines need all operands of an instruction."""
    whole = nl.ndarray((row + y_sbuf.shape[0], *y_sbuf.shape[1:]), dtype=nl.float32, buffer=nl.sbuf)
    return whole[row : row + y_sbuf.shape[0]]


def copy_out(dst, acc, bias, engine, maximum=False):
    """dst = acc, plus bias unless it is None; maximum: the maximum of that and 0."""
    if maximum and bias == None:
        nisa.tensor_scalar(dst=dst, data=acc, op0=nl.maximum, operand0=0.0, engine=engine)
    elif maximum:
        nisa.tensor_scalar(dst=dst, data=acc, op0=nl.add, operand0=bias, op1=nl.maximum, operand1=0.0, engine=engine)
    elif bias == None:
        nisa.tensor_copy(dst=dst, src=acc, engine=engine)
    elif engine == nisa.engine.scalar:
        nisa.activation(dst=dst, op=nl.copy, data=acc, bias=bias)
    else:
        nisa.tensor_scalar(dst=dst, data=acc, op0=nl.add, operand0=bias)


def pick_reader(ledger, acc, epilogue, apart, strict):
    """The engine that evacuates sums, by a Ledger: Vector if a bias takes its own instruction; otherwise the less
    loaded of Vector and Scalar if both can, else Scalar."""
    elements = size_of(acc.shape[1:])
    if apart:
        ledger.vector = ledger.vector + elements * VECTOR_WORK
        return nisa.engine.vector
    if either_reads(epilogue, strict):
        return pick(ledger, elements, False)
    ledger.scalar = ledger.scalar + elements * SCALAR_WORK
    if epilogue.by_sigmoid:
        ledger.vector = ledger.vector + elements * VECTOR_WORK
    return nisa.engine.scalar
