"""Plans under other constants: a quick search follows what is uncertain in the model as far as a wide one does."""

import pytest

from nkiconv import cases, plan

#: The least that Vector's sums may cost, GpSimd at half its speed, and small DMA elements at the price of tiny ones.
CONSTANTS = {
    "vector": {"vector.ns_per_elem_scalar_tensor_tensor": 0.5208},
    "gpsimd": {"gpsimd.elementwise_ns_per_elem": 3.3333, "gpsimd.issue_fixed_ns": 253.8},
    "elements": {"dma.small_element_ns": 55.0},
}
#: What a quick plan may take more than a wide one.
WORSE = 1.15
HEADLINE = tuple(case for case in cases.load("depthwise_conv1d") if case.headline)

pytestmark = [pytest.mark.slow, pytest.mark.simulator_only]


@pytest.mark.parametrize("constants", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("case", HEADLINE, ids=lambda case: case.name)
def test_quick_plans_follow_the_constants(case, constants):
    found = plan(case.problem, use_cache=False, constants=constants)
    searched = plan(case.problem, use_cache=False, constants=constants, wide=True)
    assert found.phase0_us <= WORSE * searched.phase0_us
