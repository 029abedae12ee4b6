"""The sizes of the matrices, and how filters meet the rows of x: see `plan.py` for what they mean."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, fits_sbuf, whole_words
from ..cuts import window_of
from ..geometry import filter_rows, span

#: Bytes a partition of the matrices of one round of groups, and of all buffers of x.
TOEPLITZ_BYTES = 40_960
TOEPLITZ_X_BYTES = 49_152
#: Each matmul on zeros, while the first matrices, which pass HBM, are on their way, is of so many times 128 columns.
WARM_UP_BLOCKS = 4
#: Buffers of matrices that groups take in turn.
TOEPLITZ_BUFFERS = 2


@dataclass
class Toeplitz(nl.NKIObject):
    """Sizes of one problem."""

    #: channels of a group, and groups
    A: int
    groups: int
    #: groups whose matrices are made together
    together: int
    #: groups of the first round that Vector zeroes, with GpSimd, before w comes
    early: int
    #: rows of the reversed filter with its dilation
    depth: int
    #: elements of a matrix: of the window that all outputs of a row of x span, in whole words
    size: int
    #: columns of x that any tap meets: the first, and how many
    w0: int
    width: int
    buffers: int
    warmup: int


def most_channels_of_group(geometry):
    """Channels of a group at most; each core has a group."""
    rows = geometry.rows
    return min(max(1, div_ceil(geometry.C, PARTS)), nl.tile_size.pmax // max(rows.size, rows.out))


def sizes_of_toeplitz(geometry, config, has_residual):
    """The Toeplitz of a ToeplitzConfig, or None where memory does not hold a group, or all that is needed at a time."""
    columns, A = geometry.columns, config.channels
    groups = div_ceil(geometry.C, A)
    met = span(columns, 0, columns.out)
    each = group_bytes(geometry, A)
    if each > TOEPLITZ_BYTES or 2 * geometry.planes.size * met[1] * geometry.itemsize > TOEPLITZ_X_BYTES:
        return None
    # rounds as even as can be
    share_groups = div_ceil(groups, PARTS)
    rounds = div_ceil(share_groups, min(config.together, min(share_groups, TOEPLITZ_BYTES // each)))
    together = div_ceil(share_groups, rounds)
    toeplitz = Toeplitz(
        A=A,
        groups=groups,
        together=together,
        early=min(together, config.early),
        depth=window_of(geometry.rows, 1),
        size=whole_words(window_of_outputs(geometry.rows) * columns.taps, geometry.itemsize),
        w0=met[0],
        width=met[1],
        buffers=config.buffers,
        warmup=config.warmup,
    )
    return toeplitz if fits_sbuf(toeplitz_bytes(geometry, toeplitz, has_residual)) else None


def group_bytes(geometry, A):
    """Bytes a partition of the matrices of a group."""
    taps = geometry.planes.taps * geometry.columns.taps
    return A * window_of_outputs(geometry.rows) * taps * geometry.itemsize


def x_buffers_most(geometry):
    """Buffers of x that there is room for, at least 2."""
    x_bytes = geometry.planes.size * span(geometry.columns, 0, geometry.columns.out)[1] * geometry.itemsize
    return max(2, TOEPLITZ_X_BYTES // max(1, x_bytes))


def run_of(geometry, h):
    """(row of the window, row of z, how many) that row h of x meets; none is 0."""
    rows = geometry.rows
    depth = window_of(rows, 1)
    # output p meets row p * stride + r * dilation - top of x at tap r
    place = h + rows.before - depth + 1
    first = max(0, place)
    return first, first - place, max(0, min(window_of_outputs(rows), place + depth) - first)


def window_of_outputs(rows):
    """Rows of z that all outputs span, of one row of x."""
    return (rows.out - 1) * rows.stride + 1


def triggers_of(geometry, A):
    """DMAs of the matrices of a round."""
    count = 0
    for h in range(geometry.rows.size):
        count += min(1, run_of(geometry, h)[2])
    return A * count


def toeplitz_bytes(geometry, toeplitz, has_residual):
    """Bytes a partition, at most."""
    made = TOEPLITZ_BUFFERS * toeplitz.together * toeplitz.A * geometry.planes.taps * toeplitz.size
    filters = geometry.planes.taps * (toeplitz.depth + geometry.rows.taps) * geometry.columns.taps
    results = 4 * geometry.planes.out * geometry.columns.out * (4 if has_residual else 2)
    x_elements = toeplitz.buffers * geometry.planes.size * toeplitz.width
    return (made + x_elements + 4 * filters) * geometry.itemsize + results + 4096


def toeplitz_instructions(geometry, toeplitz, cores):
    """Instructions of a core, at most."""
    share_groups = div_ceil(toeplitz.groups, cores)
    banks = div_ceil(geometry.planes.out, max(1, BANK_COLUMNS // geometry.columns.out))
    rounds = div_ceil(share_groups, toeplitz.together) + PARTS
    made = rounds * (triggers_of(geometry, toeplitz.A) + toeplitz.together)
    filters = div_ceil(geometry.C, nl.tile_size.pmax) * (
        max(filter_rows(geometry), geometry.planes.taps * geometry.columns.taps) + 4
    )
    sums = banks * (geometry.planes.taps * geometry.columns.taps + 4)
    return 76 + toeplitz.warmup + share_groups * (sums + 12) + made + filters
