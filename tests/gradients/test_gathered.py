"""Sums of all taps of some channels leave together: exact, and in runs of all taps."""

import pytest
from draws import cores
from gradients import check

#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after).
SEVERAL = {
    "planes": ((1, 40, 150, 1), (5, 3, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)),
    "planes alone": ((2, 150, 130, 1), (5, 3, 1, 1, 1, 1), (6, 1, 2, 1, 0, 0), (7, 1, 2, 1, 0, 0)),
    "groups": ((1, 12, 8, 4), (4, 2, 1, 1, 1, 0), (6, 3, 1, 1, 1, 1), (5, 2, 1, 1, 1, 0)),
    "rows": ((1, 3, 5, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
}
CONFIGS = {
    "one pass": (),
    "passes of both cores": (("outputs", 1), ("inputs", 1), ("channels", 1), ("split", 0)),
    "rounds": (("outputs", 2), ("inputs", 2), ("split", 0)),
    "halves": (("split", 1), ("rows", 1)),
    "exchanged": (("exchanged", 1),),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", SEVERAL)
def test_every_problem_is_exact(name, config, is_last):
    channels, *axes = SEVERAL[name]
    unstrided = channels[3] == 1 and all(axis[2] == 1 for axis in axes)
    settings = CONFIGS[config] if unstrided or config != "exchanged" else ()
    for lnc in cores():
        check(channels, axes, is_last, lnc=lnc, adds=lnc == 2, config=settings or None)
