"""Results with channels on the free dim: [rows, channels of a row, columns], their epilogue and their DMAs.

Row p, channel r of a ChannelBlock is channel c0 + p * length + r of the convolution.
"""

from dataclasses import dataclass

from ..._nki import nisa, nl
from .._dma import copy
from .._epilogue import function_of


@dataclass
class ChannelBlock(nl.NKIObject):
    """A range of channels: row p of `channels` has channels c0 + p * length + r, r < length, those below c0 + count."""

    c0: int
    count: int
    length: int


def full_rows(block):
    """(rows of a block that have all their channels, channels of the row after them)."""
    return block.count // block.length, block.count % block.length


def finish_free(y_sbuf, acc, bias_sbuf, residual_sbuf, epilogue, engine, row):
    """Sums into y_sbuf with bias, residual and activation, as `_epilogue.finish` defines them.

    Args:
        y_sbuf: [P, A, B] SBUF, y's dtype. acc: [P, A, B] fp32 in PSUM or SBUF.
        bias_sbuf: view [P, A, B], any dtype, or None. residual_sbuf: [P, A, B] SBUF, any dtype, or None.
        engine: nisa.engine.vector or scalar, for sums that leave as they are. row: first partition of all operands.
    """
    sums = acc
    after = epilogue.residual != "" and epilogue.residual == "post_activation" and epilogue.activation != ""
    add_residual = epilogue.residual != "" and not after
    active = epilogue.activation != ""
    if epilogue.bias:
        last = not active and not add_residual
        biased = y_sbuf if last else scratch(y_sbuf.shape, row)
        nisa.tensor_tensor(dst=biased, data1=sums, data2=bias_sbuf, op=nl.add)
        sums = biased
    if add_residual:
        added = scratch(y_sbuf.shape, row) if active else y_sbuf
        nisa.tensor_tensor(dst=added, data1=sums, data2=residual_sbuf, op=nl.add)
        sums = added
    if active:
        acted = scratch(y_sbuf.shape, row) if after else y_sbuf
        nisa.activation(dst=acted, op=function_of(epilogue), data=sums)
        if after:
            nisa.tensor_tensor(dst=y_sbuf, data1=acted, data2=residual_sbuf, op=nl.add)
    elif not epilogue.bias and not add_residual:
        nisa.tensor_copy(dst=y_sbuf, src=acc, engine=engine)


def scratch(shape, row):
    """SBUF fp32 [P, A, B] on partitions from `row` on, as engines want the operands of one instruction."""
    whole = nl.ndarray((row + shape[0], shape[1], shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    return whole[row : row + shape[0], 0 : shape[1], 0 : shape[2]]


def parts(block, r0, rn):
    """(rows with channels r0 .. r0+rn-1, channels of the row after them that exist)."""
    complete = full_rows(block)
    return complete[0], max(0, min(rn, complete[1] - r0))


def load_free(dst_sbuf, src_hbm, block, r0, c_step, q_step, offset):
    """[rows, channels, columns] from HBM, elements c_step and q_step apart; zeros for channels that do not exist."""
    rows, rn, columns = dst_sbuf.shape
    found = parts(block, r0, rn)
    start = offset + (block.c0 + r0) * c_step
    if found[0] < rows:
        nisa.memset(dst=dst_sbuf, value=0.0)
    if found[0] > 0:
        copy(
            dst_sbuf[0 : found[0], 0:rn, 0:columns],
            src_hbm.ap(pattern=[[block.length * c_step, found[0]], [c_step, rn], [q_step, columns]], offset=start),
        )
    if found[1] > 0:
        copy(
            dst_sbuf[found[0] : found[0] + 1, 0 : found[1], 0:columns],
            src_hbm.ap(
                pattern=[[c_step, 1], [c_step, found[1]], [q_step, columns]],
                offset=start + found[0] * block.length * c_step,
            ),
        )


def store_free(dst_hbm, src_sbuf, block, r0, c_step, q_step, offset):
    """[rows, channels, columns] to HBM, the channels that exist."""
    rn, columns = src_sbuf.shape[1], src_sbuf.shape[2]
    found = parts(block, r0, rn)
    start = offset + (block.c0 + r0) * c_step
    if found[0] > 0:
        copy(
            dst_hbm.ap(pattern=[[block.length * c_step, found[0]], [c_step, rn], [q_step, columns]], offset=start),
            src_sbuf[0 : found[0], 0:rn, 0:columns],
        )
    if found[1] > 0:
        copy(
            dst_hbm.ap(
                pattern=[[c_step, 1], [c_step, found[1]], [q_step, columns]],
                offset=start + found[0] * block.length * c_step,
            ),
            src_sbuf[found[0] : found[0] + 1, 0 : found[1], 0:columns],
        )
