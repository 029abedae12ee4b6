"""A norm's scale and shift from statistics of channels: elements that share a mean share a partition.

    tile [partitions, parts, means of each, channels of a mean, (count, mean, variance)]

is one access pattern of statistics [P, N, C, 3]: groups of an image's channels, and channels of all images, are in
sequence in HBM; many parts of a channel are transposed into the tile. bn_aggr takes the triples of a mean as one run,
so nothing is added across partitions. A few means of many channels have pieces on several partitions, each of some of a
mean's channels: the Tensor Engine transposes their triples onto one partition, and the moments back.
"""

from ..._nki import nisa, nl
from ...norms import SHARED_MAX
from ...schedules.tiles import PARTS, cut_at, div_ceil, parts_of_images, share, size_of
from .._dma import load, store
from .._engines import scaled
from .._pixel_norms import rstd_of
from ..conv.filter_feed import transposed_bank

#: The most triples (count, mean, variance) a partition at once.
TOGETHER = SHARED_MAX
#: The number of parts of a channel from which the Tensor Engine transposes them.
TRANSPOSED_PARTS = 32
#: Means whose bn_aggr take as long as the other instructions of a tile.
TILE_MEANS = 16
#: Triples that bn_aggr combines in the time in which pieces are joined.
JOINED_TRIPLES = 150


def write_norm(stats, means, row, eps, weight, bias, outputs):
    """Store this core's share of the means, and of scale and shift.

    stats: tensors in HBM. means: (the number of means, channels of each), in the order of the statistics. row: means
    after which weight and bias repeat: an image's, or all. outputs: scale and shift [means * channels of each], mean
    and variance [means], fp32 in HBM.
    """
    number, channels = means
    parts = [size_of(one.shape) // (3 * channels * number) for one in stats]
    # neighbouring means on a partition, all of one row, as many as SBUF holds: the fewest tiles and bn_aggr
    most = min(row, max(1, TOGETHER // (sum(parts) * channels)))
    tiles = {one: div_ceil(number // one, PARTS * nl.tile_size.pmax) for one in range(1, most + 1) if row % one == 0}
    each = min(tiles, key=lambda one: tiles[one] * (TILE_MEANS + one))
    pieces = pieces_of(number, channels, sum(parts)) if each == 1 else 1
    first, count = share(number // each, nl.num_programs(), nl.program_id(0))
    # pieces are means of fewer channels until their moments are joined
    means, row = (number * pieces, channels // pieces), row * pieces
    for start, rows in cut_at(count, nl.tile_size.pmax // pieces):
        spot = (first + start) * pieces * each, rows * pieces, each
        write_tile(stats, parts, spot, means, row, eps, (weight, bias), outputs, pieces)


def pieces_of(means, channels, parts):
    """Pieces into which the channels of each of so many means are cut, one a partition, for the least time; parts of a
    channel are of one piece."""
    own = div_ceil(means, PARTS)
    taken = {1: parts * channels}
    for one in range(2, nl.tile_size.pmax // own + 1):
        if channels % one == 0:
            taken[one] = parts * channels // one + one * own + JOINED_TRIPLES
    return min(taken, key=taken.__getitem__)


def write_tile(stats, parts, spot, means, row, eps, affine, outputs, pieces):
    """Store scale, shift, mean and variance of means (first, partitions, means of each), or of pieces of means."""
    (first, rows, each), (number, channels) = spot, means
    of_row, whole = each * channels, sum(parts)
    stats_sbuf = nl.ndarray((rows, whole, of_row, 3), dtype=nl.float32, buffer=nl.sbuf)
    if channels == 1 and pieces == 1 and whole >= TRANSPOSED_PARTS:
        load_transposed(stats_sbuf, stats, parts, first, number)
    else:
        part = 0
        for index in range(len(stats)):
            pattern = [[3 * of_row, rows], [3 * number * channels, parts[index]], [3, of_row], [1, 3]]
            load(stats_sbuf[:, part : part + parts[index]], stats[index], pattern, 3 * first * channels)
            part = part + parts[index]
    weight_sbuf, bias_sbuf = (load_affine(one, spot, channels, row) for one in affine)
    counts, squares = stats_sbuf[:, :, :, 0], stats_sbuf[:, :, :, 2]
    nisa.tensor_tensor(dst=squares, data1=squares, data2=counts, op=nl.multiply)
    moments_sbuf = nl.ndarray((rows, each, 2), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(each):
        triples = stats_sbuf[:, :, index * channels : (index + 1) * channels]
        nisa.bn_aggr(dst=moments_sbuf[:, index], data=triples)
    stored = moments = moments_sbuf
    if pieces > 1:
        stored, moments = join_pieces(moments_sbuf, counts, pieces)
    mean, variance = moments[:, :, 0:1], moments[:, :, 1:2]
    inverse = rstd_of(variance, float(eps)).broadcast(2, channels)
    scale_sbuf = nl.ndarray((rows, each, channels), dtype=nl.float32, buffer=nl.sbuf)
    shift_sbuf = nl.ndarray((rows, each, channels), dtype=nl.float32, buffer=nl.sbuf)
    if weight_sbuf == None:
        nisa.tensor_copy(dst=scale_sbuf, src=inverse)
    else:
        nisa.tensor_tensor(dst=scale_sbuf, data1=weight_sbuf, data2=inverse, op=nl.multiply)
    scaled(shift_sbuf, mean.broadcast(2, channels), -1.0, nl.multiply, scale_sbuf)
    if bias_sbuf != None:
        nisa.tensor_tensor(dst=shift_sbuf, data1=shift_sbuf, data2=bias_sbuf, op=nl.add)
    for one, hbm in zip((scale_sbuf, shift_sbuf), outputs[:2], strict=True):
        store(one, hbm, [[of_row, rows], [channels, each], [1, channels]], first * channels)
    for which, hbm in enumerate(outputs[2:]):
        # dense values are stored as one run
        own = stored[:, :, which] if stored.shape[1] == 1 else dense(stored[:, :, which])
        store(own, hbm, [[own.shape[1], own.shape[0]], [1, own.shape[1]]], first // pieces)


def join_pieces(moments_sbuf, counts, pieces):
    """Join the moments of neighbouring pieces of means: ([1, means, (mean, variance)], [pieces of all means, 1, the
    same]), fp32. moments_sbuf: [pieces of all means, 1, 2]; counts: [the same partitions, parts, channels]."""
    rows = moments_sbuf.shape[0]
    triple_sbuf = nl.ndarray((rows, 3), dtype=nl.float32, buffer=nl.sbuf)
    count, mean, square = (triple_sbuf[:, which : which + 1] for which in range(3))
    nisa.tensor_reduce(dst=count, op=nl.add, data=counts, axis=(1, 2))
    nisa.tensor_copy(dst=mean, src=moments_sbuf[:, :, 0], engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(dst=square, data1=moments_sbuf[:, :, 1], data2=count, op=nl.multiply)
    triples_sbuf = dense(transposed_bank([count, mean, square], 1, rows))
    joined_sbuf = nl.ndarray((1, rows // pieces, 2), dtype=nl.float32, buffer=nl.sbuf)
    for index in range(rows // pieces):
        own = triples_sbuf[:, :, index * pieces : (index + 1) * pieces]
        nisa.bn_aggr(dst=joined_sbuf[:, index], data=own.permute((0, 2, 1)))
    every = [joined_sbuf[:, :, which].expand_dim(2).broadcast(2, pieces) for which in range(2)]
    return joined_sbuf, transposed_bank(every, rows, 1).permute((0, 2, 1))


def load_transposed(stats_sbuf, stats, parts, first, number):
    """Load statistics of means of one channel into [rows, parts, means of each, 3]: each part into its own partition,
    in long runs instead of 12 bytes; the Tensor Engine transposes them."""
    rows, _, each, _ = stats_sbuf.shape
    part = 0
    for hbm, several in zip(stats, parts, strict=True):
        for start, n in cut_at(several, nl.tile_size.pmax):
            parts_sbuf = nl.ndarray((n, rows, each, 3), dtype=nl.float32, buffer=nl.sbuf)
            pattern = [[3 * number, n], [3 * each, rows], [3, each], [1, 3]]
            load(parts_sbuf, hbm, pattern, 3 * (start * number + first))
            for mean in range(each):
                found_psum = transposed_bank([parts_sbuf[:, :, mean, which] for which in range(3)], rows, n)
                nisa.tensor_copy(
                    dst=stats_sbuf[:, part : part + n, mean, 0:3],
                    src=found_psum.permute((0, 2, 1)),
                    engine=nisa.engine.vector,
                )
            part = part + n


def dense(view):
    """A dense copy of a view of SBUF."""
    copy_sbuf = nl.ndarray(view.shape, dtype=view.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy_sbuf, src=view, engine=nisa.engine.scalar)
    return copy_sbuf


def load_affine(hbm, spot, channels, row):
    """Load a weight or bias [row * channels], which repeats after `row` means, as [rows, means of each, channels]; None
    for None."""
    if hbm == None:
        return None
    first, rows, each = spot
    found_sbuf = nl.ndarray((rows, each, channels), dtype=nl.float32, buffer=nl.sbuf)
    for _, start, count in parts_of_images(first // each, rows, row // each):
        pattern = [[each * channels, count], [channels, each], [1, channels]]
        load(found_sbuf[start : start + count], hbm, pattern, (first + start * each) % row * channels)
    return found_sbuf
