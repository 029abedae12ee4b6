"""`dot`: long filters and few columns, exact on integers; what it reads and how often; what it refuses."""

import dataclasses
import functools

import pytest
from depthwise import Row, row_of
from epilogue import PLAIN, REQUESTS, check, reason_to_refuse, refused

ROWS = [
    #   why                               N    C     W     S  stride  pad        dil
    Row("four lags", 1, 40, 520, 517),
    Row("odd channels, padded", 1, 37, 300, 290, 1, (3, 2)),
    Row("images share filters", 3, 5, 600, 590),
    Row("one channel", 1, 1, 700, 690, 1, (1, 2)),
    Row("one channel, images", 7, 1, 140, 138),
    Row("two chunks of taps", 1, 20, 8300, 8290),
    Row("two chunks, images", 3, 3, 5000, 4998),
    Row("stride", 2, 19, 700, 600, 3, (5, 7)),
    Row("dilation", 1, 9, 830, 200, 1, (2, 2), 4),
    Row("dilation a multiple of the stride", 1, 9, 700, 150, 2, (2, 2), 4),
    Row("stride and dilation share a factor", 1, 9, 1000, 200, 6, (2, 2), 4),
    Row("columns in several blocks of lags", 1, 18, 600, 545),
    Row("crop", 2, 9, 700, 600, 2, (-3, -10)),
    Row("causal", 2, 33, 40, 300, 1, (299, 0)),
    Row("channels of several tiles", 1, 600, 300, 298),
    Row("padding wider than the row", 1, 4, 3, 300, 1, (310, 5)),
    Row("one row, causal", 1, 1, 40, 300, 1, (299, 0)),
    Row("one row, several chunks", 1, 1, 51_020, 51_000, 1, (3, 0)),
]
CONFIGS = [
    None, (("block", 16),), (("block", 4), ("slots", 1)), (("block", 1),), (("warmup", 0),),
]  # fmt: skip

row = functools.partial(row_of, ROWS)


@pytest.mark.cover(5)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_exact_on_integers(row, dtype):
    problem = row.problem(dtype)
    if refused("dot", problem):
        assert dtype == "fp32", "16-bit rows of the table fit"
        return
    check(problem, PLAIN, 1, whole=True, algorithm="dot")


@pytest.mark.cover(1)
@pytest.mark.parametrize("why", ["four lags", "one row, causal", "two chunks, images"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_one_and_two_cores_agree_within_the_bound(why, dtype):
    check(row(why).problem(dtype), PLAIN, 9, whole=False, algorithm="dot")


@pytest.mark.parametrize("S", [300, 4096])
def test_at_most_64_columns(S):
    most = Row("most columns", 1, 2, S + 63, S).problem("bf16")
    assert reason_to_refuse("dot", most, lnc=2) == ""
    assert reason_to_refuse("dot", most.replace(W=most.W + 1), lnc=2).startswith("Q=65: dot computes at most 64")


@pytest.mark.cover(2)
@pytest.mark.parametrize("lags", [24, 25, 49, 64])
def test_blocks_of_lags_meet(lags):
    check(Row("lags", 1, 5, 2048 + lags - 1, 2048).problem("bf16"), PLAIN, 1, whole=True, algorithm="dot")


@pytest.mark.cover(3)
@pytest.mark.parametrize("config", CONFIGS[1:], ids=str)
@pytest.mark.parametrize("why", ["four lags", "images share filters", "stride", "two chunks of taps"])
def test_every_setting_gives_the_same_sums(why, config):
    check(row(why).problem("bf16"), PLAIN, 2, whole=True, algorithm="dot", config=config)


@pytest.mark.cover(8)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
@pytest.mark.parametrize(
    "why", ["odd channels, padded", "images share filters", "dilation", "channels of several tiles", "one row, causal"]
)
def test_epilogues(why, request_):
    check(row(why).problem("bf16"), request_, 4, whole=True, algorithm="dot")


def test_refusals_name_what_they_refuse():
    problem = row("four lags").problem("bf16")
    assert reason_to_refuse("dot", problem.replace(lhs_dilation=(1, 2)), lnc=1).startswith("lhs_dilation=")
    far = Row("far taps", 1, 2, 18_000, 3, 1, (10, 0), 9000).problem("bf16")
    assert reason_to_refuse("dot", far, lnc=1).startswith("stride=1, dilation=9000: rows of 128 taps")
    assert reason_to_refuse("dot", problem, lnc=1) == ""
    assert reason_to_refuse("dot", problem, lnc=1, strict_nonfinite=True).startswith("strict_nonfinite=True")
    for config in ((("block", 3),), (("slots", 0),), (("wide", True),), (("lags", 97),), (("warmup", -1),)):
        assert config[0][0] in reason_to_refuse("dot", problem, lnc=1, config=config)
    huge = dataclasses.replace(problem, N=20_000, C=20_000, K=20_000, groups=20_000)
    assert "instructions" in reason_to_refuse("dot", huge, lnc=2)
