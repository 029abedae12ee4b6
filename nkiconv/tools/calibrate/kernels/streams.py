"""Probe kernels of Vector, Scalar and GpSimd: elementwise instructions in place, on one tile or on several in rotation.

One tile makes a chain of dependent instructions, whose slope is a latency and a semaphore hop; eight tiles make a
stream of independent ones, whose slope is the issue interval. Every result is read by a later instruction or stored, so
that no compiler has anything to leave out.
"""

from __future__ import annotations

from ...._nki import nisa, nki, nl

PARTITIONS = 128


def engine_of(name):
    """An engine by its name."""
    return getattr(nisa.engine, name)


def loaded(x_ref):
    """A tile with all of x_ref."""
    x_sbuf = nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sbuf, src=x_ref, dge_mode=nisa.dge_mode.none)
    return x_sbuf


def half():
    """0.5 on every partition, an operand."""
    operand_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=operand_sbuf, value=0.5)
    return operand_sbuf


def scale_and_shift(tile, engine):
    """tile * 0.5 + 0.25, in place."""
    nisa.tensor_scalar(
        dst=tile, data=tile, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=0.25, engine=engine_of(engine)
    )


def _scaled_sum(tile, other, operand):
    nisa.scalar_tensor_tensor(dst=tile, data=tile, op0=nl.multiply, operand0=operand, op1=nl.add, operand1=other)


def _affine_select(tile):
    pattern = [[1, tile.shape[1]]]
    nisa.affine_select(
        dst=tile, pattern=pattern, channel_multiplier=1, on_true_tile=tile, on_false_value=0.25,
        cmp_op=nl.greater_equal,
    )  # fmt: skip


#: The instructions of one repetition on a tile, by name: of (tile, another, an operand, the engine's name).
STEPS = {
    "tensor_scalar": lambda tile, _other, _operand, engine: scale_and_shift(tile, engine),
    "tensor_scalar_operand": lambda tile, _other, operand, engine: nisa.tensor_scalar(
        dst=tile, data=tile, op0=nl.multiply, operand0=operand, engine=engine_of(engine)
    ),
    "tensor_tensor": lambda tile, other, _operand, engine: nisa.tensor_tensor(
        dst=tile, data1=tile, data2=other, op=nl.maximum, engine=engine_of(engine)
    ),
    "scalar_tensor_tensor": lambda tile, other, _operand, _engine: _scaled_sum(tile, other, 0.5),
    "scalar_tensor_tensor_operand": lambda tile, other, operand, _engine: _scaled_sum(tile, other, operand),
    "sigmoid": lambda tile, *_: nisa.activation(dst=tile, op=nl.sigmoid, data=tile),
    "tanh": lambda tile, *_: nisa.activation(dst=tile, op=nl.tanh, data=tile),
    "sigmoid_operand": lambda tile, _other, operand, _engine: nisa.activation(
        dst=tile, op=nl.sigmoid, data=tile, bias=operand
    ),
    "affine_select": lambda tile, *_: _affine_select(tile),
    "memset": lambda tile, _other, _operand, engine: nisa.memset(dst=tile, value=0.5, engine=engine_of(engine)),
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
        x_sbuf, operand_sbuf = loaded(x_ref), half()
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
        ends_sbuf = [loaded(x_ref), nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.sbuf)]
        indices_sbuf = nl.ndarray((PARTITIONS, columns), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.iota(dst=indices_sbuf, pattern=[[1, columns]], offset=0, channel_multiplier=0)
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
        x_sbuf = loaded(x_ref)

        def body(_i):
            for first in range(0, tiles * columns, columns):
                scale_and_shift(x_sbuf[:, first : first + columns], "vector")

        nl.fori_loop(0, count, body)
        nisa.dma_copy(dst=out_hbm, src=x_sbuf, dge_mode=nisa.dge_mode.none)
    return out_hbm
