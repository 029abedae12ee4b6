"""Verification with bias, activation, residual and filter layouts: right passes, a launch without one of them fails."""

import dataclasses

import numpy as np
import pytest
import torch
from torch_activation import torchs

from nkiconv import ConvProblem
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.bounds import epilogue_bound
from nkiconv.rules import FILTER_LAYOUTS
from nkiconv.tools.verify import conv
from nkiconv.tools.verify import depthwise_conv1d as verify

pytestmark = pytest.mark.simulator_only

# what is asked for beside the sums
EPILOGUES = [
    {"bias": True},
    {"activation": "silu"},
    {"residual": True},
    {"bias": True, "activation": "gelu", "residual": True},
    {"bias": True, "activation": "relu", "residual": True, "residual_position": "post_activation"},
]
IDS = ["-".join(str(value) if value is not True else name for name, value in row.items()) for row in EPILOGUES]


def normals(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def asked_of(row, channels, y_shape):
    """The same with arrays for True."""
    arrays = {"bias": normals(channels), "residual": normals(*y_shape)}
    return {name: arrays[name] if value is True else value for name, value in row.items()}


def assert_torchs(y, x, w, asked, groups=1):
    """y, channels first, is within the bound of torch's float64 result for x [N, C, ...] and w [K, C / groups, ...]."""
    convolve = torch.nn.functional.conv1d if x.ndim == 3 else torch.nn.functional.conv2d
    sums = convolve(torch.from_numpy(x.copy()).double(), torch.from_numpy(w.copy()).double(), groups=groups)
    abs_sum = convolve(torch.from_numpy(abs(x)).double(), torch.from_numpy(abs(w)).double(), groups=groups)
    bias = asked.get("bias")
    z = sums if bias is None else sums + torch.from_numpy(bias).double().reshape(-1, *[1] * (x.ndim - 2))
    residual = asked.get("residual")
    added = 0 if residual is None else torch.from_numpy(residual.copy()).double()
    act = torchs(asked.get("activation"))
    after = asked.get("residual_position") == "post_activation"
    truth = act(z) + added if after else act(z + added)
    terms = int(np.prod(w.shape[1:]))
    limit = epilogue_bound(terms, abs_sum.numpy(), sums.numpy(), "fp32", **asked)
    assert (np.abs(y - truth.numpy()) <= limit).all()


@pytest.mark.cover(3)
@pytest.mark.parametrize("row", EPILOGUES, ids=IDS)
@pytest.mark.parametrize("channels", ["all", 3], ids=["all channels", "a sample"])
def test_depthwise_conv1d(monkeypatch, row, channels):
    monkeypatch.setattr(verify, "BLOCK_INSTRUCTIONS", 1)
    x, w = normals(2, 9, 40), normals(9, 4)
    problem = depthwise_problem(x, w)
    asked = asked_of(row, 9, (2, 9, 37))
    reports, _ = verify.verify_depthwise_conv1d("it", x, w, problem, degrees=(1, 2), channels=channels, **asked)
    assert [one.verdict for one in reports] == ["pass", "pass"]
    [kept], y = verify.verify_depthwise_conv1d("it", x, w, problem, keep=True, **asked)
    assert kept.verdict == "pass"
    assert_torchs(y, x, w[:, None], asked, groups=9)
    launch = verify.run_depthwise_conv1d

    def without(x, w, problem, *, epilogue, **options):
        return launch(x, w, problem, epilogue=_lacking(epilogue, row), **options)

    monkeypatch.setattr(verify, "run_depthwise_conv1d", without)
    [found], _ = verify.verify_depthwise_conv1d("it", x, w, problem, channels=channels, **asked)
    assert found.verdict == "fail"


@pytest.mark.cover(3)
@pytest.mark.parametrize("row", EPILOGUES, ids=IDS)
@pytest.mark.parametrize(("layout", "filter_layout"), [("NCHW", "KCRS"), ("NHWC", "RSCK"), ("NCHW", "KRSC")])
def test_conv2d(monkeypatch, row, layout, filter_layout):
    problem = ConvProblem(N=2, C=3, H=7, W=6, K=5, R=2, S=3, dtype="fp32", layout=layout)
    x, w = normals(*problem.input_shape), normals(5, 3, 2, 3)
    stored = np.ascontiguousarray(w.transpose(np.argsort(FILTER_LAYOUTS[filter_layout])))
    asked = asked_of(row, 5, problem.output_shape)
    how = {"degrees": (1, 2), "filter_layout": filter_layout}
    reports, y = conv.verify_conv("it", x, stored, problem, **how, **asked)
    assert [one.verdict for one in reports] == ["pass", "pass"]
    perm = (0, 3, 1, 2) if layout == "NHWC" else (0, 1, 2, 3)
    canonical = {**asked, "residual": asked["residual"].transpose(perm)} if "residual" in asked else asked
    assert_torchs(y.transpose(perm), x.transpose(perm), w, canonical)
    launch = conv.run_conv

    def without(x, w, problem, *, epilogue, **options):
        return launch(x, w, problem, epilogue=_lacking(epilogue, row), **options)

    monkeypatch.setattr(conv, "run_conv", without)
    assert conv.verify_conv("it", x, stored, problem, **how, **asked)[0][0].verdict == "fail"


def _lacking(extra, row):
    """The same without the first thing that the row asks for."""
    return dataclasses.replace(extra, **{next(iter(row)): None})
