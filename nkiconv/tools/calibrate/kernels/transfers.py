"""Probe kernels of DMA: triggers, elements, first packets, transposes and the HBM that two cores share.

Every transfer moves distinct bytes to a distinct place, so that no compiler drops a repeated load; an instruction reads
one element of each at the end.
"""

from __future__ import annotations

from ...._nki import nisa, nki, nl
from .streams import PARTITIONS, loaded, scale_and_shift


def _transfer(dst, src, mode, engine):
    """One DMA. mode: a member of nisa.dge_mode by name; engine: of nisa.engine, "unknown" but for hwdge."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=getattr(nisa.dge_mode, mode), engine=getattr(nisa.engine, engine))


def _keep(out_hbm, loaded_sbuf):
    """Store the sum of the first elements of loaded_sbuf [rows, count, elements]."""
    rows = loaded_sbuf.shape[0]
    kept_sbuf = nl.ndarray((rows, 1), dtype=loaded_sbuf.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=kept_sbuf, op=nl.maximum, data=loaded_sbuf[:, :, 0], axis=1)
    nisa.dma_copy(dst=out_hbm, src=kept_sbuf, dge_mode=nisa.dge_mode.none)


@nki.jit
def loads(x_ref, mode, engine, rows, runs, elements, count):
    """A stream of loads, each of `runs` runs of `elements` on each of `rows` partitions.

    Args:
        x_ref: [rows, most, runs, pitch] in HBM, of which the first `count` and of each run the first `elements` are
            loaded: one run a row where pitch and elements agree.
        mode, engine: who makes the descriptors, and who triggers. rows: partitions.
    Returns: [rows, 1] in HBM.
    """
    out_hbm = nl.ndarray((rows, 1), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        loaded_sbuf = nl.ndarray((rows, count, runs * elements), dtype=x_ref.dtype, buffer=nl.sbuf)
        for i in range(count):
            dst = loaded_sbuf[:, i].reshape((rows, runs, elements))
            _transfer(dst, x_ref[:, i, :, 0:elements], mode, engine)
        _keep(out_hbm, loaded_sbuf)
    return out_hbm


@nki.jit
def stores(x_ref, mode, engine, count):
    """A stream of stores of a tile to places of their own.

    Args: x_ref: [rows, columns] in HBM. count: stores. Returns: [rows, count, columns] in HBM, the tile in each.
    """
    rows, columns = x_ref.shape
    out_hbm = nl.ndarray((rows, count, columns), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf = loaded(x_ref)
        for i in range(count):
            _transfer(out_hbm[:, i], x_sbuf, mode, engine)
    return out_hbm


#: Activations between two triggers, and buffers of as many results.
GROUP, GROUPS = 8, 4


@nki.jit
def stores_between(x_ref, count):
    """Eight activations on Scalar, then a store of their results that Scalar triggers, and so on.

    Args: x_ref: [128, columns] in HBM. count: stores. Returns: [128, count, 8 * columns] in HBM.
    """
    columns = x_ref.shape[1]
    out_hbm = nl.ndarray((PARTITIONS, count, GROUP * columns), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        x_sbuf = loaded(x_ref)
        groups_sbuf = nl.ndarray((PARTITIONS, GROUPS, GROUP * columns), dtype=x_ref.dtype, buffer=nl.sbuf)
        for i in range(count):
            group = groups_sbuf[:, i % GROUPS]
            for first in range(0, GROUP * columns, columns):
                nisa.activation(dst=group[:, first : first + columns], op=nl.sigmoid, data=x_sbuf)
            _transfer(out_hbm[:, i], group, "hwdge", "scalar")
    return out_hbm


@nki.jit
def relay(x_ref, mode, through, count):
    """A tile that DMAs move to another place in SBUF and back, each after the one before.

    Args:
        x_ref: [rows, columns] in HBM. mode: a member of nisa.dge_mode.
        through: whether Vector changes the tile after each move. count: moves, an even number.
    Returns: its shape in HBM.
    """
    out_hbm = nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        ends_sbuf = [loaded(x_ref), nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.sbuf)]
        for i in range(count):
            dst = ends_sbuf[(i + 1) % 2]
            _transfer(dst, ends_sbuf[i % 2], mode, "unknown")
            if through:
                scale_and_shift(dst, "vector")
        nisa.dma_copy(dst=out_hbm, src=ends_sbuf[count % 2], dge_mode=nisa.dge_mode.none)
    return out_hbm


@nki.jit
def copies(x_ref, count):
    """Copies within HBM, in runs; as many cores as x_ref has parts for share them.

    Args: x_ref: [cores, 128, most, elements] in HBM, a run is `elements`. count: copies a core.
    Returns: [cores, 128, count, elements] in HBM.
    """
    cores, rows, _, elements = x_ref.shape
    out_hbm = nl.ndarray((cores, rows, count, elements), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    if core < cores:
        for i in range(count):
            _transfer(out_hbm[core, :, i], x_ref[core, :, i], "none", "unknown")
    return out_hbm


@nki.jit
def transposed_loads(x_ref, within, count):
    """DMA transposes, from HBM or within SBUF.

    Args: x_ref: 2-byte [most, rows, 128] in HBM. within: whether SBUF is the source, of 128 rows. count: transposes.
    Returns: [128, 1] in HBM.
    """
    _, rows, columns = x_ref.shape
    out_hbm = nl.ndarray((columns, 1), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        loaded_sbuf = nl.ndarray((columns, count, rows), dtype=x_ref.dtype, buffer=nl.sbuf)
        if within:
            source_sbuf = nl.ndarray((rows, columns), dtype=x_ref.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=source_sbuf, src=x_ref[0], dge_mode=nisa.dge_mode.none)
        for i in range(count):
            src = source_sbuf if within else x_ref[i]
            nisa.dma_transpose(dst=loaded_sbuf[:, i], src=src, axes=(1, 0), dge_mode=nisa.dge_mode.none)
        _keep(out_hbm, loaded_sbuf)
    return out_hbm


@nki.jit
def exchanges(x_ref, send, count):
    """Two cores that wait for each other, or send each other a tile.

    Args: x_ref: [128, columns] in HBM. send: whether a tile is sent, else only a barrier. count: of them.
    Returns: [2, 128, columns] in HBM, each core's tile.
    """
    columns, core = x_ref.shape[1], nl.program_id(0)
    out_hbm = nl.ndarray((2, PARTITIONS, columns), dtype=x_ref.dtype, buffer=nl.shared_hbm)
    ends_sbuf = [loaded(x_ref), nl.ndarray(x_ref.shape, dtype=x_ref.dtype, buffer=nl.sbuf)]
    for i in range(count):
        if send:
            src, dst = ends_sbuf[i % 2], ends_sbuf[(i + 1) % 2]
            nisa.sendrecv(src=src, dst=dst, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        else:
            nisa.core_barrier(data=out_hbm, cores=(0, 1))
    nisa.dma_copy(dst=out_hbm[core], src=ends_sbuf[count % 2 if send else 0], dge_mode=nisa.dge_mode.none)
    return out_hbm
