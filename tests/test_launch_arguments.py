"""What reaches a launch is Python's own: AWS's front-end may read a NumPy integer as None."""

import types

import numpy as np
import pytest

from nkiconv import simulator
from nkiconv.api.conv import run_conv
from nkiconv.api.epilogue import Epilogue
from nkiconv.problem import ConvProblem

pytestmark = pytest.mark.simulator_only


class Recorder:
    """Stands for the simulator: keeps what is launched, and returns zeros of y's shape."""

    def __init__(self, y):
        self.y, self.given = y, []

    def execute(self, launched, args, kwargs, *, trace_only):
        self.given.append((launched, kwargs))
        return types.SimpleNamespace(outputs=self.y, instructions=(), sbuf_peak_bytes=0, psum_peak_bytes=0)


@pytest.fixture
def recorded(monkeypatch):
    def record(shape):
        found = Recorder(np.zeros(shape, np.float32))
        monkeypatch.setattr(simulator, "execute", found.execute)
        return found

    return record


def scalars(value):
    """All values of nested tuples."""
    return [one for each in value for one in scalars(each)] if isinstance(value, tuple) else [value]


def test_of_conv2d(recorded):
    found = recorded((1, 8, 6, 6))
    x, w, residual = (np.ones(shape, np.float32) for shape in ((1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 6, 6)))
    problem = ConvProblem(N=1, C=8, H=8, W=8, K=8, R=3, S=3, dtype="fp32")
    epilogue = Epilogue(residual=residual, beta=np.float32(0.5))
    run_conv(x, w, problem, epilogue=epilogue, algorithm="implicit_gemm", config=(("warmup", np.int64(0)),))
    kwargs = found.given[0][1]
    assert kwargs["algorithm"] == "implicit_gemm"
    assert dict(kwargs["config"])["warmup"] == 0
    assert {type(one) for one in scalars(kwargs["config"])} <= {int, str, bool}
    assert type(kwargs["beta"]) is float
    assert kwargs["residual"] is residual
