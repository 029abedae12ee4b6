"""How narrow is cut: rows of y and columns of taps in the array's columns, banks of sums, loads of x."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import BlockBand, axis_elements, block_bands, most_of, parts_for_cores, places_met
from ....schedules.geometry import Axis, images_axis, met, num_taps, sees_itself, span
from ....schedules.planes import chunks_of_windows, window_channels, with_windows
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut_into, div_ceil, fits_sbuf, slot_for
from ..sums import taps_by_cover

#: Bytes a partition of a load, all chunks of it, whose rows come in one transfer, at most; else of a transfer.
NARROW_WHOLE_BYTES = 8192
NARROW_PIECE_BYTES = 4096
#: Loads of a core, if there are rows for so many.
LOADS = 4


@dataclass
class Narrow(nl.NKIObject):
    """Sizes of one problem: see above."""

    U: int
    #: planes of y beside those, and the planes' own Axis
    V: int
    depth: Axis
    T: int
    #: lanes of images, the planes' Axis of one, and partitions from one to the next
    L: int
    lane: Axis
    apart: int
    #: groups of T columns of taps
    groups: int
    #: partitions from one tap's sums to the next one's; all partitions of sums
    slot: int
    outputs: int
    #: lines that meet a tap, as rows of x after the first; i of the first row; rows of a window, and of x from one
    #: block's to the next one's; the first block's first row
    lines: list
    place: int
    window: int
    step: int
    first: int
    #: (first, how many) of at most 128 input channels
    chunks: list
    #: first column of x that a tap meets, and how many there are to the last
    w0: int
    wn: int
    #: columns of x from one group of taps to the next; of sums before the first that the first group meets
    shift: int
    pad: int
    #: columns of sums as an axis that T taps meet
    sums: Axis
    #: (first output column, how many, first column of sums, how many) of each part of a row
    tiles: list
    #: images and blocks of a bank of sums
    images: int
    blocks: int
    #: rows of one load of x, and loads that are there together
    height: int
    buffers: int
    #: whether Scalar and GpSimd take some of Vector's additions
    shared: bool
    warmup: int


def is_legal(geometry, U, T):
    """Whether U rows of y and T columns of taps can share the array."""
    rows, columns = geometry.rows, geometry.columns
    fits = U * geometry.K <= nl.tile_size.pmax and T <= columns.taps
    fits = fits and T * slot_for(U * geometry.K) <= nl.tile_size.pmax
    whole = U * rows.stride % rows.lhs_dilation == 0
    return fits and whole and (T == columns.taps or T * columns.dilation % columns.lhs_dilation == 0)


def lanes_of(geometry, lanes):
    """The planes' Axis of each of so many lanes; None where images cannot be beside each other."""
    if lanes == 1:
        return geometry.planes
    plain = sees_itself(geometry.planes) and geometry.depth == None and geometry.frames == None
    fits = lanes * slot_for(geometry.C) <= nl.tile_size.pmax and lanes <= geometry.planes.out
    single = geometry.planes.images == 1
    return images_axis(div_ceil(geometry.planes.out, lanes)) if plain and fits and single else None


def lane_steps(geometry, narrow, step):
    """The BlockBand of each lane that has images in a step."""
    found = []
    for lane in range(narrow.L):
        z0 = step.z0 + lane * narrow.lane.out
        if z0 < geometry.planes.out:
            found.append(BlockBand(z0=z0, zn=min(step.zn, geometry.planes.out - z0), j0=step.j0, jn=step.jn))
    return found


def lane_parts(narrow, chunk):
    """Partitions of a chunk of x or of filters, of all lanes."""
    return (narrow.L - 1) * narrow.apart + narrow.chunks[chunk][1]


def make_narrow(geometry, config, has_residual):
    """The Narrow of NarrowSettings, or None where planes, rows and taps cannot share the array, no window meets x or a
    part of a row has no bank, or memory no room. All else of this file is for the Geometry `with_windows`."""
    U, T = config.outputs, config.taps
    depth = geometry.planes
    geometry = with_windows(geometry, config.depth)
    lane = lanes_of(geometry, config.lanes)
    if not is_legal(geometry, U, T) or window_channels(geometry) > nl.tile_size.pmax or lane == None:
        return None
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    w0, wn = span(columns, 0, columns.out)
    lines, place, window = lines_of(rows, U)
    if wn == 0 or len(lines) == 0:
        return None
    groups = div_ceil(columns.taps, T)
    shift = T * columns.dilation // columns.lhs_dilation if groups > 1 else 0
    pad = (groups - 1) * shift
    sums = Axis(
        size=wn + pad,
        taps=T,
        out=columns.out,
        stride=columns.stride,
        dilation=columns.dilation,
        lhs_dilation=columns.lhs_dilation,
        before=columns.before + (w0 - pad) * columns.lhs_dilation,
    )
    tiles = tiles_of(sums)
    if len(tiles) == 0:
        return None
    each = widest(tiles)
    all_blocks = div_ceil(rows.out, U)
    blocks = min(min(all_blocks, max(1, BANK_COLUMNS // each)), config.blocks)
    images = 1
    if blocks == all_blocks and len(tiles) == 1:
        volume = lane.out // lane.images
        images = min(min(volume, max(1, BANK_COLUMNS // (blocks * each))), config.images)
    step = U * rows.stride // rows.lhs_dilation
    row_bytes = axis_elements(lane, images) * wn * item
    height = max(1, config.x_bytes // row_bytes)
    unit = blocks * step
    height = min(height, max(unit, div_ceil(div_ceil(lane.out, images) * rows.size, PARTS * LOADS)))
    if height > unit:
        height = height // unit * unit
    chunks = chunks_of_windows(geometry)
    height = min(height, rows.size)
    narrow = Narrow(
        U=U,
        V=config.depth,
        depth=depth,
        T=T,
        L=config.lanes,
        lane=lane,
        apart=slot_for(geometry.C) if config.lanes > 1 else 0,
        groups=groups,
        slot=slot_for(U * geometry.K),
        outputs=(T - 1) * slot_for(U * geometry.K) + U * geometry.K,
        lines=lines,
        place=place,
        window=window,
        step=step,
        first=first_row(rows),
        chunks=chunks,
        w0=w0,
        wn=wn,
        shift=shift,
        pad=pad,
        sums=sums,
        tiles=tiles,
        images=images,
        blocks=blocks,
        height=height,
        buffers=max(loads_of_bank(blocks, step, window, height) + 1, config.buffers),
        shared=config.shared == 1,
        warmup=config.warmup,
    )
    return narrow if fits_sbuf(narrow_bytes(geometry, narrow, has_residual)) else None


def rows_of_piece(geometry, narrow, planes):
    """Rows of a transfer of so many planes, at least one: all of a short load."""
    row_bytes = planes * narrow.wn * geometry.itemsize
    if len(narrow.chunks) * narrow.height * row_bytes <= NARROW_WHOLE_BYTES:
        return narrow.height
    return max(1, NARROW_PIECE_BYTES // row_bytes)


def loads_of_bank(blocks, step, window, height):
    """Loads that hold all rows of a bank, whose lines may start in the last row of one."""
    return div_ceil((blocks - 1) * step + window + height - 1, height)


def narrow_fits(geometry, narrow):
    """Whether there is a Narrow, and all its outputs see x."""
    return meets_all(geometry, narrow) if narrow != None else False


def first_row(rows):
    """The row of x, perhaps one of padding, from which the window of output row 0 counts."""
    if rows.before <= 0:
        return div_ceil(-rows.before, rows.lhs_dilation)
    return -(rows.before // rows.lhs_dilation)


def lines_of(rows, U):
    """(rows of x that are lines of a block of U rows, i of the first row, rows of its window)."""
    start = first_row(rows) * rows.lhs_dilation + rows.before
    window = ((U - 1) * rows.stride + (rows.taps - 1) * rows.dilation - start) // rows.lhs_dilation + 1
    found = []
    for place in places_met(rows, U):
        if place >= start and (place - start) % rows.lhs_dilation == 0:
            found.append((place - start) // rows.lhs_dilation)
    return found, start, max(0, window)


def tiles_of(sums):
    """Parts of a row whose columns of sums fit a bank: (first output, how many, first column, how many); none where an
    output's window is wider than a bank, or meets nothing."""
    if widest_window(sums) > BANK_COLUMNS:
        return []
    for parts in range(min(sums.out, div_ceil(sums.size, BANK_COLUMNS)), sums.out + 1):
        outputs = cut_into(sums.out, parts)
        found = []
        for index in range(parts):
            low, count = span(sums, outputs[index][0], outputs[index][1])
            if 0 < count and count <= BANK_COLUMNS:
                found.append((outputs[index][0], outputs[index][1], low, count))
            elif count == 0:
                return []
        if len(found) == parts:
            return found
    return []


def widest_window(sums):
    """Columns of sums from the first to the last that one output meets, of the output that meets most."""
    widest = 0
    for tap in range(sums.taps):
        for other in range(tap, sums.taps):
            first, last = met(sums, tap, 0, sums.out), met(sums, other, 0, sums.out)
            # both meet every first[1]-th output
            low = max(first[0], last[0])
            end = min(first[0] + first[1] * first[2], last[0] + last[1] * last[2])
            if (first[0] - last[0]) % first[1] == 0 and low < end:
                widest = max(widest, (other - tap) * sums.dilation // sums.lhs_dilation + 1)
    return widest


def columns_of_group(narrow, g, tile):
    """((first column of sums, how many), how many of these no group before it meets) that a group of taps meets in a
    part of a row; groups further from each other than a row is long leave some out."""
    low = narrow.pad - g * narrow.shift
    first, end = max(tile[2], low), min(tile[2] + tile[3], low + narrow.wn)
    fresh = end if g == 0 else min(end, low + narrow.shift)
    return (first, max(0, end - first)), max(0, fresh - first)


def widest(tiles):
    """Most columns of sums of a part of a row."""
    most = 0
    for tile in tiles:
        most = max(most, tile[3])
    return most


def zeros_ahead(narrow):
    """Banks whose zeros GpSimd writes ahead, more where it has additions too."""
    return 4 if narrow.shared else 1


@dataclass
class OutputsMet(nl.NKIObject):
    """Every step-th output of a part of a row from the first on, that the same taps meet: (tap, where it meets x, as
    `geometry.met` says), one that meets all of them last, and another first if there is one."""

    first: int
    step: int
    count: int
    taps: list


def outputs_of_tile(narrow, tile):
    """All OutputsMet of a part of a row: where x is dilated those between its elements are apart, as far as any tap
    meets each."""
    every, found = taps_by_cover(narrow.sums, tile[0], tile[1]), []
    step = every[0][1][1]
    for tap in every:
        step = 1 if tap[1][1] != step else step
    for first in range(min(step, tile[1])):
        count, whole, partial = div_ceil(tile[1] - first, step), [], []
        for tap in every:
            if (tap[1][0] - tile[0]) % step == first:
                if tap[1][1] * tap[1][2] == step * count:
                    whole.append(tap)
                else:
                    partial.append(tap)
        order = whole[1:] + partial + whole[0:1]
        if len(order) == 0:
            return [OutputsMet(first=0, step=1, count=tile[1], taps=every)]
        found.append(OutputsMet(first=first, step=step, count=count, taps=order))
    return found


def steps_of(geometry, narrow):
    """All steps: BlockBands of blocks of U rows, each one bank of sums, or one for each tile."""
    return block_bands(narrow.lane, num_blocks(geometry, narrow), step_parts(geometry, narrow))


def step_parts(geometry, narrow):
    """Parts that images and blocks are cut into for the steps."""
    return parts_for_cores(narrow.lane, narrow.images, num_blocks(geometry, narrow), narrow.blocks)


def num_blocks(geometry, narrow):
    """Blocks of an image."""
    return div_ceil(geometry.rows.out, narrow.U)


def rows_met(geometry):
    """(first, end) of the rows of x that a tap meets."""
    low, count = span(geometry.rows, 0, geometry.rows.out)
    return low, low + count


def meets_all(geometry, narrow):
    """Whether every block of rows has a line on a row of x, so that its sums are written."""
    low, end = rows_met(geometry)
    for j in range(num_blocks(geometry, narrow)):
        found = False
        for line in narrow.lines:
            h = narrow.first + j * narrow.step + line
            found = found or (low <= h and h < end)
        if not found:
            return False
    return True


def narrow_bytes(geometry, narrow, has_residual):
    """Bytes a partition, at most: x, filters as loaded, transposed and laid out, results."""
    item, taps = geometry.itemsize, num_taps(geometry)
    x_bytes = axis_elements(narrow.lane, narrow.images) * narrow.height * narrow.wn * item
    raw_bytes = min(narrow.L * geometry.C, nl.tile_size.pmax) * taps * item
    transposed_bytes = taps * geometry.K * item
    filters = geometry.planes.taps * len(narrow.lines) * narrow.groups * narrow.T * narrow.slot * item
    # y and a residual as it is and scaled; sums of the taps of banks, and before an activation or of the last tap
    results = (3 if has_residual else 1) * geometry.columns.out
    rows_bytes = 4 * (results + (3 + zeros_ahead(narrow)) * most_of(narrow.tiles))
    chunks = len(narrow.chunks) * (narrow.buffers * x_bytes + raw_bytes + transposed_bytes + filters)
    return chunks + narrow.L * narrow.images * narrow.blocks * rows_bytes + 1024
