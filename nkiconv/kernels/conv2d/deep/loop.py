"""The loop of deep: filters come in pieces, are turned, and meet all pixels; sums stay in PSUM to the end."""

from dataclasses import dataclass

from ...._nki import nisa, nl
from ..._dma import copy
from ..._engines import is_16bit, new_ledger, pick
from ..._tiles import whole_words
from ..._warm import warm_up, warm_zeros
from ..call import of_array
from .filters import fill_ring, load_packed, load_piece, turn_step
from .sums import finish_channels, finish_contraction, read_out
from .tiling import AHEAD, Piece, Step, is_copied, pieces_of, products_of


@dataclass
class Issued(nl.NKIObject):
    """What was issued of a job: pieces, and filters of each as loaded; x of chunks beside each other as loaded, and as
    it is taken: among zeros, where `whole` of them have x."""

    pieces: int
    raw: list
    loaded: list
    x: list
    whole: int


@dataclass
class Turned(nl.NKIObject):
    """A step of a piece whose stationary is there, or will be."""

    piece: Piece
    step: Step
    stationary: object


def run_deep(operands, geometry, extras, deep):
    """This core's job, or on one core all of them; then what the cores need of each other."""
    ledger = new_ledger()
    zeros_sbuf = warm_zeros()
    warm_up(zeros_sbuf, deep.warmup, 1)
    ring, found = [], []
    for index in range(len(deep.jobs)):
        if nl.num_programs() == 1 or nl.program_id(0) == index:
            job = deep.jobs[index]
            sums = sums_of(operands, geometry, deep, job, ring, ledger)
            if deep.shard == "channels":
                finish_channels(operands, geometry, extras, deep, job, sums, ledger)
            else:
                found.append(read_out(geometry, deep, job, sums, ledger))
    if deep.shard == "contraction":
        finish_contraction(operands, geometry, extras, deep, found, ledger)


def sums_of(operands, geometry, deep, job, ring, ledger):
    """All sums of a job, in PSUM: for each block of output channels a tile [(t, slot), images, rows, columns] of each
    bank."""
    sums = []
    for block in range(len(job.blocks)):
        outputs = deep.T * deep.slot if deep.T > 1 else job.blocks[block][1]
        tiles = []
        for index in range(len(deep.banks)):
            bank = deep.banks[index]
            tiles.append(nl.ndarray((outputs, bank.nn, bank.pn, deep.columns), dtype=nl.float32, buffer=nl.psum))
        sums.append(tiles)
    pieces = pieces_of(deep, job)
    issued = Issued(pieces=0, raw=[], loaded=[], x=[], whole=0)
    waiting = []
    if geometry.packed > 0:
        fill_ring(ring, operands, geometry, deep)
    for index in range(len(pieces)):
        piece = pieces[index]
        while issued.pieces < len(pieces) and issued.pieces < index + deep.buffers:
            issue(operands, geometry, deep, job, pieces[issued.pieces], ring, issued)
        # after x's zeros, which are needed first
        fill_ring(ring, operands, geometry, deep)
        stationary_sbuf, steps = ring[index % len(ring)], deep.steps[piece.which]
        for which in range(len(steps)):
            if geometry.packed == 0:
                turn_step(issued.raw[index], geometry, deep, job, piece, steps[which], stationary_sbuf, ledger)
            if issued.whole * deep.together <= piece.first:
                put_among_zeros(operands, deep, issued.loaded[issued.whole], issued.x[issued.whole], ledger)
                issued.whole += 1
            waiting.append(Turned(piece=piece, step=steps[which], stationary=stationary_sbuf))
            if len(waiting) > AHEAD:
                multiply(operands, geometry, deep, job, waiting[len(waiting) - AHEAD - 1], issued.x, sums)
    for index in range(max(0, len(waiting) - AHEAD), len(waiting)):
        multiply(operands, geometry, deep, job, waiting[index], issued.x, sums)
    return sums


def issue(operands, geometry, deep, job, piece, ring, issued):
    """Loads of a piece: x of the chunks that come with it first, which is little, then its filters."""
    if len(issued.loaded) * deep.together <= piece.first:
        x_sbuf = load_x(operands, geometry, deep, job, piece)
        issued.loaded.append(x_sbuf)
        issued.x.append(zeros_for(operands, geometry, deep, x_sbuf))
    if geometry.packed > 0:
        load_packed(operands, geometry, deep, job, piece, ring[issued.pieces % len(ring)])
    else:
        issued.raw.append(load_piece(operands, geometry, deep, job, piece))
    issued.pieces += 1


def load_x(operands, geometry, deep, job, piece):
    """[c, (chunk, image), rows, columns] in SBUF of the chunks of a piece: what taps meet of x. As filters are, every
    chunk is loaded as if it had as many channels as the last one."""
    window, N, depth = deep.window, geometry.N, deep.depth
    x_sbuf = nl.ndarray((depth, piece.count * N, window.hn, window.wn), dtype=operands.x_dtype, buffer=nl.sbuf)
    pattern = [[geometry.x_c, depth], [geometry.x_n, N], [geometry.x_h, window.hn], [geometry.x_w, window.wn]]
    for index in range(piece.count):
        c0 = job.chunks[piece.first + index][0]
        offset = c0 * geometry.x_c + window.h0 * geometry.x_h + window.w0 * geometry.x_w
        copy(
            x_sbuf[0:depth, index * N : (index + 1) * N, 0 : window.hn, 0 : window.wn],
            operands.x.ap(pattern=pattern, offset=offset),
        )
    return x_sbuf


def zeros_for(operands, geometry, deep, x_sbuf):
    """[c, (chunk, image), height, width] of zeros in SBUF for x to lie in, or x itself where it needs none."""
    window = deep.window
    if not is_copied(window):
        return x_sbuf
    depth, images, _, _ = x_sbuf.shape
    elements = images * window.height * window.width
    padded_sbuf = nl.ndarray((depth, whole_words(elements, geometry.itemsize)), dtype=operands.x_dtype, buffer=nl.sbuf)
    words = padded_sbuf if operands.x_dtype == nl.float32 else padded_sbuf.view(nl.float32)
    nisa.memset(dst=words, value=0.0, engine=nisa.engine.gpsimd)
    return padded_sbuf[0:depth, 0:elements].reshape_dim(1, (images, window.height, window.width))


def put_among_zeros(operands, deep, x_sbuf, padded_sbuf, ledger):
    """x of some chunks to where it belongs among its zeros."""
    window = deep.window
    if is_copied(window):
        depth, images, hn, wn = x_sbuf.shape
        nisa.tensor_copy(
            dst=padded_sbuf[0:depth, 0:images, window.top : window.top + hn, window.left : window.left + wn],
            src=x_sbuf,
            engine=pick(ledger, images * hn * wn, is_16bit(operands.x_dtype)),
        )


def multiply(operands, geometry, deep, job, turned, x, sums):
    """The products of a step, added to what its block has."""
    rows, columns = geometry.rows, geometry.columns
    piece, shape = turned.piece, turned.stationary.shape
    each = deep.slot if deep.T > 1 else job.blocks[piece.block][1]
    products = products_of(geometry, deep.T, piece.taps)
    flat_sbuf = of_array(turned.stationary.reshape((shape[0], shape[1], shape[2] * shape[3])), operands)
    x_sbuf = of_array(x[piece.first // deep.together], operands)
    by = columns.stride if deep.T == 1 else 1
    for part in range(piece.count):
        chunk = piece.first + part
        cn = job.chunks[chunk][1]
        for index in range(turned.step.first, turned.step.end):
            product = products[index]
            outputs, first = product.count * each, product.first * deep.slot
            w = product.s * columns.dilation
            for which in range(len(deep.banks)):
                bank = deep.banks[which]
                h = bank.p * rows.stride + product.r * rows.dilation
                nisa.nc_matmul(
                    dst=sums[piece.block][which][0:outputs, 0 : bank.nn, 0 : bank.pn, 0 : deep.columns],
                    stationary=flat_sbuf[0:cn, part, first : first + outputs],
                    moving=x_sbuf[
                        0:cn,
                        part * geometry.N + bank.n : part * geometry.N + bank.n + bank.nn,
                        h : h + (bank.pn - 1) * rows.stride + 1 : rows.stride,
                        w : w + (deep.columns - 1) * by + 1 : by,
                    ],
                    accumulate=chunk > 0 or piece.which > 0 or index > 0,
                )
