"""The loop of phases: bands of x come in, sums of each phase are made, their read-out interleaves them, rows go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._engines import Ledger, new_ledger
from ..._warm import warm_up, warm_zeros
from ..boxes import clear_window, load_box, load_boxes, offset_at, pattern_of, store_boxes
from ..call import Extras, Operands, finish_shared, load_bias, of_array, scale_residual
from ..cuts import part_of_core
from ..geometry import Geometry
from ..sums import elements_met, is_whole, sums_met, zero_sums
from .banks import phase_banks, phase_in_bank, products_in
from .blocks import elements_inside, existing
from .filters import load_filters, no_filters, stationary_of
from .shape import Phases


@dataclass
class PhasesWork(nl.NKIObject):
    """What does not change within a batch, and who has how much to do."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    phases: Phases
    filters: object
    biases: list
    #: results of several items or blocks side by side on the partitions, as DMA has more engines for more of these; how
    #: many have been put there
    y_sbuf: object
    placed: int
    zeros_sbuf: object
    ledger: Ledger


def run_phases(operands, geometry, extras, phases):
    """This core's part of the output channels, or of the items."""
    batches, items = phases.outputs, phases.items
    if phases.by_channels:
        batches = part_of_core(batches)[1]
    else:
        items = part_of_core(items)[1]
    if len(batches) == 0 or len(items) == 0:
        return
    work = PhasesWork(
        operands=operands,
        geometry=geometry,
        extras=extras,
        phases=phases,
        filters=None,
        biases=[],
        y_sbuf=None,
        placed=0,
        zeros_sbuf=warm_zeros(),
        ledger=new_ledger(),
    )
    for index in range(len(batches)):
        work_batch(work, batches[index], items, index == 0)


def work_batch(work, batch, items, first):
    """All items for the output channels of a batch; first: whether nothing went before."""
    phases, coming = work.phases, []
    work.filters = no_filters(phases, batch)
    work.biases = []
    tiles = no_tiles_of(phases)
    for block in range(len(batch)):
        for chunk in range(len(phases.chunks)):
            load_filters(work.operands, work.geometry, phases, work.filters, batch, block, chunk, work.ledger)
            if block == 0:
                load_chunk(work, items[0], tiles, chunk)
        work.biases.append(bias_of(work, batch[block]))
        if first and block == 0:
            warm_up(work.zeros_sbuf, phases.warmup, 1)
    coming.append(tiles)
    for index in range(len(items)):
        while len(coming) <= phases.ahead and index + len(coming) < len(items):
            tiles = no_tiles_of(phases)
            for chunk in range(len(phases.chunks)):
                load_chunk(work, items[index + len(coming)], tiles, chunk)
            coming.append(tiles)
        for block in range(len(batch)):
            together = phases.together if first and index == 0 and block == 0 else 1
            work_block(work, batch, block, items[index], coming[0], together)
        coming = coming[1:]


def no_tiles_of(phases):
    """None for each chunk of x."""
    tiles = []
    for _ in range(len(phases.chunks)):
        nothing = None
        tiles.append(nothing)
    return tiles


def load_chunk(work, item, tiles, chunk):
    """x of a chunk for an item: [(segment, c), planes, rows, columns], zeros where x has none."""
    geometry, phases, one = work.geometry, work.phases, item[0]
    c0, cn = phases.chunks[chunk]
    shape = (phases.segments * cn, one.planes.xn, one.rows.xn, one.columns.xn)
    if shape[1] * shape[2] * shape[3] == 0:
        return
    x_sbuf = nl.ndarray(shape, dtype=work.operands.x_dtype, buffer=nl.sbuf)
    tiles[chunk] = x_sbuf
    boxes = []
    for index in range(phases.segments):
        own_sbuf = x_sbuf[index * cn : (index + 1) * cn, 0 : shape[1], 0 : shape[2], 0 : shape[3]]
        if index >= len(item):
            nisa.memset(dst=own_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            continue
        segment = item[index]
        planes, rows = elements_inside(geometry.planes, segment.planes), elements_inside(geometry.rows, segment.rows)
        columns = elements_inside(geometry.columns, segment.columns)
        clear_outside(own_sbuf, planes, rows, columns)
        if planes[2] * rows[2] * columns[2] > 0:
            pattern = pattern_of(geometry.x_strides, (cn, planes[2], rows[2], columns[2]))
            offset = offset_at(geometry.x_strides, (c0, planes[1], rows[1], columns[1]))
            boxes.append(((index * cn, planes[0], rows[0], columns[0]), pattern, offset))
    load_boxes(x_sbuf, work.operands.x, boxes)


def clear_outside(x_sbuf, planes, rows, columns):
    """Zeros in a tile [c, planes, rows, columns] around what is loaded of each axis, (first place, .., how many)."""
    parts, D, H, W = x_sbuf.shape
    for slab in ((0, min(D, planes[0])), (min(D, planes[0] + planes[2]), D)):
        if slab[0] < slab[1]:
            zeros = x_sbuf[0:parts, slab[0] : slab[1], 0:H, 0:W]
            nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
    clear_window(x_sbuf, 0, min(H, rows[0]), 0, W, nisa.engine.gpsimd)
    clear_window(x_sbuf, min(H, rows[0] + rows[2]), H, 0, W, nisa.engine.gpsimd)
    clear_window(x_sbuf, 0, H, 0, min(W, columns[0]), nisa.engine.gpsimd)
    clear_window(x_sbuf, 0, H, min(W, columns[0] + columns[2]), W, nisa.engine.gpsimd)


def bias_of(work, block):
    """Bias of a block of output channels at the partitions of its sums, fp32; or None."""
    phases, operands = work.phases, work.operands
    k0, kn = block
    count = len(phases.jobs[0].phases)
    if operands.bias == None or (count == 1 and phases.segments == 1):
        return load_bias(operands.bias, k0, kn, 1)
    bias_sbuf = nl.ndarray((count * phases.slot, 1), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(count * phases.segments):
        place = index // phases.segments * phases.slot + index % phases.segments * kn
        load_box(bias_sbuf, operands.bias, (place, 0), [[1, kn], [1, 1]], k0)
    return bias_sbuf


def work_block(work, batch, block, item, tiles, together):
    """Results of a block of output channels for an item, bank by bank; so many of the first banks together."""
    geometry, phases = work.geometry, work.phases
    kn = batch[block][1]
    one = item[0]
    shape = (phases.segments * kn, one.planes.yn, one.rows.yn, one.columns.yn)
    y_sbuf = results_tile(work, shape)
    residual_sbuf = residual_of_item(work, batch[block], item, shape)
    banks = phase_banks(geometry, phases, one)
    for first in range(0, len(banks), together):
        some = banks[first : min(first + together, len(banks))]
        sums = []
        for bank in some:
            sums.append(new_sums(work, kn, bank, one))
        for chunk in range(len(phases.chunks)):
            for index in range(len(some)):
                add_products(work, block, chunk, some[index], one, tiles[chunk], sums[index])
        for index in range(len(some)):
            bank = some[index]
            read_phases(work, block, bank, one, sums[index][0], y_sbuf, residual_sbuf)
            if bank.last:
                boxes = boxes_of_results(geometry, geometry.y_strides, batch[block], item, bank.first, bank.count)
                store_boxes(work.operands.y, y_sbuf, boxes)


def results_tile(work, shape):
    """Room for results beside those of other items or blocks."""
    phases, place = work.phases, work.placed % work.phases.places
    if place == 0:
        extents = phases.extents
        whole = (phases.places * phases.slot, extents[0], extents[1], extents[2])
        work.y_sbuf = nl.ndarray(whole, dtype=work.operands.y.dtype, buffer=nl.sbuf)
    work.placed = work.placed + 1
    first = place * phases.slot
    return work.y_sbuf[first : first + shape[0], 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def new_sums(work, kn, bank, segment):
    """(sums of a bank in PSUM, its Products in the order of the work, their places among the job's); a product that
    writes all sums comes first, and where none does one of zeros."""
    phases = work.phases
    job = phases.jobs[bank.job]
    width = kn if len(job.phases) == 1 and phases.segments == 1 else len(job.phases) * phases.slot
    acc_psum = nl.ndarray((width, bank.zn, bank.pn, bank.qn), dtype=nl.float32, buffer=nl.psum)
    every = products_in(work.geometry, phases, bank, segment)
    whole = False
    if len(every) > 0:
        whole = is_whole(every[0], bank.zn, bank.pn, bank.qn)
    if not whole:
        zero_sums(acc_psum, work.zeros_sbuf)
    return acc_psum, every, whole


def add_products(work, block, chunk, bank, segment, x_sbuf, sums):
    """Products of a chunk of x, added to the sums of a bank."""
    acc_psum, every, whole = sums
    if x_sbuf == None:
        return
    outputs = (bank.z0, bank.p0, bank.q0)
    elements = (segment.planes.x0, segment.rows.x0, segment.columns.x0)
    x = of_array(x_sbuf, work.operands)
    for index in range(len(every)):
        product = every[index]
        stationary = stationary_of(work.filters, work.phases, block, chunk, bank.job, product.group)
        nisa.nc_matmul(
            dst=sums_met(acc_psum, product, outputs),
            stationary=of_array(stationary, work.operands),
            moving=elements_met(x, (0, x.shape[0]), product, elements),
            accumulate=not whole or chunk > 0 or index > 0,
        )


def read_phases(work, block, bank, segment, acc_psum, y_sbuf, residual_sbuf):
    """Sums of a bank to their places among the results, phase by phase."""
    geometry, phases, parts = work.geometry, work.phases, y_sbuf.shape[0]
    job, bias_sbuf = phases.jobs[bank.job], work.biases[block]
    for index in range(len(job.phases)):
        found = phase_in_bank(geometry, bank, segment, job.phases[index])
        planes, rows, columns = found
        if planes[1] * rows[1] * columns[1] == 0:
            continue
        first = index * phases.slot
        acc = acc_psum[
            first : first + parts,
            planes[0] : planes[0] + planes[1],
            rows[0] : rows[0] + rows[1],
            columns[0] : columns[0] + columns[1],
        ]
        bias = None if bias_sbuf == None else bias_sbuf[first : first + parts, 0:1]
        residual = None if residual_sbuf == None else every_step(residual_sbuf, planes, rows, columns)
        y = every_step(y_sbuf, planes, rows, columns)
        elements, strict = planes[1] * rows[1] * columns[1], work.extras.strict_nonfinite
        finish_shared(y, acc, bias, residual, work.extras.epilogue, work.ledger, elements, strict)


def every_step(tile, planes, rows, columns):
    """Places of a phase in a tile of results; each axis: (.., how many, first place, step)."""
    return tile[
        0 : tile.shape[0],
        planes[2] : planes[2] + (planes[1] - 1) * planes[3] + 1 : planes[3],
        rows[2] : rows[2] + (rows[1] - 1) * rows[3] + 1 : rows[3],
        columns[2] : columns[2] + (columns[1] - 1) * columns[3] + 1 : columns[3],
    ]


def residual_of_item(work, block, item, shape):
    """The residual at an item's results times beta, fp32 if it was multiplied; or None."""
    operands, strides = work.operands, work.geometry.r_strides
    if operands.residual == None:
        return None
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    if work.phases.segments > 1:
        nisa.memset(dst=residual_sbuf, value=0.0, engine=nisa.engine.gpsimd)
    for box in boxes_of_results(work.geometry, strides, block, item, (0, 0, 0), shape[1:]):
        load_box(residual_sbuf, operands.residual, box[0], box[1], box[2])
    return scale_residual(residual_sbuf, operands.beta)


def boxes_of_results(geometry, strides, block, item, first, count):
    """Boxes of a tensor of results for places first .. first+count-1 along each axis of an item's tile, those that
    exist; a box a segment."""
    k0, kn = block
    found = []
    for index in range(len(item)):
        segment = item[index]
        z = existing(geometry.planes, segment.planes, first[0], count[0])
        p = existing(geometry.rows, segment.rows, first[1], count[1])
        q = existing(geometry.columns, segment.columns, first[2], count[2])
        if z[2] * p[2] * q[2] > 0:
            pattern = pattern_of(strides, (kn, z[2], p[2], q[2]))
            found.append(((index * kn, z[0], p[0], q[0]), pattern, offset_at(strides, (k0, z[1], p[1], q[1]))))
    return found
