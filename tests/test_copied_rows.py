"""Modelled times of depthwise rows whose elements are no neighbours in HBM: DMA moves runs of them, not each."""

import pytest
from choices import modelled_us

from nkiconv import ConvProblem
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.estimate import completed
from nkiconv.planner.request import Request
from nkiconv.planner.timing import trace
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only


def us(problem):
    request = Request(problem=problem)
    return trace(request, Candidate(*completed(request, None, None)), Rates()).us


def row(N, C, W, S, dilation=1):
    padding = (0, 0), ((S - 1) * dilation, 0)
    return ConvProblem(N=N, C=C, K=C, groups=C, W=W, S=S, padding=padding, rhs_dilation=(1, dilation), dtype="bf16")


@pytest.mark.parametrize("size", [(2, 256, 1024, 64), (4, 64, 4096, 9), (64, 2, 300, 64)], ids=str)
def test_channels_last_take_little_more_than_copies(size):
    """x in and y out, each read and written once more; single elements took 10 to 160 times as long."""
    assert us(row(*size).replace(layout="NHWC")) < 5 * us(row(*size))


def test_skewed_sums_of_dilated_filters_take_little_more():
    plain, dilated = (row(2, 128, 512, 64, apart).toward("wgrad") for apart in (1, 2))
    skewed = [modelled_us(one, "depthwise_conv1d_weight")["skewed"] for one in (plain, dilated)]
    assert skewed[1] < 2 * skewed[0]
