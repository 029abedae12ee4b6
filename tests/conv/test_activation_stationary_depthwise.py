"""Depthwise convolutions by Toeplitz matrices of all taps: exact in both layouts, chosen where they pay."""

import hypothesis
import pytest
from conv_calls import (
    check_bits,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    geometry_of,
    options_of,
    planned,
)
from depthwise_images import DEPTHWISE_IMAGES, depthwise
from draws import draws
from hypothesis import strategies as st

from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.conv import ALGORITHMS
from nkiconv.rules import LAYOUTS
from nkiconv.simulator.timing import Rates

NAME = "activation_stationary"
BLOCKS = config_of(NAME)


IMAGES = {
    **DEPTHWISE_IMAGES,
    "many rows": depthwise(3, N=1, H=140, W=6, R=9, S=3, padding=((4, 4), (1, 1))),
    "many columns": depthwise(3, N=1, H=6, W=600, R=3, S=9, padding=((1, 1), (4, 4))),
    "taller than a block": depthwise(4, N=2, H=40, W=20, R=31, S=31, padding=((15, 15), (15, 15))),
    "many channels": depthwise(1100, N=1, H=6, W=5, R=3, S=3, padding=((1, 1), (1, 1))),
    "several rounds": depthwise(300, N=5, H=20, W=9, R=3, S=5, padding=((1, 1), (2, 2))),
}
#: Zeros between pixels: gradients of x of strided images among them.
APART = {
    "stride 2": depthwise(6, N=3, H=7, W=6, R=5, S=5, lhs_dilation=(2, 2), padding=((2, 3), (2, 3))),
    "rows alone": depthwise(5, N=2, H=9, W=14, R=3, S=4, lhs_dilation=(3, 1), padding=((0, 2), (1, 2))),
    "columns, cropped": depthwise(5, N=2, H=9, W=8, R=3, S=3, lhs_dilation=(1, 2), padding=((1, 1), (-3, -1))),
    "stride too": depthwise(150, N=2, H=8, W=7, R=3, S=3, lhs_dilation=(2, 3), stride=(3, 2), padding=((1, 1), (1, 1))),
    "begins between columns": depthwise(6, N=3, H=9, W=9, R=3, S=1, lhs_dilation=(1, 2), padding=((1, 1), (-1, 0))),
    "begins before two": depthwise(9, N=3, H=6, W=3, R=2, S=2, lhs_dilation=(1, 3), padding=((-2, -1), (-1, 1))),
    "far outside": depthwise(3, N=1, H=2, W=2, R=2, S=2, lhs_dilation=(2, 2), padding=((9, 8), (7, 6))),
}
#: Settings that cut a problem into many items: rounds of matrices, bands of rows, images, windows beside each other.
CUT = {
    "bands": {"rows": 7, "columns": 4, "below": 1, "images": 3, "channels": 40, "together": 1, "buffers": 2},
    "rounds": {"rows": 4, "columns": 9, "below": 3, "images": 6, "channels": 11, "together": 3, "buffers": 4},
    "odd planes": {"rows": 3, "columns": 3, "below": 2, "images": 13, "channels": 9, "together": 2, "buffers": 3},
}


#: Images that NCHW, whose windows do not overlap, does not take: outputs that see zeros alone at the begin of a row,
#: taps that no window is as wide as.
NEVER_DISJOINT = (
    "padded beyond the filter", "taller than a block", "begins between columns", "begins before two", "far outside",
)  # fmt: skip
#: (problem, settings) of planes: as the host has them; one of few columns at the end of a row, an odd number
#: of windows and an even one, banks that end where windows do, bands of rows.
DISJOINT = {
    **{name: (one, {}) for name, one in {**IMAGES, **APART}.items() if name not in NEVER_DISJOINT},
    "many columns": (IMAGES["many columns"], {"columns": 30, "rows": 1}),
    "part of a window": (depthwise(5, N=3, H=6, W=22, R=7, S=7, padding=((3, 3), (3, 3))), {"columns": 7, "rows": 6}),
    "odd windows": (depthwise(5, N=3, H=6, W=21, R=7, S=7, padding=((3, 3), (3, 3))), {"columns": 7, "rows": 6}),
    "even windows": (depthwise(5, N=3, H=6, W=28, R=7, S=7, padding=((3, 3), (3, 3))), {"columns": 7, "rows": 6}),
    "three banks": (depthwise(4, N=2, H=16, W=90, R=3, S=3, padding=((1, 1), (1, 1))), {"columns": 6, "rows": 14}),
    "bands": (depthwise(9, N=13, H=29, W=20, R=5, S=5, padding=((2, 2), (2, 2))),
     {"columns": 8, "rows": 4, "below": 3}),
    "strides and bands": (depthwise(9, N=3, H=29, W=41, R=5, S=5, stride=(2, 3), padding=((2, 2), (4, 2))),
     {"columns": 3, "rows": 4, "below": 2}),
}  # fmt: skip


def taken(problems):
    """Names of problems with each layout in which they are taken."""
    return [(one, layout) for layout in LAYOUTS for one in problems if layout == "NHWC" or one not in NEVER_DISJOINT]


def completed(problem, settings=None, **changes):
    """All settings, those that are open as the host has them."""
    asked = Shape(geometry_of(problem), options_of(**changes), 2, Rates())
    return ALGORITHMS[NAME].complete(asked, settings)


@pytest.mark.cover(4)
@pytest.mark.parametrize(("name", "layout"), taken(IMAGES))
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_exact(name, dtype, layout):
    check_exact(IMAGES[name].replace(dtype=dtype, layout=layout), config=BLOCKS)


@pytest.mark.cover(6)
@pytest.mark.parametrize(("name", "layout"), taken(APART))
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_zeros_between_pixels(name, dtype, layout):
    check_exact(APART[name].replace(dtype=dtype, layout=layout), config=BLOCKS)


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", DISJOINT)
def test_windows_of_planes(name, dtype):
    problem, given = DISJOINT[name]
    problem = problem.replace(dtype=dtype, layout="NCHW")
    settings = completed(problem, tuple(given.items()))
    assert given.items() <= dict(settings).items()
    check_exact(problem, config=(("algorithm", NAME), *settings))


@pytest.mark.parametrize("name", NEVER_DISJOINT)
def test_planes_that_it_does_not_take(name):
    check_refused({**IMAGES, **APART}[name].replace(layout="NCHW"), NAME, "use stacked")


@pytest.mark.cover(1)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [250, 91])
@pytest.mark.parametrize("name", CUT)
def test_many_items(name, channels, layout):
    problem = depthwise(channels, N=13, H=12, W=9, R=5, S=3, padding=((2, 2), (1, 1)), layout=layout)
    check_exact(problem, config=config_of(NAME, **CUT[name]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_of_other_sizes_share_buffers(layout):
    """Of 9 channels 14 images go on the partitions together, of 10 twelve, which are fewer partitions."""
    problem = depthwise(38, N=16, H=6, W=7, R=3, S=3, padding=((1, 1), (1, 1)), layout=layout)
    sizes = {"rows": 3, "columns": 7, "below": 2, "images": 16, "channels": 10}
    check_exact(problem, config=config_of(NAME, **sizes))


def test_blocks_beside_each_other():
    problem = depthwise(6, N=3, H=12, W=29, R=3, S=3, padding=((1, 1), (1, 1)), layout="NHWC")
    check_exact(problem, config=config_of(NAME, rows=4, columns=5, beside=4, below=3, images=2))


@pytest.mark.cover(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["several rounds", "both strides"])
def test_one_core_has_the_bits_of_two(name, layout):
    check_bits(IMAGES[name].replace(dtype="fp32", layout=layout), BLOCKS)


@pytest.mark.cover(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["both strides", "several rounds", "dilation"])
def test_epilogue(name, layout):
    asked = {"bias": True, "residual": True, "beta": -1.0, "activation": "relu"}
    check_epilogue(IMAGES[name].replace(layout=layout), asked, BLOCKS)


@st.composite
def images(draw):
    """Problems, and settings of blocks that may or may not go with them."""
    extent = st.integers(1, 17)
    taps = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride, dilation = draw(st.tuples(*(st.integers(1, 3),) * 2)), draw(st.tuples(*(st.integers(1, 2),) * 2))
    H, W, layout = draw(extent), draw(extent), draw(st.sampled_from(LAYOUTS))
    apart = draw(st.tuples(*(st.integers(1, 3),) * 2))
    padding = []
    for count, each, size, between in zip(taps, dilation, (H, W), apart, strict=True):
        window, extent = (count - 1) * each + 1, (size - 1) * between + 1
        before = draw(st.integers(min(window, max(-4, window - extent - 1)), window))
        padding.append((before, draw(st.integers(max(-2, window - extent - before), max(3, window - extent - before)))))
    problem = depthwise(
        draw(st.integers(2, 40)), N=draw(st.integers(1, 20)), H=H, W=W, R=taps[0], S=taps[1], stride=stride,
        rhs_dilation=dilation, lhs_dilation=apart, padding=tuple(padding), layout=layout,
    )  # fmt: skip
    windows = st.integers(1, 5) if layout == "NHWC" else st.integers(3, 8)
    config = {
        "rows": stride[0] * apart[0] * draw(st.integers(1, 3)), "columns": apart[1] * draw(windows),
        "below": draw(st.integers(1, 4)), "images": draw(st.integers(1, 20)), "channels": draw(st.integers(1, 12)),
        "together": draw(st.integers(1, 3)), "buffers": draw(st.integers(2, 4)),
    }  # fmt: skip
    return problem, config


@draws(24, 60)
@hypothesis.given(images())
def test_any_problem_and_settings(drawn):
    problem, config = drawn
    settings = tuple(config.items())
    hypothesis.assume(planned(problem, NAME, settings)[0] is not None)
    check_exact(problem, config=(("algorithm", NAME), *settings))


SAME = IMAGES["same"]


@pytest.mark.parametrize(("problem", "changes", "message"), [
    (SAME, {"strict_nonfinite": True}, f"strict_nonfinite=True: {NAME} multiplies"),
    (SAME.replace(K=12), {}, f"C=6, K=12: {NAME} takes 1, or depthwise problems"),
    (SAME.replace(groups=3), {}, "feature_group_count=3"),
    (SAME.replace(lhs_dilation=(1, 2)), {"settings": (("columns", 5),)}, "columns=5: rows must be a multiple"),
    (SAME.replace(lhs_dilation=(3, 1)), {"settings": (("rows", 4),)}, "of lhs_dilation, 3, columns of 1, so that"),
    (SAME.replace(W=200, S=131), {}, "S=131, rhs_dilation=1, stride=1: activation_stationary takes windows"),
    (SAME.replace(dtype="fp8_e4m3"), {}, f"{NAME} takes 16 and 32 bits"),
    (SAME, {"settings": (("rows", 64), ("columns", 9))}, "config rows=64, columns=9, S=7: 9 columns of x"),
    (SAME, {"settings": (("below", 32), ("images", 5))}, "beside=1, below=32, images=5: their product"),
    (SAME, {"settings": (("beside", 2),)}, "config beside=2: must be 1 unless channels"),
    (SAME, {"settings": (("channels", 200),)}, "config channels=200: must be at most 128"),
    (SAME, {"settings": (("columns", 5), ("rows", 2))}, "columns=5, S=7: windows of NCHW do not"),
    (IMAGES["padded beyond the filter"], {}, "padding=[0-9]+ in front of a row"),
    (IMAGES["many columns"].replace(padding=((1, 1), (4, 600))), {"settings": (("columns", 40), ("rows", 1))},
     "config rows=1, columns=40: 1 rows of [0-9]+ columns of y must fit a bank"),
    (IMAGES["stride"], {"settings": (("rows", 3),)}, "config rows=3: must be a multiple of the stride"),
    (depthwise(256, N=64, H=56, W=56, R=7, S=7, padding=((3, 3), (3, 3)), layout="NHWC"),
     {"settings": (("images", 16), ("channels", 256), ("below", 8))},
     "config images=16, channels=256, C=256: blocks, matrices and results must fit SBUF"),
])  # fmt: skip
def test_what_it_does_not_do(problem, changes, message):
    settings = dict(changes.get("settings", ()))
    check_refused(problem, NAME, message, **changes | ({"settings": settings} if settings else {}))


@pytest.mark.cover(3)
@pytest.mark.parametrize(("name", "layout"), taken(IMAGES))
def test_what_the_host_settles_is_exact(name, layout):
    problem = IMAGES[name].replace(layout=layout)
    check_exact(problem, config=(("algorithm", NAME), *completed(problem)))


def test_rows_that_no_blocks_fit_are_refused_by_their_number(quickly):
    """A Conformer's gradient: the least blocks are 6 million, of which none is listed."""
    problem = depthwise(512, N=8, H=1, W=1500, R=1, S=31, padding=((0, 0), (15, 15)), layout="NHWC")
    check_refused(problem, NAME, "instructions on a core")
