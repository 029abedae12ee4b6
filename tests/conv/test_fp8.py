"""Products of fp8 in pairs: exact for every geometry that they take, every dtype and setting, chosen where they pay."""

import itertools
import re

import numpy as np
import pytest
from conv_calls import (
    EDGE,
    NL,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    integers,
    planned,
    run,
    trace,
)
from draws import cores
from tolerances import assert_exact

from nkiconv import conv2d, depthwise_conv1d, pack_filter
from nkiconv.errors import DtypeError
from nkiconv.planner.conv import Conv2d
from nkiconv.planner.request import Request
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.schedules.implicit_gemm import FP8_PRODUCTS
from nkiconv.simulator.timing import Rates

FP8 = ("fp8_e4m3", "fp8_e5m2")
MIXES = [*itertools.product(FP8, FP8)]
SAME = ((1, 1), (1, 1))
#: Integers up to here, and the sums of 2000 products of them, are exact.
LARGEST = {"fp8_e4m3": 16, "fp8_e5m2": 8}
ROWS = {
    "one chunk": ConvProblem(N=1, C=128, H=9, W=130, K=8, R=3, S=3, padding=SAME),
    "one chunk, one tap": ConvProblem(N=2, C=128, H=9, W=13, K=8, S=1),
    "one chunk, the last tap meets all": ConvProblem(N=2, C=128, H=9, W=13, K=8, S=3),
    "one chunk, causal": ConvProblem(N=2, C=128, H=9, W=13, K=8, R=3, S=3, padding=((2, 0), (2, 0))),
    "two chunks": ConvProblem(N=2, C=256, H=9, W=17, K=140, R=3, S=3, padding=SAME),
    "two chunks, one tap": ConvProblem(N=2, C=200, H=9, W=17, K=9, S=1),
    "two chunks with a channel in both": ConvProblem(N=1, C=129, H=7, W=20, K=6, R=3, S=2, padding=SAME),
    "three chunks": ConvProblem(N=3, C=384, H=6, W=7, K=130, R=3, S=3, padding=SAME),
    "three chunks with a channel in two": ConvProblem(N=1, C=320, H=11, W=20, K=20, R=3, S=3, padding=SAME),
    "folded beside whole chunks": ConvProblem(N=2, C=320, H=11, W=20, K=130, R=3, S=3, padding=SAME),
    "folded beside one chunk": ConvProblem(N=2, C=160, H=11, W=20, K=20, R=2, S=5, padding=((1, 0), (2, 3))),
    "folded beside one chunk, three copies": ConvProblem(N=5, C=150, H=6, W=7, K=9, R=3, S=3, padding=SAME),
    "folded alone": ConvProblem(N=3, C=64, H=13, W=30, K=20, R=3, S=3, padding=SAME),
    "folded four times": ConvProblem(N=2, C=32, H=9, W=18, K=20, R=2, S=6, stride=(1, 2), padding=((0, 1), (3, 1))),
    "folded and dilated": ConvProblem(
        N=2, C=190, H=12, W=16, K=6, R=2, S=4, rhs_dilation=(2, 3), padding=((2, 1), (-1, 12))
    ),
    "folded, small images": ConvProblem(N=9, C=192, H=5, W=6, K=12, R=3, S=2, stride=(2, 1), padding=SAME),
    "few channels": ConvProblem(N=2, C=5, H=12, W=20, K=7, R=2, S=3, padding=((1, 0), (2, 1))),
    "stride": ConvProblem(N=5, C=128, H=12, W=12, K=24, R=3, S=3, stride=(2, 2), padding=SAME),
    "stride of one axis": ConvProblem(N=2, C=128, H=30, W=40, K=5, R=1, S=5, stride=(2, 1), padding=((0, 0), (2, 1))),
    "stride beyond the filter": ConvProblem(N=2, C=128, H=17, W=23, K=4, R=2, S=1, stride=(5, 7)),
    "dilation": ConvProblem(N=2, C=160, H=13, W=17, K=6, R=3, S=3, rhs_dilation=(3, 5), padding=((2, 4), (6, 3))),
    "dilation wider than the image": ConvProblem(
        N=1, C=128, H=4, W=3, K=6, R=3, S=3, rhs_dilation=(7, 5), padding=((9, 7), (6, 6))
    ),
    "cropped": ConvProblem(N=3, C=128, H=12, W=11, K=5, R=3, S=2, padding=((-2, -1), (-3, -2))),
    "crop and pad": ConvProblem(N=1, C=128, H=9, W=8, K=5, R=3, S=3, stride=(1, 2), padding=((-2, 3), (4, -1))),
    "padding far outside": ConvProblem(N=2, C=128, H=2, W=3, K=2, R=3, S=2, padding=((9, 14), (20, 8))),
    "padding only": ConvProblem(N=1, C=128, H=2, W=2, K=2, S=1, stride=(3, 3), padding=((3, 3), (3, 3))),
    "small images": ConvProblem(N=9, C=256, H=7, W=7, K=256, R=3, S=3, padding=SAME),
    "small images, stride": ConvProblem(N=7, C=128, H=8, W=8, K=12, R=3, S=1, stride=(1, 2), padding=((1, 2), (0, 0))),
    "padding shared by images of one row": ConvProblem(N=5, C=128, H=1, W=9, K=3, S=1, padding=((2, 2), (0, 0))),
    "images of one pixel": ConvProblem(N=70, C=130, H=1, W=1, K=3, S=1),
    "wide": ConvProblem(N=2, C=128, H=5, W=600, K=7, R=3, S=3, padding=SAME),
    "a row": ConvProblem(N=2, C=150, W=700, K=30, S=5, stride=(1, 2), padding=((0, 0), (2, 2))),
    "a long filter": ConvProblem(N=1, C=128, W=90, K=4, S=64, padding=((0, 0), (7, 2))),
    "a large filter": ConvProblem(N=1, C=30, H=12, W=13, K=6, R=7, S=5, padding=((3, 3), (2, 2))),
}
#: Settings, one after another; None: the plan's own.
SETTINGS = [
    None,
    {"product": "fp8_halves", "x_bytes": 3000},
    {"product": "fp8_staged", "x_bytes": 2000},
    {"product": "fp8_staged", "shard": "channels"},
    {"product": "fp8_pairs", "shard": "images", "warmup": 0, "fold": "none"},
    {"product": "fp8_staged", "fold": "inputs", "x_bytes": 9000},
    {"product": "fp8_pairs", "order": "chunks", "x_bytes": 300},
]


CONV2D = Conv2d()


def shape_of(problem, **constants):
    return CONV2D.shape(Request(problem=problem), Rates(constants))


PAIRS = (("product", "fp8_pairs"),)


def pairs(settings=None):
    return config_of("implicit_gemm", **(dict(PAIRS) | (settings or {})))


def large_integers(rng, problem, w_dtype):
    """x and w of integers that use every bit of their dtypes."""
    x_most, w_most = LARGEST[problem.dtype], LARGEST[w_dtype]
    x = rng.integers(-x_most, x_most + 1, problem.input_shape).astype(DTYPES[problem.dtype])
    return x, rng.integers(-w_most, w_most + 1, problem.filter_shape).astype(DTYPES[w_dtype])


@pytest.mark.cover(7)
@pytest.mark.parametrize(("x_dtype", "w_dtype"), MIXES)
@pytest.mark.parametrize("name", ROWS)
def test_exact(name, x_dtype, w_dtype):
    problem = ROWS[name].replace(dtype=x_dtype)
    x, w = large_integers(np.random.default_rng(1), problem, w_dtype)
    truth = conv_ref(x, w, problem)
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, config=pairs(), out_dtype=NL["fp32"]), truth, "fp32")


@pytest.mark.cover(5, keep=["two chunks with a channel in both-settings2"])
@pytest.mark.parametrize("settings", SETTINGS[1:], ids=[f"settings{i}" for i in range(1, len(SETTINGS))])
@pytest.mark.parametrize("name", ROWS)
def test_exact_with_other_settings(name, settings):
    problem = ROWS[name].replace(dtype="fp8_e5m2")
    reason = planned(problem, "implicit_gemm", tuple(settings.items()))[1]
    assert reason == "" or "fold=inputs" in reason or "order=chunks" in reason
    if reason == "":
        check_exact(problem, w_dtype="fp8_e4m3", config=pairs(settings))


@pytest.mark.cover(11)
@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("why", EDGE)
def test_every_geometry_runs_in_fp8(why, dtype):
    check_exact(EDGE[why].replace(dtype=dtype))


@pytest.mark.cover(4)
@pytest.mark.parametrize("residual_dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ["two chunks", "small images", "wide", "stride of one axis"])
def test_epilogue(name, residual_dtype):
    asked = {"bias": True, "residual": residual_dtype, "beta": 2.0, "activation": "relu"}
    check_epilogue(ROWS[name], asked, pairs(), "fp8_e4m3")


@pytest.mark.simulator_only
def test_the_array_works_in_pairs():
    """Matmuls of a K tile of 128 channels and nine taps: four pairs a bank, and singles of two banks side by side."""
    problem = ConvProblem(N=1, C=128, H=12, W=512, K=128, R=3, S=3, padding=SAME, dtype="fp8_e4m3")
    execution = trace(problem, 1, config=pairs({"product": "fp8_halves", "warmup": 0}))
    matmuls = [i for i in execution.instructions if i.op == "nc_matmul"]
    double = [i for i in matmuls if i.params["perf_mode"] == "double_row"]
    inner = [i for i in double if i.params["contraction"] == 128]
    assert {i.params["contraction"] for i in double} == {256, 128}
    assert {i.params["tile_position"] for i in inner} == {(0, 0), (64, 0)}
    assert len(matmuls) < 5 * 14


LAYER = ROWS["two chunks"].replace(dtype="fp8_e4m3")


@pytest.mark.parametrize(("problem", "changes", "message"), [
    (LAYER.replace(dtype="bf16"), {}, "product=fp8_pairs: takes float8_e4m3 and float8_e5m2; use 'single'"),
    (LAYER, {"strict_nonfinite": True}, "product=fp8_pairs: multiplies stored zeros"),
    (LAYER.replace(lhs_dilation=(2, 1)), {}, r"product=fp8_pairs: takes lhs_dilation=\(1, 1\)"),
    (LAYER.replace(groups=2), {}, "product=fp8_pairs: needs one group and several channels, not C=256"),
    (LAYER.replace(C=1), {}, "product=fp8_pairs: needs one group and several channels, not C=1"),
])  # fmt: skip
def test_what_pairs_do_not_do(problem, changes, message):
    assert planned(LAYER, "implicit_gemm", PAIRS)[1] == ""
    check_refused(problem, "implicit_gemm", message, dict(PAIRS), **changes)


@pytest.mark.parametrize("fold", ["outputs", "both"])
def test_pairs_do_not_fold_outputs(fold):
    problem = LAYER.replace(C=64, K=40)
    assert planned(problem, "implicit_gemm", (("product", "single"), ("fold", fold)))[1] == ""
    message = planned(problem, "implicit_gemm", (*PAIRS, ("fold", fold)))[1]
    assert re.search(f"config fold={fold}, product=fp8_pairs: .*use 'none' or 'inputs'", message)


def test_there_are_none_that_lie_too_far_apart():
    wide, given = LAYER.replace(H=191, W=185, stride=(5, 5)), (("x_bytes", 72_000),)
    message = planned(wide, "implicit_gemm", (*PAIRS, *given))[1]
    assert re.search(
        "W=185, R=3, S=3 lie .* apart, at most 32767 are possible; use 'single', or a smaller x_bytes", message
    )
    assert planned(wide, "implicit_gemm", given)[1] == ""
    assert dict(CONV2D.complete("implicit_gemm", shape_of(wide), given))["product"] == "single"


#: For each algorithm, problems that it is made for.
OTHERS = {
    "implicit_gemm": [ConvProblem(N=2, C=12, H=9, W=10, K=9, R=3, S=3, groups=3, lhs_dilation=(2, 1), padding=SAME),
     ConvProblem(N=1, C=130, H=6, W=7, K=33, R=2, S=3)],
    "stacked": [
        ConvProblem(N=2, C=3, H=21, W=30, K=17, R=7, S=5, stride=(2, 2), padding=((3, 2), (2, 2))),
        ConvProblem(N=2, C=3, H=24, W=40, K=50, R=8, S=8, stride=(8, 8)),
        ConvProblem(N=2, C=7, H=14, W=13, K=7, groups=7, R=7, S=7, padding=((3, 3), (3, 3))),
        ConvProblem(N=3, C=150, H=9, W=8, K=150, groups=150, R=3, S=2, stride=(2, 1)),
    ],
    "weight_stationary": [
        ConvProblem(N=2, C=64, H=9, W=8, K=64, groups=16, R=3, S=3, padding=SAME),
        ConvProblem(N=2, C=9, H=12, W=11, K=18, groups=9, R=3, S=3, padding=SAME),
        ConvProblem(N=1, C=70, H=14, W=23, K=3, R=3, S=3, padding=SAME),
        ConvProblem(N=2, C=5, H=9, W=40, K=2, R=2, S=9),
    ],
}  # fmt: skip


@pytest.mark.cover(9)
@pytest.mark.parametrize(("x_dtype", "w_dtype"), [("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp8_e5m2")])
@pytest.mark.parametrize(("algorithm", "which"), [(name, i) for name in OTHERS for i in range(2)])
def test_other_algorithms_take_fp8(algorithm, which, x_dtype, w_dtype):
    check_exact(OTHERS[algorithm][which].replace(dtype=x_dtype), w_dtype=w_dtype, config=config_of(algorithm))


class TestOps:
    """What users call."""

    problem = ROWS["three chunks"].replace(dtype="fp8_e4m3", C=256, K=128)

    def arrays(self, w_dtype="fp8_e5m2"):
        return integers(np.random.default_rng(3), self.problem, w_dtype)

    def test_y_is_bf16_unless_asked_otherwise(self):
        x, w = self.arrays()
        truth = conv_ref(x, w, self.problem)
        assert_exact(conv2d(x, w, padding=1), truth, "bf16")
        for out_dtype in ("bf16", "fp16", "fp32"):
            assert_exact(conv2d(x, w, padding=1, out_dtype=out_dtype), truth, out_dtype)

    @pytest.mark.parametrize("product", FP8_PRODUCTS)
    def test_packed_filters(self, product):
        for C in (128, 129, 256):
            problem = self.problem.replace(C=C, K=256)
            x, w = integers(np.random.default_rng(3), problem, "fp8_e5m2")
            packed = pack_filter(w)
            assert (packed.dtype, len(packed.shape)) == (w.dtype, 5)
            y = conv2d(x, packed, padding=1, algorithm="implicit_gemm", config=(("product", product),))
            assert_exact(y, conv_ref(x, w, problem), "bf16")

    @pytest.mark.parametrize("other", ["bf16", "fp16", "fp32"])
    def test_fp8_does_not_mix_with_others(self, other):
        x, w = self.arrays()
        for one, two in ((x, w.astype(DTYPES[other])), (x.astype(DTYPES[other]), w)):
            with pytest.raises(DtypeError, match=r"w.dtype=.*: must be float"):
                conv2d(one, two, padding=1)

    @pytest.mark.parametrize("name", ["bias", "residual", "out_dtype"])
    def test_nothing_else_is_fp8(self, name):
        x, w = self.arrays()
        fp8 = DTYPES["fp8_e4m3"]
        given = {"bias": np.zeros(128, fp8), "residual": np.zeros(self.problem.output_shape, fp8), "out_dtype": fp8}
        with pytest.raises(DtypeError, match=rf"{name}.*accepted are .*b.*16"):
            conv2d(x, w, padding=1, **{name: given[name]})

    def test_depthwise_conv1d_refuses_it(self):
        x, w = np.zeros((1, 4, 9), DTYPES["fp8_e4m3"]), np.zeros((4, 3), DTYPES["fp8_e4m3"])
        with pytest.raises(DtypeError, match=r"x.dtype=float8_e4m3: accepted are bfloat16, float16, float32"):
            depthwise_conv1d(x, w)
