"""Three axes: convolutions of volumes, whose planes have taps, stride, dilation and padding as rows and columns do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volumes import SHAPES, axes_of_any_kind, check_volume, has_outputs

import nkiconv


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_volumes(name, lnc):
    check_volume(SHAPES[name], lnc=lnc)


@pytest.mark.parametrize("name", ["same", "causal", "stem", "several chunks", "cropped"])
def test_volumes_with_channels_last(name):
    check_volume(SHAPES[name], last=True)


@pytest.mark.parametrize("fold", ["none", "inputs", "outputs", "both"])
@pytest.mark.parametrize("name", ["causal", "stem", "cropped"])
def test_folded_channels(name, fold):
    check_volume(SHAPES[name], config=(("fold", fold),))


@pytest.mark.parametrize("name", ["same", "several chunks"])
def test_fp8_is_taken_one_by_one(name):
    check_volume(SHAPES[name], "fp8_e4m3")
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match="one plane of taps"):
        check_volume(SHAPES[name], "fp8_e4m3", config=(("product", "fp8_pairs"),))


@pytest.mark.parametrize("precision", [None, "bf16", "tf32", "fp16x3"])
def test_precisions(precision):
    check_volume(SHAPES["causal"], "fp32", precision=precision)


@pytest.mark.parametrize(
    "config", [(("x_bytes", 256),), (("filter_bytes", 256),), (("moved", 2),), (("order", "chunks"),)]
)
def test_settings(config):
    check_volume(SHAPES["several chunks"], config=config)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_volume(data):
    axes = [data.draw(axes_of_any_kind.filter(has_outputs)) for _ in range(3)]
    groups = data.draw(st.sampled_from([1, 1, 2]))
    each = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    check_volume((groups * each[0], groups * each[1], groups, *axes), lnc=data.draw(st.sampled_from([1, 2])))


@pytest.mark.parametrize("algorithm", ["stacked", "bands", "grouped", "narrow", "swapped"])
def test_others_refuse_planes_of_taps(algorithm):
    shape = SHAPES["depthwise"] if algorithm in ("bands", "grouped") else SHAPES["same"]
    last = algorithm == "swapped"
    with pytest.raises(nkiconv.simulator.KernelAssertionError, match="T=3"):
        check_volume(shape, algorithm=algorithm, last=last)
