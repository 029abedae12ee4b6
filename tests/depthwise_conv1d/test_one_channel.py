"""`one_channel`, the baseline: as right as the others on every edge, and as plain as its name says."""

from collections import Counter

import numpy as np
import pytest
from depthwise import EDGE, arguments, integers, run, same_bits, truth
from tolerances import assert_exact

import nkiconv
from nkiconv.simulator import KernelAssertionError, execute

#: The largest edges take a DMA a row: minutes.
SMALL = [row for row in EDGE if row.N * row.C * row.S <= 2000]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.id)
def test_exact_on_integers(row, dtype):
    problem = row.problem(dtype)
    x, w = integers(np.random.default_rng(1), problem)
    y, _ = truth(x, w, problem)
    one, two = (run(x, w, problem, lnc, algorithm="one_channel") for lnc in (1, 2))
    assert_exact(one, y, dtype)
    assert same_bits(one, two)


def test_nearly_all_edges_are_tried():
    assert len(SMALL) >= len(EDGE) - 4


@pytest.mark.simulator_only
def test_one_row_a_load_and_one_column_a_matmul():
    problem = EDGE[0].problem("fp32").replace(N=2, C=3, K=3, groups=3, W=700, S=130)
    x, w = integers(np.random.default_rng(1), problem)
    kernel = nkiconv.depthwise_conv1d_implicit_gemm[1]
    kwargs = {**arguments(problem), "algorithm": "one_channel"}
    instructions = execute(kernel, (x, w), kwargs).instructions
    counts = Counter(i.op for i in instructions)
    q_tiles, tap_tiles = 2, 2  # 571 columns, 130 taps
    assert counts["nc_matmul"] == 2 * 3 * q_tiles * tap_tiles
    assert counts["dma_copy"] == 3 * tap_tiles + 2 * 3 * q_tiles * (130 + 1)
    assert {i.params["columns"] for i in instructions if i.op == "nc_matmul"} == {1}


@pytest.mark.simulator_only
def test_nonfinite_values_stay_in_their_channel():
    problem = EDGE[0].problem("fp32").replace(N=1, C=4, K=4, groups=4, W=30, S=3)
    x, w = integers(np.random.default_rng(1), problem)
    x[0, 2, 0, 10] = np.nan
    y = run(x, w, problem, 2, algorithm="one_channel")
    bad = np.argwhere(np.isnan(y))
    assert {tuple(i[:3]) for i in bad.tolist()} == {(0, 2, 0)}
    assert sorted(i[3] for i in bad.tolist()) == [8, 9, 10]


@pytest.mark.simulator_only
def test_too_many_instructions_are_refused_by_name():
    kernel = nkiconv.depthwise_conv1d_implicit_gemm[2]
    specs = nkiconv.spec((1, 8192, 1, 4096), "bf16"), nkiconv.spec((8192, 1, 1, 4093), "bf16")
    with pytest.raises(KernelAssertionError, match=r"one_channel needs up to 17\d* instructions"):
        execute(kernel, specs, {"algorithm": "one_channel"}, trace_only=True)


@pytest.mark.simulator_only
def test_an_unknown_algorithm_is_refused_by_name():
    with pytest.raises(KernelAssertionError, match=r"algorithm=fft: accepted are None and \('taps_on_partition'"):
        run(
            np.ones((1, 1, 1, 4), np.float32),
            np.ones((1, 1, 1, 2), np.float32),
            EDGE[0].problem("fp32").replace(N=1, C=1, K=1, groups=1, W=4, S=2),
            1,
            algorithm="fft",
        )
