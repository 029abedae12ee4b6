"""Gradients of 1x1 filters whose planes DMA transposes as they come, exact on integers."""

import numpy as np
import pytest
from depthwise import on_cores, same_bits
from draws import draws
from gradients import LAYOUTS, WEIGHT, check, problem_of
from hypothesis import given
from hypothesis import strategies as st

import nkiconv
from nkiconv.errors import UnsupportedError
from nkiconv.schedules.blocks import line_width

LINES = ("pixels", 1)
#: (N, C, K, groups), and sizes of the axes: planes of several lines, of one line, of few pixels, of a prime, of rows of
#: sequences and of volumes; several banks, tiles and chunks of output channels.
PROBLEMS = {
    "several lines": ((3, 20, 9, 1), (14, 16)),
    "one line": ((5, 140, 130, 1), (6, 5)),
    "one row of two lines": ((2, 7, 5, 1), (1, 200)),
    "few pixels": ((150, 3, 4, 1), (2, 2)),
    "groups": ((2, 12, 8, 4), (8, 16)),
    "banks": ((3, 600, 150, 1), (8, 8)),
    "sequences": ((3, 10, 9, 1), (300,)),
    "volumes": ((2, 6, 7, 1), (3, 4, 16)),
}


def has_lines(sizes):
    return np.prod(sizes[-2:]) > 1 and line_width(int(np.prod(sizes[-2:]))) > 0


def axes_of(sizes):
    return [(size, 1, 1, 1, 0, 0) for size in sizes]


@pytest.mark.cover(6)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_exact(name, split):
    channels, sizes = PROBLEMS[name]
    on_cores(check, channels, axes_of(sizes), bias_gradient=True, adds=True, config=(LINES, ("split", split)))


@draws(24, 100)
@given(st.data())
def test_any_problem_and_settings(data):
    groups, dtype = data.draw(st.integers(1, 3), "groups"), data.draw(st.sampled_from(("bf16", "fp16")), "dtype")
    channels = [groups * data.draw(st.integers(1, 40), name) for name in ("C", "K")]
    sizes = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=3).filter(has_lines), "sizes")
    config = [(name, data.draw(st.integers(1, 4), name)) for name in ("rows", "outputs", "buffers", "inputs")]
    config.append(("split", data.draw(st.integers(0, 1), "split")))
    N = data.draw(st.integers(1, 6), "N")
    check((N, *channels, groups), axes_of(sizes), dtype=dtype, bias_gradient=True, lnc=data.draw(st.integers(1, 2)),
          config=(LINES, *config))  # fmt: skip


REFUSED = {
    "taps": ((1, 3, 4, 1), [(6, 3, 1, 1, 1, 1), (8, 1, 1, 1, 0, 0)], {}, "pixels=1"),
    "strides": ((1, 3, 4, 1), [(6, 1, 2, 1, 0, 0), (8, 1, 1, 1, 0, 0)], {}, "pixels=1"),
    "strides, and as many outputs as pixels": ((1, 3, 4, 1), [(3, 1, 2, 1, 0, 2), (32, 1, 1, 1, 0, 0)], {}, "pixels=1"),
    "cropped": ((1, 3, 4, 1), [(6, 1, 1, 1, 0, -1), (8, 1, 1, 1, 0, 0)], {}, "pixels=1"),
    "fp32": ((1, 3, 4, 1), axes_of((6, 8)), {"dtype": "fp32"}, "transposes 16 bits"),
    "prime": ((1, 3, 4, 1), axes_of((1, 131)), {}, "1 x 131 pixels"),
    "columns": ((1, 3, 4, 1), axes_of((6, 8)), {"config": (("columns", 2),)}, "columns=2 pixels=1: a block of lines"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_lines_is_refused(name):
    channels, axes, more, message = REFUSED[name]
    x, gy, shape = problem_of(channels, axes, more.get("dtype", "bf16"))
    places = {"stride": tuple(axis[2] for axis in axes), "padding": tuple(axis[4:] for axis in axes)}
    with pytest.raises(UnsupportedError, match=message):
        nkiconv.conv2d_weight(x, shape, gy, algorithm="blocks", config=(LINES, *more.get("config", ())), **places)


def test_strides_that_step_over_zeros_meet_each_pixel():
    """As many places apart as lhs_dilation puts pixels."""
    check((2, 3, 4, 1), [(6, 1, 2, 1, 0, 0, 2), (8, 1, 1, 1, 0, 0, 1)], config=(LINES,))
    x, gy, shape = problem_of((2, 3, 4, 1), [(3, 1, 3, 1, 0, 2, 2), (32, 1, 1, 1, 0, 0, 1)])
    with pytest.raises(UnsupportedError, match="pixels=1"):
        nkiconv.conv2d_weight(x, shape, gy, stride=(3, 1), lhs_dilation=(2, 1), padding=((0, 2), (0, 0)),
                              algorithm="blocks", config=(LINES,))  # fmt: skip


def test_pixels_that_lie_side_by_side_already_are_taken_as_they_are():
    x, gy, shape = problem_of((3, 20, 9, 1), axes_of((14, 16)))
    arrays = [np.ascontiguousarray(np.moveaxis(one, 1, -1)) for one in (x, gy)]
    found = WEIGHT[2](arrays[0], shape, arrays[1], layout=LAYOUTS[2][1], algorithm="blocks", config=(LINES,))
    assert same_bits(found, WEIGHT[2](x, shape, gy, algorithm="blocks", config=(LINES,)))
