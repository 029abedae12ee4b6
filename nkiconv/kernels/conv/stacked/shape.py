"""The sizes of a stack, and how the work is cut into bands of whole output blocks: see `plan.py` for what they mean."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import axis_elements, block_bands, num_plane_parts, parts_for_cores, window_of
from ....schedules.geometry import filter_rows, met
from ....schedules.tiles import BANK_COLUMNS, PARTS, QUADRANT, cut, div_ceil, fits_sbuf, whole_words

#: Bytes a partition of x of one band and of all buffers of bands, of the filters of all jobs, and of the zero-padded
#: filters of all jobs that are on their way.
STACKED_X_BYTES = 32_768
RING_BYTES = 65_536
STACKED_FILTER_BYTES = 65_536
PADDED_BYTES = 49_152
#: Bytes a partition of fp32 results of one band and job, half of that with a residual.
STACKED_Y_BYTES = 32_768
#: Bytes a partition of residuals, unless those of two bands and jobs take more.
RESIDUAL_BYTES = 32_768
#: Bands of a core, if there are images for so many: loads of one overlap the sums of another.
BANDS = 4
#: Most buffers of bands.
RING = 4
#: Columns of a matmul that keep the array busy until the next one.
STACKED_COLUMNS = 128
#: Parts that the filters of a job are read out in at least.
FILTER_PARTS = 3
#: Pieces that the loads of the first band come in, if it is of so many tiles.
LEAST_PIECES = 6
#: Bytes of w that must lie side by side for it to be loaded straight to where it is wanted.
LONG_RUN_BYTES = 512
#: How filters come to the partitions of (u, k), shifted down for each u: by DMAs of their own, as they are and then
#: shifted on chip, or not at all: they stay at k, and each u has transposes of its own.
WAYS = ("straight", "shifted", "apart")


@dataclass
class Stack(nl.NKIObject):
    """Sizes: see `plan.py`. kn: output channels of a job; jobs: (first, how many) of each."""

    B: int
    D: int
    U: int
    #: rows of y side by side in one block of a partition
    V: int
    #: padded rows of x from one block of X to the next
    G: int
    #: blocks of X from one output block to the next, and that the first output block meets
    step: int
    reach: int
    #: rows of zeros in front of the filters, so that output rows that are no multiple of G rows of x apart have their
    #: own stationaries: how many rows each of them looks back, by v modulo their number
    phases: list
    front: int
    #: how filters come to their places, one of WAYS
    filters: str
    #: partitions of X
    parts: int
    num_taps: int
    groups: int
    kn: int
    jobs: list
    #: images and output blocks (of U * V rows) of a band, at most
    images: int
    blocks: int
    #: columns of X: all that a window meets, zeros included, or x's own, and the group of taps that meets all outputs
    #: then, which comes first; -1: the columns hold the zeros
    width: int
    whole: int
    #: outputs that see an element of x, over all columns of taps
    met: int
    #: buffers of bands, at most
    ring: int
    #: elements a partition that are cleared before the second band is loaded
    hold: int
    #: matmuls on zeros, and how many of them follow the first filters' transposes
    warmup: int
    late_warmup: int
    #: rows of padding above x in X
    top: int
    #: depthwise: M tiles whose stationaries are loaded together, and those of the first round that are zeroed before w
    #: is loaded; 0 of others
    together: int = 0
    early: int = 0
    #: bytes per partition of stationaries and of what they are made of
    filter_bytes: int = 0

    def is_diagonal(self):
        """Whether stationaries are block-diagonal: each job has x of its own, (c, b) on the partitions, and (k, u) in
        the columns. The cores share jobs then, bands of all jobs otherwise."""
        return self.together > 0


def make_stack(geometry, counts, config, has_residual):
    """A Stack of a StackedConfig, or None where memory does not hold it. counts: what `met_counts` returns."""
    planes, rows, columns = geometry.planes, geometry.rows, geometry.columns
    B, D, U, V, G = config.rows, config.shifts, config.outputs, config.beside, config.apart
    item, seen = geometry.itemsize, axis_elements(planes, 1)
    phases = phases_of(rows.stride, V, G)
    front = max(phases)
    num_taps = taps_of_window(rows, B, U, V, front)
    groups = div_ceil(columns.taps, D)
    padded = planes.taps * geometry.C * (front + (U - 1) * V * rows.stride + num_taps * B) * columns.taps * item
    # bytes of an output channel's filters
    each = planes.taps * len(phases) * num_taps * groups * U * item
    if padded > PADDED_BYTES or geometry.K * each > STACKED_FILTER_BYTES:
        return None
    jobs = stacked_jobs(geometry.K, nl.tile_size.pmax // U)
    kn = jobs[-1][1]
    whole = whole_group(columns, counts, div_ceil(rows.out, U * V)) if D == 1 else -1
    width = x_width(columns, whole, (groups - 1) * D + 1)
    row_bytes = width * item
    step = U * V * rows.stride // G
    reach = (V - 1) * rows.stride // G + (num_taps - 1) * B // G + 1
    # blocks that x and results have room for
    x_most = max(0, (STACKED_X_BYTES // (seen * row_bytes) - reach) // step + 1)
    y_most = (STACKED_Y_BYTES // 2 if has_residual else STACKED_Y_BYTES) // (4 * V * columns.out)
    blocks = min(min(div_ceil(rows.out, U * V), x_most), max(1, y_most))
    if seen * reach * row_bytes > STACKED_X_BYTES or blocks < 1 or len(jobs) * kn * each > STACKED_FILTER_BYTES:
        return None
    images = 1
    if planes.taps > 1:
        images, blocks = planes_together(geometry, (step, reach, U * V), row_bytes, y_most, min(blocks, config.blocks))
    elif blocks * U * V >= rows.out:
        images = max(1, min(div_ceil(planes.out, PARTS * BANDS), BANK_COLUMNS // (blocks * columns.out)))
        images = min(images, planes.out // planes.images)
        plane_bytes = row_bytes * ((blocks - 1) * step + reach)
        while images > 1 and axis_elements(planes, images) * plane_bytes > STACKED_X_BYTES:
            images -= 1
    band_bytes = axis_elements(planes, images) * ((blocks - 1) * step + reach) * row_bytes
    stack = Stack(
        B=B,
        D=D,
        U=U,
        V=V,
        G=G,
        step=step,
        reach=reach,
        phases=phases,
        front=front,
        filters=config.filters,
        parts=D * B * geometry.C,
        num_taps=num_taps,
        groups=groups,
        kn=kn,
        jobs=jobs,
        images=min(images, config.images),
        blocks=min(blocks, config.blocks),
        width=width,
        whole=whole,
        met=sum(counts),
        ring=max(2, min(RING, RING_BYTES // band_bytes)),
        hold=config.hold,
        warmup=config.warmup,
        late_warmup=min(config.late_warmup, config.warmup),
        top=rows.before,
    )
    stack.filter_bytes = padded_bytes(geometry, stack)
    return stack if fits_sbuf(stack_bytes(geometry, stack, has_residual)) else None


def can_shift(geometry, U):
    """Whether engines may address the partitions of the filters of each of U rows of all jobs."""
    return U == 1 or by_quadrants(geometry.K, nl.tile_size.pmax // U)


def by_quadrants(K, most):
    """Whether jobs of at most `most` output channels, as few as can be, may be of whole quadrants."""
    units = most // QUADRANT
    return units > 0 and K % QUADRANT == 0 and div_ceil(K // QUADRANT, units) <= div_ceil(K, most)


def stacked_jobs(K, most):
    """(first, how many) of jobs of at most `most` output channels, by quadrants where that makes no more of them."""
    unit = QUADRANT if by_quadrants(K, most) else 1
    return [(first * unit, count * unit) for first, count in cut(K // unit, most // unit)]


def phases_of(stride, V, G):
    """Rows of x from a block of X to where output row v begins, for v from 0 on until they repeat."""
    found = []
    for v in range(V):
        phase = (v * stride) % G
        if v == 0 or (phase != 0 and len(found) == v):
            found.append(phase)
    return found


def taps_of_window(rows, B, U, V, front):
    """Blocks of B rows that hold the window of U output rows V apart, from any phase on."""
    return div_ceil(window_of(rows, (U - 1) * V + 1) + front, B)


def met_counts(columns):
    """Outputs that see an element of x, of each column of taps."""
    return [met(columns, tap, 0, columns.out)[2] for tap in range(columns.taps)]


def whole_group(columns, counts, blocks):
    """The middlemost column of taps that meets x at all outputs; -1 where none does, or where sums of so many blocks
    without the zeros are too short to keep the array busy."""
    found, fewest = -1, columns.out
    for tap in range(columns.taps):
        fewest = min(fewest, counts[tap])
        if counts[tap] == columns.out and (found < 0 or 2 * tap <= columns.taps):
            found = tap
    long = min(blocks, max(1, BANK_COLUMNS // columns.out)) * fewest >= STACKED_COLUMNS
    return found if long or 4 * fewest >= 3 * columns.out else -1


def x_width(columns, whole, taps):
    """Columns of X: x's own, or without a `whole_group` all that so many columns of taps see, zeros included."""
    return columns.size if whole >= 0 else (columns.out - 1) * columns.stride + (taps - 1) * columns.dilation + 1


def order_of_groups(stack):
    """Groups of columns of taps, the one that meets all outputs first."""
    return sorted(range(stack.groups), key=lambda g: g != stack.whole)


def columns_of(geometry, stack, g):
    """Columns of taps of a group."""
    return min(stack.D, geometry.columns.taps - g * stack.D)


def cut_columns(Q):
    """(first column, how many) of the sums that share a bank of PSUM."""
    return cut(Q, BANK_COLUMNS)


def planes_of_tiles(zn, Q):
    """(first plane, how many) of those of a band whose sums share a bank of PSUM."""
    widest = cut_columns(Q)[-1][1]
    return cut(zn, max(1, BANK_COLUMNS // widest))


def tiles_of_band(band, Q, last):
    """((first block, how many), ..), ((first column, how many), ..) of the sums of a band that share a bank of PSUM.

    last: whether nothing follows, so that the read-out and the store of the last sums should be short.
    """
    columns = cut_columns(Q)
    widest = columns[-1][1]
    parts = cut(band.jn, max(1, BANK_COLUMNS // (band.zn * widest)))
    first, count = parts[-1]
    if last and count // 2 * band.zn * widest >= STACKED_COLUMNS:
        parts[-1] = (first, count - count // 2)
        parts.append((first + count - count // 2, count // 2))
    return parts, columns


def first_pieces(stack, band, Q):
    """Where the loads of the first band end: each piece is for twice as many tiles of sums as the one before, but none
    for more than a share of all, as the sums of the last begin when all is there."""
    parts = tiles_of_band(band, Q, False)[0]
    found = []
    index, step = 0, 1
    while index < len(parts):
        index += step
        step = min(2 * step, div_ceil(len(parts), LEAST_PIECES))
        last = parts[min(index, len(parts)) - 1]
        found.append(band_rows(stack, last[0] + last[1]))
    return found


def band_counts(geometry, stack):
    """Parts that the images, and the blocks of each, are cut into."""
    return parts_for_cores(geometry.planes, stack.images, div_ceil(geometry.rows.out, stack.U * stack.V), stack.blocks)


def planes_together(geometry, window, row_bytes, y_most, most_blocks):
    """(planes of outputs, blocks) of a band that loads each plane of x least often: planes whose sums of one block
    share a bank, as many blocks as there is room for then, and several bands for each core. window: (step, reach, rows
    of outputs) of blocks; y_most: of results."""
    planes, columns = geometry.planes, geometry.columns
    step, reach, height = window
    found, least = (1, most_blocks), 0
    for images in range(1, min(planes.out // planes.images, max(1, BANK_COLUMNS // columns.out)) + 1):
        seen = axis_elements(planes, images)
        blocks = min(min(most_blocks, y_most // images), (STACKED_X_BYTES // (seen * row_bytes) - reach) // step + 1)
        bands = num_plane_parts(planes, images) * div_ceil(div_ceil(geometry.rows.out, height), max(1, blocks))
        if blocks >= 1 and (images == 1 or bands >= PARTS * BANDS):
            # rows of x a row of outputs, in thousandths
            loaded = 1000 * seen * ((blocks - 1) * step + reach) // (images * blocks * step)
            if least == 0 or loaded < least:
                found, least = (images, blocks), loaded
    return found


def stack_bands(geometry, stack):
    """All bands, as even as can be; of a depthwise stack the volumes."""
    blocks = div_ceil(geometry.rows.out, stack.U * stack.V)
    counts = (geometry.planes.images, 1) if stack.is_diagonal() else band_counts(geometry, stack)
    return block_bands(geometry.planes, blocks, counts)


def band_rows(stack, blocks):
    """Blocks of X that so many output blocks meet."""
    return (blocks - 1) * stack.step + stack.reach


def whole_blocks(rows, stack, m0, mn):
    """(first, end) of the blocks of X, among mn from m0 on, all of whose B padded rows are x's."""
    first = max(m0, div_ceil(max(0, stack.top), stack.G))
    room = rows.size + stack.top - stack.B
    end = min(m0 + mn, room // stack.G + 1) if room >= 0 else m0
    return (m0, m0) if end <= first else (first, end)


def fits_window(geometry, stack):
    """Whether w needs neither zeros nor a shift."""
    return stack.U == 1 and stack.front == 0 and stack.num_taps * stack.B == geometry.rows.taps


def lead_of(geometry, stack):
    """Rows of Z before the filters of the first output row."""
    return stack.front + ((stack.U - 1) * stack.V * geometry.rows.stride if stack.filters == "apart" else 0)


def padded_elements(geometry, stack):
    """Elements a partition of the zero-padded filters of one job, in whole words."""
    height = lead_of(geometry, stack) + stack.num_taps * stack.B
    return whole_words(geometry.planes.taps * geometry.C * height * geometry.columns.taps, geometry.itemsize)


def jobs_ahead(geometry, stack):
    """Jobs whose filters may be on their way at a time."""
    return max(2, PADDED_BYTES // (padded_elements(geometry, stack) * geometry.itemsize))


def result_bytes(geometry, stack):
    """Bytes a partition of the results of a band and job, or of a residual, at most."""
    return 4 * stack.images * stack.blocks * stack.V * geometry.columns.out


def residual_depth(geometry, stack):
    """Residuals of bands and jobs that may be on their way or in use: of two bands, if there is room."""
    return max(2, min(2 * len(stack.jobs), RESIDUAL_BYTES // result_bytes(geometry, stack)))


def filters_of_job(geometry, stack):
    """Stationaries of a job."""
    return geometry.planes.taps * len(stack.phases) * stack.num_taps * stack.groups


def padded_bytes(geometry, stack):
    """Bytes a partition of filters, as they are loaded and as they are transposed."""
    item = geometry.itemsize
    padded = 2 * min(len(stack.jobs), jobs_ahead(geometry, stack)) * padded_elements(geometry, stack) * item
    return padded + len(stack.jobs) * filters_of_job(geometry, stack) * stack.U * stack.kn * item


def stack_bytes(geometry, stack, has_residual):
    """Bytes a partition, at most."""
    item = geometry.itemsize
    x_bytes = axis_elements(geometry.planes, stack.images) * band_rows(stack, stack.blocks) * stack.width * item
    y_bytes = result_bytes(geometry, stack)
    results = (4 + residual_depth(geometry, stack) if has_residual else 2) * y_bytes
    return stack.ring * x_bytes + stack.filter_bytes + results + 4096


def stack_instructions(geometry, stack, cores):
    """Instructions of a core, at most."""
    bands = div_ceil(len(stack_bands(geometry, stack)), cores)
    # two blocks or columns more than fill a bank are halved, and so is the last bank
    halves = div_ceil(stack.blocks * geometry.columns.out, BANK_COLUMNS // 2)
    banks = stack.V * stack.images * (2 * halves + 4)
    stores = 2 * (stack.U + stack.images) * (2 + halves)
    taps = geometry.planes.taps * stack.num_taps * stack.groups
    job = banks * (taps + 3) + stores + 3 * stack.U + stack.U * stack.V + 4
    plane = 2 * stack.num_taps * max(1, stack.B // stack.G) + stack.step + 16
    loads = stack.D * axis_elements(geometry.planes, stack.images) * plane + 8
    copies = len(stack.phases) * taps * (1 + stack.U) + 4 * stack.U + 9
    copies += filter_rows(geometry) * geometry.columns.taps if geometry.flipped else 0
    pieces = filter_rows(geometry) * stack.U if geometry.rows.dilation > 1 else geometry.planes.taps * 3 * stack.U
    return 404 + stack.warmup + bands * (loads + len(stack.jobs) * job) + len(stack.jobs) * (copies + pieces)
