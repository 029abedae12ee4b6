"""Gradients of filters and biases against torch in float64, exact on integers."""

import re

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from depthwise import on_cores, same_bits
from draws import cores, draws
from gradients import LAYOUTS, an_axis, check, expected, last, places_of, problem_of
from hypothesis import strategies as st

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.schedules.blocks_candidates import chosen
from nkiconv.simulator import KernelAssertionError
from nkiconv.simulator.timing import Rates

INPUT = {1: nkiconv.conv1d_input, 2: nkiconv.conv2d_input, 3: nkiconv.conv3d_input}
#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after).
PLAIN = (9, 3, 1, 1, 1, 1)
SEVERAL_PLANES = "many taps of several planes"
#: Whose input gradients, of other kernels, take long or have none.
SLOW_BACK = ("many taps", SEVERAL_PLANES, "window outside x")
PROBLEMS = {
    "same": ((2, 5, 7, 1), PLAIN, (11, 3, 1, 1, 1, 1)),
    "several tiles, banks and passes": ((3, 70, 260, 1), (14, 3, 1, 1, 1, 1), (14, 3, 1, 1, 1, 1)),
    "strides, dilations, cropped": ((1, 20, 13, 1), (17, 5, 2, 1, 2, 1), (30, 3, 3, 2, -1, 3)),
    "stem": ((2, 3, 64, 1), (24, 7, 2, 1, 3, 3), (24, 7, 2, 1, 3, 3)),
    "columns beside each other": ((1, 6, 32, 1), PLAIN, (10, 3, 1, 1, 1, 1)),
    "groups": ((2, 12, 8, 4), PLAIN, (11, 3, 1, 1, 1, 1)),
    "depthwise": ((2, 6, 12, 6), PLAIN, (11, 3, 1, 1, 1, 1)),
    "pointwise": ((3, 140, 130, 1), (6, 1, 1, 1, 0, 0), (5, 1, 1, 1, 0, 0)),
    "pointwise, strided": ((3, 14, 13, 1), (7, 1, 2, 1, 0, 0), (9, 1, 2, 1, 0, 0)),
    "window outside x": ((1, 3, 4, 1), (3, 3, 1, 1, 6, 5), (4, 3, 1, 1, 7, 4)),
    "many taps": ((1, 2, 3, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
    SEVERAL_PLANES: ((1, 2, 3, 1), (4, 3, 1, 1, 1, 1), (30, 24, 1, 1, 2, 2), (28, 23, 1, 1, 2, 2)),
    "volumes": ((2, 6, 7, 1), (5, 3, 1, 1, 1, 1), PLAIN, (11, 3, 1, 1, 1, 1)),
    "volumes, strided": ((2, 6, 7, 1), (5, 3, 2, 1, 2, 0), (9, 3, 1, 2, 1, 1), (11, 2, 2, 1, 0, 3)),
    "sequences": ((3, 10, 9, 1), (50, 4, 1, 1, 3, 0)),
    "long filter": ((1, 3, 2, 1), (700, 600, 1, 1, 300, 299)),
}


#: x and gy with their channels first are turned on the array.
TURNED = (("pixels", 2),)
WAYS = {"channels first": (False, None), "channels last": (True, None), "turned": (False, TURNED)}
#: All but one that takes long.
CASES = [(name, way) for name in PROBLEMS for way in WAYS if (name, way) != (SEVERAL_PLANES, "turned")]


@pytest.mark.cover(5)
@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_problem_is_exact(name, way):
    channels, *axes = PROBLEMS[name]
    is_last, config = WAYS[way]
    for lnc in cores():
        check(channels, axes, is_last, lnc=lnc, bias_gradient=lnc == 2, config=config)


@pytest.mark.cover(2)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize(
    ("outputs", "inputs", "side", "pixels"), [(1, 8, 1, 0), (1, 8, 4, 0), (2, 4, 1, 0), (2, 3, 1, 0), (1, 5, 1, 2)]
)
def test_biases_that_no_bank_is_left_for_pass_alone(outputs, inputs, side, pixels, split):
    """Of several tiles, of which no more are there together than two."""
    config = {"outputs": outputs, "inputs": inputs, "channels": 3, "side": side, "split": split, "buffers": 2}
    config["pixels"] = pixels
    config |= {"rows": 1, "columns": 5, "beside": 1}
    axes = [(7, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)]
    on_cores(check, (60, 24, 140, 1), axes, bias_gradient=True, config=tuple(config.items()))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("given", [(), (("split", 1),), (("rows", 2), ("channels", 16))])
def test_a_bare_kernel_takes_the_settings_of_estimates(layout, given):
    problem = nkiconv.ConvProblem(N=4, C=64, K=96, H=14, W=14, R=3, S=3, padding=((1, 1), (1, 1)), layout=layout)
    request = Request(problem=problem.toward("wgrad"))
    operation = operation_for(request)
    shape = operation.shape(request, Rates())
    found = dict(chosen(shape.geometry, given or None, False, 2))
    assert found == dict(operation.known["blocks"].complete(shape, given or None))
    assert found.items() >= dict(given).items()


@pytest.mark.parametrize(("N", "C", "H", "turned"), [(2, 64, 14, True), (16, 3, 224, False)])
def test_a_bare_kernel_turns_what_fits(N, C, H, turned):
    """NCHW on the array, but where its rows do not fit SBUF beside the blocks."""
    x, gy = nkiconv.spec((N, C, H, H), "bf16"), nkiconv.spec((N, 64, H, H), "bf16")
    call = {"padding": ((1, 1), (1, 1)), "algorithm": None}
    traced = nkiconv.simulator.execute(conv_weight_gradient[2], (x, gy, (64, C, 3, 3)), call, trace_only=True)
    assert any(one.op == "nc_transpose" for one in traced.instructions) == turned


#: Those of PROBLEMS that differ most.
FEW = ("same", "several tiles, banks and passes", "stem", "groups", "volumes, strided", "sequences")


@pytest.mark.cover(3)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("name", FEW)
def test_tiles_are_turned_in_turn(name, split):
    """Tiles of other sizes, pieces of rows, several passes, and a buffer for all."""
    channels, *axes = PROBLEMS[name]
    sizes = (("rows", 3), ("columns", 2), ("outputs", 1), ("inputs", 1), ("buffers", 1), ("split", split))
    on_cores(check, channels, axes, adds=True, bias_gradient=True, config=TURNED + sizes)


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("K", "beside", "dilation"), [(192, 2, 1), (160, 4, 1), (24, 4, 1), (416, 4, 1), (140, 2, 2), (40, 2, 3)]
)
@pytest.mark.parametrize("way", WAYS)
def test_the_last_channels_beside_each_other(way, K, beside, dilation):
    """Those beyond 128s, in the same pass as whole 128s, and in one of their own; some fewer than a quadrant has, of
    columns whose windows are taps apart."""
    is_last, config = WAYS[way]
    for outputs in (1, 4):
        sizes = (("beside", beside), ("rows", 3), ("columns", 5), ("outputs", outputs), ("split", outputs // 4))
        axes = (PLAIN, (11, 3, 1, dilation, dilation, 1))
        check((2, 7, K, 1), axes, is_last, config=(config or ()) + sizes, bias_gradient=True, adds=True)


@st.composite
def real_images(draw):
    """(x, gy, arguments of conv2d_weight) of real numbers, and settings that cut them into several passes."""
    groups, N, H, R = draw(st.sampled_from([1, 6, 12])), *(draw(st.integers(1, most)) for most in (5, 12, 3))
    C, K = (
        (draw(st.integers(5, 40)), draw(st.integers(1, 9)))
        if groups == 1
        else (groups * draw(st.integers(1, 3)), groups)
    )
    stride, layout = draw(st.integers(1, 2)), draw(st.sampled_from(["NCHW", "NHWC"]))
    Q, rng = (H + 2 - R) // stride + 1, np.random.default_rng(H)
    config = {name: draw(st.sampled_from([1, 2, 3, Q])) for name in ("rows", "columns")}
    config |= {"buffers": draw(st.integers(1, 3)), "split": draw(st.integers(0, 1))}
    if groups == 1:
        config |= {"channels": draw(st.integers(1, 4)), "outputs": 1, "inputs": 1}
    else:
        config |= {"beside": draw(st.sampled_from([1, 2, 3])), "groups": draw(st.integers(1, 3))}
    x, gy = (rng.standard_normal(size, np.float32) for size in ((N, C, H, H), (N, K, Q, Q)))
    call = {"padding": 1, "stride": stride, "groups": groups, "layout": layout, "config": tuple(config.items())}
    call |= {"weight_size": (K, C // groups, R, R), "algorithm": "blocks" if groups == 1 else "diagonals"}
    return (last(x), last(gy), call) if layout == "NHWC" else (x, gy, call)


@draws(20, 60)
@hypothesis.given(real_images())
def test_cores_do_not_change_bits(images):
    """Sums of real numbers, which round by their order."""
    x, gy, call = images
    try:
        one, two = (nkiconv.conv2d_weight(x, gy=gy, lnc=lnc, **call) for lnc in (1, 2))
    except nkiconv.UnsupportedError as unsupported_reason:
        hypothesis.assume(not str(unsupported_reason).startswith("config "))
        raise
    assert same_bits(one, two)


def test_halves_whose_last_row_meets_most_taps():
    """The last row comes bank by bank, behind the others: it never writes the sums that they are added to."""
    config = (("rows", 2), ("columns", 4), ("channels", 3), ("inputs", 1), ("split", 1))
    for lnc in (1, 2):
        check((4, 6, 5, 1), ((2, 3, 1, 1, 2, 0), (4, 1, 1, 1, 0, 0)), True, config=config, lnc=lnc)


@pytest.mark.cover(2)
@pytest.mark.parametrize("pixels", [0, 2])
@pytest.mark.parametrize("buffers", [3, 4, 6])
def test_tiles_of_several_rounds_stay(buffers, pixels):
    """Of several passes of a core, each of nine banks over three tiles, which the next pass's must not overwrite."""
    config = (("channels", 2), ("outputs", 3), ("inputs", 3), ("rows", 1), ("columns", 2), ("buffers", buffers))
    axes = ((14, 3, 1, 1, 1, 1), (14, 3, 1, 1, 1, 1))
    check((3, 12, 260, 1), axes, pixels == 0, config=(*config, ("pixels", pixels), ("split", 0)), lnc=1)


@pytest.mark.parametrize("split", [0, 1])
def test_uneven_shares_are_exact(split):
    """Of three passes one core has two; of three tiles of each pass one half has two."""
    config = (("rows", 12), ("columns", 10), ("buffers", 2), ("split", split), ("channels", 11))
    axes = [(11, 1, 1, 1, 1, 0), (20, 2, 2, 1, 0, 1)]
    check((7, 13, 130, 1), axes, True, config=config, bias_gradient=True)


def test_banks_of_many_taps_pass_over_many_tiles():
    channels, *axes = PROBLEMS[SEVERAL_PLANES]
    check(channels, axes, True, config=(("rows", 2), ("columns", 4), ("outputs", 1), ("inputs", 1), ("split", 0)))


@pytest.mark.parametrize(("dtype", "precision"), [("fp16", None), ("fp32", None), ("fp32", "bf16"), ("fp32", "tf32")])
def test_dtypes(dtype, precision):
    channels, *axes = PROBLEMS["strides, dilations, cropped"]
    for is_last, config in WAYS.values():
        check(channels, axes, is_last, dtype=dtype, precision=precision, bias_gradient=True, config=config)


def test_the_result_can_be_rounded():
    channels, *axes = PROBLEMS["same"]
    x, gy, shape = problem_of(channels, axes)
    found = nkiconv.conv2d_weight(x, shape, gy, out_dtype="bfloat16", **places_of(axes))
    assert found.dtype == ml_dtypes.bfloat16
    exact = expected(x, gy, shape, axes, 1)[0]
    np.testing.assert_array_equal(found, exact.astype(ml_dtypes.bfloat16))


@st.composite
def a_problem(draw, axes):
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    C, K = (groups * draw(st.integers(1, most)) for most in (9, 40))
    found = draw(st.tuples(*(an_axis(most) for most in (5, 13, 15)[3 - axes :])))
    return (draw(st.integers(1, 3)), C, K, groups), list(found)


#: The planner's own choice, or tiles that are turned, of the blocks that it chooses or of single pixels.
SOME_PIXELS = st.sampled_from((None, TURNED, (*TURNED, ("rows", 1), ("columns", 1))))


@draws(24, 700)
@hypothesis.given(a_problem(2), st.booleans(), st.integers(1, 2), st.booleans(), SOME_PIXELS)
def test_any_images_are_exact(problem, is_last, lnc, bias, config):
    check(*problem, is_last, lnc=lnc, bias_gradient=bias, config=config)


@draws(12, 300)
@hypothesis.given(a_problem(3), st.booleans(), st.integers(1, 2), SOME_PIXELS)
def test_any_volumes_are_exact(problem, is_last, lnc, config):
    check(*problem, is_last, lnc=lnc, config=config)


@pytest.mark.cover(3)
@pytest.mark.parametrize("is_last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in SLOW_BACK])
def test_inputs_are_exact(name, is_last):
    channels, *axes = PROBLEMS[name]
    x, gy, shape = problem_of(channels, axes)
    _, _, dx, w = expected(x, gy, shape, axes, channels[3])
    layout, size = LAYOUTS[len(axes)][is_last], x.shape
    if is_last:
        gy, size = last(gy), last(x).shape
    found = INPUT[len(axes)](
        size, w.astype(ml_dtypes.bfloat16), gy, groups=channels[3], layout=layout, out_dtype="float32",
        **places_of(axes),
    )  # fmt: skip
    np.testing.assert_array_equal(np.moveaxis(found, -1, 1) if is_last else found, dx)


#: Filter gradients by name, with the shapes of their filters; a window of 3 and padding=1 keep all extents 5.
OF_FILTERS = {
    "conv1d_weight": (6, 6, 3),
    "conv2d_weight": (6, 6, 3, 3),
    "conv3d_weight": (6, 6, 3, 3, 3),
    "conv_transpose1d_weight": (6, 6, 3),
    "conv_transpose2d_weight": (6, 6, 3, 3),
    "conv_transpose3d_weight": (6, 6, 3, 3, 3),
    "depthwise_conv1d_weight": (6, 3),
}


@pytest.mark.usefixtures("plainly")
@pytest.mark.cover(7)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("out_dtype", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("name", OF_FILTERS)
def test_gradients_of_no_images_are_those_of_zeros(name, out_dtype, adds):
    """The same dtypes and values, in arrays of their own."""
    size = OF_FILTERS[name]
    axes = 1 if name == "depthwise_conv1d_weight" else len(size) - 2
    into = np.arange(np.prod(size), dtype=np.float32).reshape(size) / 3 if adds else None
    has_bias = "transpose" not in name
    more = {"padding": 1, "out_dtype": out_dtype, "accumulate_into": into, "bias_gradient": has_bias}
    none, two = ([np.zeros((N, 6, *(5,) * axes), np.float32)] * 2 for N in (0, 2))
    found, expected = (getattr(nkiconv, name)(x, size, gy, **more) for x, gy in (none, two))
    for one, other in zip(*((found, expected) if has_bias else ([found], [expected])), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert not adds or not np.shares_memory(one, into)


@pytest.mark.parametrize("axes", INPUT)
def test_input_gradients_of_no_images(axes):
    w, gy = np.zeros((8, 2, *(3,) * axes), np.float32), np.zeros((0, 8, *(5,) * axes), np.float32)
    dx = INPUT[axes]((0, 4, *(5,) * axes), w, gy, padding=1, groups=2, out_dtype="bf16")
    assert (dx.shape, dx.dtype) == ((0, 4, *(5,) * axes), ml_dtypes.bfloat16)
    for shape, message in (((1, 4), "must have y's N=1"), ((0, 3), "must have C=4, by w.shape")):
        with pytest.raises(nkiconv.GeometryError, match=message):
            INPUT[axes]((*shape, *(5,) * axes), w, gy, padding=1, groups=2)


@pytest.mark.parametrize("name", OF_FILTERS)
def test_gradients_of_no_images_are_checked(name):
    size = OF_FILTERS[name]
    x = np.zeros((0, 6, *(5,) * (1 if name == "depthwise_conv1d_weight" else len(size) - 2)), np.float32)
    for more in ({"accumulate_into": np.zeros(size)}, {"out_dtype": "fp8_e4m3"}, {"algorithm": "squares"}):
        with pytest.raises(nkiconv.NkiconvError, match=f"^{next(iter(more))}[=:]"):
            getattr(nkiconv, name)(x, size, x, padding=1, **more)


@pytest.mark.cover(2)
@pytest.mark.parametrize("axis", [(2, 1, 2, 2, 5, -1), (2, 2, 3, 1, 2, 0), (2, 2, 3, 1, 5, 0)])
def test_turned_blocks_whose_rows_see_nothing(axis):
    """Windows of some blocks lie beside x."""
    for rows in (1, 3):
        check((1, 2, 3, 1), (axis, (9, 2, 1, 1, 0, 0)), config=(("pixels", 2), ("rows", rows), ("columns", 2)))


def test_a_pass_has_as_many_groups_as_fit():
    """Two of four, whose taps are far apart: more were refused, as their x does not fit SBUF together."""
    rng, (W, apart) = np.random.default_rng(3), (20_063, 20_000)
    x, gy = (rng.integers(-3, 4, (1, 4, size)).astype(np.float32) for size in (W, W - apart))
    given = {"dilation": apart, "groups": 4, "algorithm": "blocks"}
    dw = nkiconv.conv1d_weight(x, (4, 1, 2), gy, **given)
    taps = [x[:, :, tap * apart : tap * apart + W - apart] for tap in range(2)]
    np.testing.assert_array_equal(dw, np.stack([(one * gy).sum(axis=(0, 2)) for one in taps], axis=1)[:, None])


@pytest.mark.parametrize(("more", "message"), [
    *(({"filter_shape": shape}, "filter_shape=")
      for shape in (None, (4, 4, 3, 3, 4), (16.0, 4, 3, 3), (16, 4, 0, 3), (16, 4, -3, 3))),
    *(({"bias_gradient": flag}, f"bias_gradient={flag!r}: must be True or False") for flag in ("no", 1)),
])  # fmt: skip
def test_a_bare_kernel_refuses(more, message):
    given = {"filter_shape": (16, 4, 3, 3), **more}
    args = nkiconv.spec((1, 4, 6, 6), "bf16"), nkiconv.spec((1, 16, 4, 4), "bf16"), given.pop("filter_shape")
    with pytest.raises(KernelAssertionError, match=re.escape(message)):
        nkiconv.simulator.execute(conv_weight_gradient[1], args, given, trace_only=True)
