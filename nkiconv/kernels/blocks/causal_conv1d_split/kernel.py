"""The loop of `causal_conv1d_split_heads`: token-major sums of depthwise filters, straight from the array.

    for each step: 128 tokens of up to 512 channels
        for each channel tile, tap s:
            psum[tokens, channels] += x[channels, tokens shifted by s].T @ diag(w[channels, s])
        z = act(psum + bias);  y = z, or z / sqrt(sum of z^2 over its head + eps);  store

A window of x is the stationary and a diagonal matrix of filters the moving operand: the sums arrive with tokens on the
partitions and channels along the free axis, which is how y lies in HBM, and the dim of a head is an axis to reduce.

Engine plan: Sync issues loads, SPANS_AHEAD spans ahead; GpSimd makes the diagonals of the next span, and issues stores;
Tensor sums, 128 columns a matmul, S matmuls a channel tile; Scalar reads a bank out through the activation; Vector and
GpSimd normalise (heads.py), stages of steps before. Bound by Tensor with S = 4 (893 ns a step against HBM's 733 in
bf16); with fewer taps by HBM.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches the channels of its tile, at most 128, at the tokens
that it meets.
"""

from dataclasses import dataclass

from ...._nki import nl
from ....schedules.split import build
from ..._engines import new_ledger
from ..._warm import warm_up, warm_zeros
from .loads import load_diagonals, load_head_bias, load_span
from .results import Results, advance_all, finish, sum_taps

#: Spans whose x is loaded before the step that needs them, besides the one at work.
SPANS_AHEAD = 3
#: Matmuls on zeros, of WARM_BLOCKS times 128 columns, while the first loads are on their way.
WARM_UPS, WARM_BLOCKS = 8, 4


@dataclass
class HeldSpan:
    """What SBUF has of a span, each None before and after it is needed: x; diagonals of each tile; bias."""

    x: object = None
    diagonals: object = None
    bias: object = None


@dataclass
class SplitRun:
    """One core's work on its way."""

    operands: object
    geometry: object
    plan: object
    held: list
    #: diagonals and bias of the groups that were met last, by group
    filters: dict
    warm: list
    out: Results
    loaded: int = 0


def convolve_heads(operands, geometry, epilogue, eps):
    """Write operands.parts."""
    plan = build(geometry, nl.num_programs(), nl.program_id(0))
    if len(plan.steps) == 0:
        return
    run = SplitRun(
        operands=operands,
        geometry=geometry,
        plan=plan,
        held=[HeldSpan() for _ in plan.spans],
        filters={},
        warm=warm_up(warm_zeros(), WARM_UPS, WARM_BLOCKS),
        out=Results(parts=operands.parts, epilogue=epilogue, eps=eps, ledger=new_ledger(), jobs=[]),
    )
    last = {step.span: index for index, step in enumerate(plan.steps)}
    for index, step in enumerate(plan.steps):
        while run.loaded < min(len(plan.spans), step.span + SPANS_AHEAD + 1):
            fetch(run, run.loaded)
            run.loaded = run.loaded + 1
        run_step(run, step)
        if last[step.span] == index:
            run.held[step.span] = None
    while run.out.jobs:
        advance_all(run.out)


def fetch(run, number):
    """Load a span; filters too, unless those of its group are there."""
    held, group = run.held[number], run.plan.spans[number].group
    if group not in run.filters:
        diagonals = load_diagonals(run.operands, run.geometry, group, number == 0, run.out.ledger)
        run.filters = {**dict(list(run.filters.items())[-1:]), group: (diagonals, load_head_bias(run.operands, group))}
    held.diagonals, held.bias = run.filters[group]
    held.x = load_span(run.operands, run.geometry, run.plan.spans[number])


def run_step(run, step):
    """Sum the taps of a step, normalise those of steps before, read the sums out."""
    held, span = run.held[step.span], run.plan.spans[step.span]

    def window(rows, tile, s):
        return held.x[0:rows, tile, step.first + s : step.first + s + step.count]

    sums_psum = sum_taps(run.warm, span.group, step.count, run.geometry.S, window, held.diagonals)
    advance_all(run.out)
    token = span.row.image * run.geometry.T + span.row.first + span.first + step.first
    finish(run.out, span.group, step.count, sums_psum, held.bias, 1, token)
