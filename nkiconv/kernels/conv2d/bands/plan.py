"""Depthwise conv2d by bands: sizes from shapes.

A channels of H rows lie on the partitions, X[(a, h), n, w] = x[n, a, h, w]; for a column of taps s one matmul with

    F[s][(a, h), (a, p)] = w[a, r, s]   where   h = p * stride + r * dilation - top,   zero elsewhere

does all R taps of it for A channels and all rows: S matmuls of N Q columns for A channels, where diagonals take R S of
P Q columns for 128. Padding above and below is zeros of F. What it pays is short runs: a DMA element is one row of x.

Settings: `channels` A of a group; groups whose bands are made `together`, at most; `buffers` of x; `warmup`, matmuls on
zeros before the first bands.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._prices import (
    HALF_RATE,
    MATMUL_COLUMNS_MIN,
    MATMUL_NS,
    ROWS_AN_ENGINE,
    STATIC_ISSUE_NS,
    TENSOR_COLUMN_FP32_NS,
    TENSOR_COLUMN_NS,
    VECTOR_MEMSET_NS,
    WINDOW_WORK,
    run_ns,
)
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, INSTRUCTIONS_MAX, PARTS, div_ceil
from ..geometry import span

SETTINGS = ("channels", "together", "buffers", "warmup")

#: Bytes a partition of the bands of one round of groups, and of all buffers of x.
BAND_BYTES = 40_960
X_BYTES = 49_152
#: Matmuls of so many times 128 columns on zeros while the first bands, which pass HBM, are on their way.
WARM_UP = 40
WARM_UP_BLOCKS = 4
WARM_UP_MAX = 256
#: Buffers of bands and of x that groups take in turn. With few of x the DMA engines idle while the first bands come,
#: with more of them those wait for x of groups whose turn is far.
BAND_BUFFERS = 2
X_BUFFERS = 16
#: ns before the first bands are triggered, beside the zeros between them, and after the last sums.
START_NS = 3_000.0
END_NS = 2_500.0
#: Share of the zeros that Vector writes; GpSimd has the others.
ZEROED_BY_VECTOR = 2 / 3
#: Share of the array's time that must be work for its full rate, with some room.
BUSY = 1.2 * WINDOW_WORK
#: How many times as long the groups of a round work as the bands of the next one are triggered.
ROUND_TIMES = 2.5


@dataclass
class Bands(nl.NKIObject):
    """Sizes of one problem."""

    #: channels of a group, and groups of all channels
    A: int
    groups: int
    #: groups whose bands are made together
    together: int
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
    reason = config_refusal(config, SETTINGS, "bands")
    if reason == "":
        limits = (("channels", 1, most), ("together", 1, most), ("buffers", 2, most))
        reason = numbers_refusal(config, limits)
    if reason == "":
        reason = numbers_refusal(config, (("warmup", 0, WARM_UP_MAX),))
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
    # each core has a group
    A = min(div_ceil(geometry.C, PARTS), most // max(rows.size, rows.out))
    if setting(config, "channels", A) > A:
        return None, f"config channels={setting(config, 'channels', A)}: at most {A} of {rows.size} rows; use fewer"
    bands = make_bands(geometry, config, setting(config, "channels", A))
    whole = nl.tile_size.total_available_sbuf_size
    if bands == None or sbuf_bytes(geometry, bands, extras.residual) > whole:
        return None, (
            f"N={geometry.N}, W={columns.size}, S={columns.taps}: rows of all images and the bands of a group must fit "
            f"SBUF, {whole} bytes a partition; use taps"
        )
    count = count_instructions(geometry, bands, cores)
    if count > INSTRUCTIONS_MAX:
        return None, (
            f"N={geometry.N}, C={geometry.C}: bands needs up to {count} instructions on a core, the compiler takes "
            f"{INSTRUCTIONS_MAX}; split N or C over several calls"
        )
    return bands, ""


def make_bands(geometry, config, A):
    """The Bands of groups of A channels, or None where one group does not fit."""
    rows, columns = geometry.rows, geometry.columns
    groups = div_ceil(geometry.C, A)
    window = (rows.out - 1) * rows.stride + 1
    met = span(columns, 0, columns.out)
    each = A * window * columns.taps * geometry.itemsize
    x_bytes = geometry.N * met[1] * geometry.itemsize
    if each > BAND_BYTES or 2 * x_bytes > X_BYTES:
        return None
    share_groups = div_ceil(groups, PARTS)
    most = min(share_groups, BAND_BYTES // each)
    together = setting(config, "together", round_groups(geometry, A, share_groups))
    rounds = div_ceil(share_groups, min(together, most))
    return Bands(
        A=A,
        groups=groups,
        together=div_ceil(share_groups, rounds),
        depth=(rows.taps - 1) * rows.dilation + 1,
        window=window,
        w0=met[0],
        width=met[1],
        buffers=setting(config, "buffers", max(2, min(X_BUFFERS, X_BYTES // max(1, x_bytes)))),
        warmup=setting(config, "warmup", WARM_UP),
    )


def round_groups(geometry, A, share_groups):
    """Groups of a round: enough that their work hides the triggers of the next one's bands."""
    triggers_ns = A * geometry.rows.size * STATIC_ISSUE_NS
    needed = int(ROUND_TIMES * triggers_ns / max(array_ns(geometry), moved_ns(geometry))) + 1
    return div_ceil(share_groups, max(1, share_groups // needed))


def array_ns(geometry):
    """ns of the array for a group."""
    columns = geometry.columns
    column_ns = TENSOR_COLUMN_NS if geometry.fast else TENSOR_COLUMN_FP32_NS
    images = max(1, BANK_COLUMNS // columns.out)
    found = 0.0
    for n in range(0, geometry.N, images):
        moved = min(images, geometry.N - n) * columns.out
        streams = max(MATMUL_COLUMNS_MIN, moved)
        # few columns leave the array idle, and what is idle falls back to half of its rate
        rate = 1.0 if moved >= BUSY * streams else HALF_RATE
        found += columns.taps * (streams * column_ns / rate + MATMUL_NS)
    return found


def moved_ns(geometry):
    """ns of a DMA engine for the x and results of a group, and its bands: 8 partitions' runs."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    x_ns = geometry.N * run_ns(columns.size * item)
    y_ns = geometry.N * run_ns(columns.out * item)
    return ROWS_AN_ENGINE * (x_ns + y_ns + run_ns(rows.taps * columns.taps * item))


def bands_ns(geometry, bands):
    """ns of both cores: the slowest of the array, after the first bands are there, of triggers, and of DMA engines."""
    share_groups = div_ceil(bands.groups, PARTS)
    rounds = div_ceil(share_groups, bands.together)
    zeroed = bands.together * bands.A * bands.window * geometry.columns.taps * geometry.itemsize / 4
    start_ns = START_NS + zeroed * VECTOR_MEMSET_NS * ZEROED_BY_VECTOR
    round_ns = bands.A * geometry.rows.size * STATIC_ISSUE_NS
    worked_ns = start_ns + round_ns + share_groups * array_ns(geometry)
    triggered_ns = start_ns + rounds * round_ns + (share_groups - (rounds - 1) * bands.together) * array_ns(geometry)
    return max(max(worked_ns, triggered_ns), share_groups * moved_ns(geometry)) + END_NS


def sbuf_bytes(geometry, bands, has_residual):
    """Bytes a partition, at most."""
    item = geometry.itemsize
    made = BAND_BUFFERS * bands.together * bands.A * bands.window * geometry.columns.taps * item
    x_bytes = bands.buffers * geometry.N * bands.width * item
    y_bytes = 4 * geometry.N * geometry.columns.out
    filters = (bands.depth + geometry.rows.taps) * geometry.columns.taps * item
    return made + x_bytes + (4 if has_residual else 2) * y_bytes + 4 * filters + 4096


def count_instructions(geometry, bands, cores):
    """Instructions of a core, at most."""
    share_groups = div_ceil(bands.groups, cores)
    banks = div_ceil(geometry.N, max(1, BANK_COLUMNS // geometry.columns.out))
    rounds = div_ceil(share_groups, bands.together) + PARTS
    made = rounds * (bands.A * geometry.rows.size + bands.together)
    filters = div_ceil(geometry.C, nl.tile_size.pmax) * (geometry.rows.taps + 4)
    return 64 + share_groups * (banks * (geometry.columns.taps + 4) + 12) + made + filters
