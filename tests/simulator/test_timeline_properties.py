"""What holds for the timeline of any program, tried on random small ones; and the exceptions, one test each.

Engines that take turns by who is ready first are known for anomalies: more work or an earlier operand may let a better
order happen, or a worse one. Where a property has such exceptions, its programs are restricted and the reason is given.
"""

import itertools
from typing import NamedTuple

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from pairs import run
from timelines import DGE, ENGINE, FP32, HBM, PSUM, touched

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
from nkiconv.simulator.timing import PriceList, Rates

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


def kernel(steps, rows=128, columns=64, own=(), named=False):
    """A kernel body: steps on three SBUF tiles, three PSUM tiles and one output; those in `own` on fresh tensors."""

    def shared(shape, buffer=nl.sbuf):
        return [nl.ndarray(shape, FP32, buffer) for _ in range(SLOTS)]

    def body():
        makers = (lambda: shared((rows, columns))), (lambda: shared((128, columns), PSUM))
        common = *(make() for make in makers), nl.ndarray((SLOTS * rows, columns), FP32, HBM)
        for i, step in enumerate(steps):
            sbuf, psum, out = common
            if i in own:
                sbuf, psum = (make() for make in makers)
                out = nl.ndarray((SLOTS * rows, columns), FP32, HBM)
            emit(step, sbuf, psum, out, {"name": f"step{i}"} if named else {})

    def emit(step, sbuf, psum, out, name):
        part = slice(step.first, columns // 2 if step.half else columns, step.step)
        tile = sbuf[step.a][:, part]
        if step.op == "load":
            nisa.dma_copy(tile, nl.ndarray((rows, columns), FP32, HBM)[:, part], **WAYS[step.way], **name)
        elif step.op == "store":
            nisa.dma_copy(out[rows * step.b : rows * step.b + rows, part], tile, **WAYS[step.way], **name)
        elif step.op == "copy":
            nisa.tensor_copy(sbuf[step.b][:, part], tile, engine=ENGINE[step.way], **name)
        elif step.op == "drain":
            nisa.tensor_copy(tile, psum[step.b][0:rows, part], engine=ENGINE[step.way], **name)
        else:
            nisa.nc_matmul(psum[step.b][0:columns], sbuf[step.a], sbuf[step.a], **name)

    return body


def timed(body, overrides=None, *, throttle=False, **options):
    rates = Rates(overrides)
    tasks, prices = tl.build(run(body, trace_only=True).programs, PriceList(rates))
    return tasks, tl.run(tasks, prices, rates, tl.Options(throttle=throttle, **options))


def end(line):
    """When the last result is visible; unlike total_ns, the same thing with and without DMA in a program."""
    return max(line.visible)


# Order.


def all_bytes(regions):
    """(storage, byte) of every byte that regions meet."""
    return {(region.info.id, byte) for region in regions for byte in touched(region)}


@draws(80, 200)
@given(st.lists(ANY, min_size=2, max_size=8), st.sampled_from(["program", "lookahead"]), st.booleans())
def test_whoever_shares_a_byte_waits(steps, order, throttle):
    """By bytes, not by the dependencies that the code found; a write on the same engine only has to keep its place."""
    tasks, line = timed(kernel(steps, rows=4, columns=8), order=order, throttle=throttle)
    reads, writes = ([all_bytes(getattr(task, kind)) for task in tasks.source] for kind in ("reads", "writes"))
    for i, j in itertools.combinations(range(len(tasks)), 2):
        if writes[i] & reads[j]:
            assert line.start[j] > line.visible[i]
        elif writes[j] & (reads[i] | writes[i]):
            same = tasks.engine[i] == tasks.engine[j] and not tasks.is_dma[i] and not tasks.is_dma[j]
            assert line.start[j] > (line.start[i] if same else line.visible[i])


#: ns from a result to whoever waits for it, by the consumer's place in ENGINES; a DMA's result takes longer
HOPS, SAME, TRIGGER, DMA = (52, 38, 37, 38), 35, 32, 380


@draws(80, 200)
@given(st.lists(ANY, min_size=2, max_size=9), st.booleans())
def test_every_task_starts_a_hop_after_its_waits(steps, throttle):
    tasks, line = timed(kernel(steps), throttle=throttle)
    for producer, followers in enumerate(tasks.followers):
        for task in followers:
            hop = HOPS[tasks.engine[task]] if not tasks.is_dma[task] else TRIGGER
            if tasks.is_dma[producer]:
                hop = DMA
            elif not tasks.is_dma[task] and tasks.engine[task] == tasks.engine[producer]:
                hop = SAME
            if tasks.source[task].engine == "tensor" and throttle:
                hop -= 19  # the first rows after a pause enter at full rate
            assert line.start[task] >= line.visible[producer] + hop - 1e-6
        for task in tasks.not_before[producer]:
            assert line.start[task] > line.start[producer]


@draws(80, 200)
@given(st.lists(ANY, min_size=2, max_size=9), st.sampled_from(["program", "lookahead"]))
def test_no_engine_does_two_things_at_once(steps, order):
    tasks, line = timed(kernel(steps), order=order)
    for i, j in itertools.permutations(range(len(tasks)), 2):
        if tasks.engine[i] != tasks.engine[j] or (line.start[i], i) > (line.start[j], j):
            continue
        # behind a trigger its engine is free when it is issued; a trigger may follow an instruction that still runs
        behind = 7 if tasks.is_dma[j] and not tasks.is_dma[i] else line.free[i] - line.start[i]
        assert line.start[j] >= line.start[i] + behind - 1e-6


# Nothing else matters.


@draws(40, 100)
@given(st.lists(ANY, min_size=1, max_size=9), st.sampled_from(["program", "lookahead"]), st.booleans())
def test_names_and_repetition_change_nothing(steps, order, throttle):
    def times(named):
        line = timed(kernel(steps, named=named), order=order, throttle=throttle)[1]
        return line.start, line.free, line.visible, line.arrival, line.total_ns, line.throttle_changes

    assert times(named=True) == times(named=False) == times(named=False)


# More work takes longer.


@draws(80, 200)
@given(st.lists(st.one_of(COMPUTE, transfers("sync")), min_size=1, max_size=8), COMPUTE)
def test_an_instruction_more_changes_nothing_before_it(steps, more):
    """The last of its engine's queue holds nobody up. Sync, which computes nothing, triggers all DMA: see below."""
    _, before = timed(kernel(steps))
    _, after = timed(kernel([*steps, more]))
    assert after.visible[:-1] == before.visible
    assert end(after) >= end(before)
    if any(step.op in ("load", "store") for step in steps):
        assert after.total_ns == before.total_ns, "from the first DMA to the last"


@draws(40, 100)
@given(st.lists(COMPUTE, min_size=1, max_size=8), ANY)
def test_an_instruction_more_never_shortens_a_program_without_dma(steps, more):
    assert end(timed(kernel([*steps, more]))[1]) >= end(timed(kernel(steps))[1])


@draws(40, 100)
@given(st.lists(transfers(*WAYS), min_size=1, max_size=7), st.sampled_from([8, 32, 128]))
def test_twice_the_bytes_are_never_faster(steps, columns):
    """Of transfers that do not wait for each other, else queues may change their order; of elements above 4 bytes."""
    own = range(len(steps))
    once, twice = (timed(kernel(steps, columns=n, own=own))[1].total_ns for n in (columns, 2 * columns))
    assert twice >= once


def test_elements_of_4_bytes_are_slower_than_of_8():
    """The traces' 55 ns for 2 to 4 bytes, against 10 to 12 for the next larger: a column alone costs more than two."""
    one, two = (timed(kernel([Step("load", "sync", 0, 0)], columns=n))[1].total_ns for n in (1, 2))
    assert one - two == pytest.approx(8 * (55 - 10.5))


# Fewer dependencies take no longer.


@draws(80, 200)
@given(st.sampled_from(["vector", "gpsimd"]), st.data(), st.sets(st.integers(3, 10)))
def test_tiles_of_its_own_never_hold_a_program_up(engine, data, own):
    """Three loads, then compute of which some is on tiles of its own, then a store.

    Not with DMA in between, which may overtake, nor with Vector's cold start, nor with Vector and GpSimd both, which
    take turns at a port: see below.
    """
    others = ("scalar",) if engine == "gpsimd" else ("vector", "scalar")
    compute = st.one_of(
        steps_of("copy", (engine, "scalar")), steps_of("drain", others), steps_of("matmul", ("tensor",))
    )
    steps = data.draw(st.lists(compute, min_size=1, max_size=8))
    loads = [Step("load", "static", slot, 0) for slot in range(SLOTS)]
    program = [*loads, *steps, Step("store", "static", 0, 0)]
    no_cold_start = {"vector.cold_start_ns": 0}
    together, apart = (timed(kernel(program, own=which), no_cold_start)[1] for which in ((), own))
    assert end(apart) <= end(together) + 1e-6
    assert apart.total_ns <= together.total_ns + 1e-6


# The throttle.
