"""Windows of x as stationaries, planes of y in columns: the same sums, transposed to rows of y."""

import contextlib
import math
import re
from itertools import product

import hypothesis
import numpy as np
import pytest
from conv_calls import options_of
from depthwise import same_bits
from draws import draws
from tolerances import assert_exact, integer_inputs
from volumes import PLAIN, VOLUMES, check_volume, outputs, volumes

import nkiconv
from nkiconv import cases
from nkiconv.planner.operations import OPERATIONS
from nkiconv.planner.request import Request
from nkiconv.problem import ConvProblem
from nkiconv.reference import conv_ref
from nkiconv.rules import VOLUME_FILTER_LAYOUTS
from nkiconv.schedules import volume_rows
from nkiconv.schedules.channel_pieces import parts_of, products_of
from nkiconv.schedules.conv_algorithms import plan_of
from nkiconv.simulator.timing import Rates

NAME = "activation_stationary"
CONV3D = OPERATIONS["conv3d"]
ROWS = VOLUMES["same"][4:]
#: (C, K, groups, planes, rows, columns)
SHAPES = {
    "riders": (96, 20, 1, (6, 3, 1, 1, 1, 0, 0), (9, 3, 1, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1, 1)),
    "riders of 16": (112, 5, 1, PLAIN, (6, 4, 1, 1, 1, 2, 1), (9, 3, 1, 2, 1, 1, 2)),
    "pairs": (192, 140, 1, PLAIN, *ROWS),
    "several banks": (40, 200, 1, (7, 3, 1, 1, 1, 2, 0), *ROWS),
    "strided": (96, 9, 1, (9, 3, 2, 1, 1, 1, 1), (11, 3, 2, 1, 1, 1, 1), (13, 3, 2, 1, 1, 2, 0)),
    "dilated": (96, 9, 1, (9, 3, 1, 2, 1, 2, 2), (11, 3, 1, 3, 1, 1, 1), (13, 3, 1, 2, 1, 2, 0)),
    "planes without x": VOLUMES["far outside"],
    "one row": (5, 4, 1, PLAIN, (1, 1, 1, 1, 1, 0, 0), (300, 5, 1, 1, 1, 2, 2)),
}
SETTINGS = [{}, {"depth": 1, "copies": 1}, {"depth": 2, "copies": 3, "warmup": 0}]


@pytest.mark.cover(4)
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("config", SETTINGS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_exact(name, config, lnc):
    check_volume(SHAPES[name], lnc=lnc, N=2, algorithm=NAME, config=tuple(config.items()))


@pytest.mark.parametrize(("dtype", "precision"), [("fp16", None), ("fp32", None), ("fp32", "tf32"), ("fp32", "bf16")])
def test_dtypes(dtype, precision):
    check_volume(SHAPES["riders"], dtype, algorithm=NAME, precision=precision)


@draws(25)
@hypothesis.given(volumes(most_lhs=1), hypothesis.strategies.sampled_from(SETTINGS))
def test_any_volume(shape, config):
    if shape[3][1] > 1:
        leaves_by_rows = shape[1] > 1 and math.prod(outputs(axis) for axis in shape[3:]) > 1
        check_volume(shape, algorithm=NAME, config=tuple(config.items()) if leaves_by_rows else None)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ["pairs", "strided", "dilated", "one row"])
def test_columns_in_parts(name, change):
    change(volume_rows, "PARTS_TRIED", (3,))
    change(volume_rows, "fewest_tiles", lambda geometry: min(20, geometry.rows.out))
    check_volume(SHAPES[name], N=2, algorithm=NAME)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_epilogue(activation):
    C, K, _, *axes = SHAPES["riders"]
    rng = np.random.default_rng(3)
    x = integer_inputs(rng, (1, C, *(axis[0] for axis in axes)), "bf16")
    w = integer_inputs(rng, (K, C, *(axis[1] for axis in axes)), "bf16")
    bias = rng.integers(-3, 4, K).astype(np.float32)
    places = {"padding": tuple(axis[5:] for axis in axes), "activation": activation, "bias": bias}
    one, two, other = (
        nkiconv.simulate(nkiconv.conv3d_implicit_gemm[lnc])(x, w, **places, algorithm=name)
        for lnc, name in ((1, NAME), (2, NAME), (2, "implicit_gemm"))
    )
    assert same_bits(one, two)
    assert same_bits(one, other)


@pytest.mark.cover(40)
@pytest.mark.parametrize("copies", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("C", "R", "S"), [*product((3, 32, 64, 96, 112, 200, 224), (1, 3, 4), (1, 3, 5))])
def test_products_take_every_channel_at_every_tap_once(C, R, S, copies):
    shape = ConvProblem(N=1, C=C, K=1, H=R, W=S, R=R, S=S)
    geometry = OPERATIONS["conv2d"].shape(Request(problem=shape), Rates()).geometry
    k_tiles, products = products_of(geometry, copies)
    found = []
    for one in products:
        k_tile = k_tiles[one.k_tile]
        assert parts_of(k_tile, one.pieces) <= 128
        pieces = k_tile[: one.pieces]
        found += [(own.c0 + c, one.r + own.r, one.s + own.s) for own in pieces for c in range(own.count)]
    assert sorted(found) == list(product(range(C), range(R), range(S)))


def test_nine_taps_of_96_channels_take_seven_products():
    shape = Request(problem=cases.get("wan_96").problem)
    k_tiles, products = products_of(CONV3D.shape(shape, Rates()).geometry, 4)
    assert (len(k_tiles), len(products)) == (4, 7)


PLAIN_CASE = ConvProblem(N=1, C=8, D=5, H=6, W=7, K=4, T=3, R=3, S=3)


@pytest.mark.parametrize(("changes", "message"), [
    ({"D": 1, "T": 1}, "T=1, out_perm: neighbouring output channels are"),
    ({"K": 513}, f"K=513: {NAME} takes at most 512 output channels"),
    ({"groups": 2}, f"feature_group_count=2, C=8, K=4: {NAME} takes 1"),
    ({"lhs_dilation": (2, 1, 1)}, f"of planes: {NAME} takes 1"),
    ({"lhs_dilation": (1, 2, 1)}, f"lhs_dilation=.*{NAME} takes"),
    ({"dtype": "fp8_e4m3"}, f"float8: {NAME} takes 16 and 32 bits"),
    ({"W": 100_000}, f"{NAME} keeps rows of x"),
])  # fmt: skip
def test_what_is_refused(changes, message):
    shape = CONV3D.shape(Request(problem=PLAIN_CASE.replace(**changes)), Rates())
    assert re.search(message, CONV3D.unsupported_reason(NAME, shape, None))


@pytest.mark.cover(3)
@pytest.mark.parametrize("layout", VOLUME_FILTER_LAYOUTS)
@pytest.mark.parametrize(("K", "T", "R", "S"), [(3, 3, 1, 1), (6, 3, 1, 2), (6, 3, 2, 1), (4, 2, 1, 2)])
def test_filters_whose_channels_are_as_many_as_taps(K, T, R, S, layout):
    """Outputs between neighbouring input channels, as taps lie between them in KCTRS, are no taps."""
    problem = PLAIN_CASE.replace(K=K, T=T, R=R, S=S)
    rng = np.random.default_rng(4)
    x, w = integer_inputs(rng, problem.input_shape, "bf16"), integer_inputs(rng, problem.filter_shape, "bf16")
    stored = np.ascontiguousarray(w.transpose(np.argsort(VOLUME_FILTER_LAYOUTS[layout])))
    for name, config in ((NAME, None), ("stacked", (("planes", "channels"),))):
        refused = pytest.raises(nkiconv.UnsupportedError, match="lie as KCTRS")
        with contextlib.nullcontext() if layout == "KCTRS" else refused:
            y = nkiconv.conv3d(x, stored, filter_layout=layout, algorithm=name, config=config)
            assert_exact(y, conv_ref(x, w, problem), "bf16")


def test_a_residual_and_strict_nonfinite_are_refused():
    shape = CONV3D.shape(Request(problem=PLAIN_CASE), Rates())
    for name, message in (("residual", f"{NAME} takes none"), ("strict_nonfinite", f"{NAME} multiplies")):
        reason = plan_of(NAME, shape.geometry, options_of(**{name: True}), None, 2)[1]
        assert message in reason
