"""Few output channels: rows of y and columns of taps side by side give the same sums, for whatever they are taken."""

import re

import hypothesis
import numpy as np
import pytest
from conv_calls import (
    EDGE,
    EPILOGUES,
    check_bits,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    integers,
    planned,
    run,
)
from draws import draws
from volumes import VOLUMES, check_volume, volumes

import nkiconv
from nkiconv.axis import Axis
from nkiconv.problem import ConvProblem

SAME = ((1, 1), (1, 1))
RGB = ConvProblem(N=1, C=130, H=23, W=19, K=3, R=3, S=3, padding=SAME)
PIXELS = ConvProblem(N=3, C=130, H=1, W=1, K=5, R=1, S=1)
TALL = ConvProblem(N=1, C=30, H=41, W=30, K=2, R=3, S=3, padding=SAME)
STRIDED = ConvProblem(N=3, C=5, H=21, W=17, K=4, R=4, S=5, stride=(2, 3), padding=((2, 1), (3, 2)), rhs_dilation=(1, 2))
#: rows 0, 3, 6 and 4, 7, 10 of a window: lines of a row of y are not evenly spaced
UNEVEN = ConvProblem(N=1, C=7, H=40, W=9, K=2, R=3, S=2, stride=(4, 1), rhs_dilation=(3, 1), padding=((3, 2), (0, 1)))
TRANSPOSED = ConvProblem(N=2, C=6, H=7, W=9, K=3, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2), (2, 2)))
BOTH = ConvProblem(
    N=1, C=3, H=9, W=8, K=2, R=3, S=6, rhs_dilation=(2, 3), lhs_dilation=(3, 3), padding=((4, 3), (5, 7))
)
WIDE = ConvProblem(N=1, C=2, H=9, W=1100, K=3, R=3, S=4, padding=((1, 1), (2, 1)))
#: problem, rows of y of a block, columns of taps beside each other, other settings
SHAPES = {
    "one tap at once": (RGB, 1, 1, {}),
    "two taps": (RGB, 20, 2, {}),
    "three taps": (RGB, 10, 3, {}),
    "all partitions": (RGB, 23, 1, {}),
    "one block a bank": (RGB, 5, 3, {}),
    "many banks": (RGB.replace(W=90), 1, 3, {}),
    "loads of one row": (RGB, 2, 3, {"x_bytes": 256}),
    "short loads": (RGB, 3, 3, {"x_bytes": 256}),
    "loads cut inside a bank": (TALL, 2, 3, {"x_bytes": 256}),
    "many K tiles": (RGB.replace(C=1100, H=9, W=7, R=5, S=5), 6, 3, {}),
    "many K tiles, loads of some": (RGB.replace(C=460, H=9, W=7, K=60), 2, 1, {}),
    "many K tiles, image by image": (RGB.replace(N=2, C=600, H=54, W=55, K=1), 27, 3, {}),
    "strided": (STRIDED, 3, 4, {}),
    "strided, groups of taps": (STRIDED, 8, 2, {}),
    "strided, image by image": (STRIDED.replace(H=120), 2, 3, {"warmup": 0}),
    "unlike images on two cores": (PIXELS, 1, 1, {}),
    "uneven lines": (UNEVEN, 2, 2, {}),
    "transposed": (TRANSPOSED, 6, 4, {}),
    "transposed, groups of taps": (TRANSPOSED, 4, 2, {}),
    "transposed, all taps on one side": (TRANSPOSED, 2, 1 + 1, {}),
    "both dilations": (BOTH, 3, 4, {}),
    "both dilations, single taps": (BOTH, 6, 1, {}),
    "wide": (WIDE, 4, 4, {}),
    "wide, groups of taps": (WIDE, 10, 3, {}),
    "lanes": (STRIDED.replace(C=64), 3, 4, {"lanes": 2}),
    "lanes, image by image": (STRIDED.replace(C=17, N=5), 2, 3, {"lanes": 2}),
    "four lanes": (TRANSPOSED.replace(N=7, C=32), 4, 2, {"lanes": 4}),
    "four lanes, more than a core has": (TRANSPOSED.replace(N=5), 2, 2, {"lanes": 4}),
    "lanes of wide rows": (WIDE.replace(N=3), 4, 4, {"lanes": 2}),
}


def packed(U, T, settings):
    return config_of("weight_stationary", outputs=U, taps=T, **settings)


@pytest.mark.cover(9)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_exact(name, dtype):
    problem, U, T, settings = SHAPES[name]
    shift = planned(problem, "weight_stationary", packed(U, T, settings)[1:])[0].shift
    assert (shift.U, shift.T) == (U, T)
    check_exact(problem.replace(dtype=dtype), config=packed(U, T, settings))


@pytest.mark.cover(4, keep=["dilation_beyond_a_load"])
@pytest.mark.parametrize("why", EDGE)
def test_every_edge_is_exact_or_refused(why):
    found, reason = planned(EDGE[why], "weight_stationary", (("lanes", 1),))
    if found is None:
        assert re.search("weight_stationary (takes|keeps|multiplies)|has no setting", reason)
    else:
        check_exact(EDGE[why], config=config_of("weight_stationary", lanes=1))


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", SHAPES)
def test_cores_take_the_same_products(name):
    problem, U, T, settings = SHAPES[name]
    check_bits(problem.replace(dtype="fp32"), packed(U, T, settings))


@pytest.mark.cover(5)
@pytest.mark.parametrize("asked", EPILOGUES)
@pytest.mark.parametrize(
    "name", ["one tap at once", "three taps", "many banks", "strided", "transposed", "wide, groups of taps"]
)
def test_epilogue(name, asked):
    problem, U, T, settings = SHAPES[name]
    check_epilogue(problem, asked, packed(U, T, settings))


def test_layouts():
    perms = {"in_perm": (0, 3, 1, 2), "kern_perm": (3, 2, 0, 1), "out_perm": (0, 2, 3, 1)}
    check_exact(RGB, config=config_of("weight_stationary", lanes=1), **perms)


@pytest.mark.parametrize("each", [1, 2, 4])
def test_packed_filters(each):
    problem = RGB.replace(K=4)
    x, w = integers(np.random.default_rng(4), problem)
    packed = np.ascontiguousarray(w.reshape(4 // each, each, *w.shape[1:]).transpose(0, 2, 3, 4, 1))
    config = config_of("weight_stationary", lanes=1)
    np.testing.assert_array_equal(run(x, packed, problem, 2, config=config), run(x, w, problem, 2, config=config))


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_precision(precision):
    problem = RGB.replace(dtype="fp32")
    check_exact(problem, config=config_of("weight_stationary", lanes=1), precision=precision)


LAYER = ConvProblem(N=1, C=200, H=40, W=40, K=3, R=3, S=3, padding=SAME)


@pytest.mark.parametrize(("problem", "changes", "message"), [
    (LAYER, {"strict_nonfinite": True}, "strict_nonfinite=True: weight_stationary multiplies"),
    (LAYER.replace(K=129), {}, "K=129: weight_stationary takes at most 128"),
    (LAYER.replace(W=200_000), {}, "W=200000, R=3, S=3: weight_stationary keeps rows of x and all filters"),
])  # fmt: skip
def test_what_is_refused(problem, changes, message):
    assert planned(LAYER, "weight_stationary")[1] == ""
    check_refused(problem, "weight_stationary", message, **changes)


@pytest.mark.parametrize(("settings", "message"), [
    ({"outputs": 2}, "outputs and taps are given together or not at all"),
    ({"outputs": 11, "taps": 3}, "config outputs=11 taps=3, K=3, S=3: at most 3 taps, each with"),
    ({"outputs": 1, "taps": 4}, "config outputs=1 taps=4, K=3, S=3: at most 3 taps"),
    ({"outputs": 43, "taps": 1}, "config outputs=43 taps=1"),
    ({"outputs": 129, "taps": 1}, "config outputs=129: must be an int from 1 to 128"),
    ({"x_bytes": 255}, "config x_bytes=255: must be an int from 256"),
    ({"lanes": 2}, "config lanes=2, N=1, C=200: weight_stationary puts at most N images on row tiles"),
    ({"shared": 1, "lanes": 1}, "config shared: was removed from weight_stationary of few outputs; leave it out"),
    ({"rows": 1, "lanes": 1}, "has no setting rows"),
])  # fmt: skip
def test_settings_that_are_refused(settings, message):
    check_refused(LAYER, "weight_stationary", message, settings)


def test_outputs_that_meet_no_element_are_refused():
    between = {"stride": (2, 1), "padding": ((1, 0), (0, 0)), "lhs_dilation": (2, 1)}
    problem = ConvProblem(N=1, C=17, H=1, W=1, K=1, R=1, S=1, **between)
    check_refused(problem, "weight_stationary", "for rows of y that see x", {"lanes": 1})


def test_rows_of_a_block_start_at_a_multiple_of_lhs_dilation():
    assert planned(TRANSPOSED, "weight_stationary", (("outputs", 3), ("taps", 4)))[0] is None


def test_filters_of_many_k_tiles_fit():
    """K tiles whose filters are loaded together take the room of one."""
    problem = ConvProblem(N=2, C=2048, H=7, W=7, K=16, R=7, S=7, padding=((3, 3), (3, 3)))
    assert planned(problem, "weight_stationary")[1] == ""


@pytest.mark.cover(1)
@pytest.mark.parametrize("config", [(), (("x_bytes", 256),)])
def test_volumes_by_settings(config):
    for outputs, taps in ((1, 1), (2, 3), (4, 2)):
        sized = (("outputs", outputs), ("taps", taps), *config)
        check_volume((130, 3, 1, *VOLUMES["causal"][3:]), algorithm="weight_stationary", config=sized)


@pytest.mark.cover(6)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("name", ["same", "causal", "planes only", "dilated", "cropped", "far outside"])
def test_planes_beside_each_other(name, depth, last, added, lnc):
    shape = VOLUMES[name]
    shape = (shape[0], min(4, shape[1]), *shape[2:])
    depth = min(depth, planes_of(shape))
    check_volume(shape, lnc=lnc, N=2, last=last, added=added, algorithm="weight_stationary", config=(("depth", depth),))


def planes_of(shape):
    """Planes of outputs of a volume."""
    size, taps, stride, dilation, lhs_dilation, before, after = shape[3]
    return Axis(size, taps, stride, before, after, dilation, lhs_dilation).out


def test_windows_need_a_plain_filter_of_several_planes():
    shape = VOLUMES["between zeros"]
    for depth in (2, 99):
        with pytest.raises(
            nkiconv.simulator.KernelAssertionError, match=f"config depth={depth}: weight_stationary needs a plain"
        ):
            check_volume(shape, algorithm="weight_stationary", config=(("depth", depth),))


@draws(16, 40)
@hypothesis.given(volumes(rows=VOLUMES["same"][4:]), hypothesis.strategies.integers(1, 3))
def test_any_volume(shape, depth):
    depth = min(depth, planes_of(shape), 128 // shape[1]) if shape[3][4] == 1 else 1
    check_volume(shape, algorithm="weight_stationary", config=(("depth", depth),))
