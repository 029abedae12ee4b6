"""conv1d and depthwise_conv2d against torch, exactly on integers; layouts, paddings, refusals by name."""

import inspect

import numpy as np
import pytest
import torch

import nkiconv
from nkiconv import GeometryError, LayoutError, NkiconvError, conv1d, depthwise_conv2d

RNG = np.random.default_rng(3)


def integers(*shape):
    return RNG.integers(-3, 4, shape).astype(np.float32)


X, W, BIAS = integers(2, 6, 19), integers(8, 3, 5), integers(8)
IMAGE, FILTERS = integers(2, 5, 9, 8), integers(10, 1, 3, 2)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    ("padding", "before", "behind"), [(2, 2, 2), ((3, 1), 3, 1), ("causal", 8, 0), ("valid", 0, 0), ("same", 4, 4)]
)
def test_conv1d_is_torchs(padding, before, behind, lnc):
    padded = torch.nn.functional.pad(torch.tensor(X), (before, behind))
    expected = torch.nn.functional.conv1d(padded, torch.tensor(W), torch.tensor(BIAS), dilation=2, groups=2)
    y = conv1d(X, W, BIAS, padding=padding, dilation=2, groups=2, lnc=lnc)
    np.testing.assert_array_equal(y, expected.numpy())


def test_conv1d_with_stride_epilogue_and_residual():
    residual = integers(2, 8, 8)
    sums = torch.nn.functional.conv1d(torch.tensor(X), torch.tensor(W), torch.tensor(BIAS), stride=2, groups=2)
    expected = torch.relu(sums + 2 * torch.tensor(residual))
    y = conv1d(X, W, BIAS, stride=2, groups=2, residual=residual, beta=2, activation="relu")
    np.testing.assert_array_equal(y, expected.numpy())


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize(("filter_layout", "axes"), [("KCS", (0, 1, 2)), ("SCK", (2, 1, 0)), ("KSC", (0, 2, 1))])
def test_conv1d_layouts(layout, filter_layout, axes):
    expected = conv1d(X, W, BIAS, padding=1, groups=2)
    last = layout == "NWC"
    y = conv1d(
        X.transpose(0, 2, 1) if last else X,
        W.transpose(axes),
        BIAS,
        padding=1,
        groups=2,
        layout=layout,
        filter_layout=filter_layout,
        residual=np.zeros_like(expected.transpose(0, 2, 1) if last else expected),
    )
    np.testing.assert_array_equal(y, expected.transpose(0, 2, 1) if last else expected)


def test_conv1d_with_gaps_between_inputs():
    expected = torch.nn.functional.conv_transpose1d(
        torch.tensor(X), torch.tensor(integers(6, 1, 1) * 0 + 1), stride=3, groups=6
    )
    y = conv1d(X, np.ones((6, 1, 1), np.float32), lhs_dilation=3, groups=6)
    np.testing.assert_array_equal(y, expected.numpy())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_depthwise_conv2d_is_torchs(layout):
    bias = integers(10)
    arguments = {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    expected = torch.nn.functional.conv2d(
        torch.tensor(IMAGE), torch.tensor(FILTERS), torch.tensor(bias), groups=5, **arguments
    ).numpy()
    last = layout == "NHWC"
    image = IMAGE.transpose(0, 2, 3, 1) if last else IMAGE
    y = depthwise_conv2d(image, FILTERS, bias, layout=layout, **arguments)
    np.testing.assert_array_equal(y, expected.transpose(0, 2, 3, 1) if last else expected)


def test_the_rest_is_conv2ds():
    y = depthwise_conv2d(IMAGE, FILTERS, activation="silu", out_dtype="bf16", precision="tf32")
    same = nkiconv.conv2d(IMAGE, FILTERS, groups=5, activation="silu", out_dtype="bf16", precision="tf32")
    np.testing.assert_array_equal(y, same)
    for function in (conv1d, depthwise_conv2d):
        assert set(inspect.signature(function).parameters) <= set(inspect.signature(nkiconv.conv2d).parameters)


@pytest.mark.parametrize(("arguments", "kind", "message"), [
    ({"residual": IMAGE}, LayoutError, r"residual.shape=.*must have 3 axes, \[N, K, Q\]"),
    ({"groups": 4}, GeometryError, "groups=4"),
    ({"groups": 1}, GeometryError, r"w.shape=\(\d+, \d+, \d+\): has . input channels per group.* in .*'KCS'"),
])  # fmt: skip
def test_conv1d_refuses(monkeypatch, arguments, kind, message):
    monkeypatch.setattr("nkiconv.api.conv.launch", None)
    with pytest.raises(NkiconvError, match=message) as caught:
        conv1d(**({"x": X, "w": W, "groups": 2} | arguments))
    assert type(caught.value) is kind


@pytest.mark.parametrize(("arguments", "kind", "message"), [
    ({"w": FILTERS[:9]}, GeometryError, r"must be \[C \* multiplier, 1, R, S\] for C=5"),
    ({"w": integers(10, 5, 3, 2)}, GeometryError, "use conv2d for filters over several channels"),
])  # fmt: skip
def test_depthwise_conv2d_refuses(arguments, kind, message):
    with pytest.raises(NkiconvError, match=message) as caught:
        depthwise_conv2d(**({"x": IMAGE, "w": FILTERS} | arguments))
    assert type(caught.value) is kind
