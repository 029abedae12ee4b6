"""Each algorithm of rows by its own settings: exact on integers, within the bound elsewhere, refusals by name; a few
counts of what it loads and how its engines share taps."""

import re
from dataclasses import replace

import numpy as np
import pytest
from conv_calls import FLOATS, integers
from depthwise import EDGE, Row, row_of, trace, truth
from draws import draws
from epilogue import PLAIN, Request, check, check_stored, fitting, kernel_view, reason_to_refuse, refused
from hypothesis import assume, given
from hypothesis import strategies as st
from scope import check_in_scope
from strategies import problems_for, requests
from tolerances import assert_exact

from nkiconv import depthwise_conv1d, depthwise_conv1d_input
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS
from nkiconv.problem import DTYPES
from nkiconv.schedules import long_kernels
from nkiconv.schedules.tiles import BANK_COLUMNS, div_ceil

BANDED = [
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
    Row("all cropped", 1, 2, 10, 3, 1, (-17, 20)),
    Row("dilation, causal", 3, 20, 300, 40, 1, (78, 0), 2),
    Row("dilation beyond a bank's blocks", 2, 9, 700, 31, 1, (5, 9), 7),
    Row("dilation, crop", 1, 37, 500, 70, 1, (-3, -10), 3),
    Row("dilation, padding wider than the row", 5, 7, 30, 50, 1, (196, 196), 4),
    Row("dilation, long row", 1, 1, 9000, 300, 1, (0, 0), 5),
    Row("thousands of taps", 1, 2, 9000, 8192, 1, (8191, 0)),
]
#: x is the stationary operand.
ROWWISE = (("x_stationary", True),)
BLOCKS = {
    "images share matmuls": (1, 8, 48, 96), "filter of tens": (2, 4, 32, 128), "stride 3": (15, 63),
    "dilation, causal": (1, 16, 64),
}  # fmt: skip
BAND_SETTINGS = {
    "odd channels, causal": [
         (("block", 16), ("groups", 1)), (("block", 8), ("groups", 3)),
         (("block", 16), ("shard", "columns"), ("joined", 4), ("buffer_groups", 3))],
    "images share matmuls": [
        (("block", 32), ("shard", "batch"), ("images", 1)), (("block", 16), ("buffers", 1), ("buffer_groups", 1))],
    "channels of several tiles": [
        (("block", 16), ("buffers", 3), ("buffer_groups", 5), ("joined", 4)),
        (("block", 16), ("joined", 1), ("warmup", 0), ("rewarm", 0)), (("block", 64), ("streamed", 128))],
}  # fmt: skip
#: Filters again: a core's second image begins again at the first channels after the last ones, which are few;
#: images once more; bands of 320 channels at once.
FILTERS_AGAIN = [
    (Row("channels once more", 2, 257, 8, 3), (("block", 128), ("shard", "batch"), ("groups", 8))),
    (Row("images once more", 2, 672, 9, 3),
        (("block", 3), ("images", 1), ("groups", 8), ("buffer_groups", 2), ("joined", 3))),
    (Row("bands of 320 channels at once", 1, 700, 8, 3),
        (("block", 2), ("buffer_groups", 5), ("groups", 8), ("joined", 1))),
]  # fmt: skip
DOT = [
    #   why                               N    C     W     S  stride  pad        dil
    Row("four lags", 1, 40, 520, 517),
    Row("odd channels, padded", 1, 37, 300, 290, 1, (3, 2)),
    Row("images", 3, 5, 600, 590),
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
    *[Row(f"{lags} lags", 1, 5, 2048 + lags - 1, 2048) for lags in (24, 25, 49, 64)],
]
DOT_SETTINGS = [(("block", 16),), (("block", 4), ("slots", 1)), (("block", 1),), (("warmup", 0),)]
UPDATE = [
    #   why                             N    C     W    S  stride  pad     dil
    Row("window of four", 64, 128, 4, 4),
    Row("odd channels", 64, 131, 4, 4),
    Row("token after a state", 64, 300, 1, 4, 1, (3, 0)),
    Row("tokens after a state", 5, 37, 3, 4, 1, (3, 0)),
    Row("state wider than its dilation", 6, 20, 5, 3, 1, (8, 0), 4),
    Row("one image", 1, 200, 4, 4),
    Row("70 images", 70, 33, 5, 3, 1, (1, 1)),
    Row("image tiles", 201, 9, 4, 4),
    Row("one channel of one image", 1, 1, 4, 4),
    Row("two channels, stride", 33, 2, 7, 3, 2, (1, 2)),
    Row("dilation", 40, 50, 9, 3, 1, (4, 4), 2),
    Row("longest row", 12, 10, 128, 5, 3, (2, 2)),
    Row("several chunks", 20, 1200, 4, 4),
    Row("crop", 20, 30, 12, 4, 1, (-2, -3)),
    Row("mostly padding", 3, 5, 2, 2, 1, (6, 7)),
    Row("partitions between pieces", 48, 700, 4, 4),
    Row("many columns of long rows", 2, 300, 128, 5, 1, (2, 2)),
    Row("several loads of filters", 16, 18_000, 4, 4),
    Row("groups that overlap", 2, 520, 4, 4),
    Row("long filters", 16, 70, 3, 3000, 1, (2999, 0)),
]
TENSOR, VECTOR = (("engine", "tensor"),), (("engine", "vector"),)
UPDATE_SETTINGS = [
    (*TENSOR, ("vector_reads", 1)),
    (*TENSOR, ("vector_reads", 0), ("warmup", 9)),
]
#: Rows with stacked groups, several channel tiles, gaps, halos as long as the row, far taps, long strides.
HARD = (
    "one column", "odd channels", "channels of several tiles", "columns cross one load", "causal",
    "padding wider than the row", "crop inside a gap", "stride 64 loads runs", "stride 65 steps in the DMA",
    "dilation beyond a tile", "lhs dilation", "all three together",
)  # fmt: skip
#: Taps that run backwards.
FLIPPED = [
    replace(row, why=f"flipped: {row.why}", flipped=True) for row in (
        Row("few", 2, 131, 60, 4, 1, (3, 0)), Row("many", 2, 70, 60, 33, 1, (20, 12)),
        Row("several blocks of taps", 2, 130, 400, 300, 1, (299, 0)), Row("crop", 1, 7, 40, 5, 1, (-4, 6)),
        Row("dilation", 2, 9, 50, 5, 1, (4, 4), 3),
        *(row for row in EDGE if row.lhs > 1 == row.stride))
]  # fmt: skip
SHORT = Row("short filter", 2, 131, 90, 5, 1, (4, 0))
PIECES = Row("several pieces", 1, 131, 700, 5, 1, (4, 0))
RECIPES = [(5, 0, 0, 0), (4, 1, 0, 0), (3, 2, 0, 0), (4, 0, 1, 0), (2, 1, 1, 1), (0, 4, 0, 0), (0, 2, 1, 1)]


def mixes(S):
    """Settings far from the defaults, for any number of taps."""
    tensor, several = (S, 0, 0, 0), S >= 3
    kinds = tensor, (1, S - 1, 0, 0), (0, S - 1, 0, 0)
    one_each = (S - 2, 1, 1, 0) if several else tensor
    chains = (1, (S - 2) - (S - 2) // 2, 1, (S - 2) // 2) if several else tensor
    return {
        "tensor only": (("recipes", (tensor,)), ("columns", 100)),
        "one tap each": (("recipes", (one_each,)), ("shard", "columns"), ("columns", 33), ("warmup", 0)),
        "all kinds": (("recipes", kinds), ("start", kinds[2:]), ("columns", 17)),
        "two chains": (("recipes", (chains,)), ("shard", "channels"), ("columns", 64)),
    }


def _rows():
    """(algorithm, row, config)."""
    yield from (("banded", one, None) for one in BANDED)
    yield from (("banded", one, ROWWISE) for one in BANDED if one.dilation == 1)
    for table in (BLOCKS, BAND_SETTINGS):
        for why, several in table.items():
            configs = [(("block", one),) if isinstance(one, int) else one for one in several]
            yield from (("banded", row_of(BANDED, why), config) for config in configs)
    yield from (("banded", one, config) for one, config in FILTERS_AGAIN)
    yield from (("dot", one, None) for one in DOT)
    of_dot = (row_of(DOT, why) for why in ("four lags", "stride", "images", "two chunks of taps"))
    yield from (("dot", one, config) for one, config in zip(of_dot, DOT_SETTINGS, strict=True))
    yield from (("update", one, engine) for one in UPDATE for engine in (TENSOR, VECTOR))
    whys = "several chunks", "odd channels"
    of_update = (row_of(UPDATE, why) for why in whys)
    yield from (("update", one, config) for one, config in zip(of_update, UPDATE_SETTINGS, strict=True))
    for why in HARD:
        one = row_of(EDGE, why)
        yield from (("mixed", replace(one, why=f"{why}, {kind}"), own) for kind, own in mixes(one.S).items())
    yield from (("mixed", PIECES, (("recipes", (one,)),)) for one in RECIPES)
    several = ("recipes", tuple(RECIPES[1:4])), ("start", (RECIPES[4],))
    yield "mixed", replace(PIECES, why="recipes of one tile"), several
    for one in FLIPPED:  # those that take neither long nor an algorithm for what it refuses
        if one.lhs == 1:
            yield from (("banded", one, config) for config in ([None, ROWWISE] if one.dilation == 1 else [None]))
        yield from ((algorithm, one, None) for algorithm in ("mixed", "vector") if one.S <= 64)
    yield from ((algorithm, Row("one core's number", 1, 1, 1, 1), None) for algorithm in ("mixed", "vector"))
    of_vector = (0, 4, 0, 0), (0, 0, 1, 3), (0, 3, 1, 0), (0, 2, 1, 1)
    yield from (("vector", PIECES, (("recipes", (one,)),)) for one in of_vector)


def _named(rows, seen=()):
    """pytest's rows, by algorithm, row and which of their settings."""
    for algorithm, row, config in rows:
        seen = (*seen, (algorithm, row.id))
        yield pytest.param(algorithm, row, config, id=f"{algorithm}-{row.id}-{seen.count(seen[-1])}")


@pytest.mark.cover(
    52,
    keep=[
        *("banded-bands_of_many_channels_at_once-1-bf16-plain", "update-dilation-1-bf16-plain"),
        "update-groups_that_overlap-1-bf16-plain", "mixed-one_core's_number-1-bf16-plain"],
)  # fmt: skip
@pytest.mark.parametrize("request_", [
    PLAIN,
    Request(bias="bf16", activation="relu"),
    Request(bias="fp32", residual="fp16", out_dtype="fp32"),
    Request(residual="fp32", residual_position="post_activation", activation="silu"),
    Request(bias="fp32", activation="gelu", residual="bf16"),
    Request("fp32", None, "fp32", out_dtype="fp32", state=True, final=True),
    Request("fp32", "silu", state=True),
    Request("fp32", "tanh", "fp32", "pre_activation", "fp16"),
], ids=lambda request: request.id)  # fmt: skip
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("algorithm", "row", "config"), list(_named(_rows())))
def test_every_setting(algorithm, row, config, dtype, request_):
    problem = row.problem(dtype)
    request_ = fitting(request_, problem)
    if refused(algorithm, problem, request_, config=config):
        assert dtype == "fp32" or request_ != PLAIN, "16-bit rows of the table fit"
        return
    check(problem, request_, 4, whole=request_ == PLAIN, algorithm=algorithm, config=config)


@pytest.mark.cover(4)
@pytest.mark.simulator_only
@pytest.mark.parametrize("columns", [2, 8192])
# Channel tiles that are whole or end early, of one image and of several, of rows in one tile, in several, and of one
# column.
@pytest.mark.parametrize("row", [
    Row("odd tiles", 1, 1111, 40, 4, 1, (3, 0)),
    Row("images", 4, 650, 31, 4, 1, (3, 2)),
    Row("images of odd tiles", 3, 777, 20, 3, 1, (4, 0), 2),
    Row("tokens", 5, 600, 1, 4, 1, (3, 0)),
    Row("a state of one", 2, 1500, 9, 2, 1, (1, -1)),
], ids=lambda row: row.id)  # fmt: skip
def test_states_of_tiles_and_images_are_exact(row, columns):
    config = (("columns", columns),)
    check(row.problem("bf16"), Request(state=True, final=True), 6, whole=True, algorithm="mixed", config=config)


@pytest.mark.parametrize("config", [ROWWISE, (("x_stationary", False),)])
def test_all_digits_of_a_bias_are_added(config):
    rng = np.random.default_rng(11)
    x, w, bias = np.zeros((2, 9, 300)), rng.standard_normal((9, 31)), rng.standard_normal(9).astype(np.float32)
    bf16 = {"x": x.astype(DTYPES["bf16"]), "w": w.astype(DTYPES["bf16"])}
    y = depthwise_conv1d(**bf16, bias=bias, out_dtype="fp32", algorithm="banded", config=config)
    assert (y == bias[:, None]).all()


def test_one_dma_loads_bands_of_several_channels_and_groups():
    """Four groups of 8 channels: 4 channels of two groups each."""
    config = (("block", 16), ("shard", "channels"), ("groups", 4), ("buffer_groups", 2), ("joined", 4))
    found = trace(Row("four groups", 1, 32, 600, 64).problem("bf16"), "banded", lnc=1, config=config).instructions
    copies = [(*one.reads, *one.writes) for one in found if one.op == "dma_copy"]
    assert sum(all(side.info.on_chip for side in sides) for sides in copies) == 32 // (4 * 2)


def test_any_layout_with_x_stationary():
    problem, request = row_of(BANDED, "images share matmuls").problem("bf16"), Request(residual="bf16")
    perms = (0, 3, 2, 1), (3, 1, 2, 0), (1, 0, 2, 3)
    check_stored(problem, request, 7, *perms, algorithm="banded", config=ROWWISE)


@pytest.mark.cover(4)
@pytest.mark.simulator_only
@pytest.mark.parametrize("asked", [None, ROWWISE], ids=["", "x_stationary"])
@pytest.mark.parametrize("row", BANDED, ids=lambda row: row.id)
def test_memory_of_banded_is_bounded_by_what_it_reckons(row, asked, monkeypatch):
    problem = row.problem("bf16")
    asked = asked if row.dilation == 1 else None
    config = ALGORITHMS["banded"].plan(*kernel_view(problem), asked).settings.pairs
    execution = trace(problem, "banded", config=config)
    monkeypatch.setattr("nkiconv.schedules.tiles.SBUF_BYTES", 0)
    needed = int(re.search(r"banded needs (\d+) bytes", reason_to_refuse("banded", problem, config=config))[1])
    assert execution.sbuf_peak_bytes <= needed


@pytest.mark.simulator_only
@pytest.mark.parametrize(("W", "algorithm"), [(19_514, "mixed"), (24_000, "mixed"), (24_000, "vector")])
def test_tiles_whose_last_sums_are_on_their_way_are_counted_with_those_ahead(algorithm, W):
    """39 or 48 KiB a tile: one more than fit would be loaded ahead if the tile before were thought to be gone."""
    problem = Row("long runs of a large stride", 10, 128, W, 66, 53, (65, 0)).problem("bf16")
    assert trace(problem, algorithm).sbuf_peak_bytes <= 212_728


@pytest.mark.parametrize("algorithm", ["mixed", "vector"])
@pytest.mark.parametrize(("W", "columns"), [(4096, 4096), (8192, 4096), (20_000, 6667)])
def test_columns_of_gated_rows_are_halved_until_they_fit(algorithm, W, columns):
    problem = Row("rows with two factors", 1, 2048, W, 3, 1, (2, 0)).problem("bf16")
    geometry, options = kernel_view(problem, Request(chunks="BCx"))
    assert ALGORITHMS[algorithm].unsupported(geometry, options, None) == ""
    assert ALGORITHMS[algorithm].plan(geometry, options, None).settings.columns == columns


@pytest.mark.parametrize(
    ("recipe", "chunks", "banks"), [((3, 2, 0, 0), None, 4), ((2, 0, 1, 2), None, 2), ((3, 2, 0, 0), "Bx", 1)]
)
def test_pieces_in_flight_fit_psum(recipe, chunks, banks):
    """Three of them if chain A has no tap on Vector; pieces of gated rows are of a bank."""
    problem = Row("long rows of many channels", 1, 8192, 4096, 5, 1, (4, 0)).problem("bf16")
    plan = ALGORITHMS["mixed"].plan(*kernel_view(problem, Request(chunks=chunks)), (("recipes", (recipe,)),))
    assert div_ceil(plan.piece, BANK_COLUMNS) == banks


SHORT32, STRIDE2 = SHORT.problem("fp32"), row_of(BANDED, "stride 2").problem("bf16")
FOUR_LAGS, ODD = DOT[0].problem("bf16"), UPDATE[1].problem("bf16")
STRICT = {"strict_nonfinite": True}
HUGE = {"N": 200_000, "C": 200_000, "K": 200_000, "groups": 200_000}


# Algorithm, problem, what is asked for, what the reason has.
@pytest.mark.parametrize(("algorithm", "problem", "asked", "text"), [
    ("banded", STRIDE2.replace(lhs_dilation=(1, 2)), {}, "^lhs_dilation=2:"),
    ("banded", STRIDE2.replace(rhs_dilation=(1, 2)), {}, "^rhs_dilation=2, stride=2:"),
    ("banded", STRIDE2.replace(stride=(1, 129)), {}, "^block=129, stride=129:"),
    ("banded", row_of(EDGE, "dilation beyond a tile").problem("bf16"), {}, "bytes per partition of SBUF"),
    ("banded", STRIDE2, STRICT, "^strict_nonfinite=True"),
    ("banded", STRIDE2, {"config": (("block", 3),)}, "block"),
    ("banded", STRIDE2, {"config": (("images", 16), ("groups", 16))}, "images"),
    ("banded", STRIDE2.replace(**HUGE), {}, "instructions on a core"),
    ("banded", row_of(BANDED, "dilation, causal").problem("bf16"), {"config": ROWWISE},
     "rhs_dilation=2, config x_stationary=True: .* use x_stationary=False"),
    ("banded", Row("many channels", 1, 200_000, 40, 9).problem("bf16"),
     {"config": ROWWISE, "request": Request(bias="fp32")}, "bytes per partition"),
    ("mixed", SHORT32, STRICT, "strict_nonfinite=True"),
    ("mixed", SHORT32.replace(C=256, K=256, groups=256, W=2000, S=600, padding=((0, 0), (0, 0))), {}, "S=600"),
    ("mixed", SHORT32, {"config": (("recipes", ((4, 0, 0, 0),)),)}, "S=5 taps"),
    ("vector", SHORT32, {"config": (("recipes", ((4, 1, 0, 0),)),)}, "taps on Tensor; use algorithm mixed"),
    ("vector", SHORT32.replace(W=100_000, rhs_dilation=(1, 20_000)), {}, "^S=5, dilation=20000: taps .* at most 65535"),
    ("vector", SHORT32.replace(S=60_000, W=10, padding=((0, 0), (59_999, 0))), {}, "S=60000"),
    ("dot", FOUR_LAGS.replace(lhs_dilation=(1, 2)), {}, "^lhs_dilation="),
    ("dot", Row("far", 1, 2, 18_000, 3, 1, (10, 0), 9000).problem("bf16"), {}, "^stride=1, dilation=9000: rows of 128"),
    ("dot", FOUR_LAGS, STRICT, "^strict_nonfinite=True"),
    ("dot", FOUR_LAGS, {"config": (("block", 3),)}, "block"),
    ("dot", FOUR_LAGS.replace(N=20_000, C=20_000, K=20_000, groups=20_000), {}, "instructions"),
    ("dot", Row("most columns", 1, 2, 300 + 64, 300).problem("bf16"), {}, "^Q=65: dot computes at most 64"),
    ("update", ODD.replace(lhs_dilation=(1, 2)), {}, "^lhs_dilation="),
    ("update", ODD.replace(W=129), {}, "^W=129:"),
    *[(one, Row("short", 1, 3, 40, 30, flipped=True).problem("fp32"), {},
       f"flipped=True: {one} reads taps in order; use mixed, vector or banded") for one in ("dot", "update")],
    ("update", ODD, STRICT | {"config": TENSOR}, "^strict_nonfinite=True"),
    ("update", ODD.replace(W=1, S=200, padding=((0, 0), (199, 0))), {"request": Request(state=True)}, "states"),
    ("update", ODD.replace(W=3, S=60_000, padding=((0, 0), (59_999, 0))), {"config": TENSOR}, "^Q=3, S=60000:"),
])  # fmt: skip
def test_refusals_name_what_they_refuse(algorithm, problem, asked, text):
    assert re.search(text, reason_to_refuse(algorithm, problem, **asked))


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [("banded", SHORT32), ("mixed", SHORT32), ("vector", SHORT32), ("dot", FOUR_LAGS), ("update", ODD)],
)
def test_too_many_instructions_are_refused(algorithm, problem, monkeypatch):
    assert reason_to_refuse(algorithm, problem) == ""
    monkeypatch.setattr(long_kernels, "INSTRUCTIONS_MAX", 10)
    text = r"^S=\d+, stride=\(?1.*: this algorithm needs about \d+ instructions on a core, the compiler takes 10; split"
    assert re.search(text, reason_to_refuse(algorithm, problem))


PROBLEM = Row("short filter", 2, 9, 60, 4, 1, (3, 0)).problem("fp32")

few = st.integers(1, 8)
shards = st.sampled_from(["channels", "columns", "batch"])


@st.composite
def recipes(draw, S, on_tensor, least):
    """Tuples of (tensor, vector_a, head, vector_b) whose taps are S; without Tensor, Scalar takes one more."""
    found = []
    for _ in range(draw(st.integers(least, 3))):
        tensor = draw(st.integers(0, S)) if on_tensor else 0
        rest = S - max(1, tensor)
        head = draw(st.integers(0, min(1, rest)))
        second = draw(st.integers(0, rest - head)) if head else 0
        found.append((tensor, rest - head - second, head, second))
    return tuple(found)


def settings_of(algorithm, S):
    """A strategy for the value of each setting, by name."""
    at_least = [recipes(S, algorithm == "mixed", least) for least in (0, 1)]
    of_rows = {"recipes": at_least[1], "start": at_least[0], "shard": shards}
    of_rows |= {"columns": st.integers(1, 700), "warmup": st.integers(0, 8)}
    return {
        "mixed": of_rows, "vector": of_rows,
        "banded": {"block": st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.integers(1, 128)),
         "shard": shards, "groups": st.integers(1, 40), "images": few, "buffers": st.integers(1, 16),
         "buffer_groups": few, "warmup": st.integers(0, 8), "streamed": st.integers(1, 12),
         "joined": st.integers(1, 16), "rewarm": st.integers(0, 8), "x_stationary": st.booleans()},
        "dot": {"block": st.sampled_from([1, 2, 4, 8, 16]), "slots": st.integers(1, 70), "warmup": few},
        "update": {"engine": st.sampled_from(["tensor", "vector"]), "vector_reads": st.integers(0, 4),
         "warmup": few},
    }.get(algorithm, {})  # fmt: skip


def configs(algorithm, S):
    """Configs with any of the settings."""
    values = settings_of(algorithm, S)
    return st.fixed_dictionaries({}, optional=values).map(lambda found: tuple(found.items()) or None)


@draws(15, 45)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), whole=st.booleans(), strict=st.booleans())
@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_any_problem_request_and_settings(algorithm, data, seed, whole, strict):
    """Whatever is refused, is refused by the kernel in the same words; whatever is not, is right."""
    most_channels = 12 if algorithm == "update" else 40
    problem = data.draw(problems_for(algorithm, widest=200, most_taps=24, most_channels=most_channels))
    request = data.draw(requests(problem))
    config = data.draw(st.one_of(st.none(), configs(algorithm, problem.S)))
    if config is None:
        check_in_scope(algorithm, problem, request, seed, whole=whole, strict_nonfinite=strict)
    elif refused(algorithm, problem, request, config=config, strict_nonfinite=strict) == "":
        check(problem, request, seed, whole=whole, algorithm=algorithm, config=config, strict_nonfinite=strict)


@draws(16, 40)
@given(
    st.integers(1, 2), st.sampled_from((1, 3, 64, 130)), st.integers(1, 90), st.integers(1, 40), st.integers(1, 3),
    st.integers(1, 2), st.tuples(st.integers(0, 5), st.integers(-1, 5)), st.sampled_from(FLOATS),
)  # fmt: skip
def test_gradients_by_x(N, C, W, S, stride, dilation, pad, dtype):
    assume(W + sum(pad) >= (S - 1) * dilation + 1)
    back = Row("any", N, C, W, S, stride, pad, dilation).problem(dtype).toward("dgrad")
    gy, w = integers(np.random.default_rng(W), back)
    found = depthwise_conv1d_input((N, C, W), w[:, 0, 0], gy[:, :, 0], stride=stride, padding=pad, dilation=dilation)
    assert_exact(found[:, :, None], truth(gy, w, back)[0], dtype)
    assert depthwise_conv1d_input((0, C, W), w[:, 0, 0], gy[:0, :, 0], stride=stride, padding=pad,
                                  dilation=dilation).shape == (0, C, W)  # fmt: skip


@pytest.mark.cover(30)
@pytest.mark.simulator_only
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("value", [0, -1, 10**9, 1.5, "x", None, (), (0,), ((1, 2),), True], ids=str)
@pytest.mark.parametrize(
    ("algorithm", "name"), [(algorithm, name) for algorithm in ALGORITHMS for name in settings_of(algorithm, 1)]
)
def test_bad_values_are_refused_by_name_or_harmless(algorithm, name, value):
    """Never an error of Python's or of the simulator's: the kernel names the setting, or gives the right result."""
    config = ((name, value),)
    reason = refused(algorithm, PROBLEM, config=config)
    assert reason == "" or name in reason or re.search("instructions|bytes", reason)
    if reason == "":
        check(PROBLEM, PLAIN, 1, whole=True, algorithm=algorithm, config=config)
