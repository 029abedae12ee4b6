"""Three axes: convolutions of volumes, whose planes have taps, stride, dilation and padding as rows and columns do."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volumes import VOLUMES, check_volume, volumes

import nkiconv


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name, lnc):
    check_volume(VOLUMES[name], lnc=lnc)


@pytest.mark.parametrize("name", ["same", "causal", "stem", "several chunks", "cropped"])
def test_volumes_with_channels_last(name):
    check_volume(VOLUMES[name], last=True)


IN_GROUPS = {"groups", "depthwise"}
#: The algorithms, and which of the volumes they take; swapped: with channels last.
TAKEN = {
    "implicit_gemm": set(VOLUMES),
    "stacked": set(VOLUMES) - IN_GROUPS - {"planes only", "between zeros", "several chunks"},
    "grouped": IN_GROUPS,
    "narrow": set(VOLUMES) - IN_GROUPS - {"several chunks"},
    "swapped": set(VOLUMES) - IN_GROUPS - {"between zeros"},
    "toeplitz_rows": {"depthwise"},
    "turned": set(VOLUMES) - IN_GROUPS - {"between zeros"},
}


@pytest.mark.cover
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", VOLUMES)
@pytest.mark.parametrize("algorithm", TAKEN)
def test_several_volumes(algorithm, name, last):
    taken = name in TAKEN[algorithm] and (last or algorithm != "swapped")
    refused = pytest.raises(nkiconv.simulator.KernelAssertionError, match=f"{algorithm} ")
    with contextlib.nullcontext() if taken else refused:
        check_volume(VOLUMES[name], N=3, last=last, algorithm=algorithm)


@pytest.mark.parametrize("fold", ["none", "inputs", "outputs", "both"])
@pytest.mark.parametrize("name", ["causal", "stem", "cropped"])
def test_folded_channels(name, fold):
    check_volume(VOLUMES[name], config=(("fold", fold),))


@pytest.mark.parametrize("name", ["same", "several chunks"])
def test_fp8_is_taken_one_by_one(name):
    check_volume(VOLUMES[name], "fp8_e4m3")
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match="one plane of taps"):
        check_volume(VOLUMES[name], "fp8_e4m3", config=(("product", "fp8_pairs"),))


@pytest.mark.parametrize("precision", [None, "bf16", "tf32", "fp16x3"])
def test_precisions(precision):
    check_volume(VOLUMES["causal"], "fp32", precision=precision)


@pytest.mark.parametrize(
    "config", [(("x_bytes", 256),), (("filter_bytes", 256),), (("moved", 2),), (("order", "chunks"),)]
)
def test_settings(config):
    check_volume(VOLUMES["several chunks"], config=config)


@settings(max_examples=40, deadline=None)
@given(volumes(groups=(1, 1, 2)), st.sampled_from([1, 2]))
def test_any_volume(shape, lnc):
    check_volume(shape, lnc=lnc)
