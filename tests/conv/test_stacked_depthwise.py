"""Depthwise problems stacked, by block-diagonal matrices: exact for every geometry they take, chosen where they pay."""

import pytest
from conv_calls import check_epilogue, check_exact, check_refused, config_of, geometry_of, options_of
from depthwise_images import DEPTHWISE_IMAGES, depthwise
from volumes import VOLUMES, check_volume

from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.conv import ALGORITHMS
from nkiconv.simulator.timing import Rates

ROWS = {
    **DEPTHWISE_IMAGES,
    "all rows": depthwise(3, N=1, H=128, W=6, R=9, S=3, padding=((4, 4), (1, 1))),
    "several banks": depthwise(9, N=20, H=40, W=50, R=5, S=5, padding=((2, 2), (2, 2))),
    "wide": depthwise(3, N=1, H=9, W=523, R=3, S=4, padding=((1, 1), (2, 1))),
    "no column meets all": depthwise(5, N=2, H=9, W=2, R=3, S=2, padding=((1, 1), (3, 3)), rhs_dilation=(1, 4)),
    "fewer channels last": depthwise(11, N=2, H=40, W=6, R=3, S=3, padding=((1, 1), (1, 1))),
    "biases of several tiles": depthwise(270, N=1, H=65, W=3, R=2, S=2),
    "several rounds": depthwise(300, N=1, H=62, W=9, R=3, S=9, padding=((1, 1), (4, 4))),
}


OUT_TILES = config_of("stacked")


def completed(problem, settings=None, **changes):
    """All settings, those that are open as the host has them."""
    shape = Shape(geometry_of(problem), options_of(**changes), 2, Rates())
    return ALGORITHMS["stacked"].complete(shape, settings)


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ROWS)
def test_exact(name, dtype):
    problem = ROWS[name].replace(dtype=dtype)
    check_exact(problem, config=OUT_TILES)


def test_layouts():
    check_exact(ROWS["both strides"].replace(layout="NHWC"), config=OUT_TILES)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ["both strides", "several banks", "fewer channels last", "biases of several tiles"])
def test_epilogue(name):
    asked = {"bias": True, "residual": True, "beta": -1.0, "activation": "relu"}
    check_epilogue(ROWS[name], asked, OUT_TILES)


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (ROWS["same"], {"strict_nonfinite": True}, "strict_nonfinite=True: stacked multiplies"),
        (ROWS["same"].replace(H=129), {}, "H=129, P=129: stacked takes at most 128 rows of a depthwise"),
        (
            ROWS["same"].replace(K=12),
            {},
            "feature_group_count=6, C=6, K=12: stacked takes one group, or depthwise problems",
        ),
        (ROWS["same"].replace(groups=3), {}, "feature_group_count=3"),
        (ROWS["same"].replace(lhs_dilation=(1, 2)), {}, r"lhs_dilation=\(1, 2\): stacked takes"),
        (ROWS["same"], {"settings": {"rows": 2}}, "stacked of depthwise problems has no setting rows"),
        (ROWS["same"].replace(N=4000), {}, "N=4000, W=13, S=7: rows of all images"),
        (ROWS["same"], {"settings": {"channels": 100}}, "config channels=100: at most 3 of 14 rows"),
    ],
)
def test_what_depthwise_stacks_do_not_do(problem, changes, message):
    check_refused(problem, "stacked", message, **changes)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ROWS)
def test_what_the_host_settles_is_exact(name):
    check_exact(ROWS[name], config=(("algorithm", "stacked"), *completed(ROWS[name])))


PLANES = (4, 4, 4, *VOLUMES["same"][3:])
#: Zeros between planes of x: (size, taps, stride, dilation, lhs_dilation, before, after) of planes.
GAPS = [(4, 4, 4, planes, *VOLUMES["same"][4:]) for planes in ((5, 4, 1, 1, 3, 0, 0), (6, 3, 2, 2, 3, 2, 1))]


@pytest.mark.cover(5)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("shape", [VOLUMES["depthwise"], PLANES, (6, 6, 6, *VOLUMES["causal"][3:]), *GAPS])
def test_volumes(shape, lnc):
    check_volume(shape, lnc=lnc, algorithm="stacked")
