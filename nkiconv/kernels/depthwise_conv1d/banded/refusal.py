"""What `banded` does not run: settings, convolutions, and what is too large for memory or the compiler."""

from ...._nki import nl
from ..._epilogue import finish_instructions
from ..._tiles import INSTRUCTIONS_MAX, PARTS, div_ceil, share
from .blocks import fits, make_blocks, sbuf_bytes
from .config import banded_config_refusal
from .defaults import settings_of_banded
from .tiles import plan_tile
from .work import Work, cuts_of


def banded_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    reason = shape_refusal(geometry, extras, config)
    if reason != "":
        return reason
    blocks = make_blocks(geometry, settings_of_banded(geometry, extras, config), extras.state)
    return size_refusal(geometry, extras, blocks, cores)


def shape_refusal(geometry, extras, config):
    """What is wrong with settings, or what banded does not do at any size; "" if nothing is."""
    reason = banded_config_refusal(geometry, config)
    if reason != "":
        return reason
    if geometry.dilation > 1 or geometry.lhs_dilation > 1:
        return (
            f"rhs_dilation={geometry.dilation}, lhs_dilation={geometry.lhs_dilation}: banded takes 1 and 1, its blocks "
            f"are neighbouring elements; use mixed or taps_on_partition"
        )
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: banded multiplies zeros between channels; use vector or taps_on_partition"
    return ""


def size_refusal(geometry, extras, blocks, cores):
    """What is too large: memory or instructions; "" if nothing is."""
    if not fits(geometry, extras, blocks):
        needed = sbuf_bytes(geometry, extras, blocks)
        return (
            f"S={geometry.S}, block={blocks.block}: banded needs {needed} bytes a partition of SBUF, there are "
            f"{nl.tile_size.total_available_sbuf_size}; use fewer buffers or groups, another block or algorithm"
        )
    count = count_instructions(geometry, extras, blocks, cores)
    if count > INSTRUCTIONS_MAX:
        return (
            f"N={geometry.N}, C={geometry.C}, W={geometry.W}, S={geometry.S}: banded needs up to {count} instructions "
            f"on a core, the compiler takes {INSTRUCTIONS_MAX}; split N or C over several calls"
        )
    return ""


def count_instructions(geometry, extras, blocks, cores):
    """Most instructions that a core takes."""
    most = 0
    for core in range(cores):
        parts = share(PARTS, cores, core)
        total = 64 + blocks.config.buffers
        for part in range(parts[0], parts[0] + parts[1]):
            total += count_part(extras, blocks, cuts_of(blocks, geometry, part))
        most = max(most, total)
    return most


def count_part(extras, blocks, cuts):
    """Most instructions of one of the PARTS: tiles of as many groups and as many images take the same."""
    alike = []
    for _ in range(nl.tile_size.pmax + 1):
        alike.append(0)
    for g_index in range(len(cuts.groups)):
        alike[cuts.groups[g_index][1]] += 1
    total = 0
    for gn in range(len(alike)):
        if alike[gn] > 0:
            total += alike[gn] * count_groups(extras, blocks, cuts, gn)
    return total


def count_groups(extras, blocks, cuts, gn):
    """Most instructions of all tiles of one cut of `gn` groups: cuts of images have two sizes."""
    total = 0
    parts = max(1, cuts.n_parts)
    larger = cuts.nn % parts
    for j_index in range(cuts.j_parts):
        j = share(cuts.jn, cuts.j_parts, j_index)
        for more in range(2):
            count = larger if more == 1 else cuts.n_parts - larger
            if count > 0:
                work = Work(g0=cuts.g0, gn=gn, n0=cuts.n0, nn=cuts.nn // parts + more, j0=cuts.j0 + j[0], jn=j[1])
                total += count * count_tile(extras, blocks, work)
    return total


def count_tile(extras, blocks, work):
    """Most instructions of one tile."""
    tile = plan_tile(blocks, work)
    pieces = div_ceil(work.jn, nl.tile_size.psum_fmax)
    if pieces > 1:
        pieces = pieces * work.nn
    end = 1 + finish_instructions(extras.epilogue)
    count = 32 + 2 * (tile.blocks_in + tile.blocks_out * end) + 8 * (tile.chunks_in + tile.chunks_out)
    return count + work.gn * (pieces * (blocks.num_taps + end) + blocks.per_group)
