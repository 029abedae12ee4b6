"""A core's items one after the other, and of those that are alike one body on the device.

x of an item comes while the one before is worked on. In a body that goes on from the last item of an iteration to the
first of the next: two sets of tiles lie outside, and take turns.
"""

from ...._nki import nl
from ....schedules.tiles import share
from ..._warm import warm_up, warm_zeros
from ..moved import moved_operands
from .alike import repeats_of
from .filters import load_ahead, transpose_until
from .last import transpose_late
from .loop import jobs_at_once, load_biases, load_next, set_rate, start_band, start_batch, start_work, work_band
from .parts import start_preparing
from .rows import load_rows, rows_tile


def run_items(operands, geometry, extras, plan):
    """This core's part of the items; x of the next one is loaded before one is worked on."""
    mine = share(len(plan.items), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    preparing = start_preparing(geometry, plan.frames_bytes)
    first = start_batch(geometry, plan, plan.items[mine[0]].batch, 1, preparing)
    work = start_work(operands, geometry, extras, warm_zeros(), first, preparing)
    filters = work.batch.filters
    filters.first_bytes = plan.first_bytes
    work.warm = warm_up(work.zeros_sbuf, plan.warmup, 1)
    index, end = mine[0], mine[0] + mine[1]
    now = start_band(work, plan.items[index])
    for repeat in repeats_of(geometry, plan, mine[0], mine[1]):
        while index < repeat.first:
            now = work_on_item(work, plan, index, end, now)
            index += 1
        run_repeat(work, plan, repeat, now)
        index += repeat.count * repeat.bands
    while index < end:
        now = work_on_item(work, plan, index, end, now)
        index += 1
    while len(work.late) > 0:
        transpose_late(work)


def work_on_item(work, plan, index, end, now):
    """One item, of which x is there, and x of the one after, before `end`, which is returned."""
    item = plan.items[index]
    if work.batch.index != item.batch:
        work.batch = work.following
        work.following = None
    after = None
    jobs = jobs_at_once(work.batch)
    for which in range(len(jobs)):
        load_biases(work, work.batch, jobs[which][-1] + 1)
        load_ahead(work.operands, work.geometry, work.batch.filters)
        coming = plan.items[min(index + 1, end - 1)]
        others = coming.batch != item.batch
        if index + 1 < end and which == (len(jobs) - 1 if others else 0):
            after = load_next(work, plan, index, now)
        set_rate(work, jobs[which], item.band)
        work_band(work, jobs[which], item, now, index + 1 == end)
    return after


def run_repeat(work, plan, repeat, now):
    """A Repeat, of which x of the first item is there; x of the item behind it is in the same tiles then."""
    operands, geometry, filters = work.operands, work.geometry, work.batch.filters
    transpose_until(operands, geometry, filters, len(filters.order) - 1, work.ledger)
    chunks, others = work.batch.chunks, []
    for chunk in chunks:
        others.append(rows_tile(operands, geometry, chunk, plan.items[repeat.first].band))

    def body(at):
        work_repeat(work, plan, repeat, (now, others), at)

    by = repeat.register.by
    nl.fori_loop(0, repeat.count * by, body, by)


def work_repeat(work, plan, repeat, tiles, at):
    """The body of a Repeat: its items, each after the load of x of the next one. at: the register that moves them."""
    own = moved_work(work, repeat, at)
    chunks = own.batch.chunks
    for which in range(repeat.bands):
        item, coming = plan.items[repeat.first + which], plan.items[repeat.first + which + 1]
        for chunk in range(len(chunks)):
            into = tiles[(which + 1) % 2]
            load_rows(own, chunks[chunk], into[chunk], coming.band, coming.band.h0, len(chunks) == 1)
        for jobs in jobs_at_once(own.batch):
            work_band(own, jobs, item, tiles[which % 2], False)


def moved_work(work, repeat, at):
    """Work of a body, whose x, y and residual a register moves; what engines have had to do starts anew."""
    moved = moved_operands(work.operands, work.geometry.precision, repeat.register, at)
    return start_work(moved, work.geometry, work.extras, work.zeros_sbuf, work.batch, None)
