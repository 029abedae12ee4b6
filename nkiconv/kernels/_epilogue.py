"""Where sums leave, in all kernels: bias, norm over channels, activation, residual, cast.

    y = act(norm(conv + bias + residual))    residual "pre_activation"
    y = act(norm(conv + bias)) + residual    residual "post_activation"
    y = act(conv + bias) * residual          residual "product", of depthwise rows whose factor is a chunk of x

All in fp32; the cast to y's dtype is the only other rounding. Bias, residual and activation belong to the evacuation of
PSUM, so an epilogue without a residual costs no pass of its own: Scalar's activation takes scale, bias and function in
one instruction, Vector adds a bias while it copies. A norm (`pixel_norms`) needs all output channels of a pixel,
and reads them twice: for mean and variance, by `bn_stats` where they are on one partition, else by the array, which
sums over the partitions, and then for what it returns.
"""

from dataclasses import dataclass, replace

from .. import pixel_norms, rules
from .._nki import nisa, nl
from ..schedules.options import Epilogue, Norm, adds_last, either_reads
from ..schedules.tiles import cut, require, size_of
from ._arguments import check_bias, refuse
from ._dma import copy
from ._engines import SCALAR_WORK, START_WORK, VECTOR_WORK, Ledger, book_vector, pick

#: Functions of nki.isa.activation.
FUNCTIONS = {
    "relu": nl.relu,
    "silu": nl.silu,
    "gelu": nl.gelu,
    "gelu_tanh": nl.gelu_apprx_tanh,
    "tanh": nl.tanh,
    "sigmoid": nl.sigmoid,
}


#: Numbers that a bn_stats writes.
STATS = 6


@dataclass
class NormOperands(nl.NKIObject):
    """Weight and bias of a norm, None where there is none, [K] in HBM or, on all partitions, [128, K] fp32 in SBUF;
    what is added to a mean square or a variance."""

    weight: object
    bias: object
    eps: float


def read_epilogue(activation, bias, residual, residual_position, y_itemsize, chunks="x", norm=None):
    """Check the arguments of an epilogue (bias and residual may be None) and return an Epilogue. chunks: of
    x's channels; a factor of y among them takes the residual's place."""
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


def read_norm(arguments, K):
    """Check (y_norm, y_norm_weight, y_norm_bias, y_norm_eps) and return (a Norm, its NormOperands), or (None, None)."""
    kind, weight, bias, eps = arguments
    refuse(pixel_norms.kind(kind), pixel_norms.eps(eps))
    for name, numbers in (("y_norm_weight", weight), ("y_norm_bias", bias)):
        check_bias(numbers, "K", K, name)
        refuse(pixel_norms.belongs(name, numbers != None, kind))
    if kind == None:
        return None, None
    return Norm(kind, weight != None, bias != None), NormOperands(weight, bias, eps)


def load_bias(bias_hbm, k0, kn, times=1):
    """Bias of output channels k0 .. k0+kn-1, [times * kn, 1] fp32 in SBUF, all of them `times` times; or None."""
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray((times * kn, 1), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(times):
        copy(bias_sbuf[index * kn : (index + 1) * kn, 0:1], bias_hbm.ap(pattern=[[1, kn], [1, 1]], offset=k0))
    return bias_sbuf


def evacuate(y_sbuf, acc, bias, residual, epilogue, by, strict=False, rest=None, adder=None, row=0):
    """Sums into y_sbuf, with everything that the epilogue asks for.

    Args:
        y_sbuf: SBUF, y's dtype. acc: y_sbuf's shape, fp32, in PSUM or SBUF.
        bias: fp32 [P, 1], which the first instruction adds, or a view of y_sbuf's shape, which takes one of its own; or
            None. residual: y_sbuf's shape, any dtype, or None.
        by: the engine of what Vector and Scalar can both do, or a Ledger, whichever has had less to do.
        strict: as of `options.either_reads`. rest: None, or the other part of the sums, fp32 in SBUF, with a residual
            that is added before an activation; by Scalar, acc is copied before. adder: the engine that adds what is all
            in SBUF; None: as the compiler chooses. row: first partition of all operands.
    """
    apart, last = bias != None and tuple(bias.shape[1:]) != (1,), adds_last(epilogue)
    fused = None if apart else bias
    # what is added, one after the other; None: the activation
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


def unrounded(y_sbuf):
    """What sums are evacuated into where statistics are taken of y before it is rounded: y_sbuf, if that is fp32."""
    if y_sbuf.dtype == nl.float32:
        return y_sbuf
    return nl.ndarray(y_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)


def round_out(y_sbuf, sums_sbuf, ledger):
    """Round sums that `unrounded` held to y_sbuf."""
    if sums_sbuf.dtype != y_sbuf.dtype:
        nisa.tensor_copy(dst=y_sbuf, src=sums_sbuf, engine=pick(ledger, size_of(y_sbuf.shape[1:]), False))


def multiply_out(dst, acc, bias, factor):
    """dst = (acc + bias) * factor, by Vector."""
    if bias == None:
        nisa.tensor_tensor(dst=dst, data1=acc, data2=factor, op=nl.multiply, engine=nisa.engine.vector)
    else:
        nisa.scalar_tensor_tensor(dst=dst, data=acc, op0=nl.add, operand0=bias, op1=nl.multiply, operand1=factor)


def scratch_of(y_sbuf, row):
    """fp32 of y_sbuf's shape on partitions from `row` on, as engines want the operands of one instruction."""
    whole = nl.ndarray((row + y_sbuf.shape[0], *y_sbuf.shape[1:]), dtype=nl.float32, buffer=nl.sbuf)
    return whole[row : row + y_sbuf.shape[0]]


def copy_out(dst, acc, bias, engine, maximum=False):
    """dst = acc + bias, if there is one, or the maximum of it and 0."""
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
    """The engine that evacuates sums, by a Ledger: Vector where a bias is added by itself, else Scalar or whichever of
    both has had less to do."""
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


def load_norm(norm, K):
    """NormOperands in SBUF of those in HBM; None of None."""
    if norm == None:
        return None
    found = []
    for hbm in (norm.weight, norm.bias):
        tile_sbuf = None
        if hbm != None:
            tile_sbuf = nl.ndarray((nl.tile_size.pmax, K), dtype=nl.float32, buffer=nl.sbuf)
            copy(tile_sbuf, hbm.ap(pattern=[[0, nl.tile_size.pmax], [1, K]], offset=0))
        found.append(tile_sbuf)
    return NormOperands(found[0], found[1], norm.eps)


def before_norm(epilogue):
    """The part of an Epilogue that comes before its norm."""
    return replace(epilogue, activation="", residual="" if adds_last(epilogue) else epilogue.residual, norm=None)


def evacuate_normalized(y_sbuf, acc, bias, residual, epilogue, norm, ledger):
    """`evacuate` of all output channels of n pixels a partition, [P, n, K], with a norm.

    Args:
        y_sbuf, acc, residual, ledger: as there; bias: a view of acc's shape, or None. norm: NormOperands in SBUF.
    """
    last, sums, before = adds_last(epilogue), acc, before_norm(epilogue)
    if bias != None or before.residual != "":
        sums = scratch_of(y_sbuf, 0)
        evacuate(sums, acc, bias, None if last else residual, before, ledger)
    plain = epilogue.activation == "" and not last
    into = y_sbuf if plain else scratch_of(y_sbuf, 0)
    normalize(into, sums, epilogue.norm, norm, ledger)
    if not plain:
        after = replace(epilogue, residual=epilogue.residual if last else "", norm=None)
        evacuate(y_sbuf, into, None, residual if last else None, after, ledger)


def normalize(dst, sums, kind, norm, ledger):
    """dst = norm of [P, n, K], sums in PSUM or SBUF, by Vector. kind: a Norm."""
    positions, n, K = sums.shape
    moments_sbuf = moments_of(sums, ledger)
    mean, spread = moments_sbuf[0:positions, 0:n, 0], moments_sbuf[0:positions, 0:n, 1]
    if kind.kind == "rms":
        # Scalar, which could sum squares, would load another table of functions for each activation
        nisa.tensor_tensor(dst=mean, data1=mean, data2=mean, op=nl.multiply, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=spread, data1=spread, data2=mean, op=nl.add, engine=nisa.engine.vector)
    rstd_sbuf = nl.ndarray((positions, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rstd_sbuf, data=spread, op0=nl.add, operand0=norm.eps, op1=nl.power, operand1=-0.5)
    for pixel in range(n):
        rstd = (nl.multiply, rstd_sbuf[0:positions, pixel : pixel + 1])
        steps = [rstd] if kind.kind == "rms" else [(nl.subtract, moments_sbuf[0:positions, pixel, 0:1])]
        if norm.weight != None:
            steps.append((nl.multiply, norm.weight[0:positions, 0:K]))
        if kind.kind == "layer":
            steps.append(rstd)
        if norm.bias != None:
            steps.append((nl.add, norm.bias[0:positions, 0:K]))
        take_steps(dst[0:positions, pixel, 0:K], sums[0:positions, pixel, 0:K], steps)
        book_vector(ledger, K * (len(steps) + 1) // 2)


def take_steps(dst, data, steps):
    """dst = data with steps (op, [P, 1] or a tensor of dst's shape) one after the other, two of them an instruction."""
    at = 0
    while at < len(steps):
        (op, operand), more = steps[at], steps[at + 1 : at + 2]
        column = operand.shape[1] == 1
        taken = 2 if column and len(more) == 1 else 1
        into = dst if at + taken == len(steps) else scratch_of(dst, 0)
        if not column:
            nisa.tensor_tensor(dst=into, data1=data, data2=operand, op=op, engine=nisa.engine.vector)
        elif taken == 1:
            nisa.tensor_scalar(dst=into, data=data, op0=op, operand0=operand)
        elif more[0][1].shape[1] == 1:
            nisa.tensor_scalar(dst=into, data=data, op0=op, operand0=operand, op1=more[0][0], operand1=more[0][1])
        else:
            nisa.scalar_tensor_tensor(
                dst=into, data=data, op0=op, operand0=operand, op1=more[0][0], operand1=more[0][1]
            )
        data, at = into, at + taken


def moments_of(sums, ledger):
    """Mean and variance over the channels of each pixel, [P, n, 2] fp32, of sums [P, n, K]; by Vector."""
    positions, n, K = sums.shape
    pieces = cut(K, nl.tile_size.bn_stats_fmax)
    moments_sbuf = nl.ndarray((positions, n, 2), dtype=nl.float32, buffer=nl.sbuf)
    stats_sbuf = nl.ndarray((positions, n, len(pieces), STATS), dtype=nl.float32, buffer=nl.sbuf)
    # all of one kind, as an engine waits for what it has just written
    for pixel in range(n):
        for index, (k, count) in enumerate(pieces):
            own_sbuf = stats_sbuf[0:positions, pixel, index, 0:STATS]
            nisa.bn_stats(dst=own_sbuf, data=sums[0:positions, pixel, k : k + count])
    for pixel in range(n):
        every_sbuf = stats_sbuf[0:positions, pixel, 0 : len(pieces), 0:STATS]
        nisa.bn_aggr(dst=moments_sbuf[0:positions, pixel, 0:2], data=every_sbuf)
    ledger.vector = ledger.vector + n * (2 * START_WORK + K * VECTOR_WORK)
    return moments_sbuf


def total_of(sums, squared):
    """The sum of [P, ...] fp32 in SBUF, or of their squares, a part of a pixel's channels each, the one of most
    partitions first, fp32 of its shape: by Vector, as Scalar has `activation`s to load the table of functions for."""
    if len(sums) == 1 and not squared:
        return sums[0]
    total_sbuf = nl.ndarray(sums[0].shape, dtype=nl.float32, buffer=nl.sbuf)
    for index, one in enumerate(sums):
        own = total_sbuf if index == 0 else one
        if squared:
            own = total_sbuf if index == 0 else nl.ndarray(one.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=own, data1=one, data2=one, op=nl.multiply, engine=nisa.engine.vector)
        elif index == 0:
            nisa.tensor_copy(dst=own, src=one, engine=nisa.engine.vector)
        if index > 0:
            total = total_sbuf[0 : one.shape[0]]
            nisa.tensor_tensor(dst=total, data1=total, data2=own, op=nl.add, engine=nisa.engine.vector)
    return total_sbuf


def rstd_of(mean_squares, eps):
    """(mean square + eps)^-0.5, fp32 in SBUF."""
    found_sbuf = nl.ndarray(mean_squares.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=found_sbuf, data=mean_squares, op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
    return found_sbuf


def scale_pixels(y_sbuf, sums, rstd, weight, bias, residual, epilogue, ledger):
    """y = act(sums * rstd * weight + bias) (+ residual) of channels on partitions, all but weight and bias of y's
    shape; these are fp32 [P, 1], or None."""
    scaled_sbuf = scratch_of(y_sbuf, 0)
    if weight == None:
        nisa.tensor_tensor(dst=scaled_sbuf, data1=sums, data2=rstd, op=nl.multiply, engine=nisa.engine.vector)
    else:
        nisa.scalar_tensor_tensor(
            dst=scaled_sbuf, data=sums, op0=nl.multiply, operand0=weight, op1=nl.multiply, operand1=rstd
        )
    book_vector(ledger, size_of(y_sbuf.shape[1:]))
    last = adds_last(epilogue)
    after = replace(epilogue, residual=epilogue.residual if last else "", norm=None)
    evacuate(y_sbuf, scaled_sbuf, bias, residual if last else None, after, ledger)
