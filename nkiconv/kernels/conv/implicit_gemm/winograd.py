"""precision="winograd": filters as sums of planes of taps, and four banks of sums as two planes of y."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import SCALAR_WORK, START_WORK, VECTOR_START_WORK_PSUM, VECTOR_WORK
from ..._epilogue import adds_last, finish_joined
from ..._tiles import div_ceil
from ..boxes import load_box, offset_at, pattern_of
from ..geometry import filter_rows, num_taps
from ..pairs_of_planes import PRODUCTS_OF_PAIR, TAPS_OF_PLANES, row_pieces

#: Products in the order of the work: those that both planes of a pair take first, as they are read out first.
ORDER_OF_SUMS = (1, 2, 0, 3)


@dataclass
class PlanesOfTaps(nl.NKIObject):
    """Filters of channels c0 .. c0+channels-1: [kn, c, rows of taps, columns] of each of `row_pieces`, as they lie, or
    sums of their planes."""

    c0: int
    channels: int
    pieces: list
    sums_sbuf: object


def adding_raw_bytes(geometry, ahead_bytes, block_bytes, other_bytes):
    """Bytes a partition of blocks of taps on their way, where a block is as long as its sums: three quarters of those
    that wait, two of sums, and one of fp32 for a plane; of other precisions `other_bytes`."""
    if geometry.direct == None:
        return other_bytes
    return max(ahead_bytes, block_bytes) + 2 * block_bytes


def taps_in_hbm(geometry):
    """Taps that come for each channel of a block, whatever becomes of them."""
    return num_taps(geometry) if geometry.direct == None else num_taps(geometry.direct)


def load_planes_of_taps(operands, geometry, job, block):
    """Taps of a block as they lie, in runs of channels: a PlanesOfTaps."""
    own, pieces = geometry.direct, []
    for piece in row_pieces(geometry, block.c0, block.channels):
        c, count = piece[2:]
        shape = (job.kn, count, filter_rows(own), own.columns.taps)
        raw_sbuf = nl.ndarray(shape, dtype=operands.w_dtype, buffer=nl.sbuf)
        offset = offset_at(own.w_strides, (job.k0, c, 0, 0))
        load_box(raw_sbuf, operands.w, (0, 0, 0, 0), pattern_of(own.w_strides, shape), offset)
        pieces.append(raw_sbuf)
    return PlanesOfTaps(c0=block.c0, channels=block.channels, pieces=pieces, sums_sbuf=None)


def sums_of_taps(taps, geometry):
    """Filters of PlanesOfTaps as [kn, channels, rows of taps of four planes, columns] in fp16."""
    if taps.sums_sbuf != None:
        return taps.sums_sbuf
    R, S, own = geometry.rows.taps, geometry.columns.taps, geometry.direct.rows.taps
    places = row_pieces(geometry, taps.c0, taps.channels)
    kn = taps.pieces[0].shape[0]
    taps.sums_sbuf = nl.ndarray((kn, taps.channels, PRODUCTS_OF_PAIR * R, S), dtype=nl.float16, buffer=nl.sbuf)
    for index in range(len(places)):
        at, row, _, count = places[index]
        raw_sbuf, planes, sums = taps.pieces[index], [], []
        for plane in range(TAPS_OF_PLANES):
            planes.append(raw_sbuf[0:kn, 0:count, plane * own + row : plane * own + row + R, 0:S])
        for plane in range(PRODUCTS_OF_PAIR):
            sums.append(taps.sums_sbuf[0:kn, at : at + count, plane * R : (plane + 1) * R, 0:S])
        outer_sbuf = nl.ndarray((kn, count, R, S), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=outer_sbuf, data1=planes[0], data2=planes[2], op=nl.add, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=sums[1], data1=outer_sbuf, data2=planes[1], op=nl.add, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=sums[2], data1=outer_sbuf, data2=planes[1], op=nl.subtract, engine=nisa.engine.vector)
        nisa.tensor_copy(dst=sums[0], src=planes[0], engine=nisa.engine.scalar)
        nisa.tensor_copy(dst=sums[3], src=planes[2], engine=nisa.engine.scalar)
    taps.pieces = []
    return taps.sums_sbuf


def read_pair_out(y_sbuf, sums, bias_sbuf, residual_sbuf, epilogue, ledger):
    """Four banks of sums into y_sbuf [k, planes, rows, columns], the first of each pair of planes and the other in
    turns, with everything that the epilogue asks for; an odd last plane has no other."""
    kn, pairs, pn, qn = sums[1].shape
    elements = pairs * pn * qn
    half_sbuf = nl.ndarray(sums[1].shape, dtype=nl.float32, buffer=nl.sbuf)
    if bias_sbuf == None:
        nisa.activation(dst=half_sbuf, op=nl.copy, data=sums[1], scale=0.5)
    else:
        nisa.activation(dst=half_sbuf, op=nl.copy, data=sums[1], scale=0.5, bias=bias_sbuf)
    ledger.scalar = ledger.scalar + START_WORK + elements * SCALAR_WORK
    for plane in range(2):
        count = div_ceil(y_sbuf.shape[1] - plane, 2)
        if count == 0:
            continue
        y = y_sbuf[0:kn, plane : y_sbuf.shape[1] : 2, 0:pn, 0:qn]
        rest_sbuf = nl.ndarray((kn, count, pn, qn), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=rest_sbuf,
            data=sums[2][0:kn, 0:count, 0:pn, 0:qn],
            op0=nl.multiply,
            operand0=0.5 - plane,
            op1=nl.add,
            operand1=half_sbuf[0:kn, 0:count, 0:pn, 0:qn],
        )
        residual = None
        if residual_sbuf != None:
            residual = residual_sbuf[0:kn, plane : y_sbuf.shape[1] : 2, 0:pn, 0:qn]
        if residual != None and not adds_last(epilogue):
            nisa.tensor_tensor(dst=rest_sbuf, data1=rest_sbuf, data2=residual, op=nl.add, engine=nisa.engine.gpsimd)
        own_psum = sums[3 * plane][0:kn, 0:count, 0:pn, 0:qn]
        finish_joined(y, own_psum, rest_sbuf, None, residual, epilogue, nisa.engine.gpsimd)
        ledger.vector = ledger.vector + 2 * (VECTOR_START_WORK_PSUM + elements * VECTOR_WORK)
