"""Settings that have not the form of a Plan's are refused by name in every function that takes them."""

import numpy as np
import pytest

import nkiconv
from nkiconv.errors import UnsupportedError

X, W = np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)
VOLUME, TAPS = X[:, :, None], W[:, :, None]
GY, ROW = np.ones((1, 4, 4, 4), np.float32), np.ones((4, 3), np.float32)

CALLS = {
    "conv1d": ("implicit_gemm", lambda **how: nkiconv.conv1d(X[:, :, 0], W[:, :, 0], **how)),
    "conv2d": ("implicit_gemm", lambda **how: nkiconv.conv2d(X, W, **how)),
    "conv3d": ("stacked", lambda **how: nkiconv.conv3d(VOLUME, TAPS, **how)),
    "conv_transpose2d": ("weight_stationary", lambda **how: nkiconv.conv_transpose2d(X, W, **how)),
    "conv2d_weight": ("blocks", lambda **how: nkiconv.conv2d_weight(X, W.shape, GY, **how)),
    "depthwise_conv1d": ("banded", lambda **how: nkiconv.depthwise_conv1d(X[:, :, 0], ROW, **how)),
    "depthwise_conv1d_weight": ("banded", lambda **how: nkiconv.depthwise_conv1d_weight(X[:, :, 0], (4, 3), GY[:, :, 0],
     **how)),
}  # fmt: skip
FORMS = {
    "a list": ([("warmup", 2)], "write tuples in place of lists"),
    "a dict": ({"warmup": 2}, r"write tuple\(config.items\(\)\)"),
    "a number": (3, "must be None or a tuple of"),
    "text": ("warmup", "must be None or a tuple of"),
    "a pair of lists": ((["warmup", 2],), r"entry 0 is \['warmup', 2\], pass a pair"),
    "one too few": ((("warmup",),), r"entry 0 is \('warmup',\), pass a pair"),
    "one too many": ((("warmup", 2, 3),), "entry 0 is"),
    "no name": (((1, 2),), "entry 0 is"),
    "pairs without a tuple": (("warmup", 2), "entry 0 is 'warmup'"),
    "a list as a value": ((("warmup", [2]),), "must be hashable; write tuples"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CALLS)
def test_malformed_settings_are_refused_by_name(name, form):
    (algorithm, call), (config, words) = CALLS[name], FORMS[form]
    with pytest.raises(UnsupportedError, match=words):
        call(algorithm=algorithm, config=config)
