"""What pixels as stationaries take, in ns, by prices."""

from ...._nki import nl
from ..._prices import (
    BYTE_NS,
    DMA_ENGINES,
    HBM_BYTE_NS,
    MATMUL_COLUMNS_MIN,
    MATMUL_FP32_NS,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_FIXED_PSUM_NS,
    VECTOR_NS,
    run_ns,
)
from ..._tiles import PARTS, cut, share
from .filters import turns_of
from .load import is_turned
from .shape import blocks_of, rows_inside

#: ns from a core's start to its first matmul and from its last one to the end of the last store; the loads of x by
#: DMA's transposes are triggered by hardware and come later (trn2.toml, dma.hwdge_*).
SWAPPED_START_NS = 3400.0
SWAPPED_END_NS = 2600.0
#: ns until filters that are there are folded: DMAs within SBUF (trn2.toml, dma.static_first_packet_ns and others).
FOLD_NS = 1800.0
#: Rate of a DMA that turns, of what it moves (trn2.toml, dma.dma_transpose_frac_hbm).
TURN_RATE = 0.9


def swapped_ns(geometry, plan):
    """ns of the busier of two cores."""
    return SWAPPED_START_NS + core_ns(geometry, plan) + SWAPPED_END_NS


def core_ns(geometry, plan):
    """ns of the busier of two cores between its first loads and its last store."""
    most = 0.0
    waits_ns = first_ns(geometry, plan)
    for half in range(PARTS):
        mine = share(len(plan.items), PARTS, half)
        array, dma, read = 0.0, 0.0, 0.0
        before = -1
        for index in range(mine[0], mine[0] + mine[1]):
            item = plan.items[index]
            if item.batch != before:
                array += turning_ns(geometry, plan, item.batch)
                dma += filters_ns(geometry, plan, item.batch)
            before = item.batch
            ns = band_ns(geometry, plan, item)
            array, dma, read = array + ns[0], dma + ns[1], read + ns[2]
        most = max(most, max(array + waits_ns, max(dma, read)))
    return most


def first_ns(geometry, plan):
    """ns of DMA for the rows and channels of x that the first matmuls need, before which there is nothing to do."""
    band, waits_ns = plan.items[0].band, 0.0
    block = blocks_of(plan.sizes, band)[0]
    share_of = block.nn * rows_inside(plan.source, band.p0, block.pn, -1)[1]
    whole = band.nn * rows_inside(plan.source, band.p0, band.pn, -1)[1]
    if plan.source.fold > 1:
        waits_ns += FOLD_NS
    return waits_ns + x_ns(geometry, plan, band) * share_of / (len(plan.chunks) * max(1, whole))


def band_ns(geometry, plan, item):
    """(ns of the array, of DMA, of read-outs by Vector and Scalar) of a band."""
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    fixed_ns = MATMUL_NS if geometry.fast else 2 * MATMUL_FP32_NS
    taps = plan.source.rows.taps * plan.source.columns.taps
    kn = plan.batches[item.batch][1] * plan.source.fold
    parts = cut(kn, plan.k_tile)
    tile_ns = 0.0
    for index in range(len(parts)):
        tile_ns += max(parts[index][1], MATMUL_COLUMNS_MIN) * column_ns + fixed_ns
    tiles = tiles_of(plan, item.band)
    array_ns = tiles * tile_ns * taps * len(plan.chunks)
    read_ns = tiles * (kn * VECTOR_NS + len(parts) * VECTOR_FIXED_PSUM_NS) / 2
    return (
        array_ns,
        x_ns(geometry, plan, item.band) + y_ns(geometry, plan, item.band, plan.batches[item.batch][1]),
        read_ns,
    )


def tiles_of(plan, band):
    """Stationaries of a band, of each tap and chunk of input channels."""
    return len(blocks_of(plan.sizes, band)) * min(plan.sizes.side, band.qn)


def x_ns(geometry, plan, band):
    """ns of DMA, or of HBM, for the window of a band: its rows of x, all columns."""
    source = plan.source
    elements = band.nn * min(band.hn * source.slots, source.rows.size) * min(band.wn, source.columns.size)
    hbm_ns = elements * geometry.C * geometry.hbm_itemsize * HBM_BYTE_NS
    if is_turned(geometry):
        return max(hbm_ns, elements * geometry.C * geometry.hbm_itemsize * BYTE_NS / (DMA_ENGINES * TURN_RATE))
    run = 1
    if source.x_w == 1:
        run = min(band.wn, source.columns.size)
    return max(hbm_ns, len(plan.chunks) * ROWS_AN_ENGINE * elements / run * run_ns(run * geometry.itemsize))


def y_ns(geometry, plan, band, kn):
    """ns of DMA, or of HBM, for the results of a band."""
    pixels = band.nn * band.pn * band.qn * plan.source.fold
    item = geometry.hbm_itemsize
    run = kn * (min(plan.sizes.side, band.qn) if kn == geometry.K else 1)
    engines_ns = pixels * kn / run * run_ns(run * item) / DMA_ENGINES
    return max(engines_ns, pixels * kn * item * HBM_BYTE_NS)


def filters_ns(geometry, plan, batch):
    """ns of DMA, or of HBM, for the filters of a batch."""
    kn, item = plan.batches[batch][1], geometry.hbm_itemsize
    taps = geometry.rows.taps * geometry.columns.taps
    elements = kn * geometry.C * taps
    hbm_ns = elements * item * HBM_BYTE_NS
    if plan.way == "turn":
        return max(hbm_ns, elements * item * BYTE_NS / (DMA_ENGINES * TURN_RATE))
    run = 1
    if plan.way == "copy":
        run = kn if geometry.packed == 0 else min(kn, geometry.packed)
    elif geometry.w_s == 1 and geometry.w_c == taps:
        run = taps * geometry.C / len(plan.chunks)
    return max(hbm_ns, elements / run * run_ns(run * item) / DMA_ENGINES)


def turning_ns(geometry, plan, batch):
    """ns of the array to turn the filters of a batch."""
    if plan.way != "array":
        return 0.0
    taps = geometry.rows.taps * geometry.columns.taps
    column_ns = TENSOR_COLUMN_NS * (2 if geometry.itemsize == 4 else 1)
    kn = plan.batches[batch][1]
    transposes = turns_of(kn, taps, plan.chunks, geometry.itemsize)[0]
    return transposes * (nl.tile_size.pmax * column_ns + MATMUL_NS)
