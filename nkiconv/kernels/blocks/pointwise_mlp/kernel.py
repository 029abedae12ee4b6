"""The loop of `pointwise_mlp_fused`: hidden channels of a group of pixels overlap with y of the group before.

Filters [rows, columns] are transposed as they are loaded, so that the contracted channels are on the partitions of both
operands. The pixels of one bank are of both cores: each has half of the hidden channels, and its filters, and they
exchange sums. Scalar, the bound with few channels, activates a hidden tile of all
banks of a group in one instruction; Vector evacuates y with bias and residual. The norm of x has two stages, for the
next two groups, so that the Tensor Engine does not wait for a stage's operands.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, PARTS, QUADRANT, cut_at, div_ceil, share, size_of, some_of
from ..._dma import load, load_transposed, store
from ..._engines import SCALAR_START_WORK_PSUM, SCALAR_WORK, book_vector, copy_balanced, new_ledger, pick_sum
from ..._epilogue import FUNCTIONS, evacuate
from ..._masks import constant
from ..._prologue import load_numbers
from ...conv.call import part_of_core
from ...conv.filter_feed import tiles_in_turn
from ...conv.sums import multiply

#: Rows of filters that one DMA transposes.
LOADED_ROWS = 256


def multiply_tiles(filters, columns, tiles, moving):
    """filters^T moving, [column, bank, images, pixels], one bank of PSUM for each bank of pixels.

    Args:
        filters: [channel, tile, column]; columns: (first, count) of columns. tiles: (first, count) of the channels of
            each tile. moving: [channel, tile, bank, images, pixels].
    """
    (first, count), (_, _, banks, nn, pn) = columns, moving.shape
    acc_psum = nl.ndarray((count, banks, BANK_COLUMNS), dtype=nl.float32, buffer=nl.psum)
    pattern = [[banks * BANK_COLUMNS, count], [BANK_COLUMNS, banks], [pn, nn], [1, pn]]
    acc_psum = acc_psum.ap(pattern=pattern, offset=0)
    for index, (_, cn) in enumerate(tiles):
        for bank in range(banks):
            stationary = filters[0:cn, index, first : first + count]
            multiply(acc_psum[:, bank], stationary, moving[0:cn, index, bank], index > 0)
    return acc_psum


def alike(tiles):
    """(index of the first, count, its first channel, channels of each) of the whole tiles, and of the last tile if it
    has fewer channels."""
    whole = sum(count == tiles[0][1] for _, count in tiles)
    return [(at, many, *tiles[at]) for at, many in ((0, whole), (whole, len(tiles) - whole)) if many > 0]


def load_columns(hbm, tiles):
    """Load values per channel from HBM as [channel, tile] fp32 in SBUF; None for None."""
    if hbm == None:
        return None
    found_sbuf = nl.ndarray((tiles[0][1], len(tiles)), dtype=nl.float32, buffer=nl.sbuf)
    for tile, many, first, channels in alike(tiles):
        for at, count in cut_at(many, QUADRANT):
            dst = found_sbuf[0:channels, tile + at : tile + at + count]
            load_numbers(dst, 0, hbm, [[channels, count], [0, 1], [1, channels]], first + at * channels)
    return found_sbuf


def column(numbers_sbuf, index, tiles):
    """A tile's values [channel, 1]; None for None."""
    return None if numbers_sbuf == None else numbers_sbuf[0 : tiles[index][1], index : index + 1]


class InputNorm:
    """The norm of one core's x.

        d = x, or x - mean(x) of "layer"     S = v (sum of d^2 + C eps)     d S^-1/2 = normalized x / (C v)^1/2

    Channels are on the partitions: a matmul with a matrix of ones leaves the sum of each pixel's channels on all
    partitions. Differences from the mean are squared, so that no variance is a difference of squares, and C eps is one
    more channel of the squares, so that Vector multiplies by S^-1/2 in one instruction. All of this is in fp32, except
    that the Tensor Engine reads squares of 16-bit x as tf32; the result is rounded to x's dtype. v is a power of two.
    Weight and (C v)^1/2 are multiplied into the filters, which are rounded once; the bias, rounded to x's dtype, is
    multiplied by the filters and added to their biases. Of few pixels they are applied to x instead.
    """

    def __init__(self, operands, geometry, ledger):
        self.operands, self.x_dtype, self.geometry, self.ledger = operands.norm, operands.x.dtype, geometry, ledger
        self.weight, self.bias, self.following, P_MAX = None, None, 0, nl.tile_size.pmax
        self.ones_sbuf = constant((P_MAX, 1, P_MAX), self.x_dtype, 1.0)
        self.parts_sbuf = self.of_array(constant((P_MAX, 1, P_MAX), nl.float32, geometry.square_part))
        shape = (P_MAX, len(geometry.square_tiles), geometry.together, BANK_COLUMNS)
        self.squares = tiles_in_turn(2, shape, nl.float32)
        for tile_sbuf in self.squares:
            last_sbuf = tile_sbuf[0 : shape[0], shape[1] - 1]
            nisa.memset(dst=last_sbuf, value=geometry.C * self.operands.eps, engine=nisa.engine.vector)

    def of_array(self, tile):
        """Squares, or their factors, in the dtype of the matmul: fp32, or tf32 for 16-bit x."""
        return tile if self.x_dtype == nl.float32 else tile.view(nl.tfloat32)

    def center(self, group):
        """Set a group's centered x, which `scale` scales, and the sum of its squares over tiles of channels."""
        tiles, x_sbuf = self.geometry.c_tiles, group.x
        group.centered, elements = x_sbuf, size_of(x_sbuf.shape[2:])
        if self.geometry.norm == "layer":
            group.centered = self.combine(self.ones_sbuf, tiles, x_sbuf, x_sbuf, -1.0 / self.geometry.C, nl.float32)
        group.squares = self.squares_like(x_sbuf)
        for index, (_, cn) in enumerate(tiles):
            one, total = group.centered[0:cn, index], group.squares[0:cn, 0]
            own = total if index == 0 else nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
            engine = pick_sum(self.ledger, elements, False)
            nisa.tensor_tensor(dst=own, data1=one, data2=one, op=nl.multiply, engine=engine)
            if index > 0:
                engine = pick_sum(self.ledger, elements, False)
                nisa.tensor_tensor(dst=total, data1=total, data2=own, op=nl.add, engine=engine)

    def scale(self, group):
        """Replace a group's x by normalized x, without the factors that the filters hold."""
        geometry, squares = self.geometry, self.of_array(group.squares)
        dtype = nl.float32 if geometry.scales_x else self.x_dtype
        found = self.combine(self.parts_sbuf, geometry.square_tiles, squares, group.centered, None, dtype)
        group.x = nl.ndarray(found.shape, dtype=self.x_dtype, buffer=nl.sbuf) if geometry.scales_x else found
        for index, (_, cn) in enumerate(geometry.c_tiles if geometry.scales_x else ()):
            weight, bias = (column(one, index, geometry.c_tiles) for one in (self.weight, self.bias))
            added = {} if bias is None else {"op1": nl.add, "operand1": bias}
            dst, data = group.x[0:cn, index], found[0:cn, index]
            nisa.tensor_scalar(dst=dst, data=data, op0=nl.multiply, operand0=weight, **added)
            book_vector(self.ledger, size_of(found.shape[2:]))

    def combine(self, matrix, tiles, summed, operand, factor, dtype):
        """operand + sum * factor, or without a factor operand * sum^-1/2, with each pixel's sum of `summed` over
        channels; [channel, tile, bank, images, pixels]."""
        found_sbuf = nl.ndarray(operand.shape, dtype=dtype, buffer=nl.sbuf)
        ops = (nl.power, -0.5, nl.multiply) if factor is None else (nl.multiply, factor, nl.add)
        P_MAX, (_, count, banks, nn, pn) = nl.tile_size.pmax, summed.shape
        every = matrix.broadcast(1, count)
        for bank in range(banks):
            moving = summed[:, :, bank : bank + 1]
            sums_psum = multiply_tiles(every, (0, P_MAX), tiles, moving)
            for index, (_, cn) in enumerate(self.geometry.c_tiles):
                nisa.scalar_tensor_tensor(
                    dst=found_sbuf[0:cn, index, bank],
                    data=sums_psum[0:cn, 0],
                    op0=ops[0],
                    operand0=ops[1],
                    op1=ops[2],
                    operand1=operand[0:cn, index, bank],
                )
                book_vector(self.ledger, nn * pn)
        return found_sbuf

    def squares_like(self, x_sbuf):
        """The next tile of squares in the rotation, in the shape of a group's x."""
        _, _, banks, nn, pn = x_sbuf.shape
        tile_sbuf, self.following = self.squares[self.following], 1 - self.following
        parts, rows, _, columns = tile_sbuf.shape
        by_row = size_of(tile_sbuf.shape[2:])
        pattern = [[rows * by_row, parts], [by_row, rows], [columns, banks], [pn, nn], [1, pn]]
        return tile_sbuf.ap(pattern=pattern, offset=0)

    def load(self):
        """Load weight and bias, by tile of channels; the bias in x's dtype, for matmuls with filters."""
        tiles, operands = self.geometry.c_tiles, self.operands
        self.weight, bias = (load_columns(one, tiles) for one in (operands.weight, operands.bias))
        self.bias, factor = bias, (self.geometry.C * self.geometry.square_part) ** 0.5
        if self.weight == None:
            self.weight = constant((tiles[0][1], len(tiles)), nl.float32, factor)
        else:
            for index, many, _, cn in alike(tiles):
                own = self.weight[0:cn, index : index + many]
                nisa.tensor_scalar(dst=own, data=own, op0=nl.multiply, operand0=factor)
        if bias != None and not self.geometry.scales_x:
            self.bias = nl.ndarray(bias.shape, dtype=self.x_dtype, buffer=nl.sbuf)
            for index in range(len(tiles)):
                src, dst = (column(one, index, tiles) for one in (bias, self.bias))
                nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)

    def fold(self, filters, biases):
        """Multiply weight into filters [channel, tile, M], and add bias to biases [M, tile], which are returned."""
        geometry = self.geometry
        if geometry.scales_x:
            return biases
        if self.bias != None:
            biases = self.with_bias(filters, self.bias, biases)
        for index, (_, cn) in enumerate(geometry.c_tiles):
            own, weight = filters[0:cn, index], column(self.weight, index, geometry.c_tiles)
            nisa.tensor_scalar(dst=own, data=own, op0=nl.multiply, operand0=weight)
        return biases

    def with_bias(self, filters, bias, biases):
        """Each M tile's filters times the norm's bias, plus biases unless they are None."""
        c_tiles, m_tiles = self.geometry.c_tiles, self.geometry.m_tiles
        sums_psum = nl.ndarray((m_tiles[0][1], len(m_tiles)), dtype=nl.float32, buffer=nl.psum)
        for tile, (m, mn) in enumerate(m_tiles):
            for index, (_, cn) in enumerate(c_tiles):
                own, moving = filters[0:cn, index, m : m + mn], bias[0:cn, index : index + 1]
                multiply(sums_psum[0:mn, tile : tile + 1], own, moving, index > 0)
        found_sbuf = nl.ndarray(sums_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        for first, count, _, mn in alike(m_tiles):
            dst, sums = (one[0:mn, first : first + count] for one in (found_sbuf, sums_psum))
            if biases == None:
                nisa.tensor_copy(dst=dst, src=sums, engine=nisa.engine.vector)
            else:
                own = biases[0:mn, first : first + count]
                nisa.tensor_tensor(dst=dst, data1=sums, data2=own, op=nl.add, engine=nisa.engine.vector)
        return found_sbuf


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
        self.ledger, self.norm, self.first = new_ledger(), None, None
        self.second: Any = None
        self.bias1, self.bias2 = None, None
        # (first tile, how many) of hidden channels whose products are added up apart, and (first, end) of the core's
        self.halves = part_of_core(geometry.halves) if len(geometry.halves) > 1 else geometry.halves
        self.own = self.halves[0][0], self.halves[-1][0] + self.halves[-1][1]
        if operands.norm != None:
            self.norm = InputNorm(operands, geometry, self.ledger)

    def place_first(self):
        """Load the first filters, and biases and the norm's weight and bias."""
        operands, geometry = self.operands, self.geometry
        self.first = self.transposed(operands.w1, slice(*self.own), geometry.m_tiles, slice(None), geometry.c_tiles)
        if self.norm is not None:
            self.norm.load()
        self.bias1 = load_columns(operands.bias1, geometry.m_tiles)
        self.bias2 = load_columns(operands.bias2, geometry.k_tiles)

    def transposed(self, w_hbm, row_part, row_tiles, column_part, column_tiles):
        """Load filters [rows, columns] from HBM as [column, tile of columns, row] in SBUF: parts of the tiles."""
        shape = min(nl.tile_size.pmax, w_hbm.shape[1]), len(column_tiles), w_hbm.shape[0]
        w_sbuf, rows = nl.ndarray(shape, dtype=w_hbm.dtype, buffer=nl.sbuf), row_tiles[row_part]
        begin, lead = rows[0][0], column_part.start or 0
        for at, some in cut_at(rows[-1][0] + rows[-1][1] - begin, LOADED_ROWS):
            for index, many, c, cn in alike(column_tiles[column_part]):
                first, tiles = begin + at, slice(lead + index, lead + index + many)
                into = w_sbuf[0:cn, tiles, first : first + some].expand_dim(2)
                load_transposed(into, w_hbm, (1, cn, 0, w_hbm.shape[1]), first * w_hbm.shape[1] + c, None)
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
        acc_psum = multiply_tiles(self.first, (m, mn), self.geometry.c_tiles, group.x)
        (_, banks, nn, pn), bias = acc_psum.shape, column(self.bias1, index, self.geometry.m_tiles)
        dst = group.hidden[0:mn, index, 0:banks, 0:nn, 0:pn]
        op = nl.copy if self.activation == "" else FUNCTIONS[self.activation]
        nisa.activation(dst=dst, op=op, data=acc_psum, bias=bias)
        self.ledger.scalar = self.ledger.scalar + SCALAR_START_WORK_PSUM + banks * nn * pn * SCALAR_WORK

    def finish(self, group, index):
        """Compute y of a K tile of a group, bank by bank: one is evacuated during the matmuls of the next; store it."""
        operands, (k, kn) = self.operands, self.geometry.k_tiles[index]
        y_sbuf = self.tile([(k, kn)], group.banks, operands.y)
        for bank in range(y_sbuf.shape[2]):
            acc_psum = multiply_tiles(self.second, (k, kn), self.geometry.m_tiles, group.hidden[:, :, bank : bank + 1])
            residual = None if group.residual == None else group.residual[0:kn, index, bank : bank + 1]
            y, bias = y_sbuf[:, 0, bank : bank + 1], column(self.bias2, index, self.geometry.k_tiles)
            evacuate(y, acc_psum, bias, residual, self.epilogue, self.ledger)
        self.store(y_sbuf, (k, kn), group)

    def store(self, y_sbuf, k_tile, group):
        """Store y of a K tile of a group."""
        for src, pattern, offset in self.regions(self.operands.y, y_sbuf, [k_tile], group.banks):
            store(src, self.operands.y, pattern, offset)

    def finish_halves(self, group):
        """Compute y of a group of one bank from the sums of both halves of the hidden channels; each core has one half
        and stores half of the K tiles."""
        k_tiles, sums = self.geometry.k_tiles, [self.sums_of_half(group, half) for half in self.halves]
        first, begin, count, other_sbuf = 0, 0, len(k_tiles), sums[-1]
        if len(sums) == 1:
            count, core = div_ceil(len(k_tiles), PARTS), nl.program_id(0)
            # the first and the last K tiles; the middle one of an odd number is stored by core 0
            firsts, begin, other = (0, len(k_tiles) - count), core * count, 1 - core
            first, sent = firsts[core], firsts[other]
            theirs = sums[0][:, sent : sent + count]
            other_sbuf = nl.ndarray(theirs.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.sendrecv(src=theirs, dst=other_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0)
        total = sums[0][:, first : first + count]
        nisa.tensor_tensor(dst=total, data1=total, data2=other_sbuf, op=nl.add)
        for index in range(begin, first + count):
            kn, y_sbuf = k_tiles[index][1], self.tile([k_tiles[index]], group.banks, self.operands.y)
            residual = None if group.residual == None else group.residual[0:kn, index]
            bias = column(self.bias2, index, k_tiles)
            evacuate(y_sbuf[:, 0], sums[0][0:kn, index], bias, residual, self.epilogue, self.ledger)
            self.store(y_sbuf, k_tiles[index], group)

    def sums_of_half(self, group, half):
        """Sums of some hidden channels for all K tiles of a group of one bank, [channel, tile, bank, images, pixels]
        fp32 in SBUF."""
        part, k_tiles, (_, _, *inner) = slice(half[0], half[0] + half[1]), self.geometry.k_tiles, group.hidden.shape
        sums_sbuf = nl.ndarray((k_tiles[0][1], len(k_tiles), *inner), dtype=nl.float32, buffer=nl.sbuf)
        if k_tiles[-1][1] < k_tiles[0][1]:
            nisa.memset(dst=sums_sbuf[:, len(k_tiles) - 1], value=0.0)
        for index, (k, kn) in enumerate(k_tiles):
            tiles, hidden = self.geometry.m_tiles[part], group.hidden[:, part]
            acc_psum = multiply_tiles(self.second[:, part], (k, kn), tiles, hidden)
            copy_balanced(sums_sbuf[0:kn, index], acc_psum, self.ledger)
        return sums_sbuf

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
            if len(self.geometry.halves) > 1:
                between.append(partial(self.finish_halves, before))
            else:
                between += [partial(self.finish, before, index) for index in range(len(self.geometry.k_tiles))]
        first, end = self.own
        for index in range(first, end):
            if number in held:
                self.hide(held[number], index)
            for stage in some_of(between, share(len(between), end - first, index - first)):
                stage()


def run_mlp(operands, geometry, epilogue, activation):
    """Compute this core's part of the banks of pixels."""
    groups = geometry.groups(geometry.banks if len(geometry.halves) > 1 else part_of_core(geometry.banks))
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
            k_tiles, m_tiles = geometry.k_tiles, geometry.m_tiles
            core.second = core.transposed(operands.w2, slice(None), k_tiles, slice(*core.own), m_tiles)
