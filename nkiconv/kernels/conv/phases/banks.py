"""Banks of sums of phases: which blocks of which job, which products they are of, and where their sums belong."""

from dataclasses import dataclass

from ...._nki import nl
from ..._tiles import BANK_COLUMNS, cut
from ..cuts import put_first
from ..sums import Product, is_whole
from .blocks import blocks_of_phase, origin_of, phase_step, seen_by_blocks


@dataclass
class PhaseBank(nl.NKIObject):
    """Blocks z0 .. z0+zn-1, p0 .. p0+pn-1, q0 .. q0+qn-1 of a job (index).

    first, count: places of results along each axis that all jobs' banks of the same blocks make together; last: whether
    it is the last of these.
    """

    job: int
    z0: int
    zn: int
    p0: int
    pn: int
    q0: int
    qn: int
    first: tuple
    count: tuple
    last: bool


def phase_banks(geometry, phases, segment):
    """Banks of a Segment in the order of the work: all jobs of some blocks, then of the next ones."""
    axes = (geometry.planes, geometry.rows, geometry.columns)
    parts = (segment.planes, segment.rows, segment.columns)
    found = []
    for box in bank_boxes(axes, parts, phases):
        own = []
        for index in range(len(phases.jobs)):
            z = shared_blocks(axes[0], parts[0], box[0], phases.jobs[index], 0)
            p = shared_blocks(axes[1], parts[1], box[1], phases.jobs[index], 1)
            q = shared_blocks(axes[2], parts[2], box[2], phases.jobs[index], 2)
            if z[1] * p[1] * q[1] > 0:
                own.append((index, z, p, q))
        first, count = places_of_box(axes, parts, box)
        for index in range(len(own)):
            job, z, p, q = own[index]
            last = index + 1 == len(own)
            found.append(
                PhaseBank(
                    job=job,
                    z0=z[0],
                    zn=z[1],
                    p0=p[0],
                    pn=p[1],
                    q0=q[0],
                    qn=q[1],
                    first=first,
                    count=count,
                    last=last,
                )
            )
    return found


def bank_boxes(axes, parts, phases):
    """Boxes, (first, how many) of blocks along each axis, whose sums of any job fit a bank of PSUM."""
    most = []
    for axis in range(3):
        count = 1
        for job in phases.jobs:
            count = max(count, shared_blocks(axes[axis], parts[axis], (parts[axis].b0, parts[axis].bn), job, axis)[1])
        most.append(count)
    rows = max(1, BANK_COLUMNS // most[2])
    planes = max(1, rows // most[1])
    found = []
    for z in cut_blocks(parts[0], most[0], planes):
        for p in cut_blocks(parts[1], most[1], rows):
            for q in cut_blocks(parts[2], most[2], BANK_COLUMNS):
                found.append((z, p, q))
    return found


def cut_blocks(part, count, most):
    """(first, how many) of a Part's blocks, all of them where `count`, as any job has at most, are no more than
    `most`."""
    if count <= most:
        return [(part.b0, part.bn)]
    found = []
    for one in cut(part.bn, most):
        found.append((part.b0 + one[0], one[1]))
    return found


def shared_blocks(axis, part, blocks, job, which):
    """(first, how many) of some blocks that any phase of a job has, along axis number `which`."""
    low, end = blocks[0] + blocks[1], blocks[0]
    for phase in job.phases:
        own = blocks_of_phase(axis, part, phase[which])
        low, end = min(low, max(blocks[0], own[0])), max(end, min(blocks[0] + blocks[1], own[0] + own[1]))
    return low, max(0, end - low)


def places_of_box(axes, parts, box):
    """(first place along each axis, how many) of results of a box of blocks."""
    first, count = (), ()
    for axis in range(3):
        step, start = phase_step(axes[axis]), origin_of(axes[axis]) - parts[axis].y0
        low = max(0, start + box[axis][0] * step)
        end = min(parts[axis].yn, start + (box[axis][0] + box[axis][1]) * step)
        first, count = first + (low,), count + (max(0, end - low),)
    return first, count


def products_in(geometry, phases, bank, segment):
    """Products of a bank, one that writes all its sums first, if there is one; `group` is its place among the job's."""
    products = phases.jobs[bank.job].products
    found, whole = [], -1
    for index in range(len(products)):
        place = products[index][0]
        planes = seen_by_blocks(geometry.planes, segment.planes, place[0], bank.z0, bank.zn)
        rows = seen_by_blocks(geometry.rows, segment.rows, place[1], bank.p0, bank.pn)
        columns = seen_by_blocks(geometry.columns, segment.columns, place[2], bank.q0, bank.qn)
        if planes[2] * rows[2] * columns[2] > 0:
            product = Product(row=0, group=index, parts=0, planes=planes, rows=rows, columns=columns)
            if whole < 0 and is_whole(product, bank.zn, bank.pn, bank.qn):
                whole = len(found)
            found.append(product)
    return put_first(found, whole) if whole > 0 else found


def phase_in_bank(geometry, bank, segment, phase):
    """Along planes, rows and columns (first in the bank, how many, first place among results, step) of the sums of a
    phase."""
    return (
        phase_along(geometry.planes, segment.planes, (bank.z0, bank.zn), phase[0]),
        phase_along(geometry.rows, segment.rows, (bank.p0, bank.pn), phase[1]),
        phase_along(geometry.columns, segment.columns, (bank.q0, bank.qn), phase[2]),
    )


def phase_along(axis, part, blocks, phase):
    """The same along one axis."""
    own, step = blocks_of_phase(axis, part, phase), phase_step(axis)
    low, end = max(blocks[0], own[0]), min(blocks[0] + blocks[1], own[0] + own[1])
    place = origin_of(axis) + low * step + phase - part.y0
    return low - blocks[0], max(0, end - low), place, step
