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

from ...._nki import nisa, nl
from ....schedules.split import build
from ..._dma import store
from ..._engines import Ledger, new_ledger
from ..._epilogue import evacuate
from ..._warm import accumulator, warm_up, warm_zeros
from .heads import NormJob, advance
from .loads import load_diagonals, load_head_bias, load_span, partitions_of

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
    epilogue: object
    eps: float
    plan: object
    ledger: Ledger
    held: list
    #: diagonals and bias of the groups that were met last, by group
    filters: dict
    #: NormJobs, oldest first
    jobs: list
    warm: list
    loaded: int = 0


def convolve_heads(operands, geometry, epilogue, eps):
    """Write operands.parts."""
    plan = build(geometry, nl.num_programs(), nl.program_id(0))
    if len(plan.steps) == 0:
        return
    run = SplitRun(
        operands=operands,
        geometry=geometry,
        epilogue=epilogue,
        eps=eps,
        plan=plan,
        ledger=new_ledger(),
        held=[HeldSpan() for _ in plan.spans],
        filters={},
        jobs=[],
        warm=warm_up(warm_zeros(), WARM_UPS, WARM_BLOCKS),
    )
    last = {step.span: index for index, step in enumerate(plan.steps)}
    for index, step in enumerate(plan.steps):
        while run.loaded < min(len(plan.spans), step.span + SPANS_AHEAD + 1):
            fetch(run, run.loaded)
            run.loaded = run.loaded + 1
        sums_psum = sum_taps(run, step)
        advance_all(run)
        finish(run, step, sums_psum)
        if last[step.span] == index:
            run.held[step.span] = None
    while run.jobs:
        advance_all(run)


def fetch(run, number):
    """Load a span; filters too, unless those of its group are there."""
    held, group = run.held[number], run.plan.spans[number].group
    if group not in run.filters:
        diagonals = load_diagonals(run.operands, run.geometry, group, number == 0, run.ledger)
        run.filters = {**dict(list(run.filters.items())[-1:]), group: (diagonals, load_head_bias(run.operands, group))}
    held.diagonals, held.bias = run.filters[group]
    held.x = load_span(run.operands, run.geometry, run.plan.spans[number])


def sum_taps(run, step):
    """The sums of a step in PSUM: [tokens, tiles, partitions], or [tokens, channels] where tiles are of neighbours."""
    held, group, S = run.held[step.span], run.plan.spans[step.span].group, run.geometry.S
    shape = (step.count, group.tiles, partitions_of(group)) if group.strided else (step.count, group.count)
    acc_psum, started = accumulator(run.warm, shape)
    for one in group.runs:
        for tile in range(one.tile0, one.tile0 + one.tiles):
            if group.strided:
                dst = acc_psum[0 : step.count, tile, 0 : one.rows]
            else:
                first = tile * nl.tile_size.pmax
                dst = acc_psum[0 : step.count, first : first + one.rows]
            for s in range(S):
                nisa.nc_matmul(
                    dst=dst,
                    stationary=held.x[0 : one.rows, tile, step.first + s : step.first + s + step.count],
                    moving=held.diagonals[tile][0 : one.rows, s, 0 : one.rows],
                    accumulate=started or s > 0,
                )
    return acc_psum


def finish(run, step, sums_psum):
    """Sums through the epilogue, and to HBM, or to those that are to be normalised."""
    span, held, count = run.plan.spans[step.span], run.held[step.span], step.count
    group = span.group
    y_hbm = run.operands.parts[group.part]
    y_sbuf = nl.ndarray((count, group.count), dtype=y_hbm.dtype, buffer=nl.sbuf)
    z_sbuf = nl.ndarray((count, group.count), dtype=nl.float32, buffer=nl.sbuf) if group.heads > 0 else y_sbuf
    into, bias = z_sbuf, None if held.bias is None else held.bias[0:count, 0 : group.count]
    if group.strided:
        by_tile = (partitions_of(group), group.tiles)
        into, sums_psum = into.reshape_dim(1, by_tile), sums_psum.permute((0, 2, 1))
        bias = None if bias is None else bias.reshape_dim(1, by_tile)
    evacuate(into, sums_psum, bias, None, run.epilogue, run.ledger)
    channels = y_hbm.shape[2] * y_hbm.shape[3]
    token = span.row.image * run.geometry.T + span.row.first + span.first + step.first

    def leave():
        store(y_sbuf, y_hbm, [[channels, count], [1, group.count]], token * channels + group.first)

    if group.heads == 0:
        leave()
        return
    by_head = (group.heads, group.count // group.heads)
    z, y = (one.reshape_dim(1, by_head) for one in (z_sbuf, y_sbuf))
    run.jobs.append(NormJob(z=z, y_sbuf=y, eps=run.eps, ledger=run.ledger, store=leave))


def advance_all(run):
    """One more stage of each job, oldest first."""
    run.jobs = [job for job in run.jobs if advance(job)]
