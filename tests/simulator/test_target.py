"""What cost models ask of trn2 follows the constants of one question, and is what the timing model charges."""

import dataclasses

import pytest

from nkiconv.simulator.timing import Rates, hbm_ns
from nkiconv.simulator.timing.target import Target

pytestmark = pytest.mark.simulator_only
RATES = Rates()
TARGET = Target.of(RATES)


def test_every_price_is_known():
    assert all(value > 0 for value in dataclasses.asdict(TARGET).values())


@pytest.mark.parametrize("run_bytes", [64, 2048, 4096, 16384])
def test_hbm_traffic_is_that_of_each_of_two_cores(run_bytes):
    assert TARGET.hbm_ns(10**6, run_bytes) == pytest.approx(2 * hbm_ns(10**6, run_bytes, RATES))


@pytest.mark.parametrize(
    ("num_bytes", "name"), [(2, "dma.tiny_element_ns"), (4, "dma.tiny_element_ns"), (64, "dma.small_element_ns")]
)
def test_short_runs_have_floors(num_bytes, name):
    assert TARGET.run_ns(num_bytes) == RATES(name)


def test_long_runs_are_an_element_and_their_bytes():
    expected = RATES("dma.element_overhead_ns") + 4096 / RATES("dma.engine_bytes_per_ns")
    assert TARGET.run_ns(4096) == TARGET.row_ns(2048, 1, 2) == pytest.approx(expected)
    assert TARGET.row_ns(2048, 3, 2) == 2048 * TARGET.run_ns(2)


@pytest.mark.parametrize(
    ("constant", "field"),
    [("scalar.ns_per_elem", "scalar_ns"), ("throttle.half_rate", "half_rate"), ("dma.sem_write_ns", "dma_end_ns")],
)
def test_overrides_move_it(constant, field):
    moved = Target.of(Rates({constant: RATES(constant) / 2}))
    assert getattr(moved, field) == getattr(TARGET, field) / 2
    assert TARGET == Target.of(Rates())
