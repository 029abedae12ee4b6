"""`implicit_gemm`, weight-stationary, one matmul a tap: its settings, K tiles of input channels, M tiles of output
channels, folded channels and fp8 pairs.

Channels beyond a multiple of 128 are folded, so that they still fill the Tensor Engine's rows and columns. Inputs, in
one K tile or two: the partitions hold `depth` copies of a K tile's x, each shifted by one more column of taps, so that
one matmul computes the products of `depth` taps; all share one window, with zeros outside a tap's valid range. Outputs:
an M tile makes two rows of y at once, (row, k) in the columns: it holds two copies of its filters, the second shifted
by the stride, and one matmul reads the rows of x of both. Channels that are neighbours in HBM are not folded: x is
transposed when it is loaded, results when they are stored.

For fp8 the Tensor Engine contracts [K, 2, M] with [K, 2, N] in the time of [K, M] with [K, N] (double_row). The two are
*slots*: the halves of a K tile of up to 256 channels, at one tap; or, for a single K tile, two taps, with zeros stored
around x, so that both windows have one shape and a constant distance.

    ALONE    one slot, a matmul a tap, as without pairs
    CHUNKS   two slots of channels, a matmul a tap; the second slot's first `again` partitions repeat channels
    TAPS     one slot, two taps a matmul; the last tap of an odd number has its own matmul
    NEIGHBOURS   two slots of channels, even and odd ones side by side: DMA transposes both as one element of two bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .cuts import in_batches, window_of
from .geometry import Axis, Geometry, is_transposed, moves_pairs, num_taps, span
from .settings import ALL, WARM_UPS, Settings, choice, count, double, half, warm_up
from .tiles import P_MAX, PARTS, SBUF_BYTES, cut, cut_at, div_ceil, share

SHARDS, ORDERS = ("channels", "images"), ("banks", "chunks")
FOLDS = ("none", "inputs", "outputs", "both")
#: Kinds of products: one by one, of fp16 pairs (precision="fp16x3"), or of fp8 pairs.
PRODUCTS = ("single", "fp16x3", "fp8_pairs")
X_BYTES = 32_768
#: The most M tiles that a setting counts, and the most pairs of output tiles in the body of a device loop.
COUNT_MAX, LOOP_MAX = 4096, 64


@dataclass(frozen=True)
class ImplicitGemmSettings(Settings):
    """All settings of `implicit_gemm`."""

    algorithm = "implicit_gemm"
    tried = ("x_bytes", "shard", "warmup", "fold", "moved", "product", "order")

    shard: str = choice(
        "what the two cores share: channels of y, or images and their rows", SHARDS, near=("images", "channels")
    )
    x_bytes: int = count(
        "x of an output tile; two are loaded at once", 256, SBUF_BYTES, near=(half, double), unit="bytes a partition"
    )
    warmup: int = warm_up("by shape", near=WARM_UPS)
    moved: int = count(
        "M tiles of each half of the work whose filters DMA transposes, not the Tensor Engine",
        0,
        COUNT_MAX,
        default=0,
        near=(0, 1, 2, 4),
    )
    fold: str = choice("which channels beyond a multiple of 128 are folded", FOLDS, near=ALL)
    order: str = choice(
        "accumulators of an output tile one after the other, or all of them for each K tile of x",
        ORDERS,
        default=ORDERS[0],
        near=ALL,
    )
    product: str = choice("kind of products", PRODUCTS, near=ALL)
    loop: int = count("pairs of output tiles of a device loop's body; 0: all are unrolled", 0, LOOP_MAX, default=0)


#: How the products of a K tile are paired.
ALONE, CHUNKS, TAPS, NEIGHBOURS = "alone", "chunks", "taps", "neighbours"
#: Rows of outputs of a folded M tile.
ROWS = 2
#: Bytes a partition of SBUF for the filters of a weight-resident group.
FILTER_BYTES = 90_112


class KTile(NamedTuple):
    """A K tile: channels c0 .. c0+cn-1, at most 128 on each of its slots."""

    c0: int
    cn: int
    depth: int = 1
    pairing: str = ALONE
    again: int = 0

    @property
    def slots(self) -> int:
        """Slots of its x and of its filters."""
        return 2 if self.pairing in (CHUNKS, NEIGHBOURS) else 1

    def first_channel(self, slot: int) -> int:
        """The first of a slot's `cn` channels."""
        return self.c0 + slot * (self.cn - self.again)


@dataclass(frozen=True)
class MTile:
    """An M tile: output channels k0 .. k0+kn-1, all of one group or of `pack` whole groups, their K tiles, and its
    output rows at once."""

    k0: int
    kn: int
    pack: int
    k_tiles: tuple[KTile, ...]
    rows: int


#: M tiles whose filters are in SBUF together
Batch = tuple[MTile, ...]


def stores_channels(geometry: Geometry) -> bool:
    """Whether the kernel transposes results: neighbours in y are channels."""
    return geometry.y_strides[0] == 1 and geometry.K > 1


def left_over(count: int) -> int:
    """`count` modulo 128 if two copies of these channels fit, else 0."""
    rest = count % P_MAX
    return rest if ROWS * rest <= P_MAX else 0


def fold_of(geometry: Geometry) -> tuple[int, int]:
    """(K tiles, copies) of the left-over input channels; (1, 1) if they cannot be folded. Two K tiles if that takes
    fewer products than one without copies: three copies of each, so of 65 to 84 channels with 3 or 5 or more columns
    of taps."""
    each, columns = geometry.C // geometry.groups, geometry.columns
    rest, plain = each % P_MAX, each > 1 and has_own_m_tiles(geometry)
    if (
        rest == 0
        or is_transposed(geometry)
        or moves_pairs(geometry)
        or not plain
        or columns.lhs_dilation > 1
        or columns.taps > columns.size
    ):
        return 1, 1
    tiles = 1 if left_over(rest) else 2
    depth = min(P_MAX // div_ceil(rest, tiles), columns.taps)
    return (tiles, depth) if tiles * div_ceil(columns.taps, depth) < columns.taps else (1, 1)


def rows_of(geometry: Geometry) -> int:
    """Output rows at once if output channels are left over; 1 if they cannot be folded."""
    rows, plain = geometry.rows, geometry.groups == 1 and geometry.C > 1
    packs = geometry.packed > 0 and (P_MAX % geometry.packed != 0 or geometry.planes.taps > 1)
    if left_over(geometry.K) == 0 or stores_channels(geometry) or not plain or rows.lhs_dilation > 1 or packs:
        return 1
    apart = rows.stride % rows.dilation != 0 or rows.taps + rows.stride // rows.dilation >= 2 * rows.taps
    return 1 if rows.out < ROWS or apart else ROWS


def m_tile_axis(geometry: Geometry, m_tile: MTile) -> Axis:
    """The rows' Axis of an M tile; of pairs of rows, if it makes two output rows at once."""
    rows = geometry.rows
    if m_tile.rows == 1:
        return rows
    taps, stride = rows.taps + rows.stride // rows.dilation, ROWS * rows.stride
    return Axis(rows.size, taps, div_ceil(rows.out, ROWS), stride, rows.dilation, before=rows.before)


def tap_groups(geometry: Geometry, k_tile: KTile) -> int:
    """Groups of columns of taps of a K tile; one matmul takes one group."""
    return div_ceil(geometry.columns.taps, k_tile.depth)


def group_depth(geometry: Geometry, k_tile: KTile, group: int) -> int:
    """Columns of taps of a group; the last one may have fewer."""
    return min(k_tile.depth, geometry.columns.taps - group * k_tile.depth)


def m_tiles_of(
    geometry: Geometry, settings: ImplicitGemmSettings, apart: bool, filter_bytes: int = FILTER_BYTES
) -> list[MTile]:
    """M tiles with at most so many bytes of filters. apart: whether groups must not share an M tile."""
    per_c, per_k, fold = geometry.C // geometry.groups, geometry.K // geometry.groups, settings.fold
    pack = 1
    if not (apart or has_own_m_tiles(geometry)):
        pack = min(geometry.groups, P_MAX // per_c, P_MAX // per_k)
    most_k = most_channels(per_c, num_taps(geometry), geometry.itemsize, filter_bytes)
    while pack > 1 and pack * per_k > most_k:
        pack //= 2
    rows = rows_of(geometry) if fold in ("outputs", "both") and most_k == P_MAX else 1
    found = []
    for g0 in range(0, geometry.groups, pack):
        gn = min(pack, geometry.groups - g0)
        outputs = [(0, gn * per_k)]
        if rows > 1:
            outputs = cut_at(per_k, P_MAX)
        elif gn == 1 and geometry.packed > 0:
            each = geometry.packed
            outputs = [(b0 * each, bn * each) for b0, bn in cut(per_k // each, max(1, most_k // each))]
        elif gn == 1:
            outputs = cut(per_k, most_k)
        k_tiles = (KTile(g0 * per_c, gn * per_c),) if gn > 1 else _k_tiles_of_group(geometry, g0, settings)
        found += [MTile(g0 * per_k + k0, kn, gn, k_tiles, 1) for k0, kn in outputs[:-1]]
        found.append(MTile(g0 * per_k + outputs[-1][0], outputs[-1][1], gn, k_tiles, rows))
    return found


def _k_tiles_of_group(geometry: Geometry, group: int, settings: ImplicitGemmSettings) -> tuple[KTile, ...]:
    """K tiles of a group that shares no M tile."""
    per_c = geometry.C // geometry.groups
    tiles, depth = fold_of(geometry) if settings.fold in ("inputs", "both") else (1, 1)
    paired = settings.product == "fp8_pairs"
    rest, first = per_c % P_MAX if depth > 1 else 0, group * per_c
    whole = per_c - rest
    every = paired_k_tiles(geometry, whole) if paired else [KTile(first + c0, cn) for c0, cn in cut(whole, P_MAX)]
    folded = cut_at(rest, max(1, div_ceil(rest, tiles)))
    return *every, *(KTile(first + whole + c0, cn, depth, TAPS if paired else ALONE) for c0, cn in folded)


def most_channels(C: int, taps: int, itemsize: int, filter_bytes: int = FILTER_BYTES) -> int:
    """Most output channels of an M tile: their filters fit, and so do the Tensor Engine's columns."""
    return max(1, min(P_MAX, filter_bytes // (div_ceil(C, P_MAX) * taps * itemsize)))


def packed_channels(K: int, C: int, taps: int, itemsize: int) -> int:
    """Output channels of a block of a packed filter: the largest divisor of K whose blocks make fewest M tiles."""
    most = most_channels(C, taps, itemsize)
    divisors = [count for count in range(1, min(K, most) + 1) if K % count == 0]
    return min(reversed(divisors), key=lambda count: div_ceil(K // count, most // count))


def paired_k_tiles(geometry: Geometry, whole: int) -> list[KTile]:
    """K tiles of the first `whole` channels in pairs: of channels or, in the last tile of an odd number, of taps."""
    if moves_pairs(geometry):
        return [KTile(2 * first, count, 1, NEIGHBOURS) for first, count in cut(whole // 2, P_MAX)]
    count = div_ceil(whole, P_MAX)
    paired = whole if count % 2 == 0 else (count - 1) * div_ceil(whole, count)
    found = []
    for c0, cn in cut(paired, 2 * P_MAX):
        each = div_ceil(cn, 2)
        found.append(KTile(c0, each, 1, CHUNKS, 2 * each - cn))
    if paired < whole:
        found.append(KTile(paired, whole - paired, 1, ALONE if num_taps(geometry) == 1 else TAPS))
    return found


def sums_pitch(geometry: Geometry, k_tiles: Sequence[KTile], images: int, own: int) -> int:
    """Rows of sums from one image of a bank to the next: more than an image's own if zeros lie between images; images
    share these, as the rows of all images are one dimension of a pair's access pattern."""
    if images == 1 or all(k_tile.pairing == ALONE for k_tile in k_tiles):
        return own
    rows = geometry.rows
    extent, (first, count) = window_of(rows, rows.out), span(rows, 0, rows.out)
    above = first + rows.before  # zeros above x; the rest of them are below
    return max(own, div_ceil(extent - min(above, extent - above - count), rows.stride))


def counted(k_tiles: Sequence[KTile]) -> list[tuple[KTile, int]]:
    """(K tile, count of equal ones) of the K tiles of x: only the last two may differ from the first."""
    alike = max(1, len(k_tiles) - 2)
    return [(k_tiles[0], alike), *((k_tile, 1) for k_tile in k_tiles[alike:])]


def m_tile_bytes(geometry: Geometry, m_tile: MTile) -> int:
    """Bytes a partition of an M tile's stationaries."""
    taps = sum(many * k_tile.slots * tap_groups(geometry, k_tile) for k_tile, many in counted(m_tile.k_tiles))
    rows = geometry.planes.taps * m_tile_axis(geometry, m_tile).taps * m_tile.rows
    return rows * taps * m_tile.kn * geometry.itemsize


def is_depthwise_m_tile(geometry: Geometry, m_tile: MTile) -> bool:
    """Whether each channel has its own filters, all in this M tile; False for a packed filter, which is loaded in
    place."""
    own = geometry.groups == geometry.C and geometry.packed == 0 and geometry.direct is None
    return own and m_tile.kn == m_tile.k_tiles[0].cn * (geometry.K // geometry.C)


def batches_of(geometry: Geometry, m_tiles: Sequence[MTile], by_channels: bool, filter_bytes: int) -> tuple[Batch, ...]:
    """Weight-resident groups of M tiles, with at most so many bytes of filters each; if several, as many for either
    half of the M tiles, so that two cores can share them. by_channels: several in any case."""
    most = min(len(m_tiles), *(max(1, filter_bytes // m_tile_bytes(geometry, m_tile)) for m_tile in m_tiles))
    by_channels = by_channels or most < len(m_tiles)
    return tuple(map(tuple, in_batches(m_tiles, most, PARTS if len(m_tiles) > 1 and by_channels else 1)))


def moved_from(batches: Sequence[Batch], count: int) -> tuple[int, ...]:
    """For each group its first M tile whose filters DMA transposes: of the last `count` of all, or of each half."""
    halves, found = PARTS if len(batches) > 1 else 1, []
    for core in range(halves):
        first, many = share(len(batches), halves, core)
        left, own = count, []
        for batch in reversed(batches[first : first + many]):
            own.append(max(0, len(batch) - left))
            left = max(0, left - len(batch))
        found += own[::-1]
    return tuple(found)


def can_move(geometry: Geometry) -> bool:
    """Whether DMA can transpose filters: plain ones of 16 bits and one group."""
    plain = geometry.groups == 1 and geometry.packed == 0 and geometry.direct is None and not geometry.flipped
    return geometry.itemsize == 2 and plain


def by_input(geometry: Geometry, m_tile: MTile) -> bool:
    """Whether filters are loaded by input channels, with taps reversed: in transposed convolutions, unless each channel
    has its own filters."""
    return geometry.flipped and not is_depthwise_m_tile(geometry, m_tile)


def has_own_m_tiles(geometry: Geometry) -> bool:
    """Whether each group has its own M tiles: it is the only one, or too wide for two to share the array."""
    widest = max(geometry.C, geometry.K) // geometry.groups
    return geometry.groups == 1 or ROWS * widest > P_MAX


def lies_ready(geometry: Geometry, m_tile: MTile, k_tile: KTile) -> bool:
    """Whether a transposed convolution's filters are stationaries as loaded: [c, k, taps reversed]."""
    plain = m_tile.rows == m_tile.pack == k_tile.depth == 1 and k_tile.pairing == ALONE
    return by_input(geometry, m_tile) and plain and geometry.precision != "fp16x3"


def can_together(geometry: Geometry, batch: Batch) -> bool:
    """Whether a group's M tiles read the same K tiles of x, more than one; False if x or results are transposed, which
    takes extra banks."""
    several = len(batch[0].k_tiles) > 1 and not is_transposed(geometry) and not stores_channels(geometry)
    return several and all(m_tile.k_tiles == batch[0].k_tiles and m_tile.rows == 1 for m_tile in batch)
