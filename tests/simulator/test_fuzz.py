"""Random programs give what an independent interpreter in NumPy gives, bit by bit."""

import numpy as np
import pytest
from fuzz_programs import generate, simulate

SLOW = pytest.param(range(10_000, 30_000), marks=[pytest.mark.slow, pytest.mark.timeout(1800)], id="many")


@pytest.mark.parametrize("seeds", [pytest.param(range(40), id="few"), SLOW])
def test_legal_programs_compute_what_numpy_computes(seeds):
    for seed in seeds:
        program, expected = generate(seed)
        for op, wanted, got in zip(program.ops, expected, simulate(program), strict=True):
            assert np.array_equal(np.asarray(got).astype(np.float64), wanted.astype(np.float64)), (seed, op.name)
