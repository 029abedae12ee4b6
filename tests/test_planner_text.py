"""What plans say as text: a short table where they are printed, everything where they explain themselves."""

import functools
from collections import Counter

import pytest

from nkiconv import ConvProblem, plan
from nkiconv.kernels.depthwise_conv1d import ALGORITHMS

pytestmark = pytest.mark.simulator_only
SMALL = ConvProblem(N=1, C=4, W=66, S=2, groups=4)


@functools.cache
def planned(problem):
    return plan(problem, use_cache=False)


def test_explain_tells_everything():
    found = planned(SMALL)
    text = found.explain()
    for word in (
        "modelled",
        "copy floor",
        "roofline",
        "bound by",
        "x best",
        "rejected",
        "C=4",
        "cores=2",
        *ALGORITHMS,
    ):
        assert word in text, word
    assert all(one.reason.split(":")[0] in text for one in found.rejected)


@pytest.mark.parametrize("width", [80, 116])
def test_explain_fits_its_width(width):
    """And says the same, but for line breaks."""
    found = planned(SMALL)
    lines = found.explain(width).splitlines()
    assert max(map(len, lines)) <= width
    letters, whole = (Counter("".join(text.split()).replace("-", "")) for text in ("".join(lines), found.explain()))
    assert letters == whole


def test_printed_a_plan_is_a_short_table():
    found = planned(SMALL)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 10
    assert lines[0] == "depthwise_conv1d, 1 4 66 -> 4 65, S=2 groups=4 bf16, 2 cores"
    assert f"{found.modelled_us:,.1f}" in lines[3]
    assert lines[3].startswith(found.algorithm)
    assert any(line.startswith("next best: ") for line in lines)
