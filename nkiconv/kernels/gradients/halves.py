"""What a core has at hand, and sums of halves of all units, one a core, where the cores do not share channels: tiles of
them change places, and each core adds up both and stores a part. One core has the first half's wait in HBM."""

from dataclasses import dataclass, field

from ..._nki import nisa, nl
from ...schedules.geometry import Geometry
from ...schedules.tiles import PARTS, share
from .._dma import copy
from .._engines import Ledger
from ..conv.call import Operands


@dataclass
class WeightWork(nl.NKIObject):
    """What one core has at hand. operands: x, gy as w, and as y the result in HBM; plan: of an algorithm; added: what
    that is added to, or None; bias: of its gradient in HBM, or None; half: which of the units is at work, -1: all;
    kept: tiles of the first half's sums in HBM, of one core; paired: how many have been added to the second's;
    leavings: `sums.leavings_of` its passes."""

    operands: Operands
    geometry: Geometry
    plan: object
    added: object
    bias: object
    ledger: Ledger
    kept: list
    half: int = -1
    paired: int = 0
    ones_sbuf: object = None
    leavings: dict = field(default_factory=dict)


def start_ones(work, dtype):
    """Ones [128, 1, 1, 1] for the bias's sums, if it is wanted."""
    if work.bias != None:
        work.ones_sbuf = nl.ndarray((nl.tile_size.pmax, 1, 1, 1), dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=work.ones_sbuf, value=1.0, engine=nisa.engine.vector)


def waits(work):
    """Whether sums are those of the first half, on one core, and wait for the second's."""
    return work.half == 0 and nl.num_programs() == 1


def own_part(work, count):
    """(first, how many) of so many results that this core stores."""
    return (0, count) if work.half < 0 else share(count, nl.num_programs(), nl.program_id(0))


def keep_sums(work, sums_sbuf):
    """Have a tile of the first half's sums wait."""
    kept_hbm = nl.ndarray(sums_sbuf.shape, dtype=nl.float32, buffer=nl.private_hbm)
    copy(kept_hbm, sums_sbuf)
    work.kept.append(kept_hbm)


def with_other_half(work, sums_sbuf):
    """A tile of sums with the other half's added, if units are shared; None if it waits for these."""
    if waits(work):
        return keep_sums(work, sums_sbuf)
    if work.half >= 0:
        nisa.tensor_tensor(dst=sums_sbuf, data1=sums_sbuf, data2=other_sums(work, sums_sbuf), op=nl.add)
    return sums_sbuf


def other_sums(work, sums_sbuf):
    """The other half's tile of the same sums."""
    other_sbuf = nl.ndarray(sums_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    if nl.num_programs() == PARTS:
        other = 1 - nl.program_id(0)
        nisa.sendrecv(src=sums_sbuf, dst=other_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    else:
        copy(other_sbuf, work.kept[work.paired])
        work.paired += 1
    return other_sbuf
