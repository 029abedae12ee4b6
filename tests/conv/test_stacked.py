"""Stacks of rows, shifts and outputs: every shape of one gives the same sums, and needs no more than it says."""

import pytest
from conv_calls import (
    check_bits,
    check_epilogue,
    check_exact,
    check_refused,
    config_of,
    geometry_of,
    options_of,
    planned,
)
from volumes import check_volume

from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.conv import ALGORITHMS
from nkiconv.problem import ConvProblem
from nkiconv.schedules.stacked import WAYS
from nkiconv.simulator.timing import Rates

STRIDED = ConvProblem(
    N=3, C=3, H=17, W=14, K=10, R=5, S=4, stride=(2, 3), padding=((2, 1), (3, 2)), rhs_dilation=(1, 2)
)
DILATED = ConvProblem(N=1, C=5, H=13, W=9, K=7, R=3, S=3, rhs_dilation=(3, 1), padding=((4, 3), (-1, 2)))
WIDE = ConvProblem(N=1, C=2, H=9, W=1100, K=3, R=3, S=2, padding=((1, 1), (0, 1)))
LONG = ConvProblem(N=1, C=3, H=1030, W=2, K=4, R=3, S=2, padding=((1, 0), (0, 0)))
#: C, K, groups and the axes of a volume of several planes and output channels.
CUBE = (5, 32, 1, (5, 3, 1, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1, 1))
PLAIN = ConvProblem(N=5, C=16, H=15, W=6, K=64, R=3, S=3, padding=((1, 2), (1, 1)))
#: problem, rows B, shifts D, outputs U of a block, V rows beside each other, rows G from one block to the next
SHAPES = [
    (STRIDED, 1, 1, 1, 1, 1),
    (STRIDED, 2, 1, 1, 1, 2),
    (STRIDED, 2, 4, 3, 1, 2),
    (STRIDED, 4, 3, 2, 1, 4),
    (STRIDED, 6, 2, 3, 1, 6),
    (STRIDED, 8, 4, 8, 1, 8),
    (STRIDED, 11, 3, 2, 2, 8),
    (STRIDED, 11, 2, 4, 1, 8),
    (STRIDED, 5, 4, 1, 1, 2),
    (STRIDED, 4, 2, 2, 3, 4),
    (STRIDED, 6, 1, 2, 3, 2),
    (STRIDED, 3, 4, 1, 3, 3),
    (DILATED, 1, 1, 1, 1, 1),
    (DILATED, 3, 2, 3, 1, 3),
    (DILATED, 7, 3, 14, 1, 7),
    (DILATED, 8, 2, 2, 1, 2),
    (DILATED, 6, 1, 3, 4, 2),
    (LONG, 3, 1, 1, 1, 1),
    (WIDE, 2, 2, 2, 1, 2),
    (WIDE, 4, 1, 8, 1, 4),
    (WIDE, 6, 2, 2, 2, 4),
    (PLAIN, 2, 1, 2, 1, 2),
    (PLAIN, 2, 1, 2, 1, 1),
    (PLAIN, 4, 2, 2, 1, 2),
    (PLAIN, 6, 1, 4, 1, 4),
    (PLAIN, 4, 2, 2, 4, 4),
    (PLAIN, 8, 1, 2, 3, 6),
]
NAMES = {id(STRIDED): "strided", id(DILATED): "dilated", id(WIDE): "wide", id(LONG): "long", id(PLAIN): "plain"}
IDS = [f"{NAMES[id(row[0])]}-{'-'.join(map(str, row[1:]))}" for row in SHAPES]


def stacked(B, D, U, V, G):
    return config_of("stacked", rows=B, shifts=D, outputs=U, beside=V, apart=G)


def completed(problem, settings=None, **changes):
    """All settings, those that are open as the host has them."""
    given = settings and tuple(settings.items())
    shape = Shape(geometry_of(problem), options_of(**changes), 2, Rates())
    return ALGORITHMS["stacked"].complete(shape, given)


@pytest.mark.cover(9)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("row", SHAPES, ids=IDS)
def test_every_shape_is_exact(row, dtype):
    stack = planned(row[0], "stacked", stacked(*row[1:])[1:])[0].stack
    assert (stack.B, stack.D, stack.U, stack.V, stack.G) == row[1:]
    check_exact(row[0].replace(dtype=dtype), config=stacked(*row[1:]))


@pytest.mark.cover(3)
@pytest.mark.parametrize("row", SHAPES, ids=IDS)
def test_banks_are_cut_alike_on_one_core_and_two(row):
    check_bits(row[0].replace(dtype="fp32"), stacked(*row[1:]))


@pytest.mark.cover(4)
@pytest.mark.parametrize("row", SHAPES[::3], ids=IDS[::3])
def test_epilogue_of_every_row_of_a_block(row):
    asked = {"bias": True, "residual": True, "beta": 2.0, "activation": "relu"}
    check_epilogue(row[0], asked, stacked(*row[1:]))


@pytest.mark.parametrize(
    ("problem", "settings", "message"),
    [
        (PLAIN, {"beside": 2}, "beside goes with rows, shifts and outputs"),
        (PLAIN, {"rows": 2, "shifts": 1}, "given together or not at all"),
        (PLAIN, {"rows": 3, "shifts": 1, "outputs": 2}, "divide outputs"),
        (PLAIN, {"rows": 4, "shifts": 1, "outputs": 2, "apart": 4}, r"or apart=4, where it is given"),
        (PLAIN, {"rows": 16, "shifts": 1, "outputs": 16}, "must be at most 128"),
        (PLAIN, {"rows": 1, "shifts": 4, "outputs": 1}, "at most 3 shifts"),
        (PLAIN, {"rows": 3, "shifts": 1, "outputs": 2, "apart": 2}, "rows must be a multiple of it, or hold"),
        (PLAIN, {"rows": 1, "shifts": 1, "outputs": 1, "blocks": 0}, "blocks=0: must be an int from 1 to 4096"),
        (PLAIN, {"images": 1}, "stacked has no setting images"),
        (PLAIN, {"filters": "turned"}, "filters=turned: must be one of"),
        (PLAIN, {"filters": "shifted"}, "filters=shifted: must be one of"),
        (PLAIN, {"late_warmup": 513}, "late_warmup=513: must be an int from 0 to 512"),
    ],
)
def test_sizes_that_do_not_fit_each_other(problem, settings, message):
    check_refused(problem, "stacked", message, settings)
    assert completed(problem, settings) == tuple(settings.items())


LAYER = ConvProblem(N=1, C=3, H=40, W=40, K=16, R=5, S=5, padding=((2, 2), (2, 2)))


@pytest.mark.parametrize(
    ("problem", "changes", "message"),
    [
        (LAYER, {"strict_nonfinite": True}, "strict_nonfinite=True: stacked multiplies"),
        (LAYER.replace(lhs_dilation=(2, 1)), {}, r"lhs_dilation=\(2, 1\): stacked takes"),
        (LAYER.replace(groups=2, C=6), {}, "feature_group_count=2, C=6, K=16: stacked takes one group"),
        (LAYER.replace(C=129), {}, "C=129: stacked takes at most 128"),
        (LAYER.replace(C=128, K=9000, R=31), {}, "W=40, R=31, S=5: stacked rows and filters must fit"),
    ],
)
def test_what_is_not_stacked(problem, changes, message):
    assert planned(LAYER, "stacked")[1] == ""
    check_refused(problem, "stacked", message, **changes)


MANY = ConvProblem(N=5, C=3, H=9, W=7, K=6, R=3, S=3, stride=(2, 1), padding=((1, 1), (1, 1)))


TALL = ConvProblem(N=1, C=2, H=24, W=20, K=4, R=20, S=18, padding=((10, 9), (9, 9)))


@pytest.mark.cover(4)
@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (MANY, {"rows": 4, "shifts": 3, "outputs": 2}),
        (MANY, {"rows": 8, "shifts": 3, "outputs": 4, "blocks": 1}),
        (MANY, {"rows": 2, "shifts": 1, "outputs": 3, "beside": 2, "apart": 2}),
        (TALL, {"rows": 2, "shifts": 4, "outputs": 2}),
        (TALL, {"rows": 4, "shifts": 2, "outputs": 2, "beside": 2}),
        (PLAIN, {"rows": 2, "shifts": 1, "outputs": 2, "blocks": 2}),
    ],
)
def test_filters_come_every_way_and_rows_leave_together(problem, settings):
    config = config_of("stacked", **settings)
    for dtype in ("bf16", "fp32"):
        check_exact(problem.replace(dtype=dtype), config=config)


def test_each_way_of_filters_is_taken():
    taken = [
        dict(completed(problem, {"rows": 2, "shifts": 1, "outputs": outputs}))["filters"]
        for problem, outputs in [(TALL, 2), (PLAIN, 2)]
    ]
    assert tuple(taken) == WAYS


@pytest.mark.cover(10)
@pytest.mark.parametrize("filters", WAYS)
@pytest.mark.parametrize("problem", [PLAIN, TALL.replace(K=32), PLAIN.replace(K=32, rhs_dilation=(2, 1))])
def test_every_way_of_filters_is_exact(problem, filters):
    check_exact(problem, config=config_of("stacked", rows=2, shifts=1, outputs=2, filters=filters))


@pytest.mark.cover(3)
@pytest.mark.parametrize("K", [5, 150, 256])
@pytest.mark.parametrize("outputs", [1, 3])
def test_biases_of_m_tiles(K, outputs):
    check_epilogue(MANY.replace(K=K), "bias", config_of("stacked", rows=2, shifts=3, outputs=outputs))


@pytest.mark.cover(4)
@pytest.mark.parametrize("filters", WAYS)
@pytest.mark.parametrize("sizes", [(3, 1, 1), (5, 1, 2), (4, 2, 2), (8, 3, 4)])
def test_volumes_by_settings(filters, sizes):
    rows, shifts, outputs = sizes
    sized = (("rows", rows), ("shifts", shifts), ("outputs", outputs), ("apart", outputs), ("filters", filters))
    check_volume(CUBE, algorithm="stacked", config=sized)
    check_volume(CUBE, algorithm="stacked", config=(*sized, ("blocks", 1)))


def test_several_planes_share_a_out_tile():
    check_volume((4, 8, 1, (9, 3, 1, 1, 1, 1, 1), (4, 3, 1, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1, 1)), algorithm="stacked")


#: Problems whose rows of y have parts where X has few bytes; B, D, U, V, G; how many parts.
LONG_ROWS = [
    (ConvProblem(N=1, C=1, W=9000, K=5, S=10, stride=(1, 5)), (1, 10, 1, 1, 1), 2),
    (ConvProblem(N=2, C=2, W=6100, K=3, S=5, padding=((0, 0), (7, 9)), rhs_dilation=(1, 3)), (1, 3, 1, 1, 1), 2),
    (ConvProblem(N=1, C=3, W=6100, K=4, S=3, padding=((0, 0), (1, 1))), (1, 1, 1, 1, 1), 2),
    (ConvProblem(N=1, C=2, H=5, W=3100, K=3, R=3, S=3, padding=((1, 1), (1, 0)), layout="NHWC"), (2, 2, 2, 1, 2), 2),
]


@pytest.mark.parametrize(("problem", "sizes", "parts"), LONG_ROWS)
def test_parts_of_long_rows_are_exact(problem, sizes, parts, monkeypatch):
    monkeypatch.setattr("nkiconv.schedules.stacked.X_BYTES", 12_000)
    monkeypatch.setattr("nkiconv.schedules.stacked.Y_BYTES", 32_000)
    asked, config = {"bias": True, "residual": True, "beta": 2.0}, (*stacked(*sizes), ("warmup", 7))
    assert len(planned(problem, "stacked", config[1:], residual=True)[0].stack.row_parts) == parts
    check_exact(problem, config=config)
    check_epilogue(problem, asked, config)
    check_bits(problem.replace(dtype="fp32"), config)
