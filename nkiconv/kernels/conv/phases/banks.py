"""Banks of sums of phases: which blocks of which job, which products they are of, and where their sums belong.

Segments are a Part of planes, of rows and of columns; of blocks and places there are (first, how many) along each axis.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.cuts import combined
from ....schedules.tiles import BANK_COLUMNS, cut
from ..sums import Product, covering_first
from .blocks import blocks_of_phase, seen_by_blocks


@dataclass
class PhaseBank(nl.NKIObject):
    """Some blocks of a job (index); done: places of results that are made with it, of the last of all jobs' banks of
    the same blocks, or None."""

    job: int
    blocks: tuple
    done: object


def phase_banks(phases, segment):
    """Banks of a segment in the order of the work: all jobs of some blocks, then of the next ones."""
    found = []
    for box in bank_boxes(phases, segment):
        own = []
        for index in range(len(phases.jobs)):
            blocks = blocks_of_job(phases.jobs[index], segment, box)
            if blocks[0][1] * blocks[1][1] * blocks[2][1] > 0:
                own.append((index, blocks))
        for index in range(len(own)):
            done = places_of_box(segment, box) if index + 1 == len(own) else None
            found.append(PhaseBank(job=own[index][0], blocks=own[index][1], done=done))
    return found


def bank_boxes(phases, segment):
    """Boxes of blocks whose sums of any job fit a bank of PSUM."""
    z, p, q = segment
    most = [1, 1, 1]
    for job in phases.jobs:
        blocks = blocks_of_job(job, segment, ((z.b0, z.bn), (p.b0, p.bn), (q.b0, q.bn)))
        for axis in range(3):
            most[axis] = max(most[axis], blocks[axis][1])
    rows = max(1, BANK_COLUMNS // most[2])
    planes = max(1, rows // most[1])
    return combined(cut_blocks(z, most[0], planes), cut_blocks(p, most[1], rows), cut_blocks(q, most[2], BANK_COLUMNS))


def cut_blocks(part, count, most):
    """(first, how many) of a Part's blocks, all of them where `count`, as any job has at most, are no more than
    `most`."""
    if count <= most:
        return [(part.b0, part.bn)]
    found = []
    for one in cut(part.bn, most):
        found.append((part.b0 + one[0], one[1]))
    return found


def blocks_of_job(job, segment, box):
    """Those of some blocks that any phase of a job has."""
    found = ()
    for axis in range(3):
        first, end = box[axis][0], box[axis][0] + box[axis][1]
        low, high = end, first
        for phase in job.phases:
            own = blocks_of_phase(segment[axis], phase[axis])
            low, high = min(low, max(first, own[0])), max(high, min(end, own[0] + own[1]))
        found = found + ((low, max(0, high - low)),)
    return found


def places_of_box(segment, box):
    """Places of results of a box of blocks."""
    found = ()
    for axis in range(3):
        part, blocks = segment[axis], box[axis]
        start = part.axis.origin + blocks[0] * part.axis.step - part.y0
        low, end = max(0, start), min(part.yn, start + blocks[1] * part.axis.step)
        found = found + ((low, max(0, end - low)),)
    return found


def products_in(phases, bank, segment):
    """Products of a bank, one that writes all its sums first, if there is one; `group` is its place among the job's."""
    z, p, q = segment
    found, products, on = [], phases.jobs[bank.job].products, bank.blocks
    for index in range(len(products)):
        e = products[index][0]
        planes, rows = seen_by_blocks(z, e[0], on[0]), seen_by_blocks(p, e[1], on[1])
        columns = seen_by_blocks(q, e[2], on[2])
        if planes[2] * rows[2] * columns[2] > 0:
            found.append(Product(group=index, planes=planes, rows=rows, columns=columns))
    return covering_first(found, on[0][1], on[1][1], on[2][1])


def phase_in_bank(bank, segment, phase):
    """Sums of a phase in a bank and their places among the results: for each axis ((first, how many, step) of both)."""
    found = ()
    for axis in range(3):
        part, blocks = segment[axis], bank.blocks[axis]
        own, step = blocks_of_phase(part, phase[axis]), part.axis.step
        low, end = max(blocks[0], own[0]), min(blocks[0] + blocks[1], own[0] + own[1])
        count, place = max(0, end - low), part.axis.origin + low * step + phase[axis] - part.y0
        found = found + (((low - blocks[0], count, 1), (place, count, step)),)
    return found
