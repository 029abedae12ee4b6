"""Filter gradients of depthwise conv1d against torch in float64, exact on integers."""

import re

import ml_dtypes
import numpy as np
import pytest
from depthwise import on_cores, same_bits
from depthwise_gradients import FEW, PROBLEMS, check, expected, problem_of
from tolerances import assert_within

import nkiconv
from nkiconv.kernels.gradients.depthwise_conv1d import ROWS_ALGORITHMS, SKEWED, depthwise_conv1d_weight_gradient
from nkiconv.schedules import skewed
from nkiconv.schedules.skewed import BESIDE
from nkiconv.simulator import KernelAssertionError

#: in_perm, kern_perm, out_perm.
LAYOUTS = {
    "NCHW": (None, None, None),
    "NHWC": ((0, 3, 1, 2), None, (0, 2, 3, 1)),
    "NHWC, RSCK": ((0, 3, 1, 2), (3, 2, 0, 1), (0, 2, 3, 1)),
    "images last": ((3, 0, 1, 2), (2, 3, 0, 1), (1, 2, 3, 0)),
}


@pytest.mark.cover(7)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_exact(name):
    on_cores(check, *PROBLEMS[name], bias_gradient=True, adds=True)


@pytest.mark.cover(11, keep=["causal-dot"])
@pytest.mark.parametrize("algorithm", ROWS_ALGORITHMS)
@pytest.mark.parametrize("name", FEW)
def test_algorithms(name, algorithm):
    if algorithm == "banded" and min(PROBLEMS[name][1][2:4]) > 1:
        with pytest.raises(nkiconv.UnsupportedError, match="rhs_dilation=2, stride=2: banded takes one of them"):
            check(*PROBLEMS[name], algorithm=algorithm)
    else:
        for lnc in (1, 2):
            check(*PROBLEMS[name], algorithm=algorithm, bias_gradient=True, lnc=lnc)


@pytest.mark.parametrize("algorithm", [None, "dot", "skewed"])
def test_cores_give_the_same_bits_of_real_numbers(algorithm):
    rng = np.random.default_rng(1)
    x, gy = (rng.standard_normal((5, 150, size)).astype(ml_dtypes.bfloat16) for size in (80, 80))
    asked = {"padding": "same", "bias_gradient": True, "algorithm": algorithm}
    one, two = (nkiconv.depthwise_conv1d_weight(x, (150, 5), gy, lnc=lnc, **asked) for lnc in (1, 2))
    assert same_bits(one[0], two[0])
    assert same_bits(one[1], two[1])
    axis, terms = (80, 5, 1, 1, 2, 2), 5 * 80
    every = zip(one, expected(x, gy, axis), expected(np.abs(x), np.abs(gy), axis), strict=True)
    for found, sums, abs_sums in every:
        assert_within(found, sums, abs_sums, terms, "fp32")


def bare(name, layout, lnc=2, **more):
    """(dw, expected) of a launch without an algorithm, in a layout."""
    (N, C), axis = PROBLEMS[name]
    x, gy = problem_of((N, C), axis)
    in_perm, kern_perm, out_perm = LAYOUTS[layout]
    stored, shape = x[:, :, None], (C, 1, 1, axis[1])
    if in_perm is not None:
        stored = np.ascontiguousarray(stored.transpose(np.argsort(in_perm)))
    slopes = gy[:, :, None] if out_perm is None else np.ascontiguousarray(gy[:, :, None].transpose(out_perm))
    if kern_perm is not None:
        shape = tuple(shape[axis] for axis in np.argsort(kern_perm).tolist())
    into = np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)
    found, db = nkiconv.simulate(depthwise_conv1d_weight_gradient[lnc])(
        stored, slopes, shape, padding=((0, 0), axis[4:]), stride=(1, axis[2]), rhs_dilation=(1, axis[3]),
        feature_group_count=C, in_perm=in_perm, kern_perm=kern_perm, out_perm=out_perm, accumulate_into=into,
        bias_gradient=True, **more,
    )  # fmt: skip
    dw = found.astype(np.float64) - into
    wanted = expected(x, gy, axis)
    np.testing.assert_array_equal(db, wanted[1])
    return dw if kern_perm is None else dw.transpose(kern_perm), wanted[0][:, None, None]


@pytest.mark.cover(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*FEW, "one tap", "one channel"])
def test_layouts_of_a_bare_kernel(name, layout):
    np.testing.assert_array_equal(*bare(name, layout))


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_conv1d_weight_takes_it(layout):
    (N, C), axis = PROBLEMS["stride and dilation, cropped"]
    x, gy = problem_of((N, C), axis)
    if layout == "NWC":
        given = np.ascontiguousarray(x.transpose(0, 2, 1)), np.ascontiguousarray(gy.transpose(0, 2, 1))
    else:
        given = x, gy
    places = {"stride": axis[2], "dilation": axis[3], "padding": axis[4:], "groups": C, "layout": layout}
    dw, db = nkiconv.conv1d_weight(given[0], (C, 1, axis[1]), given[1], bias_gradient=True, **places)
    by_blocks = nkiconv.conv1d_weight(
        given[0], (C, 1, axis[1]), given[1], algorithm="blocks", config=(("pixels", 0),), **places
    )
    wanted = expected(x, gy, axis)
    np.testing.assert_array_equal(dw[:, 0], wanted[0])
    np.testing.assert_array_equal(db, wanted[1])
    np.testing.assert_array_equal(by_blocks, dw)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype):
    for name in FEW:
        check(*PROBLEMS[name], dtype=dtype, bias_gradient=True)
        check(*PROBLEMS[name], dtype=dtype, algorithm=SKEWED)


def test_many_images_are_summed_in_parts():
    """More images than a tile of sums holds."""
    check((9000, 2), (3, 2, 1, 1, 0, 0), bias_gradient=True)


def test_long_rows_are_summed_in_parts():
    check((2, 2), (20_000, 3, 1, 1, 1, 1), bias_gradient=True)


BARE = {"img_ref": (1, 4, 1, 9), "grad_ref": (1, 4, 1, 6), "filter_shape": (4, 1, 1, 4)}
BARE_REFUSED = [
    ({"filter_shape": (4, 4, 1, 4)}, "must be after kern_perm [C, 1, 1, S]"),
    ({"filter_shape": (8, 1, 1, 4)}, "(8, 1, 1, 4): must be after kern_perm [C, 1, 1, S] = (4, 1, 1, 4)"),
    ({"filter_shape": (4, 1, 2, 4)}, "must be after kern_perm [C, 1, 1, S]"),
    *(({"filter_shape": shape}, "filter_shape=") for shape in (None, (4, 1, 1, 4, 1), (4.0, 1, 1, 4), (4, 1, 1, 0))),
    ({"bias_gradient": 1}, "bias_gradient=1: must be True or False"),
    ({"img_ref": (1, 4, 2, 9)}, "img_ref H=2: must be 1"),
    ({"grad_ref": (1, 4, 1, 7)}, "grad_ref.shape=(1, 4, 1, 7): must be y's, (1, 4, 1, 6)"),
    ({"feature_group_count": 2}, "feature_group_count=2: accepted are 1, 4; this kernel is depthwise"),
    ({"algorithm": "blocks"}, "algorithm='blocks': accepted are None"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "message"), BARE_REFUSED)
def test_a_bare_kernel_refuses(more, message):
    given = {**BARE, **more}
    args = nkiconv.spec(given.pop("img_ref"), "bf16"), nkiconv.spec(given.pop("grad_ref"), "bf16")
    with pytest.raises(KernelAssertionError, match=re.escape(message)):
        nkiconv.simulator.execute(
            depthwise_conv1d_weight_gradient[2], (*args, given.pop("filter_shape")), given, trace_only=True
        )


#: (N, C), (size, taps, stride, dilation, before, after).
MORE = {
    "parts of positions": ((3, 40), (1500, 5, 1, 1, 2, 2)),
    "parts of positions, strided": ((2, 6), (2100, 4, 3, 2, 3, -1)),
    "more images than partitions": ((150, 9), (20, 3, 1, 1, 1, 1)),
    "images that fill no tile": ((33, 32), (36, 16, 1, 1, 0, 0)),
    "chunks of taps": ((1, 3), (1400, 700, 1, 1, 10, 10)),
    "a window before and behind x": ((1, 4), (90, 40, 1, 1, 100, 100)),
    "far strides": ((1, 3), (3000, 3, 300, 1, 0, 0)),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", [*PROBLEMS, *MORE])
def test_channels_beside_each_other(name, beside):
    given = {**PROBLEMS, **MORE}[name]
    config = (("beside", beside),)
    on_cores(check, *given, algorithm=SKEWED, config=config, adds=True)


#: Of PROBLEMS and MORE those without stride and dilation.
PLAIN = [name for name, ((N, _), axis) in {**PROBLEMS, **MORE}.items() if axis[2:4] == (1, 1) and N < 100]


@pytest.mark.cover(0, keep=["windows outside x-3", "one channel-16", "chunks of taps-2"])
@pytest.mark.parametrize("shifts", [2, 3, 16])
@pytest.mark.parametrize("name", PLAIN)
def test_parts_of_taps(name, shifts):
    given = {**PROBLEMS, **MORE}[name]
    on_cores(check, *given, algorithm=SKEWED, config=(("shifts", shifts),), adds=True)


@pytest.mark.cover(3)
@pytest.mark.parametrize("buffers", [2, 5])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", [*FEW, "parts of positions"])
def test_batches(name, groups, buffers, monkeypatch):
    monkeypatch.setattr(skewed, "BUFFERS", buffers)
    monkeypatch.setattr(skewed, "build", skewed.build.__wrapped__)
    config = (("beside", 2), ("groups", groups))
    check(*{**PROBLEMS, **MORE}[name], algorithm=SKEWED, config=config, bias_gradient=True)


def test_nan_stays_with_the_channels_beside_it():
    """None is left in places that the last batch does not fill."""
    (N, C), axis = (1, 7), (60, 4, 1, 1, 3, 0)
    x, gy = problem_of((N, C), axis)
    x[0, 3] = np.nan
    config = (("beside", 2), ("groups", 1))
    dw = nkiconv.depthwise_conv1d_weight(x, (C, 4), gy, padding="causal", algorithm=SKEWED, config=config)
    lost = np.isnan(dw).any(1)
    assert lost[3]
    assert lost.sum() <= 2


def test_rows_that_do_not_fit_are_refused():
    x, gy = nkiconv.spec((40_000, 1, 1, 4000), "bf16"), nkiconv.spec((40_000, 1, 1, 3998), "bf16")
    given = {"feature_group_count": 1, "algorithm": SKEWED, "config": (("beside", 1),)}
    with pytest.raises(KernelAssertionError, match=r"skewed needs \d+ bytes per partition of SBUF for x, gy"):
        nkiconv.simulator.execute(depthwise_conv1d_weight_gradient[2], (x, gy, (1, 1, 1, 3)), given, trace_only=True)
