"""Estimates of a kernel's instructions, before it is traced, against the trace; and the refusal of too many."""

import math
import re

import pytest

from nkiconv import ConvProblem, cases
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.planner.timing import trace
from nkiconv.schedules import b2b, long_kernels, pointwise_mlp, split
from nkiconv.schedules.long_kernels import ISSUE_NS, TILE_INSTRUCTIONS, too_long, too_many, too_many_tiles
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only


def test_the_refusal_says_how_many_calls_are_enough():
    assert too_many("C=2, K=2: stacked", 5_000_000) == ""
    assert too_many("C=2, K=2: stacked", 12_000_001) == (
        "C=2, K=2: stacked needs about 12000001 instructions on a core, the compiler takes 5000000; split its images, "
        "rows, tokens or channels over 3 calls"
    )
    assert too_long("", 5e6 * ISSUE_NS) == ""
    assert "about 6000000 instructions" in too_long("", 6e6 * ISSUE_NS)
    assert too_many_tiles("", 2 * 5_000_000 // TILE_INSTRUCTIONS) == ""
    assert "over 2 calls" in too_many_tiles("", 4 * 4_500_000 // TILE_INSTRUCTIONS)


@pytest.mark.parametrize(("name", "algorithm"), [
    ("mobilenet_dw", "weight_stationary"), ("rn50_1x1", "implicit_gemm"), ("rn50_stem", "stacked"),
    ("convnext_dw7", "activation_stationary"), ("nkl_n1_c16_w512_s64", "banded"), ("nkl_n1_c256_w129_s128", "dot"),
    ("kda_bf16", "mixed"), ("kda_bf16", "vector"), ("decode_step", "update"),
])  # fmt: skip
def test_estimates_are_near_the_trace(name, algorithm):
    request = Request(problem=cases.get(name).problem)
    operation = operation_for(request)
    _, guess = operation.near_least(operation.whole_shape(request, Rates()), (algorithm,), math.inf)[0]
    true = trace(request, Candidate(algorithm, guess.config), Rates()).compiled / request.lnc
    assert 0.7 * true < guess.ns / ISSUE_NS < 5 * true


ROWS = ConvProblem(N=3, C=37, K=37, groups=37, W=211, S=5)
IMAGES = ConvProblem(N=3, C=24, K=24, groups=6, H=19, W=23, R=3, S=3)
CONV = ConvProblem(N=3, C=67, K=35, H=19, W=23, R=3, S=3)
#: Algorithm, problem that no other test has, as its plans are kept.
TAKEN = [
    ("implicit_gemm", CONV), ("stacked", CONV), ("activation_stationary", CONV.replace(layout="NHWC")),
    ("weight_stationary", IMAGES), ("blocks", CONV.toward("wgrad")), ("diagonals", IMAGES.toward("wgrad")),
    ("skewed", ROWS.toward("wgrad")), ("banded", ROWS), ("vector", ROWS.toward("wgrad")),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "problem"), TAKEN)
def test_every_algorithm_refuses_too_many(algorithm, problem, change):
    is_rows = problem.W == ROWS.W and problem.direction != "forward"
    request = Request(problem=problem, operation="depthwise_conv1d_weight" if is_rows else None)
    operation = operation_for(request)
    change(long_kernels, "INSTRUCTIONS_MAX", 2)
    reason = operation.kernel_reason(algorithm, operation.whole_shape(request, Rates()), None)
    assert re.search(r"^\w+=\d+, .*: .* needs about \d+ instructions on a core, the compiler takes 2; split", reason)


def test_blocks_of_layers_refuse_too_many(change):
    change(long_kernels, "INSTRUCTIONS_MAX", 2)
    tokens = split.SplitGeometry(1, 64, 900, 4, ((1, 64, False),), 0, 1, 64, 2, split.rows_of(1, 900))
    for reason in (
        pointwise_mlp.unsupported_reason(pointwise_mlp.MlpGeometry(2, 96, 384, 96, 900, 2, 0)),
        b2b.unsupported_reason(b2b.B2bGeometry(2, 96, 900, 3, 7, 2)),
        split.tokens_unsupported(tokens),
    ):
        assert "instructions on a core, the compiler takes 2; split" in reason
