"""What several algorithms cut alike: jobs into batches, outputs into bands and banks, filters into blocks of taps."""

from dataclasses import dataclass

from ..._nki import nl
from .._tiles import BANK_COLUMNS, PARTS, cut_into, div_ceil, share, some_of
from .geometry import filter_rows


@dataclass
class Band(nl.NKIObject):
    """Outputs z0 .. z0+zn-1, p0 .. p0+pn-1, q0 .. q0+qn-1 along planes, rows and columns, and the elements d, h, w of
    x that they need."""

    z0: int
    zn: int
    p0: int
    pn: int
    q0: int
    qn: int
    d0: int
    dn: int
    h0: int
    hn: int
    w0: int
    wn: int


@dataclass
class Bank(nl.NKIObject):
    """One bank of sums: planes, rows and columns from the first of its band."""

    z: int
    zn: int
    p: int
    pn: int
    q: int
    qn: int


@dataclass
class Outputs(nl.NKIObject):
    """Outputs z0 .. z0+zn-1, p0 .. p0+pn-1, q0 .. q0+qn-1 along planes, rows and columns."""

    z0: int
    zn: int
    p0: int
    pn: int
    q0: int
    qn: int


def same_place(one, other):
    """Whether two bands are outputs of the same planes, rows and columns."""
    rows = one.p0 == other.p0 and one.pn == other.pn
    return rows and one.q0 == other.q0 and one.qn == other.qn and one.z0 == other.z0 and one.zn == other.zn


def copy_of_band(band):
    """The same Band, of which some things are then changed."""
    return Band(
        z0=band.z0,
        zn=band.zn,
        p0=band.p0,
        pn=band.pn,
        q0=band.q0,
        qn=band.qn,
        d0=band.d0,
        dn=band.dn,
        h0=band.h0,
        hn=band.hn,
        w0=band.w0,
        wn=band.wn,
    )


def cut_planes(axis, parts):
    """(first, how many) of so many parts of outputs, as even as can be, or of a few more: none has planes of two
    volumes."""
    return cut_volumes(axis.out, axis.images, parts)


def cut_volumes(count, volumes, parts):
    """The same of so many planes of `volumes` together."""
    if volumes == 1:
        return cut_into(count, parts)
    each, found = count // volumes, []
    for volume in range(volumes):
        for part in cut_into(each, min(each, div_ceil(parts, volumes))):
            found.append((volume * each + part[0], part[1]))
    return found


def num_plane_parts(axis, most):
    """Parts of at most so many planes that none of two volumes are in."""
    return axis.images * div_ceil(axis.out // axis.images, most)


def axis_elements(axis, count):
    """Most elements of an axis that neighbouring outputs need."""
    return min(axis.size // axis.images, (window_of(axis, count) - 1) // axis.lhs_dilation + 1)


def bank_unit(images, pn, qn, step):
    """Rows of outputs that fill a bank of PSUM, a multiple of `step`."""
    rows = min(pn, max(1, BANK_COLUMNS // (images * min(qn, BANK_COLUMNS))))
    return max(step, rows // step * step)


def in_batches(jobs, most, halves):
    """Jobs in batches of at most `most`, as even as can be; as many of the first of two halves as of the other, so that
    two cores can share them, where halves is 2."""
    found = []
    count = div_ceil(div_ceil(len(jobs), halves), most)
    for half in range(halves):
        mine = share(len(jobs), halves, half)
        for part in cut_into(mine[1], min(count, mine[1])):
            found.append(some_of(jobs, (mine[0] + part[0], part[1])))
    return found


def chunks_of(batch):
    """Chunks of input channels that a batch's jobs need, each once, in order."""
    found = batch[0].chunks[:]
    for index in range(1, len(batch)):
        chunks, before = batch[index].chunks, batch[index - 1].chunks
        if chunks != before:
            for chunk in chunks:
                if chunk not in found:
                    found.append(chunk)
    return found


def tap_blocks(geometry, elements, most_bytes):
    """Blocks of taps that are loaded together: all, some rows, or part of a row.

    elements: of a tap, a partition; most_bytes: of a block, if it has several taps.
    """
    most = max(1, most_bytes // (elements * geometry.itemsize))
    return blocks_of_taps(filter_rows(geometry), geometry.columns.taps, most)


def put_first(products, first):
    """A list with one of its things before all others: the product that writes where the others add."""
    return [products[first]] + products[:first] + products[first + 1 :]


def blocks_of_taps(R, S, most):
    """(first row, rows, first column, columns) of blocks of at most `most` of R x S taps."""
    height, width = min(R, max(1, most // S)), min(S, most)
    found = []
    for r0 in range(0, R, height):
        for s0 in range(0, S, width):
            found.append((r0, min(height, R - r0), s0, min(width, S - s0)))
    return found


@dataclass
class BlockBand(nl.NKIObject):
    """Blocks of neighbouring rows of outputs j0 .. j0+jn-1 of planes z0 .. z0+zn-1."""

    z0: int
    zn: int
    j0: int
    jn: int


def block_bands(planes, blocks, parts):
    """BlockBands of all planes and blocks, as even as can be; parts: that planes, and blocks of each, are cut into."""
    found = []
    for image in cut_planes(planes, parts[0]):
        for block in cut_into(blocks, parts[1]):
            found.append(BlockBand(z0=image[0], zn=image[1], j0=block[0], jn=block[1]))
    return found


def combined(planes, rows, columns):
    """(plane, row, column) of all things of three lists, columns first."""
    found = []
    for plane in planes:
        for row in rows:
            for column in columns:
                found.append((plane, row, column))
    return found


def part_of_core(things):
    """(index of the first, the things) of this core's part of some."""
    mine = share(len(things), nl.num_programs(), nl.program_id(0))
    return mine[0], some_of(things, mine)


def largest_band(bands):
    """(images, blocks) of the largest of some BlockBands."""
    images, blocks = 1, 1
    for band in bands:
        images, blocks = max(images, band.zn), max(blocks, band.jn)
    return images, blocks


def parts_for_cores(planes, most_planes, blocks, most_blocks):
    """(parts of all planes, parts of the blocks of each), as many as cores, or times as many, where that can be."""
    image_parts, block_parts = num_plane_parts(planes, most_planes), div_ceil(blocks, most_blocks)
    if image_parts * block_parts % PARTS == 1 and image_parts < planes.out:
        image_parts = len(cut_planes(planes, image_parts + 1))
    elif image_parts * block_parts % PARTS == 1 and block_parts < blocks:
        block_parts += 1
    return image_parts, block_parts


def most_of(parts):
    """Most of any of some (first, how many)."""
    most = 0
    for part in parts:
        most = max(most, part[1])
    return most


def window_of(axis, outputs):
    """Elements of an axis that so many neighbouring outputs span."""
    return (outputs - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1


def places_met(axis, outputs):
    """Places of the window of neighbouring outputs at which a tap is, ascending."""
    last = axis.taps - 1
    found, place = [], 0
    if axis.dilation == 1 and axis.taps >= axis.stride:
        for each in range(window_of(axis, outputs)):
            found.append(each)
        return found
    while place >= 0:
        found.append(place)
        following = -1
        for u in range(outputs):
            # the first tap of this output behind the place
            tap = max(0, (place - u * axis.stride) // axis.dilation + 1)
            at = u * axis.stride + tap * axis.dilation
            if tap <= last and (following < 0 or at < following):
                following = at
        place = following
    return found


def places_inside(first, step, count, size):
    """(first, end) of the places first, first + step, .. that are in 0 .. size-1, of so many."""
    low = min(count, div_ceil(max(0, -first), step))
    end = div_ceil(max(0, size - first), step)
    return low, max(low, min(count, end))
