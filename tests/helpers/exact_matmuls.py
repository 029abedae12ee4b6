"""A simulator in which each matmul's own sums are exact, so that bits show the order of matmuls alone."""

import contextlib
import sys

import numpy as np
import pytest


@contextlib.contextmanager
def exact_matmuls():
    """Operands in fp64, for as long as this lasts: a machine's BLAS adds up as it likes."""
    engine = sys.modules["nkiconv.simulator.isa.tensor_engine"]
    operand = engine._operand
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_operand", lambda *operands: operand(*operands).astype(np.float64))
        yield
