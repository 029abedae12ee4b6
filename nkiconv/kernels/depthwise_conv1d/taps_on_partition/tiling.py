"""How `taps_on_partition` cuts a convolution, and how many instructions that takes.

Compile-time code in NKI's Python subset.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._epilogue import finish_instructions, is_plain
from ..._tiles import div_ceil
from ..positions import first_element, first_position, last_element, last_position, only_zeros

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
    run_step: int


def choose_tiling(geometry, strict_nonfinite, config):
    """Tile sizes from shapes and a TapsOnPartitionConfig."""
    P_MAX = nl.tile_size.pmax
    tile_elems = TAPS_TILE_BYTES // geometry.itemsize
    s_tile = min(min(geometry.S, P_MAX), 1 + (tile_elems // 2) // geometry.dilation)
    num_s_tiles = div_ceil(geometry.S, s_tile)

    channels_per_group, c_most = 1, 1
    if not strict_nonfinite:
        c_most = config.channels
        if num_s_tiles == 1:
            channels_per_group = max(1, min(min(P_MAX // s_tile, c_most), div_ceil(geometry.C, 2)))
            c_most = (c_most // channels_per_group) * channels_per_group
        while (
            channels_per_group == 1 and c_most > 1 and filter_bytes(geometry, c_most, num_s_tiles) > TAPS_FILTER_BYTES
        ):
            c_most = c_most // 2
    c_tile = even_channel_tile(geometry.C, channels_per_group, c_most)
    q_tile = min(geometry.Q, nl.tile_size.gemm_moving_fmax)
    run_step = geometry.stride if config.whole_runs else 1
    q_load = min(min(geometry.Q, config.columns), 1 + (tile_elems - 1) // run_step)
    if needs_staging(geometry):
        halo = (s_tile - 1) * geometry.dilation
        q_load = min(q_load, 1 + (tile_elems - 1 - halo) // geometry.stride)
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
        run_step=run_step,
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


def needs_staging(geometry):
    """Whether any tile may contain zeros that x does not hold."""
    return geometry.pad_left > 0 or geometry.pad_right > 0 or geometry.lhs_dilation > 1


def skips(geometry, extras, s0, sn, q0, qn):
    """Whether a tile of taps adds nothing to these columns: it meets zeros only, and they need not meet NaN or Inf."""
    return only_zeros(geometry, s0, sn, q0, qn, extras.state) and not extras.strict_nonfinite


def count_instructions(geometry, extras, tiling, tiles_per_core):
    """Instructions of the busier core, or up to two more."""
    channels = min(geometry.C, tiles_per_core * tiling.c_tile)
    groups = div_ceil(channels, tiling.channels_per_group)
    tiles = div_ceil(channels, tiling.c_tile)
    per_read_out = finish_instructions(extras.epilogue)
    loads = 0
    stores = 0
    for q0 in range(0, geometry.Q, tiling.q_load):
        qn = min(tiling.q_load, geometry.Q - q0)
        q_tiles = div_ceil(qn, tiling.q_tile)
        used = 0
        for s0 in range(0, geometry.S, tiling.s_tile):
            sn = min(tiling.s_tile, geometry.S - s0)
            if not skips(geometry, extras, s0, sn, q0, qn):
                used += 1
                loads += q_tiles + load_instructions(geometry, extras, s0, sn, q0, qn)
        stores += 1 if extras.epilogue.residual == "" else 2
        if used == 0:
            stores += 1
        if used > 0 or not is_plain(extras.epilogue):
            stores += q_tiles * per_read_out
    filters = tiles * (2 * tiling.num_s_tiles + div_ceil(tiling.num_s_tiles, TAP_TILES_PER_LOAD))
    if tiling.channels_per_group > 1:
        filters = 5 * tiles + (2 if geometry.C % tiling.channels_per_group != 0 else 0)
    if extras.epilogue.bias:
        filters += tiles
    return min(2, tiles) + filters + geometry.N * (groups * loads + tiles * stores)


def load_instructions(geometry, extras, s0, sn, q0, qn):
    """Instructions of one load_tile: one DMA, or more where a padded row is staged."""
    first, last = first_position(geometry, s0, q0), last_position(geometry, s0, sn, q0, qn)
    if geometry.lhs_dilation == 1 and first >= 0 and last < geometry.W:
        return 1
    of_x = max(0, last_element(geometry, last) - first_element(geometry, first) + 1)
    of_state = state_elements(extras, first, last)
    count = 1
    if of_x > 0:
        count += 1
    if of_state > 0:
        count += 1
    if of_x + of_state < last - first + 1:
        count += 1
    return count


def state_elements(extras, first, last):
    """How many of the positions first .. last lie in the initial state."""
    if not extras.state or first >= 0:
        return 0
    return min(-1, last) - first + 1
