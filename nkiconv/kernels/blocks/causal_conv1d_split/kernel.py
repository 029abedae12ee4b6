"""The loop of `causal_conv1d_split_heads`: token-major sums of depthwise filters, straight from the Tensor Engine.

    for each step: 128 tokens of up to 512 channels
        for each channel tile, tap s:
            psum[tokens, channels] += x[channels, tokens shifted by s].T @ diag(w[channels, s])
        z = act(psum + bias);  y = z, or z / sqrt(sum of z^2 over its head + eps);  store

A window of x is the stationary and a diagonal matrix of filters the moving operand: the sums have tokens on the
partitions and channels along the free axis, as y in HBM, and the dim of a head is a free axis to reduce.

Engine plan: Sync issues loads, SPANS_AHEAD spans ahead; GpSimd makes the diagonals of the next span, and issues stores;
Tensor sums, 128 columns a matmul, S matmuls a channel tile; Scalar evacuates a bank with the activation; Vector and
GpSimd normalise (results.py), in stages of earlier steps. Bound by Tensor with S = 4 (893 ns a step against HBM's 733
in bf16); with fewer taps by HBM.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches all channels of its tile, at most 128, at the tokens
whose windows hold it.
"""

from ...._nki import nisa, nl
from ....schedules.split import build
from ..._prologue import load_rows, load_tokens
from .results import Results, load_filters

#: The number of spans whose x is loaded ahead of the current one.
SPANS_AHEAD = 3


def convolve_heads(operands, geometry, epilogue, eps):
    """Compute operands.parts."""
    plan = build(geometry, nl.num_programs(), nl.program_id(0))
    if len(plan.steps) == 0:
        return
    # (x, filters) of spans in SBUF; filters of the last two groups; the last step of each span
    out, held, filters, loaded = Results(operands.parts, epilogue, eps), {}, {}, 0
    last = {step.span: index for index, step in enumerate(plan.steps)}
    for index, step in enumerate(plan.steps):
        while loaded < min(len(plan.spans), step.span + SPANS_AHEAD + 1):
            group = plan.spans[loaded].group
            if group not in filters:
                found = load_filters(operands, geometry, group, loaded == 0, out.ledger)
                filters = {**dict(list(filters.items())[-1:]), group: found}
            held[loaded] = load_span(operands, geometry, plan.spans[loaded]), filters[group]
            loaded += 1
        run_step(out, geometry, plan.spans[step.span], step, *held[step.span])
        if last[step.span] == index:
            del held[step.span]
    out.end()


def run_step(out, geometry, span, step, x_sbuf, filters):
    """Compute y of a step."""

    def window(rows, tile, s):
        return x_sbuf[0:rows, tile, step.first + s : step.first + s + step.count]

    token = span.row.image * geometry.T + span.row.first + span.first + step.first
    out.add(span.group, step.count, window, filters, 1, token)


def load_span(operands, geometry, span):
    """Load x of a span: [partitions, tiles, S - 1 + tokens] in SBUF; the first S - 1 columns are the halo before it."""
    group, row, halo = span.group, span.row, geometry.S - 1
    before = min(halo, span.first)
    columns, shape = before + span.count, (group.runs[0].rows, group.tiles, halo + span.count)
    x_sbuf = nl.ndarray(shape, dtype=operands.x.dtype, buffer=nl.sbuf)
    for run in group.runs:
        tiles = slice(run.tile0, run.tile0 + run.tiles)
        if before < halo:
            load_halo(x_sbuf[0 : run.rows, tiles, 0 : halo - before], operands, geometry, run, row, before)
        offset = row.image * geometry.x_n + run.c0 * geometry.x_c + (row.first + span.first - before) * geometry.x_t
        steps = (run.row_step * geometry.x_c, run.tile_step * geometry.x_c)
        into = x_sbuf[0 : run.rows, tiles, halo - before : halo + span.count]
        if geometry.x_t == 1:
            load_rows(into, operands.x, [[steps[0], run.rows], [steps[1], run.tiles], [1, columns]], offset)
        else:
            for tile in range(run.tiles):
                dst = into[0 : run.rows, tile, 0:columns]
                load_tokens(dst, operands.x, (geometry.x_t, steps[0]), offset + tile * steps[1])
    return x_sbuf


def load_halo(dst, operands, geometry, run, row, present):
    """Fill the halo before a row: zeros, or its state without the last `present` elements, which x provides."""
    if operands.state == None:
        nisa.memset(dst=dst, value=0.0, engine=nisa.engine.gpsimd)
        return
    size = geometry.S - 1
    pattern = [[run.row_step * size, run.rows], [run.tile_step * size, run.tiles], [1, size - present]]
    load_rows(dst, operands.state, pattern, (row.number * geometry.C + run.c0) * size + present)
