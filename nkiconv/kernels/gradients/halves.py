"""What a core has at hand, and the sums of halves of all units, one a core, where the cores do not share channels."""

from dataclasses import dataclass

from ..._nki import nisa, nl
from .._dma import copy
from .._engines import Ledger
from .._tiles import PARTS, cut_at, div_ceil, share, size_of
from ..conv.call import Operands
from ..conv.geometry import Geometry
from ..conv.relayout import meet

#: Columns of a piece of what both cores have summed up, at least and at most.
SUM_COLUMNS, SUM_COLUMNS_MAX = 128, 2048


@dataclass
class WeightWork(nl.NKIObject):
    """What one core has at hand. operands: x, gy as w, and as y fp32 sums or the result in HBM; plan: of an algorithm;
    added: what that is added to, or None; bias: of its gradient in HBM, or None."""

    operands: Operands
    geometry: Geometry
    plan: object
    added: object
    bias: object
    ones_sbuf: object
    ledger: Ledger


@dataclass
class Halves(nl.NKIObject):
    """Sums of each half of the units in HBM, of filters and biases, and what both are to be then."""

    sums: list
    biases: list
    into: object
    bias: object
    added: object


def start_ones(work):
    """Ones [128, 1] for the bias's sums, if it is wanted."""
    if work.bias != None:
        work.ones_sbuf = nl.ndarray((nl.tile_size.pmax, 1, 1, 1), dtype=work.operands.w_dtype, buffer=nl.sbuf)
        nisa.memset(dst=work.ones_sbuf, value=1.0, engine=nisa.engine.vector)


def start_halves(work):
    """Halves of a work; it adds to nothing itself."""
    into, bias, sums, biases = work.operands.y, work.bias, [], []
    for _ in range(PARTS):
        sums.append(nl.ndarray(into.shape, dtype=nl.float32, buffer=nl.shared_hbm))
        biases.append(None if bias == None else nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.shared_hbm))
    found = Halves(sums=sums, biases=biases, into=into, bias=bias, added=work.added)
    work.added = None
    return found


def take_half(work, halves, half):
    """Have a work's sums go where those of a half do."""
    operands = work.operands
    operands.y = halves.sums[half]
    work.bias = halves.biases[half]


def end_halves(halves):
    """The sums of both halves."""
    for one in halves.sums:
        meet(one)
    add_halves(halves.sums, halves.into, halves.added)
    if halves.bias != None:
        for one in halves.biases:
            meet(one)
        add_halves(halves.biases, halves.bias, None)


def add_halves(halves, into, added):
    """This core's part of the sum of two tensors in HBM, and of one that it is added to, or None."""
    first, count = share(size_of(into.shape), nl.num_programs(), nl.program_id(0))
    columns = max(SUM_COLUMNS, min(SUM_COLUMNS_MAX, div_ceil(count, nl.tile_size.pmax)))
    whole = count // columns
    for some in cut_at(whole, nl.tile_size.pmax):
        add_piece(halves, into, added, (first + some[0] * columns, some[1], columns))
    if count % columns > 0:
        add_piece(halves, into, added, (first + whole * columns, 1, count % columns))


def add_piece(halves, into, added, piece):
    """The same of neighbouring elements: (first, rows, columns)."""
    offset, parts, columns = piece
    pattern, sums = [[columns, parts], [1, columns]], []
    for one in halves if added == None else halves + [added]:
        part_sbuf = nl.ndarray((parts, columns), dtype=nl.float32, buffer=nl.sbuf)
        copy(part_sbuf, one.ap(pattern=pattern, offset=offset))
        sums.append(part_sbuf)
    found_sbuf = nl.ndarray((parts, columns), dtype=into.dtype, buffer=nl.sbuf)
    for index in range(1, len(sums)):
        into_sbuf = found_sbuf if index + 1 == len(sums) else sums[0]
        nisa.tensor_tensor(dst=into_sbuf, data1=sums[0], data2=sums[index], op=nl.add)
    copy(into.ap(pattern=pattern, offset=offset), found_sbuf)
