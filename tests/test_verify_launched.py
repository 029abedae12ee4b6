"""Cases and their gradients, launched with data and held against references made from the definition."""

import numpy as np
import pytest
from gradients import expected, problem_of

from nkiconv import ConvProblem, cases
from nkiconv.planner.estimate import chosen
from nkiconv.planner.request import Request
from nkiconv.reference import filter_gradient_ref
from nkiconv.simulator import simulate
from nkiconv.tools.verify import launched

pytestmark = pytest.mark.simulator_only

# N, C, K, groups; of each axis size, taps, stride, dilation, zeros before and after
FILTERS = [
    ("strides that leave a rest", (2, 3, 4, 1), [(9, 3, 2, 1, 1, 1), (8, 2, 3, 2, 0, 2)]),
    ("groups", (2, 6, 4, 2), [(5, 2, 1, 1, 0, 0), (6, 3, 1, 2, 2, 1)]),
    ("depthwise", (3, 4, 4, 4), [(1, 1, 1, 1, 0, 0), (12, 5, 1, 1, 4, 0)]),
    ("volumes, cropped", (1, 2, 3, 1), [(4, 2, 1, 1, 0, 1), (6, 3, 2, 1, -1, 1), (5, 1, 1, 1, 0, 0)]),
]


@pytest.mark.parametrize(("channels", "axes"), [row[1:] for row in FILTERS], ids=[row[0] for row in FILTERS])
def test_the_reference_of_filter_gradients_is_autograds(channels, axes):
    N, C, K, groups = channels
    x, gy, shape = problem_of(channels, axes)
    letters = zip(("DHW"[-len(axes) :], "TRS"[-len(axes) :]), (0, 1), strict=True)
    extents = {letter: axis[at] for names, at in letters for letter, axis in zip(names, axes, strict=True)}
    places = {"stride": 2, "rhs_dilation": 3}
    problem = ConvProblem(
        N=N, C=C, K=K, groups=groups, **extents, padding=tuple(axis[4:6] for axis in axes),
        **{name: tuple(axis[at] for axis in axes) for name, at in places.items()},
    )  # fmt: skip
    np.testing.assert_array_equal(filter_gradient_ref(x, gy, problem), expected(x, gy, shape, axes, groups)[0])


def launch(name, direction):
    case = cases.get(name).toward(direction)
    found = launched.case_launch(case, 2, chosen(Request(problem=case.problem, lnc=2)))
    return found, simulate(found.kernel)(*found.args, **found.kwargs)


@pytest.mark.cover(4)
@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", ["short", "nkl_st2_p0_c16_w512_s3_bf16", "prime", "small_fp32", "odd_up_fp32"])
def test_a_wrong_element_of_a_case_or_gradient_is_found(name, direction):
    found, y = launch(name, direction)
    right, channels = found.check(y)
    assert (right.num_wrong, channels, right.num_elems) == (0, y.shape[0 if direction == "wgrad" else 1], y.size)
    at = tuple(size - 1 for size in y.shape)
    y[at] += 1
    seen = found.check(y)[0]
    assert (seen.num_wrong, seen.worst) == (1, at)
    assert launched.wrong(seen).startswith(
        f"wrong: 1 of {y.size:,} outputs are beyond their bound, worst at {seen.place}"
    )


def test_filters_of_a_sample_of_groups(monkeypatch):
    monkeypatch.setattr(launched, "SAMPLE_ABOVE_FLOPS", 1)
    monkeypatch.setattr(launched, "SAMPLE_CHANNELS", 4)
    found, dw = launch("short", "wgrad")  # 130 channels, of which 0, 43, 86 and 129 are checked
    for channel, wrong in ((86, 1), (87, 0)):
        spoilt = dw.copy()
        spoilt[channel, 0, 0, 1] += 1
        seen, checked = found.check(spoilt)
        assert (seen.num_wrong, checked) == (wrong, 4)
        assert not wrong or seen.place == f"k={channel} c=0 r=0 s=1"


def test_filters_of_another_dtype_are_wrong():
    found, dw = launch("c1k1", "wgrad")
    with pytest.raises(launched.WrongResult, match="the result is float16"):
        found.check(dw.astype(np.float16))
