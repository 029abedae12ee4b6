"""The estimate's choice of an algorithm, against the modelled times of all: `make test-all` asks all named cases, `make
choice` random problems, the golden table what is chosen of them."""

import pytest
from choices import SAME, times_slower

from nkiconv import cases
from nkiconv.planner.operations import operation_of

pytestmark = pytest.mark.simulator_only
#: One of each kind, small enough for seconds.
SOME = (
    "rn50_c2", "rn50_c3_s2", "mobilenet_dw", "mult2_dw", "whisper_conv1", "rect_filter", "prime", "fp16", "c1k1",
    "unet_up", "hifigan_up1", "sam_up", "mimi_dw", "kokoro_dw", "odd_up_fp32",
)  # fmt: skip
NAMES = [case.name for suite in ("conv2d", "conv_transpose") for case in cases.load(suite)]


def check(name):
    problem = cases.get(name).problem
    assert times_slower(problem, operation_of(problem).name if problem.transposed else "conv2d") <= SAME


@pytest.mark.cover(2, keep=["unet_up"])
@pytest.mark.parametrize("name", SOME)
def test_named_cases(name):
    check(name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SOME])
def test_every_other_named_case(name):
    check(name)
