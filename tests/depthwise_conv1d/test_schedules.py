"""A schedule is built once: by the host that chooses, and not again by the kernel, nor by the next call."""

import numpy as np
import pytest

import nkiconv
from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.request import Request
from nkiconv.schedules import banded, dot, mixed, update
from nkiconv.simulator.timing import Rates

BUILDS = {
    "mixed": (mixed.build, 90, 7), "vector": (mixed.build, 90, 7), "banded": (banded.build, 90, 7),
    "dot": (dot.build, 300, 290), "update": (update.build, 8, 7),
}  # fmt: skip


@pytest.mark.cover(5)
@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("algorithm", BUILDS)
def test_a_call_builds_its_schedule_once(algorithm, lnc):
    build, W, S = BUILDS[algorithm]
    x, w = np.ones((2, 24, W), "f4"), np.ones((24, S), "f4")
    problem = nkiconv.ConvProblem(N=2, C=24, W=W, S=S, groups=24, dtype="fp32")
    request, operation = Request(problem=problem, lnc=lnc), OPERATIONS["depthwise_conv1d"]
    config = operation.complete(algorithm, operation.shape(request, Rates()), None)
    build.cache_clear()
    for misses in (1, 1):
        nkiconv.depthwise_conv1d(x, w, algorithm=algorithm, config=config, lnc=lnc)
        assert build.cache_info().misses == misses
    nkiconv.depthwise_conv1d(x, w, algorithm=algorithm, lnc=lnc)
    misses = build.cache_info().misses
    nkiconv.depthwise_conv1d(x, w, algorithm=algorithm, lnc=lnc)
    assert build.cache_info().misses == misses


def test_a_kernel_that_issues_more_than_it_counts_is_noticed(monkeypatch):
    """By `conftest.py`, of every launch of this folder."""
    monkeypatch.setattr(mixed, "count_mixed_instructions", lambda *_: 1)
    x, w = np.ones((2, 24, 9), "f4"), np.ones((24, 3), "f4")
    with pytest.raises(nkiconv.UnsupportedError, match="<= 1"):
        nkiconv.depthwise_conv1d(x, w, algorithm="mixed")
