"""Depthwise stacks: sizes of block-diagonal stationaries, which are Toeplitz matrices over whole columns of x.

An M tile is A channels, with all H rows of x on the partitions and all P rows of y in the columns: B = H, U = P, and
padding above and below is zeros of the stationaries, not rows of X. See `plan.py`.
"""

from ...._nki import nl
from ....schedules.cuts import axis_elements, window_of
from ....schedules.geometry import filter_rows
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut_at, div_ceil, fits_sbuf, whole_words
from .shape import Stack, cut_columns, met_counts, planes_of_tiles, stack_bytes, whole_group, x_width

#: Bytes a partition of the stationaries of one round of M tiles, of all buffers of x, and of the stationaries that are
#: zeroed before w is loaded: what Vector and GpSimd write until then.
ROUND_BYTES = 40_960
X_BYTES = 49_152
EARLY_BYTES = 10_800
#: Buffers of stationaries: one is filled while the other is used.
ROUND_BUFFERS = 2
#: Each matmul of a warm-up is of so many times 128 columns.
WARM_UP_BLOCKS = 4


def channels_most(geometry):
    """Channels of an M tile at most; each core has one."""
    rows = geometry.rows
    return min(max(1, div_ceil(geometry.C, PARTS)), nl.tile_size.pmax // max(rows.size, rows.out))


def make_diagonal(geometry, config, has_residual):
    """A Stack of a DepthwiseConfig, or None where memory does not hold an M tile, or all that is needed at a time."""
    planes, rows, columns, A = geometry.planes, geometry.rows, geometry.columns, config.channels
    counts, each = met_counts(columns), tile_bytes(geometry, A)
    # how sums begin must not depend on the number of planes: a video may come in chunks
    whole = whole_group(columns, counts, BANK_COLUMNS)
    if each > ROUND_BYTES or 2 * load_bytes(geometry, whole) > X_BYTES:
        return None
    jobs = cut_at(geometry.C, A)
    # rounds as even as can be
    share_jobs = div_ceil(len(jobs), PARTS)
    rounds = div_ceil(share_jobs, min(config.together, min(share_jobs, ROUND_BYTES // each)))
    together = div_ceil(share_jobs, rounds)
    stack = Stack(
        B=rows.size,
        D=1,
        U=rows.out,
        V=1,
        G=rows.out * rows.stride,
        step=1,
        reach=1,
        phases=[0],
        front=0,
        filters="runs",
        parts=A * rows.size,
        num_taps=1,
        groups=columns.taps,
        kn=A,
        jobs=jobs,
        images=planes.out // planes.images,
        blocks=1,
        width=x_width(columns, whole, columns.taps),
        whole=whole,
        met=sum(counts),
        ring=config.buffers,
        hold=0,
        warmup=config.warmup,
        late_warmup=0,
        top=0,
        together=together,
        early=min(together, EARLY_BYTES // each),
        filter_bytes=ROUND_BUFFERS * together * each + reversed_bytes(geometry),
    )
    return stack if fits_sbuf(stack_bytes(geometry, stack, has_residual)) else None


def tile_bytes(geometry, A):
    """Bytes a partition of the stationaries of an M tile."""
    return A * geometry.planes.taps * matrix_elements(geometry) * geometry.itemsize


def matrix_elements(geometry):
    """Elements a partition of the stationaries of a channel and plane of taps, in whole words."""
    return whole_words(outputs_window(geometry.rows) * geometry.columns.taps, geometry.itemsize)


def load_bytes(geometry, whole):
    """Bytes a partition of X of an M tile and volume."""
    planes, columns = geometry.planes, geometry.columns
    seen = axis_elements(planes, planes.out // planes.images)
    return seen * x_width(columns, whole, columns.taps) * geometry.itemsize


def buffers_most(geometry):
    """Buffers of x that there is room for, as many of each volume, 2 to 128."""
    columns, volumes = geometry.columns, geometry.planes.images
    whole = whole_group(columns, met_counts(columns), BANK_COLUMNS)
    most = X_BYTES // max(1, volumes * load_bytes(geometry, whole)) * volumes
    return max(2, min(nl.tile_size.pmax, most))


def reversed_rows(geometry):
    """Rows of a filter with its dilation."""
    return window_of(geometry.rows, 1)


def outputs_window(rows):
    """Rows of the reversed filter that all outputs span, of one row of x."""
    return (rows.out - 1) * rows.stride + 1


def run_of(geometry, h):
    """(row of the window of outputs, row of the reversed filter, how many) that row h of x meets; none is 0."""
    rows, depth = geometry.rows, reversed_rows(geometry)
    # output p meets row p * stride + r * dilation - before of x at tap r
    place = h + rows.before - depth + 1
    first = max(0, place)
    return first, first - place, max(0, min(outputs_window(rows), place + depth) - first)


def runs_of_round(geometry, A):
    """DMAs of the stationaries of a round."""
    return A * sum(run_of(geometry, h)[2] > 0 for h in range(geometry.rows.size))


def reversed_bytes(geometry):
    """Bytes a partition of filters as they are loaded and reversed."""
    taps = geometry.planes.taps * (reversed_rows(geometry) + geometry.rows.taps) * geometry.columns.taps
    return 4 * taps * geometry.itemsize


def diagonal_instructions(geometry, stack, cores):
    """Instructions of a core, at most."""
    planes, columns, volumes = geometry.planes, geometry.columns, geometry.planes.images
    jobs = div_ceil(len(stack.jobs), cores)
    rounds = div_ceil(jobs, stack.together) + ROUND_BUFFERS
    made = rounds * (runs_of_round(geometry, stack.kn) + stack.together)
    filters = (div_ceil(geometry.C, nl.tile_size.pmax) + 1) * (
        max(filter_rows(geometry), planes.taps * columns.taps) + 4
    )
    banks = len(planes_of_tiles(stack.images, columns.out)) * len(cut_columns(columns.out))
    sums = banks * (planes.taps * columns.taps + 4)
    return 96 + stack.warmup + jobs * volumes * (sums + 16) + made + filters
