"""All rows of cases/depthwise_conv1d.csv on 1 and 2 cores against the reference.

Rows that take a second or minutes run whole under `-m slow`; otherwise they are traced whole (every rule is checked)
and computed for a sample of channels, which is the same kernel on fewer channels.
"""

import numpy as np
import pytest
from depthwise import normals, run, same_bits, truth
from tolerances import assert_within

from nkiconv import cases
from nkiconv.reference import num_terms

SAMPLED_CHANNELS = 37
CASES = cases.load("depthwise_conv1d")
#: Minutes and seconds; many products, or long filters of many channels.
LARGE = ("nkl_qwen3", "hyena", "mamba2_prefill", "mamba2_prefill_fp32", "qwen3_next_gdn", "conformer",
         "nkl_n1_c2048_w2048_s256", "nkl_st4_p0_c2048_w2048_s256_bf16", "nkl_n1_c1024_w1024_s128",
         "nkl_pad_n1_c1024_w1024_s128", "nkl_st2_p5_c1024_w1024_s128_bf16")  # fmt: skip


def check(problem, seed):
    x, w = normals(np.random.default_rng(seed), problem)
    y, abs_sum = truth(x, w, problem)
    one, two = run(x, w, problem, 1), run(x, w, problem, 2)
    assert_within(one, y, abs_sum, num_terms(problem), problem.dtype)
    assert same_bits(one, two)


@pytest.mark.cover(3)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.name not in LARGE])
def test_case(case):
    check(case.problem, seed=7)


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", LARGE)
def test_large_case_on_sampled_channels(name):
    problem = cases.get(name).problem
    few = problem.replace(C=SAMPLED_CHANNELS, K=SAMPLED_CHANNELS, groups=SAMPLED_CHANNELS)
    check(few, seed=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_case_whole(name):
    check(cases.get(name).problem, seed=9)
