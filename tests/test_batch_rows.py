"""What is not finite in one image of a batch reaches no other image, by any algorithm, strictly or not."""

import numpy as np
import pytest
from batch_rows import leaks

from nkiconv import ConvProblem

ONE = ((1, 1), (1, 1))


def rows(**fields):
    """Depthwise rows."""
    return ConvProblem(H=1, R=1, K=fields["C"], groups=fields["C"], **fields), "depthwise_conv1d"


def images(**fields):
    return ConvProblem(**fields), None


PROBLEMS = {
    "rows": rows(N=5, C=8, W=40, S=4, padding=((0, 0), (3, 0))),
    "rows of several stretches": rows(N=4, C=5, W=100, S=3, dtype="fp32"),
    "one channel": rows(N=6, C=1, W=36, S=5, dtype="fp16"),
    "steps of a decoder": rows(N=40, C=3, W=3, S=4, padding=((0, 0), (3, 0))),
    "rows with strides": rows(N=5, C=16, W=40, S=3, stride=(1, 2), rhs_dilation=(1, 2)),
    "rows with gaps": rows(N=5, C=5, W=20, S=4, lhs_dilation=(1, 2), padding=((0, 0), (3, 2))),
    "gradient of rows": rows(N=5, C=7, W=20, S=4, padding=((0, 0), (0, 3)), transposed=True),
    "long filters": rows(N=3, C=2, W=160, S=150),
    "channels that share out": rows(N=3, C=96, W=20, S=4, padding=((0, 0), (3, 0))),
    "dense": images(N=3, C=8, K=8, H=6, W=7, R=3, S=3, padding=ONE),
    "one input channel": images(N=5, C=1, K=8, H=6, W=6, R=3, S=3),
    "NHWC": images(N=3, C=16, K=3, H=6, W=7, R=3, S=3, padding=ONE, layout="NHWC"),
    "patches": images(N=5, C=3, K=16, H=8, W=8, R=4, S=4, stride=(4, 4), dtype="fp32"),
    "fp8": images(N=3, C=4, K=4, H=5, W=6, R=3, S=3, dtype="fp8_e4m3"),
    "dense rows": images(N=4, C=6, K=5, H=1, W=20, R=1, S=4, padding=((0, 0), (3, 0))),
    "groups": images(N=5, C=8, K=8, groups=2, H=6, W=6, R=3, S=3, padding=ONE),
    "depthwise": images(N=5, C=8, K=8, groups=8, H=7, W=6, R=3, S=3, padding=ONE),
    "small depthwise": images(N=16, C=2, K=2, groups=2, H=3, W=4, R=3, S=3, padding=ONE),
    "depthwise NHWC": images(N=3, C=8, K=8, groups=8, H=7, W=6, R=3, S=3, stride=(2, 2), layout="NHWC"),
    "transposed": images(N=4, C=32, K=8, H=3, W=3, R=3, S=3, padding=ONE, transposed=True),
    "transposed with gaps": images(N=4, C=32, K=4, H=3, W=4, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2), (2, 2)),
     transposed=True),
    "transposed groups": images(N=4, C=8, K=8, groups=4, H=3, W=4, R=4, S=4, lhs_dilation=(2, 2),
     padding=((2, 2), (2, 2)), transposed=True),
    "volumes": images(N=3, C=4, K=4, D=3, H=4, W=4, T=2, R=3, S=3, padding=((1, 0), *ONE)),
    "volumes with one plane of taps": images(N=3, C=8, K=3, D=2, H=4, W=4, T=1, R=3, S=3),
    "depthwise volumes": images(N=3, C=8, K=8, groups=8, D=3, H=4, W=4, T=2, R=3, S=3),
    "transposed volumes": images(N=3, C=32, K=4, D=2, H=2, W=2, T=2, R=2, S=2, lhs_dilation=(2, 2, 2),
     padding=((1, 1),) * 3, transposed=True),
}  # fmt: skip


@pytest.mark.cover(3, keep=["long filters-strict"])
@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_nan_stays_in_its_image(name, strict):
    problem, operation = PROBLEMS[name]
    assert leaks(problem, operation, strict=strict) == []


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", ["rows", "steps of a decoder", "dense", "transposed"])
def test_infinity_stays_in_its_image(name):
    """The opposite sign too: products of both may add up to NaN."""
    problem, operation = PROBLEMS[name]
    assert leaks(problem, operation, np.inf, most=1) == []
    assert leaks(problem, operation, -np.inf, most=1) == []
