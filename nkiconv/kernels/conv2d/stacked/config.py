"""Settings of a stack, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import limits_refusal, setting
from ..._tiles import div_ceil
from .shape import LONG_RUN_BYTES, WAYS, can_shift, fits_sbuf, job_channels, make_stack, met_counts, window_of

STACKED_SETTINGS = (
    "rows",
    "shifts",
    "outputs",
    "beside",
    "apart",
    "merge",
    "blocks",
    "images",
    "filters",
    "hold",
    "warmup",
    "late_warmup",
)
#: Most of a setting that memory limits anyway, of elements that are cleared, and of matmuls on zeros.
MOST = 4096
HOLD_MOST = 1 << 20
STACKED_WARM_UP_MAX = 512
#: Of a kernel without settings: matmuls on zeros, elements cleared where there are several jobs, the work for each row
#: of y in the array's columns (outputs of a channel times matmuls), rows of all images for each from block to block.
STACKED_WARM_UPS = 10
STACKED_HOLD = 256
STACKED_WORK = 20_000
STACKED_ROWS = 32


@dataclass(frozen=True)
class StackedConfig(nl.NKIObject):
    """Every setting; `plan.py` says what the first six mean."""

    #: rows of x on the partitions (B), 1 to 128
    rows: int
    #: columns of taps on the partitions (D), 1 to 128
    shifts: int
    #: rows of y in the columns of the array (U), 1 to 128
    outputs: int
    #: rows of y side by side on a partition (V), from 1 on
    beside: int
    #: rows of x from one block of X to the next (G), from 1 on
    apart: int
    #: 1: rows of a block leave their partitions when they are read out, 0: they stay
    merge: int
    #: output blocks of a band, and images, at most; memory has fewer
    blocks: int
    images: int
    #: how filters come to their places, one of `shape.WAYS`
    filters: str
    #: elements a partition that GpSimd clears before the second band's x is loaded, so that filters come first
    hold: int
    #: matmuls of 128 columns on zeros before the first sums, and how many of them follow the first filters' transposes
    warmup: int
    late_warmup: int


def stacked_config_refusal(config):
    """What is wrong with names and values of a config; "" if nothing is."""
    sizes = (("rows", 1, MOST), ("shifts", 1, MOST), ("outputs", 1, MOST), ("beside", 1, MOST), ("apart", 1, MOST))
    counts = (("merge", 0, 1), ("blocks", 1, MOST), ("images", 1, MOST), ("hold", 0, HOLD_MOST))
    warmups = (("warmup", 0, STACKED_WARM_UP_MAX), ("late_warmup", 0, STACKED_WARM_UP_MAX))
    reason = limits_refusal(config, STACKED_SETTINGS, "stacked", sizes + counts + warmups)
    if reason != "":
        return reason
    filters = setting(config, "filters", WAYS[0])
    if filters not in WAYS:
        return f"config filters={filters}: must be one of {WAYS}"
    given = setting(config, "rows", 0), setting(config, "shifts", 0), setting(config, "outputs", 0)
    if given == (0, 0, 0):
        for name in ("beside", "apart", "merge"):
            if setting(config, name, -1) >= 0:
                return f"config={config}: {name} goes with rows, shifts and outputs; give them too"
    elif 0 in given:
        return f"config={config}: rows, shifts and outputs are given together or not at all"
    return ""


def stacked_defaults(geometry, reader):
    """Settings of a kernel that is called without any; few channels of y share the array where there is much to do."""
    rows, most = geometry.rows, nl.tile_size.pmax // geometry.C
    counts = met_counts(geometry.columns)
    work = geometry.N * rows.out * geometry.columns.out * geometry.columns.taps * (1 if geometry.fast else 4)
    work = work * div_ceil(window_of(rows, 1), most)
    U = 1
    while most > 1 and work > U * STACKED_WORK and 2 * U * geometry.K <= nl.tile_size.pmax and 2 * U <= rows.out:
        U = 2 * U
    found = outputs_defaults(geometry, U)
    while U > 1 and not fits_sbuf(geometry, make_stack(geometry, counts, found, reader), reader == "vector"):
        U = U // 2
        found = outputs_defaults(geometry, U)
    return found


def outputs_defaults(geometry, U):
    """Settings of blocks of U rows of y, of more side by side where x has many: the whole window, or a part of the rows
    from block to block, and as many columns of taps as go beside it."""
    rows, taps, most = geometry.rows, geometry.columns.taps, nl.tile_size.pmax // geometry.C
    wanted = min(4 * U, min(rows.out, geometry.N * rows.size // (STACKED_ROWS * rows.stride)))
    V = 1
    while 2 * U * V <= wanted and window_of(rows, 2 * U * V) * min(2, taps) <= most:
        V = 2 * V
    G = U * V * rows.stride
    B = window_of(rows, U * V)
    if B > most:
        B = min(G, most)
        while G % B != 0:
            B = B - 1
        G = B
    D = div_ceil(taps, div_ceil(taps, min(taps, most // B)))
    return sized_defaults(geometry, B, D, U, V, G)


def sized_defaults(geometry, rows, shifts, outputs, beside, apart):
    """What goes with sizes that are given."""
    return StackedConfig(
        rows=rows,
        shifts=shifts,
        outputs=outputs,
        beside=beside,
        apart=apart,
        merge=0,
        blocks=MOST,
        images=MOST,
        filters=filters_at(geometry, rows, outputs),
        hold=STACKED_HOLD if geometry.K * outputs > nl.tile_size.pmax else 0,
        warmup=STACKED_WARM_UPS,
        late_warmup=0,
    )


def filters_at(geometry, rows, outputs):
    """How filters come: straight in long runs, or where nothing is shifted, else as engines may address partitions."""
    taps = geometry.rows.taps
    run = geometry.columns.taps * (taps if geometry.rows.dilation == 1 else 1) * geometry.itemsize
    if run >= LONG_RUN_BYTES or (outputs == 1 and rows == taps):
        return "straight"
    return "shifted" if can_shift(outputs, job_channels(geometry, outputs)) else "apart"


def read_stacked(config, defaults):
    """The settings of a config; what it leaves open is as in `defaults`."""
    return StackedConfig(
        rows=setting(config, "rows", defaults.rows),
        shifts=setting(config, "shifts", defaults.shifts),
        outputs=setting(config, "outputs", defaults.outputs),
        beside=setting(config, "beside", defaults.beside),
        apart=setting(config, "apart", defaults.apart),
        merge=setting(config, "merge", defaults.merge),
        blocks=setting(config, "blocks", defaults.blocks),
        images=setting(config, "images", defaults.images),
        filters=setting(config, "filters", defaults.filters),
        hold=setting(config, "hold", defaults.hold),
        warmup=setting(config, "warmup", defaults.warmup),
        late_warmup=setting(config, "late_warmup", defaults.late_warmup),
    )
