"""`banded`: any block size and setting gives the same sums; what it reads, how it fills the array, what it refuses."""

import functools
import re

import numpy as np
import pytest
from depthwise import EDGE, Row, row_of, trace
from epilogue import (
    PLAIN,
    REQUESTS,
    Request,
    check,
    check_stored,
    kernel_view,
    reason_to_refuse,
)

from nkiconv import depthwise_conv1d
from nkiconv.problem import DTYPES
from nkiconv.schedules.depthwise_algorithms import ALGORITHMS

ROWS = [
    #   why                                 N    C     W     S  stride  pad
    Row("filter of tens", 1, 40, 600, 64),
    Row("images share matmuls", 5, 9, 150, 31, 1, (15, 15)),
    Row("odd channels, causal", 1, 37, 300, 40, 1, (39, 0)),
    Row("one channel, long row", 1, 1, 9000, 300),
    Row("one channel, images", 7, 1, 140, 38),
    Row("block columns beyond a bank", 1, 3, 30_000, 50, 1, (3, 4)),
    Row("stride 2", 2, 19, 700, 60, 2, (5, 7)),
    Row("stride 3", 1, 7, 500, 20, 3, (1, 1)),
    Row("stride 128", 1, 3, 5000, 200, 128),
    Row("crop", 2, 9, 700, 60, 2, (-3, -10)),
    Row("channels of several tiles", 1, 300, 300, 33),
    Row("bands of many channels at once", 2, 700, 18, 3, 1, (2, 0)),
    Row("padding wider than the row", 1, 4, 30, 50, 1, (150, 90)),
    Row("window is the row", 2, 5, 200, 200),
    Row("one column beyond whole blocks", 1, 40, 161, 33),
    Row("one column beyond whole chunks", 2, 260, 513, 65),
    Row("dilation, causal", 3, 20, 300, 40, 1, (78, 0), 2),
    Row("dilation beyond a bank's blocks", 2, 9, 700, 31, 1, (5, 9), 7),
    Row("dilation, crop", 1, 37, 500, 70, 1, (-3, -10), 3),
    Row("dilation, padding wider than the row", 5, 7, 30, 50, 1, (196, 196), 4),
    Row("dilation, long row", 1, 1, 9000, 300, 1, (0, 0), 5),
]
BLOCKS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)


def settings_of(geometry, options, config):
    return ALGORITHMS["banded"].plan(geometry, options, config).settings


SETTINGS = [
    (("block", 16), ("groups", 1)),
    (("block", 8), ("groups", 3), ("edge", 1)),
    (("block", 16), ("shard", "columns")),
    (("block", 32), ("shard", "batch"), ("images", 1)),
    (("block", 16), ("buffers", 1), ("buffer_groups", 1)),
    (("block", 16), ("buffers", 3), ("buffer_groups", 5), ("scratch", True)),
    (("block", 16), ("scratch", False), ("warmup", 0), ("rewarm", 0)),
    (("block", 64), ("streamed", 128)),
]

row = functools.partial(row_of, ROWS)


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_exact_on_integers(row, dtype):
    check(row.problem(dtype), PLAIN, 1, whole=True, algorithm="banded")


@pytest.mark.cover(7)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    "why", ["images share matmuls", "odd channels, causal", "padding wider than the row", "dilation, causal"]
)
def test_every_block_gives_the_same_sums(why, block):
    check(row(why).problem("bf16"), PLAIN, 2, whole=True, algorithm="banded", config=(("block", block),))


@pytest.mark.cover(8)
@pytest.mark.parametrize("config", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "why", ["filter of tens", "images share matmuls", "stride 2", "channels of several tiles", "dilation, crop"]
)
def test_every_setting_gives_the_same_sums(why, config):
    check(row(why).problem("bf16"), PLAIN, 3, whole=True, algorithm="banded", config=config)


#: x is the stationary operand.
ROWWISE = (("x_stationary", True),)


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row", [row for row in ROWS if row.dilation == 1], ids=lambda row: row.id)
def test_exact_where_x_is_stationary(row, dtype):
    check(row.problem(dtype), PLAIN, 9, whole=True, algorithm="banded", config=ROWWISE)


@pytest.mark.cover(5)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
@pytest.mark.parametrize("why", ["images share matmuls", "odd channels, causal", "stride 3"])
def test_epilogues_where_x_is_stationary(why, request_):
    check(row(why).problem("bf16"), request_, 10, whole=True, algorithm="banded", config=ROWWISE)


def test_all_digits_of_a_bias_are_added_where_x_is_stationary():
    rng = np.random.default_rng(11)
    x, w, bias = np.zeros((2, 9, 300)), rng.standard_normal((9, 31)), rng.standard_normal(9).astype(np.float32)
    bf16 = {"x": x.astype(DTYPES["bf16"]), "w": w.astype(DTYPES["bf16"])}
    y = depthwise_conv1d(**bf16, bias=bias, out_dtype="fp32", algorithm="banded", config=ROWWISE)
    assert (y == bias[:, None]).all()


def test_a_bias_of_many_channels_counts_as_memory():
    problem, asked = Row("many channels", 1, 12_000, 40, 9).problem("bf16"), Request(bias="fp32")
    assert "bytes per partition" in reason_to_refuse("banded", problem, asked, lnc=1, config=ROWWISE)
    assert reason_to_refuse("banded", problem, lnc=1, config=ROWWISE) == ""


def test_bands_are_interleaved_with_blocks_of_sums_alone():
    reason = reason_to_refuse("banded", row("dilation, causal").problem("bf16"), lnc=1, config=ROWWISE)
    assert re.search("rhs_dilation=2, config x_stationary=True: .* use x_stationary=False", reason)


@pytest.mark.cover(1)
@pytest.mark.parametrize(("shape", "config"), [
    # a core's second image begins again at the first channels after the last ones, of which there are few
    (Row("channels once more", 2, 257, 8, 3), (("block", 128), ("shard", "batch"), ("groups", 8), ("edge", 0))),
    (Row("images once more", 2, 672, 9, 3), (("block", 3), ("images", 1), ("groups", 8), ("buffer_groups", 2))),
    (Row("bands of 320 channels at once", 1, 700, 8, 3), (("block", 2), ("buffer_groups", 5), ("groups", 8))),
], ids=lambda value: value.id if isinstance(value, Row) else "")  # fmt: skip
def test_filters_without_a_copy_in_hbm_take_turns(shape, config):
    check(shape.problem("bf16"), PLAIN, 6, whole=True, algorithm="banded", config=(("scratch", False), *config))


@pytest.mark.cover(6)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
@pytest.mark.parametrize("why", ["images share matmuls", "odd channels, causal", "stride 3", "dilation, causal"])
def test_epilogues(why, request_):
    check(row(why).problem("bf16"), request_, 5, whole=True, algorithm="banded")


@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_filters_of_thousands_of_taps(dtype):
    """8,192 taps, causal, on long rows."""
    problem = Row("long", 1, 2, 9000, 8192, 1, (8191, 0)).problem(dtype)
    check(problem, PLAIN, 8, whole=True, algorithm="banded")


def test_initial_and_final_state_with_x_stationary():
    request = Request(state=True, final=True, bias="fp32", activation="silu")
    check(row("odd channels, causal").problem("bf16"), request, 6, whole=True, algorithm="banded", config=ROWWISE)


def test_any_layout_with_x_stationary():
    problem, request = row("images share matmuls").problem("bf16"), Request(residual="bf16")
    perms = (0, 3, 2, 1), (3, 1, 2, 0), (1, 0, 2, 3)
    check_stored(problem, request, 7, *perms, algorithm="banded", config=ROWWISE)


def test_refusals_name_what_they_refuse():
    problem = row("stride 2").problem("bf16")
    for change, words in (
        ({"lhs_dilation": (1, 2)}, "lhs_dilation=2:"),
        ({"rhs_dilation": (1, 2)}, "rhs_dilation=2, stride=2:"),
        ({"stride": (1, 129)}, "block=129, stride=129:"),
    ):
        assert reason_to_refuse("banded", problem.replace(**change), lnc=2).startswith(words)
    far = row_of(EDGE, "dilation beyond a tile").problem("bf16")
    assert "bytes per partition of SBUF" in reason_to_refuse("banded", far, lnc=2)
    assert reason_to_refuse("banded", problem, lnc=1, strict_nonfinite=True).startswith("strict_nonfinite=True")
    for config in ((("block", 3),), (("shard", "rows"),), (("scratch", 1),), (("images", 16), ("groups", 16))):
        assert config[0][0] in reason_to_refuse("banded", problem, lnc=1, config=config)
    huge = problem.replace(N=2_000, C=20_000, K=20_000, groups=20_000)
    assert "instructions" in reason_to_refuse("banded", huge, lnc=2)


def test_a_row_that_is_cropped_away_has_no_blocks():
    """Ceil divisions are of ints that are not negative: NKI's documents do not say how // rounds those."""
    problem = Row("all cropped", 1, 2, 10, 3, 1, (-17, 20)).problem("bf16")
    geometry, options = kernel_view(problem)
    assert ALGORITHMS["banded"].plan(geometry, options, None).end_data == 0
    check(problem, PLAIN, 7, whole=True, algorithm="banded")


@pytest.mark.cover(4)
@pytest.mark.simulator_only
@pytest.mark.parametrize("asked", [None, ROWWISE], ids=["", "x_stationary"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_memory_is_bounded_by_what_the_kernel_reckons(row, asked, monkeypatch):
    problem = row.problem("bf16")
    config = settings_of(*kernel_view(problem), asked if row.dilation == 1 else None).pairs
    execution = trace(problem, "banded", config=config)
    monkeypatch.setattr("nkiconv.schedules.tiles.SBUF_BYTES", 0)
    needed = int(re.search(r"banded needs (\d+) bytes", reason_to_refuse("banded", problem, lnc=2, config=config))[1])
    assert execution.sbuf_peak_bytes <= needed
