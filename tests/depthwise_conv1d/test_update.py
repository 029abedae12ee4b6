"""`update`: one step for many sequences, exact on integers; what it reads and how often; what it refuses."""

import dataclasses
import functools

import pytest
from depthwise import Row, row_of, trace
from epilogue import PLAIN, Request, check, reason_to_refuse

ROWS = [
    #   why                             N    C     W    S  stride  pad     dil
    Row("window of four", 64, 128, 4, 4),
    Row("odd channels", 64, 131, 4, 4),
    Row("token after a state", 64, 300, 1, 4, 1, (3, 0)),
    Row("tokens after a state", 5, 37, 3, 4, 1, (3, 0)),
    Row("state wider than its dilation", 6, 20, 5, 3, 1, (8, 0), 4),
    Row("one image", 1, 200, 4, 4),
    Row("70 images", 70, 33, 5, 3, 1, (1, 1)),
    Row("image tiles", 201, 9, 4, 4),
    Row("one channel", 64, 1, 4, 4),
    Row("one channel of one image", 1, 1, 4, 4),
    Row("two channels, stride", 33, 2, 7, 3, 2, (1, 2)),
    Row("dilation", 40, 50, 9, 3, 1, (4, 4), 2),
    Row("longest row", 12, 10, 128, 5, 3, (2, 2)),
    Row("several chunks", 20, 1200, 4, 4),
    Row("crop", 20, 30, 12, 4, 1, (-2, -3)),
    Row("mostly padding", 3, 5, 2, 2, 1, (6, 7)),
    Row("partitions between pieces", 48, 700, 4, 4),
    Row("two columns", 32, 100, 5, 4),
    Row("many columns of long rows", 2, 300, 128, 5, 1, (2, 2)),
    Row("several loads of filters", 16, 18_000, 4, 4),
    Row("long filters", 16, 70, 3, 3000, 1, (2999, 0)),
]
TENSOR = (("engine", "tensor"),)
VECTOR = (("engine", "vector"),)
CONFIGS = [
    VECTOR,
    (*TENSOR, ("vector_reads", 1)),
    (*TENSOR, ("vector_reads", 0), ("warmup", 9)),
    (*TENSOR, ("channels", 3), ("groups", 5), ("warmup", 0)),
]


row = functools.partial(row_of, ROWS)


@pytest.mark.cover(6)
@pytest.mark.parametrize("config", [TENSOR, VECTOR], ids=["tensor", "vector"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_exact_on_integers(row, dtype, config):
    check(row.problem(dtype), PLAIN, 1, whole=True, algorithm="update", config=config)


@pytest.mark.cover(6)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("why", ["odd channels", "several chunks", "image tiles", "partitions between pieces"])
def test_every_setting_gives_the_same_sums(why, config):
    check(row(why).problem("bf16"), PLAIN, 2, whole=True, algorithm="update", config=config)


@pytest.mark.simulator_only
@pytest.mark.parametrize(("N", "engine"), [(1, "vector"), (64, "tensor")])
def test_few_sequences_are_for_vector_and_many_for_the_array(N, engine):
    problem = row("window of four").problem("bf16").replace(N=N, C=8192, K=8192, groups=8192)
    matmuls = [i for i in trace(problem, "update").instructions if i.op == "nc_matmul"]
    assert bool(matmuls) == (engine == "tensor")


def test_refusals_name_what_they_refuse():
    problem = row("odd channels").problem("bf16")
    assert reason_to_refuse("update", problem.replace(lhs_dilation=(1, 2)), lnc=1).startswith("lhs_dilation=")
    assert reason_to_refuse("update", problem.replace(W=129), lnc=1).startswith("W=129:")
    wide = problem.replace(W=20, S=3, padding=((0, 0), (300, 300)))
    assert reason_to_refuse("update", wide, lnc=1, config=TENSOR).startswith("Q=")
    assert reason_to_refuse("update", problem, lnc=1) == ""
    assert reason_to_refuse("update", problem, lnc=1, strict_nonfinite=True) == ""
    strict = reason_to_refuse("update", problem, lnc=1, strict_nonfinite=True, config=TENSOR)
    assert strict.startswith("strict_nonfinite=True")
    for config in (
        (("engine", "scalar"),),
        (("vector_reads", -1),),
        (("channels", 0),),
        (("groups", 17),),
        (("warmup", -1),),
    ):
        assert config[0][0] in reason_to_refuse("update", problem, lnc=1, config=config)
    long_state = problem.replace(W=1, S=200, padding=((0, 0), (199, 0)))
    assert reason_to_refuse("update", long_state, lnc=1) == ""
    assert "states" in reason_to_refuse("update", long_state, Request(state=True), lnc=1)
    long_filter = problem.replace(W=3, S=60_000, padding=((0, 0), (59_999, 0)))
    assert reason_to_refuse("update", long_filter, lnc=1, config=TENSOR).startswith("Q=3, S=60000:")


def test_what_takes_too_many_instructions_is_refused_before_it_is_cut(monkeypatch):
    monkeypatch.setattr("nkiconv.schedules.update.update_chunks", None)
    huge = dataclasses.replace(row("odd channels").problem("bf16"), N=200_000, C=200_000, K=200_000, groups=200_000)
    assert "instructions" in reason_to_refuse("update", huge, lnc=2)
