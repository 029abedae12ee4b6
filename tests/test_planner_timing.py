"""Times of candidates whose kernels loop on the device: iterations that were not recorded count everywhere."""

import pytest

from nkiconv.planner.timing import busiest_ns, phases
from nkiconv.simulator import ArraySpec, execute, iterations, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import PriceList, Rates

X = ArraySpec((128, 512), "bfloat16")


@jit
def looped(x, trips):
    """Products in a loop on the device, each of which waits for the one before it."""
    y = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(kept, x)

    def body(_):
        sums = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums, kept[:, 0:128], kept)
        nisa.tensor_copy(kept, sums)

    nl.fori_loop(0, trips, body)
    nisa.dma_copy(y, kept)
    return y


def timed(trips):
    rates = Rates()
    return in_time(execute(looped, (X, trips), {}, trace_only=True), rates, prices=PriceList(rates))


def test_phases_are_those_of_all_iterations(monkeypatch):
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 10**9)
    whole = timed(300)
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 256)
    short = timed(300)
    assert len(short.tasks) < len(whole.tasks) / 2
    found, all_of_them = (phases(each, 4).at_us for each in (short, whole))
    assert len(found) == len(all_of_them) > 1
    assert list(found.values()) == pytest.approx(list(all_of_them.values()), rel=0.02)


def test_the_least_time_is_that_of_all_iterations(monkeypatch):
    """No timeline is shorter than the busiest engine's work, which counts as often as it is done."""
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 10**9)
    whole = timed(300)
    monkeypatch.setattr(iterations, "RECORDED_INSTRUCTIONS", 256)
    least, least_of_all = (
        busiest_ns(program, PriceList(each.rates))
        for each in (timed(300), whole)
        for program in each.execution.programs
    )
    assert least == pytest.approx(least_of_all, rel=1e-6)
    assert least_of_all < whole.us * 1e3
