"""depthwise_conv1d of token-major rows is that of channels first, and refuses by name what one kernel does not take."""

import ml_dtypes
import numpy as np
import pytest
from draws import cores
from tolerances import integer_inputs

import nkiconv
from nkiconv.errors import NkiconvError

RNG = np.random.default_rng(0)
X, W = np.ones((2, 9, 5), np.float32), np.ones((5, 4), np.float32)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_exact_with_states(dtype):
    x, w, bias, before = (integer_inputs(RNG, shape, dtype) for shape in ((2, 37, 200), (200, 4), (200,), (2, 200, 3)))
    more = {"padding": "causal", "bias": bias, "initial_state": before, "return_final_state": True}
    wanted, last = nkiconv.depthwise_conv1d(np.ascontiguousarray(x.transpose(0, 2, 1)), w, **more)
    for lnc in cores(dtype):
        y, state = nkiconv.depthwise_conv1d(x, w, layout="NWC", lnc=lnc, **more)
        np.testing.assert_array_equal(y, wanted.transpose(0, 2, 1))
        np.testing.assert_array_equal(state, last)


def test_no_rows():
    y, state = nkiconv.depthwise_conv1d(X[:0], W, padding="causal", layout="NWC", return_final_state=True)
    assert (y.shape, state.shape) == ((0, 9, 5), (0, 5, 3))


@pytest.mark.parametrize(("changed", "text"), [
    ({"padding": 3}, "padding=3: must be 'causal'; use layout='NCW', or conv1d of this layout"),
    ({"stride": 2}, "layout='NWC', stride=2: must be 1"), ({"residual": X}, "layout='NWC', residual=ndarray"),
    ({"x_scale": np.ones(5, np.float32)}, "x_scale=ndarray"), ({"strict_nonfinite": True}, "strict_nonfinite=True"),
    ({"out_dtype": ml_dtypes.bfloat16}, "out_dtype"), ({"algorithm": "mixed"}, "algorithm='mixed': must be None"),
    ({"w": np.ones((5, 17), np.float32)}, "S=17: must be at most 16 taps; use layout='NCW'"),
    ({"w": W[:4]}, "w.shape=.4, 4.: must be"), ({"x": X[0]}, "x.shape"), ({"layout": "NHWC"}, "accepted are NCW, NWC"),
])  # fmt: skip
def test_refused(changed, text):
    with pytest.raises(NkiconvError, match=text):
        nkiconv.depthwise_conv1d(**{"x": X, "w": W, "padding": "causal", "layout": "NWC", **changed})
