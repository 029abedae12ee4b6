"""What the tests of depthwise rows' filter gradients share: problems, their gradients by torch, checked calls."""

import gradients
import numpy as np

import nkiconv

#: (N, C), (size, taps, stride, dilation, before, after).
PROBLEMS = {
    "causal": ((1, 5), (60, 4, 1, 1, 3, 0)),
    "several images": ((3, 5), (60, 4, 1, 1, 3, 0)),
    "several tiles": ((3, 150), (40, 5, 1, 1, 2, 2)),
    "stride": ((2, 7), (50, 5, 3, 1, 1, 0)),
    "dilation": ((2, 7), (50, 5, 1, 4, 8, 8)),
    "stride and dilation, cropped": ((2, 7), (50, 4, 2, 3, -1, 5)),
    "cropped on both sides": ((2, 3), (40, 3, 1, 1, -3, -2)),
    "windows outside x": ((2, 3), (4, 3, 1, 1, 7, 6)),
    "one tap": ((2, 3), (20, 1, 2, 1, 0, 0)),
    "one position": ((4, 3), (6, 6, 1, 1, 0, 0)),
    "one channel": ((5, 1), (30, 3, 1, 1, 1, 1)),
    "one row": ((1, 1), (300, 9, 1, 1, 4, 4)),
    "long filter": ((1, 2), (300, 300, 1, 1, 299, 0)),
    "many taps": ((2, 3), (700, 31, 1, 1, 15, 15)),
}
FEW = ("causal", "several images", "stride and dilation, cropped", "several tiles")


def problem_of(channels, axis, dtype="bf16", seed=0):
    """(x, gy) of integers."""
    N, C = channels
    return gradients.problem_of((N, C, C, C), [axis], dtype, seed)[:2]


def expected(x, gy, axis):
    """(dw, db) by torch in float64."""
    C = x.shape[1]
    dw, db, _, _ = gradients.expected(x, gy, (C, 1, axis[1]), [axis], C)
    return dw[:, 0], db


def check(channels, axis, dtype="bf16", adds=False, **more):
    """dw of a call, whose sums must be exact."""
    x, gy = problem_of(channels, axis, dtype)
    dw, db = expected(x, gy, axis)
    size = (channels[1], axis[1])
    into = np.random.default_rng(3).integers(-4, 5, size).astype(np.float32) if adds else None
    places = {"stride": axis[2], "dilation": axis[3], "padding": axis[4:]}
    found = nkiconv.depthwise_conv1d_weight(x, size, gy, accumulate_into=into, **places, **more)
    found, bias = found if more.get("bias_gradient") else (found, db)
    np.testing.assert_array_equal(found.astype(np.float64), dw + (0 if into is None else into))
    np.testing.assert_array_equal(bias, db)
    return found
