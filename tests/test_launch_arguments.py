"""What reaches a launch is Python's own: AWS's front-end may read a NumPy integer as None."""

import types

import ml_dtypes
import numpy as np
import pytest

from nkiconv import simulator
from nkiconv.api import calls
from nkiconv.api.conv import run_conv
from nkiconv.api.depthwise_conv1d import depthwise_problem, run_depthwise_conv1d
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


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8])
def test_of_depthwise_conv1d(recorded, number):
    found = recorded((1, 4, 1, 38))
    x, w = np.ones((1, 4, 40), np.float32), np.ones((4, 3), np.float32)
    config = (
        ("columns", number(19)),
        ("recipes", ((number(0), 1, number(1), 1), (0, number(3), 0, 0))),
        ("shard", "rows"),
    )
    run_depthwise_conv1d(x, w, depthwise_problem(x, w), lnc=number(1), algorithm="vector", config=config)
    launched, kwargs = found.given[0]
    assert type(launched.grid) is int
    assert dict(kwargs["config"]).items() >= dict(config).items()
    assert {type(one) for one in scalars(kwargs["config"])} <= {int, str, bool}
    assert {type(one) for name in ("padding", "stride", "rhs_dilation") for one in scalars(kwargs[name])} == {int}


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


@pytest.mark.parametrize(
    ("given", "kind"),
    [(np.int16(3), int), (np.bool_(True), bool), (np.float32(0.5), float), (ml_dtypes.bfloat16(2), float), (3, int)],
)
def test_plain(given, kind):
    (found,) = calls.plain((given,))
    assert type(found) is kind
    assert found == given


def test_plain_leaves_the_rest():
    array = np.ones(3)
    assert calls.plain(array) is array
    assert calls.plain(None) is None
    assert calls.plain("x") == "x"
