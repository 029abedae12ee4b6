"""The benchmark of the simulator measures what it says: NumPy's twin of each instruction, and whole tables."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from nkiconv import simulator
from nkiconv.simulator import isa, language
from nkiconv.tools import bench
from nkiconv.tools.cli import app

pytestmark = pytest.mark.simulator_only


@pytest.fixture
def quick(monkeypatch):
    """One run of a small case, and few repetitions."""
    monkeypatch.setattr(bench, "CASES", ("nkl_pad_n1_c16_w512_s7",))
    monkeypatch.setattr(bench, "REPEATS", 3)
    monkeypatch.setattr(bench, "RUNS", 1)


@pytest.mark.usefixtures("quick")
def test_the_table_as_json():
    found = json.loads(CliRunner().invoke(app, ["bench-simulator", "--json"]).stdout)
    [case] = found["cases"]
    assert (case["num_instructions"] > 40, case["num_not_replayed"]) == (True, 0)
    assert case["instructions_per_second"] == pytest.approx(1e6 / case["simulated_us"])
    assert case["overhead_us"] == pytest.approx(case["simulated_us"] - case["numpy_us"])
    assert [one["name"] for one in found["instructions"]] == list(bench._SINGLES)
    assert all(one["numpy_us"] > 0 for one in found["instructions"])
    assert case["traced_us"] > 0
    assert (found["aim_us"], found["aim_traced_us"]) == (20, 10)


def test_instructions_without_a_twin_are_counted():
    @simulator.jit
    def kernel(x_hbm):
        x_sbuf = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.sbuf)
        isa.dma_copy(dst=x_sbuf, src=x_hbm)
        isa.reciprocal(dst=x_sbuf, data=x_sbuf)

    execution = simulator.execute(kernel, (np.ones((4, 8), np.float32),))
    steps, not_replayed = bench.numpy_steps(execution.instructions)
    assert (len(steps), not_replayed) == (1, 1)
