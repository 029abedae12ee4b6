"""Windows of few channels of NHWC that do not overlap, as of a patch embedding: pixels of y arrive on the partitions.

    y[n, p, q, k] = sum over c, r, s of x[n, p * stride + r, q * stride + s, c] * w[k, c, r, s]

A row of a window is one run of S * C elements in HBM, so that each partition loads the window of a pixel, and the
Tensor Engine transposes it: rows of taps of one channel are a K tile, as filters are stored. Filters are the moving
operand, and y is stored as other pixels of NHWC.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..simulator.timing.target import Target
from .channel_pieces import KTilePiece, Place
from .cuts import Outputs
from .geometry import Axis, Geometry, filter_rows, is_evenly_apart, is_transposed, num_taps, sees_itself, writes_rows
from .moving_filters import way_of
from .options import Options, keeps_sums, norm_bytes
from .pixel_tiles import SHARDS, Cut, PixelItem, PixelSchedule, Source, cut_of, is_padded
from .prices import Prices, array_end_ns
from .settings import WARM_UPS, Settings, choice, warm_up
from .tiles import BANK_COLUMNS, P_MAX, PARTS, cut_into, div_ceil, fits_sbuf

#: The most channels, each a K tile.
CHANNELS = 16
#: Windows in SBUF as loaded, and transposed.
BUFFERS = 2


@dataclass(frozen=True)
class WindowSettings(Settings):
    """Settings of windows."""

    algorithm = "activation_stationary of windows"
    tried = ("shard", "warmup")
    keeps = "windows of 128 pixels, and filters,"
    instead = "stacked"

    shard: str = choice("the two cores share channels of y, or pixels (images)", SHARDS, near=("images", "channels"))
    warmup: int = warm_up(28, near=WARM_UPS)


@dataclass(frozen=True)
class WindowSchedule(PixelSchedule):
    """Blocks of at most 128 pixels, as of a 1x1 convolution; a K tile has the taps of some rows, from `r` on, of a
    channel."""

    of_windows = True


def has_windows(geometry: Geometry) -> bool:
    """Whether windows can be computed as above: each of x's elements is in one, and padding in none."""
    axes, few = (geometry.rows, geometry.columns), geometry.groups == 1 and geometry.C <= CHANNELS
    own = few and is_transposed(geometry) and not writes_rows(geometry) and geometry.itemsize == geometry.hbm_itemsize
    own = own and (geometry.frames, geometry.depth, geometry.upsample, geometry.packed) == (None, None, 1, 0)
    own = own and sees_itself(geometry.planes) and is_evenly_apart(geometry)
    apart = all(one.stride >= one.taps and one.dilation == one.lhs_dilation == 1 and not is_padded(one) for one in axes)
    own = own and apart and num_taps(geometry) > 1 and geometry.columns.taps <= P_MAX
    stored = way_of(geometry, False) != "backwards"
    return own and stored and fits_sbuf(bytes_of(geometry, geometry.K, 4, 4 * BANK_COLUMNS * 8))


def windows_ns(target: Target, geometry: Geometry) -> float:
    """ns of a core's DMA for windows, or of its Tensor Engine, which transposes and multiplies their K tiles, less the
    time to multiply full ones, which other algorithms take too."""
    blocks, passes = len(blocks_of(geometry)[2]) / PARTS, div_ceil(geometry.K, BANK_COLUMNS)
    prices = Prices(target, geometry)
    multiplied_ns = passes * prices.matmul_ns(min(geometry.K, BANK_COLUMNS))
    k_tiles = geometry.C * div_ceil(filter_rows(geometry), P_MAX // geometry.columns.taps)
    more = k_tiles - div_ceil(geometry.C * num_taps(geometry), P_MAX)
    array_ns = array_end_ns(target, 0.0, blocks * (k_tiles * prices.transpose_ns() + more * multiplied_ns))
    elements = geometry.C * num_taps(geometry) * geometry.planes.out * geometry.rows.out * geometry.columns.out / PARTS
    return max(array_ns, prices.moved_ns(elements, geometry.columns.taps * geometry.C, itemsize=geometry.itemsize))


def blocks_of(geometry: Geometry) -> tuple[Source, Cut, list[Outputs]]:
    """Source and sizes of blocks of pixels, and the blocks."""
    rows, columns = (Axis(size=axis.out, taps=1, out=axis.out) for axis in (geometry.rows, geometry.columns))
    source = Source(geometry.planes, rows, columns, 1, 1, 1, 1, False)
    sizes, images = cut_of(source, geometry, 1, P_MAX), geometry.planes.out
    groups = cut_into(images, div_ceil(images, sizes.images))
    heights = cut_into(rows.out, div_ceil(rows.out, sizes.rows))
    return source, sizes, [Outputs(*z, *p, *q) for z in groups for p in heights for q in sizes.parts]


def make_windows(geometry: Geometry, options: Options, settings: WindowSettings) -> WindowSchedule | None:
    """The WindowSchedule of settings; None if SBUF has no room."""
    (source, sizes, blocks), S, way = blocks_of(geometry), geometry.columns.taps, way_of(geometry, False)
    by_channels = settings.shard == "channels" and geometry.K > 1
    batches = cut_into(geometry.K, PARTS if by_channels else 1)
    most = cut_into(filter_rows(geometry), div_ceil(filter_rows(geometry), P_MAX // S))
    k_tiles = [[KTilePiece(part=0, c0=c, count=rn * S, r=r0, s=0)] for r0, rn in most for c in range(geometry.C)]
    found = WindowSchedule(
        way=way,
        warmup=settings.warmup,
        source=source,
        sizes=sizes,
        batches=batches,
        most_k=BANK_COLUMNS,
        items=[PixelItem(batch, one) for batch in range(len(batches)) for one in blocks],
        k_tiles=k_tiles,
        places=[[Place(0, 0, 0, 1)]] * len(k_tiles),
        banks=1,
        packs=way != "copy",
        rest=None,
    )
    return found if fits_sbuf(window_bytes(geometry, found, options)) else None


def window_bytes(geometry: Geometry, plan: WindowSchedule, options: Options) -> int:
    """An upper bound of bytes a partition."""
    epilogue, kn = options.epilogue, max(count for _, count in plan.batches)
    stored = (4 if keeps_sums(epilogue) else 2) * epilogue.y_itemsize + (2 * 8 if options.residual else 0)
    biases = (2 * 4 * kn if epilogue.bias else 0) + norm_bytes(epilogue, kn)
    return bytes_of(geometry, kn, stored, biases)


def bytes_of(geometry: Geometry, kn: int, stored: int, biases: int) -> int:
    """Bytes a partition with so many for each of the kn output channels of a pixel, and for biases."""
    taps, item = geometry.C * num_taps(geometry), geometry.itemsize
    k_tiles = geometry.C * div_ceil(filter_rows(geometry), P_MAX // geometry.columns.taps)
    x_bytes = BUFFERS * (taps + k_tiles * P_MAX) * item
    filters = k_tiles * kn * item + div_ceil(kn, P_MAX) * taps * item
    return x_bytes + filters + kn * stored + biases + 3 * 4 * BANK_COLUMNS + 2 * P_MAX
