"""Filter gradients by diagonals against torch in float64, exact on integers."""

import hypothesis
import pytest
from depthwise import on_cores
from draws import cores, draws
from gradients import an_axis, check
from hypothesis import strategies as st

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.simulator import KernelAssertionError
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

PLAIN = (9, 3, 1, 1, 1, 1)
#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after).
PROBLEMS = {
    "depthwise": ((2, 6, 6, 6), PLAIN, (11, 3, 1, 1, 1, 1)),
    "many groups": ((2, 130, 130, 130), (5, 3, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1)),
    "many images": ((70, 3, 3, 3), (7, 3, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1)),
    "several channels out": ((2, 5, 10, 5), PLAIN, (11, 3, 1, 1, 1, 1)),
    "groups": ((2, 12, 8, 4), PLAIN, (11, 3, 1, 1, 1, 1)),
    "one group": ((2, 3, 4, 1), PLAIN, (11, 3, 1, 1, 1, 1)),
    "large filter": ((3, 5, 5, 5), (15, 7, 1, 1, 3, 3), (15, 7, 1, 1, 3, 3)),
    "strided": ((3, 6, 6, 6), (14, 5, 2, 1, 2, 2), (15, 5, 2, 1, 2, 2)),
    "strides, dilations, cropped": ((1, 6, 12, 3), (17, 5, 2, 1, 2, 1), (30, 3, 3, 2, -1, 3)),
    "window outside x": ((1, 3, 3, 3), (3, 3, 1, 1, 6, 5), (4, 3, 1, 1, 7, 4)),
    "sequences": ((3, 10, 10, 10), (50, 31, 1, 1, 30, 0)),
    "volumes": ((2, 4, 4, 4), (5, 3, 1, 1, 1, 1), PLAIN, (11, 3, 1, 1, 1, 1)),
    "volumes, many taps": ((1, 18, 2, 2), (1, 4, 1, 1, 0, 3), (1, 4, 1, 1, 0, 3), (1, 4, 1, 1, 0, 3)),
    "volumes, strided": ((2, 6, 4, 2), (5, 3, 2, 1, 2, 0), (9, 3, 1, 2, 1, 1), (11, 2, 2, 1, 0, 3)),
}
ORDER = ("rows", "columns", "down", "across", "side", "groups", "buffers", "strips", "split", "below", "beside")
#: Values of ORDER.
CONFIGS = [
    (2, 4, 2, 2, 4, 1, 1, 0, 0, 1, 1),
    (2, 4, 1, 1, 2, 3, 2, 1, 1, 1, 1),
    (3, 5, 3, 3, 1, 2, 3, 0, 0, 1, 1),
    (1, 1, 9, 11, 4, 2, 2, 0, 0, 1, 1),
    (4, 3, 1, 2, 1, 9, 2, 1, 1, 1, 1),
    (2, 4, 2, 2, 4, 2, 1, 1, 0, 2, 1),
    (2, 3, 1, 1, 2, 3, 2, 0, 0, 4, 1),
    (1, 4, 3, 3, 1, 5, 3, 1, 1, 4, 1),
    (3, 4, 1, 2, 1, 9, 2, 1, 0, 2, 1),
    (4, 4, 1, 1, 1, 4, 3, 1, 0, 4, 1),
    (2, 4, 2, 2, 1, 9, 2, 0, 0, 1, 2),
    (1, 3, 1, 2, 2, 1, 3, 1, 1, 2, 2),
    (2, 3, 2, 1, 4, 1, 2, 1, 0, 4, 2),
]


@pytest.mark.cover(5)
@pytest.mark.parametrize("is_last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_exact(name, is_last):
    channels, *axes = PROBLEMS[name]
    for lnc in cores():
        check(channels, axes, is_last, lnc=lnc, bias_gradient=lnc == 2, algorithm="diagonals")


@pytest.mark.cover(6)
@pytest.mark.parametrize("name", ["depthwise", "strided", "groups"])
@pytest.mark.parametrize("values", CONFIGS)
def test_settings(values, name):
    channels, *axes = PROBLEMS[name]
    config = tuple(zip(ORDER, values, strict=True))
    on_cores(
        check, channels, axes, values[1] % 2 == 1, adds=True, bias_gradient=True, algorithm="diagonals", config=config
    )


@pytest.mark.cover(3)
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize(("below", "beside"), [(1, 1), (4, 1), (2, 2), (1, 3)])
def test_many_groups_are_stored_by_their_sets(below, beside, split):
    """The last set below others has fewer groups: 33 sets of 4 have 130, 34 of 2 times 2 have 134."""
    groups = {1: 130, 2: 134, 3: 135}[beside]
    sizes = {"rows": 1, "columns": 2, "down": 2, "across": 1, "side": 1, "groups": 65 if beside > 1 else 130}
    config = (*sizes.items(), ("below", below), ("beside", beside), ("split", split))
    channels, axes = (2, groups, 2 * groups, groups), [PLAIN, (11, 3, 1, 1, 1, 1)]
    on_cores(check, channels, axes, True, adds=True, bias_gradient=True, algorithm="diagonals", config=config)


@pytest.mark.parametrize(("dtype", "precision"), [("fp16", None), ("fp32", None), ("fp32", "bf16"), ("fp32", "tf32")])
def test_dtypes(dtype, precision):
    channels, *axes = PROBLEMS["strides, dilations, cropped"]
    for is_last in (False, True):
        check(channels, axes, is_last, dtype=dtype, precision=precision, bias_gradient=True, algorithm="diagonals")


@st.composite
def a_problem(draw):
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
@hypothesis.given(a_problem(), a_config(), st.booleans(), st.integers(1, 2), st.booleans())
def test_any_images_and_volumes_are_exact(problem, config, is_last, lnc, bias):
    any_is_exact(problem, config, is_last, lnc, bias)


@pytest.mark.cover(5)
@pytest.mark.parametrize("beside", [1, 16])
@pytest.mark.parametrize("some", [{"rows": 20}, {"columns": 40}, {"rows": 3, "below": 4}, {"columns": 9, "below": 2}])
@pytest.mark.parametrize("is_last", [False, True], ids=["channels first", "channels last"])
def test_a_bare_kernel_completes_settings(is_last, some, beside):
    """So that sums fit a bank, or are refused by name."""
    perms = {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1)} if is_last else {}
    spec = nkiconv.spec((2, 40, 40, 16) if is_last else (2, 16, 40, 40), "bf16")
    more = {"padding": ((1, 1), (1, 1)), "feature_group_count": 16, "algorithm": "diagonals", **perms}
    more["config"] = (*some.items(), ("beside", beside))
    rows, columns = some.get("rows", 1), some.get("columns", 1)
    sums = beside * (rows + 2) * (columns + 2)
    fits = rows * columns * beside * some.get("below", 1) <= 128 and sums <= 512
    if not fits:
        with pytest.raises(KernelAssertionError, match="config rows="):
            nkiconv.simulator.execute(conv_weight_gradient[2], (spec, spec, (16, 1, 3, 3)), more, trace_only=True)
        return
    traced = nkiconv.simulator.execute(conv_weight_gradient[2], (spec, spec, (16, 1, 3, 3)), more, trace_only=True)
    assert any(one.op == "nc_n_gather" for one in traced.instructions)


def test_a_bare_kernel_takes_the_faster():
    for (C, K, groups), faster in (((6, 6, 6), "diagonals"), ((24, 24, 1), "blocks"), ((8, 8, 1), "blocks")):
        args = nkiconv.spec((2, C, 30, 30), "bf16"), nkiconv.spec((2, K, 28, 28), "bf16"), (K, C // groups, 3, 3)
        us = {}
        for algorithm in (None, "blocks", "diagonals"):
            call = {"feature_group_count": groups, "algorithm": algorithm}
            traced = nkiconv.simulator.execute(conv_weight_gradient[2], args, call, trace_only=True)
            us[algorithm] = in_time(traced, Rates()).us
        assert us[None] == min(us.values()) == us[faster]


def test_biases_of_a_half_with_few_units():
    """The second half has fewer units than a tile of rows."""
    config = tuple(dict.fromkeys(("rows", "columns", "down", "across", "groups", "buffers", "split"), 1).items())
    config = (*config, ("side", 4), ("strips", 0), ("warmup", 0))
    axes = [(1, 1, 1, 1, 0, 1), (1, 1, 1, 1, 1, 4)]
    for lnc in (1, 2):
        check((3, 1, 1, 1), axes, lnc=lnc, bias_gradient=True, algorithm="diagonals", config=config)
