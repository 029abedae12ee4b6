"""Random gradients of filters by random settings, exact on integers against torch in float64; bits on two cores."""

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


def some(**most):
    """Settings, of each a number from 1 to this one or one of these."""
    values = {name: st.integers(1, one) if isinstance(one, int) else st.sampled_from(one) for name, one in most.items()}
    return st.fixed_dictionaries(values)


@st.composite
def by_diagonals(draw):
    groups, c, k = draw(st.integers(1, 6)), draw(st.sampled_from((1, 1, 2, 5))), draw(st.sampled_from((1, 1, 2, 5)))
    axes = draw(st.tuples(*(an_axis(most) for most in (5, 13, 15)[3 - draw(st.sampled_from((2, 2, 3))) :])))
    config = draw(st.one_of(st.just({}), some(
        rows=5, columns=6, down=3, across=3, groups=4, buffers=3, below=(1, 2, 4), side=(1, 2, 4), split=(0, 1),
        warmup=(0,), strips=(0, 1), beside=(1, 1, 2, 3),
    )))  # fmt: skip
    return (draw(st.integers(1, 3)), groups * c, groups * k, groups), [*axes], config, {"algorithm": "diagonals"}


@st.composite
def by_lines(draw):
    groups, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(("bf16", "fp16")))
    channels = [groups * draw(st.integers(1, 40)) for _ in range(2)]
    sizes = draw(st.lists(st.integers(1, 24), min_size=1, max_size=3).filter(has_lines))
    config = {"pixels": 1, **draw(some(rows=4, outputs=4, buffers=4, inputs=4, split=(0, 1)))}
    return (draw(st.integers(1, 6)), *channels, groups), [(size, 1, 1, 1, 0, 0) for size in sizes], config, {
        "dtype": dtype, "is_last": False}  # fmt: skip


def has_lines(sizes):
    return np.prod(sizes[-2:]) > 1 and line_width(int(np.prod(sizes[-2:]))) > 0


@st.composite
def by_sides(draw):
    """Of whole planes, whose zeros are left out where they can be, and of parts of them."""
    axes, groups = draw(st.tuples(an_axis(8), an_axis(9))), draw(st.sampled_from((1, 1, 3)))
    found = draw(some(side=(2, 4), beside=(1, 2, 4), inputs=12, channels=4, outputs=1, buffers=(8,)))
    whole = {"rows": outputs(axes[0]), "columns": outputs(axes[1])}
    found |= draw(st.sampled_from((whole, {"rows": 2})))
    hypothesis.assume(found["beside"] <= found.get("columns", outputs(axes[1])))
    return (40, 5 * groups, 32 * groups, groups), list(axes), found, {}


@pytest.mark.parametrize("problems", [by_diagonals, by_lines, by_sides])
@draws(20, 150)
@hypothesis.given(st.data())
def test_any_settings(problems, data):
    channels, axes, config, more = data.draw(problems())
    more = {"is_last": data.draw(st.booleans()), "lnc": data.draw(st.integers(1, 2)), **more}
    more["bias_gradient"] = problems is not by_sides and data.draw(st.booleans())
    try:
        check(channels, axes, config=tuple(config.items()) or None, **more)
    except nkiconv.UnsupportedError as error:
        # blocks too large for a bank or SBUF, or groups of which no so many share products
        hypothesis.assume(not (config and re.match(r"config (rows|beside|channels)=", str(error))))
        raise


@st.composite
def real_images(draw):
    """(x, gy, arguments of conv2d_weight) of real numbers, and settings that cut them into several passes."""
    groups, N = draw(st.sampled_from([1, 6, 12])), draw(st.sampled_from([1, 2, 3, 5, 20]))
    H, R = (draw(st.integers(1, most)) for most in (12, 3))
    C, K = (
        (draw(st.integers(5, 40)), draw(st.sampled_from([1, 2, 5, 9, 150, 151])))
        if groups == 1
        else (groups * draw(st.integers(1, 3)), groups)
    )
    stride, layout = draw(st.integers(1, 2)), draw(st.sampled_from(["NCHW", "NHWC"]))
    Q, rng = (H + 2 - R) // stride + 1, np.random.default_rng(H)
    config = {name: draw(st.sampled_from([1, 2, 3, Q])) for name in ("rows", "columns")}
    config |= {"buffers": draw(st.integers(1, 3)), "split": draw(st.integers(0, 1))}
    if groups == 1:
        config |= draw(some(channels=4, outputs=2, inputs=2, exchanged=(0,)))
        config["pixels"] = draw(st.sampled_from([0, 2])) if layout == "NCHW" else 0
    else:
        config |= {"beside": draw(st.sampled_from([1, 2, 3])), "groups": draw(st.integers(1, 3))}
    x, gy = (rng.standard_normal(size, np.float32) for size in ((N, C, H, H), (N, K, Q, Q)))
    call = {"padding": 1, "stride": stride, "groups": groups, "layout": layout, "config": tuple(config.items())}
    call |= {"weight_size": (K, C // groups, R, R), "algorithm": "blocks" if groups == 1 else "diagonals"}
    call |= {"bias_gradient": draw(st.booleans())}
    if draw(st.booleans()):
        call["accumulate_into"] = rng.standard_normal(call["weight_size"], np.float32)
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
    one, two = (one, two) if call["bias_gradient"] else ((one,), (two,))
    assert all(map(same_bits, one, two))


DIAGONALS = (("rows", 2), ("columns", 5), ("down", 1), ("across", 1), ("side", 1), ("groups", 6))


def test_diagonals_meet_once_a_pass():
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((20, 6, 10, 10)).astype(np.float32) for _ in range(2))
    config = (*DIAGONALS, ("split", 1))
    call = {"padding": ((1, 1), (1, 1)), "feature_group_count": 6, "algorithm": "diagonals", "config": config}
    run = execute(conv_weight_gradient[2], (x, gy, (6, 1, 3, 3)), call)
    assert [sum(one.op == "sendrecv" for one in program.instructions) for program in run.programs] == [1, 1]
    assert same_bits(run.outputs, nkiconv.conv2d_weight(x, (6, 1, 3, 3), gy, padding=1, groups=6, lnc=1,
                                                        algorithm="diagonals", config=config))  # fmt: skip
