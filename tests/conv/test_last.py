"""Channels side by side in HBM (NHWC): taps turns x by DMA and results on the array; exact, and within what it says."""

import pytest
from conv_calls import EDGE, check_epilogue, check_exact, config_of, planned

from nkiconv.problem import ConvProblem

M_TILES = ConvProblem(N=2, C=300, H=9, W=11, K=290, R=3, S=2, padding=((1, 1), (0, 1)), layout="NHWC")
LINE = ConvProblem(N=1, C=20, H=1, W=2100, K=150, S=3, stride=(1, 2), padding=((0, 0), (1, 1)), layout="NHWC")
WIDE = ConvProblem(N=2, C=20, H=5, W=1100, K=33, R=1, S=1, layout="NHWC")
GROUPS = ConvProblem(N=2, C=64, H=12, W=14, K=96, R=3, S=3, groups=4, padding=((1, 1), (1, 1)), layout="NHWC")
DEPTHWISE = ConvProblem(N=2, C=140, H=12, W=14, K=140, R=3, S=3, groups=140, padding=((1, 1), (1, 1)), layout="NHWC")
POINTS = ConvProblem(N=3, C=20, H=28, W=28, K=300, R=1, S=1, layout="NHWC")
CROPPED = ConvProblem(
    N=2, C=20, H=11, W=13, K=9, R=1, S=1, stride=(2, 3), padding=((-2, 4), (3, -3)), layout="NHWC"
)  # fmt: skip
PROBLEMS = {
    "jobs": M_TILES, "line": LINE, "wide": WIDE, "groups": GROUPS, "depthwise": DEPTHWISE, "points": POINTS,
    "cropped": CROPPED,
}  # fmt: skip
SETTINGS = [{}, {"shard": "channels", "x_bytes": 1024}, {"shard": "images", "x_bytes": 600}]


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_setting_is_exact(name, settings, dtype):
    check_exact(PROBLEMS[name].replace(dtype=dtype), config=config_of("implicit_gemm", **settings))


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("why", EDGE)
def test_every_edge_is_exact(why, dtype):
    check_exact(EDGE[why].replace(dtype=dtype, layout="NHWC"), config=config_of("implicit_gemm"))


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("side", ["x", "y"])
def test_one_side_alone(name, side):
    perms = {"in_perm": (0, 3, 1, 2)} if side == "x" else {"out_perm": (0, 2, 3, 1)}
    check_exact(PROBLEMS[name].replace(layout="NCHW"), config=config_of("implicit_gemm"), **perms)


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize(("fold", "perms"), [
    ("outputs", {"in_perm": (0, 3, 1, 2)}), ("inputs", {"out_perm": (0, 2, 3, 1)}),
])  # fmt: skip
def test_the_other_side_may_be_folded(fold, perms, dtype):
    check_exact(M_TILES.replace(layout="NCHW", dtype=dtype), config=config_of("implicit_gemm", fold=fold), **perms)


@pytest.mark.parametrize("fold", ["inputs", "outputs", "both"])
def test_what_is_turned_is_not_folded(fold):
    found, reason = planned(M_TILES, "implicit_gemm", (("fold", fold),))
    assert found is None
    assert f"config fold={fold}: needs" in reason
    assert "not channels side by side" in reason


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_fp8_is_exact(name):
    """DMA turns no single bytes; results have two."""
    check_exact(PROBLEMS[name].replace(dtype="fp8_e5m2"), config=config_of("implicit_gemm"))


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_rows_and_columns_of_y_may_be_swapped(name):
    """Pixels were taken to be evenly spaced wherever channels are side by side."""
    problem = PROBLEMS[name].replace(layout="NCHW")
    check_exact(problem, config=config_of("implicit_gemm"), out_perm=(0, 3, 2, 1))


@pytest.mark.parametrize("name", ["groups", "depthwise"])
def test_epilogues_are_exact(name):
    asked = {"bias": True, "residual": True, "beta": -2.0, "activation": "relu"}
    check_epilogue(PROBLEMS[name], asked, config_of("implicit_gemm"), "bf16")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_bf16_products_of_fp32(layout):
    """DMA casts no rows that it turns."""
    check_exact(M_TILES.replace(dtype="fp32", layout=layout), precision="bf16", config=config_of("implicit_gemm"))
