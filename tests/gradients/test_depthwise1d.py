"""Filter gradients of depthwise conv1d against torch in float64, exact on integers; what bare kernels refuse."""

import re

import ml_dtypes
import numpy as np
import pytest
from depthwise import same_bits
from draws import cores
from gradients import check, expected, of_rows, problem_of
from tolerances import assert_within

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.kernels.gradients.depthwise_conv1d import ROWS_ALGORITHMS, SKEWED, depthwise_conv1d_weight_gradient
from nkiconv.schedules import skewed
from nkiconv.schedules.skewed import BESIDE
from nkiconv.simulator import KernelAssertionError


def _rows(N, C, *axis):
    """Channels and the axis of a depthwise row's gradient."""
    return (N, C, C, C), [axis]


#: N, C, size, taps, stride, dilation, before, after.
PROBLEMS = {
    "causal": _rows(1, 5, 60, 4, 1, 1, 3, 0),
    "several images": _rows(3, 5, 60, 4, 1, 1, 3, 0),
    "several tiles": _rows(3, 150, 40, 5, 1, 1, 2, 2),
    "stride": _rows(2, 7, 50, 5, 3, 1, 1, 0),
    "dilation": _rows(2, 7, 50, 5, 1, 4, 8, 8),
    "stride and dilation, cropped": _rows(2, 7, 50, 4, 2, 3, -1, 5),
    "cropped on both sides": _rows(2, 3, 40, 3, 1, 1, -3, -2),
    "windows outside x": _rows(2, 3, 4, 3, 1, 1, 7, 6),
    "one tap": _rows(2, 3, 20, 1, 2, 1, 0, 0),
    "one position": _rows(4, 3, 6, 6, 1, 1, 0, 0),
    "one channel": _rows(5, 1, 30, 3, 1, 1, 1, 1),
    "one row": _rows(1, 1, 300, 9, 1, 1, 4, 4),
    "long filter": _rows(1, 2, 300, 300, 1, 1, 299, 0),
    "many taps": _rows(2, 3, 700, 31, 1, 1, 15, 15),
    "parts of positions": _rows(3, 40, 1500, 5, 1, 1, 2, 2),
    "parts of positions, strided": _rows(2, 6, 2100, 4, 3, 2, 3, -1),
    "more images than partitions": _rows(150, 9, 20, 3, 1, 1, 1, 1),
    "images that fill no tile": _rows(33, 32, 36, 16, 1, 1, 0, 0),
    "chunks of taps": _rows(1, 3, 1400, 700, 1, 1, 10, 10),
    "a window before and behind x": _rows(1, 4, 90, 40, 1, 1, 100, 100),
    "far strides": _rows(1, 3, 3000, 3, 300, 1, 0, 0),
    "more images than a tile of sums holds": _rows(9000, 2, 3, 2, 1, 1, 0, 0),
    "rows summed in parts": _rows(2, 2, 20_000, 3, 1, 1, 1, 1),
}
FEW = ("causal", "several images", "stride and dilation, cropped", "several tiles")
#: Algorithm and settings.
WAYS = {
    "default": (None, {}),
    **{name: (name, {}) for name in ROWS_ALGORITHMS},
    **{f"{beside} channels beside": (SKEWED, {"beside": beside}) for beside in BESIDE},
    **{f"{shifts} shifts": (SKEWED, {"shifts": shifts}) for shifts in (2, 3, 16)},
    **{f"batches of {groups}": (SKEWED, {"beside": 2, "groups": groups}) for groups in (1, 3)},
}


def _takes(name, algorithm, settings):
    (N, *_), [(size, _, stride, dilation, *_)] = PROBLEMS[name]
    if algorithm in (None, SKEWED) and (N > 1000 or size > 10_000):
        return not settings and algorithm is None
    if "shifts" in settings:
        return (stride, dilation) == (1, 1) and N < 30
    return algorithm in (None, SKEWED) or (name in FEW and (algorithm != "banded" or min(stride, dilation) == 1))


@pytest.mark.cover(34, keep=[
    "causal-dot-bf16", "windows outside x-3 shifts-bf16", "one channel-16 shifts-bf16", "chunks of taps-2 shifts-bf16",
    "more images than a tile of sums holds-default-bf16", "rows summed in parts-default-bf16",
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("name", "way"), [
    (name, way) for name in PROBLEMS for way in WAYS if _takes(name, *WAYS[way])
])  # fmt: skip
def test_exact(name, way, dtype, monkeypatch):
    algorithm, settings = WAYS[way]
    if "groups" in settings:
        monkeypatch.setattr(skewed, "BUFFERS", 6 - settings["groups"])
        monkeypatch.setattr(skewed, "build", skewed.build.__wrapped__)
    more = {"algorithm": algorithm, "config": tuple(settings.items()) or None, "bias_gradient": True}
    for lnc in cores(name, way):
        check(*PROBLEMS[name], dtype=dtype, function=of_rows, lnc=lnc, adds=lnc == 2, **more)


@pytest.mark.parametrize("algorithm", [None, "dot", SKEWED])
def test_cores_give_the_same_bits_of_real_numbers(algorithm):
    rng = np.random.default_rng(1)
    x, gy = (rng.standard_normal((5, 150, 80)).astype(ml_dtypes.bfloat16) for _ in range(2))
    asked = {"padding": "same", "bias_gradient": True, "algorithm": algorithm}
    one, two = (nkiconv.depthwise_conv1d_weight(x, (150, 5), gy, lnc=lnc, **asked) for lnc in (1, 2))
    assert same_bits(one[0], two[0])
    assert same_bits(one[1], two[1])
    sums, sizes = (expected(*pair, (150, 1, 5), [(80, 5, 1, 1, 2, 2)], 150) for pair in ((x, gy), (abs(x), abs(gy))))
    assert_within(one[0], sums[0][:, 0], sizes[0][:, 0], 5 * 80, "fp32")
    assert_within(one[1], sums[1], sizes[1], 5 * 80, "fp32")


#: in_perm, kern_perm, out_perm.
LAYOUTS = {
    "NCHW": ((0, 1, 2, 3),) * 3,
    "NHWC": ((0, 3, 1, 2), (0, 1, 2, 3), (0, 2, 3, 1)),
    "NHWC, RSCK": ((0, 3, 1, 2), (3, 2, 0, 1), (0, 2, 3, 1)),
    "images last": ((3, 0, 1, 2), (2, 3, 0, 1), (1, 2, 3, 0)),
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*FEW, "one tap", "one channel"])
def test_layouts_of_a_bare_kernel(name, layout):
    channels, [axis] = PROBLEMS[name]
    x, gy, (C, _, taps) = problem_of(channels, [axis])
    perms = dict(zip(("in_perm", "kern_perm", "out_perm"), LAYOUTS[layout], strict=True))
    stored = np.ascontiguousarray(x[:, :, None].transpose(np.argsort(perms["in_perm"])))
    slopes = np.ascontiguousarray(gy[:, :, None].transpose(perms["out_perm"]))
    size = tuple((C, 1, 1, taps)[place] for place in np.argsort(perms["kern_perm"]).tolist())
    dw, db = nkiconv.simulate(depthwise_conv1d_weight_gradient[2])(
        stored, slopes, size, padding=((0, 0), axis[4:]), stride=(1, axis[2]), rhs_dilation=(1, axis[3]),
        feature_group_count=C, bias_gradient=True, **perms,
    )  # fmt: skip
    wanted = expected(x, gy, (C, 1, taps), [axis], C)
    np.testing.assert_array_equal(dw.transpose(perms["kern_perm"]), wanted[0][:, None])
    np.testing.assert_array_equal(db, wanted[1])


@pytest.mark.parametrize("is_last", [False, True])
def test_conv1d_weight_takes_it(is_last):
    problem = PROBLEMS["stride and dilation, cropped"]
    for config in (None, (("pixels", 0),)):
        check(*problem, is_last, bias_gradient=True, config=config)


BARE = {"img_ref": (1, 4, 1, 9), "grad_ref": (1, 4, 1, 6), "filter_shape": (4, 1, 1, 4)}
IMAGES = {"img_ref": (1, 4, 6, 6), "grad_ref": (1, 16, 4, 4), "filter_shape": (16, 4, 3, 3)}
LONG = {"img_ref": (40_000, 1, 1, 4000), "grad_ref": (40_000, 1, 1, 3998), "filter_shape": (1, 1, 1, 3)}
OF_ROWS = [
    ({"filter_shape": (4, 4, 1, 4)}, "must be after kern_perm [C, 1, 1, S]"),
    ({"filter_shape": (8, 1, 1, 4)}, "(8, 1, 1, 4): must be after kern_perm [C, 1, 1, S] = (4, 1, 1, 4)"),
    ({"filter_shape": (4, 1, 2, 4)}, "must be after kern_perm [C, 1, 1, S]"),
    *(({"filter_shape": shape}, "filter_shape=") for shape in (None, (4, 1, 1, 4, 1), (4.0, 1, 1, 4), (4, 1, 1, 0))),
    ({"bias_gradient": 1}, "bias_gradient=1: must be True or False"),
    ({"img_ref": (1, 4, 2, 9)}, "img_ref H=2: must be 1"),
    ({"grad_ref": (1, 4, 1, 7)}, "grad_ref.shape=(1, 4, 1, 7): must be y's, (1, 4, 1, 6)"),
    ({"feature_group_count": 2}, "feature_group_count=2: accepted are 1, 4; this kernel is depthwise"),
    ({"algorithm": "banded", "stride": (1, 2), "rhs_dilation": (1, 2), "grad_ref": (1, 4, 1, 2)},
     "rhs_dilation=2, stride=2: banded takes one of them"),
    ({"algorithm": "blocks"}, "algorithm='blocks': accepted are None"),
    (LONG | {"algorithm": SKEWED, "config": (("beside", 1),)}, "bytes per partition of SBUF for x, gy"),
]  # fmt: skip
OF_IMAGES = [
    ({"filter_shape": (4, 4, 3, 3, 4)}, "filter_shape=(4, 4, 3, 3, 4): must be"),
    ({"bias_gradient": "no"}, "bias_gradient='no': must be True or False"),
]


@pytest.mark.parametrize(("kernel", "given", "message"), [
    *((depthwise_conv1d_weight_gradient, BARE | more, message) for more, message in OF_ROWS),
    *((conv_weight_gradient, IMAGES | more, message) for more, message in OF_IMAGES),
])  # fmt: skip
def test_a_bare_kernel_refuses(kernel, given, message):
    given = dict(given)
    args = nkiconv.spec(given.pop("img_ref"), "bf16"), nkiconv.spec(given.pop("grad_ref"), "bf16")
    with pytest.raises(KernelAssertionError, match=re.escape(message)):
        nkiconv.simulator.execute(kernel[2], (*args, given.pop("filter_shape")), given, trace_only=True)


def test_nan_stays_with_the_channels_beside_it():
    """None is left in places that the last batch does not fill."""
    x, gy, _ = problem_of(*_rows(1, 7, 60, 4, 1, 1, 3, 0))
    x[0, 3] = np.nan
    config = (("beside", 2), ("groups", 1))
    dw = nkiconv.depthwise_conv1d_weight(x, (7, 4), gy, padding="causal", algorithm=SKEWED, config=config)
    lost = np.isnan(dw).any(1)
    assert lost[3]
    assert lost.sum() <= 2
