"""What holds for the timeline of any program, tried on random small ones."""

import itertools
from typing import NamedTuple

from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from timelines import DGE, ENGINE, FP32, HBM, PSUM, timed, touched

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

#: settings of a dma_copy, by who triggers it
WAYS = {
    "static": {"dge_mode": DGE.none}, "software": {"dge_mode": DGE.swdge},
    "sync": {"dge_mode": DGE.hwdge, "engine": ENGINE.sync}, "scalar": {"dge_mode": DGE.hwdge, "engine": ENGINE.scalar},
}  # fmt: skip
SLOTS = 3


class Step(NamedTuple):
    """An instruction: what, by whom, on which tiles, and every `step`-th column from `first` to the half or the end."""

    op: str
    way: str
    a: int
    b: int
    first: int = 0
    step: int = 1
    half: bool = False


def steps_of(op, ways):
    slot = st.integers(0, SLOTS - 1)
    return st.builds(
        Step, st.just(op), st.sampled_from(ways), slot, slot, slot, slot.map(lambda n: n + 1), st.booleans()
    )


COMPUTE = st.one_of(
    steps_of("copy", ("vector", "scalar", "gpsimd")),
    steps_of("drain", ("vector", "scalar")),
    steps_of("matmul", ("tensor",)),
)


def transfers(*ways):
    return st.one_of(steps_of("load", ways), steps_of("store", ways))


ANY = st.one_of(COMPUTE, transfers(*WAYS))


def kernel(steps, rows=128, columns=64):
    """A kernel body: steps on three SBUF tiles, three PSUM tiles and one output."""

    def body():
        sbuf = [nl.ndarray((rows, columns), FP32, nl.sbuf) for _ in range(SLOTS)]
        psum = [nl.ndarray((128, columns), FP32, PSUM) for _ in range(SLOTS)]
        out = nl.ndarray((SLOTS * rows, columns), FP32, HBM)
        for step in steps:
            part = slice(step.first, columns // 2 if step.half else columns, step.step)
            tile = sbuf[step.a][:, part]
            if step.op == "load":
                nisa.dma_copy(tile, nl.ndarray((rows, columns), FP32, HBM)[:, part], **WAYS[step.way])
            elif step.op == "store":
                nisa.dma_copy(out[rows * step.b : rows * step.b + rows, part], tile, **WAYS[step.way])
            elif step.op == "copy":
                nisa.tensor_copy(sbuf[step.b][:, part], tile, engine=ENGINE[step.way])
            elif step.op == "drain":
                nisa.tensor_copy(tile, psum[step.b][0:rows, part], engine=ENGINE[step.way])
            else:
                nisa.nc_matmul(psum[step.b][0:columns], sbuf[step.a], sbuf[step.a])

    return body


def all_bytes(regions):
    """(storage, byte) of every byte that regions meet."""
    return {(region.info.id, byte) for region in regions for byte in touched(region)}


@draws(80, 200)
@given(st.lists(ANY, min_size=2, max_size=8), st.sampled_from(["program", "lookahead"]), st.booleans())
def test_whoever_shares_a_byte_waits(steps, order, throttle):
    """By bytes, not by the dependencies that the code found; a write on the same engine only has to keep its place."""
    tasks, line = timed(kernel(steps, rows=4, columns=8), order=order, throttle=throttle, tasks=True)
    reads, writes = ([all_bytes(getattr(task, kind)) for task in tasks.source] for kind in ("reads", "writes"))
    for i, j in itertools.combinations(range(len(tasks)), 2):
        if writes[i] & reads[j]:
            assert line.start[j] > line.visible[i]
        elif writes[j] & (reads[i] | writes[i]):
            same = tasks.engine[i] == tasks.engine[j] and not tasks.is_dma[i] and not tasks.is_dma[j]
            assert line.start[j] > (line.start[i] if same else line.visible[i])


@draws(40, 200)
@given(st.lists(ANY, min_size=2, max_size=9), st.sampled_from(["program", "lookahead"]))
def test_no_engine_does_two_things_at_once(steps, order):
    tasks, line = timed(kernel(steps), order=order, tasks=True)
    for i, j in itertools.permutations(range(len(tasks)), 2):
        if tasks.engine[i] != tasks.engine[j] or (line.start[i], i) > (line.start[j], j):
            continue
        # behind a trigger its engine is free when it is issued; a trigger may follow an instruction that still runs
        behind = 7 if tasks.is_dma[j] and not tasks.is_dma[i] else line.free[i] - line.start[i]
        assert line.start[j] >= line.start[i] + behind - 1e-6


@draws(40, 200)
@given(st.lists(st.one_of(COMPUTE, transfers("sync")), min_size=1, max_size=8), COMPUTE)
def test_an_instruction_more_changes_nothing_before_it(steps, more):
    """The last of its engine's queue holds nobody up. Sync, which computes nothing, triggers all DMA."""
    _, before = timed(kernel(steps), tasks=True)
    _, after = timed(kernel([*steps, more]), tasks=True)
    assert after.visible[:-1] == before.visible
    assert max(after.visible) >= max(before.visible)
    if any(step.op in ("load", "store") for step in steps):
        assert after.total_ns == before.total_ns, "from the first DMA to the last"
