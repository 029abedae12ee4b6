"""The work of phases, cut into tiles from shapes and settings; any number of cores share the same lists."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS, cut, div_ceil
from ..cuts import index_of, slot_for
from ..geometry import num_taps
from .blocks import Part, blocks_of_axis, element_range, element_step, parts_of_axis, phase_step, taps_of_phase
from .config import ALONG


@dataclass
class Segment(nl.NKIObject):
    """A box of blocks along the three axes."""

    planes: Part
    rows: Part
    columns: Part


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

    outputs: by batch the (first, how many) output channels of each of its blocks; items: lists of Segments that are
    worked on together; jobs: of a block of output channels. slot: columns of a stationary, and partitions of results,
    from one to the next; places, extents: how many results share a tile, and its extents.
    """

    outputs: list
    chunks: list
    items: list
    jobs: list
    by_channels: bool
    segments: int
    slot: int
    places: int
    extents: tuple
    together: int
    ahead: int
    warmup: int


def beside_counts(geometry, beside):
    """Phases beside each other along planes, rows and columns."""
    planes = phase_step(geometry.planes) if beside == "planes" else 1
    rows = phase_step(geometry.rows) if beside in ("planes", "rows") else 1
    columns = phase_step(geometry.columns) if beside != "none" else 1
    return planes, rows, columns


def make_phases(geometry, config):
    """The Phases of a PhasesConfig."""
    counts = beside_counts(geometry, config.beside)
    blocks = cut(geometry.K, config.channels)
    widest = blocks[-1][1]
    chunks = cut(geometry.C, nl.tile_size.pmax)
    size = len(chunks) * widest * num_taps(geometry) * geometry.itemsize
    at_once = max(1, config.filter_bytes // size)
    by_channels = config.shard == "channels" and len(blocks) > 1
    outputs = []
    for half in cut(len(blocks), div_ceil(len(blocks), PARTS)) if by_channels else [(0, len(blocks))]:
        for part in cut(half[1], at_once):
            first = half[0] + part[0]
            outputs.append(blocks[first : min(first + part[1], len(blocks))])
    items = items_of(geometry, config, len(chunks), by_channels)
    extents = (1, 1, 1)
    for item in items:
        one = item[0]
        extents = (max(extents[0], one.planes.yn), max(extents[1], one.rows.yn), max(extents[2], one.columns.yn))
    slot = slot_for(config.segments * widest)
    return Phases(
        outputs=outputs,
        chunks=chunks,
        items=items,
        jobs=jobs_of_phases(geometry, counts),
        by_channels=by_channels,
        segments=config.segments,
        slot=slot,
        places=nl.tile_size.pmax // slot,
        extents=extents,
        together=config.together,
        ahead=config.ahead,
        warmup=config.warmup,
    )


def jobs_of_phases(geometry, counts):
    """Jobs of all phases, so many beside each other along planes, rows and columns."""
    found = []
    for z in range(0, phase_step(geometry.planes), counts[0]):
        for p in range(0, phase_step(geometry.rows), counts[1]):
            for q in range(0, phase_step(geometry.columns), counts[2]):
                phases = []
                for index in range(counts[0] * counts[1] * counts[2]):
                    row = index // counts[2]
                    phases.append((z + row // counts[1], p + row % counts[1], q + index % counts[2]))
                found.append(PhaseJob(phases=phases, products=phase_products(geometry, phases)))
    return found


def phase_products(geometry, phases):
    """Products of phases: what they meet at the same elements of x together, as `PhaseJob` has them."""
    rows, columns = geometry.rows.taps, geometry.columns.taps
    places, taps = [], []
    for index in range(len(phases)):
        phase = phases[index]
        for one in taps_of_phase(geometry.planes, phase[0]):
            for two in taps_of_phase(geometry.rows, phase[1]):
                for three in taps_of_phase(geometry.columns, phase[2]):
                    place = (one[1], two[1], three[1])
                    if place not in places:
                        places.append(place)
                        nowhere = []
                        for _ in range(len(phases)):
                            nowhere.append(-1)
                        taps.append(nowhere)
                    of_place = taps[index_of(places, place)]
                    tap = (one[0] * rows + two[0]) * columns + three[0]
                    of_place[index] = num_taps(geometry) - 1 - tap if geometry.flipped else tap
    found = []
    for index in range(len(places)):
        found.append((places[index], taps[index]))
    return found


def items_of(geometry, config, chunks, by_channels):
    """Lists of Segments: of as many blocks as x and results have room for, as many for one core as for the other where
    they share them."""
    uniform = config.segments > 1
    most_x = config.x_bytes // (chunks * geometry.itemsize)
    most_y = config.y_bytes // 4
    axes = (geometry.planes, geometry.rows, geometry.columns)
    along = index_of(ALONG, config.along) if uniform else -1
    sizes = [1, 1, blocks_of_axis(axes[2])]
    for axis in (0, 1, 2):
        if axis == along:
            sizes[axis] = min(sizes[axis], div_ceil(blocks_of_axis(axes[axis]), config.segments))
    if not has_room(axes, sizes, most_x, most_y):
        sizes[2] = min(sizes[2], row_blocks(axes, most_x, most_y))
    for axis in (1, 0):
        most = blocks_of_axis(axes[axis])
        if axis == along:
            most = div_ceil(most, config.segments)
        whole = sizes[2] == blocks_of_axis(axes[2]) or along == 2
        while sizes[axis] < most and whole and has_room(axes, grown(sizes, axis), most_x, most_y):
            sizes = grown(sizes, axis)
        if sizes[axis] < most:
            break
    cores = 1 if by_channels else PARTS
    sizes = evened(axes, sizes, config.segments, along, cores)
    found = []
    for z in grouped_parts(axes[0], sizes[0], uniform, config.segments if along == 0 else 1):
        for p in grouped_parts(axes[1], sizes[1], uniform, config.segments if along == 1 else 1):
            for q in grouped_parts(axes[2], sizes[2], uniform, config.segments if along == 2 else 1):
                found.append(segments_of(z, p, q))
    return found


def row_blocks(axes, most_x, most_y):
    """Blocks along columns, of one block along planes and rows, that there is room for; whole banks of sums."""
    for axis in (0, 1):
        low, high = element_range(axes[axis])
        most_x = most_x // (high - low + 1)
        most_y = most_y // phase_step(axes[axis])
    low, high = element_range(axes[2])
    found = min(max(0, most_x - high + low - 1) // element_step(axes[2]) + 1, most_y // phase_step(axes[2]))
    return found // BANK_COLUMNS * BANK_COLUMNS if found > BANK_COLUMNS else max(1, found)


def has_room(axes, sizes, most_x, most_y):
    """Whether x and results of so many blocks along each axis fit."""
    x, y = 1, 1
    for axis in range(3):
        low, high = element_range(axes[axis])
        x = x * ((sizes[axis] - 1) * element_step(axes[axis]) + high - low + 1)
        y = y * sizes[axis] * phase_step(axes[axis])
    return x <= most_x and y <= most_y


def grown(sizes, axis):
    """Sizes with a block more along an axis."""
    found = sizes[:]
    found[axis] = found[axis] + 1
    return found


def evened(axes, sizes, segments, along, cores):
    """Sizes of at least as many items as cores, and of as many for each, where that can be; items as even as can be."""
    counts, found = [], []
    for axis in range(3):
        counts.append(div_ceil(blocks_of_axis(axes[axis]), sizes[axis]))
    total = axes[0].images
    for axis in range(3):
        total = total * (div_ceil(counts[axis], segments) if axis == along else counts[axis])
    if total % cores > 0:
        done = False
        for axis in range(3):
            more = segments if axis == along else 1
            if not done and counts[axis] + more <= blocks_of_axis(axes[axis]) and sizes[axis] > 1:
                counts[axis] = counts[axis] + more
                done = True
    for axis in range(3):
        found.append(div_ceil(blocks_of_axis(axes[axis]), counts[axis]))
    return found


def grouped_parts(axis, blocks, uniform, segments):
    """Parts of an axis in lists of so many neighbours of one image; a list at the end may have fewer."""
    found, parts = [], parts_of_axis(axis, blocks, uniform)
    for index in range(len(parts)):
        part, before = parts[index], parts[max(0, index - 1)]
        if index > 0 and before.image == part.image and len(found[-1]) < segments:
            found[-1].append(part)
        else:
            found.append([part])
    return found


def segments_of(planes, rows, columns):
    """Segments of lists of Parts, at most one of which has several."""
    found = []
    for index in range(max(len(planes), max(len(rows), len(columns)))):
        z, p, q = planes[min(index, len(planes) - 1)], rows[min(index, len(rows) - 1)], columns[-1]
        if len(columns) > 1:
            q = columns[index]
        found.append(Segment(planes=z, rows=p, columns=q))
    return found


def phases_bytes(geometry, phases, residual):
    """Bytes a partition, at most: x of bands, filters as loaded and as stationaries, results."""
    x_elements, taps = 1, num_taps(geometry)
    y_elements = phases.extents[0] * phases.extents[1] * phases.extents[2]
    for item in phases.items:
        one = item[0]
        x_elements = max(x_elements, one.planes.xn * one.rows.xn * one.columns.xn)
    most, widest = 0, 1
    for batch in phases.outputs:
        columns = 0
        for block in batch:
            columns += block[1]
            widest = max(widest, block[1])
        most = max(most, columns)
    made = 0
    if is_built(phases):
        for job in phases.jobs:
            made += len(job.products) * len(job.phases) * phases.slot
        made = made * div_ceil(most, widest)
    filters = len(phases.chunks) * (most * taps + made) * geometry.itemsize
    x_bytes = (phases.ahead + 1) * len(phases.chunks) * x_elements * geometry.itemsize
    return x_bytes + filters + (6 if residual else 2) * 4 * y_elements + 4096


def is_built(phases):
    """Whether stationaries are put together on chip, not views of what was loaded."""
    job = phases.jobs[0]
    return len(job.phases) > 1 or phases.segments > 1


def phases_instructions(geometry, phases, cores):
    """Instructions of a core, at most."""
    blocks = div_ceil(len(phases.outputs), cores) if phases.by_channels else len(phases.outputs)
    each, taps = 0, num_taps(geometry)
    for batch in phases.outputs:
        each = max(each, len(batch))
    items = len(phases.items) if phases.by_channels else div_ceil(len(phases.items), cores)
    most, products, readouts = 0, 0, 0
    for item in phases.items:
        one = item[0]
        columns = div_ceil(one.columns.bn, BANK_COLUMNS)
        banks = columns * div_ceil(one.rows.bn, max(1, BANK_COLUMNS // one.columns.bn)) * one.planes.bn
        most = max(most, banks)
    for job in phases.jobs:
        products += len(phases.chunks) * len(job.products) + 1
        readouts += 2 * len(job.phases)
    load = len(phases.chunks) * (phases.segments + 1)
    filters = len(phases.chunks) * (phases.segments + taps * phases.segments + len(phases.jobs))
    return (
        64 + phases.warmup + blocks * (each * filters + items * (load + each * (most * (products + readouts + 4) + 6)))
    )
