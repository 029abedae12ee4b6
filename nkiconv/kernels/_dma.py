"""The kernels' DMAs, and tiles that they load ahead (`Feed`).

Descriptors are static: the compiler makes them, as it knows every address. Sync issues static loads, and GpSimd static
stores, in a ninth of the time that Sync or Scalar take if hardware makes the descriptors (trn2.toml, dma), so that
evacuations on Scalar and loads do not wait for each other.
"""

from .._nki import nisa, nl
from ..schedules.tiles import size_of
from ._engines import copy_balanced


def copy(dst, src):
    """One static DMA between HBM and SBUF, or within either; dtypes may differ (a cast through fp32)."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)


def load(dst, hbm, pattern, offset):
    """One static DMA of an access pattern of HBM into a view of SBUF."""
    copy(dst, hbm.ap(pattern=pattern, offset=offset))


def store(src, hbm, pattern, offset):
    """One static DMA of a view of SBUF to an access pattern of HBM."""
    copy(hbm.ap(pattern=pattern, offset=offset), src)


def copy_moved(dst, src, casts):
    """One DMA between SBUF and HBM at an address in a register, so that descriptors are made as it runs: by hardware,
    which does not cast, or by GpSimd."""
    if casts:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.swdge)
    else:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)


def spot(tile, first, pattern):
    """The region of a tile that an access pattern of HBM fills, from index `first` of each axis on: the pattern's last
    entries are the free axes, the entries before them the partitions."""
    lead = len(pattern) - len(first) + 1
    counts = [size_of([count for _, count in pattern[:lead]]), *(count for _, count in pattern[lead:])]
    return tile[tuple(slice(start, start + count) for start, count in zip(first, counts, strict=True))]


def load_region(tile, hbm, first, pattern, offset, moved=None):
    """Load a region of HBM into a tile, at `first`. moved: None, or a register with a row offset into `hbm`."""
    if moved == None:
        load(spot(tile, first, pattern), hbm, pattern, offset)
    else:
        src = hbm.ap(pattern=pattern, offset=offset, scalar_offset=moved, indirect_dim=0)
        copy_moved(spot(tile, first, pattern), src, tile.dtype != hbm.dtype)


def load_transposed(dst, hbm, strides, offset, ledger):
    """dst [c, n, h, w] in SBUF from an HBM tensor whose channels are neighbours; strides along c, n, h, w there."""
    into = dst if hbm.dtype == dst.dtype else nl.ndarray(dst.shape, dtype=hbm.dtype, buffer=nl.sbuf)
    steps = (strides[3], strides[1], strides[2], 1)
    pattern = [[step, dst.shape[axis]] for step, axis in zip(steps, (3, 1, 2, 0))]
    nisa.dma_transpose(dst=into, src=hbm.ap(pattern=pattern, offset=offset), axes=(3, 1, 2, 0))
    if hbm.dtype != dst.dtype:
        copy_balanced(dst, into, ledger)


def load_from_rows(dst, rows, indices):
    """Load rows of a view of HBM, [rows, elements], into a view of SBUF by indices [partitions, 1] in SBUF; a partition
    whose row does not exist keeps its values."""
    nisa.dma_copy(dst=dst, src=rows.vector_select(0, indices), oob_mode=nisa.oob_mode.skip)


def store_to_rows(src, rows, indices):
    """Store a view of SBUF to rows of HBM by indices, as `load_from_rows`; rows that do not exist are skipped."""
    nisa.dma_copy(dst=rows.vector_select(0, indices), src=src, oob_mode=nisa.oob_mode.skip)


class Feed:
    """Tiles in the order of their use, and a circular buffer for them; load(feed, index) starts the loads of a tile;
    loaded: the number of tiles whose loads have started."""

    def __init__(self, tiles, buffers, load):
        self.tiles, self.buffers, self.load, self.loaded = tiles, buffers, load, 0

    def of(self, index):
        """The buffer of a tile."""
        return self.buffers[index % len(self.buffers)]

    def until(self, end):
        """Start the loads of tiles up to number `end`, exclusive."""
        while self.loaded < min(end, len(self.tiles)):
            self.load(self, self.loaded)
            self.loaded += 1
