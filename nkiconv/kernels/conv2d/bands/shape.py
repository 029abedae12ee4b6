"""The sizes of bands, and how filters meet the rows of x: see `plan.py` for what they mean."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, whole_words
from ..geometry import span

#: Bytes a partition of the bands of one round of groups, and of all buffers of x.
BAND_BYTES = 40_960
BANDS_X_BYTES = 49_152
#: Each matmul on zeros, while the first bands, which pass HBM, are on their way, is of so many times 128 columns.
WARM_UP_BLOCKS = 4
#: Buffers of bands that groups take in turn.
BAND_BUFFERS = 2


@dataclass
class Bands(nl.NKIObject):
    """Sizes of one problem."""

    #: rows of x that a partition has, and as many tiles of the array side by side; rows of a tile
    fold: int
    tile_rows: int
    #: channels of a tile, and groups, of all tiles' channels
    A: int
    groups: int
    #: groups whose bands are made together
    together: int
    #: groups of the first round that Vector zeroes, with GpSimd, before w comes
    early: int
    #: rows of the reversed filter with its dilation, and of the window that all outputs of a row of x span
    depth: int
    window: int
    #: columns of x that any tap meets: the first, and how many
    w0: int
    width: int
    buffers: int
    warmup: int


def most_channels(geometry, fold):
    """Channels of a tile at most; each core has a group."""
    most, rows = nl.tile_size.pmax, geometry.rows
    fits = min(most // fold // (rows.size // fold), most // rows.out)
    return min(max(1, div_ceil(geometry.C, PARTS * fold)), fits)


def make_bands(geometry, config):
    """The Bands of a BandsConfig, or None where one group does not fit."""
    rows, columns = geometry.rows, geometry.columns
    fold, A = config.fold, config.channels
    groups = div_ceil(geometry.C, fold * A)
    window = (rows.out - 1) * rows.stride + 1
    met = span(columns, 0, columns.out)
    each = group_bytes(geometry, fold, A)
    x_bytes = geometry.N * fold * met[1] * geometry.itemsize
    if each > BAND_BYTES or 2 * x_bytes > BANDS_X_BYTES:
        return None
    # rounds as even as can be
    share_groups = div_ceil(groups, PARTS)
    rounds = div_ceil(share_groups, min(config.together, min(share_groups, BAND_BYTES // each)))
    together = div_ceil(share_groups, rounds)
    return Bands(
        fold=fold,
        tile_rows=nl.tile_size.pmax // fold,
        A=A,
        groups=groups,
        together=together,
        early=min(together, config.early),
        depth=depth_of(rows),
        window=window,
        w0=met[0],
        width=met[1],
        buffers=config.buffers,
        warmup=config.warmup,
    )


def group_bytes(geometry, fold, A):
    """Bytes a partition of the bands of a group."""
    window = (geometry.rows.out - 1) * geometry.rows.stride + 1
    return fold * A * window * geometry.columns.taps * geometry.itemsize


def x_buffers_most(geometry, fold):
    """Buffers of x that there is room for, at least 2."""
    x_bytes = geometry.N * fold * span(geometry.columns, 0, geometry.columns.out)[1] * geometry.itemsize
    return max(2, BANDS_X_BYTES // max(1, x_bytes))


def runs_of(geometry, fold, m):
    """(first row of partition m, rows, row of the window, row of z, how many): rows together where all are alike."""
    depth = depth_of(geometry.rows)
    found, alike = [], True
    for i in range(fold):
        run = run_of(geometry, fold * m + i)
        alike = alike and run[1] == 0 and run[2] == depth
        if run[2] > 0:
            found.append((i, 1, run[0], run[1], run[2]))
    if not alike:
        return found
    return [(0, fold, found[0][2], 0, depth)]


def run_of(geometry, h):
    """(row of the window, row of z, how many) that row h of x meets; none is 0."""
    rows = geometry.rows
    depth, window = depth_of(rows), (rows.out - 1) * rows.stride + 1
    # output p meets row p * stride + r * dilation - top of x at tap r
    place = h + rows.before - depth + 1
    first = max(0, place)
    return first, first - place, max(0, min(window, place + depth) - first)


def depth_of(rows):
    """Rows of a filter with its dilation."""
    return (rows.taps - 1) * rows.dilation + 1


def triggers_of(geometry, fold, A):
    """DMAs of the bands of a round."""
    count = 0
    for m in range(geometry.rows.size // fold):
        count += len(runs_of(geometry, fold, m))
    return fold * A * count


def bands_fit(geometry, bands, has_residual):
    """Whether there are Bands, and SBUF holds them."""
    return bands != None and sbuf_bytes(geometry, bands, has_residual) <= nl.tile_size.total_available_sbuf_size


def sbuf_bytes(geometry, bands, has_residual):
    """Bytes a partition, at most."""
    item = geometry.itemsize
    size = whole_words(bands.window * geometry.columns.taps, item)
    made = BAND_BUFFERS * bands.together * bands.fold * bands.A * size * item
    x_bytes = bands.buffers * geometry.N * bands.fold * bands.width * item
    y_bytes = 4 * bands.fold * geometry.N * geometry.columns.out
    filters = (bands.depth + geometry.rows.taps) * geometry.columns.taps * item
    return made + x_bytes + (4 if has_residual else 2) * y_bytes + 4 * filters + 4096


def count_instructions(geometry, bands, cores):
    """Instructions of a core, at most."""
    share_groups, fold = div_ceil(bands.groups, cores), bands.fold
    banks = div_ceil(geometry.N, max(1, BANK_COLUMNS // geometry.columns.out))
    rounds = div_ceil(share_groups, bands.together) + PARTS
    made = rounds * (triggers_of(geometry, fold, bands.A) + bands.together)
    filters = div_ceil(geometry.C, nl.tile_size.pmax) * (geometry.rows.taps + 4)
    group = fold * (banks * (fold * geometry.columns.taps + 4) + 12)
    return 64 + bands.warmup + share_groups * group + made + filters
