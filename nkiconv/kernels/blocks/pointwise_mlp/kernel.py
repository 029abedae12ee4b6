"""The loop of `pointwise_mlp_fused`: hidden channels of a group of pixels overlap with y of the group before.

Filters [rows, columns] are loaded in memory order and transposed by the Tensor Engine once, so that the contracted
channels are on the partitions of both operands. Scalar, the bound with few channels, activates a hidden tile of all
banks of a group in one instruction; Vector evacuates y with bias and residual. The norm of x has two stages, for the
next two groups, so that the Tensor Engine does not wait for a stage's operands.
"""

from dataclasses import dataclass
from functools import partial

from ...._nki import nisa, nl
from ....schedules.tiles import cut_at, share, some_of, transposes_of_bank
from ..._dma import load, store
from ..._engines import SCALAR_START_WORK_PSUM, SCALAR_WORK, new_ledger
from ..._epilogue import FUNCTIONS, evacuate
from ...conv.call import part_of_core
from ...conv.filter_feed import transpose_together
from .norm import InputNorm
from .sums import alike, column, load_columns, multiply


@dataclass
class Operands(nl.NKIObject):
    """Tensors in HBM: x, y and the residual [N, channels, ...]; the norm's NormOperands; optional ones may be None."""

    x: object
    w1: object
    w2: object
    y: object
    bias1: object
    bias2: object
    residual: object
    norm: object


@dataclass
class Group(nl.NKIObject):
    """Some banks of pixels: x and hidden channels in SBUF, [channel, tile, bank, images, pixels]; with a norm, centered
    x and the sums of its squares."""

    banks: list
    x: object
    residual: object
    hidden: object
    centered: object = None
    squares: object = None


class Core:
    """One core's operands in SBUF: filters [K axes, tile, M axes], biases by tile, the norm of x."""

    def __init__(self, operands, geometry, epilogue, activation):
        self.operands, self.geometry, self.epilogue, self.activation = operands, geometry, epilogue, activation
        self.ledger, self.norm, self.first, self.second = new_ledger(), None, None, None
        self.bias1, self.bias2 = None, None
        if operands.norm != None:
            self.norm = InputNorm(operands, geometry, self.ledger)

    def place_first(self):
        """Load the first filters, and biases and the norm's weight and bias."""
        operands, geometry = self.operands, self.geometry
        self.first = self.transposed(operands.w1, geometry.m_tiles, geometry.c_tiles)
        if self.norm is not None:
            self.norm.load()
        self.bias1 = load_columns(operands.bias1, geometry.m_tiles)
        self.bias2 = load_columns(operands.bias2, geometry.k_tiles)

    def place_second(self):
        """Load the second filters."""
        self.second = self.transposed(self.operands.w2, self.geometry.k_tiles, self.geometry.m_tiles)

    def transposed(self, w_hbm, rows, columns):
        """Load filters [rows, columns] from HBM as [column, tile of columns, row] in SBUF."""
        count, itemsize = w_hbm.shape[0], self.geometry.itemsize
        w_sbuf = nl.ndarray((min(nl.tile_size.pmax, w_hbm.shape[1]), len(columns), count), w_hbm.dtype, buffer=nl.sbuf)
        for first, some in rows:
            raw_sbuf = nl.ndarray((some, w_hbm.shape[1]), dtype=w_hbm.dtype, buffer=nl.sbuf)
            load(raw_sbuf, w_hbm, [[w_hbm.shape[1], some], [1, w_hbm.shape[1]]], first * w_hbm.shape[1])
            for at, number in cut_at(len(columns), transposes_of_bank(some, itemsize)):
                for index, many, c, cn in alike(columns[at : at + number]):
                    dst = w_sbuf[0:cn, at + index : at + index + many, first : first + some]
                    sources = [raw_sbuf[0:some, c + tile * cn : c + (tile + 1) * cn] for tile in range(many)]
                    transpose_together(dst, sources, itemsize, self.ledger)
        return w_sbuf

    def tile(self, tiles, banks, like):
        """A new tile [channel, tile, bank, images, pixels] for a group, of the dtype of `like`."""
        (_, nn), (_, pn) = banks[0]
        parts = min(nl.tile_size.pmax, tiles[0][1])
        return nl.ndarray((parts, len(tiles), len(banks), nn, pn), dtype=like.dtype, buffer=nl.sbuf)

    def load(self, hbm, tiles, banks):
        """Load a group of pixels of x or the residual."""
        tile_sbuf = self.tile(tiles, banks, hbm)
        for dst, pattern, offset in self.regions(hbm, tile_sbuf, tiles, banks):
            load(dst, hbm, pattern, offset)
        return tile_sbuf

    def regions(self, hbm, tile_sbuf, tiles, banks):
        """(view of a tile, access pattern of HBM, offset) of a group of pixels."""
        channels, pixels, found = hbm.shape[1], self.geometry.pixels, []
        for bank, ((n, nn), (p, pn)) in enumerate(banks):
            for index, many, c, cn in alike(tiles):
                view = tile_sbuf[0:cn, index : index + many, bank, 0:nn, 0:pn]
                pattern = [[pixels, cn], [pixels * cn, many], [channels * pixels, nn], [1, pn]]
                found.append((view, pattern, (n * channels + c) * pixels + p))
        return found

    def start(self, banks):
        """A Group; starts the loads of its x and residual."""
        operands, geometry = self.operands, self.geometry
        x_sbuf, residual = self.load(operands.x, geometry.c_tiles, banks), None
        if operands.residual != None:
            residual = self.load(operands.residual, geometry.k_tiles, banks)
        return Group(banks, x_sbuf, residual, self.tile(geometry.m_tiles, banks, operands.x))

    def hide(self, group, index):
        """Compute the hidden channels of an M tile of a group."""
        m, mn = self.geometry.m_tiles[index]
        acc_psum = multiply(self.first, (m, mn), self.geometry.c_tiles, group.x)
        (_, banks, nn, pn), bias = acc_psum.shape, column(self.bias1, index, self.geometry.m_tiles)
        dst = group.hidden[0:mn, index, 0:banks, 0:nn, 0:pn]
        op = nl.copy if self.activation == "" else FUNCTIONS[self.activation]
        nisa.activation(dst=dst, op=op, data=acc_psum, bias=bias)
        self.ledger.scalar = self.ledger.scalar + SCALAR_START_WORK_PSUM + banks * nn * pn * SCALAR_WORK

    def finish(self, group, index):
        """Compute y of a K tile of a group, bank by bank: one is evacuated during the matmuls of the next; store it."""
        operands, (k, kn) = self.operands, self.geometry.k_tiles[index]
        y_sbuf = self.tile([(k, kn)], group.banks, operands.y)
        _, _, banks, nn, pn = y_sbuf.shape
        for bank in range(banks):
            hidden = group.hidden[0 : group.hidden.shape[0], 0 : group.hidden.shape[1], bank : bank + 1, 0:nn, 0:pn]
            acc_psum = multiply(self.second, (k, kn), self.geometry.m_tiles, hidden)
            residual = None
            if group.residual != None:
                residual = group.residual[0:kn, index, bank : bank + 1, 0:nn, 0:pn]
            y = y_sbuf[0:kn, 0, bank : bank + 1, 0:nn, 0:pn]
            evacuate(
                y, acc_psum, column(self.bias2, index, self.geometry.k_tiles), residual, self.epilogue, self.ledger
            )
        for src, pattern, offset in self.regions(operands.y, y_sbuf, [(k, kn)], group.banks):
            store(src, operands.y, pattern, offset)

    def begin(self, groups):
        """The first groups by number, ready for the first hidden channels; x is loaded before filters."""
        held = {0: self.start(groups[0])}
        if self.norm is None:
            self.place_first()
            return held
        self.norm.center(held[0])
        self.place_first()
        self.norm.scale(held[0])
        self.bias1 = self.norm.fold(self.first, self.bias1)
        if len(groups) > 1:
            held[1] = self.start(groups[1])
            self.norm.center(held[1])
        return held

    def advance(self, held, number):
        """Compute the hidden channels of a group, and between its M tiles the stages of its neighbours: y of the group
        before, the norm of the groups after."""
        stages = [] if self.norm is None else [(2, self.norm.center), (1, self.norm.scale)]
        between = [partial(stage, held[number + ahead]) for ahead, stage in stages if number + ahead in held]
        if number - 1 in held:
            before = held.pop(number - 1)
            between += [partial(self.finish, before, index) for index in range(len(self.geometry.k_tiles))]
        tiles = len(self.geometry.m_tiles)
        for index in range(tiles):
            if number in held:
                self.hide(held[number], index)
            for stage in some_of(between, share(len(between), tiles, index)):
                stage()


def run_mlp(operands, geometry, epilogue, activation):
    """Compute this core's part of the banks of pixels."""
    groups = geometry.groups(part_of_core(geometry.banks))
    if not groups:
        return
    core = Core(operands, geometry, epilogue, activation)
    held = core.begin(groups)
    ahead = len(held)
    for number in range(len(groups) + 1):
        if number + ahead < len(groups):
            held[number + ahead] = core.start(groups[number + ahead])
        core.advance(held, number)
        if number == 0:
            core.place_second()
