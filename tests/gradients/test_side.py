"""Filter gradients by several tiles of the array's rows, each with channels of its own (setting `side` of blocks)."""

import re

import hypothesis
import numpy as np
import pytest
from depthwise import on_cores
from draws import draws
from gradients import an_axis, check, outputs
from hypothesis import strategies as st

import nkiconv
from nkiconv import cases
from nkiconv.planner.entry import answer
from nkiconv.planner.request import Request

#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after).
PROBLEMS = {
    "planes": ((5, 20, 7, 1), (7, 3, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1)),
    "several tiles": ((70, 9, 130, 1), (4, 3, 1, 1, 1, 1), (5, 3, 2, 1, 1, 0)),
    "fewer channels than tiles": ((3, 3, 40, 1), (5, 2, 1, 2, 1, 1), (6, 3, 1, 1, 0, 2)),
    "groups": ((3, 12, 6, 3), (5, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)),
    "no position sees all taps": ((2, 8, 9, 1), (2, 4, 1, 1, 2, 2), (1, 3, 1, 1, 1, 1)),
    "volumes": ((2, 6, 7, 1), (4, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1), (4, 2, 1, 1, 0, 1)),
}


def sizes(axes, **more):
    """Settings of blocks that are whole planes."""
    return tuple({"rows": outputs(axes[-2]), "columns": outputs(axes[-1]), **more}.items())


@pytest.mark.cover(3)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_exact(name, side, split):
    channels, *axes = PROBLEMS[name]
    config = sizes(axes, side=side, split=split, channels=2, outputs=2, inputs=8, buffers=8)
    for is_last in (False, True):
        on_cores(check, channels, axes, is_last, adds=True, bias_gradient=True, config=config)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype):
    channels, *axes = PROBLEMS["planes"]
    config = sizes(axes, side=4, split=0, channels=2, inputs=8)
    for precision in (None,) if dtype == "fp16" else (None, "bf16", "tf32"):
        check(channels, axes, dtype=dtype, precision=precision, bias_gradient=True, config=config)


@draws(20, 60)
@hypothesis.given(
    st.tuples(an_axis(8), an_axis(9)), st.booleans(), st.sampled_from((2, 4)), st.sampled_from((1, 2, 4)),
    st.integers(1, 12), st.integers(1, 4), st.booleans(), st.sampled_from((1, 1, 3)), st.sampled_from((1, 2)),
)  # fmt: skip
def test_any_images_are_exact(axes, is_last, side, beside, inputs, channels, planes, groups, lnc):
    """Of whole planes, whose zeros are left out where they can be, and of parts of them."""
    found = {"beside": beside, "side": side, "inputs": inputs, "channels": channels, "outputs": 1, "buffers": 8}
    found |= {"rows": outputs(axes[0]), "columns": outputs(axes[1])} if planes else {"rows": 2}
    hypothesis.assume(beside <= found.get("columns", outputs(axes[1])))
    try:
        check((40, 5 * groups, 32 * groups, groups), list(axes), is_last, lnc=lnc, config=tuple(found.items()))
    except nkiconv.UnsupportedError as error:
        assert re.search(r"config (beside|channels)=", str(error))  # noqa: PT017


@pytest.mark.parametrize("layout", ["NHWC", pytest.param("NCHW", marks=pytest.mark.slow)])
def test_the_planner_takes_them_for_small_planes(layout):
    problem = cases.get("rn50_c5_train").problem.replace(layout=layout)
    plan = answer(Request(problem=problem.toward("wgrad")), quick=True, use_cache=False)
    assert dict(plan.config)["side"] == 4


REFUSED = [
    ({"side": 3}, "config side=3 pixels=0: must be 1, 2 or 4, and 1 but for pixels=0"),
    ({"side": 2, "pixels": 2}, "config side=2 pixels=2: must be 1, 2 or 4, and 1 but for pixels=0"),
    ({"side": 8}, "config side=8: must be an int from 1 to 4"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_refusals(config, message):
    x, gy = np.zeros((1, 3, 5, 5), np.float32), np.zeros((1, 4, 3, 3), np.float32)
    with pytest.raises(nkiconv.NkiconvError, match=re.escape(message)):
        nkiconv.conv2d_weight(x, (4, 3, 3, 3), gy, algorithm="blocks", config=tuple(config.items()))
