"""Every algorithm by its settings, at every edge of the geometry and in every layout: exact on integers, within the
bound elsewhere, the same bits on one core and two."""

import itertools

import numpy as np
import pytest
from conv_calls import (
    EDGE,
    EPILOGUES,
    FLOATS,
    bounded,
    canonical_of,
    check_epilogue,
    check_exact,
    config_of,
    in_layout,
    integers,
    normals,
    planned,
    run,
    trace,
)
from conv_rows import BLOCKS, EXACT, GEMM, K_PACKING, LINE, M_TILES, PIXELS, RGB, SAME, depthwise
from draws import cores
from tolerances import assert_exact, assert_within_limit

import nkiconv
from nkiconv import cases
from nkiconv._nki import nl
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.schedules.conv_algorithms import ALGORITHMS

#: DMA transposes 16 bits alone.
RUNS = [
    (name, dtype)
    for name, (_, config) in EXACT.items()
    for dtype in (FLOATS[:2] if dict(config).get("moved") else FLOATS)
]


#: With products of fewer bits, which fp16 pairs make of implicit_gemm alone.
PRODUCTS = RUNS + [
    (name, f"fp32 as {precision}")
    for name, (problem, config) in EXACT.items()
    for precision in ("bf16", "tf32", "fp16x3")
    if not dict(config).get("moved") and (precision != "fp16x3" or config[0][1] == GEMM)
    # no cast crosses partitions
    and not (precision == "bf16" and config[0][1] == PIXELS and {"fold", "shifts", "rest"} & set(dict(config)))
]  # fmt: skip
KEPT = [
    "pixels: many-bf16", "implicit_gemm: M tiles, K tile by K tile-fp32", "Toeplitz blocks: odd channels-fp32",
    "K packing: depthwise, dilation-bf16", "implicit_gemm: M tiles, filters transposed by DMA-bf16",
]  # fmt: skip


@pytest.mark.cover(60, keep=KEPT)
@pytest.mark.parametrize(("name", "dtype"), PRODUCTS)
def test_every_setting(name, dtype):
    problem, config = EXACT[name]
    dtype, _, precision = dtype.partition(" as ")
    problem = problem.replace(dtype=dtype)
    if precision == "fp16x3":
        found, reason = planned(problem, GEMM, config[1:] or None, precision=precision)
        if found is None:
            assert "fold=" in reason or "loop=" in reason or "order=" in reason
            return
    check_exact(problem, config=config, precision=precision or None)


def check_normals(problem, config=None, **more):
    """The same bits on one core and two, within the bound."""
    x, w = normals(np.random.default_rng(4), problem)
    one, two = (run(x, w, problem, lnc, config=config, **more) for lnc in (1, 2))
    assert one.tobytes() == two.tobytes()
    _, *expected = bounded(canonical_of(x, problem), w, problem, problem.out_dtype)
    assert_within_limit(one, *(in_layout(each, problem) for each in expected))


NAMED = {case.name: case.problem for case in cases.load("conv2d") if case.problem.dtype in FLOATS}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_named_cases(name):
    check_exact(NAMED[name])


@pytest.mark.cover(14)
@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_normals(name, dtype):
    problem, config = EXACT[name]
    check_normals(problem.replace(dtype=dtype), config)


@pytest.mark.cover(5)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("why", EDGE)
def test_normals_at_the_edges(why, dtype):
    check_normals(EDGE[why].replace(dtype=dtype))


#: How an edge is run: the kernel's own choice, an algorithm, a precision; in NHWC where it says so.
HOW = {
    "bare": {}, "bare NHWC": {"layout": "NHWC"}, GEMM: {"config": config_of(GEMM)},
    "implicit_gemm NHWC": {"config": config_of(GEMM), "layout": "NHWC"}, BLOCKS: {"config": config_of(BLOCKS)},
    "M packing": {"config": config_of(BLOCKS, lanes=1)}, PIXELS: {"config": config_of(PIXELS), "layout": "NHWC"},
    K_PACKING: {"config": config_of(K_PACKING)}, "fp16x3": {"precision": "fp16x3"},
}  # fmt: skip
EDGES = [
    (why, how, dtype)
    for how, why in itertools.product(HOW, EDGE)
    for dtype in ([*FLOATS, "fp8_e4m3", "fp8_e5m2"] if "bare" in how else FLOATS[2:] if "fp16x3" in how else FLOATS)
    if how != PIXELS or EDGE[why].H * EDGE[why].W < 100_000
]


@pytest.mark.cover(44, keep=[
    "padding_far_outside-activation_stationary-bf16", "dilation_beyond_a_load-M packing-bf16",
    "filter_of_several_loads-bare-bf16", "filter_of_more_loads_than_SBUF_holds-implicit_gemm-bf16",
])  # fmt: skip
@pytest.mark.parametrize(("why", "how", "dtype"), EDGES)
def test_every_edge(why, how, dtype):
    """Exact, or refused by the algorithm's name."""
    given = {"layout": "NCHW"} | HOW[how]
    problem = EDGE[why].replace(dtype=dtype, layout=given.pop("layout"))
    if "config" in given:
        (_, algorithm), *settings = given["config"]
        found, reason = planned(problem, algorithm, tuple(settings) or None)
        if found is None:
            assert algorithm in reason
            return
    check_exact(problem, 3, **given)


ASKED = {**EPILOGUES, "all": {"bias": True, "residual": True, "beta": -2.0, "activation": "relu"}}


@pytest.mark.cover(28)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_epilogues(name, dtype, asked):
    problem, config = EXACT[name]
    check_epilogue(problem, ASKED[asked], config, dtype)


def test_biases_of_more_tiles_than_partitions():
    """Of 130 on each of two cores, as each has two groups: rows of biases are loaded 128 at a time."""
    problem = ConvProblem(N=1, C=32 * 520, K=2 * 520, H=3, W=3, R=2, S=2, groups=520)
    check_epilogue(problem, "bias", config_of(BLOCKS), "bf16")


PROBE = ConvProblem(
    N=2, C=6, H=5, W=7, K=4, R=2, S=3, groups=2, stride=(1, 2), padding=((1, 0), (0, 2)), rhs_dilation=(2, 1),
    dtype="fp32",
)  # fmt: skip
PERMS = list(itertools.permutations(range(4)))


#: Problems of each algorithm that reads rows of x, in layouts that it reads and writes by copies, and of those that
#: read and write channels side by side themselves.
LAID_OUT = {
    "few inputs": ConvProblem(N=3, C=3, H=31, W=30, K=20, R=7, S=7, stride=(2, 2), padding=((3, 2), (3, 2))),
    "few outputs": ConvProblem(N=1, C=140, H=23, W=18, K=3, R=3, S=3, padding=SAME),
    "depthwise": depthwise(130, N=2, H=12, W=14, R=3, S=3, padding=SAME),
    "small groups": ConvProblem(N=2, C=64, H=9, W=8, K=96, R=3, S=3, groups=16, padding=SAME),
    "windows": ConvProblem(N=2, C=3, H=24, W=32, K=140, R=8, S=8, stride=(8, 8)),
    "many pixels": ConvProblem(N=1, C=18, H=40, W=150, K=17, R=3, S=2, padding=((1, 1), (0, 1))),
    "more than 128 tiles of pixels": ConvProblem(N=1, C=3, H=131, W=129, K=70, R=1, S=1),
    "one row": ConvProblem(N=2, C=5, W=300, K=33, S=5, padding=((0, 0), (2, 2))),
    "one column": ConvProblem(N=1, C=20, H=300, K=6, R=5, padding=((2, 2), (0, 0)), W=1, S=1),
    "M tiles": M_TILES,
    "line": LINE,
    "points": ConvProblem(N=3, C=20, H=28, W=28, K=300, R=1, S=1),
    "strides, dilation, groups": PROBE,
}
#: in_perm, kern_perm and out_perm: NHWC, with filters as Keras and as torch's channels_last has them; one side alone;
#: rows and columns swapped; every permutation of each, no two the same.
LAYOUTS = {
    "NHWC": ((0, 3, 1, 2), None, (0, 2, 3, 1)),
    "NHWC, RSCK": ((0, 3, 1, 2), (3, 2, 0, 1), (0, 2, 3, 1)),
    "NHWC, KRSC": ((0, 3, 1, 2), (0, 3, 1, 2), (0, 2, 3, 1)),
    "x alone": ((0, 3, 1, 2), None, None),
    "y alone": (None, None, (0, 2, 3, 1)),
    "y, swapped": (None, None, (0, 3, 2, 1)),
    "swapped": ((0, 3, 2, 1), None, (0, 3, 2, 1)),
    "reversed": ((3, 2, 1, 0), None, (2, 3, 0, 1)),
    **{str(one): (PERMS[one], PERMS[(one + 7) % 24], PERMS[(one + 13) % 24]) for one in range(24)},
}
#: Algorithms of each problem.
TAKEN = [
    (name, algorithm)
    for name, problem in LAID_OUT.items()
    for algorithm in ALGORITHMS
    if planned(problem.replace(layout="NHWC"), algorithm)[0] is not None
]
LAID = [
    (*taken, layout, dtype)
    for taken, layout, dtype in itertools.product(TAKEN, LAYOUTS, ("bf16", "fp32", "fp8_e5m2"))
    if taken[1] != PIXELS or (LAYOUTS[layout][2] == (0, 2, 3, 1) and dtype != "fp8_e5m2")
    if taken != ("depthwise", PIXELS) or LAYOUTS[layout][0] == (0, 3, 1, 2)  # whose y has the layout of x
]


@pytest.mark.cover(34, keep=[f"windows-{PIXELS}-{one}-bf16" for one in ("NHWC, RSCK", "NHWC, KRSC")])
@pytest.mark.parametrize(("name", "algorithm", "layout", "dtype"), LAID)
def test_layouts(name, algorithm, layout, dtype):
    perms = dict(zip(("in_perm", "kern_perm", "out_perm"), LAYOUTS[layout], strict=True))
    check_exact(LAID_OUT[name].replace(dtype=dtype), config=config_of(algorithm), **perms)


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("name", "algorithm"), TAKEN)
def test_residuals_are_copied_too(name, algorithm, dtype):
    check_epilogue(LAID_OUT[name].replace(layout="NHWC"), ASKED["all"], config_of(algorithm), dtype)


#: As `pack_filter` packs, and whole M tiles of few outputs; also of taps of a row that copies of the channels do not
#: share evenly. Of implicit_gemm and activation_stationary; fp16 pairs, products of fp8.
PACKED = {
    **{why: (one, config) for why, (one, config) in EXACT.items()
       if why.startswith("implicit_gemm") and one.layout != "NHWC" and one.groups == 1},
    "pixels": EXACT["pixels: many"],
    "pixels, images shared": EXACT["pixels: many, images shared"],
    "pixels, all filters": (EXACT["pixels: many"][0], config_of(PIXELS)),
    **{f"fp16x3, {C} x {R} x {S}, {'_'.join(map(str, more))}": (
        ConvProblem(N=2, C=C, K=K, H=9, W=13, R=R, S=S), config_of(GEMM, **dict([more] if more else [])))
       for C, K, R, S in ((140, 150, 3, 3), (40, 16, 1, 3), (40, 16, 3, 5))
       for more in ((), ("x_bytes", 4096), ("shard", "channels"), ("fold", "inputs"))},
    **{f"fp8_pairs, {C}": (
        ConvProblem(N=3, C=C, K=256, H=6, W=7, R=3, S=3, padding=SAME), config_of(GEMM, product="fp8_pairs"))
       for C in (128, 129, 150, 256)},
}  # fmt: skip


@pytest.mark.cover(16)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", PACKED)
def test_packed_filters(name, dtype):
    problem, config = PACKED[name]
    more = {"precision": "fp16x3"} if name.startswith("fp16x3") else {}
    problem = problem.replace(dtype="fp32" if more else "fp8_e4m3" if name.startswith("fp8") else dtype)
    config = tuple(pair for pair in config if pair[0] != "moved" and pair != ("fold", "outputs"))
    x, w = integers(np.random.default_rng(6), problem)
    packed, truth = nkiconv.pack_filter(w), in_layout(conv_ref(canonical_of(x, problem), w, problem), problem)
    assert (packed.dtype, packed.ndim) == (w.dtype, 5)
    if ("fold", "both") in config and 128 % packed.shape[-1]:
        config = tuple(("fold", "inputs") if pair == ("fold", "both") else pair for pair in config)
    for lnc in cores(name):
        assert_exact(run(x, packed, problem, lnc, config=config, **more), truth, problem.out_dtype)


@pytest.mark.parametrize("each", [1, 2, 4])
def test_packed_filters_of_few_outputs(each):
    problem = RGB.replace(K=4)
    x, w = integers(np.random.default_rng(4), problem)
    packed = np.ascontiguousarray(w.reshape(4 // each, each, *w.shape[1:]).transpose(0, 2, 3, 4, 1))
    assert_exact(run(x, packed, problem, 2, config=config_of(BLOCKS, lanes=1)), conv_ref(x, w, problem), "bf16")


#: Problems whose rows of y have parts where X has few bytes, and K packing of them.
LONG_ROWS = {
    "stride": (ConvProblem(N=1, C=1, W=9000, K=5, S=10, stride=(1, 5)), (1, 10, 1)),
    "dilation": (ConvProblem(N=2, C=2, W=6100, K=3, S=5, padding=((0, 0), (7, 9)), rhs_dilation=(1, 3)), (1, 3, 1)),
    "one shift": (ConvProblem(N=1, C=3, W=6100, K=4, S=3, padding=((0, 0), (1, 1))), (1, 1, 1)),
    "NHWC": (ConvProblem(N=1, C=2, H=5, W=3100, K=3, R=3, S=3, padding=((1, 1), (1, 0)), layout="NHWC"), (2, 2, 2)),
}  # fmt: skip


@pytest.mark.cover(3)
@pytest.mark.parametrize("why", LONG_ROWS)
def test_parts_of_long_rows(why, monkeypatch):
    monkeypatch.setattr("nkiconv.schedules.stacked.X_BYTES", 12_000)
    monkeypatch.setattr("nkiconv.schedules.stacked.Y_BYTES", 32_000)
    problem, sizes = LONG_ROWS[why]
    config = config_of(K_PACKING, **dict(zip(("rows", "shifts", "outputs"), sizes, strict=True)), warmup=7)
    assert len(planned(problem, K_PACKING, config[1:])[0].stack.row_parts) == 2
    check_exact(problem, config=config)
    check_epilogue(problem, {"bias": True, "residual": True, "beta": 2.0}, config)
    check_normals(problem.replace(dtype="fp32"), config)


@pytest.mark.cover(2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_relu_keeps_nan(bias, strict):
    problem = ConvProblem(N=1, C=4, H=40, W=40, K=5, R=3, S=3, dtype="fp32")
    x, w = integers(np.random.default_rng(7), problem)
    x[0, 2, 30, 7] = np.nan
    more = {"activation": "relu", "strict_nonfinite": strict, "config": config_of(GEMM, fold="none")}
    if bias:
        more["bias"] = np.arange(-2, 3).astype(np.float32)
    expected = np.maximum(conv_ref(x, w, problem) + more.get("bias", np.zeros(5))[:, None, None], 0)
    assert np.isnan(expected).any()
    for lnc in cores():
        np.testing.assert_array_equal(run(x, w, problem, lnc, **more), expected)


@pytest.mark.parametrize("residual", [False, True])
def test_bias_by_ones_keeps_all_bits(residual):
    """The Tensor Engine adds a bias of fp32 to few products; Vector adds the residual alone."""
    problem = ConvProblem(N=1, C=40, H=9, W=14, K=200, S=1, layout="NHWC")
    (x, w), rng = integers(np.random.default_rng(7), problem), np.random.default_rng(8)
    more = {"bias": rng.standard_normal(200).astype(np.float32), "out_dtype": nl.float32, "config": config_of(PIXELS)}
    if residual:
        more["residual"] = np.zeros(problem.output_shape, np.float32)
    for lnc in cores():
        y = run(np.zeros_like(x), w, problem, lnc, **more)
        np.testing.assert_array_equal(y, np.broadcast_to(more["bias"], y.shape))
    ones = [one for one in trace(problem, **more).instructions if one.op == "nc_matmul" and one.reads[0].shape[0] == 3]
    assert len(ones) > 0


PADDING = ((1, 2), (0, 1))
PROBLEMS = {
    "dense": ConvProblem(N=2, C=6, H=9, W=8, K=10, R=3, S=2, padding=PADDING, dtype="fp32"),
    "strided groups": ConvProblem(N=2, C=6, H=9, W=8, K=9, groups=3, R=3, S=2, padding=PADDING, stride=(2, 1),
     dtype="fp32"),
    "dilated depthwise": ConvProblem(N=2, C=6, H=9, W=8, K=6, groups=6, R=3, S=2, padding=PADDING, rhs_dilation=(1, 2),
     dtype="bf16"),
    "gaps, several tiles": ConvProblem(N=1, C=260, H=5, W=8, K=140, R=2, S=2, padding=((1, 0), (0, 1)),
     lhs_dilation=(2, 1), dtype="bf16"),
    "few outputs": ConvProblem(N=1, C=40, H=9, W=12, K=3, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32"),
    "long rows": ConvProblem(N=1, C=3, H=20, W=60, K=8, R=7, S=7, padding=((3, 3), (3, 3)), stride=(2, 2)),
    "small groups": ConvProblem(N=2, C=64, H=9, W=8, K=64, groups=16, R=3, S=3, padding=((1, 1), (1, 1))),
}  # fmt: skip
VALUES = [np.nan, np.inf, -np.inf]


def with_bad(problem, value, where):
    x, w = integers(np.random.default_rng(1), problem)
    w[w == 0] = 1
    (x if where == "x" else w)[(0, 3 % problem.C, 4, 5) if where == "x" else (problem.K // 2, 0, 1, 1)] = value
    return x, w


@pytest.mark.cover(7)
@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_bad_inputs_follow_the_definition(problem, value):
    x, w = with_bad(problem, value, "x")
    truth = conv_ref(x, w, problem)
    assert 0 < np.count_nonzero(~np.isfinite(truth)) < truth.size
    for lnc in cores():
        assert_exact(run(x, w, problem, lnc, strict_nonfinite=True), truth, problem.dtype)


@pytest.mark.cover(7)
@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_bad_taps_reach_the_outputs_whose_window_has_an_input_there(problem, value):
    """Padding is no input: a tap that meets nothing else is not multiplied."""
    x, w = with_bad(problem, value, "w")
    only = np.zeros(problem.filter_shape)
    only[problem.K // 2, 0, 1, 1] = 1
    expected = conv_ref(np.ones(problem.input_shape), only, problem) != 0
    assert 0 < np.count_nonzero(expected) < expected.size
    for lnc in cores():
        y = run(x, w, problem, lnc, strict_nonfinite=True).astype(np.float64)
        np.testing.assert_array_equal(~np.isfinite(y), expected)
        w_finite = np.where(np.isfinite(w.astype(np.float64)), w, 0).astype(w.dtype)
        rest = conv_ref(x, w_finite, problem)
        np.testing.assert_array_equal(y[~expected], rest.astype(y.dtype)[~expected])


@pytest.mark.cover(4)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_without_it_nothing_is_lost(problem):
    """Bad inputs may spread, but every output that the definition spoils is spoilt."""
    x, w = with_bad(problem, np.nan, "x")
    spoilt = np.isnan(conv_ref(x, w, problem))
    y = run(x, w, problem, 2).astype(np.float64)
    assert np.isnan(y[spoilt]).all()


@pytest.mark.simulator_only
@pytest.mark.parametrize(("groups", "K"), [(1, 1), (32, 128)])
def test_weight_stationary_reads_pixels(groups, K):
    """DMA transposes x of NHWC on its way to SBUF: no core waits for a copy of it in HBM."""
    problem = ConvProblem(N=2, C=128, H=9, W=11, K=K, R=3, S=3, padding=SAME, groups=groups, layout="NHWC")
    ops = [one.op for one in trace(problem, config=config_of(BLOCKS)).programs[0].instructions]
    assert "dma_transpose" in ops
    assert ops.count("core_barrier") == 0


@pytest.mark.parametrize(("taps", "pixels", "K", "images"), [(32, 7, 768, 3), (4, 7, 8, 2), (32, 14, 768, 1)])
def test_k_packing_fills_matmuls_with_images(taps, pixels, K, images):
    """A matmul takes as long for 49 columns as for 128; two output tiles of few matmuls overlap their loads."""
    size, square = taps * pixels, (taps, taps)
    problem = ConvProblem(N=8, C=3, H=size, W=size, K=K, R=taps, S=taps, stride=square)
    assert planned(problem, K_PACKING)[0].stack.images == images


def test_bias_by_a_product_of_16_bits_beside_tf32():
    """Outputs without a tap of x get their bias by the Tensor Engine, as three parts of bf16: these stay bf16."""
    rng = np.random.default_rng(1)
    x, w, bias = (rng.integers(-3, 4, shape).astype("float32") for shape in ((2, 1, 5, 9), (16, 9, 1, 1), 16))
    truth = np.zeros((2, 1, 13, 16)) + bias
    truth[:, :, ::3] += x @ w[:, :, 0, 0].T
    given = {"lhs_dilation": (1, 3), "layout": "NHWC", "precision": "tf32", "bias": bias}
    for lnc in (1, 2):
        y = nkiconv.conv2d(x, w, algorithm="activation_stationary", lnc=lnc, **given)
        np.testing.assert_array_equal(y, truth)
