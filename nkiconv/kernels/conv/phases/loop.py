"""The loop of phases: bands of x come in, sums of each phase are made, their read-out interleaves them, rows go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.geometry import Geometry
from ....schedules.options import Extras
from ....schedules.tiles import cut_at, some_of
from ..._engines import Ledger, new_ledger
from ..._warm import accumulator, warm_up, warm_zeros
from ..boxes import box_at, load_box, load_boxes, residual_of, store_boxes
from ..call import Operands, finish_shared, of_array, part_of_core
from ..sums import elements_met, is_whole, spaced, sums_met, zero_sums
from .banks import phase_banks, phase_in_bank, products_in
from .blocks import elements_inside, existing
from .filters import load_filters, stationary_of
from .shape import Phases, width_of


@dataclass
class PhasesWork(nl.NKIObject):
    """What all batches share, and who has how much to do."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    phases: Phases
    zeros_sbuf: object
    ledger: Ledger
    #: WarmBanks
    warm: list
    #: results of several items or blocks side by side on the partitions, as DMA has more engines for more of these; how
    #: many have been put there
    y_sbuf: object = None
    placed: int = 0


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
        zeros_sbuf=warm_zeros(),
        ledger=new_ledger(),
        warm=[],
    )
    for index in range(len(batches)):
        work_batch(work, batches[index], items, index == 0)


def work_batch(work, batch, items, first):
    """All items for the output channels of a batch; first: whether nothing went before."""
    phases, tiles, own = work.phases, [], []
    for block in range(len(batch)):
        filters = []
        for chunk in phases.chunks:
            filters.append(load_filters(work.operands, work.geometry, phases, batch[block], chunk, work.ledger))
            if block == 0:
                tiles.append(load_chunk(work, items[0], chunk))
        own.append((batch[block], filters, bias_of(work, batch[block])))
        if first and block == 0:
            work.warm = warm_up(work.zeros_sbuf, phases.warmup, 1)
    for index in range(len(items)):
        coming = []
        if index + 1 < len(items):
            for chunk in phases.chunks:
                coming.append(load_chunk(work, items[index + 1], chunk))
        for block in range(len(batch)):
            together = phases.together if first and index == 0 and block == 0 else 1
            work_block(work, own[block], items[index], tiles, together)
        tiles = coming


def load_chunk(work, item, chunk):
    """x of a chunk for an item: [(segment, c), planes, rows, columns], zeros where x has none; None if it is empty."""
    geometry = work.geometry
    c0, cn, first, held = chunk
    z, p, q = item[0]
    if z.xn * p.xn * q.xn == 0:
        return None
    x_sbuf = nl.ndarray((held * cn, z.xn, p.xn, q.xn), dtype=work.operands.x_dtype, buffer=nl.sbuf)
    boxes = []
    for index in range(held):
        own_sbuf = x_sbuf[index * cn : (index + 1) * cn, 0 : z.xn, 0 : p.xn, 0 : q.xn]
        if first + index >= len(item):
            nisa.memset(dst=own_sbuf, value=0.0, engine=nisa.engine.gpsimd)
            continue
        inside = ()
        for part in item[first + index]:
            inside = inside + (elements_inside(part),)
        clear_outside(own_sbuf, inside)
        append_box(boxes, geometry.x_strides, (index * cn, c0, cn), inside)
    load_boxes(x_sbuf, work.operands.x, boxes)
    return x_sbuf


def append_box(found, strides, channels, places):
    """Append the box of these, for channels and along each axis, (first in a tile, first in HBM, how many), if any."""
    c, z, p, q = channels, places[0], places[1], places[2]
    counts = (c[2], z[2], p[2], q[2])
    if z[2] * p[2] * q[2] > 0:
        found.append(box_at(strides, (c[0], z[0], p[0], q[0]), (c[1], z[1], p[1], q[1]), counts))


def clear_outside(x_sbuf, inside):
    """Zeros in a tile [c, planes, rows, columns] around what is loaded of each axis, (first place, .., how many)."""
    for axis in range(3):
        size, held = x_sbuf.shape[axis + 1], inside[axis]
        for slab in ((0, min(size, held[0])), (min(size, held[0] + held[2]), size)):
            if slab[0] < slab[1]:
                places = [(0, x_sbuf.shape[1], 1), (0, x_sbuf.shape[2], 1), (0, x_sbuf.shape[3], 1)]
                places[axis] = (slab[0], slab[1] - slab[0], 1)
                zeros = spaced(x_sbuf, (0, x_sbuf.shape[0]), places[0], places[1], places[2])
                nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)


def bias_of(work, block):
    """Bias of a block of output channels at the partitions of its sums, fp32; or None."""
    phases, bias_hbm = work.phases, work.operands.bias
    k0, kn = block
    job = phases.jobs[0]
    if bias_hbm == None:
        return None
    bias_sbuf = nl.ndarray((width_of(phases, kn), 1), dtype=nl.float32, buffer=nl.sbuf)
    for phase in range(len(job.phases)):
        for segment in range(phases.segments):
            load_box(bias_sbuf, bias_hbm, (phase * phases.slot + segment * kn, 0), [[1, kn], [1, 1]], k0)
    return bias_sbuf


def work_block(work, own, item, tiles, together):
    """Results of a block of output channels for an item, bank by bank, so many together.

    own: (the block, its filters by chunk, its bias); tiles: x by chunk.
    """
    block, filters, bias_sbuf = own
    geometry, phases, operands = work.geometry, work.phases, work.operands
    z, p, q = item[0]
    shape = (phases.segments * block[1], z.yn, p.yn, q.yn)
    y_sbuf = results_tile(work, shape)
    boxes = boxes_of_results(geometry.y_strides, block, item, ((0, z.yn), (0, p.yn), (0, q.yn)))
    residual_sbuf = residual_of(operands, shape, boxes, phases.segments > 1)
    banks = phase_banks(phases, item[0])
    for part in cut_at(len(banks), together):
        some, sums = some_of(banks, part), []
        for bank in some:
            sums.append(new_sums(work, block[1], bank, item[0]))
        for chunk in range(len(phases.chunks)):
            for index in range(len(some)):
                add_products(work, filters[chunk], some[index], item[0], tiles[chunk], sums[index], chunk == 0)
        for index in range(len(some)):
            bank = some[index]
            read_phases(work, bias_sbuf, bank, item[0], sums[index][0], y_sbuf, residual_sbuf)
            if bank.done != None:
                store_boxes(operands.y, y_sbuf, boxes_of_results(geometry.y_strides, block, item, bank.done))


def results_tile(work, shape):
    """Room for results beside those of other items or blocks."""
    phases, place = work.phases, work.placed % work.phases.places
    if place == 0:
        planes, rows, columns = phases.extents
        whole = (phases.places * phases.slot, planes, rows, columns)
        work.y_sbuf = nl.ndarray(whole, dtype=work.operands.y.dtype, buffer=nl.sbuf)
    work.placed = work.placed + 1
    first = place * phases.slot
    return work.y_sbuf[first : first + shape[0], 0 : shape[1], 0 : shape[2], 0 : shape[3]]


def new_sums(work, kn, bank, segment):
    """(sums of a bank in PSUM, its Products in the order of the work, whether the first writes all sums); where none
    does, a product of zeros comes first."""
    z, p, q = bank.blocks
    acc_psum, started = accumulator(work.warm, (width_of(work.phases, kn), z[1], p[1], q[1]))
    every = products_in(work.phases, bank, segment)
    whole = len(every) > 0 and not started
    if whole:
        whole = is_whole(every[0], z[1], p[1], q[1])
    if not whole and not started:
        zero_sums(acc_psum, work.zeros_sbuf)
    return acc_psum, every, whole


def add_products(work, filters, bank, segment, x_sbuf, sums, first):
    """Products of a chunk of x, added to the sums of a bank; first: of the first chunk."""
    acc_psum, every, whole = sums
    if x_sbuf == None:
        return
    z, p, q = segment
    x, blocks = of_array(x_sbuf, work.operands), bank.blocks
    for index in range(len(every)):
        product = every[index]
        stationary = stationary_of(filters, work.phases, bank.job, product.group)
        nisa.nc_matmul(
            dst=sums_met(acc_psum, product, (blocks[0][0], blocks[1][0], blocks[2][0])),
            stationary=of_array(stationary, work.operands),
            moving=elements_met(x, (0, x.shape[0]), product, (z.x0, p.x0, q.x0)),
            accumulate=not whole or not first or index > 0,
        )


def read_phases(work, bias_sbuf, bank, segment, acc_psum, y_sbuf, residual_sbuf):
    """Sums of a bank to their places among the results, phase by phase."""
    phases, parts, strict = work.phases, y_sbuf.shape[0], work.extras.strict_nonfinite
    job = phases.jobs[bank.job]
    for index in range(len(job.phases)):
        z, p, q = phase_in_bank(bank, segment, job.phases[index])
        elements, first = z[0][1] * p[0][1] * q[0][1], index * phases.slot
        if elements == 0:
            continue
        acc, y = spaced(acc_psum, (first, parts), z[0], p[0], q[0]), spaced(y_sbuf, (0, parts), z[1], p[1], q[1])
        bias = None if bias_sbuf == None else bias_sbuf[first : first + parts, 0:1]
        residual = None if residual_sbuf == None else spaced(residual_sbuf, (0, parts), z[1], p[1], q[1])
        finish_shared(y, acc, bias, residual, work.extras.epilogue, work.ledger, elements, strict)


def boxes_of_results(strides, block, item, places):
    """Boxes of a tensor of results for (first, how many) places along each axis of an item's tile, those that exist; a
    box a segment."""
    k0, kn = block
    found = []
    for index in range(len(item)):
        held = ()
        for axis in range(3):
            held = held + (existing(item[index][axis], places[axis]),)
        append_box(found, strides, (index * kn, k0, kn), held)
    return found
