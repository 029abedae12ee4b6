"""One matmul a tap: every setting gives the same sums, needs no more than it says, and keeps the array at work."""

import numpy as np
import pytest
from conv_calls import (
    EDGE,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    integers,
    planned,
    run,
    trace,
)
from draws import cores
from implicit_gemm_calls import FOLDED, M_TILES, PROBLEMS, chosen, completed
from tolerances import assert_exact

import nkiconv
from nkiconv import cases
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref

SETTINGS = [
    {}, {"moved": 0}, {"moved": 1}, {"moved": 9}, {"moved": 9, "shard": "channels"}, {"moved": 2, "shard": "images"},
    {"shard": "channels", "x_bytes": 1024}, {"shard": "images", "x_bytes": 600, "warmup": 0},
]  # fmt: skip


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_setting_is_exact(name, settings, dtype):
    if dtype == "fp32":
        settings = {key: value for key, value in settings.items() if key != "moved"}
    check_exact(PROBLEMS[name].replace(dtype=dtype), config=config_of("implicit_gemm", **settings))


@pytest.mark.cover(5)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("why", EDGE)
def test_every_edge_is_exact(why, dtype):
    check_exact(EDGE[why].replace(dtype=dtype), config=config_of("implicit_gemm"))


@pytest.mark.cover(5)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("fold", ["inputs", "outputs", "both"])
@pytest.mark.parametrize("why", FOLDED)
def test_folded_channels_are_exact(why, fold, dtype):
    problem = FOLDED[why].replace(dtype=dtype)
    for settings in ({}, {"x_bytes": 900}):
        check_exact(problem, config=config_of("implicit_gemm", fold=fold, **settings))


@pytest.mark.cover(4)
@pytest.mark.parametrize("why", FOLDED)
def test_epilogue_of_folded_channels(why):
    asked = {"bias": True, "residual": True, "beta": 2.0, "activation": "relu"}
    check_epilogue(FOLDED[why], asked, config_of("implicit_gemm", fold="both"))


@pytest.mark.cover(4)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("why", FOLDED)
def test_packed_filters_are_folded_too(why, lnc):
    problem = FOLDED[why].replace(dtype="fp32")
    x, w = integers(np.random.default_rng(6), problem)
    packed, expected = nkiconv.pack_filter(w), conv_ref(x, w, problem)
    for fold in ("none", "inputs", *(["both"] if 128 % packed.shape[-1] == 0 else [])):
        assert_exact(run(x, packed, problem, lnc, config=config_of("implicit_gemm", fold=fold)), expected, "fp32")


@pytest.mark.cover(3)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", PROBLEMS)
def test_packed_filters_are_exact(name, lnc):
    problem = PROBLEMS[name].replace(dtype="fp32")
    x, w = integers(np.random.default_rng(8), problem)
    y = run(x, nkiconv.pack_filter(w), problem, lnc, config=config_of("implicit_gemm"))
    assert_exact(y, conv_ref(x, w, problem), "fp32")


def test_nothing_is_folded_where_zeros_may_not_be_multiplied():
    problem = cases.get("unet_320").problem
    for asked, fold in (({}, "both"), ({"strict_nonfinite": True}, "none")):
        assert completed(problem, asked=asked)["fold"] == fold


@pytest.mark.parametrize(("problem", "changes", "fold", "message"), [
    (M_TILES.replace(C=256), {}, "inputs", "config fold=inputs: needs C=256 with 1 to 64 channels"),
    (M_TILES, {}, "inputs", None),
    (M_TILES.replace(S=1), {}, "inputs", "several columns of taps"),
    (M_TILES.replace(lhs_dilation=(1, 2)), {}, "both", "no lhs_dilation of columns"),
    (M_TILES.replace(K=256), {}, "outputs", "config fold=outputs: needs K=256 with 1 to 64 channels"),
    (M_TILES.replace(R=1), {}, "outputs", "that share rows of x"),
    (M_TILES, {"strict_nonfinite": True}, "inputs", "config fold=inputs: multiplies by zeros, which strict_nonfinite"),
    (M_TILES, {}, "all", r"config fold=all: must be one of \('none', 'inputs', 'outputs', 'both'\)"),
])  # fmt: skip
def test_what_cannot_be_folded(problem, changes, fold, message):
    if message is None:
        assert planned(problem, "implicit_gemm", (("fold", fold),), **changes)[1] == ""
    else:
        check_refused(problem, "implicit_gemm", message, {"fold": fold}, **changes)


def test_a_single_row_is_shared_by_both_cores():
    """A row of outputs was one output tile, and a core had nothing to do."""
    found = chosen(cases.get("whisper_conv2_s2").problem)
    assert len(found.items) % 2 == 0


def test_rows_that_are_all_but_whole_come_whole():
    """A load of 55 of 56 columns was a run of 110 bytes a row."""
    problem = cases.get("rn50_proj_s2").problem
    for found in (chosen(problem), planned(problem, "implicit_gemm")[0]):
        assert {item.out_tile.wn for item in found.items} == {56}


@pytest.mark.parametrize("problem", [M_TILES.replace(dtype="fp32"), EDGE["groups"]])
def test_dma_transposes_only_what_it_can(problem):
    message = "config moved=1: DMA transposes plain filters of 16 bits and one group only"
    check_refused(problem, "implicit_gemm", message, {"moved": 1})


@pytest.mark.cover(2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_relu_is_read_out_by_both_engines_and_keeps_nan(bias, strict):
    """Scalar alone read all sums out where there was a relu; Vector's maximum with 0 is one too."""
    problem = ConvProblem(N=1, C=4, H=40, W=40, K=5, R=3, S=3, dtype="fp32")
    x, w = integers(np.random.default_rng(7), problem)
    x[0, 2, 30, 7] = np.nan
    more = {"activation": "relu", "strict_nonfinite": strict}
    if bias:
        more["bias"] = np.arange(-2, 3).astype(np.float32)
    plain = run(x, w, problem, 2, config=config_of("implicit_gemm", fold="none"))
    expected = np.maximum(plain + more.get("bias", np.zeros(5, np.float32))[:, None, None], 0)
    assert np.isnan(expected).any()
    for lnc in cores():
        y = run(x, w, problem, lnc, config=config_of("implicit_gemm", fold="none"), **more)
        np.testing.assert_array_equal(y, expected)
    execution = trace(problem, 1, config=config_of("implicit_gemm", fold="none"), **more)
    ops = {i.op for i in execution.programs[0].instructions if i.op in ("activation", "tensor_scalar")}
    assert ops == ({"activation"} if strict else {"activation", "tensor_scalar"})


@pytest.mark.slow
def test_filters_of_the_next_batch_fit_beside_those_of_one():
    """7 K tiles of inputs and 49 taps: an M tile's filters fill 88 kB, and so do those that are transposed ahead."""
    problem = ConvProblem(N=1, C=829, H=37, W=56, K=773, R=7, S=7, padding=((3, 3), (3, 3)))
    for settings in ({}, completed(problem)):
        found, reason = planned(problem, "implicit_gemm", tuple(settings.items()))
        assert reason == ""
        assert len(found.batches) > 2
        execution = trace(problem, 2, config=config_of("implicit_gemm", **settings))
        assert execution.sbuf_peak_bytes <= found.sbuf_bytes


@pytest.mark.parametrize("name", ["filter_bytes", "channels", "wide", "whole"])
def test_settings_that_were_removed_are_refused_by_name(name):
    found, reason = planned(M_TILES, "implicit_gemm", ((name, 64),))
    assert (found, reason) == (None, f"config {name}: was removed from implicit_gemm; leave it out")
