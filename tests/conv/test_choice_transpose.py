"""The estimate's choice of a transposed convolution's algorithm, held against the modelled times of all algorithms."""

import pytest
from choices import SAME, times_slower

from nkiconv import cases
from nkiconv.planner.operations import operation_of

pytestmark = pytest.mark.simulator_only
CASES = {case.name: case.problem for case in cases.load("conv_transpose")}
#: Short enough for a second.
SOME = ("unet_up", "hifigan_up1", "sam_up", "mimi_dw", "kokoro_dw", "odd_up_fp32")


def of_named(name):
    problem = CASES[name]
    return times_slower(problem, operation_of(problem).name)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", SOME)
def test_named_cases(name):
    assert of_named(name) <= SAME


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in SOME])
def test_every_other_named_case(name):
    assert of_named(name) <= SAME
