"""Problems of gradients, in integers, and what torch in float64 makes of them."""

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st
from torch_exact import spread

import nkiconv
from nkiconv.problem import DTYPES

FORWARD = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
WEIGHT = {1: nkiconv.conv1d_weight, 2: nkiconv.conv2d_weight, 3: nkiconv.conv3d_weight}
INPUT = {1: nkiconv.conv1d_input, 2: nkiconv.conv2d_input, 3: nkiconv.conv3d_input}
LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def outputs(axis):
    size, taps, stride, dilation, before, after, *spread = axis
    spread = spread[0] if spread else 1
    return ((size - 1) * spread + before + after - (taps - 1) * dilation) // stride + 1


def places_of(axes):
    """stride, padding, dilation as nkiconv's functions take them."""
    if len(axes) == 1:
        return {name: one[0] for name, one in places_of(axes * 2).items()}
    found = {name: tuple(axis[at] for axis in axes) for name, at in (("stride", 2), ("dilation", 3))}
    spread = {} if len(axes[0]) < 7 else {"lhs_dilation": tuple(axis[6] for axis in axes)}
    return {**found, **spread, "padding": tuple(axis[4:6] for axis in axes)}


def problem_of(channels, axes, dtype="bf16", seed=0):
    """(x, gy, shape of w) of integers."""
    N, C, K, groups = channels
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (N, C, *(axis[0] for axis in axes))).astype(DTYPES[dtype])
    gy = rng.integers(-3, 4, (N, K, *map(outputs, axes))).astype(DTYPES[dtype])
    return x, gy, (K, C // groups, *(axis[1] for axis in axes))


def expected(x, gy, shape, axes, groups):
    """(dw, db, dx) by torch in float64, with w of integers; and that w."""
    x64 = torch.tensor(x.astype(np.float64), requires_grad=True)
    w = np.random.default_rng(7).integers(-2, 3, shape).astype(np.float64)
    w64 = torch.tensor(w, requires_grad=True)
    around = [one for axis in reversed(axes) for one in axis[4:6]]
    numbers = {"stride": tuple(axis[2] for axis in axes), "dilation": tuple(axis[3] for axis in axes)}
    gaps = [axis[6] if len(axis) > 6 else 1 for axis in axes]
    padded = torch.nn.functional.pad(spread(x64, gaps), around)
    y = FORWARD[len(axes)](padded, w64, groups=groups, **numbers)
    y.backward(torch.tensor(gy.astype(np.float64)))
    return w64.grad.numpy(), gy.astype(np.float64).sum((0, *range(2, gy.ndim))), x64.grad.numpy(), w


def last(array):
    """An array with its channels last."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def of_rows(x, shape, gy, groups, layout, accumulate_into, **more):
    """The gradient of a depthwise row's filters, as conv1d_weight has it."""
    into = None if accumulate_into is None else accumulate_into[:, 0]
    found = nkiconv.depthwise_conv1d_weight(x, (shape[0], shape[2]), gy, accumulate_into=into, **more)
    return (found[0][:, None], found[1]) if more.get("bias_gradient") else found[:, None]


def check(channels, axes, is_last=False, dtype="bf16", function=None, **more):
    """The gradient of the filters, by a function or that of so many axes, which must be exact, and the bias's."""
    x, gy, shape = problem_of(channels, axes, dtype)
    dw, db, _, _ = expected(x, gy, shape, axes, channels[3])
    layout = LAYOUTS[len(axes)][is_last]
    if is_last:
        x, gy = last(x), last(gy)
    algorithm = more.pop("algorithm", None if more.get("config") is None else "blocks")
    function = function or WEIGHT[len(axes)]
    into = np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32) if more.pop("adds", False) else None
    found = function(
        x, shape, gy, groups=channels[3], layout=layout, accumulate_into=into, algorithm=algorithm, **places_of(axes),
        **more,
    )  # fmt: skip
    found, bias = found if more.get("bias_gradient") else (found, db)
    np.testing.assert_array_equal(found.astype(np.float64), dw + (0 if into is None else into))
    np.testing.assert_array_equal(bias.astype(np.float64), db)
    return found


@st.composite
def an_axis(draw, most):
    taps, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    size, before, after = draw(st.integers(1, most)), draw(st.integers(-1, 4)), draw(st.integers(-1, 4))
    axis = (size, taps, stride, dilation, before, after)
    hypothesis.assume(size + before + after >= (taps - 1) * dilation + 1)
    hypothesis.assume(size + min(0, before) + min(0, after) >= 1)
    return axis
