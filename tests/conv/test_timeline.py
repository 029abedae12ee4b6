"""The Tensor Engine in the timeline of shapes that it bounds: warm from the second throttle window on, never idle.

Modelled, program order, throttle phase 0.
"""

import itertools

import pytest
from conv_calls import trace

from nkiconv import cases
from nkiconv.simulator.timeline import ENGINES, build, run
from nkiconv.simulator.timing import PriceList, Rates, TensorPrice

pytestmark = pytest.mark.simulator_only
#: ns that the array may be idle between two matmuls once it works, and from when on that is, in ns.
GAP_NS, STEADY_NS = 200.0, 10_000.0
SLOW = pytest.mark.slow
CASES = [
    ("unet_1280", 2),
    ("rn50_c4", 2),
    *(pytest.param(name, lnc, marks=SLOW) for name, lnc in (("vae_512", 2), ("vae_128", 2), ("wan_1024", 2))),
    *(pytest.param(name, 1, marks=SLOW) for name in ("c256_224", "c256_224_fp32")),
    pytest.param("unet_320", 2, marks=SLOW),
]


@pytest.mark.parametrize(("name", "lnc"), CASES)
def test_the_array_is_warm_and_busy(name, lnc):
    execution = trace(cases.get(name).problem, lnc)
    rates = Rates()
    tasks, prices = build(execution.programs, PriceList(rates))
    layout = run(tasks, prices, rates)
    (cold, (warm_ns, warm)), window_ns = layout.throttle_changes[0], rates("throttle.window_ns")
    assert cold == (0.0, False)
    assert warm
    assert warm_ns <= 2 * window_ns
    on_array = [
        task
        for task in range(len(execution.programs[0].instructions))
        if ENGINES[tasks.engine[task]] == "tensor" and isinstance(prices[task], TensorPrice)
    ]
    begins = sorted((layout.start[task], prices[task].stream_ns) for task in on_array)
    assert len(begins) > 100
    idle = [later - begin - stream for (begin, stream), (later, _) in itertools.pairwise(begins) if begin > STEADY_NS]
    assert max(idle) <= GAP_NS
