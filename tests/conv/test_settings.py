"""Settings as the host finds them follow the rates, and a bare kernel runs where the host finds some."""

import pytest
from conv_calls import EDGE, planned
from implicit_gemm_calls import M_TILES

from nkiconv import cases
from nkiconv.planner.operations import OPERATIONS, operation_for
from nkiconv.planner.request import Request
from nkiconv.simulator.timing import Rates

CONV2D = OPERATIONS["conv2d"]
GEMM, PIXELS, BLOCKS = "implicit_gemm", "activation_stationary", "weight_stationary"


#: Rates that change what is best: a setting, and what it is by trn2's rates and by these.
FOLLOWED = {
    "fp8 that DMA packs slowly": (
        GEMM, cases.get("vae_128").problem.replace(dtype="fp8_e4m3"),
        {"dma.element_overhead_ns": 500.0, "dma.hbm_shared_gbps": 10.0}, "product", "fp8_halves",
    ),
    "fp8 that DMA packs fast": (
        GEMM, cases.get("rn50_c2").problem.replace(dtype="fp8_e4m3"),
        {"dma.small_element_ns": 0.1, "dma.element_overhead_ns": 0.1}, "product", "fp8_staged",
    ),
    "long matmuls of row tiles": (
        BLOCKS, cases.get("resnext_g32").problem, {"pe.row_tile_interval_rows": 1000.0}, "rows", 32,
    ),
    "fast matmuls": (GEMM, cases.get("rn50_c5").problem, {"pe.cyc_per_row_16bit": 0.3}, None, None),
    "a slow clock": (PIXELS, M_TILES.replace(layout="NHWC"), {"clock.pe_ghz": 0.6}, None, None),
}  # fmt: skip


@pytest.mark.parametrize("why", FOLLOWED)
def test_settings_and_bounds_follow_the_rates(why):
    algorithm, problem, rates, setting, usual = FOLLOWED[why]
    request, found = Request(problem=problem), []
    for one in ({}, rates):
        operation = operation_for(request)
        found.append(operation.known[algorithm].guesses(operation.shape(request, Rates(one)))[0])
    assert found[0].ns != found[1].ns
    if setting is not None:
        assert dict(found[0].config)[setting] == usual != dict(found[1].config)[setting]


@pytest.mark.cover(8)
@pytest.mark.parametrize("why", EDGE)
def test_a_bare_kernel_runs_what_the_host_finds_settings_for(why):
    for algorithm in (PIXELS, BLOCKS):
        problem = EDGE[why].replace(layout="NHWC" if algorithm == PIXELS else "NCHW")
        request = Request(problem=problem, operation="conv2d")
        found = CONV2D.complete(algorithm, CONV2D.shape(request, Rates()), None)
        assert (planned(problem, algorithm, found)[0] is None) == (planned(problem, algorithm)[0] is None)
