"""The loop of `pointwise_mlp`: hidden channels of one group of pixels while those of the one before are summed.

Filters [rows, columns] come in memory order and are transposed by the Tensor Engine once, so that what is summed over
is on the partitions of both operands. Scalar activates a hidden tile of all banks of a group in one instruction, as it
is what binds with few channels; Vector evacuates y with bias and residual.
"""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, cut_at, share, some_of, transposes_of_bank
from ..._dma import load, store
from ..._engines import SCALAR_START_WORK_PSUM, SCALAR_WORK, new_ledger
from ..._epilogue import FUNCTIONS, evacuate, load_bias
from ...conv.filter_feed import transpose_together


@dataclass
class Operands(nl.NKIObject):
    """Tensors in HBM: x, y and the residual [N, channels, ...]; None where there is none."""

    x: object
    w1: object
    w2: object
    y: object
    bias1: object
    bias2: object
    residual: object


@dataclass
class Group(nl.NKIObject):
    """Some banks of pixels: x and hidden channels in SBUF, [channel, tile, bank, images, pixels]."""

    banks: list
    x: object
    residual: object
    hidden: object


class Core:
    """What one core has at hand: filters [K axes, tile, M axes], biases by tile."""

    def __init__(self, operands, geometry, epilogue, activation):
        self.operands, self.geometry, self.epilogue, self.activation = operands, geometry, epilogue, activation
        self.ledger, self.second = new_ledger(), None
        self.first = self.transposed(operands.w1, geometry.m_tiles, geometry.c_tiles)
        self.bias1 = [load_bias(operands.bias1, m, mn) for m, mn in geometry.m_tiles]
        self.bias2 = [load_bias(operands.bias2, k, kn) for k, kn in geometry.k_tiles]

    def transposed(self, w_hbm, rows, columns):
        """Filters [rows, columns] in HBM as [column, tile of columns, row] in SBUF."""
        count, itemsize = w_hbm.shape[0], self.geometry.itemsize
        w_sbuf = nl.ndarray((min(nl.tile_size.pmax, w_hbm.shape[1]), len(columns), count), w_hbm.dtype, buffer=nl.sbuf)
        for first, some in rows:
            raw_sbuf = nl.ndarray((some, w_hbm.shape[1]), dtype=w_hbm.dtype, buffer=nl.sbuf)
            load(raw_sbuf, w_hbm, [[w_hbm.shape[1], some], [1, w_hbm.shape[1]]], first * w_hbm.shape[1])
            for at, number in cut_at(len(columns), transposes_of_bank(some, itemsize)):
                for widths in alike(columns[at : at + number]):
                    index = columns.index(widths[0])
                    parts = widths[0][1]
                    dst = w_sbuf[0:parts, index : index + len(widths), first : first + some]
                    sources = [raw_sbuf[0:some, c : c + cn] for c, cn in widths]
                    transpose_together(dst, sources, itemsize, self.ledger)
        return w_sbuf

    def tile(self, tiles, banks, like):
        """[channel, tile, bank, images, pixels] in SBUF for a group, of the dtype of a tensor in HBM."""
        (_, nn), (_, pn) = banks[0]
        parts = min(nl.tile_size.pmax, tiles[0][1])
        return nl.ndarray((parts, len(tiles), len(banks), nn, pn), dtype=like.dtype, buffer=nl.sbuf)

    def load(self, hbm, tiles, banks):
        """A group of pixels of x or the residual."""
        tile_sbuf = self.tile(tiles, banks, hbm)
        for dst, pattern, offset in self.regions(hbm, tile_sbuf, tiles, banks):
            load(dst, hbm, pattern, offset)
        return tile_sbuf

    def regions(self, hbm, tile_sbuf, tiles, banks):
        """(view of a tile, access pattern of HBM, offset) of a group of pixels."""
        channels, pixels, found = hbm.shape[1], self.geometry.pixels, []
        for bank, ((n, nn), (p, pn)) in enumerate(banks):
            for run in alike(tiles):
                index, (c, cn) = tiles.index(run[0]), run[0]
                view = tile_sbuf[0:cn, index : index + len(run), bank, 0:nn, 0:pn]
                pattern = [[pixels, cn], [pixels * cn, len(run)], [channels * pixels, nn], [1, pn]]
                found.append((view, pattern, (n * channels + c) * pixels + p))
        return found

    def start(self, banks):
        """A Group whose x is on its way."""
        operands, geometry = self.operands, self.geometry
        residual = None
        if operands.residual != None:
            residual = self.load(operands.residual, geometry.k_tiles, banks)
        x_sbuf = self.load(operands.x, geometry.c_tiles, banks)
        return Group(banks, x_sbuf, residual, self.tile(geometry.m_tiles, banks, operands.x))

    def sums(self, group, parts):
        """Banks of sums of a group, [channel, bank, images, pixels], each in a bank of PSUM."""
        ((_, nn), (_, pn)), banks = group.banks[0], len(group.banks)
        acc_psum = nl.ndarray((parts, banks, BANK_COLUMNS), dtype=nl.float32, buffer=nl.psum)
        pattern = [[banks * BANK_COLUMNS, parts], [BANK_COLUMNS, banks], [pn, nn], [1, pn]]
        return acc_psum.ap(pattern=pattern, offset=0)

    def multiply(self, acc_psum, filters, tiles, moving, columns):
        """acc = filters^T moving, over tiles of channels; columns (first, how many) of filters."""
        (first, count), (parts, banks, nn, pn) = columns, acc_psum.shape
        for index, (_, cn) in enumerate(tiles):
            for bank in range(banks):
                nisa.nc_matmul(
                    dst=acc_psum[0:parts, bank, 0:nn, 0:pn],
                    stationary=filters[0:cn, index, first : first + count],
                    moving=moving[0:cn, index, bank, 0:nn, 0:pn],
                    accumulate=index > 0,
                )

    def hide(self, group, index):
        """Hidden channels of an M tile of a group."""
        m, mn = self.geometry.m_tiles[index]
        acc_psum = self.sums(group, mn)
        self.multiply(acc_psum, self.first, self.geometry.c_tiles, group.x, (m, mn))
        (_, banks, nn, pn), bias = acc_psum.shape, self.bias1[index]
        dst = group.hidden[0:mn, index, 0:banks, 0:nn, 0:pn]
        op = nl.copy if self.activation == "" else FUNCTIONS[self.activation]
        nisa.activation(dst=dst, op=op, data=acc_psum, bias=bias)
        self.ledger.scalar = self.ledger.scalar + SCALAR_START_WORK_PSUM + banks * nn * pn * SCALAR_WORK

    def finish(self, group):
        """y of a group."""
        geometry, operands = self.geometry, self.operands
        y_sbuf = self.tile(geometry.k_tiles, group.banks, operands.y)
        for index, (k, kn) in enumerate(geometry.k_tiles):
            acc_psum = self.sums(group, kn)
            self.multiply(acc_psum, self.second, geometry.m_tiles, group.hidden, (k, kn))
            _, banks, nn, pn = acc_psum.shape
            y, residual = (
                None if one == None else one[0:kn, index, 0:banks, 0:nn, 0:pn] for one in (y_sbuf, group.residual)
            )
            evacuate(y, acc_psum, self.bias2[index], residual, self.epilogue, self.ledger)
        for src, pattern, offset in self.regions(operands.y, y_sbuf, geometry.k_tiles, group.banks):
            store(src, operands.y, pattern, offset)


def alike(tiles):
    """Tiles (first, how many) in runs of as many."""
    found = []
    for one in tiles:
        if found and found[-1][-1][1] == one[1]:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def run_mlp(operands, geometry, epilogue, activation):
    """This core's part of the banks of pixels."""
    mine = share(len(geometry.banks), nl.num_programs(), nl.program_id(0))
    groups = geometry.groups(some_of(geometry.banks, mine))
    if not groups:
        return
    core, every = Core(operands, geometry, epilogue, activation), range(len(geometry.m_tiles))
    group, before = core.start(groups[0]), None
    for number in range(len(groups)):
        after = core.start(groups[number + 1]) if number + 1 < len(groups) else None
        for index in every:
            core.hide(group, index)
        if core.second is None:
            core.second = core.transposed(operands.w2, geometry.k_tiles, geometry.m_tiles)
        if before is not None:
            core.finish(before)
        group, before = after, group
    core.finish(before)
