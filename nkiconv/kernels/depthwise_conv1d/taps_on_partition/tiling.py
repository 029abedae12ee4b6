"""How `taps_on_partition` cuts a convolution, and how many instructions that takes.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._epilogue import finish_instructions
from ..._tiles import div_ceil

#: Most columns of a loaded tile: four banks of PSUM accumulate, the other four are being read out meanwhile.
TAPS_COLUMNS_MOST = 2048
#: Bytes a partition of one loaded tile: 4 KiB runs of bf16 for stride 1, room for strided runs, and several in flight.
TAPS_TILE_BYTES = 16384
#: Bytes a partition of one channel tile's stationaries; two sets fit beside the tiles.
TAPS_FILTER_BYTES = 32768
#: The same for one channel, which cannot be tiled further: two sets and the tiles still fit 212,728 bytes.
FILTER_BYTES_MAX = 65536
#: Filter tiles loaded by one DMA, so that its runs are up to 2048 taps long.
TAP_TILES_PER_LOAD = 16


@dataclass
class Tiling(nl.NKIObject):
    """Tile sizes of one problem; see kernel.py. Sizes in elements, one set for every core."""

    channels_per_group: int
    s_tile: int
    num_s_tiles: int
    c_tile: int
    groups_per_c_tile: int
    q_tile: int
    q_load: int


def choose_tiling(geometry, strict_nonfinite):
    """Tile sizes from shapes."""
    P_MAX = nl.tile_size.pmax
    tile_elems = TAPS_TILE_BYTES // geometry.itemsize
    s_tile = min(min(geometry.S, P_MAX), 1 + (tile_elems // 2) // geometry.dilation)
    num_s_tiles = div_ceil(geometry.S, s_tile)

    channels_per_group, c_most = 1, 1
    if not strict_nonfinite:
        c_most = P_MAX
        if num_s_tiles == 1:
            channels_per_group = max(1, min(P_MAX // s_tile, div_ceil(geometry.C, 2)))
            c_most = (c_most // channels_per_group) * channels_per_group
        if channels_per_group == 1:
            while c_most > 1 and filter_bytes(geometry, c_most, num_s_tiles) > TAPS_FILTER_BYTES:
                c_most = c_most // 2
    c_tile = even_channel_tile(geometry.C, channels_per_group, c_most)
    q_tile = min(geometry.Q, nl.tile_size.gemm_moving_fmax)
    # where a tile may have zeros that x does not hold, its row is staged with the halo
    staged = geometry.pad_left > 0 or geometry.pad_right > 0 or geometry.lhs_dilation > 1
    halo = (s_tile - 1) * geometry.dilation if staged else 0
    q_load = min(min(geometry.Q, TAPS_COLUMNS_MOST), 1 + (tile_elems - 1 - halo) // geometry.stride)
    q_tile = min(q_tile, q_load)
    q_load = (q_load // q_tile) * q_tile
    return Tiling(
        channels_per_group=channels_per_group,
        s_tile=s_tile,
        num_s_tiles=num_s_tiles,
        c_tile=c_tile,
        groups_per_c_tile=div_ceil(c_tile, channels_per_group),
        q_tile=q_tile,
        q_load=q_load,
    )


def filter_bytes(geometry, c_tile, num_s_tiles):
    """Bytes a partition of the stationaries of one channel tile, one channel a group."""
    return c_tile * c_tile * num_s_tiles * geometry.itemsize


def even_channel_tile(C, channels_per_group, c_most):
    """Channels a tile: whole groups, at most c_most, such that two cores get equal shares of whole tiles.

    The same on one core: a channel then meets the same matmuls at the same place on 1 and on 2 cores, bit for bit.
    """
    half = div_ceil(C, 2)
    tiles = div_ceil(half, c_most)
    return div_ceil(div_ceil(half, tiles), channels_per_group) * channels_per_group


@dataclass
class Span(nl.NKIObject):
    """What a tile of taps and columns meets: `size` positions of a padded, dilated row from `first` on, 0 being x[0].

    First `from_state` elements of the initial state, then `count` elements of x from `element` on, and zeros elsewhere.
    """

    first: int
    size: int
    from_state: int
    element: int
    count: int
    #: whether x holds all of it, and nothing in between
    whole: bool
    #: whether the tile adds nothing: it meets zeros only, and they need not meet NaN or Inf
    skipped: bool


def span_of(geometry, extras, s0, sn, q0, qn):
    """The Span of taps s0 .. s0+sn-1 at columns q0 .. q0+qn-1."""
    lhs_dilation = geometry.lhs_dilation
    first = q0 * geometry.stride + s0 * geometry.dilation - geometry.pad_left
    last = first + (qn - 1) * geometry.stride + (sn - 1) * geometry.dilation
    element = div_ceil(max(0, first), lhs_dilation)
    count = 0
    if last >= 0:
        count = max(0, min(geometry.W - 1, last // lhs_dilation) - element + 1)
    from_state = 0
    if extras.state and first < 0:
        from_state = min(-1, last) - first + 1
    outside = (last < 0 and not extras.state) or first > (geometry.W - 1) * lhs_dilation
    return Span(
        first=first,
        size=last - first + 1,
        from_state=from_state,
        element=element,
        count=count,
        whole=lhs_dilation == 1 and first >= 0 and last < geometry.W,
        skipped=outside and not extras.strict_nonfinite,
    )


def load_instructions(span):
    """Instructions of one load_tile: one DMA, or more where a padded row is staged."""
    count = 1
    if not span.whole:
        count += 1 if span.count > 0 else 0
        count += 1 if span.from_state > 0 else 0
        count += 1 if span.count + span.from_state < span.size else 0
    return count


def count_partition_instructions(geometry, extras, tiling, cores):
    """Instructions of the busier core, or up to two more."""
    tiles = div_ceil(div_ceil(geometry.C, tiling.c_tile), cores)
    channels = min(geometry.C, tiles * tiling.c_tile)
    groups = div_ceil(channels, tiling.channels_per_group)
    tiles = div_ceil(channels, tiling.c_tile)
    loads = 0
    stores = 0
    for q0 in range(0, geometry.Q, tiling.q_load):
        qn = min(tiling.q_load, geometry.Q - q0)
        q_tiles = div_ceil(qn, tiling.q_tile)
        used = 0
        for s0 in range(0, geometry.S, tiling.s_tile):
            span = span_of(geometry, extras, s0, min(tiling.s_tile, geometry.S - s0), q0, qn)
            if not span.skipped:
                used += 1
                loads += q_tiles + load_instructions(span)
        stores += 1 if extras.epilogue.residual == "" else 2
        if used == 0:
            stores += 1
        stores += q_tiles * finish_instructions(extras.epilogue)
    filters = tiles * (2 * tiling.num_s_tiles + div_ceil(tiling.num_s_tiles, TAP_TILES_PER_LOAD))
    if tiling.channels_per_group > 1:
        filters = 5 * tiles + (2 if geometry.C % tiling.channels_per_group != 0 else 0)
    if extras.epilogue.bias:
        filters += tiles
    return min(2, tiles) + filters + geometry.N * (groups * loads + tiles * stores)
