"""Random gradients of filters by every algorithm, exact on integers against torch in float64; bits on two cores."""

import re

import hypothesis
import numpy as np
import pytest
from depthwise import same_bits
from draws import draws
from gradients import an_axis, check, last, outputs
from hypothesis import strategies as st

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.schedules.blocks import line_width
from nkiconv.simulator.launch import execute


@st.composite
def in_groups(draw):
    groups, c, k = draw(st.integers(1, 6)), draw(st.sampled_from((1, 1, 2, 5))), draw(st.sampled_from((1, 1, 2, 5)))
    found = draw(st.tuples(*(an_axis(most) for most in (5, 13, 15)[3 - draw(st.sampled_from((2, 2, 3))) :])))
    return (draw(st.integers(1, 3)), groups * c, groups * k, groups), list(found)


@st.composite
def a_config(draw):
    most = {"rows": 5, "columns": 6, "down": 3, "across": 3, "groups": 4, "buffers": 3}
    values = {name: draw(st.integers(1, high)) for name, high in most.items()}
    values |= {"below": draw(st.sampled_from((1, 2, 4))), "side": draw(st.sampled_from((1, 2, 4)))}
    values |= {"split": draw(st.integers(0, 1)), "warmup": 0}
    values |= {"strips": draw(st.integers(0, 1)), "beside": draw(st.sampled_from((1, 1, 2, 3)))}
    return draw(st.sampled_from((None, tuple(values.items()))))


def any_is_exact(problem, config, is_last, lnc, bias):
    try:
        check(*problem, is_last, lnc=lnc, bias_gradient=bias, algorithm="diagonals", config=config)
    except nkiconv.UnsupportedError as unsupported_reason:
        # blocks too large for a bank or SBUF, or groups of which no so many share products
        hypothesis.assume(config is None or not str(unsupported_reason).startswith(("config rows=", "config beside=")))
        raise


@draws(15, 500)
@hypothesis.given(in_groups(), a_config(), st.booleans(), st.integers(1, 2), st.booleans())
def test_any_by_diagonals(problem, config, is_last, lnc, bias):
    any_is_exact(problem, config, is_last, lnc, bias)


def has_lines(sizes):
    return np.prod(sizes[-2:]) > 1 and line_width(int(np.prod(sizes[-2:]))) > 0


def axes_of(sizes):
    return [(size, 1, 1, 1, 0, 0) for size in sizes]


@draws(24, 100)
@hypothesis.given(st.data())
def test_any_lines(data):
    groups, dtype = data.draw(st.integers(1, 3), "groups"), data.draw(st.sampled_from(("bf16", "fp16")), "dtype")
    channels = [groups * data.draw(st.integers(1, 40), name) for name in ("C", "K")]
    sizes = data.draw(st.lists(st.integers(1, 24), min_size=1, max_size=3).filter(has_lines), "sizes")
    config = [(name, data.draw(st.integers(1, 4), name)) for name in ("rows", "outputs", "buffers", "inputs")]
    config.append(("split", data.draw(st.integers(0, 1), "split")))
    N = data.draw(st.integers(1, 6), "N")
    check((N, *channels, groups), axes_of(sizes), dtype=dtype, bias_gradient=True, lnc=data.draw(st.integers(1, 2)),
          config=(("pixels", 1), *config))  # fmt: skip


@draws(20, 60)
@hypothesis.given(
    st.tuples(an_axis(8), an_axis(9)), st.booleans(), st.sampled_from((2, 4)), st.sampled_from((1, 2, 4)),
    st.integers(1, 12), st.integers(1, 4), st.booleans(), st.sampled_from((1, 1, 3)), st.sampled_from((1, 2)),
)  # fmt: skip
def test_any_side(axes, is_last, side, beside, inputs, channels, planes, groups, lnc):
    """Of whole planes, whose zeros are left out where they can be, and of parts of them."""
    found = {"beside": beside, "side": side, "inputs": inputs, "channels": channels, "outputs": 1, "buffers": 8}
    found |= {"rows": outputs(axes[0]), "columns": outputs(axes[1])} if planes else {"rows": 2}
    hypothesis.assume(beside <= found.get("columns", outputs(axes[1])))
    try:
        check((40, 5 * groups, 32 * groups, groups), list(axes), is_last, lnc=lnc, config=tuple(found.items()))
    except nkiconv.UnsupportedError as error:
        assert re.search(r"config (beside|channels)=", str(error))  # noqa: PT017


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


#: x of (N, C, H, W), K, chunks of output channels a round.
SHAPES = {
    "banks": ((20, 70, 14, 14), 9, 1),
    "rounds": ((40, 5, 12, 12), 150, 1),
    "chunks of one size": ((40, 5, 12, 12), 150, 2),
    "chunks of two sizes": ((40, 5, 12, 12), 151, 2),
    "one": ((40, 6, 12, 12), 1, 1),
}
DIAGONALS = (("rows", 2), ("columns", 5), ("down", 1), ("across", 1), ("side", 1), ("groups", 6))
WAYS = {"channels last": (("rows", 3), ("columns", 4)), "turned": (("pixels", 2), ("rows", 4), ("columns", 4))}


def given(shape, way):
    """(x, gy, filter's shape, what a call takes) of a 3 x 3 filter."""
    (N, C, H, W), K, outputs = SHAPES[shape]
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((N, channels, H, W)).astype(np.float32) for channels in (C, K))
    perms = {}
    if way == "channels last":
        x, gy = (np.ascontiguousarray(one.transpose(0, 2, 3, 1)) for one in (x, gy))
        perms = {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1)}
    config = {
        "algorithm": "blocks",
        "config": (*WAYS[way], ("split", 1), ("outputs", outputs), ("inputs", 2), ("exchanged", 0), ("beside", 1)),
    }
    return x, gy, (K, C, 3, 3), {"padding": ((1, 1), (1, 1)), "bias_gradient": True, **perms, **config}


@pytest.mark.cover(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_real_data_has_the_same_bits_on_one_core_and_two(shape, way):
    x, gy, size, call = given(shape, way)
    added = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    for more in ({}, {"accumulate_into": added}):
        found = [execute(conv_weight_gradient[lnc], (x, gy, size), {**call, **more}).outputs for lnc in (1, 2)]
        assert same_bits(found[0][0], found[1][0])
        assert same_bits(found[0][1], found[1][1])


def test_diagonals_meet_once_a_pass():
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((20, 6, 10, 10)).astype(np.float32) for _ in range(2))
    config = (*DIAGONALS, ("split", 1))
    call = {"padding": ((1, 1), (1, 1)), "feature_group_count": 6, "algorithm": "diagonals", "config": config}
    run = execute(conv_weight_gradient[2], (x, gy, (6, 1, 3, 3)), call)
    assert [sum(one.op == "sendrecv" for one in program.instructions) for program in run.programs] == [1, 1]
    assert same_bits(run.outputs, nkiconv.conv2d_weight(x, (6, 1, 3, 3), gy, padding=1, groups=6, lnc=1,
                                                        algorithm="diagonals", config=config))  # fmt: skip
