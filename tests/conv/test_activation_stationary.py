"""Pixels as the stationary operand: every setting, layout and edge gives the same sums, within what the plan says."""

import math

import numpy as np
import pytest
from conv_calls import (
    EDGE,
    canonical_of,
    check_bits,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    geometry_of,
    in_layout,
    integers,
    options_of,
    planned,
    run,
    trace,
)
from tolerances import assert_exact, assert_within
from volumes import VOLUMES, check_volume

import nkiconv
from nkiconv import conv1d, conv2d, pack_filter
from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.conv import ALGORITHMS
from nkiconv.problem import ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref, num_terms
from nkiconv.schedules import pixel_tiles
from nkiconv.simulator.timing import Rates

NAME = "activation_stationary"
SAME = ((1, 1), (1, 1))
FILTER_PERMS = {"KCRS": None, "RSCK": (3, 2, 0, 1), "KRSC": (0, 3, 1, 2)}
MANY = ConvProblem(N=2, C=300, H=9, W=11, K=290, R=3, S=2, padding=((1, 1), (0, 1)), layout="NHWC")
LINE = ConvProblem(N=1, C=20, H=1, W=2100, K=150, S=3, stride=(1, 2), padding=((0, 0), (1, 1)), layout="NHWC")
STRIDED = ConvProblem(N=3, C=140, H=28, W=28, K=40, R=1, S=1, stride=(2, 2), layout="NHWC")
TALL = ConvProblem(N=1, C=20, H=70, W=13, K=33, R=3, S=3, padding=SAME, layout="NHWC")
GAPS = ConvProblem(N=2, C=6, H=7, W=9, K=7, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2), (2, 2)), layout="NHWC")
ROWS = ConvProblem(N=3, C=10, H=31, W=13, K=33, R=4, S=3, stride=(2, 1), padding=((3, 4), (1, 1)), rhs_dilation=(3, 1))
FOLDED = {
    "rows": ROWS.replace(layout="NHWC"),
    "plain rows": ROWS.replace(stride=(1, 1), rhs_dilation=(1, 2), padding=((1, 2), (0, 2)), H=24, layout="NHWC"),
    "one tap": ConvProblem(N=2, C=30, H=12, W=70, K=20, R=1, S=1, layout="NHWC"),
    "no x in some rows": ConvProblem(N=1, C=5, H=3, W=9, K=6, R=3, S=2, padding=((12, 11), (1, 0)), layout="NHWC"),
}
#: Sides: the least divisor of Q above 1, and the greatest up to 70.
FEWEST, MOST = "fewest", "most"
PROBLEMS = {"many": MANY, "line": LINE, "strided": STRIDED, "tall": TALL, "gaps": GAPS}
SETTINGS = [
    {},
    {"shard": "channels"},
    {"shard": "images"},
    {"shard": "channels", "filter_bytes": 1500},
    {"shard": "images", "filter_bytes": 1500, "warmup": 0},
    {"side": 1, "warmup": 3},
    {"side": FEWEST, "x_bytes": 9000},
    {"side": FEWEST, "shard": "images"},
    {"side": MOST, "x_bytes": 2000},
    {"side": MOST},
]


def side_of(problem, side):
    """A side as it is, or by name."""
    divisors = [one for one in range(2, 71) if problem.Q % one == 0] or [1]
    return {FEWEST: divisors[0], MOST: divisors[-1]}.get(side, side)


def completed(problem, **settings):
    """A config with these settings, and the others as the cost model has them best."""
    settings = {name: side_of(problem, value) for name, value in settings.items()}
    shape = Shape(geometry_of(problem), options_of(), 2, Rates())
    return config_of(NAME, **dict(ALGORITHMS[NAME].complete(shape, tuple(settings.items()))))


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_setting_is_exact(name, settings, dtype):
    problem = PROBLEMS[name].replace(dtype=dtype)
    check_exact(problem, config=completed(problem, **settings))


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("settings", [{}, {"side": FEWEST}, {"x_bytes": 1000}, {"side": 1, "x_bytes": 500}], ids=str)
@pytest.mark.parametrize("fold", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", FOLDED)
def test_rows_of_y_beside_each_other(name, fold, settings, dtype):
    problem = FOLDED[name].replace(dtype=dtype)
    config = completed(problem, fold=fold, **settings)
    found, reason = planned(problem, NAME, config[1:])
    if found is None:
        assert problem.P % fold or problem.C * problem.stride[0] * fold > 128, reason
        assert f"config fold={fold}" in reason
        return
    check_exact(problem, config=config)
    check_exact(problem.replace(layout="NCHW"), out_perm=(0, 2, 3, 1), config=config)


@pytest.mark.cover(2)
@pytest.mark.parametrize("fold", [1, 2, 4])
def test_epilogues_of_rows_beside_each_other(fold):
    problem = FOLDED["plain rows"]
    for settings in ({}, {"side": FEWEST}, {"side": MOST}):
        asked = {"bias": True, "residual": True, "beta": 2.0, "activation": "relu"}
        check_epilogue(problem, asked, completed(problem, fold=fold, **settings), "bf16")


def accepted():
    """Edges that it takes in NHWC."""
    found = {why: problem.replace(layout="NHWC") for why, problem in EDGE.items()}
    return {why: problem for why, problem in found.items() if planned(problem, NAME)[0] is not None}


ACCEPTED = accepted()


#: dtype and filters; of images with very many pixels, one.
STORED = [("bf16", "KCRS"), ("fp32", "KCRS"), ("bf16", "KRSC"), ("fp32", "RSCK")]
EDGES = [
    (why, *how)
    for why, problem in ACCEPTED.items()
    for how in (STORED[:1] if problem.H * problem.W > 100_000 else STORED)
]


@pytest.mark.cover(6)
@pytest.mark.parametrize(("why", "dtype", "filters"), EDGES)
def test_every_edge_is_exact(why, dtype, filters):
    problem = ACCEPTED[why].replace(dtype=dtype)
    check_exact(problem, 3, kern_perm=FILTER_PERMS[filters], config=config_of(NAME))


@pytest.mark.cover(5)
@pytest.mark.parametrize("algorithm", [NAME, "implicit_gemm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", [*PROBLEMS, *FOLDED])
def test_normals_are_within_the_bound_and_have_the_same_bits_on_two_cores(name, dtype, algorithm):
    problem = {**PROBLEMS, **FOLDED}[name].replace(dtype=dtype)
    y, x, w = check_bits(problem, config_of(algorithm))
    plain = canonical_of(x, problem)
    sums, sizes = (in_layout(ref(plain, w, problem), problem) for ref in (conv_ref, abs_sum_ref))
    assert_within(y, sums, sizes, num_terms(problem), dtype)


def test_windows_far_outside_x():
    check_bits(ACCEPTED["padding_far_outside"], config_of(NAME))


@pytest.mark.usefixtures("plainly")
def test_it_is_reached_from_arrays():
    problem = FOLDED["plain rows"]
    x, w = integers(np.random.default_rng(3), problem)
    how = {"layout": "NHWC", "padding": problem.padding, "dilation": problem.rhs_dilation}
    expected = conv2d(x, w, **how)
    for config in (None, (("fold", 2), ("side", 11))):
        np.testing.assert_array_equal(conv2d(x, w, algorithm=NAME, config=config, **how), expected)
    sequences = np.ones((2, 40, 12), np.float32)
    filters = np.ones((9, 12, 3), np.float32)
    lines = conv1d(sequences, filters, layout="NWC", algorithm=NAME)
    np.testing.assert_array_equal(lines, np.full((2, 38, 9), 36, np.float32))


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_rows_of_x_may_lie_in_columns(name):
    """NCHW comes in by plain loads, NHWC goes out."""
    check_exact(PROBLEMS[name].replace(layout="NCHW"), out_perm=(0, 2, 3, 1), config=config_of(NAME))


@pytest.mark.parametrize("settings", [{}, {"filter_bytes": 1500}, {"shard": "channels"}], ids=str)
def test_a_packed_filter(settings):
    x, w = integers(np.random.default_rng(5), MANY)
    packed = pack_filter(w)
    truth = in_layout(conv_ref(x.transpose(0, 3, 1, 2), w, MANY), MANY)
    for lnc in (1, 2):
        assert_exact(run(x, packed, MANY, lnc, config=completed(MANY, **settings)), truth, MANY.dtype)


@pytest.mark.cover(7)
@pytest.mark.parametrize("precision", [None, "bf16", "tf32"])
@pytest.mark.parametrize("filters", FILTER_PERMS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_precisions_keep_integers(layout, filters, precision):
    given = {"kern_perm": FILTER_PERMS[filters], "precision": precision, "out_perm": (0, 2, 3, 1)}
    check_exact(TALL.replace(dtype="fp32", layout=layout), config=config_of(NAME), **given)


@pytest.mark.cover(2)
@pytest.mark.parametrize("problem", [MANY, LINE], ids=["many", "line"])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("position", ["pre_activation", "post_activation"])
@pytest.mark.parametrize("beta", [1.0, -2.0])
def test_epilogues_are_exact(problem, activation, position, beta):
    asked = {"bias": True, "residual": True, "beta": beta, "activation": activation, "residual_position": position}
    for settings in ({}, {"side": MOST, "shard": "channels"}, {"filter_bytes": 1500}):
        check_epilogue(problem, asked, completed(problem, **settings), "bf16")


REFUSED = [
    (MANY.replace(layout="NCHW"), {}, {}, "out_perm: neighbouring output channels are 99 elements apart in y"),
    (MANY.replace(C=300, K=300, groups=2), {}, {},
     f"feature_group_count=2, C=300, K=300: {NAME} takes 1, or depthwise problems"),
    (MANY.replace(dtype="fp8_e4m3"), {}, {}, f"img_ref.dtype=float8: {NAME} takes 16 and 32 bits"),
    (MANY.replace(dtype="fp32"), {}, {"precision": "fp16x3"},
     f"precision=fp16x3: {NAME} takes others; use implicit_gemm"),
    (MANY, {}, {"strict_nonfinite": True}, f"strict_nonfinite=True: {NAME} multiplies filters around x"),
    (MANY, {"side": 0}, {}, "config side=0: must be an int from 1 to 4096"),
    (MANY, {"side": 2}, {}, "config side=2: must divide Q=11; use 1"),
    (MANY, {"fold": 2}, {}, "config fold=2, C=300, K=290, P=9: must divide P, with fold"),
    (FOLDED["one tap"], {"fold": 2}, {"strict_nonfinite": True}, "strict_nonfinite=True, config fold=2: rows outside"),
    (MANY, {"warmup": 300}, {}, "config warmup=300: must be an int from 0 to 256"),
    (MANY, {"shard": "rows"}, {}, r"config shard=rows: must be one of \('channels', 'images'\)"),
    (MANY, {"rows": 3}, {}, f"{NAME} has no setting rows"),
]  # fmt: skip
WIDE_STEPS = MANY.replace(W=120_100, rhs_dilation=(1, 60_000))


@pytest.mark.parametrize(("problem", "settings", "changes", "why"), REFUSED)
def test_refusals(problem, settings, changes, why):
    check_refused(problem, NAME, why, settings, **changes)


def test_windows_that_engines_do_not_see_are_refused_before_they_are_cut(change):
    change(pixel_tiles, "pixel_out_tiles", None)
    check_refused(WIDE_STEPS, NAME, f"{NAME} keeps padded windows")


def test_strict_without_padding_is_taken():
    found, reason = planned(STRIDED, NAME, None, strict_nonfinite=True)
    assert (reason, found is None) == ("", False)


@pytest.mark.cover(2)
@pytest.mark.parametrize("settings", [{"x_bytes": 256}, {"filter_bytes": 256}, {"shard": "channels"}, {"side": 2}])
def test_volumes_by_settings(settings):
    for name in ("same", "causal"):
        check_volume(VOLUMES[name], algorithm=NAME, last=True, config=tuple(settings.items()))


def test_many_small_planes_share_a_out_tile():
    small = ((11, 3, 1, 1, 1, 1, 1), (3, 3, 1, 1, 1, 1, 1), (4, 3, 1, 1, 1, 1, 1))
    check_volume((20, 30, 1, *small), algorithm=NAME, last=True)


def test_volumes_that_are_refused():
    for name, config, why in (
        ("between zeros", None, f"of planes: {NAME} takes 1"),
        ("same", (("fold", 3),), "one plane of taps"),
    ):
        with pytest.raises(nkiconv.simulator.KernelAssertionError, match=why):
            check_volume(VOLUMES[name], algorithm=NAME, last=True, config=config)


#: Gaps along both axes or one, with a stride, and with an odd row of y, whose neighbours see x at different taps.
DILATED = {
    "both": (ConvProblem(N=2, C=9, H=6, W=8, K=5, R=3, S=3, lhs_dilation=(2, 2), padding=((1, 2), (1, 2))), 4),
    "rows": (ConvProblem(N=2, C=9, H=6, W=8, K=5, R=4, S=3, lhs_dilation=(3, 1), padding=((2, 3), (1, 1))), 3),
    "columns": (ConvProblem(N=2, C=9, H=6, W=8, K=5, R=3, S=4, lhs_dilation=(1, 4), padding=((1, 1), (3, 3))), 4),
    "no tap": (ConvProblem(N=2, C=9, H=6, W=8, K=5, R=1, S=1, lhs_dilation=(2, 2), padding=((0, 1), (0, 1))), 4),
    "strided": (
        ConvProblem(N=1, C=9, H=9, W=8, K=5, R=4, S=4, lhs_dilation=(4, 2), stride=(2, 1), padding=((2, 3), (2, 1))),
        4,
    ),
    "odd": (ConvProblem(N=2, C=9, H=6, W=8, K=5, R=3, S=3, lhs_dilation=(2, 2), padding=((1, 1), (1, 1))), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", DILATED)
def test_zeros_between_elements_are_not_multiplied(name):
    """A matmul a tap that a tile sees: of all taps of all tiles a part, as many times fewer as `times` says."""
    problem, times = DILATED[name]
    problem = problem.replace(layout="NHWC", dtype="bf16")
    config = completed(problem, side=math.gcd(problem.lhs_dilation[1], problem.Q))
    check_exact(problem, config=config)
    found, _ = planned(problem, NAME, config[1:])
    tiles = sum(len(pixel_tiles.blocks_of(found.sizes, item.out_tile)) for item in found.items) * found.sizes.side
    matmuls = [
        one
        for program in trace(problem, 2, config=config).programs
        for one in program.instructions
        if one.op == "nc_matmul" and one.file.endswith("activation_stationary/loop.py")
    ]  # fmt: skip
    assert 0 < len(matmuls) <= 1.01 * tiles * problem.R * problem.S / times
