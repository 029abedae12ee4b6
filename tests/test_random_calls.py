"""Every algorithm of every operation on random calls, whatever its acceptance leaves free: exact on integers."""

import random

import pytest
from draws import draws
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from random_calls import RANKS, a_call, check_call

from nkiconv.planner.operations import OPERATIONS
from nkiconv.schedules.implicit_gemm import PRODUCTS

FEW, MANY = 14, 400
#: A smaller number is no simpler call.
AS_DRAWN = {"phases": (Phase.reuse, Phase.generate)}
SEEDS = st.integers(0, 2**32 - 1)
#: (operation, algorithm or None: the kernel's own choice, how implicit_gemm takes products or None: as it chooses).
JOBS = [
    *((operation, algorithm, None) for operation in RANKS for algorithm in (*OPERATIONS[operation].algorithms, None)),
    *((operation, "implicit_gemm", product) for operation in ("conv2d", "conv3d") for product in PRODUCTS[1:]),
]
IDS = ["-".join(str(part) for part in one if part is not None) for one in JOBS]


def check(job, seed):
    call = a_call(random.Random(seed), *job)
    assume(call is not None)
    check_call(call, seed)


@pytest.mark.parametrize("job", JOBS, ids=IDS)
@settings(draws(FEW), **AS_DRAWN)
@given(seed=SEEDS)
def test_random_calls(job, seed):
    check(job, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", JOBS, ids=IDS)
@settings(draws(MANY), **AS_DRAWN)
@given(seed=SEEDS)
def test_many_random_calls(job, seed):
    check(job, seed)
