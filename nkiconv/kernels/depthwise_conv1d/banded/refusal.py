"""What `banded` does not run: settings, convolutions, and what is too large for memory or the compiler."""

from ...._nki import nl
from ....schedules.banded import banded_config_refusal
from ....schedules.options import finish_instructions
from ....schedules.tiles import PARTS, div_ceil, filled, share
from ..flip import FEW_TAPS
from ..geometry import instructions_refusal
from .blocks import banded_sbuf_bytes, fits, make_blocks
from .defaults import banded_settings
from .tiles import banded_cuts, plan_tile, sum_spans


def banded_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = shape_refusal(geometry, extras, config)
    if reason != "":
        return reason
    blocks = make_blocks(geometry, banded_settings(geometry, extras, config), extras.state)
    return size_refusal(geometry, extras, blocks, cores)


def shape_refusal(geometry, extras, config):
    """What is wrong with settings, or what banded does not do at any size; "" if nothing is."""
    reason = banded_config_refusal(geometry, config)
    if reason != "":
        return reason
    if geometry.dilation > 1 or geometry.lhs_dilation > 1:
        return (
            f"rhs_dilation={geometry.dilation}, lhs_dilation={geometry.lhs_dilation}: banded takes 1 and 1, its blocks "
            f"are neighbouring elements; use mixed or vector"
        )
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: banded multiplies zeros between channels; use vector"
    return ""


def size_refusal(geometry, extras, blocks, cores):
    """What is too large: memory or instructions; "" if nothing is."""
    if not fits(geometry, extras, blocks):
        needed = banded_sbuf_bytes(geometry, extras, blocks)
        return (
            f"S={geometry.S}, block={blocks.block}: banded needs {needed} bytes per partition of SBUF, there are "
            f"{nl.tile_size.total_available_sbuf_size}; use fewer buffers or groups, another block or algorithm"
        )
    return instructions_refusal(geometry, "banded", count_banded_instructions(geometry, extras, blocks, cores))


def count_banded_instructions(geometry, extras, blocks, cores):
    """Most instructions that a core takes."""
    most = 0
    for core in range(cores):
        first, parts = share(PARTS, cores, core)
        total = 64 + blocks.config.buffers
        if geometry.flipped:
            total += div_ceil(geometry.C, nl.tile_size.pmax) * (FEW_TAPS + 5 * div_ceil(geometry.S, nl.tile_size.pmax))
        for part in range(first, first + parts):
            cuts = banded_cuts(blocks, geometry, part)
            alike = filled(nl.tile_size.pmax + 1, 0)
            for g_index in range(len(cuts.groups)):
                gn = cuts.groups[g_index][1]
                if alike[gn] == 0:
                    alike[gn] = count_tiles(extras, blocks, cuts, g_index)
                total += alike[gn]
        most = max(most, total)
    return most


def count_tiles(extras, blocks, cuts, g_index):
    """Most instructions of all tiles of one cut of groups: of the largest and the smallest, at ends and between."""
    most, images, columns = 0, len(cuts.images), len(cuts.columns)
    for n in range(min(images, 2)):
        for j in range(min(columns, 3)):
            tile = plan_tile(blocks, cuts, g_index, n * (images - 1), j * (columns - 1) // 2)
            most = max(most, count_tile(extras, blocks, tile))
    return most * images * columns


def count_tile(extras, blocks, tile):
    """Most instructions of one tile."""
    pieces = len(sum_spans(tile))
    end = 1 + finish_instructions(extras.epilogue)
    count = 32 + 2 * (tile.blocks_in + tile.blocks_out * end) + 8 * (tile.chunks_in + tile.chunks_out)
    return count + tile.gn * (pieces * (blocks.num_taps + end) + blocks.per_group)
