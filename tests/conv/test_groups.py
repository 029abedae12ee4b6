"""Grouped convolutions on row tiles of the array: exact for every geometry that they take, chosen where they pay."""

import pytest
from conv_calls import check_bits, check_epilogue, check_exact, check_refused, config_of
from volumes import VOLUMES, check_volume

from nkiconv.problem import ConvProblem
from nkiconv.schedules import output_tiles

SAME = ((1, 1), (1, 1))
ROWS = {
    "eight by eight": ConvProblem(N=3, C=256, H=14, W=14, K=256, R=3, S=3, groups=32, padding=SAME),
    "depthwise": ConvProblem(N=2, C=96, H=9, W=7, K=96, R=3, S=3, groups=96, padding=SAME),
    "depthwise, large filter": ConvProblem(N=1, C=33, H=12, W=11, K=33, R=7, S=5, groups=33, padding=((3, 3), (2, 2))),
    "rows of taps in parts": ConvProblem(N=1, C=64, H=3, W=40, K=64, R=2, S=11, groups=64, padding=((1, 0), (5, 5))),
    "multiplier 2": ConvProblem(N=2, C=40, H=9, W=7, K=80, R=3, S=3, groups=40, padding=SAME),
    "multiplier 3, stride": ConvProblem(N=2, C=150, H=9, W=11, K=450, R=3, S=2, groups=150, stride=(2, 3)),
    "tiles with gaps": ConvProblem(N=3, C=35, H=11, W=9, K=21, R=3, S=2, groups=7, stride=(2, 1),
     padding=((0, 2), (1, 0))),
    "more outputs than inputs": ConvProblem(N=1, C=12, H=6, W=7, K=84, R=2, S=3, groups=6, padding=SAME),
    "more inputs than outputs": ConvProblem(N=1, C=180, H=6, W=7, K=15, R=2, S=3, groups=5, padding=SAME),
    "dilation": ConvProblem(N=1, C=12, H=11, W=13, K=24, R=2, S=3, groups=4, stride=(1, 2), rhs_dilation=(3, 2),
     padding=((2, 1), (-1, 3))),
    "stride beyond the filter": ConvProblem(N=2, C=8, H=20, W=23, K=8, R=2, S=1, groups=4, stride=(3, 4)),
    "cropped": ConvProblem(N=2, C=10, H=9, W=9, K=20, R=3, S=3, groups=5, padding=((-1, -2), (-2, 1))),
    "padded beyond the filter": ConvProblem(N=1, C=6, H=4, W=5, K=6, R=2, S=2, groups=3, padding=((9, 8), (7, 6))),
    "one output": ConvProblem(N=2, C=6, H=3, W=3, K=6, R=3, S=3, groups=3),
    "one row": ConvProblem(N=2, C=16, H=1, W=33, K=16, R=1, S=3, groups=4, padding=((0, 0), (1, 1))),
    "bands of rows": ConvProblem(N=1, C=16, H=90, W=120, K=16, R=3, S=3, groups=4, padding=SAME),
    "several banks of a row": ConvProblem(N=1, C=4, H=3, W=800, K=4, R=3, S=3, groups=2, padding=SAME),
    "two images at once, one left": ConvProblem(N=5, C=48, H=9, W=8, K=48, R=3, S=3, groups=48, padding=SAME),
    "three images at once": ConvProblem(N=3, C=24, H=5, W=4, K=24, R=3, S=3, groups=3, padding=SAME),
    "several waves, the last of two images": ConvProblem(N=4, C=224, H=6, W=5, K=224, R=3, S=3, groups=224,
     padding=SAME),
    "parts of an image at once": ConvProblem(N=1, C=32, H=23, W=9, K=32, R=3, S=3, groups=32, padding=((2, 0), (1, 1))),
    "parts of two images at once": ConvProblem(N=2, C=20, H=50, W=130, K=40, R=5, S=3, groups=20, stride=(2, 1),
     padding=((2, 2), (1, 1))),
    "more tiles than rows": ConvProblem(N=1, C=16, H=3, W=9, K=16, R=3, S=3, groups=4, padding=((0, 0), (1, 1))),
    "many waves": ConvProblem(N=1, C=640, H=5, W=4, K=640, R=3, S=3, groups=20, padding=SAME),
    "groups of half an array": ConvProblem(N=1, C=192, H=7, W=6, K=192, R=3, S=3, groups=3, padding=SAME),
}  # fmt: skip
#: (rows, height, width) that settings can name; None: the kernel's own.
SHAPES = [None, (32, 2, 2), (32, 4, 1), (64, 1, 4), (64, 2, 1), (32, 1, 2)]


def blocks_of(shape):
    settings = {} if shape is None else dict(zip(("rows", "height", "width"), shape, strict=True))
    return config_of("weight_stationary", **settings)


def takes(problem, shape):
    """Whether a group fits tiles and blocks of these sizes."""
    if shape is None:
        return True
    rows, height, width = shape
    return problem.C // problem.groups <= rows and problem.K // problem.groups * height * width <= 128


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ROWS)
def test_exact(name, dtype):
    check_exact(ROWS[name].replace(dtype=dtype), config=blocks_of(None))


@pytest.mark.cover(6)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_exact_for_all_shapes_of_tiles(name, shape):
    if takes(ROWS[name], shape):
        check_exact(ROWS[name], config=blocks_of(shape))


@pytest.mark.cover(6)
@pytest.mark.parametrize("asked", ["residual before an activation", "residual after an activation"])
@pytest.mark.parametrize("name", ["tiles with gaps", "multiplier 2", "bands of rows", "parts of two images at once"])
def test_epilogue(name, asked):
    check_epilogue(ROWS[name], asked, blocks_of(None))


def test_layouts():
    perms = {"in_perm": (0, 3, 1, 2), "kern_perm": (3, 2, 0, 1), "out_perm": (0, 2, 3, 1)}
    check_exact(ROWS["tiles with gaps"], config=blocks_of(None), **perms)


@pytest.mark.parametrize(("problem", "changes", "message"), [
    (ROWS["depthwise"], {"strict_nonfinite": True}, "strict_nonfinite=True: weight_stationary multiplies"),
    (ROWS["depthwise"].replace(lhs_dilation=(1, 3)), {}, r"lhs_dilation=\(1, 1, 3\): .* at most 4 phases"),
    (ROWS["depthwise"].replace(C=130, K=96, groups=2), {}, "C / groups=65, K / groups=48"),
    (ROWS["depthwise"].replace(R=31, S=31, padding=((15, 15), (15, 15))), {}, "R=31, S=31"),
    (ROWS["depthwise"].replace(W=40_000), {}, "W=40000: weight_stationary takes"),
    (ROWS["depthwise"], {"settings": {"rows": 32}}, "config rows=32 height=0 width=0: given together"),
    (ROWS["multiplier 2"].replace(K=1600), {"settings": {"rows": 32, "height": 2, "width": 2}},
     "height=2 width=2: a group takes 1 rows"),
])  # fmt: skip
def test_groups_that_are_refused(problem, changes, message):
    check_refused(problem, "weight_stationary", message, **changes)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_outputs_that_meet_no_row_have_a_price(layout):
    """A unit of which no row is loaded divided by the number of its runs."""
    problem = ConvProblem(N=1, C=2, H=1, W=1, K=2, R=1, S=1, groups=2, padding=((0, 1), (1, 0)), layout=layout)
    check_exact(problem, config=config_of("weight_stationary"))


def settings(T, Uh, Uw):
    return (("rows", T), ("height", Uh), ("width", Uw))


@pytest.mark.parametrize(
    "name", ["tiles with gaps", "two images at once, one left", "bands of rows", "rows of taps in parts"]
)
def test_the_same_bits_on_one_core_and_two(name):
    check_bits(ROWS[name].replace(dtype="fp32"), blocks_of((64, 2, 1) if name == "rows of taps in parts" else None))


GROUPS = (12, 24, 6, *VOLUMES["same"][3:])
MANY = (160, 160, 160, *VOLUMES["causal"][3:])


@pytest.mark.cover(4)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("shape", [VOLUMES["groups"], VOLUMES["depthwise"], GROUPS, MANY])
def test_volumes(shape, lnc):
    check_volume(shape, lnc=lnc, algorithm="weight_stationary")


@pytest.mark.cover(2)
@pytest.mark.parametrize("config", [settings(32, 1, 2), settings(64, 2, 1), (("buffers", 2),)])
def test_volumes_by_settings(config, change):
    change(output_tiles, "GROUPS_X_BYTES", 256)
    for shape in (GROUPS, VOLUMES["depthwise"]):
        check_volume(shape, algorithm="weight_stationary", config=config)
