"""Few output channels: how many rows of y and columns of taps share the array's columns, from shapes alone.

With K output channels one matmul a tap uses K of the array's 128 columns. Here the columns are U rows of y, times T
neighbouring columns of taps, so that a row of x passes the array (U + R - 1) / U times ceil(S / T) times, not R S
times. With x[.., w] in columns w of a bank of sums,

    Z[(t, u, k), w] = sum over r, g, c of  w[k, c, r, g * T + t] * x[c, h, w + g * G],   h of output row u and tap r,
    y[(u, k), q]    = sum over t of  Z[(t, u, k), w of output q and tap t],

G columns of x being T taps: the sums of the T taps lie on different partitions and are added, shifted, as they are read
out, in fp32. Engines address partitions from a multiple of 32, so a tap has a slot of 32 partitions, or 64 or 128.

A row of x at i = h * lhs_dilation - p0 * stride + top of the window of a block (output rows p0 .. p0+U-1) meets tap r
of row u where i = u * stride + r * dilation: a line is such a row with its own stationary, zero for the other u.

Settings: `outputs` U and `taps` T, both or none; `blocks` of U rows and `images` of a bank of sums, at most; `x_bytes`,
a partition, of a load of x, and the `buffers` that loads take in turn; `shared`, 1: Scalar and GpSimd take additions
from Vector, or 0; `warmup`, matmuls on zeros before the first.
"""

from dataclasses import dataclass

from ...._nki import nl
from ..._settings import config_refusal, numbers_refusal, setting
from ..._tiles import BANK_COLUMNS, PARTS, cut, cut_into, div_ceil
from ..geometry import Axis, instructions_refusal, met, span
from .price import narrow_ns, num_blocks, reads_bound, step_parts, warm_count

NARROW_SETTINGS = ("outputs", "taps", "blocks", "images", "x_bytes", "buffers", "shared", "warmup")
#: Partitions between the first of which engines may start (trn2.toml, rules NKI043).
QUADRANT = 32
#: Bytes a partition of one load of x, if that is a row at least; loads of a core, if there are rows for so many.
NARROW_X_BYTES = 4_096
LOADS = 4
#: Bytes a partition of all buffers: what they may always have, and most for the rows of two banks of sums.
RING_BYTES = 65_536
RING_MOST = 131_072
RING_MAX = 64
#: Buffers that sums of some of the taps take in turn.
PARTIAL = 6
NARROW_WARM_UP_MAX = 256


@dataclass
class Line(nl.NKIObject):
    """A row of x of a block's window: how many rows of x after the first, and its i."""

    row: int
    place: int


@dataclass
class Narrow(nl.NKIObject):
    """Sizes of one problem: see above."""

    U: int
    T: int
    #: groups of T columns of taps
    groups: int
    #: partitions from one tap's sums to the next one's; all partitions of sums
    slot: int
    outputs: int
    #: lines that meet a tap; rows of a window, and of x from one block's to the next one's; the first block's first row
    lines: list
    window: int
    step: int
    first: int
    #: (first, how many) of at most 128 input channels
    chunks: list
    #: first column of x that a tap meets, and how many there are to the last
    w0: int
    wn: int
    #: columns of x from one group of taps to the next; zeros on each side of a row
    shift: int
    pad: int
    #: columns of sums as an axis that T taps meet
    sums: Axis
    #: (first output column, how many, first column of sums, how many) of each part of a row
    tiles: list
    #: images and blocks of a bank of sums
    images: int
    blocks: int
    #: rows of one load of x, and loads that are there together
    height: int
    buffers: int
    #: whether Scalar and GpSimd take some of Vector's additions
    shared: bool
    warmup: int


@dataclass
class Step(nl.NKIObject):
    """Output blocks j0 .. j0+jn-1, of U rows each, of images n0 .. n0+nn-1: one bank of sums, or one for each tile."""

    n0: int
    nn: int
    j0: int
    jn: int


def plan_narrow(geometry, extras, config, cores):
    """(Narrow, "") of this on `cores` cores, or (None, why not)."""
    rows, columns = geometry.rows, geometry.columns
    most, whole = nl.tile_size.pmax, nl.tile_size.total_available_sbuf_size
    reason = config_refusal(config, NARROW_SETTINGS, "narrow")
    if reason == "":
        reason = numbers_refusal(config, (("outputs", 1, most), ("taps", 1, most // QUADRANT), ("blocks", 1, most)))
    if reason == "":
        reason = numbers_refusal(config, (("images", 1, BANK_COLUMNS), ("x_bytes", 256, whole)))
    if reason == "":
        reason = numbers_refusal(
            config, (("buffers", 2, RING_MAX), ("shared", 0, 1), ("warmup", 0, NARROW_WARM_UP_MAX))
        )
    if reason != "":
        return None, reason
    if geometry.groups > 1:
        return None, f"feature_group_count={geometry.groups}: narrow takes 1; use taps"
    if extras.pool != (1, 1):
        return None, f"pool={extras.pool}: narrow takes (1, 1); use taps"
    if extras.strict_nonfinite:
        return None, "strict_nonfinite=True: narrow multiplies rows outside a window by zero; use taps"
    if geometry.K > most:
        return None, f"K={geometry.K}: narrow takes at most {most} output channels; use taps"
    given = setting(config, "outputs", 0), setting(config, "taps", 0)
    if given == (0, 0):
        narrow = best_narrow(geometry, extras, config)
    elif 0 in given:
        return None, f"config={config}: outputs and taps are given together or not at all"
    elif not is_legal(geometry, given[0], given[1]):
        return None, (
            f"config outputs={given[0]} taps={given[1]}, K={geometry.K}, S={columns.taps}: at most {columns.taps} "
            f"taps, each with outputs * K rounded up to {QUADRANT}, {2 * QUADRANT} or {most} of {most} partitions, and "
            f"outputs * stride and (with more taps to come) taps * rhs_dilation multiples of lhs_dilation; use others"
        )
    else:
        narrow = make_narrow(geometry, config, given[0], given[1])
    if narrow == None or sbuf_bytes(geometry, narrow, extras) > whole or not meets_all(geometry, narrow):
        return None, (
            f"C={geometry.C}, H={rows.size}, W={columns.size}, R={rows.taps}, S={columns.taps}, padding from "
            f"{(rows.before, columns.before)}, lhs_dilation={(rows.lhs_dilation, columns.lhs_dilation)}: narrow keeps "
            f"rows of x and all filters in SBUF, {whole} bytes a partition, for blocks of rows of y whose windows see "
            f"x and start at a multiple of lhs_dilation; use taps"
        )
    count = count_instructions(geometry, narrow, extras, cores)
    reason = instructions_refusal(geometry, "narrow", count)
    return (narrow, "") if reason == "" else (None, reason)


def slot_of(outputs):
    """Partitions of a slot for so many outputs."""
    if outputs <= 2 * QUADRANT:
        return QUADRANT if outputs <= QUADRANT else 2 * QUADRANT
    return nl.tile_size.pmax


def is_legal(geometry, U, T):
    """Whether U rows of y and T columns of taps can share the array."""
    rows, columns = geometry.rows, geometry.columns
    fits = U * geometry.K <= nl.tile_size.pmax and T <= columns.taps
    fits = fits and T * slot_of(U * geometry.K) <= nl.tile_size.pmax
    whole = U * rows.stride % rows.lhs_dilation == 0
    return fits and whole and (T == columns.taps or T * columns.dilation % columns.lhs_dilation == 0)


def best_narrow(geometry, extras, config):
    """The Narrow that takes least, or None where there is none that fits and whose outputs see x."""
    best, best_ns = None, 0.0
    most_rows = min(nl.tile_size.pmax // geometry.K, geometry.rows.out + geometry.rows.lhs_dilation - 1)
    for T in range(1, min(geometry.columns.taps, nl.tile_size.pmax // QUADRANT) + 1):
        for U in range(1, most_rows + 1):
            if is_legal(geometry, U, T):
                found = make_narrow(geometry, config, U, T)
                if found != None and sbuf_bytes(geometry, found, extras) <= nl.tile_size.total_available_sbuf_size:
                    found_ns = narrow_ns(geometry, found)
                    if (best == None or found_ns < best_ns) and meets_all(geometry, found):
                        best, best_ns = found, found_ns
    return best


def make_narrow(geometry, config, U, T):
    """The Narrow of legal sizes, or None where no window meets x or a part of a row has no bank."""
    rows, columns, item = geometry.rows, geometry.columns, geometry.itemsize
    w0, wn = span(columns, 0, columns.out)
    lines, window = lines_of(rows, U)
    if wn == 0 or len(lines) == 0:
        return None
    groups = div_ceil(columns.taps, T)
    shift = T * columns.dilation // columns.lhs_dilation if groups > 1 else 0
    pad = (groups - 1) * shift
    sums = Axis(
        size=wn + pad,
        taps=T,
        out=columns.out,
        stride=columns.stride,
        dilation=columns.dilation,
        lhs_dilation=columns.lhs_dilation,
        before=columns.before + (w0 - pad) * columns.lhs_dilation,
    )
    tiles = tiles_of(sums)
    if len(tiles) == 0:
        return None
    each = widest(tiles)
    num_blocks = div_ceil(rows.out, U)
    blocks = min(min(num_blocks, max(1, BANK_COLUMNS // each)), setting(config, "blocks", num_blocks))
    images = 1
    if blocks == num_blocks and len(tiles) == 1:
        images = min(min(geometry.N, max(1, BANK_COLUMNS // (blocks * each))), setting(config, "images", geometry.N))
    step = U * rows.stride // rows.lhs_dilation
    row_bytes = images * (wn + 2 * pad) * item
    height = max(1, setting(config, "x_bytes", NARROW_X_BYTES) // row_bytes)
    unit = blocks * step
    height = min(height, max(unit, div_ceil(div_ceil(geometry.N, images) * rows.size, PARTS * LOADS)))
    if height > unit:
        height = height // unit * unit
    chunks = cut(geometry.C, nl.tile_size.pmax)
    height = min(height, rows.size)
    # a bank's lines may start in the last row of a load; those of the next bank are loaded meanwhile
    needed = div_ceil((blocks - 1) * step + window + height - 1, height)
    ahead = div_ceil(unit, height) + 1
    load_bytes = len(chunks) * height * row_bytes
    buffers = max(min(needed + ahead, RING_MOST // load_bytes), RING_BYTES // load_bytes)
    buffers = max(needed + 1, min(RING_MAX, setting(config, "buffers", buffers)))
    narrow = Narrow(
        U=U,
        T=T,
        groups=groups,
        slot=slot_of(U * geometry.K),
        outputs=(T - 1) * slot_of(U * geometry.K) + U * geometry.K,
        lines=lines,
        window=window,
        step=step,
        first=first_row(rows),
        chunks=chunks,
        w0=w0,
        wn=wn,
        shift=shift,
        pad=pad,
        sums=sums,
        tiles=tiles,
        images=images,
        blocks=blocks,
        height=height,
        buffers=buffers,
        shared=False,
        warmup=setting(config, "warmup", -1),
    )
    narrow.shared = setting(config, "shared", 1 if reads_bound(geometry, narrow) else 0) == 1
    if narrow.warmup < 0:
        narrow.warmup = warm_count(geometry, narrow)
    return narrow


def first_row(rows):
    """The row of x, perhaps one of padding, from which the window of output row 0 counts."""
    if rows.before <= 0:
        return div_ceil(-rows.before, rows.lhs_dilation)
    return -(rows.before // rows.lhs_dilation)


def lines_of(rows, U):
    """(Lines of a block of U rows, rows of its window)."""
    start = first_row(rows) * rows.lhs_dilation + rows.before
    window = ((U - 1) * rows.stride + (rows.taps - 1) * rows.dilation - start) // rows.lhs_dilation + 1
    found = []
    for row in range(max(0, window)):
        place = start + row * rows.lhs_dilation
        if meets_tap(rows, U, place):
            found.append(Line(row=row, place=place))
    return found, max(0, window)


def meets_tap(rows, U, place):
    """Whether a tap of any row of a block is at a place of its window."""
    for u in range(U):
        behind = place - u * rows.stride
        if behind >= 0 and behind % rows.dilation == 0 and behind // rows.dilation < rows.taps:
            return True
    return False


def tiles_of(sums):
    """Parts of a row whose columns of sums fit a bank: (first output, how many, first column, how many); none where an
    output's window is wider than a bank, or meets nothing."""
    for parts in range(min(sums.out, div_ceil(sums.size, BANK_COLUMNS)), sums.out + 1):
        outputs = cut_into(sums.out, parts)
        found = []
        for index in range(parts):
            low, count = span(sums, outputs[index][0], outputs[index][1])
            if 0 < count and count <= BANK_COLUMNS:
                found.append((outputs[index][0], outputs[index][1], low, count))
            elif count == 0:
                return []
        if len(found) == parts:
            return found
    return []


def widest(tiles):
    """Most columns of sums of a part of a row."""
    most = 0
    for index in range(len(tiles)):
        most = max(most, tiles[index][3])
    return most


@dataclass
class Tap(nl.NKIObject):
    """A column of taps, and the outputs and columns of sums at which it meets x, as `geometry.met` says."""

    t: int
    met: tuple


def covers(tap, qn):
    """Whether a tap meets all outputs of a part of a row."""
    return tap.met[2] == qn


def taps_of(narrow, tile):
    """Taps that meet outputs of a part of a row: one that meets all of them last, and another first if there is one."""
    whole, partial = [], []
    for t in range(narrow.T):
        tap = Tap(t=t, met=met(narrow.sums, t, tile[0], tile[1]))
        if covers(tap, tile[1]):
            whole.append(tap)
        elif tap.met[2] > 0:
            partial.append(tap)
    if len(whole) == 0:
        return partial
    return whole[1:] + partial + whole[0:1]


def misses(narrow, tile):
    """Whether the first tap of a part of a row misses outputs at its ends only."""
    first = taps_of(narrow, tile)[0]
    return first.met[1] == 1 and not covers(first, tile[1])


def steps_of(geometry, narrow):
    """All steps, as even as can be; at least as many as there are cores."""
    image_parts, block_parts = step_parts(geometry, narrow)
    images, parts = cut_into(geometry.N, image_parts), cut_into(num_blocks(geometry, narrow), block_parts)
    found = []
    for index in range(image_parts):
        for which in range(block_parts):
            found.append(Step(n0=images[index][0], nn=images[index][1], j0=parts[which][0], jn=parts[which][1]))
    return found


def rows_met(geometry):
    """(first, end) of the rows of x that a tap meets."""
    low, count = span(geometry.rows, 0, geometry.rows.out)
    return low, low + count


def meets_all(geometry, narrow):
    """Whether every block of rows has a line on a row of x, so that its sums are written."""
    low, end = rows_met(geometry)
    for j in range(div_ceil(geometry.rows.out, narrow.U)):
        found = False
        for index in range(len(narrow.lines)):
            h = narrow.first + j * narrow.step + narrow.lines[index].row
            found = found or (low <= h and h < end)
        if not found:
            return False
    return True


def sbuf_bytes(geometry, narrow, extras):
    """Bytes a partition, at most: x, filters as loaded, turned and laid out, results."""
    item, taps = geometry.itemsize, geometry.rows.taps * geometry.columns.taps
    x_bytes = narrow.images * narrow.height * (narrow.wn + 2 * narrow.pad) * item
    raw_bytes = min(geometry.C, nl.tile_size.pmax) * taps * item
    turned_bytes = taps * geometry.K * item
    filters = len(narrow.lines) * narrow.groups * narrow.T * narrow.slot * item
    each, partial = 0, 0
    for index in range(len(narrow.tiles)):
        each = max(each, narrow.tiles[index][1])
        if misses(narrow, narrow.tiles[index]):
            partial += PARTIAL * narrow.tiles[index][1]
    # y and a residual as it is and scaled; sums of the taps, and before an activation or of the last tap
    rows_bytes = 4 * ((3 if extras.residual else 1) * geometry.columns.out + 2 * each + partial)
    chunks = len(narrow.chunks) * (narrow.buffers * x_bytes + raw_bytes + turned_bytes + filters)
    return chunks + narrow.images * narrow.blocks * rows_bytes + 1024


def count_instructions(geometry, narrow, extras, cores):
    """Instructions of a core, at most."""
    chunks, steps = len(narrow.chunks), div_ceil(len(steps_of(geometry, narrow)), cores)
    rows = narrow.blocks * narrow.step + narrow.window
    # a line is cut where a load ends, and where a block has no such row
    cuts = min(narrow.blocks, div_ceil(rows, narrow.height) + 2)
    matmuls = len(narrow.lines) * cuts * narrow.groups * chunks
    loads = (div_ceil(rows, narrow.height) + 1) * chunks
    results = 3 if extras.residual else 1
    laid_out = narrow.U * narrow.groups * geometry.rows.taps
    filters = chunks * (2 * geometry.rows.taps * geometry.columns.taps + laid_out + geometry.K + 2)
    first = 8 + narrow.warmup + filters + 2 * narrow.buffers * chunks + 2 * PARTIAL * len(narrow.tiles)
    return first + steps * (len(narrow.tiles) * (matmuls + narrow.T + 8) + loads + 2 * results + 2)
