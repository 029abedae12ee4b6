"""How grouped conv2d is cut: waves of tiles of the array's rows, units of images and rows for them, banks of sums."""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import axis_elements, cut_planes, places_met, put_first, window_of
from ....schedules.geometry import Axis, is_of_planes, num_taps, span
from ....schedules.grouped import BLOCKS, TILE_ROWS, GroupedSettings
from ....schedules.settings import setting
from ....schedules.tiles import BANK_COLUMNS, PARTS, cut, cut_at, cut_into, div_ceil, fits_sbuf
from ..sums import home_tap

#: Bytes a partition of the stationaries of a wave of tiles, and of fp32 results of one band.
GROUPED_FILTER_BYTES = 40_960
GROUPED_Y_BYTES = 12_288
#: And of x of an output tile; rows of one block are loaded in any case.
GROUPED_X_BYTES = 12_288
#: Buffers of stationaries.
FILTER_BUFFERS = 2
#: Outputs of a channel from which on fewer elements of x an output are worth larger stationaries.
MANY_OUTPUTS = 8192


@dataclass
class Grouped(nl.NKIObject):
    """Sizes of one problem."""

    #: rows of a tile, tiles of the array, groups of a tile, columns of one output of a block
    T: int
    tiles: int
    G: int
    #: tiles of channels that work together: (the first, how many, for how many images or sets of them at once)
    waves: list
    Kt: int
    Uh: int
    Uw: int
    #: elements (t, a, b) of a block's window that any tap meets, plane by plane; of volumes one that all blocks see
    #: comes first
    window: list
    #: rows and columns as blocks of outputs meet them: their taps are the window's elements
    rows: Axis
    columns: Axis
    #: all work in order
    units: list
    buffers: int
    warmup: int


@dataclass
class GroupPart(nl.NKIObject):
    """What tiles of one lane do: blocks m0 .. m0+mn-1 (of Uh rows) of planes z0, ..., from rows h0 .. h0+hn-1 of x of
    planes d0 .. d0+dn-1."""

    z0: int
    d0: int
    dn: int
    m0: int
    mn: int
    h0: int
    hn: int


@dataclass
class GroupUnit(nl.NKIObject):
    """Work of a wave of tiles that is loaded and stored together: a Part for each lane.

    zn: planes of a part; dn, mn, hn: planes of x, blocks and rows of x of the largest; w0, wn: columns of x.
    """

    wave: int
    parts: list
    zn: int
    dn: int
    mn: int
    hn: int
    w0: int
    wn: int


@dataclass
class Tile(nl.NKIObject):
    """A tile of a wave: its place on the array, whose images it has, input and output channels of its groups."""

    index: int
    lane: int
    c0: int
    cn: int
    k0: int
    kn: int


def make_grouped(geometry, config, has_residual):
    """The Grouped of GroupedSettings, or None where a group does not fit a tile, or memory does not hold it."""
    T, Uh, Uw = config.rows, config.height, config.width
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    rows, columns = blocks_axis(geometry.rows, Uh), blocks_axis(geometry.columns, Uw)
    Kt = nl.tile_size.pmax // (Uh * Uw)
    taps = geometry.planes.taps * rows.taps * columns.taps
    most = max(taps * nl.tile_size.pmax, per_c * num_taps(geometry))
    if per_c > T or per_k > Kt or most * geometry.itemsize > GROUPED_FILTER_BYTES:
        return None
    window = []
    for t in range(geometry.planes.taps):
        for a in places_met(geometry.rows, Uh):
            for b in places_met(geometry.columns, Uw):
                window.append((t, a, b))
    home = (home_tap(geometry.planes), home_tap(rows), home_tap(columns))
    if home in window and is_of_planes(geometry):
        window = put_first(window, window.index(home))
    G = min(geometry.groups, min(T // per_c, Kt // per_k))
    grouped = Grouped(
        T=T,
        tiles=nl.tile_size.pmax // T,
        G=G,
        waves=waves_of_tiles(div_ceil(geometry.groups, G), nl.tile_size.pmax // T),
        Kt=Kt,
        Uh=Uh,
        Uw=Uw,
        window=window,
        rows=rows,
        columns=columns,
        units=[],
        buffers=config.buffers,
        warmup=config.warmup,
    )
    most = max(rows.taps, GROUPED_X_BYTES // (axis_elements(geometry.planes, 1) * columns.size * geometry.itemsize))
    mn = rows.out
    if rows.size > most:
        mn = min(mn, (most - rows.taps) // rows.stride + 1)
    add_units(geometry, grouped, min(mn, max(1, GROUPED_Y_BYTES // (4 * Uh * geometry.columns.out))), most)
    return grouped if fits_sbuf(grouped_bytes(geometry, grouped, has_residual)) else None


def blocks_axis(axis, outputs):
    """An axis whose outputs are blocks of so many of another's: each meets all elements of its window."""
    return Axis(
        size=axis.size,
        taps=window_of(axis, outputs),
        out=div_ceil(axis.out, outputs),
        stride=outputs * axis.stride,
        before=axis.before,
    )


def grouped_bytes(geometry, grouped, has_residual):
    """Bytes a partition, at most."""
    item, taps = geometry.itemsize, num_taps(geometry)
    window = geometry.planes.taps * grouped.rows.taps * grouped.columns.taps
    filters = FILTER_BUFFERS * window * nl.tile_size.pmax * item
    each = max(geometry.C, geometry.K) // geometry.groups * taps * item
    raw = 3 * each * (grouped.tiles * grouped.Kt // nl.tile_size.pmax + 1)
    spread = 2 * (taps + BANK_COLUMNS // grouped.Kt) * nl.tile_size.pmax * item * y_pages(grouped)
    x_bytes, y_bytes = 0, 0
    for unit in grouped.units:
        x_bytes = max(x_bytes, unit.dn * unit.hn * unit.wn * item)
        y_bytes = max(y_bytes, 4 * unit.zn * unit.mn * grouped.Uh * geometry.columns.out)
    results = (2 + (2 if has_residual else 0)) * y_pages(grouped) * grouped.Uh * y_bytes
    return filters + raw + spread + (grouped.buffers + 1) * x_bytes + results + 4096


def tiles_of_wave(geometry, grouped, wave, lanes):
    """Tiles of a wave, those of `lanes` sets of images."""
    per_c, per_k = geometry.C // geometry.groups, geometry.K // geometry.groups
    first, count = grouped.waves[wave][0], grouped.waves[wave][1]
    found = []
    for place in range(lanes * count):
        g0 = (first + place % count) * grouped.G
        gn = min(grouped.G, geometry.groups - g0)
        found.append(Tile(index=place, lane=place // count, c0=g0 * per_c, cn=gn * per_c, k0=g0 * per_k, kn=gn * per_k))
    return found


def waves_of_tiles(total, tiles):
    """(first tile, how many, lanes) of waves of `total` tiles of channels.

    What is left over where the array has room for it several times takes several images, or parts of one, at once.
    """
    found = []
    for part in cut_at(total, tiles):
        found.append(part + (tiles // part[1],))
    return found


def add_units(geometry, grouped, most_blocks, most_rows):
    """Units of all waves, at most so many blocks of rows each; as many for one half of the work as for the other."""
    M, J = grouped.rows.out, grouped.columns.out
    images = 1
    if most_blocks == M:
        images = max(1, min(BANK_COLUMNS // (M * J), most_rows // max(1, geometry.rows.size)))
        images = min(images, geometry.planes.out // geometry.planes.images)
    columns = span(grouped.columns, 0, J)
    waves = len(grouped.waves)
    for wave in range(waves):
        lanes = grouped.waves[wave][2]
        # lanes have images of their own, or rows where there are too few images
        of_rows = geometry.planes.out < lanes
        count_n = geometry.planes.out if of_rows else div_ceil(geometry.planes.out, images * lanes)
        count_m = div_ceil(M, most_blocks * lanes) if of_rows else div_ceil(M, most_blocks)
        if waves % PARTS == 1 and wave == waves // PARTS and (count_n * count_m) % PARTS == 1:
            # the wave in the middle is both halves'
            if not of_rows and count_n * lanes < geometry.planes.out:
                count_n += 1
            elif count_m < M:
                count_m += 1
        for of_n in planes_of_lanes(geometry.planes, count_n, 1 if of_rows else lanes):
            for of_m in cut_into(M, count_m):
                parts = []
                if of_rows:
                    for inner in cut_into(of_m[1], min(of_m[1], lanes)):
                        parts.append(part_of_blocks(geometry, grouped, of_n, 0, of_m[0] + inner[0], inner[1]))
                for lane in range(0 if of_rows else of_n[2]):
                    parts.append(part_of_blocks(geometry, grouped, of_n, lane, of_m[0], of_m[1]))
                grouped.units.append(make_unit(wave, parts, of_n[1], columns))


def part_of_blocks(geometry, grouped, of_n, lane, m0, mn):
    """A Part of the planes of a lane, and blocks m0 .. m0+mn-1."""
    rows, z0 = span(grouped.rows, m0, mn), of_n[0] + lane * of_n[1]
    planes = span(geometry.planes, z0, of_n[1])
    return GroupPart(z0=z0, d0=planes[0], dn=planes[1], m0=m0, mn=mn, h0=rows[0], hn=rows[1])


def make_unit(wave, parts, nn, columns):
    """A Unit of parts; columns of x: (the first, how many)."""
    dn, mn, hn = 0, 0, 0
    for part in parts:
        dn, mn, hn = max(dn, part.dn), max(mn, part.mn), max(hn, part.hn)
    return GroupUnit(wave=wave, parts=parts, zn=nn, dn=dn, mn=mn, hn=hn, w0=columns[0], wn=columns[1])


def planes_of_lanes(planes, parts, lanes):
    """(first plane, planes of a lane, lanes) of parts of all planes; what does not divide has a part of its own."""
    found = []
    for of_n in cut_planes(planes, parts):
        first, count = of_n
        each = count // lanes
        if each > 0:
            found.append((first, each, lanes))
        if count > each * lanes:
            found.append((first + each * lanes, 1, count - each * lanes))
    return found


def banks_of_unit(grouped, unit):
    """(first block of rows, how many, first column of blocks, how many) of the banks of a unit."""
    of_j = cut(grouped.columns.out, BANK_COLUMNS)
    found = []
    for m in cut(unit.mn, max(1, BANK_COLUMNS // (unit.zn * of_j[0][1]))):
        for j in of_j:
            found.append(m + j)
    return found


def y_pages(grouped):
    """Times 128 output channels of a wave."""
    return div_ceil(grouped.tiles * grouped.Kt, nl.tile_size.pmax)


def grouped_settings(geometry, extras, config):
    """All settings: of sizes that a config leaves open, large blocks where there are many outputs, small ones if none
    fits."""
    more = geometry.K > geometry.C
    many = geometry.planes.out * geometry.rows.out * geometry.columns.out >= MANY_OUTPUTS
    wide = geometry.columns.taps > 1
    rows = TILE_ROWS[0] if more or (many and (wide or geometry.C <= TILE_ROWS[0])) else TILE_ROWS[1]
    sizes = [(rows, 2, 2 if many and wide and not more else 1)]
    sizes += [(rows, height, width) for rows in TILE_ROWS for height, width in reversed(BLOCKS)]
    every = [GroupedSettings.read(config, rows=T, height=Uh, width=Uw) for T, Uh, Uw in sizes]
    if setting(config, "rows", 0) > 0:
        return every[0]
    fitting = (one for one in every if make_grouped(geometry, one, extras.residual) != None)
    return next(fitting, every[-1])
