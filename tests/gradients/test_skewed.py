"""`skewed`: exact sums under every setting, what it needs, and when the host takes it."""

import numpy as np
import pytest
from depthwise import on_cores
from depthwise_gradients import FEW, PROBLEMS, check, problem_of

import nkiconv
from nkiconv.kernels.gradients.depthwise_conv1d import SKEWED, depthwise_conv1d_weight_gradient
from nkiconv.schedules import skewed
from nkiconv.schedules.skewed import BESIDE
from nkiconv.simulator import KernelAssertionError

#: (N, C), (size, taps, stride, dilation, before, after).
MORE = {
    "parts of positions": ((3, 40), (1500, 5, 1, 1, 2, 2)),
    "parts of positions, strided": ((2, 6), (2100, 4, 3, 2, 3, -1)),
    "more images than partitions": ((150, 9), (20, 3, 1, 1, 1, 1)),
    "images that fill no tile": ((33, 32), (36, 16, 1, 1, 0, 0)),
    "chunks of taps": ((1, 3), (1400, 700, 1, 1, 10, 10)),
    "a window before and behind x": ((1, 4), (90, 40, 1, 1, 100, 100)),
    "far strides": ((1, 3), (3000, 3, 300, 1, 0, 0)),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", [*PROBLEMS, *MORE])
def test_channels_beside_each_other(name, beside):
    given = {**PROBLEMS, **MORE}[name]
    config = (("beside", beside),)
    on_cores(check, *given, algorithm=SKEWED, config=config, adds=True)


#: Of PROBLEMS and MORE those without stride and dilation.
PLAIN = [name for name, ((N, _), axis) in {**PROBLEMS, **MORE}.items() if axis[2:4] == (1, 1) and N < 100]


@pytest.mark.cover(0, keep=["windows outside x-3", "one channel-16", "chunks of taps-2"])
@pytest.mark.parametrize("shifts", [2, 3, 16])
@pytest.mark.parametrize("name", PLAIN)
def test_parts_of_taps(name, shifts):
    given = {**PROBLEMS, **MORE}[name]
    on_cores(check, *given, algorithm=SKEWED, config=(("shifts", shifts),), adds=True)


@pytest.mark.cover(3)
@pytest.mark.parametrize("buffers", [2, 5])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", [*FEW, "parts of positions"])
def test_batches(name, groups, buffers, monkeypatch):
    monkeypatch.setattr(skewed, "BUFFERS", buffers)
    monkeypatch.setattr(skewed, "build", skewed.build.__wrapped__)
    config = (("beside", 2), ("groups", groups))
    check(*{**PROBLEMS, **MORE}[name], algorithm=SKEWED, config=config, bias_gradient=True)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype):
    for name in FEW:
        check(*PROBLEMS[name], dtype=dtype, algorithm=SKEWED)


def test_nan_stays_with_the_channels_beside_it():
    """None is left in places that the last batch does not fill."""
    (N, C), axis = (1, 7), (60, 4, 1, 1, 3, 0)
    x, gy = problem_of((N, C), axis)
    x[0, 3] = np.nan
    config = (("beside", 2), ("groups", 1))
    dw = nkiconv.depthwise_conv1d_weight(x, (C, 4), gy, padding="causal", algorithm=SKEWED, config=config)
    lost = np.isnan(dw).any(1)
    assert lost[3]
    assert lost.sum() <= 2


def test_rows_that_do_not_fit_are_refused():
    x, gy = nkiconv.spec((40_000, 1, 1, 4000), "bf16"), nkiconv.spec((40_000, 1, 1, 3998), "bf16")
    given = {"feature_group_count": 1, "algorithm": SKEWED, "config": (("beside", 1),)}
    with pytest.raises(KernelAssertionError, match=r"skewed needs \d+ bytes per partition of SBUF for x, gy"):
        nkiconv.simulator.execute(depthwise_conv1d_weight_gradient[2], (x, gy, (1, 1, 1, 3)), given, trace_only=True)
