"""Operand swap: windows of x are the stationary operands, filters the moving ones; the same on any number of cores.

    y[pixels, k] = sum over taps, chunks of c of  x[c, pixels at a tap]^T w[c, tap, k]

128 pixels of y come out on the partitions with their output channels side by side, which is how NHWC is stored: results
leave in runs of K elements, or of several pixels' K. Padding is stored as zeros, so that each tap sees all pixels.

Settings: `shard`, what two cores share, "channels" of the output or "images" (and rows of them); `side`, neighbouring
pixels of a partition; `fold`, rows of y beside each other in the array's columns, with as many times stride rows of x
on its rows, for few channels; `x_bytes` and `filter_bytes`, a partition, of x of one band and of the filters that are
there together; `warmup`, matmuls on zeros before the first filters; `banks` of sums that go through the first filters
together, as these come.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, PARTS, PSUM_BANKS, cut, cut_into, div_ceil, share
from ..geometry import instructions_refusal
from .filters import raw_bytes, turns_of, way_of
from .load import is_staged
from .price import core_ns
from .shape import (
    Band,
    Cut,
    Source,
    bands_of,
    blocks_of,
    can_fold,
    cut_of,
    is_padded,
    least_band,
    source_of,
    tile_groups,
    widest,
)

SWAPPED_SETTINGS = ("shard", "side", "fold", "x_bytes", "filter_bytes", "warmup", "banks")
SWAPPED_SHARDS = ("channels", "images")
#: Bytes a partition of SBUF for the filters of a batch, and for x of one band; two bands are there at once.
SWAPPED_FILTER_BYTES = 118_784
SWAPPED_X_BYTES = 32_768
#: Matmuls of 128 columns on zeros while the first x and filters are on their way.
SWAPPED_WARM_UP = 28
SWAPPED_WARM_UP_MAX = 256
#: Banks of sums that go through a batch's filters together as these come; another one at least is for transposes.
FIRST_BANKS = 5
#: Neighbouring pixels of a partition, at most, unless a setting says more, and bytes of their results.
SIDE_MAX = 32
SIDE_LIMIT = 4096
RESULT_BYTES = 32_768
#: Rows of y beside each other that are tried.
SWAPPED_FOLDS = (2, 4, 8)
#: Elements between neighbours of a free axis on chip, at most (rules NKI053).
STEP_MAX = 32_767


@dataclass
class Item(nl.NKIObject):
    """One band for the output channels of one batch."""

    batch: int
    band: Band


@dataclass
class Swapped(nl.NKIObject):
    """All work: batches (first, how many) of output channels whose filters are in SBUF together; items in order."""

    source: Source
    sizes: Cut
    #: (first, how many) of at most 128 input channels
    chunks: list
    batches: list
    #: most output channels of a matmul
    k_tile: int
    items: list
    way: str
    #: whether x is cast after it has come
    staged: bool
    warmup: int
    #: of sums that go through a batch's filters together as these come
    banks: int


def plan_swapped(geometry, extras, config, cores):
    """(Swapped, "") of this on `cores` cores, or (None, why not)."""
    whole = nl.tile_size.total_available_sbuf_size
    reason = config_refusal(config, SWAPPED_SETTINGS, "swapped")
    if reason == "":
        limits = (("x_bytes", 64, whole), ("filter_bytes", 64, whole), ("warmup", 0, SWAPPED_WARM_UP_MAX))
        reason = numbers_refusal(config, limits)
    if reason == "":
        limits = (("side", 1, SIDE_LIMIT), ("fold", 1, nl.tile_size.pmax), ("banks", 1, PSUM_BANKS - 1))
        reason = numbers_refusal(config, limits)
    if reason == "" and setting(config, "shard", SWAPPED_SHARDS[0]) not in SWAPPED_SHARDS:
        reason = f"config shard={setting(config, 'shard', SWAPPED_SHARDS[0])}: accepted are {SWAPPED_SHARDS}"
    if reason == "":
        reason = refusal(geometry, extras)
    if reason == "":
        reason = fold_refusal(geometry, extras, setting(config, "fold", 1))
    if reason != "":
        return None, reason
    plan = best_plan(geometry, extras, config)
    if plan == None:
        return None, (
            f"C={geometry.C}, H={geometry.rows.size}, W={geometry.columns.size}, R={geometry.rows.taps}, "
            f"S={geometry.columns.taps}, x_bytes={setting(config, 'x_bytes', SWAPPED_X_BYTES)}: swapped keeps padded "
            f"windows of rows of y and filters of all input channels in SBUF, {whole} bytes a partition, with steps of "
            f"at most {STEP_MAX} elements; use taps"
        )
    count = count_instructions(geometry, plan, extras, cores)
    reason = instructions_refusal(geometry, "swapped", count)
    return (plan, "") if reason == "" else (None, reason)


def refusal(geometry, extras):
    """Why this is not for pixels as stationaries, or ""."""
    if geometry.hbm_itemsize == 1:
        return "img_ref.dtype=float8: swapped takes 16 and 32 bits, as DMA turns no single bytes; use taps or pairs"
    if geometry.groups > 1:
        return f"feature_group_count={geometry.groups}: swapped takes 1; use taps or grouped"
    if extras.pool != (1, 1):
        return f"pool={extras.pool}: swapped takes (1, 1); use taps"
    if geometry.y_k != 1 and geometry.K > 1:
        return (
            f"out_perm: neighbouring output channels are {geometry.y_k} elements apart in y, swapped stores runs of "
            f"them and takes 1; use out_perm=(0, 2, 3, 1) or taps"
        )
    padded = is_padded(geometry.rows) or is_padded(geometry.columns)
    gaps = geometry.rows.lhs_dilation > 1 or geometry.columns.lhs_dilation > 1
    if extras.strict_nonfinite and (padded or gaps):
        return "strict_nonfinite=True: swapped multiplies filters by the zeros of padding and lhs_dilation; use taps"
    return ""


def fold_refusal(geometry, extras, fold):
    """Why so many rows of y do not go beside each other, or ""."""
    if fold > 1 and extras.strict_nonfinite:
        return f"strict_nonfinite=True, config fold={fold}: rows outside a window are multiplied by zero; use fold 1"
    staged = is_staged(geometry, geometry.itemsize != geometry.hbm_itemsize)
    if not can_fold(geometry, fold, staged):
        return (
            f"config fold={fold}, C={geometry.C}, K={geometry.K}, P={geometry.rows.out}: must divide P, with fold * "
            f"stride * C <= {nl.tile_size.pmax}, fold * K <= {BANK_COLUMNS}, no crop at the top, no lhs_dilation of "
            f"rows and no cast of NHWC; use 1"
        )
    return ""


def best_plan(geometry, extras, config):
    """The Swapped that takes least by prices, of all that the settings leave open and that fit; None if none does."""
    found, least = None, 0.0
    whole = nl.tile_size.total_available_sbuf_size
    wanted = setting(config, "shard", "")
    sides = sides_of(geometry.columns.out, geometry.K * geometry.hbm_itemsize)
    if setting(config, "side", 0) > 0:
        sides = [setting(config, "side", 1)]
    ways = ways_of(geometry, extras, config, wanted)
    for index in range(len(sides)):
        for which in range(len(ways)):
            plan = make_plan(geometry, config, sides[index], ways[which][0], ways[which][1])
            if plan != None and sbuf_bytes(geometry, plan, extras) <= whole:
                ns = core_ns(geometry, plan)
                if found == None or ns < least:
                    found, least = plan, ns
    return found


def ways_of(geometry, extras, config, wanted):
    """(whether cores share output channels, rows of y beside each other) that are worth a try."""
    fixed = setting(config, "fold", 0)
    found = []
    for index in range(len(SWAPPED_SHARDS)):
        if wanted in ("", SWAPPED_SHARDS[index]) and fixed <= 1:
            found.append((index == 0, 1))
    folds = SWAPPED_FOLDS if fixed == 0 else (fixed,)
    for index in range(len(folds)):
        taken = folds[index] > 1 and wanted != "channels" and fold_refusal(geometry, extras, folds[index]) == ""
        if taken:
            found.append((False, folds[index]))
    return found


def sides_of(Q, pixel_bytes):
    """Neighbours on a partition that are worth a try: divisors of Q, and powers of two."""
    found = [1]
    for side in range(2, min(Q, min(SIDE_MAX, RESULT_BYTES // pixel_bytes)) + 1):
        if Q % side == 0 or side in (2, 4, 8):
            found.append(side)
    return found


def make_plan(geometry, config, side, by_channels, fold):
    """The Swapped of a number of neighbours, a way to share and rows of y beside each other, or None where a window is
    too wide, or filters of several rows are not there at once."""
    source = source_of(geometry, fold)
    item = geometry.itemsize
    chunks = cut(geometry.C, nl.tile_size.pmax)
    taps = geometry.rows.taps * geometry.columns.taps
    k_bytes = len(chunks) * taps * item
    most_k = min(geometry.K, max(1, setting(config, "filter_bytes", SWAPPED_FILTER_BYTES) // k_bytes))
    count = div_ceil(geometry.K, most_k)
    if by_channels or count > 1:
        count = min(geometry.K, div_ceil(count, PARTS) * PARTS)
    batches = cut_into(geometry.K, count)
    if fold > 1 and count > 1:
        return None
    most_elements = setting(config, "x_bytes", SWAPPED_X_BYTES) // (len(chunks) * item)
    sizes = cut_of(source, geometry, side, most_elements)
    if widest_step(source, sizes, least_band(source, sizes), len(chunks)) > STEP_MAX:
        return None
    bands = bands_of(source, geometry, sizes, most_elements, PARTS if count == 1 else 1)
    for index in range(len(bands)):
        if widest_step(source, sizes, bands[index], len(chunks)) > STEP_MAX:
            return None
    items = []
    for batch in range(count):
        for index in range(len(bands)):
            items.append(Item(batch=batch, band=bands[index]))
    casts = geometry.itemsize != geometry.hbm_itemsize
    return Swapped(
        source=source,
        sizes=sizes,
        chunks=chunks,
        batches=batches,
        k_tile=widest(cut(fold * widest(batches), BANK_COLUMNS)),
        items=items,
        way=way_of(geometry, casts),
        staged=is_staged(geometry, casts),
        warmup=setting(config, "warmup", SWAPPED_WARM_UP),
        banks=setting(config, "banks", FIRST_BANKS),
    )


def widest_step(source, sizes, band, num_chunks):
    """Elements between neighbours of an axis of more than one, at most, in what the engines see of a window."""
    found = 1
    if band.nn * num_chunks > 1:
        found = max(found, band.hn * band.wn)
    if band.hn > 1:
        found = max(found, band.wn)
    if min(band.pn, sizes.rows) > 1:
        found = max(found, source.rows.stride * band.wn)
    if band.qn > sizes.side:
        found = max(found, sizes.side * source.columns.stride)
    return found


def window_elements(band, num_chunks):
    """Elements a partition of a band's window."""
    return num_chunks * band.nn * band.hn * band.wn


def sbuf_bytes(geometry, plan, extras):
    """Bytes a partition, at most: x of two bands, filters, blocks of taps, results, bias."""
    item, y_item = geometry.itemsize, extras.epilogue.y_itemsize
    taps = geometry.rows.taps * geometry.columns.taps
    x_bytes = 0
    for index in range(len(plan.items)):
        band = plan.items[index].band
        staged = 2 * band.nn * band.hn * band.wn * geometry.hbm_itemsize if plan.staged else 0
        x_bytes = max(x_bytes, 2 * window_elements(band, len(plan.chunks)) * item + staged)
    kn = widest(plan.batches)
    filters = len(plan.chunks) * taps * kn * item
    if plan.way == "array":
        filters += raw_bytes(geometry, kn, plan.chunks)
    fold = plan.source.fold
    if fold > 1:
        filters += plan.source.rows.taps * plan.source.columns.taps * fold * kn * item
    side = min(plan.sizes.side, geometry.columns.out)
    results = side * fold * kn * (2 * y_item + (2 * 8 if extras.residual else 0))
    sums = 3 * 4 * BANK_COLUMNS
    bias = 2 * 4 * fold * kn if extras.epilogue.bias else 0
    zeros = nl.tile_size.pmax * 2
    return x_bytes + filters + results + sums + bias + zeros


def count_instructions(geometry, plan, extras, cores):
    """Instructions of the busiest core, at most."""
    taps = geometry.rows.taps * geometry.columns.taps
    chunks, source = len(plan.chunks), plan.source
    windows = source.rows.taps * source.columns.taps
    most = 0
    for core in range(cores):
        mine = share(len(plan.items), cores, core)
        total = 8 + plan.warmup
        for index in range(mine[0], mine[0] + mine[1]):
            item, before = plan.items[index], plan.items[max(0, index - 1)]
            kn = plan.batches[item.batch][1]
            if index == mine[0] or before.batch != item.batch:
                turns = turns_of(kn, taps, plan.chunks, geometry.itemsize)
                total += turns[0] + 2 * turns[1] + chunks * taps * 2 + 4 + source.fold * geometry.rows.taps
            blocks = blocks_of(plan.sizes, item.band)
            total += 4 + chunks * 2 * source.slots * (len(blocks) + 1)
            for which in range(len(blocks)):
                groups = tile_groups(blocks[which], plan.sizes.side, plan.k_tile)
                tiles = min(plan.sizes.side, blocks[which].qn)
                parts = div_ceil(source.fold * kn, plan.k_tile)
                total += parts * (tiles * chunks * windows + 5 * len(groups)) + 6
                total += (source.fold - 1) * 2 * (len(groups) * parts + 1)
        most = max(most, total)
    return most
