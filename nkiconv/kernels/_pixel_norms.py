"""Norms over the output channels of a pixel, between sums and activation; `nkiconv.pixel_norms` lists them.

A norm needs all output channels of a pixel, and reads them twice: for mean and variance, and for the result. `bn_stats`
computes these moments if the channels are on one partition; otherwise the Tensor Engine sums over the partitions.
"""

from dataclasses import dataclass, replace

from .. import pixel_norms
from .._nki import nisa, nl
from ..schedules.options import Norm, adds_last
from ..schedules.tiles import cut, size_of
from ._arguments import check_bias, refuse
from ._engines import START_WORK, VECTOR_WORK, book_vector, copy_balanced, scaled
from ._epilogue import evacuate, load_bias_rows, scratch_of

#: Elements that a bn_stats writes.
STATS = 6


@dataclass
class NormOperands(nl.NKIObject):
    """Weight and bias of a norm, or None: [K] in HBM, or on all partitions of SBUF, [128, K] fp32; eps is added to a
    mean square or a variance."""

    weight: object
    bias: object
    eps: float


def read_norm(arguments, K):
    """Check (y_norm, y_norm_weight, y_norm_bias, y_norm_eps, return_before_norm) and return (a Norm, its NormOperands),
    or (None, None)."""
    *numbers, kept = arguments
    operands, kind = read_numbers(numbers, "y_norm", "K", K), arguments[0]
    refuse(pixel_norms.belongs("return_before_norm", kept, kind))
    if operands is None:
        return None, None
    return Norm(kind, operands.weight != None, operands.bias != None, kept), operands


def read_numbers(arguments, name, letter, count):
    """Check (kind, weight, bias, eps) of a norm over `count` channels and return NormOperands, or None. name: of the
    argument that says the kind, x_norm or y_norm."""
    kind, weight, bias, eps = arguments
    refuse(pixel_norms.kind(kind, name), pixel_norms.eps(eps, name))
    for own, numbers in ((f"{name}_weight", weight), (f"{name}_bias", bias)):
        check_bias(numbers, letter, count, own)
        refuse(pixel_norms.belongs(own, numbers != None, kind))
    return None if kind == None else NormOperands(weight, bias, eps)


def load_norm(norm, K):
    """Load NormOperands from HBM to SBUF; None for None."""
    if norm == None:
        return None
    return NormOperands(*(load_bias_rows(hbm, 0, K) for hbm in (norm.weight, norm.bias)), norm.eps)


def before_norm(epilogue):
    """The part of an Epilogue before its norm."""
    return replace(epilogue, activation="", residual="" if adds_last(epilogue) else epilogue.residual, norm=None)


def evacuate_after(y_sbuf, sums, bias, residual, epilogue, ledger):
    """`evacuate` with the part of an Epilogue after its norm."""
    last = adds_last(epilogue)
    after = replace(epilogue, residual=epilogue.residual if last else "", norm=None)
    evacuate(y_sbuf, sums, bias, residual if last else None, after, ledger)


def evacuate_normalized(y_sbuf, acc, bias, residual, epilogue, norm, ledger, kept_sbuf):
    """`evacuate` of all output channels of n pixels a partition, [P, n, K], with a norm.

    Args:
        y_sbuf, acc, residual, ledger: as there; bias: a view of acc's shape, or None. norm: NormOperands in SBUF.
        kept_sbuf: None, or a tile of y_sbuf's shape and dtype for the norm's input.
    """
    last, sums, before = adds_last(epilogue), acc, before_norm(epilogue)
    if bias != None or before.residual != "":
        sums = scratch_of(y_sbuf, 0)
        evacuate(sums, acc, bias, None if last else residual, before, ledger)
    if kept_sbuf != None:
        copy_balanced(kept_sbuf, sums, ledger)
    plain = epilogue.activation == "" and not last
    into = y_sbuf if plain else scratch_of(y_sbuf, 0)
    normalize(into, sums, epilogue.norm, norm, ledger)
    if not plain:
        evacuate_after(y_sbuf, into, None, residual, epilogue, ledger)


def normalize(dst, sums, kind, norm, ledger):
    """dst = norm of [P, n, K], sums in PSUM or SBUF, by Vector. kind: a Norm."""
    positions, n, K = sums.shape
    moments_sbuf = moments_of(sums, ledger)
    mean, spread = moments_sbuf[0:positions, 0:n, 0], moments_sbuf[0:positions, 0:n, 1]
    if kind.kind == "rms":
        # Scalar could sum squares, but would load another table of functions for each activation
        nisa.tensor_tensor(dst=mean, data1=mean, data2=mean, op=nl.multiply, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=spread, data1=spread, data2=mean, op=nl.add, engine=nisa.engine.vector)
    rstd_sbuf = rstd_of(spread, norm.eps)
    for pixel in range(n):
        rstd = (nl.multiply, rstd_sbuf[0:positions, pixel : pixel + 1])
        steps = [rstd] if kind.kind == "rms" else [(nl.subtract, moments_sbuf[0:positions, pixel, 0:1])]
        if norm.weight != None:
            steps.append((nl.multiply, norm.weight[0:positions, 0:K]))
        if kind.kind == "layer":
            steps.append(rstd)
        if norm.bias != None:
            steps.append((nl.add, norm.bias[0:positions, 0:K]))
        take_steps(dst[0:positions, pixel, 0:K], sums[:, pixel], steps)
        book_vector(ledger, K * (len(steps) + 1) // 2)


def take_steps(dst, data, steps):
    """dst = data after steps (op, [P, 1] or a tensor of dst's shape) in order, up to two an instruction."""
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
    # all bn_stats, then all bn_aggr: an engine waits for a result that it has just written
    for pixel in range(n):
        for index, (k, count) in enumerate(pieces):
            own_sbuf = stats_sbuf[:, pixel, index]
            nisa.bn_stats(dst=own_sbuf, data=sums[:, pixel, k : k + count])
    for pixel in range(n):
        every_sbuf = stats_sbuf[:, pixel]
        nisa.bn_aggr(dst=moments_sbuf[:, pixel], data=every_sbuf)
    ledger.vector = ledger.vector + n * (2 * START_WORK + K * VECTOR_WORK)
    return moments_sbuf


def total_of(sums, square_part):
    """The sum of tiles [P, ...], fp32 in SBUF, or of square_part times their squares, of the first's shape. Each has a
    part of a pixel's channels, the first the most partitions. By Vector: Scalar would load another table of functions
    for each activation. square_part: None for the sum of the tiles themselves."""
    squared = square_part != None
    if len(sums) == 1 and not squared:
        return sums[0]
    total_sbuf = nl.ndarray(sums[0].shape, dtype=nl.float32, buffer=nl.sbuf)
    for index, one in enumerate(sums):
        own = total_sbuf if index == 0 else one
        if squared:
            own = total_sbuf if index == 0 else nl.ndarray(one.shape, dtype=nl.float32, buffer=nl.sbuf)
            scaled(own, one, square_part, nl.multiply, one)
        elif index == 0:
            nisa.tensor_copy(dst=own, src=one, engine=nisa.engine.vector)
        if index > 0:
            total = total_sbuf[0 : one.shape[0]]
            nisa.tensor_tensor(dst=total, data1=total, data2=own, op=nl.add, engine=nisa.engine.vector)
    return total_sbuf


def rstd_of(mean_squares, eps):
    """(mean square or variance + eps)^-0.5, fp32 in SBUF."""
    found_sbuf = nl.ndarray(mean_squares.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=found_sbuf, data=mean_squares, op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
    return found_sbuf


def scale_pixels(y_sbuf, sums, rstd, weight, bias, residual, epilogue, ledger):
    """y = act(sums * rstd * weight + bias) (+ residual) with channels on partitions. weight, bias: fp32 [P, 1], or
    None; the others have y's shape."""
    scaled_sbuf = scratch_of(y_sbuf, 0)
    if weight == None:
        nisa.tensor_tensor(dst=scaled_sbuf, data1=sums, data2=rstd, op=nl.multiply, engine=nisa.engine.vector)
    else:
        scaled(scaled_sbuf, sums, weight, nl.multiply, rstd)
    book_vector(ledger, size_of(y_sbuf.shape[1:]))
    evacuate_after(y_sbuf, scaled_sbuf, bias, residual, epilogue, ledger)
