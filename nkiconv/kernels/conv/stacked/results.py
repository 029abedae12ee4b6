"""Results of a stack on their way out, residuals and biases in: rows of y on the partitions that made them.

A DMA of single numbers takes an engine 55 ns for each, so that biases, one a partition, come as rows, a job a
partition, and are transposed on the array.
"""

from ...._nki import nisa, nl
from ....schedules.cuts import largest_band
from ..call import scale_residual
from ..filter_feed import tiles_in_turn
from ..regions import block_pieces, load_region, load_regions, offset_at, store_regions


class Residuals(nl.NKIObject):
    """Residuals of (output channels, band) each, in tiles that they take in turn."""

    def __init__(self, operands, geometry, schedule, results):
        self.operands, self.geometry, self.schedule, self.results = operands, geometry, schedule, results
        images, blocks = largest_band([band for _, band in results])
        shape = (schedule.U * schedule.kn, images, blocks, schedule.V, geometry.columns.out)
        count = 0 if operands.residual == None else schedule.residual_depth
        self.tiles = tiles_in_turn(count, shape, operands.residual.dtype if count > 0 else None)
        self.loaded = []

    def load(self, count):
        """Load them until there are `count`, or all; none without a residual."""
        schedule, out = self.schedule, self.geometry.rows.out
        while len(self.loaded) < min(count, len(self.results)) and len(self.tiles) > 0:
            job, band = self.results[len(self.loaded)]
            tile = self.tiles[len(self.loaded) % len(self.tiles)]
            residual_sbuf = tile[0 : schedule.U * job[1], 0 : band.zn, 0 : band.jn]
            if (band.j0 + band.jn) * schedule.U * schedule.V > out:
                last = residual_sbuf[0 : schedule.U * job[1], 0 : band.zn, band.jn - 1]
                nisa.memset(dst=last, value=0.0, engine=nisa.engine.gpsimd)
            for n, region in regions_of_blocks(self.geometry, schedule, job, band, (0, band.jn), 0):
                load_regions(plane_of(residual_sbuf, schedule, n), self.operands.residual, [region])
            self.loaded.append(residual_sbuf)

    def take(self, index):
        """A residual times beta, None without one."""
        return scale_residual(self.loaded[index], self.operands.beta) if len(self.tiles) > 0 else None


def store(y_hbm, y_sbuf, base, geometry, schedule, job, band, part):
    """Blocks (first, how many) of a band's results, on the partitions from `base` on."""
    for n, region in regions_of_blocks(geometry, schedule, job, band, part, base):
        store_regions(y_hbm, plane_of(y_sbuf, schedule, n), [region])


def plane_of(tile, schedule, n):
    """[(u, k), images, blocks, columns] of a tile where a partition has one row of a block, else [(u, k), blocks, rows,
    columns] of image n."""
    parts, images, blocks, rows, columns = tile.shape
    if schedule.V == 1:
        return tile[0:parts, 0:images, 0:blocks, 0, 0:columns]
    return tile[0:parts, n, 0:blocks, 0:rows, 0:columns]


def regions_of_blocks(geometry, schedule, job, band, part, base):
    """(image, region of its plane) of blocks (first, how many) of a band, as far as there are rows, on the partitions
    from `base` on: as few as an access pattern has dims for."""
    (k0, kn), (j, jn), strides, V = job, part, geometry.y_strides, schedule.V
    by_k, by_n, by_p, by_q = strides[:4]
    span, found = schedule.U * V, []
    for first, count, u, un, height in block_pieces(geometry.rows.out, schedule.U, V, band.j0 + j, jn):
        outputs = [[V * by_p, un], [by_k, kn]]
        if schedule.diagonal:
            outputs = [[by_k, kn], [V * by_p, un]]
        blocks, columns = [span * by_p, count], [by_q, geometry.columns.out]
        pattern, at = [*outputs, [by_n, band.zn], blocks, columns], (base + u * kn, 0, j + first, 0)
        if V > 1:
            pattern, at = [*outputs, blocks, [by_p, height], columns], (base + u * kn, j + first, 0, 0)
        for n in range(1 if V == 1 else band.zn):
            offset = offset_at(strides, (k0, band.z0 + n, (band.j0 + j + first) * span + u * V, 0))
            found.append((n, (at, pattern, offset)))
    return found


def load_biases(bias_hbm, jobs):
    """Rows [M tiles, k] fp32 of up to 128 M tiles each; none without a bias."""
    found = []
    for first in range(0, len(jobs) if bias_hbm != None else 0, nl.tile_size.pmax):
        some = jobs[first : first + nl.tile_size.pmax]
        sizes = [one[1] for one in some]
        rows_sbuf = nl.ndarray((len(some), max(sizes)), dtype=nl.float32, buffer=nl.sbuf)
        if min(sizes) < max(sizes):
            nisa.memset(dst=rows_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        # M tiles of as many channels by one DMA
        at = 0
        while at < len(some):
            together = 1
            while at + together < len(some) and sizes[at + together] == sizes[at]:
                together += 1
            load_region(rows_sbuf, bias_hbm, (at, 0), [[sizes[at], together], [1, sizes[at]]], some[at][0])
            at += together
        found.append(rows_sbuf)
    return found


def transpose_biases(rows, schedule, jobs):
    """[(u, k) or (k, u), 1] fp32 of each M tile, None without a bias."""
    if len(rows) == 0:
        return [None for _ in jobs]
    found, axis = [], 2 if schedule.diagonal else 1
    for rows_sbuf in rows:
        n, by_size = rows_sbuf.shape[0], {}
        for index, (_, kn) in enumerate(jobs[len(found) : len(found) + n]):
            size = schedule.U * kn
            if kn not in by_size:
                by_size[kn] = nl.ndarray((size, n), dtype=nl.float32, buffer=nl.sbuf)
                biases_psum = nl.ndarray((size, n), dtype=nl.float32, buffer=nl.psum)
                outputs = rows_sbuf[0:n, 0:kn].expand_dim(axis).broadcast(axis, schedule.U)
                nisa.nc_transpose(dst=biases_psum, data=outputs, engine=nisa.engine.tensor)
                nisa.tensor_copy(dst=by_size[kn], src=biases_psum, engine=nisa.engine.vector)
            found.append(by_size[kn][0:size, index : index + 1])
    return found
