"""`vector`: no Tensor Engine, channels apart, two chains side by side."""

from collections import Counter

import pytest
from depthwise import Row, trace
from epilogue import Request, check, refused
from rows import staged

from nkiconv.simulator.memory import PSUM

SHORT = Row("short filter", 2, 131, 90, 5, 1, (4, 0)).problem("fp32")


@pytest.mark.simulator_only
@pytest.mark.parametrize("S", [1, 2, 3, 4, 16])
def test_neither_tensor_nor_psum_is_used(S):
    execution = trace(Row("any", 1, 130, 700, S, 1, (S - 1, 0)).problem("bf16"), "vector")
    engines = Counter(i.engine for i in execution.instructions)
    assert engines["tensor"] == 0
    assert not [r for i in execution.instructions for r in (*i.writes, *i.reads) if r.info.buffer is PSUM]
    assert staged(execution) == []


@pytest.mark.parametrize("recipe", [(0, 4, 0, 0), (0, 0, 1, 3), (0, 3, 1, 0), (0, 2, 1, 1)], ids=str)
def test_chains_of_any_length(recipe):
    config = (("recipes", (recipe,)), ("piece", 50))
    check(SHORT, Request("fp32", "relu", state=True), 1, whole=True, algorithm="vector", config=config)
    check(SHORT, Request("fp32"), 1, whole=False, algorithm="vector", config=config)


def test_what_it_refuses():
    assert "taps on Tensor; use algorithm mixed" in refused("vector", SHORT, config=(("recipes", ((4, 1, 0, 0),)),))
    far = SHORT.replace(S=60_000, W=10, padding=((0, 0), (59_999, 0)))
    assert "S=60000" in refused("vector", far)
