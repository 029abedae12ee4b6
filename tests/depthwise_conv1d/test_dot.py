"""`dot`: long filters and few columns, exact on integers; what it reads and how often; what it refuses."""

import dataclasses
import functools

import pytest
from depthwise import Row, loads, row_of, trace
from epilogue import PLAIN, REQUESTS, all_cores_run, check, reason_to_refuse, refused

from nkiconv.simulator.memory import SBUF

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
]
WIDE = [
    #   why                               N    C     W     S  stride  pad        dil
    Row("many lags", 1, 40, 620, 517),
    Row("many lags, odd channels, padded", 1, 37, 400, 290, 1, (3, 2)),
    Row("many lags, images", 3, 5, 700, 590),
    Row("many lags, blocks of slots", 1, 6, 8400, 8290),
    Row("many lags, chunks", 1, 5, 17000, 16500),
    Row("many lags, stride", 2, 19, 1100, 600, 3, (5, 7)),
    Row("many lags, dilation", 1, 9, 1130, 200, 1, (2, 2), 4),
    Row("many lags, a phase without a last lag", 1, 4, 990, 100, 1, (0, 1), 9),
    Row("many lags, stride and dilation", 1, 9, 1600, 200, 6, (2, 2), 4),
    Row("many lags, crop", 2, 9, 1000, 600, 2, (-3, -10)),
    Row("many lags, causal", 2, 33, 40, 300, 1, (299, 0)),
    Row("many lags, tiles", 1, 600, 380, 298),
    Row("many lags, padding wider than the row", 1, 4, 3, 300, 1, (310, 35)),
]
PARTS = [
    Row("row in parts", 1, 1, 700, 690, 1, (1, 2)),
    Row("row in parts, many lags", 1, 1, 4410, 4090, 1, (100, 20)),
    Row("row in parts, mostly padding", 1, 1, 300, 700, 1, (400, 200)),
    Row("row in parts, stride, dilation", 1, 1, 9000, 2000, 3, (7, 9), 2),
    Row("row in parts, crop", 1, 1, 9000, 6000, 2, (-50, -30)),
    Row("row in parts, causal", 1, 1, 40, 300, 1, (299, 0)),
    Row("row in parts, several groups", 1, 1, 51_100, 51_000, 1, (3, 0)),
]
CONFIGS = [
    None, (("block", 16),), (("block", 4), ("slots", 1)), (("block", 1),), (("warmup", 0),),
]  # fmt: skip

row = functools.partial(row_of, ROWS + WIDE + PARTS)


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_exact_on_integers(row, dtype):
    problem = row.problem(dtype)
    if refused("dot", problem):
        assert dtype == "fp32", "16-bit rows of the table fit"
        return
    check(problem, PLAIN, 1, whole=True, algorithm="dot")


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row", WIDE, ids=lambda row: row.id)
def test_lags_through_hbm_are_exact_on_integers(row, dtype):
    check(row.problem(dtype), PLAIN, 1, whole=True, algorithm="dot", config=(("wide", True),))


@pytest.mark.cover(3)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row", PARTS, ids=lambda row: row.id)
def test_parts_of_one_row_are_exact_on_integers(row, dtype, wide):
    problem = row.problem(dtype)
    config = (("wide", wide),)
    if not wide and problem.Q > 64:
        assert reason_to_refuse("dot", problem, lnc=2, config=config).startswith(f"config wide=False, Q={problem.Q}:")
        return
    check(problem, PLAIN, 1, whole=True, algorithm="dot", config=config)


@pytest.mark.cover(3)
@pytest.mark.parametrize("why", ["many lags", "row in parts, many lags", "row in parts", "many lags, chunks"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_one_and_two_cores_agree_within_the_bound(why, dtype):
    check(row(why).problem(dtype), PLAIN, 9, whole=False, algorithm="dot")


@pytest.mark.parametrize("S", [300, 4096])
def test_as_many_columns_as_pay(S):
    most = Row("most columns", 1, 2, S + S // 2 - 1, S).problem("bf16")
    assert most.Q == S // 2
    assert reason_to_refuse("dot", most, lnc=2) == ""
    assert reason_to_refuse("dot", most.replace(W=most.W + 1), lnc=2).startswith(f"Q={S // 2 + 1}:")
    dilated = Row("dilated", 1, 2, 2 * S + S // 2 + 100, S, 1, (0, 0), 2).problem("bf16")
    assert reason_to_refuse("dot", dilated, lnc=2) == ""
    beyond = Row("beyond banded", 1, 2, 16_400, 8193).problem("bf16")
    assert reason_to_refuse("dot", beyond, lnc=2) == ""


@pytest.mark.cover(4)
@pytest.mark.parametrize("lags", [22, 23, 97, 98, 193, 194])
def test_blocks_of_lags_meet(lags):
    check(Row("lags", 1, 5, 4096 + lags - 1, 4096).problem("bf16"), PLAIN, 1, whole=True, algorithm="dot")


@pytest.mark.simulator_only
def test_long_fp32_filters_leave_room_for_blocks_of_lags():
    execution = trace(Row("long", 1, 256, 8255, 8192).problem("fp32"), "dot", 2)
    assert len(loads(execution, "img_ref")) <= 8, "64 lags in at most two blocks of two chunks, on each core"
    assert execution.sbuf_peak_bytes <= 212_728


@pytest.mark.simulator_only
def test_both_cores_share_the_lags_of_one_row():
    execution = trace(row("row in parts, many lags").problem("bf16"), "dot", 2)
    assert all_cores_run(execution, "nc_matmul")


@pytest.mark.cover(3)
@pytest.mark.parametrize("config", CONFIGS[1:], ids=str)
@pytest.mark.parametrize("why", ["four lags", "images share filters", "stride", "two chunks of taps"])
def test_every_setting_gives_the_same_sums(why, config):
    check(row(why).problem("bf16"), PLAIN, 2, whole=True, algorithm="dot", config=config)


@pytest.mark.cover(8)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
@pytest.mark.parametrize("why", [
    "odd channels, padded", "images share filters", "dilation", "channels of several tiles",
    "many lags, odd channels, padded", "many lags, dilation", "row in parts", "row in parts, many lags",
])  # fmt: skip
def test_epilogues(why, request_):
    check(row(why).problem("bf16"), request_, 4, whole=True, algorithm="dot")


def test_refusals_name_what_they_refuse():
    problem = row("four lags").problem("bf16")
    assert reason_to_refuse("dot", problem.replace(lhs_dilation=(1, 2)), lnc=1).startswith("lhs_dilation=")
    far = Row("stride 100", 1, 2, 30_000, 3, 1, (10, 0), 9000).problem("bf16")
    assert reason_to_refuse("dot", far, lnc=1).startswith("stride=1, dilation=9000: rows of 128 taps")
    assert reason_to_refuse("dot", problem, lnc=1) == ""
    assert reason_to_refuse("dot", problem, lnc=1, strict_nonfinite=True).startswith("strict_nonfinite=True")
    for config in ((("block", 3),), (("slots", 0),), (("wide", 1),), (("lags", 98),), (("warmup", -1),)):
        assert config[0][0] in reason_to_refuse("dot", problem, lnc=1, config=config)
    huge = dataclasses.replace(problem, N=20_000, C=20_000, K=20_000, groups=20_000)
    assert "instructions" in reason_to_refuse("dot", huge, lnc=2)


@pytest.mark.simulator_only
@pytest.mark.parametrize(
    "why", ["four lags", "images share filters", "two chunks, images", "channels of several tiles"]
)
def test_x_and_w_are_read_once_in_whole_rows(why):
    """w once for all images (here on one core), x once but for the columns that neighbouring chunks share."""
    problem = row(why).problem("bf16")
    execution = trace(problem, "dot", lnc=1)
    of_w = loads(execution, "filter_ref")
    assert sum(i.reads[0].num_elems for i in of_w) == problem.C * problem.S
    of_x = loads(execution, "img_ref")
    chunks = len({i.reads[0].offset % problem.W for i in of_x})
    shared = (chunks - 1) * (problem.Q - 1)
    assert sum(i.reads[0].num_elems for i in of_x) == problem.N * problem.C * (problem.W + shared)
    assert all(i.reads[0].strides[-1] == 1 for i in of_w + of_x)


@pytest.mark.simulator_only
def test_results_of_several_tiles_leave_in_one_dma_of_long_runs():
    problem = row("four lags").problem("bf16").replace(C=2048, K=2048, groups=2048, W=1024, S=1021)
    stores = [
        i
        for i in trace(problem, "dot").programs[0].instructions
        if i.op == "dma_copy" and i.reads[0].info.buffer is SBUF
    ]
    assert len(stores) == 2, "8 tiles of 128 channels in batches of 4"
    for store in stores:
        assert store.reads[0].shape == (16, 32, 4), "16 rows of 32 channels, which lie side by side in HBM"
        assert store.writes[0].strides[1:] == (4, 1)


@pytest.mark.cover(6)
@pytest.mark.simulator_only
@pytest.mark.parametrize("row", ROWS + WIDE + PARTS, ids=lambda row: row.id)
def test_both_cores_work(row):
    problem = row.problem("bf16")
    assert all_cores_run(trace(problem, "dot"), "nc_matmul") or problem.N * problem.C == 1
