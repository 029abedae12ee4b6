"""Settings as the host completes them: all that an algorithm has, the given ones among them, and its kernel runs so."""

import re

import pytest
from conv_calls import EDGE, planned
from depthwise_images import DEPTHWISE_IMAGES
from implicit_gemm_calls import FOLDED, LINE, M_TILES, STRIDED

from nkiconv import cases
from nkiconv.planner.operations import OPERATIONS, operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.problem import ConvProblem
from nkiconv.schedules import activation_stationary, stacked, weight_stationary
from nkiconv.schedules.implicit_gemm import ImplicitGemmSettings
from nkiconv.schedules.settings import WARM_UP_MAX, declarations
from nkiconv.simulator.timing import Rates

CONV2D = OPERATIONS["conv2d"]
ONE = ((1, 1), (1, 1))
GEMM, PIXELS, K_PACKING, BLOCKS = "implicit_gemm", "activation_stationary", "stacked", "weight_stationary"
FP8 = ConvProblem(N=2, C=320, H=11, W=20, K=130, R=3, S=3, padding=ONE, dtype="fp8_e4m3")
RGB = ConvProblem(N=1, C=130, H=23, W=19, K=3, R=3, S=3, padding=ONE)
FEW = ConvProblem(N=5, C=16, H=15, W=6, K=64, R=3, S=3, padding=((1, 2), (1, 1)))
GROUPS = ConvProblem(N=3, C=35, H=11, W=9, K=21, R=3, S=2, groups=7, stride=(2, 1), padding=((0, 2), (1, 0)))
FOLDED_ROWS = ConvProblem(N=3, C=10, H=24, W=13, K=33, R=4, S=3, padding=((1, 2), (1, 1)), layout="NHWC")
VOLUME = ConvProblem(N=1, C=8, D=5, H=6, W=7, K=4, T=3, R=3, S=3)
TORCH = ConvProblem(N=2, C=6, H=5, W=7, K=5, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2),) * 2, transposed=True)
#: Algorithm, problem, precision, settings that are given, settings that are refused.
ROWS = {
    "one tap": (GEMM, STRIDED, None, [{}, {"moved": 2, "x_bytes": 2048}], [{"moved": -1}, {"tiles": 1}]),
    "M tiles": (GEMM, M_TILES, None, [{}, {"loop": 0, "order": "banks"}], [{"order": 1}, {"loop": -1}]),
    "rows": (GEMM, LINE, None, [{}, {"shard": "images", "warmup": 0}], [{"warmup": -1}]),
    "folded": (GEMM, FOLDED["both"], None, [{}, {"fold": "inputs"}], [{"fold": "all"}]),
    "fp8": (
        GEMM, FP8, None,
        [{}, {"product": "fp8_halves", "x_bytes": 3000}, {"product": "fp8_staged", "shard": "channels"},
         {"product": "fp8_pairs", "fold": "none", "warmup": 0}],
        [{"product": "two"}],
    ),
    "fp16x3": (GEMM, M_TILES.replace(dtype="fp32"), "fp16x3", [{}, {"shard": "channels"}, {"fold": "none"}], []),
    "pixels": (
        PIXELS, M_TILES.replace(layout="NHWC"), None,
        [{}, {"shard": "channels", "filter_bytes": 1500}, {"side": 1, "warmup": 3}, {"side": 11, "x_bytes": 2000}],
        [{"rows": 3}, {"side": 2}],
    ),
    "pixels of several rows": (
        PIXELS, FOLDED_ROWS, None,
        [{"fold": 2}, {"fold": 4, "side": 13}], [],
    ),
    "rows of volumes": (
        PIXELS, VOLUME, None, [{}, {"depth": 1, "copies": 3}],
        [{"depth": 0}, {"copies": 17}, {"warmup": 300}, {"segments": 2}, {"fold": 1}],
    ),
    "blocks of channels": (
        PIXELS, DEPTHWISE_IMAGES["both strides"], None, [{}, {"buffers": 3}, {"together": 2}, {"channels": 1}], [],
    ),
    "K packing": (
        K_PACKING, FEW, None, [{}, {"warmup": 20}, {"blocks": 1}, {"filters": "straight"}], [{"rows": 3, "outputs": 2}],
    ),
    "K packing of patches": (K_PACKING, cases.get("vit_patch16").problem, None, [{}, {"blocks": 1}], []),
    "depthwise K packing": (
        K_PACKING, DEPTHWISE_IMAGES["dilation"], None, [{}, {"warmup": 20}, {"together": 2}, {"channels": 1}],
        [{"rows": 2}],
    ),
    "groups": (
        BLOCKS, GROUPS, None, [{}, {"warmup": 7}, {"rows": 64, "height": 1, "width": 2}],
        [{"rows": 32}, {"columns": 3}, {"warmup": -1}],
    ),
    "M packing": (
        BLOCKS, RGB, None, [{"lanes": 1}, {"outputs": 5, "taps": 3, "x_bytes": 256}],
        [{"outputs": 2}, {"rows": 3}, {"outputs": 43, "taps": 1}],
    ),
    "phases": (BLOCKS, TORCH, None, [{}, {"shard": "channels", "channels": 3}], [{"beside": "all"}, {"together": 7}]),
}  # fmt: skip


#: The dataclass of the settings that an algorithm has for a problem and some given ones.
KINDS = {
    GEMM: lambda *_: ImplicitGemmSettings,
    PIXELS: lambda geometry, _: activation_stationary.settings_of(geometry),
    K_PACKING: lambda geometry, _: stacked.DepthwiseSettings if geometry.groups > 1 else stacked.StackedSettings,
    BLOCKS: weight_stationary.settings_class,
}


def asked_of(name):
    """What the host knows of the algorithm, the shape and the settings of a row."""
    algorithm, problem, precision, given, refused = ROWS[name]
    request = Request(problem=problem, asked=Asked(precision=precision))
    operation = operation_for(request)
    return operation, algorithm, operation.shape(request, Rates()), given, refused


@pytest.mark.parametrize("name", ROWS)
def test_all_settings_are_completed_once(name):
    operation, algorithm, shape, several, _ = asked_of(name)
    for settings in several:
        given = tuple(settings.items()) or None
        found = operation.complete(algorithm, shape, given)
        assert tuple(dict(found)) == tuple(declarations(KINDS[algorithm](shape.geometry, given)))
        assert settings.items() <= dict(found).items()
        assert operation.complete(algorithm, shape, found) == found
        assert operation.complete(algorithm, shape, tuple(reversed(found))) == found
        assert operation.unsupported_reason(algorithm, shape, found) == ""


@pytest.mark.parametrize("name", ROWS)
def test_settings_that_are_refused_stay_as_they_are(name):
    operation, algorithm, shape, _, several = asked_of(name)
    for settings in several:
        given = tuple(settings.items())
        assert operation.complete(algorithm, shape, given) == given
        setting = next(iter(settings))
        reason = operation.unsupported_reason(algorithm, shape, given)
        assert re.search(rf"(config |no setting |\(\('){setting}", reason)


def test_matmuls_on_zeros_are_no_more_than_a_kernel_takes():
    request = Request(problem=ConvProblem(N=1, C=128, H=48, W=48, K=32, R=16, S=16))
    operation = operation_for(request)
    shape = operation.shape(request, Rates())
    found = operation.complete(BLOCKS, shape, (("lanes", 1),))
    assert dict(found)["warmup"] == WARM_UP_MAX
    assert operation.unsupported_reason(BLOCKS, shape, found) == ""


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
        found.append(operation.algorithm(algorithm).guesses(operation.shape(request, Rates(one)))[0])
    assert found[0].ns != found[1].ns
    if setting is not None:
        assert dict(found[0].config)[setting] == usual != dict(found[1].config)[setting]


@pytest.mark.cover(20)
@pytest.mark.parametrize("why", EDGE)
def test_a_bare_kernel_runs_what_the_host_finds_settings_for(why):
    for algorithm in (PIXELS, BLOCKS):
        problem = EDGE[why].replace(layout="NHWC" if algorithm == PIXELS else "NCHW")
        request = Request(problem=problem, operation="conv2d")
        found = CONV2D.complete(algorithm, CONV2D.shape(request, Rates()), None)
        assert (planned(problem, algorithm, found)[0] is None) == (planned(problem, algorithm)[0] is None)
