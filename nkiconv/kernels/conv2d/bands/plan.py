"""Depthwise conv2d by bands: sizes from shapes.

A channels of H rows lie on the partitions, X[(a, h), n, w] = x[n, a, h, w]; for a column of taps s one matmul with

    F[s][(a, h), (a, p)] = w[a, r, s]   where   h = p * stride + r * dilation - top,   zero elsewhere

does all R taps of it for A channels and all rows: S matmuls of N Q columns for A channels, where diagonals take R S of
P Q columns for 128. Padding above and below is zeros of F. What it pays is short runs: a DMA element is one row of x.
Where DMA engines are what is waited for, a partition has `fold` rows of x, one longer run, and the array as many tiles
of its rows side by side, each with its own A channels; a matmul then adds one of the rows, fold of them make a sum.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import setting
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, whole_words
from ..geometry import instructions_refusal, span
from .config import bands_config_refusal, bands_defaults, most_channels, read_bands

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


def plan_bands(geometry, extras, config, cores):
    """(Bands, "") of this on `cores` cores, or (None, why not)."""
    reason = bands_config_refusal(geometry, config)
    if reason == "":
        reason = bands_refusal(geometry, extras)
    if reason != "":
        return None, reason
    settings = read_bands(config, bands_defaults(geometry, setting(config, "fold", 0)))
    A, size = most_channels(geometry, settings.fold), geometry.rows.size
    if settings.channels > A:
        return None, f"config channels={settings.channels}: at most {A} of {size} rows; use fewer"
    bands = make_bands(geometry, settings)
    if not bands_fit(geometry, bands, extras.residual):
        return None, (
            f"N={geometry.N}, W={geometry.columns.size}, S={geometry.columns.taps}: rows of all images and the bands "
            f"of a group must fit SBUF, {nl.tile_size.total_available_sbuf_size} bytes a partition; use taps"
        )
    reason = instructions_refusal(geometry, "bands", count_instructions(geometry, bands, cores))
    return (bands, "") if reason == "" else (None, reason)


def bands_refusal(geometry, extras):
    """Why no bands do this, whatever their settings; "" if some may."""
    rows, columns, most = geometry.rows, geometry.columns, nl.tile_size.pmax
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: bands takes depthwise problems, "
            f"groups = C = K; use taps"
        )
    if geometry.C < PARTS:
        return f"C={geometry.C}: bands takes at least {PARTS} channels; use taps"
    if rows.lhs_dilation > 1 or columns.lhs_dilation > 1:
        return f"lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: bands takes (1, 1); use taps"
    if extras.pool != (1, 1):
        return f"pool={extras.pool}: bands takes (1, 1); use taps"
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: bands multiplies rows outside a window by zero; use taps"
    if max(rows.size, rows.out) > most or columns.out > BANK_COLUMNS:
        return (
            f"H={rows.size}, P={rows.out}, Q={columns.out}: bands takes at most {most} rows and {BANK_COLUMNS} columns "
            f"of y; use taps"
        )
    return ""


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
