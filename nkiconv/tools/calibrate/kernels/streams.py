"""Probe kernels of Vector, Scalar and GpSimd: elementwise instructions in place, on one tile or on several in rotation.

One tile makes a chain of dependent instructions, whose slope is a latency and a semaphore hop; eight tiles make a
stream of independent ones, whose slope is the issue interval. Every result is read by a later instruction or stored, so
that no compiler has anything to leave out.
"""

from __future__ import annotations

from ...._nki import nisa, nki, nl

PARTITIONS = 128


def _tensor_scalar(tile, _other, _operand, engine):
    nisa.tensor_scalar(
        dst=tile,
        data=tile,
        op0=nl.multiply,
        operand0=0.5,
        op1=nl.add,
        operand1=0.25,
        engine=getattr(nisa.engine, engine),
    )


def _tensor_scalar_operand(tile, _other, operand, engine):
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=operand, engine=getattr(nisa.engine, engine))


def _tensor_tensor(tile, other, _operand, engine):
    nisa.tensor_tensor(dst=tile, data1=tile, data2=other, op=nl.maximum, engine=getattr(nisa.engine, engine))


def _scalar_tensor_tensor(tile, other, _operand, _engine):
    nisa.scalar_tensor_tensor(dst=tile, data=tile, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=other)


def _scalar_tensor_tensor_operand(tile, other, operand, _engine):
    nisa.scalar_tensor_tensor(dst=tile, data=tile, op0=nl.multiply, operand0=operand, op1=nl.add, operand1=other)


def _sigmoid(tile, _other, _operand, _engine):
    nisa.activation(dst=tile, op=nl.sigmoid, data=tile)


def _tanh(tile, _other, _operand, _engine):
    nisa.activation(dst=tile, op=nl.tanh, data=tile)


def _sigmoid_operand(tile, _other, operand, _engine):
    nisa.activation(dst=tile, op=nl.sigmoid, data=tile, bias=operand)


def _affine_select(tile, _other, _operand, _engine):
    columns = tile.shape[1]
    nisa.affine_select(
        dst=tile,
        pattern=[[1, columns]],
        channel_multiplier=1,
        on_true_tile=tile,
        on_false_value=0.25,
        cmp_op=nl.greater_equal,
    )


def _memset(tile, _other, _operand, engine):
    nisa.memset(dst=tile, value=0.5, engine=getattr(nisa.engine, engine))


#: The instructions of one repetition on a tile, by name.
STEPS = {
    "tensor_scalar": _tensor_scalar,
    "tensor_scalar_operand": _tensor_scalar_operand,
    "tensor_tensor": _tensor_tensor,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "scalar_tensor_tensor_operand": _scalar_tensor_tensor_operand,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "sigmoid_operand": _sigmoid_operand,
    "affine_select": _affine_select,
    "memset": _memset,
}


@nki.jit
def stream(x_ref, steps, engines, columns, tiles, count):
    """Repeat instructions in place, the tiles in rotation, and of each tile's repetitions the steps in rotation.

    Args:
        x_ref: [128, (tiles + 1) * columns] in HBM. steps: names in STEPS. engines: one for each step.
        columns: elements of a partition that an instruction works on. tiles: 1 for a chain, several for a stream.
        count: instructions.
    Returns: [128, tiles * columns] in HBM, the tiles.
    """
    out_hbm = nl.ndarray((PARTITIONS, tiles * columns), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf = nl.ndarray((PARTITIONS, (tiles + 1) * columns), dtype=x_ref.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sbuf, src=x_ref, dge_mode=nisa.dge_mode.none)
        operand_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=operand_sbuf, value=0.5)
        other = x_sbuf[:, tiles * columns : (tiles + 1) * columns]
        for i in range(count):
            first, kind = i % tiles * columns, i // tiles % len(steps)
            STEPS[steps[kind]](x_sbuf[:, first : first + columns], other, operand_sbuf, engines[kind])
        nisa.dma_copy(dst=out_hbm, src=x_sbuf[:, 0 : tiles * columns], dge_mode=nisa.dge_mode.none)
    return out_hbm


@nki.jit
def casts(x_ref, columns, tiles, count):
    """Copy bf16 tiles to fp32 ones on Vector, all of them, and then all back.

    Args: x_ref: bf16 [128, tiles * columns] in HBM. count: copies. Returns: its shape in HBM, bf16.
    """
    shape = (PARTITIONS, tiles, columns)
    out_hbm = nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        narrow_sbuf = nl.ndarray(shape, dtype=x_ref.dtype, buffer=nl.sbuf)
        wide_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=narrow_sbuf.reshape(x_ref.shape), src=x_ref, dge_mode=nisa.dge_mode.none)
        for i in range(count):
            ends = [narrow_sbuf[:, i % tiles], wide_sbuf[:, i % tiles]]
            back = i // tiles % 2
            nisa.tensor_copy(dst=ends[1 - back], src=ends[back], engine=nisa.engine.vector)
        nisa.dma_copy(dst=out_hbm, src=narrow_sbuf.reshape(x_ref.shape), dge_mode=nisa.dge_mode.none)
    return out_hbm


@nki.jit
def gathers(x_ref, columns, count):
    """Gather a tile within its partitions into another and back, on GpSimd: each waits for the one before.

    Args: x_ref: fp32 [128, columns] in HBM. count: gathers, an even number. Returns: its shape in HBM.
    """
    out_hbm = nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        ends_sbuf = [nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.sbuf) for _ in range(2)]
        indices_sbuf = nl.ndarray((PARTITIONS, columns), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.iota(dst=indices_sbuf, pattern=[[1, columns]], offset=0, channel_multiplier=0)
        nisa.dma_copy(dst=ends_sbuf[0], src=x_ref, dge_mode=nisa.dge_mode.none)
        for i in range(count):
            nisa.nc_n_gather(dst=ends_sbuf[(i + 1) % 2], data=ends_sbuf[i % 2], indices=indices_sbuf)
        nisa.dma_copy(dst=out_hbm, src=ends_sbuf[count % 2], dge_mode=nisa.dge_mode.none)
    return out_hbm


@nki.jit
def loop(x_ref, columns, tiles, count):
    """A loop on the device whose body is an instruction on Vector for each of some tiles, in place.

    Args: x_ref: [128, tiles * columns] in HBM. count: iterations. Returns: its shape in HBM.
    """
    out_hbm = nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf = nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sbuf, src=x_ref, dge_mode=nisa.dge_mode.none)

        def body(_i):
            for first in range(0, tiles * columns, columns):
                _tensor_scalar(x_sbuf[:, first : first + columns], None, None, "vector")

        nl.fori_loop(0, count, body)
        nisa.dma_copy(dst=out_hbm, src=x_sbuf, dge_mode=nisa.dge_mode.none)
    return out_hbm
