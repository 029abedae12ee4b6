"""`stacked`: settings, unsupported reasons, and its Schedule. Few channels share the partitions with rows and shifted
columns of x (K packing), and the columns of the array with rows of y (M packing).

With C input channels a plain matmul uses C of 128 partitions, with K output channels K of 128 columns. Here

    X[(d, b, c), m, i]    = x[c, m * G + b - top, i + d * dilation - left]    d < D, b < B: D * B * C partitions
    Y[(u, k), j, v, q]    = y[k, (j * U + u) * V + v, q]                       u < U: U * K columns of the array

and Y[:, j, v] is a sum over tap blocks t and groups g of columns of taps of

    F[g, z, t]^T X[:, j * e + (v * stride) // G + t * B / G, q * stride + g * D * dilation],
    F[g, z, t][(d, b, c), (u, k)] = w[k, c, r, g * D + d],
    r * dilation = t * B + b - z - u * V * stride,    z = (v * stride) mod G,    U * V * stride = e * G,

so that one matmul computes B rows, U outputs and D columns of taps. B > 1 costs only zeros in F if blocks of X are B
rows apart (G = B), and loads rows B / G times if they overlap; D > 1 loads x D times. V > 1 makes longer runs of y: its
rows are stored side by side from one partition.

Channels that would leave many partitions idle are split: `rest` of them have an X of their own, with the B and D of the
fewest products, for the same outputs. Their matmuls add to the same sums: 65 channels are 64 with B = 2, and one, whose
whole window of rows and columns takes 12 partitions.

Depthwise problems (groups = C = K) have M tiles of A channels, each with its own x, and block-diagonal F. Whole columns
of x are on the partitions (B = H, top = 0, one block) and whole columns of y in the array's columns (U = P):

    F[s][(a, h), (a, p)] = w[a, r, s]    where    h = p * stride + r * dilation - before,    zero elsewhere

One matmul multiplies all R taps of a column of taps for A channels and all rows: S matmuls of N Q columns for A
channels, where diagonals take R S of P Q columns for 128. Padding above and below is zeros of F. Its cost is short
runs: a DMA element is one row of x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .block_schedule import Resident, RowTile, Schedule
from .cuts import axis_elements, num_plane_parts, window_of
from .geometry import Axis, Geometry, valid_range
from .options import (
    PROLOGUE_ARGUMENTS,
    Options,
    no_prologue,
    no_statistics,
    packed_statistics_bytes,
    prologue_bytes,
    taken_unsupported,
)
from .settings import WARM_UP_MAX, Config, Settings, choice, count, half, less, more, setting, warm_up
from .stacked_schedule import (
    BUSY_COLUMNS,
    FILTER_BYTES,
    PADDED_BYTES,
    X_BYTES,
    Y_BYTES,
    Stack,
    phases_of,
    taps_of_window,
    tile_bytes,
    x_width,
)
from .tiles import BANK_COLUMNS, P_MAX, PARTS, Part, cut, cut_at, cut_into, div_ceil, fits_sbuf, slot_for

ALGORITHM = "stacked"
#: How filters reach the columns of (u, k), shifted down for each u: by a DMA for each u, or by a transpose for each.
WAYS = ("straight", "apart")
#: Bytes of neighbours of w in HBM above which it is loaded straight.
LONG_RUN_BYTES = 512
#: The largest value of settings that memory limits anyway.
MOST = 4096
#: Bytes per partition of all buffers of x, and the most buffers.
RING_BYTES = 65_536
RING = 4
#: Output tiles of a core, if there are enough images: loads of one overlap the sums of another. Fewer if their matmuls
#: would have less than 128 columns; one, if so many matmuls of it follow its first load.
OUT_TILES = 4
HIDE_LOADS = 64
#: For depthwise problems, bytes per partition of stationaries that are loaded together, and of all buffers of x.
ROUND_BYTES = 40_960
DEPTHWISE_X_BYTES = 49_152
#: M tiles whose stationaries are loaded together, at most: over 9 golden plans of depthwise problems 8 take 0.996 of
#: the time of a number by the Tensor Engine's work (modelled).
TOGETHER = 8
#: M tiles whose x is loaded ahead: the fewest, the most, and the planes of all.
AHEAD_LEAST, AHEAD_MOST, AHEAD_PLANES = 2, 16, 64


@dataclass(frozen=True)
class StackedSettings(Settings):
    """All settings of problems with one group; the first three are given together."""

    algorithm = ALGORITHM
    tried = ("blocks", "warmup")
    keeps = "stacked rows and filters"

    rows: int = count("rows of x packed along the partitions (B)", 1, P_MAX)
    shifts: int = count("columns of taps packed along the partitions (D)", 1, P_MAX)
    outputs: int = count("rows of y packed along the columns of the array (U)", 1, P_MAX)
    beside: int = count("rows of y that follow each other on a partition (V)", 1, MOST)
    apart: int = count("rows of x from one block of rows to the next (G)", 1, MOST)
    blocks: int = count("blocks of an output tile, at most", 1, MOST, default=MOST, near=(half, less))
    rest: int = count("channels with an X of their own", 0, P_MAX, default=0)
    filters: str = choice("how filters reach their places: straight by DMA, apart by transposes", WAYS)
    warmup: int = warm_up(10)
    late_warmup: int = count(
        "how many of the matmuls on zeros follow the transposes of the first filters", 0, WARM_UP_MAX, default=0
    )


@dataclass(frozen=True)
class DepthwiseSettings(Settings):
    """All settings of depthwise problems."""

    algorithm = "stacked of depthwise problems"
    tried = ("together", "buffers", "warmup", "channels")
    keeps = "rows of all images and the stationaries of an M tile"

    channels: int = count("channels of an M tile", 1, P_MAX, near=(less, half))
    together: int = count("M tiles whose stationaries are loaded together, at most", 1, P_MAX, near=(half, less, more))
    buffers: int = count("buffers of x", 2, P_MAX, near=(half, 2, 3, 4))
    warmup: int = warm_up(48, columns=512, near=(0, 24, 48, 96))


def settings_class(geometry: Geometry, config: Config = None) -> type[Settings]:
    """The settings' dataclass of a problem."""
    return DepthwiseSettings if geometry.groups > 1 else StackedSettings


def planned(geometry: Geometry, options: Options, settings: Any) -> tuple[Schedule | None, str]:
    """(Schedule, "") of complete settings, or (None, unsupported reason)."""
    if reason := sizes_reason(geometry, settings):
        return None, reason
    depthwise = isinstance(settings, DepthwiseSettings)
    made = _depthwise(geometry, settings) if depthwise else _one_group(geometry, settings, options)
    if made is None or not fits_sbuf(made.sbuf_bytes(options.residual) + fused_bytes(made, options)):
        return None, settings.memory_unsupported(geometry)
    return scheduled(made, settings), ""


def unsupported_reason(geometry: Geometry, options: Options, config: Config) -> str:
    """Why a config does not run a problem, from settings and sizes alone; "" if nothing speaks against it."""
    depthwise = geometry.groups > 1 and geometry.groups == geometry.C and geometry.groups == geometry.K
    if geometry.groups > 1 and not depthwise:
        return (
            f"feature_group_count={geometry.groups}, C={geometry.C}, K={geometry.K}: stacked takes one group, or "
            f"depthwise problems, groups = C = K; use implicit_gemm or weight_stationary"
        )
    if reason := settings_class(geometry).unsupported_reason(config) or ("" if depthwise else _together_reason(config)):
        return reason
    if geometry.planes.lhs_dilation > 1:
        return f"lhs_dilation={geometry.planes.lhs_dilation} of planes: stacked takes 1; use weight_stationary"
    if depthwise and max(geometry.rows.size, geometry.rows.out) > P_MAX:
        return (
            f"H={geometry.rows.size}, P={geometry.rows.out}: stacked takes at most {P_MAX} rows of a depthwise "
            f"problem; use weight_stationary"
        )
    if geometry.packed > 0:
        return "filter_ref is packed: stacked takes plain filters; use implicit_gemm, or pass [K, C, R, S]"
    if setting(config, "rest", 0) and options.prologue.asked:
        return f"config rest={setting(config, 'rest', 0)}: a second X has no prologue ({PROLOGUE_ARGUMENTS}); use 0"
    if geometry.C > P_MAX and not depthwise:
        return f"C={geometry.C}: stacked takes at most {P_MAX} channels; use implicit_gemm"
    if depthwise:
        reason = no_prologue(options, f"{ALGORITHM} takes none of depthwise problems")
        reason = reason or no_statistics(options, f"{ALGORITHM} of depthwise problems")
    return reason or taken_unsupported(geometry, options, ALGORITHM, False, "rows outside a window")


def _together_reason(config: Config) -> str:
    """Why settings that are given together are incomplete; "" if they are not."""
    given = [setting(config, name, 0) > 0 for name in ("rows", "shifts", "outputs")]
    alone = [name for name in ("beside", "apart") if setting(config, name, -1) >= 0]
    if not any(given) and alone:
        return f"config={config}: {alone[0]} goes with rows, shifts and outputs; give them too"
    if any(given) and not all(given):
        return f"config={config}: rows, shifts and outputs are given together or not at all"
    return ""


def sizes_reason(geometry: Geometry, settings: StackedSettings | DepthwiseSettings) -> str:
    """Why sizes do not fit the problem or each other; "" if they do."""
    rows, columns = geometry.rows, geometry.columns
    if isinstance(settings, DepthwiseSettings):
        A = channels_most(geometry)
        few = settings.channels <= A
        return "" if few else f"config channels={settings.channels}: at most {A} of {rows.size} rows; use fewer"
    B, D, U, V, G = settings.rows, settings.shifts, settings.outputs, settings.beside, settings.apart
    if settings.rest >= geometry.C:
        return f"config rest={settings.rest}, C={geometry.C}: must be less"
    if U * V * rows.stride % G != 0 or B * D * (geometry.C - settings.rest) > P_MAX:
        return (
            f"config rows={B} shifts={D} outputs={U}, C={geometry.C}: rows * shifts * C must be at most {P_MAX}, "
            f"without the rest={settings.rest}, and rows (or apart={G}, where it is given) divide outputs * beside * "
            f"stride"
        )
    if D > columns.taps:
        return f"config shifts={D}: at most {columns.taps} shifts, as the filter has columns of taps"
    if B % G != 0 and taps_of_window(rows, B, U, V, max(phases_of(rows.stride, V, G))) > 1:
        return f"config rows={B} apart={G}: rows must be a multiple of it, or hold the window of all outputs"
    if settings.filters == "straight" and geometry.flipped:
        return "config filters=straight: a rotated filter is reversed on chip; use apart"
    return ""


def ways_of(geometry: Geometry, B: int, U: int) -> tuple[str, ...]:
    """Ways of filters for B packed rows of x and U of y: straight in long runs, or if nothing is shifted; else both."""
    run = geometry.columns.taps * (geometry.rows.taps if geometry.rows.dilation == 1 else 1) * geometry.itemsize
    if not geometry.flipped and (run >= LONG_RUN_BYTES or (U == 1 and geometry.rows.taps == B)):
        return WAYS[:1]
    return WAYS[1:] if geometry.flipped or U == 1 else WAYS


def depthwise_settings(geometry: Geometry, config: Config) -> DepthwiseSettings:
    """All settings of a depthwise problem."""
    planes, A = geometry.planes, channels_most(geometry)
    # with few buffers DMA engines idle while the first stationaries are loaded; with many, those wait for x of much
    # later M tiles
    ahead = max(AHEAD_LEAST, min(AHEAD_MOST, AHEAD_PLANES // planes.out)) * planes.images
    each = planes.images * _depthwise_x_bytes(geometry)
    room = max(2, min(P_MAX, DEPTHWISE_X_BYTES // max(1, each) * planes.images))
    together = min(TOGETHER, div_ceil(div_ceil(geometry.C, A), PARTS))
    return DepthwiseSettings.read(config, channels=A, together=together, buffers=min(ahead, room))


def channels_most(geometry: Geometry) -> int:
    """The most channels of an M tile of a depthwise problem; each core has at least one M tile."""
    rows = geometry.rows
    return min(max(1, div_ceil(geometry.C, PARTS)), P_MAX // max(rows.size, rows.out))


def _depthwise_x_bytes(geometry: Geometry) -> int:
    """Bytes per partition of X for an M tile and a volume of a depthwise problem."""
    planes, columns = geometry.planes, geometry.columns
    width = x_width(columns, whole_group(columns, BANK_COLUMNS), columns.taps)
    return axis_elements(planes, planes.out // planes.images) * width * geometry.itemsize


def fused_bytes(stack: Stack, options: Options) -> int:
    """Bytes per partition of statistics and of a prologue: its operands, and masks of rows and columns outside x."""
    found = packed_statistics_bytes(options, stack.U, stack.images, len(stack.m_tiles))
    if not options.prologue.asked:
        return found
    geometry = stack.geometry
    masks = 8 * stack.B + 2 * stack.D * geometry.columns.dilation * geometry.itemsize
    return found + prologue_bytes(options.prologue, geometry, geometry.planes.size) + masks


def _one_group(geometry: Geometry, settings: StackedSettings, options: Options) -> Stack | None:
    planes, rows, columns, item = geometry.planes, geometry.rows, geometry.columns, geometry.itemsize
    B, D, U, V, G = settings.rows, settings.shifts, settings.outputs, settings.beside, settings.apart
    m_tiles = tuple(cut(geometry.K, P_MAX // U))
    made = Stack(
        geometry=replace(geometry, C=geometry.C - settings.rest),
        B=B,
        D=D,
        U=U,
        V=V,
        G=G,
        filters=settings.filters,
        m_tiles=m_tiles,
        images=1,
        blocks=1,
        whole=whole_group(columns, div_ceil(rows.out, U * V)) if D == 1 else -1,
        row_parts=((0, columns.out),),
        ring=2,
    )
    filters = len(m_tiles) * made.kn * made.num_filters * U * item
    y_bytes = Y_BYTES // 2 if options.residual else Y_BYTES
    made = _with_row_parts(made, y_bytes, options)
    columns, row_bytes = made.row, made.width * item
    plane_bytes = axis_elements(planes, 1) * row_bytes
    if made.z_elements * item > PADDED_BYTES or filters > FILTER_BYTES or plane_bytes * made.reach > X_BYTES:
        return None
    # blocks that fit beside x and results
    room = y_bytes // (4 * V * columns.out)
    images, blocks = 1, min(made.num_blocks, (X_BYTES // plane_bytes - made.reach) // made.step + 1, max(1, room))
    if planes.taps > 1:
        images, blocks = _blocks_together(geometry, made, room, min(blocks, settings.blocks))
    elif blocks == made.num_blocks:
        fewest = 1 if len(m_tiles) * made.num_filters >= HIDE_LOADS else 2  # output tiles of a core
        busy = min(div_ceil(planes.out, PARTS * fewest), div_ceil(P_MAX, blocks * columns.out))
        images = max(div_ceil(planes.out, PARTS * OUT_TILES), busy)
        images = max(1, min(images, BANK_COLUMNS // (blocks * columns.out)))
        images = min(images, planes.out // planes.images)
        while images > 1 and axis_elements(planes, images) * row_bytes * made.block_rows(blocks) > X_BYTES:
            images -= 1
    ring = max(2, min(RING, RING_BYTES // (axis_elements(planes, images) * row_bytes * made.block_rows(blocks))))
    made = replace(made, images=images, blocks=min(blocks, settings.blocks), ring=ring)
    if settings.rest == 0:
        return made
    B, D, G = rest_sizes(rows, geometry.columns, settings.rest, U, V)
    own, whole = replace(geometry, C=settings.rest), made.whole if D == 1 else -1
    return replace(made, rest=replace(made, geometry=own, B=B, D=D, G=G, whole=whole, c0=geometry.C - settings.rest))


@lru_cache(maxsize=1024)
def rest_sizes(rows: Axis, columns: Axis, count: int, U: int, V: int) -> tuple[int, int, int]:
    """(B, D, G) of so many channels with the fewest products for outputs U and V; of these the fewest partitions."""
    span, tried = U * V * rows.stride, []
    for D in {div_ceil(columns.taps, groups) for groups in range(1, columns.taps + 1)}:
        most, window = P_MAX // (count * D), window_of(rows, U * V)
        tried += [(B, D, B) for B in range(1, most + 1) if span % B == 0]
        tried += [(window, D, span)] if window <= most else []
    return min(tried, key=lambda one: (products_of(rows, columns, one[0], one[1], U, V, one[2]), one[0] * one[1]))


def products_of(rows: Axis, columns: Axis, B: int, D: int, U: int, V: int, G: int) -> int:
    """Products of a row of y on a partition, of a plane of taps."""
    return taps_of_window(rows, B, U, V, max(phases_of(rows.stride, V, G))) * div_ceil(columns.taps, D)


@lru_cache(maxsize=256)
def whole_group(columns: Axis, blocks: int) -> int:
    """The middlemost column of taps whose valid range is all outputs; -1 if there is none, or if sums of so many blocks
    without the zeros are too short to keep the Tensor Engine busy."""
    counts = [valid_range(columns, tap, 0, columns.out)[2] for tap in range(columns.taps)]
    every = [tap for tap, count in enumerate(counts) if count == columns.out]
    middle = [tap for tap in every if 2 * tap <= columns.taps]
    fewest = min(counts)
    long = min(blocks, max(1, BANK_COLUMNS // columns.out)) * fewest >= BUSY_COLUMNS
    return (*every[:1], *middle)[-1] if every and (long or 4 * fewest >= 3 * columns.out) else -1


def _with_row_parts(made: Stack, y_bytes: int, options: Options) -> Stack:
    """A Stack with rows cut into parts, equally many for each core, if x or results of whole rows do not fit; a
    prologue and statistics need whole rows."""
    geometry, (planes, columns) = made.geometry, (made.geometry.planes, made.geometry.columns)
    most = X_BYTES // (axis_elements(planes, 1) * made.reach * geometry.itemsize)  # columns of X
    if made.width <= most or options.prologue.asked or options.statistics:
        return made
    window = (made.groups - 1) * made.D * columns.dilation + 1
    outputs = min((most - window) // columns.stride + 1, y_bytes // (4 * made.V))
    if outputs < BANK_COLUMNS:
        return made
    parts = cut_into(columns.out, div_ceil(div_ceil(columns.out, outputs), PARTS) * PARTS)
    return replace(made, whole=-1, row_parts=tuple(parts))


def _blocks_together(geometry: Geometry, made: Stack, room: int, most_blocks: int) -> Part:
    """(planes of outputs, blocks) of the output tile that loads each plane of x least often: planes whose sums of a
    block share a bank, as many blocks as then fit, and several output tiles for each core. room: blocks of results."""
    planes = geometry.planes
    found, least = (1, most_blocks), 0
    for images in range(1, min(planes.out // planes.images, max(1, BANK_COLUMNS // made.row.out)) + 1):
        seen = axis_elements(planes, images)
        x_most = (X_BYTES // (seen * made.width * geometry.itemsize) - made.reach) // made.step + 1
        blocks = min(most_blocks, room // images, x_most)
        count = num_plane_parts(planes, images) * div_ceil(made.num_blocks, max(1, blocks))
        if blocks >= 1 and (images == 1 or count >= PARTS * OUT_TILES):
            # rows of x for a row of outputs, in thousandths
            loaded = 1000 * seen * made.block_rows(blocks) // (images * blocks * made.step)
            if least == 0 or loaded < least:
                found, least = (images, blocks), loaded
    return found


def _depthwise(geometry: Geometry, settings: DepthwiseSettings) -> Stack | None:
    planes, rows, columns, A = geometry.planes, geometry.rows, geometry.columns, settings.channels
    each = tile_bytes(geometry, A)
    if each > ROUND_BYTES or 2 * _depthwise_x_bytes(geometry) > DEPTHWISE_X_BYTES:
        return None
    m_tiles = tuple(cut_at(geometry.C, A))
    # rounds as even as possible
    share_m_tiles = div_ceil(len(m_tiles), PARTS)
    rounds = div_ceil(share_m_tiles, min(settings.together, share_m_tiles, ROUND_BYTES // each))
    together = div_ceil(share_m_tiles, rounds)
    return Stack(
        geometry=geometry,
        B=rows.size,
        D=1,
        U=rows.out,
        V=1,
        G=rows.out * rows.stride,
        filters="",
        m_tiles=m_tiles,
        images=planes.out // planes.images,
        blocks=1,
        # the first product must not depend on the number of planes: a video may come in chunks
        whole=whole_group(columns, BANK_COLUMNS),
        row_parts=((0, columns.out),),
        ring=settings.buffers,
        together=together,
    )


def scheduled(stack: Stack, settings: Any) -> Schedule:
    """The Schedule of a Stack: one x for all M tiles; in depthwise problems an x for each."""
    C = stack.geometry.C
    channels = [(k0, n) if stack.diagonal else (0, C) for k0, n in stack.m_tiles]
    every = zip(channels, stack.m_tiles, strict=True)
    tiles = [(RowTile(0, 0, *c, k0, stack.U * n),) for c, (k0, n) in every]
    return Schedule(
        axes=stack.axes,
        sweeps=stack.sweeps,
        residents=tuple(Resident(own, stack.items) for own in (zip(tiles) if stack.diagonal else [tuple(tiles)])),
        k_tiles=((0, C, 0, 1),),
        rows=P_MAX,
        slot=slot_for(stack.U * stack.kn),
        by_channels=stack.diagonal,
        buffers=stack.ring,
        warmup=settings.warmup,
        late_warmup=min(settings.late_warmup if isinstance(settings, StackedSettings) else 0, settings.warmup),
        stack=stack,
    )
