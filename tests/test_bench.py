"""The benchmark of the simulator measures what it says: NumPy's twin of each instruction, and whole tables."""

import json

import numpy as np
import pytest
from tolerances import assert_near
from typer.testing import CliRunner

from nkiconv import simulator
from nkiconv.simulator import isa, language
from nkiconv.tools import bench
from nkiconv.tools.cli import app
from nkiconv.tools.cli import bench as cli_bench

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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("load", "said"), [(3.0, True), (None, False)])
def test_the_table_says_that_the_machine_is_busy(monkeypatch, load, said):
    monkeypatch.setattr(cli_bench, "_load", lambda: load)
    result = CliRunner().invoke(app, ["bench-simulator"])
    assert result.exit_code == 0, result.output
    for text in ("10 us to trace", "tensor_copy", "tensor_tensor", "dma_copy", "nc_matmul", "activation"):
        assert text in result.stdout
    assert "no NumPy twin" not in result.stdout
    assert ("busy (load 3.0 a processor)" in result.stdout) is said


def test_instructions_without_a_twin_are_counted():
    @simulator.jit
    def kernel(x_hbm):
        x_sbuf = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.sbuf)
        isa.dma_copy(dst=x_sbuf, src=x_hbm)
        isa.reciprocal(dst=x_sbuf, data=x_sbuf)

    execution = simulator.execute(kernel, (np.ones((4, 8), np.float32),))
    steps, not_replayed = bench.numpy_steps(execution.instructions)
    assert (len(steps), not_replayed) == (1, 1)


def test_twins_do_the_arithmetic():
    """A matmul that adds, replayed on arrays of its own, is the matmul of what lies in them."""

    @simulator.jit
    def kernel(x_hbm, w_hbm):
        x_sbuf = language.ndarray(x_hbm.shape, dtype=x_hbm.dtype, buffer=language.sbuf)
        w_sbuf = language.ndarray(w_hbm.shape, dtype=w_hbm.dtype, buffer=language.sbuf)
        y_psum = language.ndarray((5, 8), dtype=language.float32, buffer=language.psum)
        isa.dma_copy(dst=x_sbuf, src=x_hbm)
        isa.dma_copy(dst=w_sbuf, src=w_hbm)
        for accumulate in (False, True):
            isa.nc_matmul(dst=y_psum, stationary=w_sbuf, moving=x_sbuf, accumulate=accumulate)

    arrays = np.ones((4, 8), np.float32), np.ones((4, 5), np.float32)
    first, second = simulator.execute(kernel, arrays).instructions[2:]
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((4, 5), np.float32), rng.standard_normal((4, 8), np.float32)
    y = np.full((5, 8), np.nan, np.float32)
    for instruction, times in ((first, 1), (second, 2)):
        bench._STEPS["nc_matmul"](instruction, y, [w, x])()
        assert_near(y, times * (w.astype(float).T @ x), 2 * 4, 2 * (np.abs(w).T @ np.abs(x)).max())
