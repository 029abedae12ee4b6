"""Depthwise conv2d by bands: sizes from shapes.

A channels of H rows lie on the partitions, X[(a, h), n, w] = x[n, a, h, w]; for a column of taps s one matmul with

    F[s][(a, h), (a, p)] = w[a, r, s]   where   h = p * stride + r * dilation - top,   zero elsewhere

does all R taps of it for A channels and all rows: S matmuls of N Q columns for A channels, where diagonals take R S of
P Q columns for 128. Padding above and below is zeros of F. What it pays is short runs: a DMA element is one row of x.
Where DMA engines are what is waited for, a partition has `fold` rows of x, one longer run, and the array as many tiles
of its rows side by side, each with its own A channels; a matmul then adds one of the rows, fold of them make a sum.

Settings: `fold`; `channels` A of a tile; groups whose bands are made `together`, at most; `buffers` of x; `warmup`,
matmuls on zeros before the first bands.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import (
    HALF_RATE,
    MATMUL_COLUMNS_MIN,
    MATMUL_NS,
    ROW_TILE_COLUMNS,
    ROWS_AN_ENGINE,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_MEMSET_NS,
    WINDOW_NS,
    WINDOW_WORK,
    run_ns,
)
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, PARTS, div_ceil, whole_words
from ..geometry import instructions_refusal, span

BANDS_SETTINGS = ("fold", "channels", "together", "buffers", "warmup")
#: Rows of x that a partition may have.
BANDS_FOLDS = (1, 2, 4)

#: Bytes a partition of the bands of one round of groups, and of all buffers of x.
BAND_BYTES = 40_960
BANDS_X_BYTES = 49_152
#: Most matmuls, of so many times 128 columns, on zeros while the first bands, which pass HBM, are on their way.
BANDS_WARM_UP_MAX = 256
WARM_UP_BLOCKS = 4
#: Buffers of bands, and of x at least and at most, that groups take in turn. With few of x the DMA engines idle while
#: the first bands come, with more of them those wait for x of groups whose turn is far: ns of x that is loaded by then.
BAND_BUFFERS = 2
X_BUFFERS_LEAST = 4
BANDS_X_BUFFERS = 16
AHEAD_NS = 6_500.0
AHEAD_NS_MOVED = 12_000.0
#: ns before the first bands are triggered, if zeros do not take longer, from the last of them to the first sums, and
#: after the last sums.
BANDS_START_NS = 3_500.0
FIRST_NS = 1_300.0
BANDS_END_NS = 2_500.0
#: Share of the zeros that Vector writes; GpSimd has the others.
ZEROED_BY_VECTOR = 2 / 3
#: Share of the array's time that must be work for its full rate: waiting for the first bands leaves it at half of it.
BUSY = WINDOW_WORK / HALF_RATE
#: How many times as long the groups of a round work as the bands of the next one are triggered; where DMA engines are
#: what is waited for, which take bands after all that is on its way.
ROUND_TIMES = 2.0
ROUND_TIMES_MOVED = 2.5
#: ns until w, the first DMA, has come.
W_NS = 1_500.0


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
    #: ns until the first bands are there
    first_ns: float
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
    rows, columns = geometry.rows, geometry.columns
    most = nl.tile_size.pmax
    reason = config_refusal(config, BANDS_SETTINGS, "bands")
    if reason == "":
        limits = (("fold", 0, most), ("channels", 1, most), ("together", 1, most), ("buffers", 2, most))
        reason = numbers_refusal(config, limits)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", 0, BANDS_WARM_UP_MAX),))
    if reason != "":
        return None, reason
    if geometry.groups != geometry.C or geometry.K != geometry.C or geometry.packed > 0:
        return None, (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: bands takes depthwise problems, "
            f"groups = C = K; use taps"
        )
    if geometry.C < PARTS:
        return None, f"C={geometry.C}: bands takes at least {PARTS} channels; use taps"
    if rows.lhs_dilation > 1 or columns.lhs_dilation > 1:
        return None, f"lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: bands takes (1, 1); use taps"
    if extras.pool != (1, 1):
        return None, f"pool={extras.pool}: bands takes (1, 1); use taps"
    if extras.strict_nonfinite:
        return None, "strict_nonfinite=True: bands multiplies rows outside a window by zero; use taps"
    if max(rows.size, rows.out) > most or columns.out > BANK_COLUMNS:
        return None, (
            f"H={rows.size}, P={rows.out}, Q={columns.out}: bands takes at most {most} rows and {BANK_COLUMNS} columns "
            f"of y; use taps"
        )
    given = setting(config, "fold", 0)
    if given > 0 and (given not in BANDS_FOLDS or rows.size % given != 0):
        return None, f"config fold={given}: one of {BANDS_FOLDS} that divides H={rows.size}"
    A = most_channels(geometry, max(1, given))
    if setting(config, "channels", A) > A:
        return None, f"config channels={setting(config, 'channels', A)}: at most {A} of {rows.size} rows; use fewer"
    bands = best_bands(geometry, config, given, extras.residual)
    whole = nl.tile_size.total_available_sbuf_size
    if bands == None:
        return None, (
            f"N={geometry.N}, W={columns.size}, S={columns.taps}: rows of all images and the bands of a group must fit "
            f"SBUF, {whole} bytes a partition; use taps"
        )
    count = count_instructions(geometry, bands, cores)
    reason = instructions_refusal(geometry, "bands", count)
    return (bands, "") if reason == "" else (None, reason)


def most_channels(geometry, fold):
    """Channels of a tile at most; each core has a group."""
    most, rows = nl.tile_size.pmax, geometry.rows
    fits = min(most // fold // (rows.size // fold), most // rows.out)
    return min(max(1, div_ceil(geometry.C, PARTS * fold)), fits)


def best_bands(geometry, config, given, has_residual):
    """The Bands that take least, of one fold if that is given, or None where none fits."""
    best, best_ns = None, 0.0
    for index in range(len(BANDS_FOLDS)):
        fold = BANDS_FOLDS[index]
        if (given == 0 or given == fold) and geometry.rows.size % fold == 0:
            A = most_channels(geometry, fold)
            bands = make_bands(geometry, config, fold, min(A, setting(config, "channels", A)))
            if bands != None and sbuf_bytes(geometry, bands, has_residual) <= nl.tile_size.total_available_sbuf_size:
                ns = bands_ns(geometry, bands)
                if best == None or ns < best_ns:
                    best, best_ns = bands, ns
    return best


def make_bands(geometry, config, fold, A):
    """The Bands of groups of `fold` tiles of A channels, or None where one group does not fit."""
    rows, columns = geometry.rows, geometry.columns
    groups = div_ceil(geometry.C, fold * A)
    window = (rows.out - 1) * rows.stride + 1
    met = span(columns, 0, columns.out)
    each = fold * A * window * columns.taps * geometry.itemsize
    x_bytes = geometry.N * fold * met[1] * geometry.itemsize
    if each > BAND_BYTES or 2 * x_bytes > BANDS_X_BYTES:
        return None
    share_groups = div_ceil(groups, PARTS)
    most = min(share_groups, BAND_BYTES // each)
    together = setting(config, "together", round_groups(geometry, fold, A, share_groups))
    rounds = div_ceil(share_groups, min(together, most))
    together = div_ceil(share_groups, rounds)
    zeroed_ns = each / 4 * VECTOR_MEMSET_NS * ZEROED_BY_VECTOR
    early = min(together, int(W_NS / zeroed_ns))
    start_ns = max(BANDS_START_NS, W_NS + (together - early) * zeroed_ns)
    first_ns = start_ns + triggers_of(geometry, fold, A) * STATIC_ISSUE_NS + FIRST_NS
    return Bands(
        fold=fold,
        tile_rows=nl.tile_size.pmax // fold,
        A=A,
        groups=groups,
        together=together,
        early=early,
        first_ns=first_ns,
        depth=depth_of(rows),
        window=window,
        w0=met[0],
        width=met[1],
        buffers=setting(config, "buffers", min(x_buffers(geometry, fold), max(2, BANDS_X_BYTES // max(1, x_bytes)))),
        warmup=setting(config, "warmup", warm_ups(first_ns)),
    )


def warm_ups(first_ns):
    """Matmuls on zeros until the first bands are there: the array is at its full rate after a window."""
    each_ns = WARM_UP_BLOCKS * nl.tile_size.pmax * TENSOR_COLUMN_NS
    full_ns = max(0.0, first_ns - WINDOW_NS)
    return min(BANDS_WARM_UP_MAX, int(((first_ns - full_ns) * HALF_RATE + full_ns) / each_ns))


def x_buffers(geometry, fold):
    """Buffers of x that keep the DMA engines at work until the first bands are triggered, which wait for them; longer
    where DMA engines are what is waited for."""
    ahead_ns = AHEAD_NS if array_ns(geometry, fold) >= moved_ns(geometry, fold) else AHEAD_NS_MOVED
    return max(X_BUFFERS_LEAST, min(BANDS_X_BUFFERS, int(ahead_ns / x_ns(geometry, fold)) + 1))


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


def round_groups(geometry, fold, A, share_groups):
    """Groups of a round: enough that their work hides the triggers of the next one's bands."""
    triggers_ns = triggers_of(geometry, fold, A) * STATIC_ISSUE_NS
    times = ROUND_TIMES if array_ns(geometry, fold) >= moved_ns(geometry, fold) else ROUND_TIMES_MOVED
    needed = int(times * triggers_ns / max(array_ns(geometry, fold), moved_ns(geometry, fold))) + 1
    return div_ceil(share_groups, max(1, share_groups // needed))


def array_ns(geometry, fold):
    """ns of the array for a group."""
    columns = geometry.columns
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    images = max(1, BANK_COLUMNS // columns.out)
    least = MATMUL_COLUMNS_MIN if fold == 1 else max(MATMUL_COLUMNS_MIN, fold * ROW_TILE_COLUMNS)
    found = 0.0
    for n in range(0, geometry.N, images):
        moved = min(images, geometry.N - n) * columns.out
        streams = max(least, moved)
        # few columns leave the array idle, and what is idle falls back to half of its rate
        rate = 1.0 if moved >= BUSY * streams else HALF_RATE
        found += fold * columns.taps * (streams * column_ns / rate + MATMUL_NS)
    return found


def moved_ns(geometry, fold):
    """ns of a DMA engine for the x and results of a group, and its bands: 8 partitions' runs."""
    taps_ns = run_ns(geometry.rows.taps * geometry.columns.taps * geometry.itemsize)
    return x_ns(geometry, fold) + y_ns(geometry, fold) + ROWS_AN_ENGINE * fold * taps_ns


def y_ns(geometry, fold):
    """ns of a DMA engine for the results of a group: 8 partitions' runs of each tile."""
    return ROWS_AN_ENGINE * fold * geometry.N * run_ns(geometry.columns.out * geometry.itemsize)


def x_ns(geometry, fold):
    """ns of a DMA engine for the x of a group: 8 partitions' runs."""
    columns, item = geometry.columns, geometry.itemsize
    # rows that are neighbours in HBM are one run
    runs = 1 if geometry.x_h == columns.size and geometry.x_w == 1 else fold
    return ROWS_AN_ENGINE * geometry.N * runs * run_ns(fold // runs * columns.size * item)


def bands_ns(geometry, bands):
    """ns of both cores: the slowest of the array, after the first bands are there, of triggers, of DMA engines, and of
    the stores alone, which begin with the first sums."""
    share_groups = div_ceil(bands.groups, PARTS)
    rounds = div_ceil(share_groups, bands.together)
    work_ns = array_ns(geometry, bands.fold)
    round_ns = triggers_of(geometry, bands.fold, bands.A) * STATIC_ISSUE_NS
    worked_ns = bands.first_ns + share_groups * work_ns
    triggered_ns = bands.first_ns + (rounds - 1) * round_ns + (share_groups - (rounds - 1) * bands.together) * work_ns
    stored_ns = bands.first_ns + work_ns + share_groups * y_ns(geometry, bands.fold)
    moved = max(stored_ns, W_NS + share_groups * moved_ns(geometry, bands.fold))
    return max(max(worked_ns, triggered_ns), moved) + BANDS_END_NS


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
