"""Two kernels that only move data: lower bounds, as if computation took no time.

`copy_floor` reads and writes as many bytes as a problem must, through SBUF, by large static DMAs on both queues;
`launch_floor` loads and stores one row: the latency of a load and a store.
"""

from .._nki import nki, nl
from ..schedules.tiles import div_ceil, lines_of, share
from ._dma import copy, load, store


@nki.jit
def launch_floor(row_ref):
    """Copy one row through SBUF.

    Args: row_ref: [1, F] in HBM, any dtype; F elements fit a partition. Returns: [1, F] in HBM, the same row.
    """
    out_hbm = nl.ndarray(row_ref.shape, dtype=row_ref.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        row_sbuf = nl.ndarray(row_ref.shape, dtype=row_ref.dtype, buffer=nl.sbuf)
        copy(row_sbuf, row_ref)
        copy(out_hbm, row_sbuf)
    return out_hbm


@nki.jit
def copy_floor(in_ref, out_elems, tile_elems):
    """Read every element of in_ref once and write out_elems elements, tile by tile.

    The cores share both evenly, and so do the tiles of a core. A tile's first elements of each row are written,
    repeatedly if more are written than read. All 128 partitions take part, so all DMA engines do.

    Args:
        in_ref: [elements] in HBM, any dtype; at least as many elements as there are cores. out_elems: >= 1.
        tile_elems: the most elements a partition of a tile.
    Returns: [out_elems] in HBM, dtype of in_ref.
    """
    out_hbm = nl.ndarray((out_elems,), dtype=in_ref.dtype, buffer=nl.shared_hbm)
    reads = share(in_ref.shape[0], nl.num_programs(), nl.program_id(0))
    writes = share(out_elems, nl.num_programs(), nl.program_id(0))
    num_tiles = min(reads[1], div_ceil(max(reads[1], writes[1]), nl.tile_size.pmax * tile_elems))
    for tile in range(num_tiles):
        read = share(reads[1], num_tiles, tile)
        columns = div_ceil(read[1], nl.tile_size.pmax)
        tile_sbuf = nl.ndarray((div_ceil(read[1], columns), columns), dtype=in_ref.dtype, buffer=nl.sbuf)
        move_flat(in_ref, reads[0] + read[0], tile_sbuf, read[1], load)
        write = share(writes[1], num_tiles, tile)
        for first in range(0, write[1], read[1]):
            count = min(read[1], write[1] - first)
            move_flat(out_hbm, writes[0] + write[0] + first, tile_sbuf, count, store)
    return out_hbm


def move_flat(flat_hbm, first, tile_sbuf, count, move):
    """Elements first .. first+count-1 of a flat HBM tensor into (or out of) a tile, spread over all its rows."""
    columns = div_ceil(count, tile_sbuf.shape[0])
    for at, rows, each in lines_of(count, columns):
        row = at // columns
        move(tile_sbuf[row : row + rows, 0:each], flat_hbm, [[columns, rows], [1, each]], first + at)
