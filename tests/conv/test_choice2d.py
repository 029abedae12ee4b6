"""The choice by cost models, against the modelled times of all algorithms.

Every algorithm runs with settled settings, on two cores; `make test-all` looks at all named cases, `make choice` at
random problems.
"""

import pytest
from choices import SAME, times_slower
from depthwise_images import depthwise

from nkiconv import cases
from nkiconv.planner.estimate import chosen
from nkiconv.planner.request import Asked, Request
from nkiconv.schedules.implicit_gemm import FP8_PRODUCTS

pytestmark = pytest.mark.simulator_only
#: One of each kind, small enough for seconds.
SOME = ("rn50_c2", "rn50_c3_s2", "mobilenet_dw", "mult2_dw", "whisper_conv1", "rect_filter", "prime", "fp16", "c1k1")


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", SOME)
def test_named_cases(name):
    assert times_slower(cases.get(name).problem, "conv2d") <= SAME


def case(name, **changes):
    return cases.get(name).problem.replace(**changes)


def square(C, N, size, taps, stride=1, **more):
    around = ((taps // 2, taps // 2),) * 2
    return depthwise(C, N=N, H=size, W=size, R=taps, S=taps, stride=(stride, stride), padding=around, **more)


#: Algorithm, problems that it is chosen for, problems that it is not. Depthwise: a layer of ConvNeXt, one of
#: EfficientNet, the gradient of x of a strided one; few images, whose matrices take longer than they save.
CHOSEN = {
    "stacked": (
        [case("rn50_stem"), case("rn50_c2"), case("vit_patch16"), case("big_filter"), case("convnext_dw7", N=4),
         square(192, 4, 56, 21)],
        [case("c256_224"), case("rn50_1x1"), case("resnext_g32"), case("mobilenet_dw"), case("mult2_dw")],
    ),
    "weight_stationary": (
        [case("resnext_g32"), case("mobilenet_dw"), case("mult2_dw"), case("vae_out_rgb")],
        [case("convnext_dw7"), case("rn50_c2"), case("vae_128"), case("rn50_stem")],
    ),
    "activation_stationary": (
        [square(192, 32, 56, 7), square(192, 8, 56, 7, layout="NHWC"), square(240, 16, 28, 5, layout="NHWC"),
         square(144, 32, 56, 5, 2).toward("dgrad")],
        [square(768, 1, 7, 7)],
    ),
    "implicit_gemm": (
        [case(name, dtype="fp8_e4m3") for name in ("vae_128", "unet_320", "rn50_c5", "rn50_1x1")],
        [case(name, dtype="fp8_e4m3") for name in ("mobilenet_dw", "resnext_g32", "c1k1")],
    ),
}  # fmt: skip


@pytest.mark.cover(1)
@pytest.mark.parametrize("algorithm", CHOSEN)
def test_algorithms_are_chosen_where_they_pay(algorithm):
    for taken, problems in zip((True, False), CHOSEN[algorithm], strict=True):
        for problem in problems:
            found = chosen(Request(problem=problem))
            assert (found.algorithm == algorithm) == taken, problem
            if algorithm == "implicit_gemm" and taken:
                assert dict(found.config)["product"] in FP8_PRODUCTS
    assert dict(chosen(Request(problem=case("vae_128"))).config)["product"] == "single"
    for name in ("c256_32x16", "rn50_stem", "mobilenet_dw"):
        pairs = Request(problem=case(name, dtype="fp32"), asked=Asked(precision="fp16x3"))
        assert chosen(pairs).algorithm == "implicit_gemm"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [one.name for one in cases.load("conv2d") if one.name not in SOME])
def test_every_other_named_case(name):
    assert times_slower(cases.get(name).problem, "conv2d") <= SAME
