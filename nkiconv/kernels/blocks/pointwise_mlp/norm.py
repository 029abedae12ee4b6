"""A norm over the channels of x's pixels, before the first filters; `nkiconv.pixel_norms` lists the norms.

    d = x, or x - mean(x) of "layer"     S = v (sum of d^2 + C eps)     d S^-1/2 = normalized x / (C v)^1/2

Channels are on the partitions: a matmul with a matrix of ones leaves the sum of each pixel's channels on all
partitions. Differences from the mean are squared, so that no variance is a difference of squares, and C eps is one more
channel of the squares, so that Vector multiplies by S^-1/2 in one instruction. All of this is in fp32, except that the
Tensor Engine reads squares of 16-bit x as tf32; the result is rounded to x's dtype. v is a power of two. Weight and
(C v)^1/2 are multiplied into the filters, which are rounded once; the bias, rounded to x's dtype, is multiplied by the
filters and added to their biases.
"""

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, size_of
from ..._engines import book_vector, pick_sum
from ..._masks import constant
from ...conv.filter_feed import tiles_in_turn
from .sums import alike, column, load_columns, multiply


class InputNorm:
    """The norm of one core's x."""

    def __init__(self, operands, geometry, ledger):
        self.operands, self.x_dtype, self.geometry, self.ledger = operands.norm, operands.x.dtype, geometry, ledger
        self.weight, self.bias, self.following = None, None, 0
        self.ones_sbuf = self.matrix(1.0, self.x_dtype)
        self.parts_sbuf = self.of_array(self.matrix(geometry.square_part, nl.float32))
        shape = (nl.tile_size.pmax, len(geometry.square_tiles), geometry.together, BANK_COLUMNS)
        self.squares = tiles_in_turn(2, shape, nl.float32)
        for tile_sbuf in self.squares:
            last_sbuf = tile_sbuf[0 : shape[0], shape[1] - 1]
            nisa.memset(dst=last_sbuf, value=geometry.C * self.operands.eps, engine=nisa.engine.vector)

    def matrix(self, value, dtype):
        """A matrix [P, 1, P] of one value."""
        return constant((nl.tile_size.pmax, 1, nl.tile_size.pmax), dtype, value)

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
        squares = self.of_array(group.squares)
        group.x = self.combine(self.parts_sbuf, self.geometry.square_tiles, squares, group.centered, None, self.x_dtype)

    def combine(self, matrix, tiles, summed, operand, factor, dtype):
        """operand + sum * factor, or without a factor operand * sum^-1/2, with each pixel's sum of `summed` over
        channels; [channel, tile, bank, images, pixels]."""
        found_sbuf = nl.ndarray(operand.shape, dtype=dtype, buffer=nl.sbuf)
        ops = (nl.power, -0.5, nl.multiply) if factor is None else (nl.multiply, factor, nl.add)
        P_MAX, (parts, count, banks, nn, pn) = nl.tile_size.pmax, summed.shape
        every = matrix.broadcast(1, count)
        for bank in range(banks):
            moving = summed[0:parts, 0:count, bank : bank + 1, 0:nn, 0:pn]
            sums_psum = multiply(every, (0, P_MAX), tiles, moving)
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
        self.bias = bias
        if bias != None:
            self.bias = nl.ndarray(bias.shape, dtype=self.x_dtype, buffer=nl.sbuf)
            for index in range(len(tiles)):
                src, dst = (column(one, index, tiles) for one in (bias, self.bias))
                nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)

    def fold(self, filters, biases):
        """Multiply weight into filters [channel, tile, M], and add bias to biases [M, tile], which are returned."""
        geometry = self.geometry
        if self.bias != None:
            biases = self.with_bias(filters, self.bias, biases)
        factor = (geometry.C * geometry.square_part) ** 0.5
        for index, (_, cn) in enumerate(geometry.c_tiles):
            own, weight = filters[0:cn, index], column(self.weight, index, geometry.c_tiles)
            weight = 1.0 if weight == None else weight
            nisa.tensor_scalar(dst=own, data=own, op0=nl.multiply, operand0=weight, op1=nl.multiply, operand1=factor)
        return biases

    def with_bias(self, filters, bias, biases):
        """Each M tile's filters times the norm's bias, plus biases unless they are None."""
        c_tiles, m_tiles = self.geometry.c_tiles, self.geometry.m_tiles
        sums_psum = nl.ndarray((m_tiles[0][1], len(m_tiles)), dtype=nl.float32, buffer=nl.psum)
        for tile, (m, mn) in enumerate(m_tiles):
            for index, (_, cn) in enumerate(c_tiles):
                nisa.nc_matmul(
                    dst=sums_psum[0:mn, tile : tile + 1],
                    stationary=filters[0:cn, index, m : m + mn],
                    moving=bias[0:cn, index : index + 1],
                    accumulate=index > 0,
                )
        found_sbuf = nl.ndarray(sums_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
        for first, count, _, mn in alike(m_tiles):
            dst, sums = (one[0:mn, first : first + count] for one in (found_sbuf, sums_psum))
            if biases == None:
                nisa.tensor_copy(dst=dst, src=sums, engine=nisa.engine.vector)
            else:
                own = biases[0:mn, first : first + count]
                nisa.tensor_tensor(dst=dst, data1=sums, data2=own, op=nl.add, engine=nisa.engine.vector)
        return found_sbuf
