"""Bounds that order candidates: near the time of the timeline, for every algorithm."""

import pytest
from depthwise_images import depthwise

from nkiconv import cases
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Asked, Request
from nkiconv.problem import ConvProblem
from nkiconv.simulator.launch import execute
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
GEMM, PIXELS, K_PACKING, BLOCKS = "implicit_gemm", "activation_stationary", "stacked", "weight_stationary"


def case(name, **changes):
    return cases.get(name).problem.replace(**changes)


def last(name):
    return case(name, layout="NHWC")


def square(N, C, size, taps, stride=1, direction="forward", **more):
    """Depthwise squares."""
    around = ((taps // 2, taps // 2),) * 2
    problem = depthwise(C, N=N, H=size, W=size, R=taps, S=taps, stride=(stride, stride), padding=around, **more)
    return problem.toward(direction).replace(transposed=False)


def image(N, C, size, K, taps, stride=1, pad=0, dtype="bf16"):
    return ConvProblem(
        N=N, C=C, H=size[0], W=size[1], K=K, R=taps[0], S=taps[1], stride=(stride,) * 2, padding=((pad, pad),) * 2,
        dtype=dtype,
    )  # fmt: skip


#: Algorithm, how far off, relatively, and problems.
ROWS = {
    # at half rate for ever, at full rate in spite of few columns, shared by images unevenly, filters spread by Vector,
    # diagonals by GpSimd, filters cut smaller for room, rows twice
    "one matmul a tap": (GEMM, 0.2, [
        case("rn50_c4"), case("rn50_c3_s2"), case("rn50_1x1"), case("unet_320"), case("whisper_conv2_s2"),
        image(1, 707, (8, 8), 39, (3, 3), pad=1), image(2, 267, (9, 6), 39, (3, 3), pad=1), case("prime"),
        image(8, 400, (8, 8), 400, (3, 3), 2, 1).replace(groups=25),
        depthwise(873, N=4, H=15, W=15, R=3, S=1, stride=(2, 2), padding=((1, 1), (0, 0))),
        image(1, 782, (20, 30), 414, (5, 5), pad=2, dtype="fp32"),
        ConvProblem(N=4, C=155, H=31, W=31, K=56, R=3, S=1, padding=((1, 1), (0, 0)), dtype="fp32"),
    ]),
    "one matmul a tap, NHWC": (GEMM, 0.16, [last("rn50_c4"), last("rn50_c5"), last("unet_320"), last("deeplab_d12")]),
    # rn50_1x1's array falls back to half rate while it waits, which no bound sees
    "pixels": (PIXELS, 0.2, [last("rn50_1x1"), last("rn50_proj_s2"), last("rn50_c3_s2")]),
    "pixels of many channels": (PIXELS, 0.16, [last("rn50_c4"), last("unet_1280"), last("flux_vae_down")]),
    "rows of volumes": (PIXELS, 0.15, [case("wan_96", H=16), case("hunyuan_128", H=16)]),
    "blocks of channels": (PIXELS, 0.25, [
        square(32, 192, 28, 7), square(32, 192, 28, 7, layout="NHWC"), square(8, 144, 56, 5, 2),
        square(8, 96, 56, 7, dtype="fp32"), square(32, 144, 56, 5, 2, "dgrad", layout="NHWC"),
        square(32, 672, 14, 5, 2, "dgrad"),
    ]),
    # with N=4 the last one's array falls back to half rate while it waits for filters, which no bound sees
    "K packing": (K_PACKING, 0.2, [
        case("rn50_stem"), case("vit_patch16"), case("rect_filter"), image(2, 24, (112, 112), 16, (3, 3), pad=1),
        image(2, 1, (256, 256), 1, (3, 3)), image(4, 5, (256, 128), 32, (3, 3)),
        image(8, 12, (28, 33), 32, (3, 3), pad=1), image(8, 80, (28, 28), 128, (9, 3), pad=4),
        image(1, 16, (64, 64), 16, (31, 31), pad=15),
        image(4, 3, (112, 112), 256, (8, 8), 8), image(8, 16, (28, 28), 48, (3, 3), 2, dtype="fp32"),
        image(1, 1, (9, 9), 1, (3, 3), pad=1, dtype="fp32"), image(16, 121, (21, 13), 38, (5, 1), 2, dtype="fp32"),
    ]),
    # of the last but one stores alone, short runs of them, take longer than all else
    "depthwise K packing": (K_PACKING, 0.17, [
        square(1, 192, 56, 7), square(8, 384, 14, 3), square(4, 64, 64, 5), square(8, 96, 28, 7, dtype="fp32"),
        square(8, 384, 14, 7), square(8, 192, 28, 7, 2),
    ]),
    "copies as NCHW": (None, 0.16, [last("rn50_stem"), last("mult2_dw"), last("vae_out_rgb"), last("resnext_g32")]),
    "winograd": (GEMM, 0.15, [case("wan_384", H=24), case("hunyuan_128", H=16)]),
}  # fmt: skip


@pytest.mark.cover(6)
@pytest.mark.parametrize(("why", "place"), [(why, place) for why in ROWS for place in range(len(ROWS[why][2]))])
def test_bounds_are_near_the_timeline(why, place):
    algorithm, off, problems = ROWS[why]
    precision = why if why == "winograd" else None
    request = Request(problem=problems[place], asked=Asked(precision=precision))
    operation = operation_for(request)
    shape = operation.shape(request, Rates())
    config = None
    if algorithm is None:
        algorithm, config = operation.choice(request, shape)
    guess = operation.known[algorithm].guess(shape, config)
    launch = operation.launch(request, algorithm, guess.config)
    timed = in_time(execute(operation.kernel[2], *launch, trace_only=True), Rates())
    assert guess.ns == pytest.approx(timed.line.total_ns, rel=off)
