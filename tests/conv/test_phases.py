"""Transposed convolutions in the kernels: phases in every arrangement, the other algorithms, cores, refusals."""

import contextlib

import numpy as np
import pytest
from depthwise import same_bits
from draws import cores, draws
from hypothesis import given
from hypothesis import strategies as st
from transposed import KERNELS, Transposed, check, transposed

import nkiconv
from nkiconv.planner.conv import geometry_of, options_of
from nkiconv.planner.request import Asked
from nkiconv.schedules import output_tiles, weight_stationary
from nkiconv.schedules.conv_algorithms import ALGORITHMS, default_of, plan_of
from nkiconv.schedules.weight_stationary import ALONG, BESIDE
from nkiconv.simulator import KernelAssertionError

SMALL = Transposed(2, 6, 5, 1, (5, 7), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1))
CALLS = {
    "unet": Transposed(2, 130, 140, 1, (3, 4), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    "gan": Transposed(3, 20, 12, 1, (4, 4), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    "vocoder": Transposed(1, 40, 24, 1, (1, 150), (1, 16), (1, 8), (0, 4), (0, 0), (1, 1)),
    "long rows": Transposed(1, 4, 3, 1, (1, 1200), (1, 4), (1, 2), (0, 1), (0, 0), (1, 1)),
    "more taps than phases": Transposed(2, 5, 4, 1, (5, 6), (5, 3), (2, 2), (2, 1), (1, 1), (1, 1)),
    "fewer taps than phases": Transposed(2, 5, 4, 1, (5, 6), (1, 2), (3, 4), (0, 0), (2, 3), (1, 1)),
    "dilated": Transposed(2, 5, 4, 1, (5, 6), (3, 2), (3, 2), (1, 0), (0, 1), (2, 3)),
    "common factors": Transposed(1, 5, 4, 1, (5, 6), (4, 3), (4, 2), (2, 1), (1, 0), (2, 4)),
    "cropped": Transposed(1, 5, 4, 1, (6, 6), (3, 3), (2, 3), (4, 5), (0, 0), (1, 1)),
    "stride 1": Transposed(2, 5, 4, 1, (5, 6), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "volumes": Transposed(2, 6, 5, 1, (3, 4, 5), (2, 3, 2), (2, 3, 2), (0, 1, 0), (1, 0, 1), (1, 2, 3)),
    "one plane": Transposed(2, 6, 5, 1, (1, 4, 5), (2, 1, 3), (2, 3, 1), (0, 0, 0), (0, 2, 0), (1, 1, 1)),
}
GROUPS = {
    "grouped": Transposed(2, 6, 4, 2, (5, 6), (3, 4), (2, 2), (1, 1), (1, 0), (1, 1)),
    "depthwise": Transposed(1, 9, 9, 9, (1, 20), (1, 3), (1, 2), (0, 1), (0, 1), (1, 1)),
    "many groups": Transposed(1, 140, 140, 140, (1, 11), (1, 4), (1, 2), (0, 1), (0, 0), (1, 1)),
    "multiplier": Transposed(1, 4, 12, 4, (3, 4, 5), (2, 2, 3), (2, 1, 2), (0, 0, 1), (0, 0, 1), (1, 1, 1)),
    "large groups": Transposed(1, 280, 6, 2, (3, 4), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
}


@pytest.mark.cover(21)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8_e4m3"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_phases(call, dtype):
    check(call, dtype, algorithm="weight_stationary")


@pytest.mark.cover(4)
@pytest.mark.parametrize("call", {**CALLS, **GROUPS}.values(), ids={**CALLS, **GROUPS})
def test_other_algorithms_on_a_copy_of_the_filter(call):
    for last in (False, True):
        check(call, algorithm="implicit_gemm", last=last)


@pytest.mark.cover(6)
@pytest.mark.parametrize("call", {**CALLS, **GROUPS}.values(), ids={**CALLS, **GROUPS})
def test_a_kernel_called_bare(call):
    check(call, last=True)


@draws(40, 500)
@given(
    transposed(groups=(1, 2, 3)), st.booleans(), st.sampled_from(ALGORITHMS), st.sampled_from(["bf16", "fp32"]),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_any_on_any_algorithm_that_takes_it(call, last, algorithm, dtype, lnc):
    # algorithms that refuse it say so by name
    refused = pytest.raises(KernelAssertionError, match=algorithm)
    takes = algorithm == "implicit_gemm" or _reason(call, last, algorithm) == ""
    with contextlib.nullcontext() if takes else refused:
        check(call, dtype, lnc, last=last, algorithm=algorithm)


def arrangements():
    """Settings that put several phases or segments beside each other, with shapes that take them."""
    for beside in BESIDE:
        for segments, C in ((1, 20), (2, 64), (4, 32), (4, 64), (2, 128)):
            for along in ALONG if segments > 1 else ALONG[:1]:
                yield beside, segments, along, C


@pytest.mark.cover(1)
@pytest.mark.parametrize(("beside", "segments", "along", "C"), list(arrangements()))
def test_phases_and_segments_beside_each_other(beside, segments, along, C):
    K = {"none": 32, "columns": 32, "rows": 32, "planes": 16}[beside] // segments
    config = (("beside", beside), ("segments", segments), ("along", along), ("y_bytes", 256))
    stride = (1, 2, 2) if beside == "rows" else (2, 1, 2) if beside == "planes" else (2, 2, 2)
    for padding, taps in (((0, 0, 0), (2, 2, 2)), ((1, 1, 1), (3, 3, 4))):
        call = Transposed(1, C, K, 1, (3, 4, 5), taps, stride, padding, (0, 0, 0), (1, 1, 1))
        for lnc in cores(config, taps):
            check(call, lnc=lnc, algorithm="weight_stationary", config=config)


@pytest.mark.cover(2)
@pytest.mark.parametrize("config", [
    (("shard", "channels"), ("channels", 3)),
    (("shard", "outputs"), ("channels", 2)),
    (("channels", 1), ("y_bytes", 256)),
    (("warmup", 0),),
], ids=str)  # fmt: skip
def test_settings_change_nothing(config, change):
    change(output_tiles, "X_BYTES", 256)
    change(weight_stationary, "FILTER_BYTES", 256)
    check(SMALL, algorithm="weight_stationary", config=config)
    check(CALLS["volumes"], algorithm="weight_stationary", config=config)


def test_both_cores_give_the_bits_of_one():
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 140, 5, 7)), rng.standard_normal((140, 130, 4, 4))
    arrays = x.astype(np.float32), w.astype(np.float32)
    for shard in ("channels", "outputs"):
        options = {
            "stride": (2, 2), "padding": ((1, 1), (1, 1)), "algorithm": "weight_stationary",
            "config": (("shard", shard),),
        }  # fmt: skip
        one, two = (nkiconv.simulate(KERNELS[2][lnc])(*arrays, **options) for lnc in (1, 2))
        assert same_bits(one, two)


def test_the_default_rule_multiplies_no_zeros():
    """Filters as torch stores them and several phases: `weight_stationary`, where it runs."""
    assert _algorithm(CALLS["unet"]) == "weight_stationary"
    assert _algorithm(GROUPS["depthwise"]) == "weight_stationary"


def _algorithm(call):
    """What a bare kernel takes."""
    problem = _problem(call, False)
    return default_of(geometry_of(problem, Asked()), options_of(problem, Asked()), 2)


def _reason(call, last, algorithm):
    """Why an algorithm does not take a call."""
    problem = _problem(call, last)
    return plan_of(algorithm, geometry_of(problem, Asked()), options_of(problem, Asked()), None, 2)[1]


def _problem(call, last):
    fields = dict(zip("DHW"[-call.axes :], call.sizes, strict=True))
    pairs = {**call.numbers(), "padding": tuple((side, side) for side in call.padding)}
    layout = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[call.axes][last]
    return nkiconv.ConvProblem.transpose(
        N=call.N, C=call.C, K=call.K, groups=call.groups, taps=call.taps, layout=layout, **fields, **pairs
    )


X, W = SMALL.inputs("fp32")
REFUSED = [
    ({"filter_ref": W[:4]}, r"filter_ref.shape=.*: has 4 input channels, img_ref has C=6; pass \[C, K / groups, ...\]"),
    ({"filter_ref": W[0]}, r"filter_ref.shape=.*: must have 4 axes, .C, K / groups, R, S"),
    ({"padding": ((9, 9), (0, 0))}, "P=-6: output height must be at least 1"),
    ({"config": (("beside", "all"),)}, "config beside=all: must be one of"),
    ({"config": (("segments", 3),)}, "config beside=none, segments=3.*2 or 4, of C=32, 64 or 128, not 6"),
    ({"config": (("beside", "columns"),), "strict_nonfinite": True}, "multiplies by zero, which strict_nonfinite"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[case[1][:40] for case in REFUSED])
def test_refusals(changed, message):
    given_arguments = {"img_ref": X, "filter_ref": W, "stride": (2, 2), "algorithm": "weight_stationary", **changed}
    if "config" not in changed:
        del given_arguments["algorithm"]
    with pytest.raises(KernelAssertionError, match=message):
        nkiconv.simulate(KERNELS[2])(**given_arguments)


def test_transposed_problems_that_are_refused():
    for name, more, message in (
        ("wide", {"config": (("beside", "rows"),)}, "4 phases of 100 columns, by quadrants, must fit 128"),
        (
            "residual",
            {"config": (("beside", "columns"),), "residual": np.zeros((2, 5, 12, 16), np.float32)},
            "phases that share columns take no residual",
        ),
    ):
        w = np.zeros((6, 100, 4, 4), np.float32) if name == "wide" else W
        with pytest.raises(KernelAssertionError, match=message):
            nkiconv.simulate(KERNELS[2])(X, w, stride=(2, 2), algorithm="weight_stationary", **more)
    plain = np.zeros((5, 6, 3, 3), np.float32)
    for spread, message in (
        (2, r"filter_ref: weight_stationary takes filters \[C, K, ...\]"),
        (1, "lhs_dilation=1: weight_stationary has phases of transposed"),
    ):
        with pytest.raises(KernelAssertionError, match=message):
            nkiconv.simulate(nkiconv.conv2d_implicit_gemm)(
                X, plain, lhs_dilation=(spread, 1), algorithm="weight_stationary", config=(("beside", "none"),)
            )


def test_a_convolution_with_filters_stored_the_other_way_round():
    """conv2d takes phases too, where its filter lies as [C, K, ...] and lhs_dilation has zeros to leave out."""
    rng = np.random.default_rng(4)
    w = rng.integers(-2, 3, (5, 6, 3, 3)).astype(np.float32)
    options = {"lhs_dilation": (2, 2), "padding": ((1, 2), (2, 1)), "kern_perm": (1, 0, 2, 3)}
    stored = np.ascontiguousarray(w.transpose(1, 0, 2, 3))
    kernel = nkiconv.simulate(nkiconv.conv2d_implicit_gemm)
    y = kernel(X, stored, algorithm="weight_stationary", **options)
    np.testing.assert_array_equal(y, kernel(X, stored, algorithm="implicit_gemm", **options))


#: Groups whose blocks have all phases: strides, taps that do not divide, dilations, crops, multipliers, few groups.
GROUPS_OF_PHASES = {
    "depthwise": Transposed(2, 9, 9, 9, (6, 7), (3, 5), (2, 2), (1, 2), (1, 1), (1, 1)),
    "multiplier": Transposed(1, 12, 4, 4, (5, 6), (4, 7), (2, 2), (0, 3), (1, 0), (1, 1)),
    "groups": Transposed(2, 6, 4, 2, (5, 6), (3, 4), (2, 2), (1, 1), (1, 0), (1, 1)),
    "rows": Transposed(3, 140, 140, 70, (4, 5), (3, 3), (2, 1), (2, 1), (0, 0), (1, 1)),
    "columns": Transposed(1, 40, 20, 20, (3, 30), (1, 6), (1, 4), (0, 1), (0, 2), (1, 1)),
    "dilated": Transposed(2, 8, 8, 8, (5, 6), (3, 3), (2, 2), (1, 0), (0, 1), (3, 2)),
    "fewer taps than phases": Transposed(1, 6, 6, 6, (4, 5), (1, 2), (2, 4), (0, 0), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("call", GROUPS_OF_PHASES.values(), ids=GROUPS_OF_PHASES)
def test_phases_of_groups(call):
    """Blocks that have each phase once and, where there is room, several times."""
    if call.stride[1] == 4 and call.stride[0] == 2:
        with pytest.raises(KernelAssertionError, match="of groups takes blocks of at most 4 phases"):
            check(call, algorithm="weight_stationary")
        return
    for height, width in weight_stationary.BLOCKS:
        if height % call.stride[0] == 0 and width % call.stride[1] == 0:
            config = (("rows", 32), ("height", height), ("width", width))
            for lnc, dtype in ((1, "bf16"), (2, "fp32")):
                check(call, dtype, lnc=lnc, last=lnc == 1, algorithm="weight_stationary", config=config)


def test_blocks_of_groups_have_all_phases():
    with pytest.raises(KernelAssertionError, match="rows=32 height=1 width=2: a block has all phases"):
        check(
            GROUPS_OF_PHASES["groups"],
            algorithm="weight_stationary",
            config=(("rows", 32), ("height", 1), ("width", 2)),
        )
