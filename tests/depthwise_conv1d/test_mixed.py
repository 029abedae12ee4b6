"""`mixed`: settings are right on every edge, x is loaded once in long runs, engines share the taps as recipes say."""

import numpy as np
import pytest
from depthwise import EDGE, Row, integers, loads, run, same_bits, trace, truth
from epilogue import Request, check, refused
from rows import staged, times_floor
from tolerances import assert_exact

from nkiconv import cases
from nkiconv.planner.floors import floors
from nkiconv.simulator.memory import PRIVATE_HBM
from nkiconv.simulator.timing import Rates, hbm_ns

#: Rows with stacked groups, several channel tiles, gaps, halos as long as the row, far taps, long strides.
HARD = [
    row
    for row in EDGE
    if row.why
    in (
        "one column", "odd channels", "channels of several tiles", "columns cross one load", "causal",
        "padding wider than the row", "crop inside a gap", "stride 64 loads runs", "stride 65 steps in the DMA",
        "dilation beyond a tile", "lhs dilation", "all three together",
    )
]  # fmt: skip


def config_of(S, kind):
    """Settings far from the defaults, for any number of taps."""
    if kind == "tensor only":
        return (("recipes", ((S, 0, 0, 0),)), ("piece", 100))
    if kind == "one tap each":
        recipe = (S - 2, 1, 1, 0) if S >= 3 else (S, 0, 0, 0)
        return (("recipes", (recipe,)), ("shard", "columns"), ("columns", 33), ("warmup", 0))
    if kind == "all kinds":
        recipes = ((S, 0, 0, 0), (1, S - 1, 0, 0), (0, S - 1, 0, 0))
        return (("recipes", recipes), ("start", recipes[2:]), ("end", recipes[1:2]), ("piece", 17), ("columns", 50))
    shared = (1, (S - 2) - (S - 2) // 2, 1, (S - 2) // 2) if S >= 3 else (S, 0, 0, 0)
    return (("recipes", (shared,)), ("shard", "channels"), ("piece", 64))


@pytest.mark.cover(21)
@pytest.mark.parametrize("kind", ["tensor only", "one tap each", "all kinds", "two chains"])
@pytest.mark.parametrize("row", HARD, ids=lambda row: row.id)
def test_settings_are_exact_on_integers(row, kind):
    problem = row.problem("bf16")
    x, w = integers(np.random.default_rng(1), problem)
    y, _ = truth(x, w, problem)
    options = {"algorithm": "mixed", "config": config_of(row.S, kind)}
    one, two = run(x, w, problem, 1, **options), run(x, w, problem, 2, **options)
    assert_exact(one, y, "bf16")
    assert same_bits(one, two)


#: Channel tiles that are whole or end early, of one image and of several, of rows in one tile, in several, and of one
#: column.
STATEFUL = [
    Row("odd tiles", 1, 1111, 40, 4, 1, (3, 0)),
    Row("images", 4, 650, 31, 4, 1, (3, 2)),
    Row("images of odd tiles", 3, 777, 20, 3, 1, (4, 0), 2),
    Row("tokens", 5, 600, 1, 4, 1, (3, 0)),
    Row("a state of one", 2, 1500, 9, 2, 1, (1, -1)),
]


@pytest.mark.cover(4)
@pytest.mark.simulator_only
@pytest.mark.parametrize("columns", [2, 8192])
@pytest.mark.parametrize("row", STATEFUL, ids=lambda row: row.id)
def test_staged_states_are_exact(row, columns):
    config = (("columns", columns),)
    check(row.problem("bf16"), Request(state=True, final=True), 6, whole=True, algorithm="mixed", config=config)


SHORT = Row("short filter", 2, 131, 90, 5, 1, (4, 0)).problem("bf16")
RECIPES = [(5, 0, 0, 0), (4, 1, 0, 0), (3, 2, 0, 0), (4, 0, 1, 0), (2, 1, 1, 1), (0, 4, 0, 0), (0, 2, 1, 1)]
REQUESTS = [
    Request("fp32"),
    Request("bf16", "relu"),
    Request("fp32", "silu", state=True),
    Request(None, "gelu_tanh", "bf16", "post_activation"),
    Request("fp32", None, "fp32", out_dtype="fp32", state=True, final=True),
    Request("fp32", "tanh", "fp32", "pre_activation", "fp16"),
]


@pytest.mark.cover(13)
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_every_kind_of_recipe_has_every_epilogue(recipe, request_):
    config = (("recipes", (recipe,)), ("piece", 40), ("end", ()))
    check(SHORT, request_, 2, whole=False, algorithm="mixed", config=config)


def test_what_it_refuses():
    assert "strict_nonfinite=True" in refused("mixed", SHORT, strict_nonfinite=True)
    long = SHORT.replace(C=256, K=256, groups=256, W=2000, S=600, padding=((0, 0), (0, 0)))
    assert "S=600" in refused("mixed", long)
    assert "S=5 taps" in refused("mixed", SHORT, config=(("recipes", ((4, 0, 0, 0),)),))
    wide = SHORT.replace(W=5000)
    held = (("recipes", ((2, 0, 1, 2),)), ("piece", 2048))
    assert "banks of PSUM" in refused("mixed", wide, config=held)


HEADLINES = ["mamba2_prefill", "mamba2_prefill_fp32", "qwen3_next_gdn", "kda_fp32", "kda_bf16", "nkl_fs_asr"]


@pytest.mark.cover(2)
@pytest.mark.simulator_only
@pytest.mark.parametrize("name", HEADLINES)
def test_x_is_loaded_once_and_nothing_is_staged(name):
    problem = cases.get(name).problem
    execution = trace(problem, "mixed")
    of_x = loads(execution, "img_ref")
    num_bytes = sum(i.writes[0].num_bytes for i in of_x)
    x_bytes = problem.C * problem.W * of_x[0].reads[0].itemsize
    # a row may be cut once into halves, and each of these once into tiles: their halos are loaded twice
    halos = 4 * problem.C * (problem.S - 1) * of_x[0].reads[0].itemsize
    assert x_bytes <= num_bytes <= x_bytes + halos
    assert staged(execution) == []
    regions = [r for i in execution.instructions for r in (*i.writes, *i.reads)]
    assert {r.info.name for r in regions if r.info.buffer is PRIVATE_HBM} <= {"img_ref", "filter_ref"}


@pytest.mark.simulator_only
@pytest.mark.parametrize("W", [19_514, 24_000])
@pytest.mark.parametrize("algorithm", ["mixed", "vector"])
def test_tiles_whose_last_sums_are_on_their_way_are_counted_with_those_ahead(algorithm, W):
    """39 or 48 KiB a tile: one more than fit would be loaded ahead if the tile before were thought to be gone."""
    problem = Row("long runs of a large stride", 10, 128, W, 66, 53, (65, 0)).problem("bf16")
    assert trace(problem, algorithm).sbuf_peak_bytes <= 212_728


@pytest.mark.cover(1)
@pytest.mark.simulator_only
@pytest.mark.parametrize("name", ["mamba2_prefill", "mamba2_prefill_fp32", "qwen3_next_gdn"])
def test_four_taps_take_as_long_as_moving_the_data(name):
    """In runs of its rows, where the floor's are as long as it likes."""
    problem = cases.get(name).problem
    rows, floor = problem.W * problem.itemsize, floors(problem, 2).copy_tile_bytes
    longer = hbm_ns(1, min(rows, floor), Rates()) / hbm_ns(1, floor, Rates())
    assert times_floor(trace(problem, "mixed"), problem) <= 1.03 * longer
