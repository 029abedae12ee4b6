"""Settings of a stack, and what a kernel that is called without them takes."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.tiles import PARTS, div_ceil
from ..._settings import setting, settings_refusal
from ..._warm import WARM_UP_MAX
from .diagonal import buffers_most, channels_most, runs_of_round
from .shape import LONG_RUN_BYTES, WAYS, can_shift, make_stack, met_counts

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
#: The same of a depthwise stack: columns of the array that pass while the rows of an image are loaded and stored, and
#: during two triggers; matmuls on zeros.
DMA_COLUMNS = 384
RUN_COLUMNS = 280
DEPTHWISE_WARM_UPS = 48
#: M tiles whose x is loaded ahead: at least, at most, and planes of them together.
AHEAD_LEAST, AHEAD_MOST, AHEAD_PLANES = 3, 16, 160


@dataclass(frozen=True)
class StackedConfig(nl.NKIObject):
    """Every setting of one group; `plan.py` says what the first five mean."""

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


@dataclass(frozen=True)
class DepthwiseConfig(nl.NKIObject):
    """Every setting of depthwise problems."""

    #: channels of an M tile (A), 1 to `diagonal.channels_most`
    channels: int
    #: M tiles whose stationaries are loaded together, at most, 1 to 128
    together: int
    #: buffers of x, 2 to 128
    buffers: int
    #: matmuls of `diagonal.WARM_UP_BLOCKS` times 128 columns on zeros before the first sums
    warmup: int


def config_of(geometry):
    """The dataclass of the settings that a problem has."""
    return DepthwiseConfig if geometry.groups > 1 else StackedConfig


def depthwise_config_refusal(config):
    """What is wrong with a config of a depthwise problem; "" if nothing is."""
    most = nl.tile_size.pmax
    sizes = (("channels", (1, most)), ("together", (1, most)), ("buffers", (2, most)), ("warmup", (0, WARM_UP_MAX)))
    return settings_refusal(config, sizes, "stacked, of depthwise problems,")


def depthwise_settings(geometry, config):
    """All settings of a depthwise problem, for a bare kernel and an estimate: what a config leaves open so that the
    work of the M tiles of a round, in columns of the array, hides the triggers of the next one's stationaries."""
    planes, columns = geometry.planes, geometry.columns
    A = channels_most(geometry)
    share_jobs = div_ceil(div_ceil(geometry.C, A), PARTS)
    taps = planes.taps * columns.taps * (1 if geometry.fast else 4)
    work = max(taps * max(nl.tile_size.pmax, planes.out * columns.out), planes.out * DMA_COLUMNS)
    needed = RUN_COLUMNS * runs_of_round(geometry, A) // work + 1
    together = min(nl.tile_size.pmax, div_ceil(share_jobs, max(1, share_jobs // needed)))
    # with few buffers the DMA engines idle while the first stationaries come, with many those wait for x of M tiles
    # whose turn is far
    ahead = max(AHEAD_LEAST, min(AHEAD_MOST, AHEAD_PLANES // planes.out)) * planes.images
    return DepthwiseConfig(
        channels=setting(config, "channels", A),
        together=setting(config, "together", together),
        buffers=setting(config, "buffers", min(ahead, buffers_most(geometry))),
        warmup=setting(config, "warmup", DEPTHWISE_WARM_UPS),
    )


def stacked_config_refusal(config):
    """What is wrong with names and values of a config of one group; "" if nothing is."""
    sizes = [(name, (1, MOST)) for name in ("rows", "shifts", "outputs", "beside", "apart", "blocks", "images")]
    counts = [(name, (0, STACKED_WARM_UP_MAX)) for name in ("warmup", "late_warmup")]
    table = (*sizes, ("filters", WAYS), ("hold", (0, HOLD_MOST)), *counts)
    reason = settings_refusal(config, table, "stacked")
    if reason != "":
        return reason
    given = tuple(setting(config, name, 0) for name in ("rows", "shifts", "outputs"))
    if given == (0, 0, 0):
        for name in ("beside", "apart"):
            if setting(config, name, -1) >= 0:
                return f"config={config}: {name} goes with rows, shifts and outputs; give them too"
    elif 0 in given:
        return f"config={config}: rows, shifts and outputs are given together or not at all"
    return ""


def stacked_settings(geometry, config, has_residual):
    """All settings; where a config names no sizes, few channels of y share the array if there is much to do."""
    given = setting(config, "rows", 0)
    if given > 0:
        return sized_stack(geometry, config, given, 1, 1, 1, given)
    rows, most = geometry.rows, nl.tile_size.pmax // geometry.C
    counts = met_counts(geometry.columns)
    work = geometry.planes.out * rows.out * geometry.columns.out * geometry.columns.taps * (1 if geometry.fast else 4)
    work = work * div_ceil(window_of(rows, 1), most)
    U = 1
    while most > 1 and work > U * STACKED_WORK and 2 * U * geometry.K <= nl.tile_size.pmax and 2 * U <= rows.out:
        U = 2 * U
    found = stack_of_outputs(geometry, config, U)
    while U > 1 and make_stack(geometry, counts, found, has_residual) == None:
        U = U // 2
        found = stack_of_outputs(geometry, config, U)
    return found


def stack_of_outputs(geometry, config, U):
    """Settings of blocks of U rows of y, of more side by side where x has many: the whole window, or a part of the rows
    from block to block, and as many columns of taps as go beside it."""
    rows, taps, most = geometry.rows, geometry.columns.taps, nl.tile_size.pmax // geometry.C
    wanted = min(4 * U, min(rows.out, geometry.planes.out * rows.size // (STACKED_ROWS * rows.stride)))
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
    return sized_stack(geometry, config, B, D, U, V, G)


def sized_stack(geometry, config, rows, shifts, outputs, beside, apart):
    """All settings; sizes as given here where a config has none."""
    rows, outputs = setting(config, "rows", rows), setting(config, "outputs", outputs)
    return StackedConfig(
        rows=rows,
        shifts=setting(config, "shifts", shifts),
        outputs=outputs,
        beside=setting(config, "beside", beside),
        apart=setting(config, "apart", apart),
        blocks=setting(config, "blocks", MOST),
        images=setting(config, "images", MOST),
        filters=setting(config, "filters", filters_at(geometry, rows, outputs)),
        hold=setting(config, "hold", STACKED_HOLD if geometry.K * outputs > nl.tile_size.pmax else 0),
        warmup=setting(config, "warmup", STACKED_WARM_UPS),
        late_warmup=setting(config, "late_warmup", 0),
    )


def filters_at(geometry, rows, outputs):
    """How filters come: straight in long runs, or where nothing is shifted, else as engines may address partitions."""
    taps = geometry.rows.taps
    if geometry.flipped:
        return "shifted" if can_shift(geometry, outputs) else "apart"
    run = geometry.columns.taps * (taps if geometry.rows.dilation == 1 else 1) * geometry.itemsize
    if run >= LONG_RUN_BYTES or (outputs == 1 and rows == taps):
        return "straight"
    return "shifted" if can_shift(geometry, outputs) else "apart"
