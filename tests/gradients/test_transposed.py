"""Gradients of filters of transposed convolutions, against torch in float64 and exact on integers."""

import ml_dtypes
import numpy as np
import pytest
import torch

import nkiconv

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp32": np.float32}
FUNCTIONS = {
    1: (nkiconv.conv_transpose1d_weight, torch.nn.functional.conv_transpose1d),
    2: (nkiconv.conv_transpose2d_weight, torch.nn.functional.conv_transpose2d),
    3: (nkiconv.conv_transpose3d_weight, torch.nn.functional.conv_transpose3d),
}
#: (N, C, K, groups), extents of x, taps, stride, padding, output_padding, dilation.
PROBLEMS = {
    "upsampled": ((2, 12, 7, 1), (6, 5), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    "uneven": ((3, 5, 9, 1), (4, 7), (3, 2), (3, 2), (0, 1), (2, 1), (2, 1)),
    "groups": ((2, 8, 12, 4), (5, 6), (3, 3), (1, 2), (1, 0), (0, 1), (1, 1)),
    "depthwise": ((2, 6, 6, 6), (7, 6), (5, 3), (2, 1), (2, 1), (1, 0), (1, 1)),
    "sequences": ((3, 9, 4, 1), (30,), (8,), (4,), (2,), (3,), (1,)),
    "volumes": ((1, 4, 5, 1), (3, 4, 5), (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 0, 0), (1, 1, 2)),
}


def drawn(name, dtype):
    """Integers x and w, and gy of torch's shape, with torch's arguments."""
    (N, C, K, groups), extents, taps, stride, padding, output_padding, dilation = PROBLEMS[name]
    rng = np.random.default_rng(len(name))
    places = {"stride": stride, "padding": padding, "dilation": dilation}
    more = {"output_padding": output_padding, "groups": groups}
    x = rng.integers(-3, 4, (N, C, *extents)).astype(DTYPES[dtype])
    w = torch.zeros((C, K // groups, *taps), dtype=torch.float64, requires_grad=True)
    y = FUNCTIONS[len(extents)][1](torch.from_numpy(x.astype(np.float64)), w, **places, **more)
    gy = rng.integers(-3, 4, tuple(y.shape)).astype(DTYPES[dtype])
    (dw,) = torch.autograd.grad(y, w, torch.from_numpy(gy.astype(np.float64)))
    plain = {key: value[0] if len(value) == 1 else value for key, value in places.items()}
    return x, gy, dw.numpy(), {**plain, "groups": groups}


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_torchs(name, dtype):
    x, gy, dw, more = drawn(name, dtype)
    found = FUNCTIONS[x.ndim - 2][0](x, dw.shape, gy, **more)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, dw)


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_channels_last(name):
    x, gy, dw, more = drawn(name, "bf16")
    layout = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[x.ndim - 2]
    x, gy = (np.ascontiguousarray(np.moveaxis(one, 1, -1)) for one in (x, gy))
    into = np.ones(dw.shape, np.float32)
    found = FUNCTIONS[x.ndim - 2][0](x, dw.shape, gy, layout=layout, accumulate_into=into, **more)
    np.testing.assert_array_equal(found, dw + 1)
