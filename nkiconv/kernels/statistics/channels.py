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
#: The fewest images of few pixels that cores share, so that several are transposed at once: 8 of 64 channels, 7x7, take
#: 4.7 us in place of 5.1, 4 of 96 4.6 in place of 3.9 (modelled).
MANY_IMAGES = 8
#: Rows of statistics of a partition that are zeros, at most.
NOTHING_ROWS = 512


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
    # rows on a partition: as many as fit, in as many tiles of equal size for each core
    lines = PARTS * nl.tile_size.pmax
    lines *= div_ceil(rows, lines * max(1, most // columns))
    tiles = lines_of(rows, div_ceil(rows, lines))
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


def stats_of_small_images(x_hbm, stats_hbm):
    """Store this core's part of the statistics of x [N, ..., C], channels last: those of its share of the images, each
    of few pixels, so that a bn_stats takes all pixels of a channel."""
    images, C, pixels = x_hbm.shape[0], x_hbm.shape[-1], size_of(x_hbm.shape[1:-1])
    first, count = share(images, nl.num_programs(), nl.program_id(0))
    for begin, end in ((0, first), (first + count, images)):
        rows = (end - begin) * C
        for row, *tile in lines_of(rows, min(NOTHING_ROWS, max(1, rows // nl.tile_size.pmax))):
            nothing(stats_hbm, (begin * C + row, *tile))
    # images whose pixels share the partitions, such blocks of a tile, and channels that are transposed together
    together = max(1, nl.tile_size.pmax // pixels)
    blocks = max(1, TILE_BYTES // (C * itemsize_of(x_hbm.dtype) * div_ceil(pixels, nl.tile_size.pmax)))
    # the last two tiles may have channels in common
    tiles = div_ceil(C, nl.tile_size.pmax)
    cn = div_ceil(C, tiles)
    channels, before = (cn, [min(tile * cn, C - cn) for tile in range(tiles)]), None
    for start, some in cut(count, min(nl.tile_size.pmax // tiles, blocks * together)):
        triples_sbuf = triples_of_images(x_hbm, (first + start, some), channels, together)
        # a step later, so that the Tensor Engine does not wait for the last bn_stats
        if before is not None:
            store_images(stats_hbm, *before, channels, pixels)
        before = first + start, triples_sbuf
    if before is not None:
        store_images(stats_hbm, *before, channels, pixels)


def triples_of_images(x_hbm, images, channels, together):
    """Triples of bn_stats of images (first, count), [channels, tiles, images, 2, 3] in SBUF. channels: (a tile's, the
    first of each); together: images whose pixels share the partitions."""
    (first, count), (cn, starts), pixels = images, channels, size_of(x_hbm.shape[1:-1])
    triples_sbuf = nl.ndarray((cn, len(starts), count, 2, 3), dtype=nl.float32, buffer=nl.sbuf)
    for at, some in cut_at(count, together):
        block = load_images(x_hbm, (first + at, some), pixels)
        for tile, c in enumerate(starts):
            x_psum = nl.ndarray((cn, whole_words(some * pixels, itemsize_of(x_hbm.dtype))), x_hbm.dtype, buffer=nl.psum)
            for rows_sbuf, row in block:
                dst = x_psum[:, row : row + rows_sbuf.shape[0]]
                nisa.nc_transpose(dst=dst, data=rows_sbuf[:, c : c + cn], engine=nisa.engine.tensor)
            for image in range(some):
                into = triples_sbuf[:, tile, at + image]
                nisa.bn_stats(dst=into, data=x_psum[:, image * pixels : (image + 1) * pixels])
    return triples_sbuf


def store_images(stats_hbm, first, triples_sbuf, channels, pixels):
    """Store statistics of images from `first` on, from their triples, in long runs of HBM: transposed by the Tensor
    Engine."""
    (cn, starts), count, C = channels, triples_sbuf.shape[2], stats_hbm.shape[2]
    flat = len(starts) * count
    stats_sbuf = nl.ndarray((cn, flat, 3), dtype=nl.float32, buffer=nl.sbuf)
    combine_each(stats_sbuf, triples_sbuf.reshape((cn, flat, 2, 3)), pixels)
    found_sbuf = nl.ndarray((flat, cn, 3), dtype=nl.float32, buffer=nl.sbuf)
    found_psum = transposed_bank([stats_sbuf[:, :, which] for which in range(3)], flat, cn)
    nisa.tensor_copy(dst=found_sbuf, src=found_psum.permute((0, 2, 1)), engine=nisa.engine.scalar)
    offset = nl.program_id(0) * size_of(stats_hbm.shape[1:]) + 3 * first * C
    for tile, c in enumerate(starts):
        own = found_sbuf[tile * count : (tile + 1) * count]
        store(own, stats_hbm, [[3 * C, count], [1, 3 * cn]], offset + 3 * c)


def load_images(x_hbm, images, pixels):
    """Load the pixels of images (first, count): [(tile [pixels, C] in SBUF, its first pixel)], 128 pixels a tile."""
    (first, count), C, found = images, x_hbm.shape[-1], []
    for row, rows in cut_at(count * pixels, nl.tile_size.pmax):
        x_sbuf = nl.ndarray((rows, C), dtype=x_hbm.dtype, buffer=nl.sbuf)
        load(x_sbuf, x_hbm, [[C, rows], [1, C]], (first * pixels + row) * C)
        found.append((x_sbuf, row))
    return found


def stats_of_pixels(x_hbm, stats_hbm):
    """Store this core's part of the statistics of x [N, ..., C], channels last: its share of each image's pixels, or of
    the images."""
    images, C, pixels = x_hbm.shape[0], x_hbm.shape[-1], size_of(x_hbm.shape[1:-1])
    if images >= MANY_IMAGES and pixels <= nl.tile_size.bn_stats_fmax and C * itemsize_of(x_hbm.dtype) <= TILE_BYTES:
        stats_of_small_images(x_hbm, stats_hbm)
        return
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
