"""The loop of pairs: bands of x come in, each pair of steps is a matmul on the window that both meet, sums go out."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import Ledger, new_ledger
from ..._tiles import share
from ..._warm import warm_up, warm_zeros
from ..call import Extras, Operands, finish_shared, scale_residual
from ..cuts import Bank, box, strides_of_residual, strides_of_y
from ..geometry import Geometry
from .bands import Ring, load_parts, load_slots, make_ring, move_next, move_to, zero_around
from .chunks import partitions
from .filters import Batch, load_chunk, load_job, start_batch, start_job, turn_next, turn_to
from .steps import banks_of, halved, products_of
from .work import Pairs

#: Between the banks of a job's band, filters of the next job are turned and rows of the next band moved; they begin
#: after this share of the banks, when they should have come, and end after that one.
PAIRS_TURN_FROM, PAIRS_TURN_UNTIL = 0.5, 0.9
MOVE_FROM, MOVE_UNTIL = 0.2, 0.8
#: Chunks that are turned before a product of one of them: its own two and the next two.
TURN_AHEAD = 4


@dataclass
class Work(nl.NKIObject):
    """What one core has at hand. index: of its bands, the one that is worked on; bank: of it; turns, moves: things to
    be done between the banks of a job's band; turned, moved: of them, so far."""

    operands: Operands
    geometry: Geometry
    extras: Extras
    plan: Pairs
    ledger: Ledger
    ring: Ring
    batch: Batch
    following: object
    index: int
    bank: int
    turns: int
    turned: int
    moves: int
    moved: int


def run_pairs(operands, geometry, extras, plan):
    """This core's part of the items; x of the next ones is loaded before one is worked on."""
    mine = share(len(plan.items), nl.num_programs(), nl.program_id(0))
    if mine[1] == 0:
        return
    first = plan.items[mine[0]]
    work = Work(
        operands=operands,
        geometry=geometry,
        extras=extras,
        plan=plan,
        ledger=new_ledger(),
        ring=make_ring(operands, geometry, plan, mine[1]),
        batch=start_batch(plan, first.batch),
        following=None,
        index=0,
        bank=0,
        turns=0,
        turned=0,
        moves=0,
        moved=0,
    )
    start_items(work, first.band)
    for index in range(mine[1]):
        item = plan.items[mine[0] + index]
        after = plan.items[mine[0] + min(index + 1, mine[1] - 1)]
        if work.batch.index != item.batch:
            work.batch = work.following
            work.following = None
        work.index = index
        for job in range(len(work.batch.jobs)):
            load_job(operands, geometry, plan, work.batch, job + 1)
            last_job = job + 1 == len(work.batch.jobs)
            if last_job and after.batch != item.batch:
                work.following = start_batch(plan, after.batch)
                load_job(operands, geometry, plan, work.following, 0)
            load_bands(work, mine, index + (len(work.ring.buffers) - 1 if last_job else 1))
            x_sbuf = work.ring.buffers[index % len(work.ring.buffers)]
            work.bank = 0
            work_band(work, job, item.band, x_sbuf, item.last and last_job)


def start_items(work, band):
    """Everything that the first sums need, in the order in which they need it."""
    operands, geometry, plan, ring = work.operands, work.geometry, work.plan, work.ring
    zeros_sbuf = warm_zeros()
    start_job(operands, geometry, plan, work.batch)
    zero_around(ring, 0, band)
    parts = load_parts(ring, band, True)
    slots, chunks = plan.buffer.slots, len(plan.chunks)
    for index in range(0, chunks, 2):
        for _ in range(index, min(chunks, index + 2)):
            load_chunk(operands, geometry, plan, work.batch, 0)
        if len(parts) > 0:
            load_slots(ring, 0, band, parts[0], index, index + 2 if index + 2 < chunks else slots)
    for index in range(1, len(parts)):
        load_slots(ring, 0, band, parts[index], 0, slots)
    warm_up(zeros_sbuf, plan.warmup, 1)
    ring.loaded = 1


def load_bands(work, mine, last):
    """Load x of this core's bands up to `last`, those that are not loaded yet, into the buffers whose turn it is."""
    ring = work.ring
    while ring.loaded <= min(last, mine[1] - 1):
        band = work.plan.items[mine[0] + ring.loaded].band
        which = ring.loaded % len(ring.buffers)
        zero_around(ring, which, band)
        parts = load_parts(ring, band, False)
        for part in range(len(parts)):
            load_slots(ring, which, band, parts[part], 0, work.plan.buffer.slots)
        ring.loaded = ring.loaded + 1


def book(work, job):
    """Count what is to be done between the banks of a job's band: chunks to turn and rows to move."""
    work.turns = 0
    work.turned = 0
    work.moves = 0
    work.moved = 0
    for index in range(len(work.ring.moves)):
        move = work.ring.moves[index]
        if move.band > work.index:
            work.moves += 1
    batch, index = coming_job(work, job)
    if batch != None:
        work.turns = len(work.plan.chunks) - batch.turned[index]


def coming_job(work, job):
    """(batch, job) whose filters are needed next, or (None, 0)."""
    if job + 1 < len(work.batch.jobs):
        return work.batch, job + 1
    if work.following != None:
        return work.following, 0
    return None, 0


def do_due(work, job, share_done):
    """Do what is due when this share of a band's banks is done."""
    batch, index = coming_job(work, job)
    while work.turned < due(work.turns, PAIRS_TURN_FROM, PAIRS_TURN_UNTIL, share_done):
        turn_next(work.operands, work.geometry, work.plan, batch, index, work.ledger)
        work.turned = work.turned + 1
    while work.moved < due(work.moves, MOVE_FROM, MOVE_UNTIL, share_done):
        if len(work.ring.moves) > 0:
            move_next(work.ring, work.ledger)
        work.moved = work.moved + 1


def due(count, begin, end, share_done):
    """How many of `count` things are due that begin after one share of the banks and end after another."""
    return count * min(1.0, (share_done - begin) / (end - begin))


def work_band(work, job, band, x_sbuf, last):
    """Results of one job for one band, some banks after the other; last: whether nothing hides what follows."""
    book(work, job)
    groups = banks_of(work.plan, band, work.plan.banks, last)
    total, done = 0, 0
    for index in range(len(groups)):
        total += len(groups[index])
    for index in range(len(groups)):
        work_group(work, job, band, x_sbuf, groups[index], last and index + 1 == len(groups), done, total)
        done += len(groups[index])


def work_group(work, job, band, x_sbuf, banks, ends, done, total):
    """Results of neighbouring banks, and their stores: of each alone where nothing follows.

    done, total: banks of the band that are done before, and all.
    """
    operands, plan, kn = work.operands, work.plan, work.batch.jobs[job].kn
    first, final = banks[0], banks[len(banks) - 1]
    whole = Bank(
        n=first.n,
        nn=final.n + final.nn - first.n,
        p=first.p,
        pn=final.p + final.pn - first.p,
        q=first.q,
        qn=final.q + final.qn - first.q,
    )
    y_sbuf = nl.ndarray((kn, whole.nn, whole.pn, whole.qn), dtype=operands.y.dtype, buffer=nl.sbuf)
    residual_sbuf = load_residual(work, job, band, whole)
    at = 0
    while at < len(banks):
        count = 2 if plan.halves and at + 1 < len(banks) else 1
        accs = accumulate(work, job, band, x_sbuf, banks[at : min(at + count, len(banks))])
        do_due(work, job, (done + at + count) / total)
        for which in range(count):
            bank = banks[at + which]
            finish_shared(
                inside(y_sbuf, whole, bank),
                accs[which][0:kn, 0 : bank.nn, 0 : bank.pn, 0 : bank.qn],
                work.batch.biases[job],
                None if residual_sbuf == None else inside(residual_sbuf, whole, bank),
                work.extras.epilogue,
                work.ledger,
                bank.nn * bank.pn * bank.qn,
            )
            if ends:
                store(work, job, band, y_sbuf, whole, bank)
        at += count
    if not ends:
        store(work, job, band, y_sbuf, whole, whole)


def inside(tile_sbuf, whole, part):
    """The part of a tile of results [kn, images, rows, columns] of a bank."""
    n, p, q = part.n - whole.n, part.p - whole.p, part.q - whole.q
    return tile_sbuf[0 : tile_sbuf.shape[0], n : n + part.nn, p : p + part.pn, q : q + part.qn]


def store(work, job, band, y_sbuf, whole, part):
    """One DMA for a part of the results in y_sbuf."""
    dst = box_of(work, strides_of_y(work.geometry), job, band, part)
    copy(work.operands.y.ap(pattern=dst[0], offset=dst[1]), inside(y_sbuf, whole, part))


def box_of(work, strides, job, band, part):
    """`box` of a part of a band's outputs of a job."""
    of = work.batch.jobs[job]
    shape = (of.kn, part.nn, part.pn, part.qn)
    return box(strides, of.k0, band.n0 + part.n, band.p0 + part.p, band.q0 + part.q, shape)


def load_residual(work, job, band, whole):
    """The residual of some banks times beta, fp32 if it was multiplied, or None."""
    operands, geometry = work.operands, work.geometry
    if operands.residual == None:
        return None
    shape = (work.batch.jobs[job].kn, whole.nn, whole.pn, whole.qn)
    residual_sbuf = nl.ndarray(shape, dtype=operands.residual.dtype, buffer=nl.sbuf)
    src = box_of(work, strides_of_residual(geometry), job, band, whole)
    copy(residual_sbuf, operands.residual.ap(pattern=src[0], offset=src[1]))
    return scale_residual(residual_sbuf, operands.beta)


def accumulate(work, job, band, x_sbuf, banks):
    """Sums of one bank, or of two whose singles share the array: [kn, images, rows, columns] in PSUM each."""
    plan, geometry, kn = work.plan, work.geometry, work.batch.jobs[job].kn
    pitch = plan.buffer.rows // geometry.rows.stride
    accs, every = [], []
    for which in range(len(banks)):
        bank = banks[which]
        shape = (kn, bank.nn, pitch if bank.nn > 1 else bank.pn, bank.qn)
        accs.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
        every.append(products_of(geometry, plan, band, bank))
        turn_to(work.operands, geometry, plan, work.batch, job, every[which][0].chunk + TURN_AHEAD, work.ledger)
        move_to(work.ring, work.index, work.bank, work.ledger)
        work.bank = work.bank + 1
    beside = len(banks) == 2 and halved(geometry, plan, every[0]) and halved(geometry, plan, every[1])
    for which in range(len(banks)):
        products = every[which]
        for index in range(len(products) - (1 if beside else 0)):
            product = products[index]
            turn_to(work.operands, geometry, plan, work.batch, job, product.chunk + TURN_AHEAD, work.ledger)
            multiply(work, job, x_sbuf, accs[which], banks[which], product, index > 0)
            if beside and which == 1 and index == 0:
                for side in range(2):
                    single = every[side][len(every[side]) - 1]
                    multiply_half(work, job, x_sbuf, accs[side], banks[side], single, side)
    return accs


def window(acc_psum, product):
    """Where a product is added, [kn, rows, columns]: rows of several images are one below the other."""
    kn, images, rows, columns = acc_psum.shape
    sums = acc_psum.reshape((kn, images * rows, columns))
    return sums[
        0:kn,
        product.row : product.row + product.rows,
        product.column : product.column + product.columns,
    ]


def corner(geometry, buffer, bank, product):
    """Element of a slot that the first output of a product's window meets at the first tap."""
    row = bank.n * buffer.rows + (bank.p + product.row) * geometry.rows.stride
    column = buffer.lead + (bank.q + product.column) * geometry.columns.stride
    return row * buffer.columns + column


def multiply(work, job, x_sbuf, acc_psum, bank, product, adds):
    """One matmul: a pair of steps, or a single."""
    geometry, buffer = work.geometry, work.plan.buffer
    tile_sbuf, kn = work.batch.tiles[job], work.batch.jobs[job].kn
    cn = partitions(work.plan.chunks[product.chunk])
    steps, pitch = tile_sbuf.shape[1], tile_sbuf.shape[2]
    size = buffer.images * buffer.rows * buffer.columns
    rows = [buffer.columns * geometry.rows.stride, product.rows]
    columns = [geometry.columns.stride, product.columns]
    at = corner(geometry, buffer, bank, product) + product.place
    if product.second < 0:
        nisa.nc_matmul(
            dst=window(acc_psum, product),
            stationary=tile_sbuf[0:cn, product.first, 0:kn],
            moving=x_sbuf.ap(pattern=[[buffer.slots * size, cn], rows, columns], offset=at),
            accumulate=adds,
        )
        return
    nisa.nc_matmul(
        dst=window(acc_psum, product),
        stationary=tile_sbuf.ap(
            pattern=[[steps * pitch, cn], [(product.second - product.first) * pitch, 2], [1, kn]],
            offset=product.first * pitch,
        ),
        moving=x_sbuf.ap(pattern=[[buffer.slots * size, cn], [product.step, 2], rows, columns], offset=at),
        accumulate=adds,
        perf_mode=nisa.matmul_perf_mode.double_row,
    )


def multiply_half(work, job, x_sbuf, acc_psum, bank, product, side):
    """A single on half of the array's rows: both halves of its channels are a pair."""
    geometry, buffer = work.geometry, work.plan.buffer
    tile_sbuf, kn = work.batch.tiles[job], work.batch.jobs[job].kn
    cn, steps, pitch = tile_sbuf.shape
    half = cn // 2
    size = buffer.images * buffer.rows * buffer.columns
    rows = [buffer.columns * geometry.rows.stride, product.rows]
    columns = [geometry.columns.stride, product.columns]
    at = corner(geometry, buffer, bank, product) + product.place
    nisa.nc_matmul(
        dst=window(acc_psum, product),
        stationary=tile_sbuf.ap(
            pattern=[[steps * pitch, half], [(steps - 1 - product.first) * pitch, 2], [1, kn]],
            offset=side * half * steps * pitch + product.first * pitch,
        ),
        moving=x_sbuf.ap(
            pattern=[[buffer.slots * size, half], [size, 2], rows, columns],
            offset=side * half * buffer.slots * size + at,
        ),
        accumulate=True,
        tile_position=(side * half, 0),
        tile_size=(half, nl.tile_size.pmax),
        perf_mode=nisa.matmul_perf_mode.double_row,
    )
