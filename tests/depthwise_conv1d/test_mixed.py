"""`mixed`: settings are right on every edge, x is loaded once in long runs, engines share the taps as recipes say."""

from collections import Counter

import numpy as np
import pytest
from depthwise import EDGE, Row, integers, loads, run, same_bits, trace, truth
from epilogue import Request, check, refused
from rows import shortest_run, staged, times_floor
from tolerances import assert_exact

import nkiconv
from nkiconv import cases
from nkiconv.planner.floors import floors
from nkiconv.simulator.memory import PRIVATE_HBM, PSUM
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


@pytest.mark.cover(3)
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


@pytest.mark.cover(2)
@pytest.mark.simulator_only
@pytest.mark.parametrize("name", HEADLINES)
def test_runs_are_long_after_the_first_tile(name):
    """The first tile comes in narrow pieces, so that sums start early; every other load has runs of 2 KiB and more."""
    problem = cases.get(name).problem
    for program in trace(problem, "mixed").programs:
        of_x = [i for i in program.instructions if i.op == "dma_copy" and i.reads[0].info.name == "img_ref"]
        first = of_x[0].writes[0].info.id
        others = [i for i in of_x if i.writes[0].info.id != first]
        assert others
        assert shortest_run(others) >= 2048


def with_state(problem):
    """The option of a call that gives it a state."""
    (left, _), dtype = problem.padding[1], problem.dtype
    return {"initial_state": nkiconv.spec((problem.N, problem.C, left), dtype)}


@pytest.mark.simulator_only
def test_states_of_all_tiles_but_the_first_are_one_run_a_partition():
    problem = cases.get("mamba2_prefill").problem
    execution = trace(problem, "mixed", **with_state(problem))
    for program in execution.programs:
        of_states = [i for i in program.instructions if i.op == "dma_copy" and i.reads[0].info.name == "initial_state"]
        assert [i.reads[0].num_bytes for i in of_states] == [128 * 3 * 2, 128 * 32 * 3 * 2]
        assert shortest_run(of_states[1:]) == 32 * 3 * 2


@pytest.mark.simulator_only
def test_filters_of_all_tiles_are_one_run_a_partition():
    """Channel p * T + t is on partition p of tile t, so 32 tiles of 4 taps are 128 elements side by side."""
    execution = trace(cases.get("mamba2_prefill_fp32").problem, "mixed")
    of_w = loads(execution, "filter_ref")
    assert len(of_w) == 2, "one for each core"
    assert [i.reads[0].strides for i in of_w] == [(64 * 4, 4, 1)] * 2
    assert [i.reads[0].shape for i in of_w] == [(128, 32, 4)] * 2


@pytest.mark.simulator_only
def test_taps_are_shared_out_as_the_recipe_says():
    """In two pieces; Vector, which is faster and has nothing more to do, adds the chains of the last."""
    problem = Row("one tile", 1, 256, 515, 4).problem("bf16")
    plain = (("end", ()), ("start", ()), ("warmup", 0))
    config = (("recipes", ((1, 1, 1, 1),)), ("piece", 512), ("shard", "channels"), *plain)
    ops = Counter((i.engine, i.op) for i in trace(problem, "mixed", config=config).programs[0].instructions)
    assert ops["tensor", "nc_matmul"] == 2
    assert ops["vector", "scalar_tensor_tensor"] == 4
    assert ops["scalar", "tensor_scalar"] == 2
    assert ops["gpsimd", "tensor_tensor"] == ops["vector", "tensor_tensor"] == 1
    assert ops["gpsimd", "affine_select"] == 1, "all diagonals of a tile by one select"


@pytest.mark.simulator_only
def test_vector_reads_psum_with_a_tap_of_its_own():
    problem = Row("one tile", 1, 256, 515, 4).problem("bf16")
    execution = trace(problem, "mixed", config=(("recipes", ((3, 1, 0, 0),)), ("end", ())))
    readers = {i.op for i in execution.instructions if any(r.info.buffer is PSUM for r in i.reads)}
    assert readers == {"scalar_tensor_tensor"}


@pytest.mark.simulator_only
@pytest.mark.parametrize(("C", "N", "W"), [(1, 1, 100_000), (383, 1, 1000), (16, 1, 512), (129, 2, 400), (3, 5, 2000)])
def test_both_cores_and_most_partitions_work(C, N, W):
    execution = trace(Row("any", N, C, W, 5).problem("bf16"), "mixed")
    columns = [
        sum(i.params["moving_columns"] for i in p.instructions if i.op == "nc_matmul") for p in execution.programs
    ]
    assert max(columns) <= 1.6 * min(columns)
    assert max(i.writes[0].info.shape[0] for i in loads(execution, "img_ref")) >= 64


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


@pytest.mark.cover(1)
@pytest.mark.simulator_only
@pytest.mark.parametrize("N", [1, 8])
@pytest.mark.parametrize("S", [2, 4])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_state_costs_little_more_than_its_bytes(dtype, S, N):
    problem = Row("causal", N, 8192 // N, 2048, S, 1, (S - 1, 0)).problem(dtype)
    without, given = trace(problem, "mixed"), trace(problem, "mixed", **with_state(problem))
    assert times_floor(given, problem) <= 1.02 * times_floor(without, problem)


@pytest.mark.simulator_only
def test_states_of_short_rows_do_not_hold_the_array_up():
    """A pause of the array in its first windows would leave it at half rate for good."""
    problem = Row("short rows", 16, 2048, 64, 4, 1, (3, 0)).problem("bf16")
    without, given = trace(problem, "mixed"), trace(problem, "mixed", **with_state(problem))
    assert times_floor(given, problem) <= 1.05 * times_floor(without, problem)
