"""product="fp8_pairs": which input channels and taps of fp8 the array contracts together.

The array contracts [K, 2, M] with [K, 2, N] in the time of [K, M] with [K, N] where both are fp8 (double_row). The two
are *slots*: of a chunk of up to 256 channels its halves, at one tap; of a chunk that is left alone two taps, for which
zeros are stored around x, so that both meet windows of one shape at a constant distance.

    ALONE    one slot, a matmul a tap, as without pairs
    CHUNKS   two slots of channels, a matmul a tap; the last `again` of the chunk's partitions are counted once
    TAPS     one slot, two taps a matmul; the last one of an odd number has a matmul of its own
    HALVES   TAPS of 128 channels whose last tap takes half a matmul: channels 0..63 and 64..127 are a pair on the first
             64 rows of the array for one bank of sums, on the last 64 for the next, side by side; a second slot has x
             and that tap with both halves exchanged
    STAGED   TAPS whose rows of x are short: they come as one run, and are put between the zeros on chip
"""

from ...._nki import nl
from ....schedules.cuts import window_of
from ....schedules.geometry import images_refusal, num_taps, span
from ....schedules.tiles import BANK_COLUMNS, WORD_BYTES, cut, div_ceil

FP8_PRODUCTS = ("fp8_pairs", "fp8_halves", "fp8_staged")
#: How the products of a chunk pair.
ALONE, CHUNKS, TAPS, HALVES, STAGED = "alone", "chunks", "taps", "halves", "staged"
#: Channels of a folded chunk, so that each copy begins at a partition that engines can address.
FOLDED = (32, 64)
#: Elements a partition from one slot, or tap, to the next, at most (a stride of an access pattern).
SLOT_MAX = 32_767


def stores_zeros(chunk):
    """Whether all of a chunk's windows are stored, zeros and all."""
    return chunk[3] == TAPS or chunk[3] == HALVES or chunk[3] == STAGED


def slots_of(chunk):
    """Slots of a chunk's x and filters."""
    return 2 if chunk[3] == CHUNKS or chunk[3] == HALVES else 1


def slot_channels(chunk, slot):
    """(first partition, first channel from the chunk's on, how many) of the parts of a slot."""
    count, half = chunk[1], chunk[1] // 2
    if slot == 0:
        return [(0, 0, count)]
    if chunk[3] == CHUNKS:
        return [(0, count - chunk[4], count)]
    return [(0, half, half), (half, 0, half)]


def again_of(chunk, slot):
    """Partitions of a slot, from the first, whose channels count elsewhere."""
    return chunk[4] if slot + 1 == slots_of(chunk) else 0


def products_refusal(geometry, extras, product):
    """Why products are not to be taken so; "" if they can be."""
    if (product == "fp16x3") != (geometry.precision == "fp16x3"):
        return f"config product={product}: precision={geometry.precision}; use 'fp16x3' with that precision only"
    if product not in FP8_PRODUCTS:
        return ""
    if geometry.itemsize != 1:
        return f"config product={product}: takes float8_e4m3 and float8_e5m2; use 'single'"
    if geometry.groups > 1 or geometry.C == 1:
        return f"config product={product}: needs one group and several channels, not C={geometry.C}; use 'single'"
    reason = images_refusal(geometry.planes, f"config product={product}", "'single'")
    if reason != "":
        return reason
    if geometry.rows.lhs_dilation > 1 or geometry.columns.lhs_dilation > 1:
        return f"config product={product}: takes lhs_dilation=(1, 1); use 'single'"
    if extras.strict_nonfinite:
        return f"config product={product}: multiplies stored zeros, which strict_nonfinite=True forbids; use 'single'"
    return ""


def can_stage(geometry):
    """Whether rows of an image lie side by side in HBM, all columns of them in one band and none cropped."""
    columns = geometry.columns
    in_line = geometry.x_strides[3] == 1 and geometry.x_strides[2] == columns.size
    in_line = in_line and geometry.frames == None
    return in_line and columns.out <= BANK_COLUMNS and columns.before >= 0


def word_of(geometry):
    """Elements of a row of x that are copied as one."""
    for found in (WORD_BYTES, 2):
        if geometry.columns.size % found == 0:
            return found
    return 1


def paired_chunks(geometry, product, rest, depth):
    """Chunks (first, partitions, depth, how they pair, again) of the channels; the last `rest` of them are folded
    `depth` times, where that is not 0."""
    most, taps = nl.tile_size.pmax, num_taps(geometry)
    whole, staged = geometry.C - rest, product == "fp8_staged" and can_stage(geometry)
    count = div_ceil(whole, most)
    paired = whole if count % 2 == 0 else (count - 1) * div_ceil(whole, count)
    found, parts = [], cut(paired, 2 * most)
    for part in parts:
        each = div_ceil(part[1], 2)
        found.append((part[0], each, 1, CHUNKS, 2 * each - part[1]))
    if paired < whole:
        how = TAPS if taps > 1 else ALONE
        if how == TAPS and staged:
            how = STAGED
        if how == TAPS and product == "fp8_halves" and whole - paired == most and taps % 2 == 1 and rest == 0:
            how = HALVES
        found.append((paired, whole - paired, 1, how, 0))
    if rest > 0:
        of = folded_channels(geometry, rest)
        deep = min(depth, most // of)
        within = of in FOLDED and (deep - 1) * geometry.columns.dilation <= geometry.columns.size
        found.append((geometry.C - of, of, deep, STAGED if staged and within else TAPS, of - rest))
    return found


def folded_channels(geometry, rest):
    """Partitions of a copy of so many channels that are left over, some of which are in the chunk before too."""
    of = FOLDED[0] if rest <= FOLDED[0] else FOLDED[1]
    return of if geometry.C >= of else rest


def sums_pitch(geometry, chunks, images, own):
    """Rows of sums from one image of a bank to the next: more than its own where zeros lie between them, which both
    share, as rows of all images are one dimension of a pair's access pattern."""
    rows = geometry.rows
    for chunk in chunks:
        if chunk[3] != ALONE and images > 1:
            extent, above, below = extent_of(geometry, rows.out)
            return max(own, div_ceil(extent - min(above, below), rows.stride))
    return own


def extent_of(geometry, count):
    """(rows that `count` outputs from the first on need, zeros above and below those of x among them)."""
    rows = geometry.rows
    extent = window_of(rows, count)
    found = span(rows, 0, count)
    above = found[0] + rows.before
    return extent, above, extent - above - found[1]
