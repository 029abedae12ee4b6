"""Few outputs, deep contraction: two cores that share it, or the output channels, give the sums that one core does."""

import re

import numpy as np
import pytest
from conv2d_calls import (
    EDGE,
    EPILOGUES,
    check_epilogue,
    check_exact,
    config_of,
    extras_of,
    geometry_of,
    integers,
    planned,
    run,
    trace,
)
from depthwise import same_bits

import nkiconv
from nkiconv import cases
from nkiconv.kernels.conv2d.deep import tiling
from nkiconv.kernels.conv2d.deep.config import DEEP_SETTINGS, DEEP_SHARDS
from nkiconv.kernels.conv2d.deep.sums import parts_of
from nkiconv.planner import Request
from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.conv2d.deep import ALGORITHM
from nkiconv.planner.operations import OPERATIONS
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

SAME = ((1, 1), (1, 1))
FEW = ConvProblem(N=1, C=300, H=7, W=6, K=24, R=3, S=3, padding=SAME)
FULL = ConvProblem(N=3, C=260, H=3, W=5, K=32, R=2, S=4, padding=((1, 0), (2, 1)))
WIDE = ConvProblem(N=2, C=140, H=5, W=4, K=200, R=3, S=2, padding=((0, 1), (1, 1)))
PIXELS = ConvProblem(N=3, C=400, H=1, W=1, K=5, R=1, S=1)
LAYER = ConvProblem(N=2, C=130, H=26, W=27, K=6, R=3, S=3, padding=SAME)
STRIDED = ConvProblem(
    N=3, C=70, H=21, W=17, K=9, R=4, S=5, stride=(2, 3), padding=((2, 1), (3, 2)), rhs_dilation=(1, 2)
)
CROPPED = ConvProblem(N=2, C=33, H=12, W=11, K=5, R=3, S=4, padding=((-2, 3), (4, -1)), stride=(1, 2))
LARGE = ConvProblem(N=2, C=20, H=3, W=2, K=3, R=7, S=8, padding=((3, 4), (5, 3)))
OUTSIDE = ConvProblem(N=1, C=9, H=2, W=3, K=3, R=5, S=5, padding=((9, 7), (8, 6)))
#: problem, what is shared, columns of taps beside each other, other settings
SHAPES = {
    "halves": (FEW, "contraction", 1, {}),
    "halves, two taps": (FEW, "contraction", 2, {}),
    "halves, all taps": (FEW, "contraction", 3, {}),
    "channels": (FEW, "channels", 1, {}),
    "channels, two taps": (FEW, "channels", 2, {}),
    "channels, all taps": (FEW, "channels", 3, {}),
    "a row of taps a piece": (FEW, "contraction", 2, {"filter_bytes": 1000}),
    "a tap a piece": (FEW, "channels", 1, {"filter_bytes": 256, "buffers": 2, "warmup": 0}),
    "no gaps": (FULL, "contraction", 4, {}),
    "no gaps, groups of taps": (FULL, "contraction", 3, {"buffers": 5}),
    "odd channels": (FULL.replace(K=31), "channels", 4, {}),
    "two blocks of channels": (WIDE, "contraction", 1, {}),
    "a block a core": (WIDE, "channels", 1, {}),
    "three pixels": (PIXELS, "contraction", 1, {}),
    "three pixels by channels": (PIXELS, "channels", 1, {}),
    "one pixel": (PIXELS.replace(N=1), "contraction", 1, {}),
    "one output": (PIXELS.replace(N=1, K=1), "contraction", 1, {}),
    "banks are parts of images": (LAYER, "contraction", 1, {}),
    "banks are parts of images, all taps": (LAYER, "channels", 3, {}),
    "strided": (STRIDED, "contraction", 1, {}),
    "strided, all taps": (STRIDED, "contraction", 4, {}),
    "strided by channels": (STRIDED, "channels", 3, {}),
    "cropped": (CROPPED, "contraction", 3, {}),
    "cropped, one tap": (CROPPED, "channels", 1, {}),
    "larger than the image": (LARGE, "contraction", 4, {}),
    "larger than the image, groups of taps": (LARGE, "channels", 3, {}),
    "taps that see nothing": (OUTSIDE, "contraction", 2, {}),
    "taps that see nothing, one by one": (OUTSIDE, "channels", 1, {"filter_bytes": 256}),
}


def deep(shard, T, settings):
    return config_of("deep", shard=shard, taps=T, **settings)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_exact(name, dtype):
    problem, shard, T, settings = SHAPES[name]
    check_exact(problem.replace(dtype=dtype), config=deep(shard, T, settings))


@pytest.mark.cover
@pytest.mark.parametrize("shard", DEEP_SHARDS)
@pytest.mark.parametrize("why", EDGE)
def test_every_edge_is_exact_or_refused(why, shard):
    found, reason = planned(EDGE[why], "deep", (("shard", shard),))
    if found is None:
        assert re.search("deep (takes|keeps)", reason)
    else:
        assert found.shard == shard
        check_exact(EDGE[why], config=config_of("deep", shard=shard))


@pytest.mark.parametrize("name", SHAPES)
def test_cores_take_the_same_products(name):
    problem, shard, T, settings = SHAPES[name]
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (problem.input_shape, problem.filter_shape))
    one, two = (run(x, w, problem, lnc, config=deep(shard, T, settings)) for lnc in (1, 2))
    assert same_bits(one, two)


@pytest.mark.parametrize("asked", EPILOGUES)
@pytest.mark.parametrize(
    "name",
    ["halves, two taps", "channels", "channels, all taps", "two blocks of channels", "one pixel", "strided, all taps"],
)
def test_epilogue(name, asked):
    problem, shard, T, settings = SHAPES[name]
    check_epilogue(problem, asked, deep(shard, T, settings))


@pytest.mark.parametrize("shard", DEEP_SHARDS)
def test_layouts(shard):
    x, w = integers(np.random.default_rng(3), FEW)
    config = config_of("deep", shard=shard)
    plain = run(x, w, FEW, 2, config=config)
    turned = run(
        np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
        np.ascontiguousarray(w.transpose(2, 3, 1, 0)),
        FEW,
        2,
        in_perm=(0, 3, 1, 2),
        kern_perm=(3, 2, 0, 1),
        out_perm=(0, 2, 3, 1),
        config=config,
    )
    np.testing.assert_array_equal(turned, plain.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("halves", 1), ("halves", 8), ("channels", 24), ("channels", 4), ("no gaps", 32), ("a tap a piece", 6),
        ("two blocks of channels", 40), ("a block a core", 200), ("taps that see nothing, one by one", 3),
        ("cropped, one tap", 5), ("banks are parts of images", 2),
    ],
)  # fmt: skip
def test_packed_filters(name, each):
    problem, shard, T, settings = SHAPES[name]
    x, w = integers(np.random.default_rng(4), problem)
    packed = np.ascontiguousarray(w.reshape(problem.K // each, each, *w.shape[1:]).transpose(0, 2, 3, 4, 1))
    expected = conv_ref(x, w, problem).astype(x.dtype)
    for lnc in (1, 2):
        found = run(x, packed, problem, lnc, config=deep(shard, T, settings))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_precision(precision):
    check_exact(FEW.replace(dtype="fp32"), config=config_of("deep", taps=3), precision=precision)


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("shard", DEEP_SHARDS)
def test_nonfinite_stay_in_their_windows(shard, T):
    problem = FEW.replace(dtype="fp32", C=40, padding=((0, 0), (0, 0)))
    x, w = integers(np.random.default_rng(6), problem)
    x[0, 33, 5, 1] = np.inf
    w[w == 0] = 1
    found = run(x, w, problem, 2, config=config_of("deep", shard=shard, taps=T), strict_nonfinite=True)
    seen = np.zeros((5, 4), bool)
    seen[3:5, 0:2] = True
    np.testing.assert_array_equal(~np.isfinite(found[0]), np.broadcast_to(seen, found[0].shape))


@pytest.mark.simulator_only
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_it_needs_no_more_than_it_says(name, lnc):
    problem, shard, T, settings = SHAPES[name]
    config = deep(shard, T, settings)
    residual = nkiconv.spec(problem.output_shape, "fp32")
    longest = {"residual": residual, "residual_position": "post_activation", "activation": "tanh", "beta": 0.5}
    for more, extras in (({}, extras_of()), (longest, extras_of(residual=True, scaled=True))):
        found, _ = planned(problem, "deep", config[1:], lnc)
        assert (found.shard, found.T) == (shard, T)
        execution = trace(problem, lnc, config=config, **more)
        geometry = geometry_of(problem)
        most = max(len(program.instructions) for program in execution.programs)
        assert most <= tiling.count_instructions(geometry, found, extras, lnc)
        assert execution.sbuf_peak_bytes <= tiling.sbuf_bytes(geometry, found, extras)


@pytest.mark.parametrize("name", SHAPES)
def test_jobs_are_the_whole_contraction_or_all_channels(name):
    problem, shard, T, settings = SHAPES[name]
    found, _ = planned(problem, "deep", deep(shard, T, settings)[1:])
    inputs = [c for job in found.jobs for first, count in job.chunks for c in range(first, first + count)]
    outputs = [k for job in found.jobs for first, count in job.blocks for k in range(first, first + count)]
    twice_inputs, twice_outputs = (1, 2) if shard == "contraction" else (2, 1)
    assert inputs == list(range(problem.C)) * twice_inputs
    assert outputs == list(range(problem.K)) * twice_outputs


@pytest.mark.parametrize(
    ("first", "count", "P", "expected"),
    [
        (0, 12, 4, [(0, 3, 0, 4, 0)]),
        (0, 6, 4, [(0, 1, 0, 4, 0), (1, 1, 0, 2, 4)]),
        (6, 6, 4, [(1, 1, 2, 2, 6), (2, 1, 0, 4, 8)]),
        (3, 7, 4, [(0, 1, 3, 1, 3), (1, 1, 0, 4, 4), (2, 1, 0, 2, 8)]),
        (1, 2, 4, [(0, 1, 1, 2, 1)]),
        (2, 3, 1, [(2, 3, 0, 1, 2)]),
    ],
)
def test_rows_lie_in_boxes(first, count, P, expected):
    assert [(part.n, part.nn, part.p, part.pn, part.first) for part in parts_of(first, count, P)] == expected


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (FEW, {"pool": (7, 1)}, r"pool=\(7, 1\): deep takes \(1, 1\)"),
        (FEW, {"strict_nonfinite": True}, "strict_nonfinite=True: deep multiplies filters by the zeros around x"),
        (FEW.replace(groups=2), {}, "feature_group_count=2: deep takes 1"),
        (FEW.replace(lhs_dilation=(1, 2)), {}, r"lhs_dilation=\(1, 2\): deep takes \(1, 1\)"),
        (FEW.replace(H=70, W=70), {}, "K=24, P=70, Q=70, .*deep keeps all sums in 4 banks"),
        (FEW.replace(K=1100), {}, "K=1100, .*deep keeps all sums in 4 banks"),
        (FEW.replace(C=1, K=1), {}, "C=1, K=1, .*it shares two input channels at least, or output channels"),
        (FEW.replace(padding=((30, -20), (1, 1)), R=1), {}, "for outputs that see x"),
    ],
)
def test_what_is_not_deep(problem, changes, message):
    assert planned(FEW, "deep")[1] == ""
    found, reason = planned(problem, "deep", **changes)
    assert found is None
    assert re.search(message, reason)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shard": "rows"}, r"config shard=rows: accepted are \('contraction', 'channels'\)"),
        ({"taps": 5}, "config taps=5: must be an int from 1 to 4"),
        ({"taps": 4}, "'taps', 4.* takes columns of taps together where outputs have room"),
        ({"buffers": 1}, "config buffers=1: must be an int from 2"),
        ({"filter_bytes": 100}, "config filter_bytes=100: must be an int from 256"),
        ({"warmup": 257}, "config warmup=257: must be an int from 0 to 256"),
        ({"rows": 1}, "deep has no setting rows"),
    ],
)
def test_settings_that_are_refused(settings, message):
    found, reason = planned(FEW, "deep", tuple(settings.items()))
    assert found is None
    assert re.search(message, reason)


def test_packed_filters_leave_no_gaps():
    each = config_of("deep", shard="contraction", taps=2)
    x, w = integers(np.random.default_rng(4), FEW)
    packed = np.ascontiguousarray(w.reshape(1, 24, *w.shape[1:]).transpose(0, 2, 3, 4, 1))
    with pytest.raises(ValueError, match="takes columns of taps together where outputs have room"):
        run(x, packed, FEW, 2, config=each)


def square(C, H, K, R, **more):
    return ConvProblem(N=1, C=C, H=H, W=H, K=K, R=R, S=R, padding=((R // 2, R // 2), (R // 2, R // 2)), **more)


PRICED = {
    "3 x 3": square(2048, 7, 64, 3),
    "3 x 3 of few": square(2048, 7, 8, 3),
    "3 x 3 of many": square(2048, 7, 128, 3),
    "two blocks a core": square(2048, 7, 512, 3),
    "1 x 1": square(8192, 7, 64, 1),
    "7 x 7": square(2048, 7, 64, 7),
    "7 x 7 on little": square(2048, 4, 16, 7),
    "5 x 5 on a pixel": square(1024, 1, 128, 5),
    "images": square(2048, 7, 64, 3).replace(N=4),
    "strided": square(4096, 14, 32, 3, stride=(2, 2)),
    "rows": ConvProblem(N=1, C=4096, H=4, W=32, K=16, R=3, S=3, padding=SAME),
    "fp32": square(1024, 7, 32, 3, dtype="fp32"),
}


@pytest.mark.simulator_only
@pytest.mark.parametrize("shard", DEEP_SHARDS)
@pytest.mark.parametrize("name", PRICED)
def test_costs_are_near_the_model(name, shard):
    problem, found = PRICED[name], shape_of(PRICED[name])
    config = ALGORITHM.settle(found, (("shard", shard),))
    modelled_us = in_time(trace(problem, 2, config=config_of("deep", **dict(config))), Rates()).us
    cost_ns = ALGORITHM.plan_ns(found, found.geometry, ALGORITHM.plan(found, config))
    assert cost_ns / 1e3 == pytest.approx(modelled_us, rel=0.1)


def shape_of(problem, **constants):
    return Shape(geometry_of(problem), extras_of(), 2, Rates(constants))


def test_costs_follow_the_constants():
    [slow] = ALGORITHM.guesses(shape_of(PRICED["7 x 7"], **{"dma.engine_bytes_per_ns": 9.0}))
    assert slow.ns > 1.5 * ALGORITHM.guesses(shape_of(PRICED["7 x 7"]))[0].ns


@pytest.mark.parametrize("settings", [{}, {"shard": "channels"}, {"taps": 1}, {"warmup": 0}, {"rows": 3}], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_settled_is_whole_and_stays(name, settings):
    shape, given = shape_of(SHAPES[name][0]), tuple(settings.items())
    found = ALGORITHM.settle(shape, given)
    assert ALGORITHM.settle(shape, found) == found
    assert dict(found).items() >= settings.items()
    assert found == given or tuple(name for name, _ in found) == DEEP_SETTINGS


@pytest.mark.parametrize("why", EDGE)
def test_the_bare_kernel_runs_what_the_host_finds_settings_for(why):
    config = ALGORITHM.settle(shape_of(EDGE[why]), None)
    assert (planned(EDGE[why], "deep", config)[0] is None) == (planned(EDGE[why], "deep")[0] is None)


@pytest.mark.simulator_only
@pytest.mark.parametrize(
    ("problem", "shard", "gain"),
    [
        (square(2048, 4, 16, 7), "contraction", 5),
        (square(2048, 7, 64, 7), "channels", 4),
        (square(2048, 7, 64, 3), "channels", 2),
        (square(2048, 7, 128, 3), "channels", 1.3),
    ],
)
def test_sharing_the_contraction_beats_loading_all_filters_twice(problem, shard, gain):
    chosen, config = chosen_for(problem)
    assert (chosen, dict(config)["shard"]) == ("deep", shard)
    both = config_of("deep", **dict(config)), config_of("taps")
    ours, taps = (in_time(trace(problem, 2, config=one), Rates()).us for one in both)
    assert ours * gain <= taps


@pytest.mark.parametrize("name", ["vae_128", "c256_224", "rn50_c5", "rn50_1x1", "vit_patch16", "vae_out_rgb"])
def test_layers_with_more_outputs_are_not_deep(name):
    assert chosen_for(cases.get(name).problem)[0] != "deep"


def chosen_for(problem):
    operation = OPERATIONS["conv2d"]
    return operation.choice(operation.shape(Request(problem=problem), Rates()))
