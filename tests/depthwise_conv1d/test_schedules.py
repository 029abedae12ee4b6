"""A schedule is built once: by the host that chooses, and not again by the kernel, nor by the next call."""

import numpy as np
import pytest

import nkiconv
from nkiconv.schedules import banded, mixed

BUILDS = {"mixed": mixed.build, "vector": mixed.build, "banded": banded.build}


@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("algorithm", BUILDS)
def test_a_call_builds_its_schedule_once(algorithm, lnc):
    build = BUILDS[algorithm]
    x, w = np.ones((1, 24, 90), "f4"), np.ones((24, 7), "f4")
    chosen = nkiconv.plan(nkiconv.ConvProblem(N=1, C=24, W=90, S=7, groups=24), algorithms=(algorithm,), lnc=lnc)
    build.cache_clear()
    for misses in (1, 1):
        nkiconv.depthwise_conv1d(x, w, algorithm=algorithm, config=chosen.config, lnc=lnc)
        assert build.cache_info().misses == misses
    nkiconv.depthwise_conv1d(x, w, algorithm=algorithm, lnc=lnc)
    misses = build.cache_info().misses
    nkiconv.depthwise_conv1d(x, w, algorithm=algorithm, lnc=lnc)
    assert build.cache_info().misses == misses
