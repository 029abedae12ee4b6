"""The work of phases, cut into tiles from shapes and settings; any number of cores share the same lists."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import combined, most_of
from ....schedules.geometry import num_taps
from ....schedules.phases import ALONG
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_at, cut_into, div_ceil, filled, slot_for, some_of
from .blocks import part_lists, phase_axis

#: Bytes per partition of x of an output tile, of which two are in SBUF; of filters of a weight-resident group.
PHASES_X_BYTES, PHASES_FILTER_BYTES = 32_768, 90_112

#: Instructions of an item, at least, as `phases_instructions` counts them.
ITEM_INSTRUCTIONS = 14


@dataclass
class PhaseJob(nl.NKIObject):
    """Phases beside each other in the columns of a stationary, and the products that make them.

    phases: (plane, row, column) of each. products: (e of planes, rows and columns, tap of each phase or -1), where a
    tap is counted as stored.
    """

    phases: list
    products: list


@dataclass
class Phases(nl.NKIObject):
    """All work.

    axes: the PhaseAxis of planes, rows and columns; outputs: by batch the (first, how many) output channels of each of
    its blocks; chunks: as of `chunks_of_x`; items: lists of segments that are worked on together, each a Part of
    planes, of rows and of columns; jobs: of a block of output channels. slot: columns of a stationary, and partitions
    of results, from one to the next; places, extents: how many results share a tile, and its extents.
    """

    axes: list
    outputs: list
    chunks: list
    items: list
    jobs: list
    by_channels: bool
    segments: int
    slot: int
    places: int
    extents: list
    together: int
    warmup: int


def axes_by_phases(geometry):
    """The PhaseAxis of planes, rows and columns."""
    return [phase_axis(geometry.planes), phase_axis(geometry.rows), phase_axis(geometry.columns)]


def beside_counts(axes, beside):
    """Phases beside each other along planes, rows and columns."""
    z, p, q = axes
    columns = q.step if beside != "none" else 1
    return z.step if beside == "planes" else 1, p.step if beside in ("planes", "rows") else 1, columns


def make_phases(geometry, axes, config):
    """The Phases of PhasesSettings; axes: as of `axes_by_phases`."""
    blocks, chunks = cut(geometry.K, config.channels), chunks_of_x(geometry.C, config.segments)
    by_channels = shares_channels(geometry, config)
    widest = most_of(blocks)
    at_once = max(1, PHASES_FILTER_BYTES // (len(chunks) * widest * num_taps(geometry) * geometry.itemsize))
    outputs = []
    for half in cut_into(len(blocks), PARTS if by_channels else 1):
        for part in cut(half[1], at_once):
            outputs.append(some_of(blocks, (half[0] + part[0], part[1])))
    items, extents = items_of(geometry, axes, config, len(chunks), by_channels), [1, 1, 1]
    for item in items:
        for axis in range(3):
            extents[axis] = max(extents[axis], item[0][axis].yn)
    slot = slot_for(config.segments * widest)
    return Phases(
        axes=axes,
        outputs=outputs,
        chunks=chunks,
        items=items,
        jobs=jobs_of_phases(geometry, axes, beside_counts(axes, config.beside)),
        by_channels=by_channels,
        segments=config.segments,
        slot=slot,
        places=nl.tile_size.pmax // slot,
        extents=extents,
        together=config.together,
        warmup=config.warmup,
    )


def shares_channels(geometry, config):
    """Whether cores share blocks of output channels, not items."""
    return config.shard == "channels" and geometry.K > config.channels


def chunks_of_x(C, segments):
    """(first channel, how many, first segment, how many) of each tile of x: a part of the channels of one segment, or
    all of those of as many segments as the partitions hold."""
    found, held = [], max(1, min(segments, nl.tile_size.pmax // C))
    for part in cut(C, nl.tile_size.pmax):
        for first in range(0, segments, held):
            found.append((part[0], part[1], first, held))
    return found


def jobs_of_phases(geometry, axes, counts):
    """Jobs of all phases, so many beside each other along planes, rows and columns."""
    z, p, q = axes
    found = []
    for first in combined(cut_at(z.step, counts[0]), cut_at(p.step, counts[1]), cut_at(q.step, counts[2])):
        phases = combined(numbers(first[0]), numbers(first[1]), numbers(first[2]))
        found.append(PhaseJob(phases=phases, products=phase_products(geometry, axes, phases)))
    return found


def numbers(part):
    """The numbers of a part, (first, how many)."""
    found = []
    for index in range(part[1]):
        found.append(part[0] + index)
    return found


def phase_products(geometry, axes, phases):
    """Products of phases: what they meet at the same elements of x together, as `PhaseJob` has them."""
    places, found = [], []
    for index in range(len(phases)):
        taps = []
        for axis in range(3):
            taps.append(axes[axis].taps[phases[index][axis]])
        for one in combined(taps[0], taps[1], taps[2]):
            t, r, s = one
            place = (t[1], r[1], s[1])
            at = len(places)
            if len(phases) > 1 and place in places:  # of one phase all differ
                at = places.index(place)
            else:
                places.append(place)
                found.append((place, filled(len(phases), -1)))
            of_place = found[at][1]
            tap = (t[0] * geometry.rows.taps + r[0]) * geometry.columns.taps + s[0]
            of_place[index] = num_taps(geometry) - 1 - tap if geometry.flipped else tap
    return found


def items_of(geometry, axes, config, chunks, by_channels):
    """Lists of segments: of as many blocks as x and results have room for, as many for one core as for the other where
    they share them."""
    sizes, segments = item_sizes(geometry, axes, config, chunks, by_channels)
    lists, found = [], []
    for axis in range(3):
        lists.append(part_lists(axes[axis], sizes[axis], config.segments > 1, segments[axis]))
    for one in combined(lists[0], lists[1], lists[2]):
        # one of the three lists at most has several Parts
        found.append(combined(one[0], one[1], one[2]))
    return found


def item_sizes(geometry, axes, config, chunks, by_channels):
    """(blocks of an item, segments) along planes, rows and columns."""
    most_x, most_y = PHASES_X_BYTES // (chunks * geometry.itemsize), config.y_bytes // 4
    segments, most = [1, 1, 1], []
    segments[ALONG.index(config.along)] = config.segments
    for axis in range(3):
        most.append(div_ceil(axes[axis].blocks, segments[axis]))
    sizes = [1, 1, most[2]]
    room = blocks_with_room(axes, sizes, 2, most_x, most_y)
    if room < most[2]:
        sizes[2] = room // BANK_COLUMNS * BANK_COLUMNS if room > BANK_COLUMNS else room
    if sizes[2] == most[2] or segments[2] > 1:
        sizes[1] = min(most[1], blocks_with_room(axes, sizes, 1, most_x, most_y))
        if sizes[1] == most[1]:
            sizes[0] = min(most[0], blocks_with_room(axes, sizes, 0, most_x, most_y))
    return evened(axes, sizes, segments, 1 if by_channels else PARTS), segments


def count_items(axes, sizes, segments):
    """Items of so many blocks and segments along each axis."""
    total = axes[0].images
    for axis in range(3):
        total = total * div_ceil(div_ceil(axes[axis].blocks, sizes[axis]), segments[axis])
    return total


def blocks_with_room(axes, sizes, which, most_x, most_y):
    """Blocks along an axis, at least one, for whose x and results there is room, with so many along the others."""
    for axis in range(3):
        one = axes[axis]
        if axis != which:
            most_x = most_x // ((sizes[axis] - 1) * one.apart + one.high - one.low + 1)
            most_y = most_y // (sizes[axis] * one.step)
    own = axes[which]
    return max(1, min(max(0, most_x - own.high + own.low - 1) // own.apart + 1, most_y // own.step))


def evened(axes, sizes, segments, cores):
    """Sizes of at least as many items as cores, and of as many for each, where that can be; items as even as can be."""
    found, uneven = [], count_items(axes, sizes, segments) % cores > 0
    for axis in range(3):
        count, blocks = div_ceil(axes[axis].blocks, sizes[axis]), axes[axis].blocks
        if uneven and count + segments[axis] <= blocks and sizes[axis] > 1:
            count, uneven = count + segments[axis], False
        found.append(div_ceil(blocks, count))
    return found


def phases_bytes(geometry, phases, residual):
    """Bytes a partition, at most: x of bands, filters as loaded and as stationaries, results."""
    x_elements, most, made = 1, 0, 0
    y_elements = phases.extents[0] * phases.extents[1] * phases.extents[2]
    for item in phases.items:
        z, p, q = item[0]
        x_elements = max(x_elements, z.xn * p.xn * q.xn)
    for batch in phases.outputs:
        columns = 0
        for block in batch:
            columns += block[1]
        most = max(most, columns)
    if is_built(phases):
        for job in phases.jobs:
            made += len(job.products) * len(job.phases) * phases.slot
        made = made * div_ceil(most, most_of(phases.outputs[-1]))
    filters = len(phases.chunks) * (most * num_taps(geometry) + made) * geometry.itemsize
    x_bytes = 2 * len(phases.chunks) * x_elements * geometry.itemsize
    return x_bytes + filters + (6 if residual else 2) * 4 * y_elements + 4096


def is_built(phases):
    """Whether stationaries are put together on chip, not views of what was loaded."""
    job = phases.jobs[0]
    return len(job.phases) > 1 or phases.segments > 1


def width_of(phases, kn):
    """Columns of a stationary of so many output channels, and partitions of its sums."""
    job = phases.jobs[0]
    return len(job.phases) * phases.slot if is_built(phases) else kn


def least_instructions(geometry, axes, config, cores):
    """Instructions of a core, at least, before items are listed: of each a load, a product and a read-out."""
    by_channels, chunks = shares_channels(geometry, config), len(chunks_of_x(geometry.C, config.segments))
    sizes, segments = item_sizes(geometry, axes, config, chunks, by_channels)
    items = div_ceil(count_items(axes, sizes, segments), 1 if by_channels else cores)
    return ITEM_INSTRUCTIONS * items


def phases_instructions(geometry, phases, cores):
    """Instructions of a core, at most."""
    blocks = div_ceil(len(phases.outputs), cores if phases.by_channels else 1)
    items = div_ceil(len(phases.items), 1 if phases.by_channels else cores)
    each, most, products, readouts = 0, 0, 0, 0
    for batch in phases.outputs:
        each = max(each, len(batch))
    for item in phases.items:
        z, p, q = item[0]
        banks = div_ceil(q.bn, BANK_COLUMNS) * div_ceil(p.bn, max(1, BANK_COLUMNS // q.bn)) * z.bn
        most = max(most, banks)
    for job in phases.jobs:
        products += len(phases.chunks) * len(job.products) + 1
        readouts += 2 * len(job.phases)
    load = len(phases.chunks) + div_ceil(geometry.C, nl.tile_size.pmax) * phases.segments
    filters = load + num_taps(geometry) * (load - len(phases.chunks)) + len(phases.chunks) * len(phases.jobs)
    item = load + each * (most * (products + readouts + 4) + 6)
    return 64 + phases.warmup + blocks * (each * filters + items * item)
