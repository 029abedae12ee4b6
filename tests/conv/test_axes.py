"""Three axes: convolutions of volumes, whose planes have taps, stride, dilation and padding as rows and columns do."""

import contextlib
import itertools

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from volumes import VOLUMES, check_volume, volumes

import nkiconv


@pytest.mark.cover(9)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name, lnc):
    check_volume(VOLUMES[name], lnc=lnc)


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", ["same", "causal", "stem", "several chunks", "cropped"])
def test_volumes_with_channels_last(name):
    check_volume(VOLUMES[name], last=True)


IN_GROUPS = {"groups", "depthwise"}
#: The algorithms, and which of the volumes they take.
TAKEN = {
    "implicit_gemm": set(VOLUMES),
    "stacked": set(VOLUMES) - {"groups", "planes only", "between zeros", "several chunks"},
    "weight_stationary": set(VOLUMES) - {"several chunks"},
    "activation_stationary": set(VOLUMES) - IN_GROUPS - {"between zeros"},
}


@pytest.mark.cover(8)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", VOLUMES)
@pytest.mark.parametrize("algorithm", TAKEN)
def test_several_volumes(algorithm, name, last):
    taken = name in TAKEN[algorithm]
    refused = pytest.raises(nkiconv.simulator.KernelAssertionError, match=f"{algorithm} ")
    with contextlib.nullcontext() if taken else refused:
        check_volume(VOLUMES[name], N=3, last=last, algorithm=algorithm)


@pytest.mark.cover(6)
@pytest.mark.parametrize("fold", ["none", "inputs", "outputs", "both"])
@pytest.mark.parametrize("name", ["causal", "stem", "cropped"])
def test_folded_channels(name, fold):
    check_volume(VOLUMES[name], config=(("fold", fold),))


@pytest.mark.parametrize("name", ["same", "several chunks"])
def test_fp8_is_taken_one_by_one(name):
    check_volume(VOLUMES[name], "fp8_e4m3")
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match="one plane of taps"):
        check_volume(VOLUMES[name], "fp8_e4m3", config=(("product", "fp8_pairs"),))


#: Axes of planes that one tap meets, whose outputs do not see the planes of their own numbers, and one whose do.
MOVING = {
    "stride": (5, 1, 2, 1, 1, 0, 0),
    "padded in front": (3, 1, 1, 1, 1, 1, 0),
    "padded behind": (3, 1, 1, 1, 1, 0, 1),
    "cropped in front": (5, 1, 1, 1, 1, -1, 0),
    "between zeros": (3, 1, 1, 1, 2, 0, 0),
}
STILL = (5, 1, 1, 1, 1, 0, -1)
SQUARE = (5, 3, 1, 1, 1, 1, 1)
FP8_PAIRS = ("fp8_pairs", "fp8_halves", "fp8_staged")


@pytest.mark.cover(5)
@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("name", MOVING)
def test_planes_that_one_tap_meets(name, N):
    """The default is right; what works on images refuses planes that move."""
    depthwise, dense = (16, 16, 16, MOVING[name], SQUARE, SQUARE), (256, 12, 1, MOVING[name], SQUARE, SQUARE)
    check_volume(depthwise, N=N)
    check_volume(dense, "fp8_e4m3", N=N)
    refused = pytest.raises(nkiconv.simulator.KernelAssertionError, match="planes of y that each see the plane of x")
    with refused:
        check_volume(depthwise, N=N, algorithm="activation_stationary")
    for product in FP8_PAIRS:
        with refused:
            check_volume(dense, "fp8_e4m3", N=N, config=(("product", product),))


def test_planes_cropped_behind_are_images():
    check_volume((16, 16, 16, STILL, SQUARE, SQUARE), algorithm="activation_stationary")
    for N, product in itertools.product((1, 2), FP8_PAIRS):
        check_volume((256, 12, 1, STILL, SQUARE, SQUARE), "fp8_e4m3", N=N, config=(("product", product),))


@pytest.mark.parametrize("precision", [None, "bf16", "tf32", "fp16x3"])
def test_precisions(precision):
    check_volume(VOLUMES["causal"], "fp32", precision=precision)


@pytest.mark.parametrize("config", [(("x_bytes", 256),), (("moved", 2),), (("order", "chunks"),)])
def test_settings(config):
    check_volume(VOLUMES["several chunks"], config=config)


@draws(48, 160)
@given(volumes(groups=(1, 1, 2, 3, "all")), st.sampled_from([1, 2]), st.booleans(), st.sampled_from([None, *TAKEN]))
def test_any_volume(shape, lnc, last, algorithm):
    """An algorithm that does not take it refuses it by its name."""
    try:
        check_volume(shape, lnc=lnc, last=last, algorithm=algorithm)
    except nkiconv.simulator.KernelAssertionError as refused:
        if algorithm in (None, "implicit_gemm") or algorithm not in str(refused):
            raise
