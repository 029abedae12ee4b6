"""Verification with bias, activation, residual and filter layouts: right passes, a launch without one of them fails."""

import dataclasses

import numpy as np
import pytest

from nkiconv import ConvProblem
from nkiconv.api.depthwise_conv1d import depthwise_problem
from nkiconv.rules import FILTER_LAYOUTS
from nkiconv.tools.verify import conv
from nkiconv.tools.verify import depthwise_conv1d as verify

pytestmark = pytest.mark.simulator_only

# what is asked for beside the sums
EPILOGUES = [
    {"bias": True},
    {"activation": "silu"},
    {"residual": True, "bias": True, "activation": "gelu"},
    {"bias": True, "activation": "relu", "residual": True, "residual_position": "post_activation"},
]


def normals(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.cover(3)
@pytest.mark.parametrize("row", EPILOGUES, ids=lambda row: "-".join(row))
@pytest.mark.parametrize("which", ["rows", "NCHW KCRS", "NHWC RSCK"])
def test_a_launch_without_what_was_asked_for_fails(monkeypatch, row, which):
    """On one core and two; blocks of rows are of few instructions."""
    monkeypatch.setattr(verify, "BLOCK_INSTRUCTIONS", 1)
    if which == "rows":
        module, name, check = verify, "run_depthwise_conv1d", verify.verify_depthwise_conv1d
        x, w = normals(2, 9, 40), normals(9, 4)
        problem, y_shape, how = depthwise_problem(x, w), (2, 9, 37), {"channels": 3}
    else:
        module, name, check = conv, "run_conv", conv.verify_conv
        layout, filter_layout = which.split()
        problem = ConvProblem(N=2, C=3, H=7, W=6, K=5, R=2, S=3, dtype="fp32", layout=layout)
        x, y_shape, how = normals(*problem.input_shape), problem.output_shape, {"filter_layout": filter_layout}
        w = np.ascontiguousarray(normals(5, 3, 2, 3).transpose(np.argsort(FILTER_LAYOUTS[filter_layout])))
    arrays = {"bias": normals(problem.K), "residual": normals(*y_shape)}
    asked = {key: arrays[key] if value is True else value for key, value in row.items()}
    reports, _ = check("it", x, w, problem, degrees=(1, 2), **how, **asked)
    assert [one.verdict for one in reports] == ["pass", "pass"]
    launch = getattr(module, name)

    def without(*args, epilogue, **options):
        return launch(*args, epilogue=dataclasses.replace(epilogue, **{next(iter(row)): None}), **options)

    monkeypatch.setattr(module, name, without)
    assert check("it", x, w, problem, **how, **asked)[0][0].verdict == "fail"
