"""Statistics of the channels of x: a row of SBUF holds a row of one image and channel, or transposed pixels of it."""

from ..._nki import nisa, nl
from ...schedules.tiles import PARTS, cut, cut_at, div_ceil, lines_of, share, size_of, transposes_of_bank, whole_words
from .._dma import load, store
from .._engines import itemsize_of
from .._masks import constant
from .._statistics import Statistics, combine_each
from ..conv.filter_feed import transposed_bank

#: Bytes a partition of a tile of x.
TILE_BYTES = 16_384


def stats_of_rows(x_hbm, stats_hbm):
    """Store this core's part of the statistics of x [N, C, ...], channels first.

    The cores share the columns of all rows if each core's part of a row fills a bn_stats, otherwise the rows.
    """
    rows, columns = size_of(x_hbm.shape[0:2]), size_of(x_hbm.shape[2:])
    cores, core, most = nl.num_programs(), nl.program_id(0), TILE_BYTES // itemsize_of(x_hbm.dtype)
    if columns >= PARTS * nl.tile_size.bn_stats_fmax:
        for first, count in cut(rows, nl.tile_size.pmax):
            rows_tile(x_hbm, stats_hbm, (first, count, 1), share(columns, cores, core), columns)
        return
    # rows on a partition: as many as fit and leave each core a tile
    each = max(1, min(most // columns, div_ceil(rows, PARTS * nl.tile_size.pmax)))
    tiles = lines_of(rows, each)
    first, count = share(len(tiles), cores, core)
    for index, tile in enumerate(tiles):
        if first <= index < first + count:
            rows_tile(x_hbm, stats_hbm, tile, (0, columns), columns)
        else:
            nothing(stats_hbm, tile)


def rows_tile(x_hbm, stats_hbm, tile, part, row):
    """Store statistics of columns (first, count) of rows (first row, partitions, rows of each) of `row` elements."""
    (first, count, each), (column, columns) = tile, part
    if each > 1 and columns <= nl.tile_size.bn_stats_fmax:
        x_sbuf = nl.ndarray((count, each, columns), dtype=x_hbm.dtype, buffer=nl.sbuf)
        load(x_sbuf, x_hbm, [[each * row, count], [row, each], [1, columns]], first * row + column)
        stats_sbuf = nl.ndarray((count, each, 3), dtype=nl.float32, buffer=nl.sbuf)
        triples_sbuf = nl.ndarray((count, each, 2, 3), dtype=nl.float32, buffer=nl.sbuf)
        for index in range(each):
            nisa.bn_stats(dst=triples_sbuf[:, index], data=x_sbuf[0:count, index, 0:columns])
        combine_each(stats_sbuf, triples_sbuf, columns)
        store_tile(stats_hbm, stats_sbuf, first)
        return
    found = [Statistics(count) for _ in range(each)]
    for start, size in cut_at(columns, TILE_BYTES // itemsize_of(x_hbm.dtype)):
        x_sbuf = nl.ndarray((count, each, size), dtype=x_hbm.dtype, buffer=nl.sbuf)
        load(x_sbuf, x_hbm, [[each * row, count], [row, each], [1, size]], first * row + column + start)
        for index in range(each):
            for piece, n in cut(size, nl.tile_size.bn_stats_fmax):
                found[index].add(x_sbuf[:, index, piece : piece + n])
    store_stats(stats_hbm, found, tile)


def store_stats(stats_hbm, found, tile):
    """Store this core's part of the statistics of rows (first, partitions, rows of each)."""
    first, count, each = tile
    stats_sbuf = nl.ndarray((count, each, 3), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(each):
        found[index].finish(stats_sbuf[:, index])
    store_tile(stats_hbm, stats_sbuf, first)


def store_tile(stats_hbm, stats_sbuf, first):
    """Store [partitions, rows of each, 3] as this core's part of rows, each an image and channel, from `first` on."""
    count, each, _ = stats_sbuf.shape
    offset = nl.program_id(0) * size_of(stats_hbm.shape[1:]) + 3 * first
    store(stats_sbuf, stats_hbm, [[3 * each, count], [3, each], [1, 3]], offset)


def nothing(stats_hbm, tile):
    """Store zeros as this core's part of rows (first, partitions, rows of each), of which it reads no elements."""
    first, count, each = tile
    store_tile(stats_hbm, constant((count, each, 3), nl.float32, 0.0), first)


def stats_of_pixels(x_hbm, stats_hbm):
    """Store this core's part of the statistics of x [N, ..., C], channels last: its share of each image's pixels."""
    images, C, pixels = x_hbm.shape[0], x_hbm.shape[-1], size_of(x_hbm.shape[1:-1])
    first, count = share(pixels, nl.num_programs(), nl.program_id(0))
    most = TILE_BYTES // itemsize_of(x_hbm.dtype)
    for n in range(images):
        for c0, cn in cut_at(C, most):
            tiles = cut(cn, nl.tile_size.pmax)
            if count == 0:
                for c, size in tiles:
                    nothing(stats_hbm, (n * C + c0 + c, size, 1))
                continue
            found = [Statistics(size) for _, size in tiles]
            # neighbouring pixels on a partition: one run of HBM if they have all channels
            side = max(1, min(most // cn, div_ceil(count, nl.tile_size.pmax)))
            for start, partitions, each in lines_of(count, side):
                x_sbuf = nl.ndarray((partitions, each, cn), dtype=x_hbm.dtype, buffer=nl.sbuf)
                pixel = n * pixels + first + start
                load(x_sbuf, x_hbm, [[each * C, partitions], [C, each], [1, cn]], pixel * C + c0)
                for one, part in zip(found, tiles):
                    add_pixels(one, x_sbuf, part)
            for one, (c, size) in zip(found, tiles):
                store_stats(stats_hbm, [one], (n * C + c0 + c, size, 1))


def add_pixels(statistics, x_sbuf, tile):
    """Add channels (first, count) of pixels [partition, pixels of each, channels] to statistics; the Tensor Engine
    transposes them."""
    (partitions, each, _), (c, cn) = x_sbuf.shape, tile
    itemsize = itemsize_of(x_sbuf.dtype)
    together = min(transposes_of_bank(partitions, itemsize), nl.tile_size.bn_stats_fmax // partitions)
    for start, count in cut(each, together):
        pixels = [x_sbuf[:, pixel, c : c + cn] for pixel in range(start, start + count)]
        x_psum = transposed_bank(pixels, cn, whole_words(partitions, itemsize))
        statistics.add(x_psum[:, :, 0:partitions])
