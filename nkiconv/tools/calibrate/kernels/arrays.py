"""Probe kernels of the Tensor Engine: streams of products and transposes, and PSUM evacuation."""

from __future__ import annotations

from ...._nki import nisa, nki, nl
from .streams import PARTITIONS, engine_of, half, loaded

#: fp32 columns of a PSUM bank.
BANK_COLUMNS = 512


@nki.jit
def products(x_ref, columns, rows, count):
    """A stream of matmuls that accumulate, on one row tile of the array or on several in rotation.

    Each row tile has a bank of its own, and two stationary operands by turns, so that every matmul loads one.

    Args:
        x_ref: [128, 2 * 128 + columns] in HBM. columns: of the moving operand, at most 512.
        rows: of a row tile, 32, 64 or 128. count: matmuls.
    Returns: fp32 [128, tiles * columns] in HBM, the sums of each row tile.
    """
    tiles = PARTITIONS // rows
    out_hbm = nl.ndarray((PARTITIONS, tiles, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf = loaded(x_ref)
        sums_psum = [nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.psum) for _ in range(tiles)]
        for i in range(count):
            tile = i % tiles
            first, column = tile * rows, i // tiles % 2 * PARTITIONS
            where = {} if tiles == 1 else {"tile_position": (first, 0), "tile_size": (rows, PARTITIONS)}
            nisa.nc_matmul(
                dst=sums_psum[tile],
                stationary=x_sbuf[first : first + rows, column : column + PARTITIONS],
                moving=x_sbuf[first : first + rows, 2 * PARTITIONS : 2 * PARTITIONS + columns],
                accumulate=i >= tiles,
                **where,
            )
        out_sbuf = nl.ndarray((PARTITIONS, tiles, columns), dtype=nl.float32, buffer=nl.sbuf)
        for tile in range(tiles):
            nisa.tensor_copy(dst=out_sbuf[:, tile], src=sums_psum[tile], engine=nisa.engine.vector)
        nisa.dma_copy(dst=out_hbm, src=out_sbuf, dge_mode=nisa.dge_mode.none)
    return out_hbm


@nki.jit
def double_rows(x_ref, columns, count):
    """A stream of fp8 matmuls in double_row mode that accumulate.

    Args: x_ref: bf16 [128, 2, 2 * 128 + columns] in HBM, cast to fp8 on the chip, as torch has no dtype for NKI's.
        columns: of the moving operand. count: matmuls.
    Returns: fp32 [128, columns] in HBM, the sums.
    """
    out_hbm = nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf = nl.ndarray(x_ref.shape, dtype=nl.float8_e4m3, buffer=nl.sbuf)
        nisa.tensor_copy(dst=x_sbuf, src=loaded(x_ref), engine=nisa.engine.vector)
        sums_psum = nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.psum)
        for i in range(count):
            column = i % 2 * PARTITIONS
            nisa.nc_matmul(
                dst=sums_psum,
                stationary=x_sbuf[:, :, column : column + PARTITIONS],
                moving=x_sbuf[:, :, 2 * PARTITIONS : 2 * PARTITIONS + columns],
                accumulate=i > 0,
                perf_mode=nisa.matmul_perf_mode.double_row,
            )
        out_sbuf = nl.ndarray((PARTITIONS, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out_sbuf, src=sums_psum, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out_hbm, src=out_sbuf, dge_mode=nisa.dge_mode.none)
    return out_hbm


@nki.jit
def transposes(x_ref, count):
    """A stream of transposes of [128, 128] on the Tensor Engine, four to a buffer; Vector reads a column of each.

    Args: x_ref: [128, 4 * 128] in HBM. count: buffers of four transposes. Returns: [128, 4 * count] in HBM.
    """
    out_hbm = nl.ndarray((PARTITIONS, 4 * count), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        kept_sbuf = nl.ndarray((PARTITIONS, count, 4), dtype=x_ref.dtype, buffer=nl.sbuf)
        x_sbuf = nl.ndarray((PARTITIONS, 4, PARTITIONS), dtype=x_ref.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sbuf.reshape(x_ref.shape), src=x_ref, dge_mode=nisa.dge_mode.none)
        banks_psum = [nl.ndarray((PARTITIONS, 4, PARTITIONS), dtype=x_ref.dtype, buffer=nl.psum) for _ in range(4)]
        for i in range(count):
            bank = banks_psum[i % len(banks_psum)]
            for j in range(4):
                nisa.nc_transpose(dst=bank[:, j], data=x_sbuf[:, j], engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=kept_sbuf[:, i], src=bank[:, :, 0], engine=nisa.engine.vector)
        nisa.dma_copy(dst=out_hbm, src=kept_sbuf.reshape(out_hbm.shape), dge_mode=nisa.dge_mode.none)
    return out_hbm


#: Instructions that read a piece of a bank, by name: of (destination, source, an operand, the engine's name).
READS = {
    "copy": lambda dst, src, _operand, engine: nisa.tensor_copy(dst=dst, src=src, engine=engine_of(engine)),
    "scale": lambda dst, src, operand, engine: nisa.tensor_scalar(
        dst=dst, data=src, op0=nl.multiply, operand0=operand, engine=engine_of(engine)
    ),
    "bias": lambda dst, src, operand, _engine: nisa.activation(dst=dst, op=nl.sigmoid, data=src, bias=operand),
    "add": lambda dst, src, _operand, engine: nisa.tensor_tensor(
        dst=dst, data1=src, data2=dst, op=nl.add, engine=engine_of(engine)
    ),
}


@nki.jit
def evacuations(x_ref, read, engine, pieces, banks, count):
    """Matmuls that fill a bank, which another engine reads in pieces; its result is the bank's next moving operand.

    With one bank and one piece every instruction waits for the one before. With four banks the engine that evacuates
    binds, as one matmul streams for less time than the pieces of its bank take.

    Args:
        x_ref: bf16 [128, 128 + banks * 512] in HBM. read: a name in READS. engine: "vector" or "scalar".
        pieces: instructions that a bank is read by. banks: in rotation. count: matmuls.
    Returns: [128, banks * 512] in HBM.
    """
    out_hbm = nl.ndarray((PARTITIONS, banks * BANK_COLUMNS), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf, operand_sbuf = loaded(x_ref), half()
        banks_psum = [nl.ndarray((PARTITIONS, BANK_COLUMNS), dtype=nl.float32, buffer=nl.psum) for _ in range(banks)]
        columns = BANK_COLUMNS // pieces
        for i in range(count):
            bank, first = banks_psum[i % banks], PARTITIONS + i % banks * BANK_COLUMNS
            moving = x_sbuf[:, first : first + BANK_COLUMNS]
            nisa.nc_matmul(dst=bank, stationary=x_sbuf[:, 0:PARTITIONS], moving=moving, accumulate=False)
            for piece in range(0, BANK_COLUMNS, columns):
                READS[read](moving[:, piece : piece + columns], bank[:, piece : piece + columns], operand_sbuf, engine)
        nisa.dma_copy(dst=out_hbm, src=x_sbuf[:, PARTITIONS:], dge_mode=nisa.dge_mode.none)
    return out_hbm
