"""What a convolution does to its sums before they leave the core: bias, activation, residual, cast.

    y = act(conv + bias + residual)    residual "pre_activation"
    y = act(conv + bias) + residual    residual "post_activation"

All in fp32; the cast to y's dtype is the only other rounding. Bias, residual and activation belong to the read-out of
PSUM, so an epilogue without a residual costs no pass of its own: Scalar's activation takes scale, bias and function in
one instruction, Vector adds a bias while it copies.
"""

from .. import rules
from .._nki import nisa, nl
from ..schedules.options import Epilogue, adds_last
from ._arguments import refuse
from ._dma import copy


def read_epilogue(activation, bias, residual, residual_position, y_itemsize):
    """Check the arguments of an epilogue (bias and residual may be None) and return an Epilogue."""
    refuse(rules.activation(activation), rules.residual_position(residual_position))
    return Epilogue(
        activation="" if activation == None else activation,
        bias=bias != None,
        residual="" if residual == None else residual_position,
        y_itemsize=y_itemsize,
    )


def load_bias(bias_hbm, k0, kn, times=1):
    """Bias of output channels k0 .. k0+kn-1, [times * kn, 1] fp32 in SBUF, all of them `times` times; or None."""
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray((times * kn, 1), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(times):
        copy(bias_sbuf[index * kn : (index + 1) * kn, 0:1], bias_hbm.ap(pattern=[[1, kn], [1, 1]], offset=k0))
    return bias_sbuf


def function_of(epilogue):
    """The function of nki.isa.activation."""
    if epilogue.activation == "relu":
        return nl.relu
    if epilogue.activation == "silu":
        return nl.silu
    if epilogue.activation == "gelu":
        return nl.gelu
    if epilogue.activation == "gelu_tanh":
        return nl.gelu_apprx_tanh
    if epilogue.activation == "tanh":
        return nl.tanh
    if epilogue.activation == "sigmoid":
        return nl.sigmoid
    return nl.copy


def finish(y_sbuf, acc, bias_sbuf, residual_sbuf, epilogue, engine):
    """Sums into y_sbuf, with everything that the epilogue asks for.

    Args:
        y_sbuf: [P, F] SBUF, y's dtype. acc: [P, F] fp32 in PSUM or SBUF.
        bias_sbuf: fp32 [P, 1] SBUF, or None. residual_sbuf: [P, F] SBUF, any dtype, or None.
        engine: nisa.engine.vector or scalar, for what both can do.
    """
    function = function_of(epilogue)
    sums = acc
    if epilogue.residual == "pre_activation" or (epilogue.residual != "" and epilogue.activation == ""):
        sums = y_sbuf
        if epilogue.activation != "":
            sums = nl.ndarray(y_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        if epilogue.bias:
            nisa.scalar_tensor_tensor(
                dst=sums, data=acc, op0=nl.add, operand0=bias_sbuf, op1=nl.add, operand1=residual_sbuf
            )
        else:
            nisa.tensor_tensor(dst=sums, data1=acc, data2=residual_sbuf, op=nl.add)
        if epilogue.activation != "":
            nisa.activation(dst=y_sbuf, op=function, data=sums)
    elif epilogue.activation != "":
        if epilogue.residual != "":
            sums = nl.ndarray(y_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
            activate(sums, function, acc, bias_sbuf, epilogue)
            nisa.tensor_tensor(dst=y_sbuf, data1=sums, data2=residual_sbuf, op=nl.add)
        else:
            activate(y_sbuf, function, acc, bias_sbuf, epilogue)
    elif epilogue.bias:
        if engine == nisa.engine.scalar:
            nisa.activation(dst=y_sbuf, op=nl.copy, data=acc, bias=bias_sbuf)
        else:
            nisa.tensor_scalar(dst=y_sbuf, data=acc, op0=nl.add, operand0=bias_sbuf)
    else:
        nisa.tensor_copy(dst=y_sbuf, src=acc, engine=engine)


def finish_in_steps(y_sbuf, acc, bias_sbuf, residual_sbuf, epilogue, engine, row=0):
    """`finish` where a bias is not one number a partition: what is asked for is done one after the other.

    Args:
        y_sbuf: [P, A, B] SBUF, y's dtype. acc: [P, A, B] fp32 in PSUM or SBUF.
        bias_sbuf: view [P, A, B], any dtype, or None. residual_sbuf: [P, A, B] SBUF, any dtype, or None.
        engine: nisa.engine.vector or scalar, for sums that leave as they are. row: first partition of all operands,
        which may have three free axes where it is 0.
    """
    # what is added in turn; None: the activation
    steps = []
    if epilogue.bias:
        steps.append(bias_sbuf)
    if epilogue.residual == "pre_activation":
        steps.append(residual_sbuf)
    if epilogue.activation != "":
        steps.append(None)
    if epilogue.residual == "post_activation":
        steps.append(residual_sbuf)
    sums = acc
    for index in range(len(steps)):
        into = y_sbuf if index == len(steps) - 1 else scratch(y_sbuf.shape, row)
        if steps[index] == None:
            nisa.activation(dst=into, op=function_of(epilogue), data=sums)
        else:
            nisa.tensor_tensor(dst=into, data1=sums, data2=steps[index], op=nl.add)
        sums = into
    if len(steps) == 0:
        nisa.tensor_copy(dst=y_sbuf, src=acc, engine=engine)


def scratch(shape, row):
    """SBUF fp32 of a shape on partitions from `row` on, as engines want the operands of one instruction."""
    if row == 0:
        return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    whole = nl.ndarray((row + shape[0], shape[1], shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    return whole[row : row + shape[0], 0 : shape[1], 0 : shape[2]]


def finish_joined(y_sbuf, acc, rest_sbuf, bias_sbuf, residual_sbuf, epilogue, engine):
    """`finish` of accumulators split between PSUM and SBUF. The SBUF part has the residual, unless that is added after
    the activation. engine: which evacuates."""
    joined = Epilogue(
        activation=epilogue.activation,
        bias=bias_sbuf != None,
        residual="pre_activation",
        y_itemsize=epilogue.y_itemsize,
    )
    last = adds_last(epilogue)
    done_sbuf = nl.ndarray(rest_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf) if last else y_sbuf
    finish(done_sbuf, acc, bias_sbuf, rest_sbuf, joined, nisa.engine.vector)
    if last:
        nisa.tensor_tensor(dst=y_sbuf, data1=done_sbuf, data2=residual_sbuf, op=nl.add, engine=engine)


def activate(dst, function, data, bias_sbuf, epilogue):
    """dst = function(data + bias) on Scalar."""
    if epilogue.bias:
        nisa.activation(dst=dst, op=function, data=data, bias=bias_sbuf)
    else:
        nisa.activation(dst=dst, op=function, data=data)
