"""The loop of `b2b_causal_conv1d_fused`: short filters, a gate, the mixer's filter, a gate, all on chip.

    for each tile of 128 channels, span of 2048 tokens, piece of 512:
        x2, x1, v = sums of taps of x           project
        u = x1 * v, rounded                     gate_v
        z = sums of taps of u                   mix
        y = x2 * z                              gate_y

Tensor multiplies by diagonals of filters, as in `mixed`. Vector computes one tap of x1 and of z as it reads PSUM.
Scalar computes one tap of x2 and of v and copies their sums to SBUF, and GpSimd adds both.

Engine plan: Sync issues loads, SPANS - 1 ahead; GpSimd makes diagonals of the loaded filters, and issues stores; the
stages of a piece are one step apart, so that no engine waits for another's latest result. Bound by Tensor: with 3 and 7
taps it computes 12 of 16, in 2.6 us a piece in bf16, while HBM takes 1.5.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches all channels of its tile, at most 128, at the tokens
that the definition gives.
"""

from dataclasses import dataclass, field

from ...._nki import nisa, nl
from ....schedules.b2b import ON_VECTOR, SPANS
from ....schedules.tiles import BANK_COLUMNS, cut_at, share, size_of
from ..._dma import load, store
from ..._engines import scaled
from ..._masks import make_diagonals
from ..._warm import WARM_BLOCKS, warm_up, warm_zeros
from ...conv.sums import multiply

#: Matmuls on zeros, of WARM_BLOCKS * 128 columns, during the first loads.
WARM_UPS = 8


@dataclass
class Run(nl.NKIObject):
    """A core's work: its spans, and a HeldSpan of each loaded one, from the first on. Tensors in HBM: x [N, 3 * D, T],
    filters [3 * D, S] and [D, S], y [N, D, T]; the states of x and of u before and after, each [N, channels, S - 1] or
    None."""

    geometry: object
    x: object
    proj: object
    mixer: object
    y: object
    before: tuple
    after: tuple
    spans: tuple = ()
    held: list = field(default_factory=list)


@dataclass
class HeldSpan(nl.NKIObject):
    """A span in SBUF: x [rows, 3, S - 1 + tokens] and u [rows, S - 1 + tokens], with the halo before the tokens; y
    [rows, tokens]; all filters [rows, taps], and their diagonals [rows, taps, rows]."""

    span: object
    x: object
    u: object
    y: object
    w: object
    diagonals: object


@dataclass
class Piece(nl.NKIObject):
    """Some tokens of a span, `part` (first, count), in the pipeline; sums [rows, tokens] of x2, x1, v and the mixer."""

    index: int
    part: tuple
    sums: list


def run_b2b(run):
    """Compute run.y and run.after."""
    run.spans = run.geometry.spans(share(run.geometry.tiles, nl.num_programs(), nl.program_id(0)))
    pieces = [Piece(i, part, []) for i, span in enumerate(run.spans) for part in cut_at(span.count, BANK_COLUMNS)]
    warm_up(warm_zeros(), WARM_UPS, WARM_BLOCKS)
    stages = (project, gate_v, mix, gate_y)
    for step in range(len(pieces) + len(stages) - 1):
        for back, stage in enumerate(stages):
            if 0 <= step - back < len(pieces):
                stage(run, pieces[step - back])


def load_span(run, span):
    """Load a span: x with its halo, and filters if the span before has others."""
    geometry, rows, size = run.geometry, span.rows, run.geometry.short - 1
    w_sbuf, diagonals = load_filters(run, span)
    x_sbuf = nl.ndarray((rows, 3, size + span.count), dtype=run.x.dtype, buffer=nl.sbuf)
    lead = min(size, span.first)
    if lead < size:
        into = x_sbuf[:, :, 0 : size - lead]
        load_state(into, run.before[0], geometry.D, span, size, lead)
    pattern = [[geometry.T, rows], [geometry.D * geometry.T, 3], [1, lead + span.count]]
    first = (span.n * 3 * geometry.D + span.c0) * geometry.T + span.first - lead
    load(x_sbuf[:, :, size - lead : size + span.count], run.x, pattern, first)
    u_sbuf = nl.ndarray((rows, geometry.taps - 1 + span.count), dtype=run.x.dtype, buffer=nl.sbuf)
    y_sbuf = nl.ndarray((rows, span.count), dtype=run.y.dtype, buffer=nl.sbuf)
    return HeldSpan(span, x_sbuf, u_sbuf, y_sbuf, w_sbuf, diagonals)


def load_filters(run, span):
    """Filters of a span [rows, taps], and their diagonals; reuses the span before's if its channels are the same."""
    geometry, rows, short = run.geometry, span.rows, 3 * run.geometry.short
    last = run.held[-1] if run.held else None
    if last is not None and last.span.c0 == span.c0:
        return last.w, last.diagonals
    w_sbuf = nl.ndarray((rows, geometry.all_taps), dtype=nl.float32, buffer=nl.sbuf)
    by_chunk = w_sbuf[:, 0:short].reshape_dim(1, (3, geometry.short))
    pattern = [[geometry.short, rows], [geometry.D * geometry.short, 3], [1, geometry.short]]
    load(by_chunk, run.proj, pattern, span.c0 * geometry.short)
    pattern = [[geometry.taps, rows], [1, geometry.taps]]
    load(w_sbuf[:, short : geometry.all_taps], run.mixer, pattern, span.c0 * geometry.taps)
    return w_sbuf, make_diagonals(w_sbuf, run.x.dtype)


def load_state(into, state_hbm, D, span, size, skipped):
    """Load the last columns of a state, or write zeros; skipped: the state's first columns that are not needed."""
    if state_hbm == None:
        nisa.memset(dst=into, value=0.0, engine=nisa.engine.gpsimd)
        return
    chunks = into.shape[1:-1]
    pattern = [[size, span.rows], *([D * size, count] for count in chunks), [1, into.shape[-1]]]
    load(into, state_hbm, pattern, (span.n * size_of(chunks) * D + span.c0) * size + skipped)


def sums_of(geometry, one, place, source, part):
    """fp32 sums of a filter's taps over tokens of a span, in SBUF.

    place: the filter's index among x2, x1, v and the mixer; source: [rows, S - 1 + tokens].
    """
    (q0, qn), (first, count), rows = part, geometry.filters[place], one.span.rows
    sums_psum, last = nl.ndarray((rows, qn), dtype=nl.float32, buffer=nl.psum), count - 1
    for s in range(last):
        multiply(sums_psum, one.diagonals[:, first + s], source[:, q0 + s : q0 + s + qn], s > 0)
    data, filters = source[0:rows, q0 + last : q0 + last + qn], one.w[0:rows, first + last : first + count]
    sums = nl.ndarray((rows, qn), dtype=nl.float32, buffer=nl.sbuf)
    if ON_VECTOR[place]:
        scaled(sums, data, filters, nl.add, sums_psum)
    else:
        tap = nl.ndarray((rows, qn), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=sums, src=sums_psum, engine=nisa.engine.scalar)
        nisa.tensor_scalar(dst=tap, data=data, op0=nl.multiply, operand0=filters, engine=nisa.engine.scalar)
        nisa.tensor_tensor(dst=sums, data1=sums, data2=tap, op=nl.add, engine=nisa.engine.gpsimd)
    return sums


def project(run, piece):
    """Load spans ahead, and compute sums of x2, x1 and v."""
    while len(run.held) < min(len(run.spans), piece.index + SPANS):
        run.held.append(load_span(run, run.spans[len(run.held)]))
    one = run.held[piece.index]
    piece.sums = [sums_of(run.geometry, one, f, one.x[0 : one.span.rows, f], piece.part) for f in range(3)]


def gate_v(run, piece):
    """Compute u; at the start of a span also its halo: the last elements of the span before, or the state."""
    one, size, (first, count) = run.held[piece.index], run.geometry.taps - 1, piece.part
    rows, span = one.span.rows, one.span
    if first == 0 and span.first == 0:
        load_state(one.u[0:rows, 0:size], run.before[1], run.geometry.D, span, size, 0)
    elif first == 0:
        last = run.held[piece.index - 1]
        after = last.u[0:rows, last.span.count : last.span.count + size]
        nisa.tensor_copy(dst=one.u[0:rows, 0:size], src=after, engine=nisa.engine.scalar)
    into = one.u[0:rows, size + first : size + first + count]
    nisa.tensor_tensor(dst=into, data1=piece.sums[1], data2=piece.sums[2], op=nl.multiply, engine=nisa.engine.vector)


def mix(run, piece):
    """Compute sums of the mixer."""
    one = run.held[piece.index]
    piece.sums = [piece.sums[0], sums_of(run.geometry, one, 3, one.u, piece.part)]


def gate_y(run, piece):
    """Compute y; store it after the last piece of a span, and the states after the last piece of an image."""
    one, geometry, (first, count) = run.held[piece.index], run.geometry, piece.part
    rows, span = one.span.rows, one.span
    into = one.y[0:rows, first : first + count]
    nisa.tensor_tensor(dst=into, data1=piece.sums[1], data2=piece.sums[0], op=nl.multiply, engine=nisa.engine.vector)
    if first + count < span.count:
        return
    row = span.n * geometry.D + span.c0
    store(one.y, run.y, [[geometry.T, rows], [1, span.count]], row * geometry.T + span.first)
    if run.after[0] != None and span.first + span.count == geometry.T:
        short, taps = geometry.short - 1, geometry.taps - 1
        pattern = [[short, rows], [geometry.D * short, 3], [1, short]]
        last = one.x[0:rows, 0:3, span.count : span.count + short]
        store(last, run.after[0], pattern, (3 * span.n * geometry.D + span.c0) * short)
        store(one.u[0:rows, span.count : span.count + taps], run.after[1], [[taps, rows], [1, taps]], row * taps)
