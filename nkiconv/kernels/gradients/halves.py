"""The state of a core's work, and sums of halves of all units, one a core, if the cores do not share channels: the
cores exchange tiles of sums, each adds both and stores a part. One core keeps the first half's tiles in HBM."""

from dataclasses import dataclass, field

from ..._nki import nisa, nl
from ...schedules.geometry import Geometry
from ...schedules.tiles import PARTS, share
from .._dma import copy
from .._engines import Ledger
from .._masks import constant
from ..conv.call import Operands, part_of_core


@dataclass
class WeightWork(nl.NKIObject):
    """The state of one core's work. operands: x, gy as w, and the result in HBM as y; plan: an algorithm's plan; added:
    the tensor that the result is added to, or None; bias: the bias's gradient in HBM, or None; half: the current half
    of the units, -1: all; kept: tiles of the first half's sums in HBM, on one core; paired: number of kept tiles added
    to the second half's; leavings: `sums.leavings_of` of its passes."""

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
    """Ones [128, 1, 1, 1] for the sums of the bias's gradient, if it is asked for."""
    if work.bias != None:
        work.ones_sbuf = constant((nl.tile_size.pmax, 1, 1, 1), dtype, 1.0, nisa.engine.vector)


def run_parts(work, run):
    """Run passes: this core's, over all units; with split all passes, over this core's halves of the units, whose sums
    are added."""
    if not work.plan.split:
        run(part_of_core(work.plan.passes))
        return
    for half in part_of_core(range(PARTS)):
        work.half = half
        run(work.plan.passes)


def waits(work):
    """Whether sums are the first half's on one core, which wait for the second half's."""
    return work.half == 0 and nl.num_programs() == 1


def own_part(work, count):
    """(first, how many) of `count` results that this core stores."""
    return (0, count) if work.half < 0 else share(count, nl.num_programs(), nl.program_id(0))


def keep_sums(work, sums_sbuf):
    """Copy a tile of the first half's sums to HBM until the second half's is ready."""
    kept_hbm = nl.ndarray(sums_sbuf.shape, dtype=nl.float32, buffer=nl.private_hbm)
    copy(kept_hbm, sums_sbuf)
    work.kept.append(kept_hbm)


def with_other_half(work, sums_sbuf):
    """A tile of sums plus the other half's, if units are in halves; None if it waits for the second half."""
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
