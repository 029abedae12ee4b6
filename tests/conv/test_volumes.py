"""Three axes: convolutions of volumes by every algorithm and its settings, whose planes have taps, stride, dilation and
padding as rows and columns do."""

import contextlib
import itertools

import numpy as np
import pytest
from conv_calls import EPILOGUES, check_epilogue, check_exact, check_refused, config_of, planned, volume
from conv_rows import BLOCKS, GEMM, K_PACKING, PIXELS, k_packed, m_packed, tiles
from tolerances import assert_exact, integer_inputs

import nkiconv
from nkiconv import UnsupportedError
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.rules import VOLUME_FILTER_LAYOUTS
from nkiconv.schedules import block_schedule, volume_rows
from nkiconv.simulator import KernelAssertionError

#: Shapes as `volume` takes them.
PLAIN = (6, 3, 1, 1, 1, 1, 1)
VOLUMES = {
    "same": (5, 7, 1, PLAIN, (9, 3, 1, 1, 1, 1, 1), (8, 3, 1, 1, 1, 1, 1)),
    "causal": (20, 24, 1, (7, 3, 1, 1, 1, 2, 0), (6, 3, 1, 1, 1, 1, 1), (8, 3, 1, 1, 1, 1, 1)),
    "planes only": (130, 9, 1, (6, 3, 1, 1, 1, 1, 1), (5, 1, 1, 1, 1, 0, 0), (4, 1, 1, 1, 1, 0, 0)),
    "patches": (3, 16, 1, (4, 2, 2, 1, 1, 0, 0), (8, 4, 4, 1, 1, 0, 0), (8, 4, 4, 1, 1, 0, 0)),
    "stem": (3, 8, 1, (6, 3, 1, 1, 1, 1, 1), (12, 7, 2, 1, 1, 3, 3), (11, 7, 2, 1, 1, 3, 3)),
    "wide": (4, 5, 1, PLAIN, (3, 3, 1, 1, 1, 1, 1), (1030, 3, 1, 1, 1, 1, 1)),
    "dilated": (6, 5, 1, (9, 3, 2, 2, 1, 3, 1), (7, 2, 1, 3, 1, 2, 1), (9, 3, 2, 1, 1, 0, 2)),
    "between zeros": (5, 6, 1, (4, 4, 1, 1, 2, 2, 2), (4, 3, 1, 1, 2, 1, 1), (5, 4, 1, 1, 2, 2, 2)),
    "cropped": (4, 3, 1, (8, 3, 1, 1, 1, -2, 1), (7, 3, 1, 1, 1, 1, -2), (9, 3, 1, 1, 1, -1, -1)),
    "far outside": (2, 3, 1, (2, 3, 2, 1, 1, 6, 5), (3, 2, 1, 1, 1, 0, 0), (4, 2, 1, 1, 1, 1, 0)),
    "groups": (12, 8, 4, PLAIN, (5, 2, 1, 1, 1, 1, 0), (6, 3, 1, 1, 1, 1, 1)),
    "depthwise": (7, 7, 7, PLAIN, (5, 3, 1, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1, 1)),
    "several chunks": (257, 130, 1, (3, 2, 1, 1, 1, 1, 0), (4, 2, 1, 1, 1, 0, 1), (5, 2, 1, 1, 1, 1, 0)),
}

#: The algorithms, and which of the volumes they take.
TAKEN = {
    GEMM: set(VOLUMES),
    K_PACKING: set(VOLUMES) - {"groups", "planes only", "between zeros", "several chunks"},
    BLOCKS: set(VOLUMES) - {"several chunks"},
    PIXELS: set(VOLUMES) - {"groups", "depthwise", "between zeros"},
    None: set(VOLUMES),
}


@pytest.mark.cover(18)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", VOLUMES)
@pytest.mark.parametrize("algorithm", TAKEN)
def test_every_algorithm(algorithm, name, last):
    refused = pytest.raises(KernelAssertionError, match=f"{algorithm} ")
    with contextlib.nullcontext() if name in TAKEN[algorithm] else refused:
        check_exact(volume(VOLUMES[name], N=3, last=last), algorithm=algorithm)


CUBE = (5, 32, 1, (5, 3, 1, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1, 1))
SQUARE, SIDES = (5, 3, 1, 1, 1, 1, 1), VOLUMES["same"][4:]
TALL = (25, 3, 1, (3, 3, 1, 1, 1, 0, 0), (24, 3, 1, 1, 1, 1, 1), (16, 3, 1, 1, 1, 1, 1))
#: Rows of planes that share a tile, few output channels, groups.
SMALL = (20, 30, 1, (11, 3, 1, 1, 1, 1, 1), (3, 3, 1, 1, 1, 1, 1), (4, 3, 1, 1, 1, 1, 1))
FEW, GROUPS = (130, 3, 1, *VOLUMES["causal"][3:]), (12, 24, 6, *VOLUMES["same"][3:])
#: Depthwise planes, each of which sees the plane of x of its own number.
STILL = (16, 16, 16, (5, 1, 1, 1, 1, 0, -1), SQUARE, SQUARE)
#: Axes of planes that one tap sees, whose outputs do not see the planes of their own numbers.
MOVING = {
    "stride": (5, 1, 2, 1, 1, 0, 0),
    "padded in front": (3, 1, 1, 1, 1, 1, 0),
    "padded behind": (3, 1, 1, 1, 1, 0, 1),
    "cropped in front": (5, 1, 1, 1, 1, -1, 0),
    "between zeros": (3, 1, 1, 1, 2, 0, 0),
}
#: (C, K, groups, planes, rows, columns) of windows of x as stationaries, planes of y in columns.
ROWS = {
    "riders": (96, 20, 1, (6, 3, 1, 1, 1, 0, 0), (9, 3, 1, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1, 1)),
    "riders of 33 and 32": (65, 20, 1, PLAIN, (6, 3, 1, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1, 1)),
    "riders of uneven parts beside whole tiles": (239, 9, 1, PLAIN, (6, 4, 1, 1, 1, 2, 1), (7, 3, 1, 1, 1, 1, 2)),
    "riders of 16": (112, 5, 1, PLAIN, (6, 4, 1, 1, 1, 2, 1), (9, 3, 1, 2, 1, 1, 2)),
    "a rest of 96": (224, 5, 1, PLAIN, (6, 4, 1, 1, 1, 2, 1), (7, 5, 1, 1, 1, 2, 2)),
    "pairs": (192, 140, 1, (4, 3, 1, 1, 1, 1, 1), (4, 3, 1, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1, 1)),
    "several banks": (40, 200, 1, (7, 3, 1, 1, 1, 2, 0), *SIDES),
    "strided": (96, 9, 1, (9, 3, 2, 1, 1, 1, 1), (11, 3, 2, 1, 1, 1, 1), (13, 3, 2, 1, 1, 2, 0)),
    "dilated": (96, 9, 1, (9, 3, 1, 2, 1, 2, 2), (11, 3, 1, 3, 1, 1, 1), (13, 3, 1, 2, 1, 2, 0)),
    "planes without x": VOLUMES["far outside"],
    "fewer blocks at the end": (5, 96, 1, (3, 3, 1, 1, 1, 1, 1), (4, 3, 1, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1, 1)),
    "one row": (5, 4, 1, PLAIN, (1, 1, 1, 1, 1, 0, 0), (300, 5, 1, 1, 1, 2, 2)),
}
#: Shape, algorithm, settings, and its dtype where it is not bf16.
SETTINGS = {
    **{f"folded {fold}": (VOLUMES["stem"], GEMM, {"fold": fold}) for fold in ("none", "inputs", "outputs", "both")},
    "loads of one row": (VOLUMES["several chunks"], GEMM, {"x_bytes": 256}),
    "filters by DMA": (VOLUMES["several chunks"], GEMM, {"moved": 2}),
    "K tile by K tile": (VOLUMES["several chunks"], GEMM, {"order": "chunks"}),
    "pixels, channels shared": (VOLUMES["causal"], PIXELS, {"shard": "channels"}),
    "pixels, two a partition": (VOLUMES["same"], PIXELS, {"side": 2}),
    "pixels, small planes": (SMALL, PIXELS, {}),
    "pixels, rows folded": (CUBE, PIXELS, {"fold": 3}),
    "pixels, rows folded, columns shifted": (CUBE, PIXELS, {"fold": 3, "shifts": 3}),
    "pixels, rows folded and loaded in parts": (TALL, PIXELS, {"fold": 2, "shifts": 2}),
    "pixels, a rest": (VOLUMES["several chunks"], PIXELS, {"rest": 1}),
    "pixels, a rest of folded rows": (TALL, PIXELS, {"fold": 4, "rest": 3}),
    "K packing": (CUBE, K_PACKING, k_packed(3, 1, 1, filters="straight")),
    "K packing, two shifts": (CUBE, K_PACKING, k_packed(4, 2, 2, filters="straight", blocks=1)),
    "K packing, filters apart": (CUBE, K_PACKING, k_packed(5, 1, 2, filters="apart", blocks=1)),
    "K packing, filters apart, all shifts": (CUBE, K_PACKING, k_packed(8, 3, 4, filters="apart")),
    "K packing, a rest": (CUBE, K_PACKING, k_packed(8, 3, 4, filters="apart", rest=1)),
    "K packing, planes as channels, a rest": (CUBE, K_PACKING, k_packed(2, 3, 2, rest=4, planes="channels")),
    "K packing, small planes": ((4, 8, 1, (9, *SMALL[3][1:]), (4, *SQUARE[1:]), SQUARE), K_PACKING, {}),
    "K packing, depthwise": ((6, 6, 6, *VOLUMES["causal"][3:]), K_PACKING, {}),
    "M packing": (FEW, BLOCKS, m_packed(1, 1)),
    "M packing, taps beside": (FEW, BLOCKS, m_packed(2, 3)),
    "M packing, rows beside": (FEW, BLOCKS, m_packed(4, 2)),
    "groups": ((160, 160, 160, *VOLUMES["causal"][3:]), BLOCKS, {}),
    "groups, blocks of two columns": (GROUPS, BLOCKS, tiles(32, 1, 2)),
    "groups, 64 rows": (VOLUMES["depthwise"], BLOCKS, tiles(64, 2, 1)),
    **{f"rows, {why}": (shape, PIXELS, {}) for why, shape in ROWS.items()},
    **{f"rows, {why}, copies": (ROWS[why], PIXELS, {"depth": 2, "copies": 3, "warmup": 0}) for why in ROWS},
    "rows, one plane, one copy": (ROWS["riders of 16"], PIXELS, {"depth": 1, "copies": 1}),
    **{f"depthwise planes of one tap, {why}": ((16, 16, 16, axis, SQUARE, SQUARE), None, {})
       for why, axis in MOVING.items()},
    "planes cropped behind": (STILL, BLOCKS, {}),
    "plain": (VOLUMES["causal"], None, {}),
    "2 planes beside, one channel": ((1, 3, *VOLUMES["same"][2:]), BLOCKS, {"depth": 2}),
    **{f"fp8, {why}": (VOLUMES[why], None, {}, "fp8_e4m3") for why in ("same", "several chunks")},
    "fp8, stride": ((256, 12, 1, MOVING["stride"], SQUARE, SQUARE), None, {}, "fp8_e4m3"),
    "fp8, one tap of planes": ((256, 12, 1, *STILL[3:]), GEMM, {"product": "fp8_pairs"}, "fp8_e4m3"),
    **{f"{depth} planes beside, {why}": ((VOLUMES[why][0], min(4, VOLUMES[why][1]), *VOLUMES[why][2:]), BLOCKS,
       {"depth": depth}) for depth in (2, 4)
       for why in ("same", "causal", "planes only", "dilated", "cropped", "far outside")},
}  # fmt: skip
#: dtype and precision, or epilogue, that is asked for.
ASKED = {
    "bf16": ("bf16", None), "fp16": ("fp16", None), "fp32": ("fp32", None),
    **{f"fp32 as {one}": ("fp32", one) for one in ("bf16", "tf32", "fp16x3")},
    **dict.fromkeys(EPILOGUES, ("bf16", None)),
}  # fmt: skip
CASES = [
    (*one, asked) for one, asked in itertools.product(itertools.product(SETTINGS, (False, True)), ASKED)
    if asked == "bf16" or len(SETTINGS[one[0]]) == 3
]  # fmt: skip


@pytest.mark.cover(
    40,
    keep=[
        "rows, several banks-False-residual",
        "rows, fewer blocks at the end, copies-False-residual",
        "plain-False-fp32 as fp16x3",
        "2 planes beside, one channel-True-bf16",
    ],
)
@pytest.mark.parametrize(("name", "last", "asked"), CASES)
def test_every_setting(name, last, asked):
    """Exact, or refused by the algorithm's name; bf16 is not, in one order of channels or the other."""
    shape, algorithm, settings, *own = SETTINGS[name]
    dtype, precision = ASKED[asked]
    problem, config = volume(shape, *(own or [dtype]), N=2, last=last), config_of(algorithm, **settings)
    if algorithm is not None:
        found, reason = planned(problem, algorithm, config[1:] or None, precision=precision, **EPILOGUES.get(asked, {}))
        if found is None:
            by_pixels = algorithm == PIXELS and not name.startswith("rows")
            assert algorithm in reason or next(iter(settings), algorithm) in reason
            assert asked != "bf16" or last != by_pixels
            return
    if asked in EPILOGUES:
        check_epilogue(problem, asked, config, dtype)
    else:
        check_exact(problem, config=config, precision=precision)


@pytest.mark.cover(4)
@pytest.mark.parametrize(("name", "shape"), [
    *[(why, ROWS[why]) for why in ("pairs", "strided", "dilated", "one row")],
    ("groups", GROUPS), ("depthwise", VOLUMES["depthwise"]),
])  # fmt: skip
def test_columns_and_loads_in_parts(name, shape, change):
    change(volume_rows, "PARTS_TRIED", (3,))
    change(volume_rows, "fewest_tiles", lambda geometry: min(20, geometry.rows.out))
    change(block_schedule, "GROUPS_X_BYTES", 256)
    check_exact(volume(shape), algorithm=PIXELS if name in ROWS else BLOCKS)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_residual_stays_at_its_pixel_of_its_image(bad):
    """In the 128 results, output channels of some planes, that are transposed with it."""
    problem = volume(ROWS["pairs"], N=2)
    rng = np.random.default_rng(6)
    x, w = integer_inputs(rng, problem.input_shape, "bf16"), integer_inputs(rng, problem.filter_shape, "bf16")
    residual = np.zeros(problem.output_shape, np.float32)
    plain, asked = conv_ref(x, w, problem), {"padding": problem.padding, "algorithm": PIXELS}
    residual[1, 7, 2, 1, 3] = bad
    y = nkiconv.conv3d(x, w, **asked, residual=residual, out_dtype=np.float32)
    spoiled = ~np.isfinite(y)
    assert spoiled[1, 7, 2, 1, 3]
    assert spoiled.sum() <= 128 < spoiled[1, :, :, 1, 3].size
    assert spoiled.sum() == spoiled[1, :, :, 1, 3].sum()
    assert (y == plain)[~spoiled].all()


PLAIN_CASE = ConvProblem(N=1, C=8, D=5, H=6, W=7, K=4, T=3, R=3, S=3)


@pytest.mark.cover(3)
@pytest.mark.parametrize("layout", VOLUME_FILTER_LAYOUTS)
@pytest.mark.parametrize(("K", "T", "R", "S"), [(3, 3, 1, 1), (6, 3, 1, 2), (6, 3, 2, 1), (4, 2, 1, 2)])
def test_filters_whose_channels_are_as_many_as_taps(K, T, R, S, layout):
    """Outputs between neighbouring input channels, as taps lie between them in KCTRS, are no taps."""
    problem = PLAIN_CASE.replace(K=K, T=T, R=R, S=S)
    rng = np.random.default_rng(4)
    x, w = integer_inputs(rng, problem.input_shape, "bf16"), integer_inputs(rng, problem.filter_shape, "bf16")
    stored = np.ascontiguousarray(w.transpose(np.argsort(VOLUME_FILTER_LAYOUTS[layout])))
    for name, config in ((PIXELS, None), (K_PACKING, (("planes", "channels"),))):
        refused = pytest.raises(UnsupportedError, match="lie as KCTRS")
        with contextlib.nullcontext() if layout == "KCTRS" else refused:
            y = nkiconv.conv3d(x, stored, filter_layout=layout, algorithm=name, config=config)
            assert_exact(y, conv_ref(x, w, problem), "bf16")


# Changes of PLAIN_CASE, an algorithm, settings, what else is asked for, message.
@pytest.mark.parametrize(("changes", "algorithm", "settings", "asked", "message"), [
    ({"D": 1, "T": 1}, PIXELS, {}, {}, "T=1, out_perm: neighbouring output channels are"),
    ({"K": 513}, PIXELS, {}, {}, "K=513: activation_stationary takes at most 512 output channels"),
    ({"groups": 2}, PIXELS, {}, {}, "feature_group_count=2, C=8, K=4: activation_stationary takes 1"),
    ({"lhs_dilation": (2, 1, 1)}, PIXELS, {}, {}, "of planes: activation_stationary takes 1"),
    ({"lhs_dilation": (1, 2, 1)}, PIXELS, {}, {}, "lhs_dilation=.*activation_stationary takes"),
    ({"dtype": "fp8_e4m3"}, PIXELS, {}, {}, "float8: activation_stationary takes 16 and 32 bits"),
    ({}, PIXELS, {}, {"strict_nonfinite": True}, "activation_stationary multiplies"),
    ({}, PIXELS, {}, EPILOGUES["residual after an activation"], "activation_stationary adds a residual to sums"),
    ({"dtype": "fp32"}, PIXELS, {}, {"residual": True, "precision": "tf32"}, "would round it as a product"),
    ({"layout": "NDHWC"}, PIXELS, {"fold": 128}, {}, "fold must divide P"),
    ({"dtype": "fp8_e4m3", "C": 256}, GEMM, {"product": "fp8_pairs"}, {}, "one plane of taps"),
    ({"dtype": "fp8_e4m3", "C": 256, "T": 1, "padding": ((1, 0), (0, 0), (0, 0))}, GEMM, {"product": "fp8_pairs"}, {},
     "planes of y that each see the plane of x"),
    ({"groups": 8, "K": 8, "T": 1, "stride": (2, 1, 1)}, PIXELS, {}, {}, "planes of y that each see the plane of x"),
    ({"lhs_dilation": (2, 1, 1)}, BLOCKS, {"depth": 2}, {}, "config depth=2: weight_stationary needs a plain"),
])  # fmt: skip
def test_refusals(changes, algorithm, settings, asked, message):
    check_refused(PLAIN_CASE.replace(**changes), algorithm, message, settings, **asked)
