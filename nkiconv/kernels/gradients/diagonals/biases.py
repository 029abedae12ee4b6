"""The bias's gradient beside diagonals: Vector sums up gy of a unit as units come, ones all units after a pass."""

from ...._nki import nisa, nl
from ....schedules.tiles import BANK_COLUMNS, cut
from ..._dma import copy
from ..._engines import book_vector, pick
from ..halves import own_part, with_other_half
from ..loads import is_channels_last, part_of
from ..sums import multiply


def start_biases(work):
    """Sums of biases [units, channels of a pass], fp32; None where they are not wanted."""
    if work.bias == None:
        return None
    shape = (nl.tile_size.pmax, work.plan.settings.groups * work.plan.k)
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def add_biases(work, step, y_sbuf, spans, biases_sbuf):
    """Sums of gy over the positions of the units of a step: written, or added to those of the steps before. spans:
    (first partition, end, groups) of units."""
    settings, strides = work.plan.settings, work.geometry.y_strides
    rows, columns = settings.rows * settings.down, settings.columns * settings.across
    for span in spans:
        first, end, count = span[0], span[1], span[2] * work.plan.k
        data = part_of(y_sbuf, strides, (first, end), (0, rows, 1), (0, columns, 1), (0, count))
        into = biases_sbuf[first:end, 0:count]
        target = into if step.first else nl.ndarray(into.shape, dtype=nl.float32, buffer=nl.sbuf)
        book_vector(work.ledger, rows * columns * count)
        data = data.permute((0, 3, 1, 2)) if is_channels_last(strides) else data
        nisa.tensor_reduce(dst=target, op=nl.add, data=data, axis=(2, 3))
        if not step.first:
            nisa.tensor_tensor(dst=into, data1=into, data2=target, op=nl.add)


def store_biases(work, step, biases_sbuf, units):
    """Sums of biases over so many units of a pass, to HBM."""
    plan, parts, side, below = work.plan, step.parts, work.plan.settings.side, (0, work.plan.settings.below)
    size = nl.tile_size.pmax // side
    for some in cut(parts[0][1] * plan.k, BANK_COLUMNS // len(parts)):
        # one bank for all tiles of rows
        sums_psum = nl.ndarray((1, len(parts), some[1]), dtype=nl.float32, buffer=nl.psum)
        for part in range(len(parts)):
            first, count = part * size, min(some[1], parts[part][1] * plan.k - some[0])
            if count > 0:
                moving = biases_sbuf[first : first + units, some[0] : some[0] + count]
                target = sums_psum[0:1, part, 0:count]
                multiply(target, work.ones_sbuf[first : first + units, 0, 0, 0:1], moving, False, (part, side), below)
                found_sbuf = nl.ndarray((1, count), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_copy(dst=found_sbuf, src=target, engine=pick(work.ledger, count, False))
                whole_sbuf, mine = with_other_half(work, found_sbuf), own_part(work, count)
                if whole_sbuf != None and mine[1] > 0:
                    pattern, offset = [[mine[1], 1], [1, mine[1]]], parts[part][0] * plan.k + some[0] + mine[0]
                    found_sbuf = whole_sbuf[0:1, mine[0] : mine[0] + mine[1]]
                    copy(work.bias.ap(pattern=pattern, offset=offset), found_sbuf)
